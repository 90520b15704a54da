"""The tokens of an account over every transport: real servers behind a bearer check."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts.authorization_server import AuthorizationServer
from parts.bearer_guard import BearerGuard
from parts.live_servers import LIMIT, call
from parts.server_process import StartServer, stdio_command
from parts.servers.odd_web import EXACT, OddWeb, running
from parts.signing_in import open_address
from parts.waiting import until
from toolcrib.config.from_code import server_config
from toolcrib.config.masking import Masker
from toolcrib.config.model import ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import Vault
from toolcrib.errors import ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers.account import account_key, load_account
from toolcrib.servers.model import ServerState
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.redirect_listener import RedirectListener
from toolcrib.servers.server import Server
from toolcrib.servers.sign_in import SignInOrder, sign_in

pytestmark = [pytest.mark.req("BNS-6"), pytest.mark.slow]

WAYS = {
    "http modern": ["sdk_v2", "--modern-only", "--transport", "http"],
    "http legacy": ["sdk_v2", "--legacy-only", "--transport", "http"],
    "sse legacy": ["sdk_v2", "--legacy-only", "--transport", "sse"],
    "websocket legacy": ["ws_server"],
}


@dataclass(kw_only=True)
class Scene:
    way: str
    authorization: AuthorizationServer
    guard: BearerGuard
    config: ServerConfig
    vault: Vault

    async def sign_in(self) -> str:
        """Returns the token."""

        async def browse(url: str, _: RedirectListener) -> None:
            await asyncio.to_thread(open_address, url)

        order = SignInOrder(config=self.config, vault=self.vault, mask=Masker(), show=browse)
        return (await sign_in(order)).access_token

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Server]:
        pool = ServerPool(bus=Bus(), on_tools=lambda _: None, vault=self.vault)
        try:
            server = pool.acquire(self.config)
            await server.settled()
            yield server
        finally:
            await pool.close()

    def token(self) -> str:
        record = load_account(self.vault, account_key(self.config))
        assert record is not None
        return record.access_token


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as server:
        yield server


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(Paths.of_user({"TOOLCRIB_HOME": str(tmp_path / "home")}))


@pytest.fixture(params=list(WAYS))
async def scene(
    request: pytest.FixtureRequest, authorization: AuthorizationServer, start_server: StartServer, vault: Vault
) -> AsyncIterator[Scene]:
    way = request.param
    kind = {"sse legacy": "sse", "websocket legacy": "ws"}.get(way, "http")
    server = start_server(stdio_command(*WAYS[way]))
    guard = BearerGuard(server.url(kind).replace("ws:", "http:"), authorization)
    async with guard.running() as url:
        written: dict[str, Any] = {"url": guard.protect(url.replace("http:", "ws:") if kind == "ws" else url)}
        written |= {"transport": "sse"} if kind == "sse" else {}
        config = server_config("web", {**written, "connect_timeout": LIMIT, "retry": {"backoff": 0.05}})
        yield Scene(way=way, authorization=authorization, guard=guard, config=config, vault=vault)


async def words(server: Server, tool: str = "add", **arguments: Any) -> str:
    answer = await server.call(call(tool, **(arguments or {"a": 1, "b": 2})))
    assert answer.result is not None, answer.error
    return answer.result.decode()


async def test_a_rejected_token_is_renewed_once_and_the_session_is_kept(scene: Scene) -> None:
    first = await scene.sign_in()
    async with scene.connected() as server:
        assert server.status.state is ServerState.READY, server.status.last_error
        assert '"3"' in await words(server)
        scene.authorization.expire()
        if scene.way.startswith("websocket"):
            # Its token is only sent when it connects.
            await scene.guard.drop()
            await until(lambda: scene.token() != first, "the renewal")
            await until(lambda: server.status.state is ServerState.READY, "the connection")
        assert all('"3"' in said for said in await asyncio.gather(*(words(server) for _ in range(20))))
        assert server.restarts == scene.way.startswith("websocket")
    admitted = [seen for seen in scene.guard.requests if seen.status == 200]
    assert {seen.token for seen in admitted} == {first, scene.token()}
    sessions = {session for seen in admitted if (session := seen.headers.get("mcp-session-id"))}
    assert len(sessions) == (scene.way == "http legacy")
    assert len(scene.authorization.refreshes) == 1
    assert scene.authorization.reused == []


async def test_changes_are_announced_after_a_renewal(scene: Scene) -> None:
    await scene.sign_in()
    async with scene.connected() as server:
        before = len(server.tools or ())
        if scene.way.startswith("http"):
            stream = "GET" if "legacy" in scene.way else "POST"
            await until(lambda: streams(scene, stream), "the stream of changes")
        scene.authorization.expire()
        await scene.guard.drop()
        await until(lambda: len(scene.authorization.refreshes) == 1, "the renewal")
        await until(lambda: server.status.state is ServerState.READY, "the connection")
        if scene.way.startswith("http"):
            await until(lambda: scene.token() in streams(scene, stream), "the next stream")
        await words(server, "grow", name="newcomer")
        await until(lambda: len(server.tools or ()) == before + 1, "the new tool")
    assert len(scene.authorization.refreshes) == 1


def streams(scene: Scene, verb: str) -> list[str]:
    """The tokens of the requests for changes."""
    return [
        seen.token
        for seen in scene.guard.requests
        if (seen.verb, seen.status) == (verb, 200)
        and (verb == "GET" or seen.headers.get("mcp-method") == "subscriptions/listen")
    ]


async def test_a_missing_scope_and_a_missing_sign_in_are_named(scene: Scene) -> None:
    async with scene.connected() as server:
        assert server.status.last_error == "Server 'web' needs a sign-in: run `toolcrib login web`."
        await scene.sign_in()
        scene.guard.demands = "issues:delete"
        await server.restart()
        assert "needs another permission (issues:delete): run `toolcrib login web`." in server.status.last_error
        scene.guard.demands = ""
        await server.restart()
        assert '"3"' in await words(server)
        scene.guard.demands = "issues:delete"
        if not scene.way.startswith("websocket"):
            with pytest.raises(
                ServerUnavailable, match=r"needs another permission \(issues:delete\).* The call did not run"
            ):
                await words(server)
        record = load_account(scene.vault, account_key(scene.config))
        assert record is not None
        assert record.asked == ("issues:delete",)
    assert scene.authorization.refreshes == []


async def test_a_server_that_rejects_every_token_gets_one_renewal(scene: Scene) -> None:
    await scene.sign_in()
    async with scene.connected() as server:
        scene.guard.authorization = AuthorizationServer()
        if scene.way.startswith("websocket"):
            await scene.guard.drop()
            await until(lambda: server.status.state is not ServerState.READY, "the loss to be noticed")
        for _ in range(5):
            with pytest.raises(ServerUnavailable, match=r"needs a sign-in again \(the server rejects its token\)"):
                await words(server)
            await server.restart()
        assert "needs a sign-in again (the server rejects its token)" in server.status.last_error
    assert len(scene.authorization.refreshes) == 1


class ExpiringGuard(BearerGuard):
    """Ends all tokens when a broken answer is resumed."""

    def refusal(self, head: bytes) -> bytes:
        if b"Last-Event-ID: e1" in head and not self.authorization.refreshes:
            self.authorization.expire()
        return super().refusal(head)


async def test_a_broken_answer_is_resumed_with_a_renewed_token(
    authorization: AuthorizationServer, vault: Vault
) -> None:
    async with running(OddWeb("modern")) as odd:
        guard = ExpiringGuard(odd.url, authorization)
        async with guard.running() as url:
            config = server_config("web", {"url": guard.protect(url)})
            scene = Scene(way="http modern", authorization=authorization, guard=guard, config=config, vault=vault)
            await scene.sign_in()
            async with scene.connected() as server:
                assert (await server.call(call("resumed"))).result == EXACT
    assert [seen.status for seen in guard.requests if "last-event-id" in seen.headers] == [401, 200]
    assert len(authorization.refreshes) == 1
