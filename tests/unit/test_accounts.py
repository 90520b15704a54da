"""The tokens of an account: sent with every request, renewed once for everybody, and never lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.http11 import Response as HandshakeAnswer

from parts.authorization_server import WRITE, AuthorizationServer
from parts.signing_in import open_address
from parts.waiting import until
from toolcrib.config.from_code import server_config
from toolcrib.config.masking import HIDDEN, Masker
from toolcrib.config.model import ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers import account as accounts
from toolcrib.servers.account import Account, AccountRecord, account_key, load_account, scopes_in, store_account
from toolcrib.servers.model import ServerState, ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.redirect_listener import RedirectListener
from toolcrib.servers.server import Server
from toolcrib.servers.sign_in import SignInOrder, sign_in

pytestmark = pytest.mark.req("BNS-6")


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}))


def entry(authorization: AuthorizationServer, **auth: Any) -> ServerConfig:
    return server_config("web", {"url": authorization.url, **({"auth": auth} if auth else {})})


async def signed_in(config: ServerConfig, vault: Vault) -> AccountRecord:
    async def browse(url: str, _: RedirectListener) -> None:
        await asyncio.to_thread(open_address, url)

    return await sign_in(SignInOrder(config=config, vault=vault, mask=Masker(), show=browse))


@contextlib.asynccontextmanager
async def connected(config: ServerConfig, vault: Vault) -> AsyncIterator[Server]:
    pool = ServerPool(bus=Bus(), on_tools=lambda _: None, vault=vault)
    try:
        server = pool.acquire(config)
        await server.settled()
        yield server
    finally:
        await pool.close()


async def text_of(server: Server, tool: str = "whoami") -> str:
    answer = await server.call(ToolCall(name=tool))
    assert answer.result is not None
    return str(json.loads(answer.result)["content"][0]["text"])


def change(config: ServerConfig, vault: Vault, **fields: Any) -> None:
    record = load_account(vault, account_key(config))
    assert record is not None
    store_account(vault, account_key(config), msgspec.structs.replace(record, **fields))


async def test_requests_carry_the_token_of_the_entrys_account(authorization: AuthorizationServer, vault: Vault) -> None:
    config = entry(authorization)
    record = await signed_in(config, vault)
    async with connected(config, vault) as server:
        assert await text_of(server) == "sign-in 1"
    assert {seen.token for seen in authorization.mcp_requests if seen.status == 200} == {record.access_token}


async def test_without_a_sign_in_the_error_names_the_command(authorization: AuthorizationServer, vault: Vault) -> None:
    async with connected(entry(authorization), vault) as server:
        assert server.status.state is ServerState.UNAVAILABLE
        assert server.status.last_error == "Server 'web' needs a sign-in: run `toolcrib login web`."
        with pytest.raises(
            ServerUnavailable, match=r"^Server 'web' needs a sign-in: run `toolcrib login web`. The call did not run.$"
        ):
            await server.call(ToolCall(name="whoami"))
    assert authorization.requests == []


@pytest.mark.parametrize("why", ["expired", "rejected"])
async def test_calls_at_the_same_time_share_one_renewal(
    authorization: AuthorizationServer, vault: Vault, why: str
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.expire()
        if why == "expired":
            change(config, vault, expires_at=1.0)
            await server.restart()
        assert await asyncio.gather(*(text_of(server) for _ in range(50))) == ["sign-in 1"] * 50
    assert len(authorization.refreshes) == 1
    assert authorization.reused == []


async def test_a_token_is_renewed_before_its_end_while_calls_go_on(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    authorization.lifetime = 60
    config = entry(authorization)
    first = await signed_in(config, vault)
    change(config, vault, refreshed_at=first.refreshed_at - 1000)
    async with connected(config, vault) as server:
        with authorization.holding("token"):
            assert await text_of(server) == "sign-in 1"
        async with asyncio.timeout(30):
            while load_account(vault, account_key(config)) == first or len(authorization.tokens("access")) < 2:
                await text_of(server)
    assert len(authorization.refreshes) == 1


async def test_an_ended_permission_says_so_and_is_not_used_again(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.end_sign_ins()
        for _ in range(3):
            with pytest.raises(ServerUnavailable, match=r"needs a sign-in again .*invalid_grant.*toolcrib login web"):
                await text_of(server)
    assert len(authorization.refreshes) == 1


async def test_a_call_that_lacks_a_scope_names_it_and_the_next_sign_in_asks_for_it(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        with pytest.raises(ServerUnavailable, match=rf"needs another permission \({WRITE}\): run `toolcrib login web`"):
            await text_of(server, "write")
        await signed_in(config, vault)
        await server.restart()
        assert await text_of(server, "write") == "{}"


async def test_a_lost_answer_costs_the_sign_in_only_if_the_token_was_used(
    authorization: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_RETRY", 0.0)
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        # Refused without being processed.
        authorization.expire()
        authorization.answers["token"] = JSONResponse({}, 503)
        with pytest.raises(ServerUnavailable, match=r"The sign-in at server 'web' could not be renewed: .*HTTP 503"):
            await text_of(server)
        assert load_account(vault, account_key(config)).pending is None  # type: ignore[union-attr]
        del authorization.answers["token"]
        assert await text_of(server) == "sign-in 1"
        # Processed, and the answer lost.
        authorization.expire()
        authorization.drops["token"] = 1
        with pytest.raises(ServerUnavailable, match="The sign-in at server 'web' could not be renewed: "):
            await text_of(server)
        assert load_account(vault, account_key(config)).pending is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("scope", ["", "issues:read"])
async def test_client_credentials_need_no_person(authorization: AuthorizationServer, vault: Vault, scope: str) -> None:
    authorization.add_client("robot", "robots-secret")
    auth = {"type": "client_credentials", "client_id": "robot", "client_secret": "robots-secret"}
    config = entry(authorization, **auth, **({"scope": scope} if scope else {}))
    async with connected(config, vault) as server:
        assert (await text_of(server)).startswith("sign-in")
        authorization.expire()
        await asyncio.gather(*(text_of(server) for _ in range(10)))
    assert [fields["grant_type"] for fields in authorization.token_requests] == ["client_credentials"] * 2
    bad = entry(authorization, **{**auth, "client_secret": "wrong"})
    async with connected(bad, Vault(Paths.of_user({"TOOLCRIB_HOME": str(vault.paths.config_dir / "other")}))) as server:
        assert "rejects the client" in server.status.last_error


async def test_a_token_cannot_add_headers(authorization: AuthorizationServer, vault: Vault) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.expire()
        authorization.changes["token"] = {"access_token": "a\r\nX-Other: b"}
        with pytest.raises(ServerUnavailable, match="without a usable token"):
            await text_of(server)


@pytest.mark.parametrize("life", [0, -5, 10**400, "soon", None])
async def test_a_life_that_cannot_be_is_unknown(authorization: AuthorizationServer, vault: Vault, life: Any) -> None:
    """Otherwise every call would renew the token, or an answer with new tokens would be lost."""
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.expire()
        authorization.changes["token"] = {"expires_in": life}
        for _ in range(3):
            assert await text_of(server) == "sign-in 1"
    assert len(authorization.refreshes) == 1
    if life in (0, -5):
        assert (await signed_in(config, vault)).expires_at is None


async def test_tokens_that_cannot_be_stored_are_an_error_with_a_reason(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.expire()
        authorization.answers["token"] = Response(b'{"access_token": "a", "token_type": "Bearer", "scope": "\\ud800"}')
        with pytest.raises(ServerUnavailable, match="without a usable token"):
            await text_of(server)


async def test_a_server_that_rejects_every_token_does_not_cause_a_renewal_per_call(
    authorization: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_RETRY", 1000.0)
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.lifetime = 0
        authorization.expire()
        authorization.changes["token"] = {"expires_in": 3600}
        for _ in range(5):
            with pytest.raises(ServerUnavailable, match="the server rejects its token"):
                await text_of(server)
        assert len(authorization.refreshes) == 1
        authorization.lifetime = 3600
        await signed_in(config, vault)
        assert await text_of(server) == "sign-in 2"


async def test_calls_that_lack_a_scope_during_a_renewal_take_no_threads(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        with vault.lock(CredentialKind.ACCOUNT, account_key(config)):
            calls = [asyncio.create_task(text_of(server, "write")) for _ in range(50)]
            async with asyncio.timeout(30):
                while [seen.status for seen in authorization.mcp_requests].count(403) < 50:  # noqa: ASYNC110 - counted by a thread
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(lambda: None)
        refused = await asyncio.gather(*calls, return_exceptions=True)
    assert all("needs another permission" in str(error) for error in refused)


async def test_a_renewal_that_cannot_be_started_is_an_error_with_the_reason(
    authorization: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    async with connected(config, vault) as server:
        authorization.expire()
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(ServerUnavailable, match=r"could not be started: No such file .* did not run"):
            await text_of(server)


async def test_tokens_that_ended_long_ago_do_not_slow_down_masking(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    mask, config = Masker(), entry(authorization)
    account = Account(config, vault, mask)
    first = await signed_in(config, vault)
    for number in range(50):
        change(config, vault, access_token=f"access-token-{number}")
        await account.open()
    text = f"{first.refresh_token} access-token-49 access-token-48 access-token-10"
    assert mask.line(text) == f"{HIDDEN} {HIDDEN} {HIDDEN} access-token-10"


async def test_a_websocket_that_names_several_ways_to_authenticate_can_ask_for_a_scope(vault: Vault) -> None:
    ways = [("WWW-Authenticate", "Negotiate"), ("WWW-Authenticate", 'Bearer error="insufficient_scope", scope="all"')]

    def refuse(_: ServerConnection, __: Request) -> HandshakeAnswer:
        return HandshakeAnswer(403, "Forbidden", Headers(ways))

    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=refuse) as listening:
        url = f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"
        config = server_config("web", {"url": url})
        store_account(vault, account_key(config), AccountRecord(server="web", url=url, access_token="its-token"))
        async with connected(config, vault) as server:
            assert server.status.last_error == "Server 'web' needs another permission (all): run `toolcrib login web`."


async def test_a_renewal_ahead_of_time_that_fails_is_not_repeated_with_each_call(
    authorization: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_RETRY", 1000.0)
    config = entry(authorization)
    first = await signed_in(config, vault)
    change(config, vault, refreshed_at=first.refreshed_at - 100_000, expires_at=time.time() + 200)
    asked: list[str] = []

    class Busy(JSONResponse):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(scope["path"])
            await super().__call__(scope, receive, send)

    authorization.answers["token"] = Busy({}, 503)
    account = Account(config, vault, Masker())
    await account.open()
    for _ in range(3):
        assert first.access_token.encode() in await account.current()
        await until(lambda: account._renewing is None)
    assert asked == ["/token"]


def test_scopes_that_fill_the_terminal_are_left_out() -> None:
    assert scopes_in(f"read {'x' * 100_000} a\x1b[2J write") == ("read", "write")


async def test_an_unreadable_account_matters_only_to_a_server_that_asks_for_one(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    config = entry(authorization)
    await signed_in(config, vault)
    (vault.paths.credentials / "key").write_bytes(b"damaged")
    async with connected(config, vault) as server:
        assert "The account of server 'web' is unreadable" in server.status.last_error
    opened = accounts.Accounts(vault, Masker()).of(config)
    assert opened is not None
    await opened.open()
    assert await opened.current() == b""
