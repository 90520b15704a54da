"""Signing out: the account is gone in any case, and its tokens are revoked if the authorization server lets us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from parts.authorization_server import AuthorizationServer
from toolcrib.commands.account import describe_account
from toolcrib.config.masking import Masker
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.servers.account import AccountRecord, load_account, store_account
from toolcrib.servers.sign_out import delete_account, revoke

pytestmark = pytest.mark.req("BNS-6")


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}))


def record(authorization: AuthorizationServer, **more: Any) -> AccountRecord:
    authorization.add_client("mine", "its-secret")
    fields = {
        "server": "web",
        "url": authorization.url,
        "issuer": authorization.issuer,
        "revocation_url": f"{authorization.issuer}/revoke",
        "client_id": "mine",
        "client_secret": "its-secret",
        "client_auth": "client_secret_basic",
        "access_token": "its-access-token",
        "refresh_token": "its-refresh-token",
    }
    return AccountRecord(**(fields | more))


async def signed_out(account: AccountRecord, vault: Vault) -> str:
    """Why its tokens may still work."""
    store_account(vault, "key", account)
    assert await delete_account(vault, "key") == account
    assert load_account(vault, "key") is None
    assert await delete_account(vault, "key") is None
    return await revoke(account, Masker(), verify_tls=True)


async def test_both_tokens_are_revoked_as_the_client(authorization: AuthorizationServer, vault: Vault) -> None:
    assert await signed_out(record(authorization), vault) == ""
    assert authorization.requests == [
        ("revoke", {"token": "its-refresh-token", "token_type_hint": "refresh_token"}),
        ("revoke", {"token": "its-access-token", "token_type_hint": "access_token"}),
    ]


async def test_a_sign_out_that_waits_for_a_renewal_keeps_no_thread(vault: Vault) -> None:
    """A thread that waits would keep the daemon from stopping."""
    with vault.lock(CredentialKind.ACCOUNT, "key"):
        waiting = asyncio.create_task(delete_account(vault, "key"))
        await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().shutdown_default_executor()


async def test_without_tokens_nothing_is_sent(authorization: AuthorizationServer, vault: Vault) -> None:
    ended = record(authorization, access_token="", refresh_token="", ended="invalid_grant")
    assert await signed_out(ended, vault) == ""
    assert authorization.requests == []


async def test_a_refused_revocation_is_reported(authorization: AuthorizationServer, vault: Vault) -> None:
    authorization.answers["revoke"] = JSONResponse({}, 503)
    why = await signed_out(record(authorization), vault)
    assert why == f"{authorization.issuer}/revoke refused to revoke a token (HTTP 503)."


async def test_tokens_are_sent_only_to_an_https_address(authorization: AuthorizationServer, vault: Vault) -> None:
    why = await signed_out(record(authorization, revocation_url="http://elsewhere.example/revoke"), vault)
    assert "is not an https address: http://elsewhere.example/revoke" in why


async def test_a_server_without_revocation_is_reported(authorization: AuthorizationServer, vault: Vault) -> None:
    why = await signed_out(record(authorization, revocation_url=""), vault)
    assert why == f"{authorization.issuer} offers no revocation."


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"expires_at": 1.0}, ("ok", "")),
        ({"expires_at": 1.0, "refresh_token": ""}, ("needs a sign-in", "its token has expired")),
        ({"ended": "invalid_grant"}, ("needs a sign-in", "invalid_grant")),
        ({"asked": ("write", "admin")}, ("lacks a permission", "write admin")),
    ],
)
def test_an_account_is_described_without_tokens(
    authorization: AuthorizationServer, more: dict[str, Any], state: tuple[str, str]
) -> None:
    account = record(authorization, **{"expires_at": time.time() + 1000, **more})
    described = describe_account(account)
    assert (described["state"], described["reason"]) == state
    assert not {account.access_token, account.refresh_token, account.client_secret} & set(map(str, described.values()))
    assert repr(account) == "AccountRecord(server='web')"
