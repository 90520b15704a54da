"""Renews the tokens of one account, as a process of its own: `python -m toolcrib.servers.renewal`.

In: on stdin, which account, and which of its tokens the caller knows. Out: the new tokens in the vault; on stdout, why
there are none. Most authorization servers accept a refresh token once, so whoever sends it must live to store the
answer: this process goes on when the one that started it is killed. The vault's lock lets one at a time work; the
others find that it is done. `account` starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from toolcrib.config.masking import printable
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import SignInFailed, StoreError
from toolcrib.servers.account import AccountRecord, has_ended, load_account, scopes_in, store_account, token_end
from toolcrib.servers.checked_http import CheckedAnswer, CheckedHttp
from toolcrib.servers.client_auth import authenticate
from toolcrib.servers.web import shown_url

_FINAL = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""Answers after which only a new sign-in helps."""
_NOT_PROCESSED = frozenset({429, 503})
_LONGEST_REASON = 300
_STORE_AGAIN = (0.1, 1.0, 5.0, 20.0)
"""Seconds between attempts, if the disk is full or the keyring is locked."""


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    paths: dict[str, str]
    key: str
    verify_tls: bool
    refreshed_at: float
    """When the tokens that the caller knows were issued."""
    pending: float | None = None
    """The attempt without an answer that the caller knows of."""


def main() -> None:
    received = sys.stdin.buffer.read()
    # Without an order, the caller has died. With one, it need not wait for this process's end.
    if not received or os.fork():
        return
    reason = _renew(msgspec.json.decode(received, type=_Order))
    with contextlib.suppress(BrokenPipeError):
        os.write(1, reason.encode())


def _renew(order: _Order) -> str:
    """Returns why the account has no new tokens; empty if it has some, or if the reason is in its record."""
    vault = Vault(Paths(**{name: Path(path) for name, path in order.paths.items()}))
    try:
        with vault.lock(CredentialKind.ACCOUNT, order.key):
            record = load_account(vault, order.key)
            if record is None or record.ended or record.refreshed_at != order.refreshed_at:
                return ""
            if record.pending not in (None, order.pending) and not has_ended(record):
                return "another attempt got no answer. The token that is left is used until its end."
            store_account(vault, order.key, replace(record, pending=time.time()))
            try:
                renewed = asyncio.run(_renewed(record, verify_tls=order.verify_tls))
            except SignInFailed as error:
                if not error.may_have_run:
                    store_account(vault, order.key, record)
                raise
            _store(vault, order.key, renewed)
    except (SignInFailed, StoreError) as error:
        return error.text()
    return ""


def _store(vault: Vault, key: str, renewed: AccountRecord) -> None:
    """Tries for a while: the old refresh token is used up, so the sign-in would be lost with the new one."""
    for pause in _STORE_AGAIN:
        try:
            store_account(vault, key, renewed)
        except StoreError:
            time.sleep(pause)
        else:
            return
    store_account(vault, key, renewed)


async def _renewed(record: AccountRecord, *, verify_tls: bool) -> AccountRecord:
    """The record with new tokens, or with the reason why there will be none. Raises `SignInFailed`."""
    form = {"grant_type": "refresh_token", "refresh_token": record.refresh_token}
    if record.resource:
        form["resource"] = record.resource
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", "Connection": "close"}
    authenticate(record, form, headers)
    begun = time.time()
    async with CheckedHttp(record.url, verify_tls=verify_tls) as http:
        answer = await http.send("POST", record.token_url, headers, urlencode(form).encode())
    where = shown_url(record.token_url)
    if answer.status == 200:
        return _with_tokens(record, _document(answer), begun, where)
    code = _document(answer).get("error")
    if isinstance(code, str) and code in _FINAL:
        return replace(record, access_token="", refresh_token="", pending=None, ended=f"{where} answered: {code}")
    shown = f", {printable(code)[:_LONGEST_REASON]}" if isinstance(code, str) else ""
    failed = SignInFailed(f"{where} refused to renew the token (HTTP {answer.status}{shown}).")
    failed.may_have_run = answer.status >= 500 and answer.status not in _NOT_PROCESSED
    raise failed


def _document(answer: CheckedAnswer) -> dict[str, Any]:
    try:
        # Unlike `json`, it refuses texts that cannot be stored.
        found = msgspec.json.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _with_tokens(record: AccountRecord, found: dict[str, Any], begun: float, where: str) -> AccountRecord:
    access, refresh, scope = found.get("access_token"), found.get("refresh_token"), found.get("scope")
    kind = found.get("token_type")
    failed = SignInFailed(f"{where} answered without a usable token.")
    failed.may_have_run = True
    if not isinstance(access, str) or not access or not (isinstance(kind, str) and kind.lower() == "bearer"):
        raise failed
    try:
        return replace(
            record,
            access_token=access,
            refresh_token=refresh if isinstance(refresh, str) and refresh else record.refresh_token,
            scopes=scopes_in(scope) if isinstance(scope, str) else record.scopes,
            expires_at=token_end(found.get("expires_in"), begun),
            refreshed_at=begun,
            pending=None,
        )
    except ValueError:
        raise failed from None


if __name__ == "__main__":
    main()
