"""The authorization server of the tests does what its description says, with the SDK's own client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from parts.authorization_server import WRITE, AuthorizationServer

REDIRECT = "http://127.0.0.1:1/callback"


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


class Memory:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@contextlib.asynccontextmanager
async def connected(server: AuthorizationServer, memory: Memory, mode: str = "2026-07-28") -> AsyncIterator[Client]:
    """The SDK's client, which follows the authorization address itself."""
    answers: list[dict[str, str]] = []

    async def follow(address: str) -> None:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            location = (await browser.get(address)).headers["Location"]
        answers.append(dict(parse_qsl(urlsplit(location).query)))

    async def answered() -> AuthorizationCodeResult:
        answer = answers.pop()
        return AuthorizationCodeResult(code=answer.get("code", ""), state=answer["state"], iss=answer["iss"])

    about = OAuthClientMetadata.model_validate({"redirect_uris": [REDIRECT], "client_name": "test"})
    auth: Any = OAuthClientProvider(server.url, about, memory, follow, answered)
    http = httpx2.AsyncClient(auth=auth, trust_env=False)
    async with http, Client(streamable_http_client(server.url, http_client=http), mode=mode) as client:
        yield client


async def refresh(server: AuthorizationServer, memory: Memory, token: str) -> httpx2.Response:
    assert memory.client is not None
    form = {"grant_type": "refresh_token", "refresh_token": token}
    auth = (memory.client.client_id, memory.client.client_secret or "")
    async with httpx2.AsyncClient(trust_env=False) as http:
        return await http.post(f"{server.issuer}/token", data=form, auth=auth)


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_the_sdk_signs_in_and_steps_up(server: AuthorizationServer, mode: str) -> None:
    async with connected(server, Memory(), mode) as client:
        await client.list_tools()
        whoami = await client.call_tool("whoami", {})
        written = await client.call_tool("write", {"text": "hello"})
    assert [whoami.content[0].text, written.content[0].text] == ["sign-in 1", '{"text": "hello"}']  # type: ignore[union-attr]
    calls = [(request.tool, request.status) for request in server.mcp_requests if request.tool]
    assert calls == [("whoami", 200), ("write", 403), ("write", 200)]
    asked = [fields["scope"] for endpoint, fields in server.requests if endpoint == "authorize"]
    assert [set(scope.split()) for scope in asked] == [{"issues:read"}, {"issues:read", WRITE}]


async def test_a_refresh_token_works_once_and_its_reuse_ends_the_sign_in(server: AuthorizationServer) -> None:
    memory = Memory()
    async with connected(server, memory) as client:
        await client.list_tools()
    assert memory.tokens is not None
    first = memory.tokens.refresh_token or ""
    answer = (await refresh(server, memory, first)).json()
    assert answer["refresh_token"] != first
    assert (await refresh(server, memory, first)).json()["error"] == "invalid_grant"
    assert server.reused == [first]
    assert (await refresh(server, memory, answer["refresh_token"])).json()["error"] == "invalid_grant"
    async with httpx2.AsyncClient(trust_env=False) as http:
        bearer = {"Authorization": f"Bearer {answer['access_token']}"}
        assert (await http.post(server.url, json={}, headers=bearer)).status_code == 401


async def test_it_drops_answers_is_down_and_never_stops_as_asked(server: AuthorizationServer) -> None:
    memory = Memory()
    async with connected(server, memory) as client:
        await client.list_tools()
    token = server.tokens("refresh")[0]
    server.drops["token"] = 1
    with pytest.raises(httpx2.RemoteProtocolError):
        await refresh(server, memory, token)
    assert len(server.tokens("refresh")) == 2
    with server.down(), pytest.raises(httpx2.ConnectError):
        await refresh(server, memory, token)
    server.answers["metadata"] = "endless"
    address, size = f"{server.issuer}/.well-known/oauth-authorization-server", 0
    async with httpx2.AsyncClient(trust_env=False) as http, http.stream("GET", address) as endless:
        async for chunk in endless.aiter_bytes():
            size += len(chunk)
            if size > 2_000_000:
                break
