"""The sign-in of one server: its tokens, and what is needed to renew them.

In: a server's configuration, the vault. Out: an `AccountRecord`, bound to the entry's name and address.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from toolcrib.config.model import ServerConfig
from toolcrib.credentials.vault import CredentialKind, Vault


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    server: str
    """The entry's name."""
    url: str
    issuer: str = ""
    resource: str = ""
    """The resource indicator of token requests; empty if they have none."""
    token_url: str = ""
    revocation_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    client_auth: str = ""
    """The client's authentication at the token endpoint: `client_secret_basic`, `client_secret_post` or `none`."""
    redirect_port: int | None = None
    """The port that the client was registered with."""
    scopes: tuple[str, ...] = ()
    """As granted."""
    asked: tuple[str, ...] = ()
    """Scopes that a call lacked since, for the next sign-in."""
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float | None = None
    """Seconds since the epoch; None if unknown."""
    refreshed_at: float = 0.0
    """When these tokens were issued."""
    signed_in_at: float = 0.0
    pending: float | None = None
    """When a refresh was sent whose answer is unknown."""
    ended: str = ""
    """Why a new sign-in is needed; empty if it is not."""


def account_key(config: ServerConfig) -> str:
    """Another entry, another address, or an unverified certificate never gets the same account."""
    return hashlib.sha256(json.dumps([config.name, config.url, config.verify_tls]).encode()).hexdigest()[:32]


def load_account(vault: Vault, config: ServerConfig) -> AccountRecord | None:
    """Raises `StoreError` if it cannot be read."""
    held = vault.get(CredentialKind.ACCOUNT, account_key(config))
    return None if held is None else msgspec.json.decode(held, type=AccountRecord)


def store_account(vault: Vault, config: ServerConfig, record: AccountRecord) -> None:
    """Stored durably when this returns."""
    vault.put(CredentialKind.ACCOUNT, account_key(config), msgspec.json.encode(record))
