"""Every row of the table of errors, in both eras, over HTTP and over the bridge.

A client gets what the row defines: the status, the JSON-RPC code, and the text with its blanks filled in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from error_docs import errors_page
from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner
from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.gateway_harness import Exchange, GatewayHarness, legacy_body, modern_body, modern_headers, opened
from parts.raw_client import (
    CAPABILITIES_KEY,
    INITIALIZE,
    LEGACY,
    META,
    MODERN,
    VERSION_KEY,
    RawAnswer,
    SocketClient,
    legacy_request,
    notice,
    request,
)
from parts.recording_server import Notes
from parts.waiting import wait_for
from toolcrib.errors import ANSWERS, ErrorCase
from toolcrib.gateway.messages import MAX_BODY
from toolcrib.identity import sessions

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-7")

UNKNOWN = "tcb_" + "A" * 43


@dataclass(frozen=True)
class Outcome:
    status: int | None
    """None: over the bridge."""
    code: int | None
    text: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def outcome_of(message: Any, status: int | None = None, headers: Mapping[str, str] | None = None) -> Outcome:
    if "error" in message:
        return Outcome(status, message["error"]["code"], message["error"]["message"], headers or {})
    assert message["result"].get("isError") is True, message
    return Outcome(status, None, message["result"]["content"][0]["text"], headers or {})


def over_http(answer: RawAnswer) -> Outcome:
    return outcome_of(json.loads(answer.message), answer.status, answer.headers)


def fits(template: str, text: str) -> bool:
    """Whether the text is the template with its blanks filled in."""
    parts = [re.escape(part) for part in re.split(r"\{\w+\}", template)]
    return re.fullmatch("(?s:.+)".join(parts), text) is not None


@dataclass(frozen=True, kw_only=True)
class Scene:
    daemon: Daemon
    owner: Owner
    notes: Notes
    folder: Path
    token: str = dataclasses.field(repr=False)
    """Of the agent `a`, which may use some tools."""

    @property
    def mcp(self) -> AgentEndpoint:
        return AgentEndpoint(self.daemon, self.token)

    def homeless(self, name: str) -> str:
        """The token of an agent whose folder no longer exists."""
        folder = self.folder / name
        folder.mkdir()
        token = self.owner.add(name, profile="developer", workdir=str(folder))
        folder.rmdir()
        return token


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("answers")
    notes = Notes(folder / "seen")
    servers = {
        "w": notes.server("plain", "asked", "secret"),
        "late": notes.server("never", call_timeout=0.3),
        "gone": {"command": "/nowhere/at/all"},
        "off": {"command": "/nowhere/at/all", "enabled": False},
    }
    with shared_daemon({"servers": servers}, ready=["w", "late"]) as daemon:
        owner = Owner(daemon)
        token = owner.add("a", "w:plain", "late:never", "gone:*")
        owner.allow("a", "w:asked", ask=True)
        yield Scene(daemon=daemon, owner=owner, notes=notes, folder=folder, token=token)


# Requests in either era, over HTTP or the bridge.


def ask(
    scene: Scene,
    era: str,
    *,
    body: bytes | None = None,
    verb: str = "POST",
    target: str = "/mcp",
    **changed: str | list[str] | None,
) -> Outcome:
    """A valid `tools/list` with some headers changed: `Content_Type="x"`; None leaves one out."""
    mcp = scene.mcp
    sent = body if body is not None else (request if era == "modern" else legacy_request)("tools/list")
    session = [] if era == "modern" else [("Mcp-Session-Id", mcp.begin()), ("MCP-Protocol-Version", LEGACY)]
    headers = mcp.usual(sent, *(session or mcp.modern_headers("tools/list")))
    for key, value in changed.items():
        name = key.replace("_", "-")
        headers = [header for header in headers if header[0].lower() != name.lower()]
        values = [] if value is None else [value] if isinstance(value, str) else value
        headers += [(name, one) for one in values]
    return over_http(mcp.ask(headers, sent, verb=verb, target=target))


class HttpClient(AgentClient):
    """Sends the requests of one agent over HTTP."""

    def __init__(self, scene: Scene, era: str, token: str | None = None) -> None:
        super().__init__(scene.daemon, "a", token or scene.token, era)

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> Outcome:
        return over_http(self.ask(method, params))


class BridgeClient(SocketClient):
    """The same over the bridge's socket."""

    def __init__(self, scene: Scene, era: str = "", **hello: Any) -> None:
        super().__init__(scene.daemon, bridge=False)
        self.make = legacy_request if era == "legacy" else request
        given = {"root": str(scene.daemon.home.project), "token": scene.token, "conversation": "bridge", **hello}
        self.send(notice("toolcrib/bridge", given))
        if era == "legacy":
            assert "result" in self.ask(INITIALIZE)

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> Outcome:
        return self.outcome(self.make(method, params, id=7))

    def outcome(self, line: bytes) -> Outcome:
        self.send(line)
        while "method" in (message := self.message()):
            pass
        return outcome_of(message)


Client = HttpClient | BridgeClient


def call(client: Client, tool: str, **arguments: Any) -> Outcome:
    return client.request("tools/call", {"name": tool, "arguments": arguments})


def while_called(scene: Scene, client: Client, tool: str, meanwhile: Callable[[str], None]) -> Outcome:
    """The answer to a held call, after something happened to it."""
    nonce = f"held-{len(scene.notes.all())}-{id(client)}"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call, client, tool, nonce=nonce, hold=True)
        meanwhile(nonce)
        return answer.result(60)


# Cases over HTTP and over the bridge.


def unapproved(scene: Scene, client: Client) -> Outcome:
    def refuse(_: str) -> None:
        waiting = wait_for(lambda: scene.owner.say("approval:list", wait=1)["approvals"], "the call to ask")
        assert [one["tool"] for one in waiting] == ["w:asked"]
        scene.owner.say("approval:answer", id=waiting[0]["id"], approved=False)

    return while_called(scene, client, "w_asked", refuse)


def ended(scene: Scene, client: Client) -> Outcome:
    def end(nonce: str) -> None:
        wait_for(lambda: nonce in scene.notes.nonces(), "the server to see the call")
        busy = [one for one in scene.owner.sessions() if one["agent"] == "a" and one["open_requests"]]
        assert len(busy) == 1
        scene.owner.say("session:end", id=busy[0]["id"])

    return while_called(scene, client, "w_plain", end)


WITHIN: dict[ErrorCase, Callable[[Scene, Client], Outcome]] = {
    ErrorCase.METHOD: lambda scene, client: client.request("tools/nothing"),
    ErrorCase.ARGUMENT: lambda scene, client: client.request("tools/list", {"cursor": "1"}),
    ErrorCase.UNKNOWN_TOOL: lambda scene, client: call(client, "w_plian"),
    ErrorCase.DENIED: lambda scene, client: call(client, "w_secret"),
    ErrorCase.NOT_APPROVED: unapproved,
    ErrorCase.INVALID_ARGUMENTS: lambda scene, client: call(client, "w_plain", nonce=5),
    ErrorCase.SERVER_DOWN: lambda scene, client: call(client, "gone_anything"),
    ErrorCase.TIMED_OUT: lambda scene, client: call(client, "late_never", hold=True),
    ErrorCase.ENDED: ended,
}

# Cases over HTTP only.


def expired(scene: Scene, era: str) -> Outcome:
    token = scene.owner.add(f"short-{era}", profile="developer", expires="1s")
    mcp = AgentEndpoint(scene.daemon, token)
    assert mcp.modern("tools/list").status == 200
    wait_for(lambda: mcp.modern("tools/list").status != 200, "the token to expire")
    return ask(scene, era, Authorization=f"Bearer {token}")


def revoked(scene: Scene, era: str, how: str = "agent:remove") -> Outcome:
    name = f"{how.partition(':')[2]}d-{era}"
    token = scene.owner.add(name, profile="developer")
    assert AgentEndpoint(scene.daemon, token).modern("tools/list").status == 200
    scene.owner.say(how, name=name)
    return ask(scene, era, Authorization=f"Bearer {token}")


def folder_gone(scene: Scene, era: str) -> Outcome:
    mcp = AgentEndpoint(scene.daemon, scene.homeless(f"homeless-{era}"))
    return over_http(mcp.modern("tools/list") if era == "modern" else mcp.ask(mcp.usual(INITIALIZE), INITIALIZE))


def anothers_session(scene: Scene, era: str) -> Outcome:
    session = AgentEndpoint(scene.daemon, scene.owner.add("other", "w:plain")).begin()
    return over_http(scene.mcp.legacy(session, "tools/list"))


def cancelled(scene: Scene, _: str) -> Outcome:
    with HttpClient(scene, "legacy") as client:
        client.send_call("w_plain", nonce="cancelled", hold=True)
        wait_for(lambda: "cancelled" in scene.notes.nonces(), "the server to see the call")
        client.cancel()
        return over_http(client.answer())


def unknown_version(scene: Scene, _: str) -> Outcome:
    body = request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"})
    return ask(scene, "modern", body=body, MCP_Protocol_Version="2099-01-01")


def without_tasks(scene: Scene, _: str) -> Outcome:
    return ask(scene, "modern", body=request("tasks/get", {"taskId": "t"}), Mcp_Method="tasks/get", Mcp_Name="t")


# Changes to a valid request, or a function that brings the case about.
OVER_HTTP: dict[ErrorCase, list[dict[str, Any] | Callable[[Scene, str], Outcome]]] = {
    ErrorCase.HOST: [{"Host": "evil.example"}],
    ErrorCase.ORIGIN: [{"Origin": "http://evil.example"}],
    ErrorCase.PATH: [{"target": "/elsewhere"}],
    ErrorCase.NO_TOKEN: [{"Authorization": None}, {"Authorization": "Basic YTpi"}],
    ErrorCase.BAD_TOKEN: [
        {"Authorization": f"Bearer {UNKNOWN}"},
        expired,
        revoked,
        lambda scene, era: revoked(scene, era, "agent:rotate"),
    ],
    ErrorCase.LABEL: [{"X_Toolcrib_Agent": "b"}, {"X_Toolcrib_Agent": "owner"}],
    ErrorCase.CONVERSATION: [
        {"X_Toolcrib_Conversation": label} for label in ("x" * 129, "a\tb", "\xe2\x80\x8b", "\xff")
    ],
    ErrorCase.LISTING: [{"X_Toolcrib_Listing": mode} for mode in ("handshake", "Thin", "thin,", "x" * 9000)],
    ErrorCase.WITHOUT: [{"X_Toolcrib_Without": names} for names in ("read_file," * 300, "a\tb", "\xa0")],
    ErrorCase.HTTP_METHOD: [
        {"verb": "PUT"},
        {"verb": "GET", "MCP_Protocol_Version": MODERN},
        {"verb": "DELETE", "MCP_Protocol_Version": MODERN},
    ],
    ErrorCase.HEADER_TWICE: [
        {"Authorization": ["Bearer a", "Bearer b"]},
        {"X_Toolcrib_Agent": ["a", "a"]},
        {"X_Toolcrib_Conversation": ["a", "a"]},
        {"X_Toolcrib_Listing": ["thin", "thin"]},
        {"X_Toolcrib_Without": ["read_file", "edit_file"]},
    ],
    ErrorCase.CONTENT_TYPE: [{"Content_Type": "text/plain"}],
    ErrorCase.ACCEPT: [{"Accept": "application/json"}],
    ErrorCase.TOO_LARGE: [{"body": b"", "Content_Length": str(MAX_BODY + 1)}],
    ErrorCase.MALFORMED: [{"body": b"{"}, {"body": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'}],
    ErrorCase.ENVELOPE: [
        {"body": b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'},
        {"body": b'{"jsonrpc":"2.0","id":1}'},
    ],
    ErrorCase.PARAMS: [{"body": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}'}],
    ErrorCase.META: [lambda scene, _: ask(scene, "modern", body=request("tools/list", meta={CAPABILITIES_KEY: {}}))],
    ErrorCase.MISMATCH: [{"Mcp_Method": "tools/call"}, {"Mcp_Method": None}, {"MCP_Protocol_Version": LEGACY}],
    ErrorCase.VERSION: [unknown_version],
    ErrorCase.TASKS: [without_tasks],
    ErrorCase.SESSION_MISSING: [{"Mcp_Session_Id": None}],
    ErrorCase.SESSION_UNKNOWN: [{"Mcp_Session_Id": "0123456789abcdef"}, anothers_session],
    ErrorCase.FOLDER_GONE: [folder_gone],
    ErrorCase.CANCELLED: [cancelled],
}

# Cases inside the daemon.


async def listing(harness: GatewayHarness, era: str, session: str = "x") -> Exchange:
    if era == "modern":
        return await harness.ask(modern_body("tools/list"), headers=modern_headers("tools/list"))
    return await harness.ask(legacy_body("tools/list"), headers={"mcp-session-id": session})


async def stopping(harness: GatewayHarness, era: str, _: pytest.MonkeyPatch) -> Exchange:
    harness.gateway.close()
    return await listing(harness, era)


async def incomplete(harness: GatewayHarness, era: str, _: pytest.MonkeyPatch) -> Exchange:
    headers = modern_headers("tools/list") if era == "modern" else {"mcp-session-id": "x"}
    exchange, task = harness.begin(None, headers=headers, late=True)
    exchange.break_off()
    await task
    return exchange


async def too_many(harness: GatewayHarness, era: str, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    monkeypatch.setattr(sessions, "MOST_OF_AN_AGENT", 1)
    busy = await harness.crib.services.sessions.begin("owner", "busy")
    busy.begin(lambda: None)
    if era == "modern":
        return await listing(harness, era)
    return await harness.ask(legacy_body("initialize", protocolVersion=LEGACY))


async def failed(harness: GatewayHarness, era: str, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    session = "" if era == "modern" else await harness.initialize(harness.owners_token)
    monkeypatch.setattr(harness.gateway._dispatcher, "_result", fail)
    return await listing(harness, era, session)


INSIDE: dict[ErrorCase, Callable[[GatewayHarness, str, pytest.MonkeyPatch], Any]] = {
    ErrorCase.STOPPING: stopping,
    ErrorCase.INCOMPLETE: incomplete,
    ErrorCase.TOO_MANY_SESSIONS: too_many,
    ErrorCase.FAILED: failed,
}


def rows(cases: Iterable[ErrorCase]) -> list[tuple[ErrorCase, str]]:
    """Each case in each era in which it can occur."""
    return [(case, era) for case in cases for era in ERAS if getattr(ANSWERS[case], era) is not None]


def named(value: Any) -> str:
    return value.name.lower() if isinstance(value, ErrorCase) else str(value)


def check(outcome: Outcome, case: ErrorCase, era: str) -> None:
    row = ANSWERS[case]
    assert outcome.status in (None, getattr(row, era)), outcome
    assert outcome.code == row.code, outcome
    assert fits(row.text, outcome.text), outcome.text


def test_every_row_of_the_table_has_a_test_and_a_valid_code_and_the_page_is_up_to_date() -> None:
    assert {*OVER_HTTP, *WITHIN, *INSIDE, ErrorCase.AUDIT_UNWRITABLE} == set(ErrorCase) == set(ANSWERS)
    for case, row in ANSWERS.items():
        assert (row.modern, row.legacy) != (None, None), case
        if row.code is None:
            assert (row.modern, row.legacy) == (200, 200), case
        else:
            assert row.code in {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022} or row.code > -32000, (
                case
            )
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    assert page.read_text() == errors_page(), "python tools/error_docs.py > docs/errors.md"


@pytest.mark.parametrize(("case", "era"), rows(OVER_HTTP), ids=named)
def test_an_invalid_request_gets_its_http_status(scene: Scene, case: ErrorCase, era: str) -> None:
    for row in OVER_HTTP[case]:
        outcome = ask(scene, era, **row) if isinstance(row, dict) else row(scene, era)
        assert outcome.status is not None
        check(outcome, case, era)
        assert ("www-authenticate" in outcome.headers) == (outcome.status == 401)
        assert ("allow" in outcome.headers) == (outcome.status == 405)
        assert scene.token not in outcome.text


@pytest.mark.parametrize(("case", "era"), rows(WITHIN), ids=named)
def test_a_failure_of_a_valid_request_is_an_mcp_error_over_http_and_over_the_bridge(
    scene: Scene, case: ErrorCase, era: str
) -> None:
    with HttpClient(scene, era) as client:
        outcome = WITHIN[case](scene, client)
        assert outcome.status is not None
        check(outcome, case, era)
    with BridgeClient(scene, era, conversation=f"{era} {case.name}") as bridge:
        outcome = WITHIN[case](scene, bridge)
        assert outcome.status is None
        check(outcome, case, era)


REFUSED_BRIDGES = [
    (ErrorCase.BAD_TOKEN, {"token": UNKNOWN}),
    (ErrorCase.CONVERSATION, {"conversation": "x" * 129}),
    (ErrorCase.CONVERSATION, {"conversation": "a\nb"}),
    (ErrorCase.LISTING, {"listing": "thick"}),
    (ErrorCase.WITHOUT, {"without": "x" * 2049}),
    (ErrorCase.FOLDER_GONE, {}),
]


def test_a_bridge_that_is_refused_or_whose_agent_is_removed_gets_an_error_last(scene: Scene) -> None:
    for case, hello in REFUSED_BRIDGES:
        given = hello or {"token": scene.homeless("homeless-bridge")}
        with BridgeClient(scene, **given) as bridge:
            message = bridge.message()
            assert message["id"] is None
            check(outcome_of(message), case, "modern")
            with pytest.raises(ConnectionError):
                bridge.line()
    token = scene.owner.add("passing", "w:plain")
    with BridgeClient(scene, token=token) as bridge:
        bridge.send(request("tools/call", {"name": "w_plain", "arguments": {"nonce": "passing", "hold": True}}, id=5))
        wait_for(lambda: "passing" in scene.notes.nonces(), "the server to see the call")
        scene.owner.remove("passing")
        assert outcome_of(bridge.answer_to(5)).text.startswith("passing may not use w:plain")
        assert bridge.message()["error"]["message"] == ANSWERS[ErrorCase.BAD_TOKEN].text
        with pytest.raises(ConnectionError):
            bridge.line()


BRIDGE_LINES = {
    ErrorCase.MALFORMED: b"{",
    ErrorCase.ENVELOPE: b"[]",
    ErrorCase.PARAMS: b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}',
    ErrorCase.META: request("tools/list", meta={VERSION_KEY: MODERN}),
    ErrorCase.VERSION: request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"}),
}


@pytest.mark.parametrize(("case", "era"), rows(BRIDGE_LINES), ids=named)
def test_an_invalid_line_over_the_bridge_gets_an_error(scene: Scene, case: ErrorCase, era: str) -> None:
    with BridgeClient(scene, era) as bridge:
        check(bridge.outcome(BRIDGE_LINES[case]), case, era)


@pytest.mark.parametrize(("case", "era"), rows(INSIDE), ids=named)
async def test_a_failure_inside_the_daemon_gets_the_answer_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: ErrorCase, era: str
) -> None:
    async with opened(tmp_path) as harness:
        exchange = await INSIDE[case](harness, era, monkeypatch)
        check(outcome_of(exchange.json, exchange.status), case, era)


def test_calls_that_cannot_be_audited_are_refused(scene: Scene) -> None:
    file = scene.daemon.home.toolcrib / "state" / "mcp_sessions.db"
    with contextlib.ExitStack() as stack:
        clients = [(era, stack.enter_context(kind(scene, era))) for era in ERAS for kind in (HttpClient, BridgeClient)]
        other = stack.enter_context(contextlib.closing(sqlite3.connect(file, isolation_level=None)))
        other.execute("BEGIN IMMEDIATE")
        for number, (era, client) in enumerate(clients):
            check(call(client, "w_plain", nonce=f"unwritten-{number}"), ErrorCase.AUDIT_UNWRITABLE, era)
    assert not [nonce for nonce in scene.notes.nonces() if nonce.startswith("unwritten")]

    def works() -> bool:
        return not scene.mcp.call("w_plain", {"nonce": "written again"}).result.get("isError")

    wait_for(works, "the audit log to be written again")


def test_an_agent_learns_nothing_of_tools_and_servers_that_it_may_not_use(scene: Scene) -> None:
    """Neither from suggestions, nor that a server exists, is down, is disabled, or where its configuration is."""
    narrow = scene.owner.add("narrow", "w:plain", "gone:status")
    for era in ERAS:
        with HttpClient(scene, era) as client:
            for tool in ("w_secre", "w_secrets", "w_plian", "late_ever", "crib_session_lst"):
                text = call(client, tool).text
                assert "secret" not in text.replace(tool, ""), text
                assert "crib" not in text.replace(tool, ""), text
            assert "Did you mean w_plain?" in call(client, "w_plian").text, "as it is listed"
        with HttpClient(scene, era, narrow) as client:
            for tool in ("late_anything", "gone_anything", "gone:anything", "off:anything", "nothing:anything"):
                text = call(client, tool).text
                assert fits('There is no tool "{name}". List the tools to see their names.', text), text
            assert fits(ANSWERS[ErrorCase.SERVER_DOWN].text, call(client, "gone_status").text)
        with HttpClient(scene, era, scene.daemon.token) as client:
            assert "disabled" in call(client, "off:anything").text
