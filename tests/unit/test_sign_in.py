"""Signing in at the authorization server of the tests, as a browser would, and everything that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest
from starlette.responses import HTMLResponse, RedirectResponse, Response

from parts.authorization_server import READ, WRITE, AuthorizationServer
from toolcrib.commands.account import describe_account
from toolcrib.config.from_code import server_config
from toolcrib.config.masking import Masker
from toolcrib.config.model import ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import Vault
from toolcrib.errors import AlreadyRunning, PortTaken, SignInFailed, UsageError
from toolcrib.servers import checked_http
from toolcrib.servers import sign_in as signing
from toolcrib.servers.account import account_key, load_account, store_account
from toolcrib.servers.checked_http import CheckedHttp
from toolcrib.servers.redirect_listener import RedirectListener
from toolcrib.servers.sign_in import SignInOrder, sign_in

pytestmark = pytest.mark.req("BNS-6")

Show = Callable[[str, RedirectListener], Awaitable[None]]


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}))


def entry(server: AuthorizationServer, **more: Any) -> ServerConfig:
    auth = {"auth": {"type": "oauth", **more}} if more else {}
    return server_config("web", {"url": server.url, **auth})


def order(config: ServerConfig, vault: Vault, show: Show | None = None, **more: Any) -> SignInOrder:
    return SignInOrder(config=config, vault=vault, **{"mask": Masker(), "show": show or browse, **more})


async def browse(url: str, _: RedirectListener) -> None:
    await asyncio.to_thread(opened, url)


def opened(url: str) -> tuple[int, str]:
    """The status and the text of the page that a browser ends at."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_a_sign_in_registers_a_client_and_keeps_the_tokens(server: AuthorizationServer, vault: Vault) -> None:
    pages: list[tuple[int, str]] = []

    async def show(url: str, _: RedirectListener) -> None:
        pages.append(await asyncio.to_thread(opened, url))

    mask = Masker()
    record = await sign_in(order(entry(server), vault, show, mask=mask))

    assert load_account(vault, account_key(entry(server))) == record
    (client_id, client) = next(iter(server.clients.items()))
    assert client["redirect_uris"] == [f"http://127.0.0.1:{record.redirect_port}/callback"]
    assert (record.client_id, record.client_secret) == (client_id, client["secret"])
    assert (record.issuer, record.resource) == (server.issuer, server.url)
    assert (record.token_url, record.revocation_url) == (f"{server.issuer}/token", f"{server.issuer}/revoke")
    assert server.tokens("access") == [record.access_token]
    assert server.tokens("refresh") == [record.refresh_token]
    assert record.scopes == (READ,)
    assert record.expires_at == pytest.approx(record.refreshed_at + 3600)
    (asked,) = [fields for endpoint, fields in server.requests if endpoint == "authorize"]
    assert (asked["resource"], asked["code_challenge_method"]) == (server.url, "S256")
    assert pages[0][0] == 200
    for secret in (record.access_token, record.refresh_token, record.client_secret):
        assert secret not in mask.line(f"it said {secret}")


async def test_the_next_sign_in_uses_the_same_client_and_asks_for_the_scopes_that_a_call_lacked(
    server: AuthorizationServer, vault: Vault
) -> None:
    config = entry(server)
    first = await sign_in(order(config, vault))
    store_account(vault, account_key(config), msgspec.structs.replace(first, asked=(WRITE,)))
    second = await sign_in(order(config, vault))
    assert second.client_id == first.client_id
    assert set(second.scopes) == {READ, WRITE}
    assert second.asked == ()
    assert [endpoint for endpoint, _ in server.requests].count("register") == 1


async def test_a_taken_port_and_an_ended_sign_in_register_anew(server: AuthorizationServer, vault: Vault) -> None:
    config = entry(server)
    first = await sign_in(order(config, vault))
    with socket.create_server(("127.0.0.1", first.redirect_port or 0)):
        second = await sign_in(order(config, vault))
    assert second.client_id != first.client_id
    store_account(vault, account_key(config), msgspec.structs.replace(second, ended="invalid_grant"))
    assert (await sign_in(order(config, vault))).client_id not in (first.client_id, second.client_id)


async def test_a_client_that_the_token_endpoint_forgot_is_registered_anew_in_the_same_sign_in(
    server: AuthorizationServer, vault: Vault
) -> None:
    config = entry(server)
    first = await sign_in(order(config, vault))
    shown: list[str] = []

    async def show(url: str, _: RedirectListener) -> None:
        shown.append(url)
        if len(shown) == 1:
            server.clients[first.client_id]["secret"] = "replaced"
        await asyncio.to_thread(opened, url)

    second = await sign_in(order(config, vault, show))
    assert len(shown) == 2
    assert second.client_id != first.client_id


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_registered_client_authenticates_as_the_server_offers(
    server: AuthorizationServer, vault: Vault, method: str
) -> None:
    server.add_client("mine", "its secret: ü/+")
    server.clients["mine"]["method"] = method
    server.changes["metadata"] = {"token_endpoint_auth_methods_supported": [method], "registration_endpoint": None}
    config = entry(server, client_id="mine", client_secret="its secret: ü/+")
    record = await sign_in(order(config, vault))
    assert (record.client_id, record.client_auth, record.redirect_port) == ("mine", method, None)


async def test_a_public_client_sends_no_secret(server: AuthorizationServer, vault: Vault) -> None:
    server.add_client("mine")
    record = await sign_in(order(entry(server, client_id="mine"), vault))
    assert record.client_auth == "none"


async def test_the_address_of_a_metadata_document_is_the_client_where_it_is_accepted(
    server: AuthorizationServer, vault: Vault
) -> None:
    server.changes["metadata"] = {"client_id_metadata_document_supported": True}
    url = "https://example.com/toolcrib.json"
    record = await sign_in(order(entry(server, client_metadata_url=url), vault))
    assert (record.client_id, record.client_auth, record.redirect_port) == (url, "none", None)
    assert not server.clients


async def test_given_endpoints_need_no_discovery(server: AuthorizationServer, vault: Vault) -> None:
    server.add_client("mine", "its-secret")
    config = entry(
        server,
        client_id="mine",
        client_secret="its-secret",
        auth_url=f"{server.issuer}/authorize",
        token_url=f"{server.issuer}/token",
        scopes=[WRITE],
    )
    record = await sign_in(order(config, vault))
    assert record.scopes == (WRITE,)
    assert record.access_token in server.tokens("access")
    assert {endpoint for endpoint, _ in server.requests} == {"authorize", "token"}


async def test_a_key_in_the_servers_address_goes_to_the_server_only(server: AuthorizationServer, vault: Vault) -> None:
    shown: list[str] = []

    async def show(url: str, listener: RedirectListener) -> None:
        shown.append(url)
        await browse(url, listener)

    config = server_config("web", {"url": f"{server.url}?api_key=its-key"})
    for answer in (None, Response(b"", 404)):
        if answer:
            server.answers["resource_metadata"] = answer
        record = await sign_in(order(config, vault, show))
        assert record.resource == server.url
        assert describe_account(record, config)["url"] == server.url
    assert "its-key" not in f"{shown} {server.requests}"


async def test_scopes_come_from_the_command_or_the_entry_before_the_server(
    server: AuthorizationServer, vault: Vault
) -> None:
    config = entry(server, scopes=WRITE)
    assert (await sign_in(order(config, vault))).scopes == (WRITE,)
    assert (await sign_in(order(config, vault, scopes=(READ,)))).scopes == (READ,)


async def test_a_fixed_redirect_port_is_used_or_named_when_it_is_taken(
    server: AuthorizationServer, vault: Vault
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"Port {port}, the redirect_port of 'web'"):
            await sign_in(order(entry(server, redirect_port=port), vault))
    record = await sign_in(order(entry(server, redirect_port=port), vault))
    assert record.redirect_port == port


async def test_a_server_that_moves_to_another_issuer_does_not_get_the_configured_secret(
    server: AuthorizationServer, vault: Vault
) -> None:
    server.add_client("mine", "its-secret")
    config = entry(server, client_id="mine", client_secret="its-secret")
    record = await sign_in(order(config, vault))
    store_account(vault, account_key(config), msgspec.structs.replace(record, issuer="https://old.example.com"))
    before = len(server.token_requests)
    with pytest.raises(SignInFailed, match=r"another authorization server.*https://old.example.com"):
        await sign_in(order(config, vault))
    assert len(server.token_requests) == before


async def test_a_registered_client_is_not_sent_to_another_issuer(server: AuthorizationServer, vault: Vault) -> None:
    config = entry(server)
    first = await sign_in(order(config, vault))
    store_account(vault, account_key(config), msgspec.structs.replace(first, issuer="https://old.example.com"))
    assert (await sign_in(order(config, vault))).client_id != first.client_id


async def test_a_second_sign_in_at_the_same_time_is_refused(server: AuthorizationServer, vault: Vault) -> None:
    waiting = asyncio.Event()

    async def show(url: str, _: RedirectListener) -> None:
        waiting.set()

    first = asyncio.create_task(sign_in(order(entry(server), vault, show)))
    await waiting.wait()
    with pytest.raises(AlreadyRunning, match="A sign-in at 'web' is in progress"):
        await sign_in(order(entry(server), vault))
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    assert (await sign_in(order(entry(server), vault))).access_token


async def test_a_server_without_demands_needs_no_sign_in(server: AuthorizationServer, vault: Vault) -> None:
    missing = Response(status_code=404)
    server.answers |= {"mcp": Response("{}"), "resource_metadata": missing, "metadata": missing}
    with pytest.raises(UsageError, match="needs no sign-in"):
        await sign_in(order(entry(server), vault))
    assert not server.clients


async def test_a_person_who_takes_too_long_ends_the_sign_in(
    server: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "PERSON_WITHIN", 0.05)

    async def show(url: str, _: RedirectListener) -> None:
        return

    with pytest.raises(SignInFailed, match="nobody signed in within"):
        await sign_in(order(entry(server), vault, show))
    assert load_account(vault, account_key(entry(server))) is None


HOSTILE: list[tuple[str, str, dict[str, Any], str]] = [
    ("a script", "metadata", {"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint in .* is not"),
    ("a file", "metadata", {"authorization_endpoint": "file:///etc/passwd"}, "authorization_endpoint in .* is not"),
    ("plain http", "metadata", {"token_endpoint": "http://example.com/t"}, "token_endpoint in .* is not an https addr"),
    ("an option", "metadata", {"authorization_endpoint": "--new-window"}, "authorization_endpoint in .* is not a val"),
    ("a command", "metadata", {"authorization_endpoint": "https://a/$(id) x"}, "is not a valid https address"),
    ("a user", "metadata", {"token_endpoint": "https://me:pw@example.com/"}, "token_endpoint .* a user or a password"),
    ("another issuer", "metadata", {"issuer": "https://evil.example.com"}, "issuer mismatch: https://evil.example"),
    ("no PKCE", "metadata", {"code_challenge_methods_supported": ["plain"]}, "does not offer PKCE with S256"),
    ("no token endpoint", "metadata", {"token_endpoint": None}, "no usable metadata .*token_endpoint: Field required"),
    ("another resource", "resource_metadata", {"resource": "https://example.com/mcp"}, "does not match expected"),
    ("an odd server", "resource_metadata", {"authorization_servers": ["file:///etc"]}, "authorization server in .* is"),
    ("wrong iss", "authorize", {"iss": "https://evil.example.com"}, "iss mismatch: https://evil.example.com"),
    ("no iss", "authorize", {"iss": ""}, "iss mismatch"),
    (
        "a refusal",
        "authorize",
        {"error": "access_denied", "error_description": "<b>no\x1b[2J"},
        r"access_denied: <b>no\\x1b",
    ),
    ("no bearer", "token", {"token_type": "mac"}, "Invalid token response"),
    ("a long life", "token", {"expires_in": 10**400}, "lifetime is not a possible number"),
    ("a header", "token", {"access_token": "a\r\nX-Other: b"}, "a token that cannot be used: the access token"),
]


@pytest.mark.parametrize(("what", "endpoint", "change", "reason"), HOSTILE, ids=[row[0] for row in HOSTILE])
async def test_hostile_metadata_is_refused_with_the_reason(
    server: AuthorizationServer, vault: Vault, what: str, endpoint: str, change: dict[str, Any], reason: str
) -> None:
    server.changes[endpoint] = change
    with pytest.raises(SignInFailed, match=f"Signing in at 'web' failed: .*{reason}") as failed:
        await sign_in(order(entry(server), vault))
    assert load_account(vault, account_key(entry(server))) is None
    assert "pw" not in failed.value.message
    assert not any(token in failed.value.text() for token in server.grants)


BAD_ANSWERS: list[tuple[str, str, Response | str, str]] = [
    ("10 MB", "metadata", Response(b" " * 10_000_000), "sent more than 1024 KB"),
    ("endless", "resource_metadata", "endless", "sent more than 1024 KB"),
    ("compressed", "metadata", Response(b"", headers={"Content-Encoding": "gzip"}), "compresses its answers"),
    ("another host", "metadata", RedirectResponse("https://evil.example.com/x"), "redirects to another host .*evil"),
    ("no address", "metadata", Response(b"", 302, {"Location": "//h:x/"}), "another host .an invalid address"),
    ("no address", "token", Response(b"", 307, {"Location": "http://["}), "another address .an invalid address"),
    ("a page", "metadata", HTMLResponse("<script>alert(1)</script>"), "oauth-authorization-server is not JSON"),
    ("a moved token endpoint", "token", RedirectResponse("https://evil.example.com/"), "redirects the request for a"),
    ("an error page", "token", HTMLResponse("<h1>secret</h1>", 500), r"refused the request for a token \(HTTP 500\)"),
    ("a refused registration", "register", HTMLResponse("<h1>no", 403), r"refused the registration .* \(HTTP 403\)"),
]


@pytest.mark.parametrize(("what", "endpoint", "answer", "reason"), BAD_ANSWERS, ids=[row[0] for row in BAD_ANSWERS])
async def test_bad_answers_end_the_sign_in_with_the_reason(
    server: AuthorizationServer, vault: Vault, what: str, endpoint: str, answer: Response | str, reason: str
) -> None:
    server.answers[endpoint] = answer
    with pytest.raises(SignInFailed, match=reason) as failed:
        await sign_in(order(entry(server), vault))
    assert "<" not in failed.value.text()


async def test_a_slow_answer_ends_the_sign_in(
    server: AuthorizationServer, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_http, "ANSWERS_WITHIN", 0.2)
    with server.holding("metadata"), pytest.raises(SignInFailed, match="did not answer in time"):
        await sign_in(order(entry(server), vault))


async def test_an_answer_in_drops_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_http, "ANSWERS_WITHIN", 0.2)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()
            ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as dripping:
        url = f"http://127.0.0.1:{dripping.sockets[0].getsockname()[1]}/"
        async with CheckedHttp(url, verify_tls=True) as http:
            with pytest.raises(SignInFailed, match="did not answer in time"):
                await http.send("GET", url, {})
        await ended.wait()


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("169.254.169.254", "this machine"),
        ("0.0.0.0", "this machine"),
        ("10.1.2.3", "a private network"),
        ("64:ff9b::a01:203", "a private network"),
        ("fd00::1", "a private network"),
        ("100.100.100.200", "a private network"),
    ],
)
async def test_a_public_server_cannot_send_us_to_a_private_address(address: str, found: str) -> None:
    connected: list[str] = []
    names = {"mcp.example.com": ["203.0.114.7"], "auth.example.com": ["203.0.114.8", address]}

    async def resolve(host: str, port: int) -> list[str]:
        return names[host]

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append("here")
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as listening:
        url = f"https://auth.example.com:{listening.sockets[0].getsockname()[1]}/token"
        async with CheckedHttp("https://mcp.example.com/mcp", verify_tls=True, resolve=resolve) as http:
            with pytest.raises(SignInFailed, match=f"auth.example.com leads to {found}"):
                await http.send("POST", url, {})
            with pytest.raises(SignInFailed, match=f"The page: auth.example.com leads to {found}"):
                await http.check_host(url, "The page")
    assert not connected


async def test_the_name_is_resolved_once_for_the_check_and_the_connection() -> None:
    """Otherwise a name could lead to another address between the two."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["203.0.114.7"] if len(asked) == 1 else ["127.0.0.1"]

    async with CheckedHttp("https://mcp.example.com/mcp", verify_tls=True, resolve=resolve) as http:
        with pytest.raises(SignInFailed, match=r"leads to this machine \(127.0.0.1\)"):
            await http.send("GET", "https://mcp.example.com/.well-known/x", {})
    assert asked == ["mcp.example.com"] * 2


async def test_a_server_whose_name_leads_elsewhere_later_counts_as_what_is_farther() -> None:
    """Otherwise it could first lead to this machine, and then send us to what listens here."""
    answers = [["127.0.0.1"], ["203.0.114.7"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async with CheckedHttp("https://mcp.example.com/mcp", verify_tls=True, resolve=resolve) as http:
        http.check("http://127.0.0.1/token", "The token endpoint")
        await http.check_host("https://mcp.example.com/mcp", "The server's address")
        with pytest.raises(SignInFailed, match="The token endpoint is not an https address"):
            http.check("http://127.0.0.1/token", "The token endpoint")


async def test_an_address_that_no_browser_takes_is_refused(server: AuthorizationServer, vault: Vault) -> None:
    server.scopes = [f"scope-{number}" for number in range(10_000)]
    with pytest.raises(SignInFailed, match=r"has 1\d\d,\d{3} characters, more than browsers accept"):
        await sign_in(order(entry(server), vault, unused))


async def unused(url: str, _: RedirectListener) -> None:
    raise AssertionError(url)


async def test_only_the_right_answer_ends_the_wait(server: AuthorizationServer, vault: Vault) -> None:
    seen: dict[str, int] = {}

    async def show(url: str, listener: RedirectListener) -> None:
        state = parse_qs(urlsplit(url).query)["state"][0]
        right = urlencode({"code": "stolen", "state": state})
        other = f"http://localhost:{listener.port}/callback?{right}"
        asks = {
            "another host": (other, "GET"),
            "no state": (f"{listener.url}?code=1", "GET"),
            "wrong state": (f"{listener.url}?code=1&state=wrong", "GET"),
            "two states": (f"{listener.url}?{right}&state=wrong", "GET"),
            "another path": (f"http://127.0.0.1:{listener.port}/?{right}", "GET"),
            "another method": (f"{listener.url}?{right}", "HEAD"),
            "right": (url, "GET"),
            "again": (f"{listener.url}?{right}", "GET"),
        }
        for name, (address, method) in asks.items():
            seen[name] = await asyncio.to_thread(status_of, address, method)

    record = await sign_in(order(entry(server), vault, show))
    assert record.access_token in server.tokens("access")
    expected = {"another host": 421, "no state": 400, "wrong state": 400, "two states": 400, "another path": 404}
    assert seen == {**expected, "another method": 405, "right": 200, "again": 400}


def status_of(url: str, method: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method)) as page:  # noqa: S310
            return int(page.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_a_server_that_only_takes_keys_says_so(server: AuthorizationServer, vault: Vault) -> None:
    missing = Response(status_code=404)
    server.answers |= {"resource_metadata": missing, "metadata": missing, "register": missing}
    with pytest.raises(SignInFailed, match=r"publishes no way to sign in\. Set the server's auth or headers"):
        await sign_in(order(entry(server), vault))


async def test_a_server_that_registers_nobody_says_how_to_register(server: AuthorizationServer, vault: Vault) -> None:
    server.changes["metadata"] = {"registration_endpoint": None}
    with pytest.raises(SignInFailed, match="does not register clients by itself") as failed:
        await sign_in(order(entry(server), vault))
    assert "redirect_port: 8666" in failed.value.remedy
    assert not server.clients


async def test_a_server_that_protects_only_its_tools_can_be_signed_in_to(
    server: AuthorizationServer, vault: Vault
) -> None:
    server.answers["mcp"] = Response('{"jsonrpc": "2.0", "id": 1, "result": {}}')
    assert (await sign_in(order(entry(server), vault))).access_token in server.tokens("access")
