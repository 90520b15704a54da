"""An authorization server and the MCP server that it protects, on one port of loopback, run in a thread.

    with AuthorizationServer.running() as server:
        toolcrib("add", "web", "--url", server.url)

It discovers, registers, signs in, rotates refresh tokens with reuse detection, and revokes, as strict servers do: exact
redirect addresses, PKCE, codes that work once. The MCP server (SDK, both eras) has the tools `echo`, `whoami` and
`write`, which needs the scope `issues:write`. A test sets the attributes of `AuthorizationServer` at any time and reads
what it saw.

The endpoints' names: resource_metadata, metadata, register, authorize, token, revoke, mcp.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parts.canary import canary
from parts.protected_server import READ, WRITE, Grant, Guarded, McpRequest, mcp_server

__all__ = ["READ", "WRITE", "AuthorizationServer"]

PATHS = {
    "/.well-known/oauth-protected-resource/mcp": "resource_metadata",
    "/.well-known/oauth-authorization-server": "metadata",
    "/register": "register",
    "/authorize": "authorize",
    "/token": "token",
    "/revoke": "revoke",
    "/mcp": "mcp",
}
PAGE = """<!doctype html><title>Sign in</title><h1>Allow {client}?</h1>
<form method="post" action="/authorize"><input type="hidden" name="asked" value="{asked}">
<button name="answer" value="allow">Allow</button><button name="answer" value="deny">Deny</button></form>"""
Json = dict[str, Any]


class Refused(Exception):
    def __init__(self, error: str, description: str = "", status: int = 400) -> None:
        self.response = JSONResponse({"error": error, "error_description": description}, status_code=status)


class AuthorizationServer:
    def __init__(self, tls: Path | None = None) -> None:
        """`tls`: a file with certificate and key."""
        self.tls = tls
        self.port = 0
        self.lifetime = 3600.0
        """Seconds that an access token works."""
        self.rotate = True
        self.forgiving = False
        """Whether a used refresh token works again; otherwise its reuse revokes the family."""
        self.consent = False
        """Whether /authorize shows a page with the buttons Allow and Deny, instead of a redirect at once."""
        self.scopes = [READ]
        """The scopes that the resource's metadata asks for."""
        self.changes: dict[str, Json] = {}
        """By endpoint: members of its JSON answer that are replaced, or removed by None."""
        self.answers: dict[str, Response | str] = {}
        """By endpoint: the answer instead of the proper one; `endless` is a body that never ends."""
        self.delays: dict[str, float] = {}
        """By endpoint: seconds before the request is handled."""
        self.drops: Counter[str] = Counter()
        """By endpoint: how many of the next requests are handled but not answered."""
        self.clients: dict[str, Json] = {}
        self.grants: dict[str, Grant] = {}
        self.requests: list[tuple[str, Json]] = []
        """All requests but those of `mcp`: the endpoint and the members of query, form or body."""
        self.mcp_requests: list[McpRequest] = []
        self.reused: list[str] = []
        """Refresh tokens that were used a second time."""
        self.revoked: list[str] = []
        """Tokens that the client revoked."""
        self._held: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        """By endpoint: how many requests arrived, also those with a prepared answer."""
        self._thread: threading.Thread | None = None
        self._uvicorn: uvicorn.Server | None = None

    # What tests use.

    @classmethod
    @contextlib.contextmanager
    def running(cls, tls: Path | None = None) -> Iterator[Self]:
        server = cls(tls)
        server.start()
        try:
            yield server
        finally:
            server.stop()

    @property
    def issuer(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address of the MCP server."""
        return f"{self.issuer}/mcp"

    @property
    def token_requests(self) -> list[Json]:
        return [fields for endpoint, fields in self.requests if endpoint == "token"]

    @property
    def refreshes(self) -> list[Json]:
        return [fields for fields in self.token_requests if fields.get("grant_type") == "refresh_token"]

    def tokens(self, kind: str) -> list[str]:
        """Every token of the kind `access` or `refresh` that was ever issued."""
        return [token for token, grant in self.grants.items() if grant.kind == kind]

    def add_client(self, client_id: str, secret: str = "", *redirect_uris: str) -> None:
        """Registers a client in advance; without `redirect_uris`, any loopback address may be used."""
        method = "any" if secret else "none"
        self.clients[client_id] = {"secret": secret, "method": method, "redirect_uris": redirect_uris}

    def expire(self) -> None:
        """Ends all access tokens."""
        for grant in self.grants.values():
            if grant.kind == "access":
                grant.ends = 0

    def end_sign_ins(self) -> None:
        """Ends all access and refresh tokens, as when the person withdraws the permission."""
        for grant in self.grants.values():
            grant.ends = 0

    @contextlib.contextmanager
    def holding(self, endpoint: str) -> Iterator[None]:
        """Requests to the endpoint wait until the end of the block."""
        self._held.add(endpoint)
        try:
            yield
        finally:
            self._held.discard(endpoint)

    def waiting(self, endpoint: str) -> int:
        """How many requests wait now."""
        return self._waiting[endpoint]

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Connections are refused until the end of the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = listener.getsockname()[1]
        more: Any = {"ssl_certfile": str(self.tls)} if self.tls else {}
        config = uvicorn.Config(
            self._app(), log_level="critical", proxy_headers=False, timeout_graceful_shutdown=0, lifespan="on", **more
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, args=([listener],), daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            time.sleep(0.005)

    def stop(self) -> None:
        assert self._uvicorn is not None
        assert self._thread is not None
        self._uvicorn.should_exit = True
        self._thread.join()

    # Every request.

    def _app(self) -> ASGIApp:
        mcp = mcp_server().streamable_http_app()

        @contextlib.asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            async with mcp.router.lifespan_context(mcp):
                yield

        handlers = {name: getattr(self, f"_{name}") for name in PATHS.values() if name != "mcp"}
        routes: list[Any] = [Route("/mcp", Guarded(mcp, self.issuer, self.grants, self.mcp_requests))]
        routes += [
            Route(path, handlers[name], methods=["GET", "POST"]) for path, name in PATHS.items() if name != "mcp"
        ]
        app = Starlette(routes=routes, lifespan=lifespan)

        async def entered(scope: Scope, receive: Receive, send: Send) -> None:
            endpoint = PATHS.get(scope.get("path", ""))
            if scope["type"] != "http" or endpoint is None:
                await app(scope, receive, send)
                return
            await self._pause(endpoint)
            if self.drops[endpoint] > 0:
                self.drops[endpoint] -= 1
                await app(scope, receive, _nowhere)
                # uvicorn's `send` is a method of the object that holds the connection.
                send.__self__.transport.abort()  # type: ignore[attr-defined]
            elif endpoint in self.answers:
                await self._prepared(endpoint)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return entered

    async def _pause(self, endpoint: str) -> None:
        self._waiting[endpoint] += 1
        self.asked[endpoint] += 1
        try:
            await asyncio.sleep(self.delays.get(endpoint, 0))
            while endpoint in self._held:  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.005)
        finally:
            self._waiting[endpoint] -= 1

    def _prepared(self, endpoint: str) -> Response:
        answer = self.answers[endpoint]
        if isinstance(answer, Response):
            return answer
        assert answer == "endless"

        async def body() -> AsyncIterator[bytes]:
            while self._uvicorn is not None and not self._uvicorn.should_exit:
                yield b" " * 65536
                await asyncio.sleep(0)

        return StreamingResponse(body(), media_type="application/json")

    def _json(self, endpoint: str, content: Json, status: int = 200) -> Response:
        changed = content | self.changes.get(endpoint, {})
        kept = {name: value for name, value in changed.items() if value is not None}
        return JSONResponse(kept, status_code=status, headers={"Cache-Control": "no-store"})

    # The endpoints.

    async def _resource_metadata(self, _request: Request) -> Response:
        self.requests.append(("resource_metadata", {}))
        described = {"resource": self.url, "authorization_servers": [self.issuer], "scopes_supported": self.scopes}
        return self._json("resource_metadata", described)

    async def _metadata(self, _request: Request) -> Response:
        self.requests.append(("metadata", {}))
        described = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "scopes_supported": [READ, WRITE],
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_post", "client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return self._json("metadata", described)

    async def _register(self, request: Request) -> Response:
        asked: Json = await request.json()
        self.requests.append(("register", asked))
        method = asked.get("token_endpoint_auth_method") or "client_secret_basic"
        secret = "" if method == "none" else canary("registered secret")
        client_id = f"client-{len(self.clients) + 1}"
        self.clients[client_id] = {"secret": secret, "method": method, "redirect_uris": asked["redirect_uris"]}
        issued = {"client_id": client_id, "client_secret": secret or None, "token_endpoint_auth_method": method}
        return self._json("register", {**asked, **issued}, 201)

    async def _authorize(self, request: Request) -> Response:
        form = dict(await request.form()) if request.method == "POST" else {}
        asked = dict(parse_qsl(str(form["asked"]))) if form else dict(request.query_params)
        self.requests.append(("authorize", {**asked, **({"answer": form["answer"]} if form else {})}))
        client = self._client(asked.get("client_id", ""))
        if client is None or not _may_redirect(client, asked.get("redirect_uri", "")):
            return HTMLResponse("Unknown client or redirect address", 400)
        answer: dict[str, str] = {"state": asked.get("state", ""), "iss": self.issuer}
        if asked.get("response_type") != "code" or asked.get("code_challenge_method") != "S256":
            answer |= {"error": "invalid_request"}
        elif self.consent and not form:
            return HTMLResponse(
                PAGE.format(client=html.escape(asked["client_id"]), asked=html.escape(urlencode(asked)))
            )
        elif form and form["answer"] != "allow":
            answer |= {"error": "access_denied", "error_description": "The person said no."}
        else:
            scopes = frozenset(asked.get("scope", READ).split())
            answer["code"] = self._issue("code", Grant(kind="", client_id=asked["client_id"], family=0, scopes=scopes))
            self.grants[answer["code"]].asked = asked
        answer |= self.changes.get("authorize", {})
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(("token", form))
        try:
            client_id = self._authenticated(form, request.headers.get("Authorization", ""))
            grant = self._granted(client_id, form)
        except Refused as refused:
            return refused.response
        answer: Json = {"token_type": "Bearer", "scope": " ".join(sorted(grant.scopes))}
        answer |= {"access_token": self._issue("access", grant), "expires_in": int(self.lifetime)}
        if form["grant_type"] == "authorization_code" or (form["grant_type"] == "refresh_token" and self.rotate):
            answer["refresh_token"] = self._issue("refresh", grant)
        return self._json("token", answer)

    async def _revoke(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(("revoke", form))
        try:
            self._authenticated(form, request.headers.get("Authorization", ""))
        except Refused as refused:
            return refused.response
        self.revoked.append(form["token"])
        if grant := self.grants.get(form["token"]):
            self._end_family(grant.family, "access" if grant.kind == "access" else "")
        return self._json("revoke", {})

    # The rules.

    def _client(self, client_id: str) -> Json | None:
        if client_id.startswith("https://") and self.changes.get("metadata", {}).get(
            "client_id_metadata_document_supported"
        ):
            return {"secret": "", "method": "none", "redirect_uris": ()}
        return self.clients.get(client_id)

    def _authenticated(self, form: dict[str, str], header: str) -> str:
        method, client_id, secret = "none", form.get("client_id", ""), ""
        if header.startswith("Basic "):
            words = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
            method, client_id, secret = "client_secret_basic", unquote(words[0]), unquote(words[2])
        elif "client_secret" in form:
            method, secret = "client_secret_post", form["client_secret"]
        client = self._client(client_id)
        if client is None or client["secret"] != secret or client["method"] not in (method, "any"):
            raise Refused("invalid_client", f"{client_id} may not authenticate by {method}", 401)
        return client_id

    def _granted(self, client_id: str, form: dict[str, str]) -> Grant:
        kind = form.get("grant_type")
        if kind == "client_credentials" and self.clients[client_id]["secret"]:
            scopes = frozenset(form.get("scope", READ).split())
            return Grant(kind="", client_id=client_id, family=self._families(), scopes=scopes)
        name = {"authorization_code": "code", "refresh_token": "refresh"}.get(kind or "")
        if name is None:
            raise Refused("unsupported_grant_type")
        value = form.get("code" if name == "code" else "refresh_token", "")
        grant = self.grants.get(value)
        if grant is None or grant.kind != name or grant.client_id != client_id:
            raise Refused("invalid_grant", f"unknown {name}")
        if grant.used and not (name == "refresh" and self.forgiving):
            self._end_family(grant.family)
        if grant.used and name == "refresh":
            self.reused.append(value)
        if grant.ends <= time.monotonic():
            raise Refused("invalid_grant", f"the {name} has ended")
        grant.used = name == "code" or self.rotate
        if name == "code":
            challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            if base64.urlsafe_b64encode(challenge).decode().rstrip("=") != grant.asked.get("code_challenge"):
                raise Refused("invalid_grant", "wrong code_verifier")
            if form.get("redirect_uri") != grant.asked["redirect_uri"]:
                raise Refused("invalid_grant", "another redirect_uri")
            grant.family = self._families()
        return grant

    def _families(self) -> int:
        return 1 + max((grant.family for grant in self.grants.values()), default=0)

    def _issue(self, kind: str, like: Grant) -> str:
        token = canary(f"{kind} token")
        ends = time.monotonic() + self.lifetime if kind == "access" else float("inf")
        self.grants[token] = Grant(
            kind=kind, client_id=like.client_id, family=like.family, scopes=like.scopes, ends=ends
        )
        return token

    def _end_family(self, family: int, kind: str = "") -> None:
        for grant in self.grants.values():
            if grant.family == family and kind in ("", grant.kind):
                grant.ends = 0


def _may_redirect(client: Json, address: str) -> bool:
    allowed = client["redirect_uris"]
    return address in allowed if allowed else urlsplit(address).hostname in ("127.0.0.1", "localhost")


async def _nowhere(_message: Message) -> None:
    return
