"""Signs out of an account: deletes it here, and revokes its tokens at its authorization server.

In: the vault and an account's key. Out: what was deleted, and why its tokens may still work. Used by
`commands.account`.
"""

from __future__ import annotations

from urllib.parse import urlencode

from toolcrib.config.masking import Masker
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import SignInFailed
from toolcrib.servers.account import AccountRecord, load_account, locked
from toolcrib.servers.checked_http import CheckedHttp
from toolcrib.servers.client_auth import authenticate
from toolcrib.servers.web import shown_url


async def delete_account(vault: Vault, key: str) -> AccountRecord | None:
    """Returns what was deleted for good; None if there is no such account. Raises `StoreError`."""

    def delete() -> AccountRecord | None:
        record = load_account(vault, key)
        vault.delete(CredentialKind.ACCOUNT, key)
        return record

    # Not during a renewal, which would store the account again.
    return await locked(vault, key, delete)


async def revoke(record: AccountRecord, mask: Masker, *, verify_tls: bool) -> str:
    """Returns why the account's tokens may still work; empty if they don't."""
    try:
        why = await _revoked(record, verify_tls=verify_tls)
    except SignInFailed as error:
        why = error.message
    return mask.line(why)


async def _revoked(record: AccountRecord, *, verify_tls: bool) -> str:
    """Returns why it was not possible. Raises `SignInFailed`."""
    # The refresh token first: with it, a server also ends the access tokens made from it.
    tokens = {"refresh_token": record.refresh_token, "access_token": record.access_token}
    if not any(tokens.values()):
        return ""
    if not record.revocation_url:
        return f"{shown_url(record.issuer)} offers no revocation."
    where = shown_url(record.revocation_url)
    async with CheckedHttp(record.url, verify_tls=verify_tls) as http:
        for kind, token in tokens.items():
            if not token:
                continue
            form = {"token": token, "token_type_hint": kind}
            headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
            authenticate(record, form, headers)
            answer = await http.send("POST", record.revocation_url, headers, urlencode(form).encode())
            if answer.status != 200:
                return f"{where} refused to revoke a token (HTTP {answer.status})."
    return ""
