"""The table of answers, walked row by row: every case, in both eras, over HTTP and over the bridge.

What a row says is what a client gets: the status, the JSON-RPC code, and the text, with its blanks filled in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from error_docs import errors_page
from parts.agent_clients import ERAS, AgentEndpoint, Owner
from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.gateway_harness import Exchange, GatewayHarness, legacy_body, modern_body, modern_headers, opened
from parts.raw_client import (
    CAPABILITIES_KEY,
    INITIALIZE,
    LEGACY,
    META,
    MODERN,
    VERSION_KEY,
    Header,
    RawAnswer,
    SocketClient,
    legacy_request,
    notice,
    request,
)
from parts.recording_server import Notes
from parts.waiting import wait_for
from toolcrib.errors import ANSWERS, ErrorAnswer, ErrorCase
from toolcrib.gateway.messages import MAX_BODY
from toolcrib.identity import sessions

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-7")

UNKNOWN = "tcb_" + "A" * 43


@dataclass(frozen=True)
class Outcome:
    status: int | None
    """None: over the bridge there is none."""
    code: int | None
    text: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def outcome_of(message: Any, status: int | None = None, headers: Mapping[str, str] | None = None) -> Outcome:
    if "error" in message:
        return Outcome(status, message["error"]["code"], message["error"]["message"], headers or {})
    assert message["result"].get("isError") is True, message
    return Outcome(status, None, message["result"]["content"][0]["text"], headers or {})


def fits(template: str, text: str) -> bool:
    """Whether the text is the template with its blanks filled in."""
    parts = [re.escape(part) for part in re.split(r"\{\w+\}", template)]
    return re.fullmatch("(?s:.+)".join(parts), text) is not None


@dataclass(frozen=True, kw_only=True)
class World:
    daemon: Daemon
    owner: Owner
    notes: Notes
    folder: Path
    token: str = dataclasses.field(repr=False)
    """Of the agent `a`, which may use some tools."""

    @property
    def door(self) -> AgentEndpoint:
        return AgentEndpoint(self.daemon, self.token)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
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
        yield World(daemon=daemon, owner=owner, notes=notes, folder=folder, token=token)


# -- asking, in either era, over either way ------------------------------------------------------------------------


def list_bytes(era: str) -> bytes:
    return request("tools/list") if era == "modern" else legacy_request("tools/list")


def http_headers(world: World, era: str, body: bytes, **changed: str | list[str] | None) -> list[Header]:
    """The headers of an honest `tools/list`, some of them changed: `Content_Type="x"`, None to leave one out."""
    door = world.door
    if era == "modern":
        headers = door.usual(body, *door.modern_headers("tools/list"))
    else:
        headers = door.usual(body, ("Mcp-Session-Id", door.begin()), ("MCP-Protocol-Version", LEGACY))
    for key, value in changed.items():
        name = key.replace("_", "-")
        headers = [header for header in headers if header[0].lower() != name.lower()]
        values = [] if value is None else [value] if isinstance(value, str) else value
        headers += [(name, one) for one in values]
    return headers


def knock(
    world: World,
    era: str,
    *,
    body: bytes | None = None,
    verb: str = "POST",
    target: str = "/mcp",
    **changed: str | list[str] | None,
) -> Outcome:
    """One request that differs from an honest one in what is said here."""
    sent = list_bytes(era) if body is None else body
    return told(world.door.ask(http_headers(world, era, sent, **changed), sent, verb=verb, target=target))


def told(answer: RawAnswer) -> Outcome:
    return outcome_of(json.loads(answer.message), answer.status, answer.headers)


class HttpWay:
    """Requests in one era over HTTP, as the agent `a`, each on a connection of its own."""

    def __init__(self, world: World, era: str, token: str | None = None, conversation: str | None = None) -> None:
        labels = [] if conversation is None else [("X-Toolcrib-Conversation", conversation)]
        self._door = AgentEndpoint(world.daemon, token or world.token, *labels)
        self._era = era
        self._session = "" if era == "modern" else self._door.begin()

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Outcome:
        if self._era == "modern":
            return told(self._door.modern(method, params))
        return told(self._door.legacy(self._session, method, params))

    def close(self) -> None:
        pass


class AgentPipe(SocketClient):
    """A bridge's connection that says what a test wants it to say first."""

    def __init__(self, daemon: Daemon, **hello: Any) -> None:
        super().__init__(daemon, bridge=False)
        self.send(notice("toolcrib/bridge", {"root": str(daemon.home.project), **hello}))


class BridgeWay:
    """The same over the bridge's socket."""

    def __init__(self, world: World, era: str, token: str | None = None, conversation: str | None = None) -> None:
        self._pipe = AgentPipe(world.daemon, token=token or world.token, conversation=conversation or "bridge")
        self._era = era
        if era == "legacy":
            assert "result" in self._pipe.ask(INITIALIZE)

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Outcome:
        make = request if self._era == "modern" else legacy_request
        return self.say(make(method, params, id=7))

    def say(self, line: bytes) -> Outcome:
        self._pipe.send(line)
        while True:
            message = self._pipe.message()
            if "method" not in message:
                return outcome_of(message)

    def close(self) -> None:
        self._pipe.close()


Way = HttpWay | BridgeWay


def call(way: Way, tool: str, **arguments: Any) -> Outcome:
    return way.ask("tools/call", {"name": tool, "arguments": arguments})


def while_called(world: World, way: Way, tool: str, meanwhile: Callable[[str], None]) -> Outcome:
    """The answer to a call that is held, after something was done about it."""
    nonce = f"held-{len(world.notes.all())}-{id(way)}"
    answers: list[Outcome] = []
    caller = threading.Thread(target=lambda: answers.append(call(way, tool, nonce=nonce, hold=True)))
    caller.start()
    try:
        meanwhile(nonce)
    finally:
        caller.join(60)
    assert answers, "the call was not answered"
    return answers[0]


# -- the cases that either way can bring about ---------------------------------------------------------------------


def unapproved(world: World, way: Way) -> Outcome:
    def refuse(_: str) -> None:
        waiting = wait_for(lambda: world.owner.say("approval:list", wait=1)["approvals"], "the call to ask")
        assert [one["tool"] for one in waiting] == ["w:asked"]
        world.owner.say("approval:answer", id=waiting[0]["id"], approved=False)

    return while_called(world, way, "w_asked", refuse)


def ended(world: World, way: Way) -> Outcome:
    def end(nonce: str) -> None:
        wait_for(lambda: nonce in world.notes.nonces(), "the witness to see the call")
        busy = [one for one in world.owner.sessions() if one["agent"] == "a" and one["open_requests"]]
        assert len(busy) == 1
        world.owner.say("session:end", id=busy[0]["id"])

    return while_called(world, way, "w_plain", end)


@contextlib.contextmanager
def locked(world: World) -> Iterator[None]:
    """Another process writes to the database and does not end."""
    file = world.daemon.home.toolcrib / "state" / "mcp_sessions.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


WITHIN: dict[ErrorCase, Callable[[World, Way], Outcome]] = {
    ErrorCase.METHOD: lambda world, way: way.ask("tools/nothing"),
    ErrorCase.ARGUMENT: lambda world, way: way.ask("tools/list", {"cursor": "1"}),
    ErrorCase.UNKNOWN_TOOL: lambda world, way: call(way, "w_plian"),
    ErrorCase.DENIED: lambda world, way: call(way, "w_secret"),
    ErrorCase.NOT_APPROVED: unapproved,
    ErrorCase.INVALID_ARGUMENTS: lambda world, way: call(way, "w_plain", nonce=5),
    ErrorCase.SERVER_DOWN: lambda world, way: call(way, "gone_anything"),
    ErrorCase.TIMED_OUT: lambda world, way: call(way, "late_never", hold=True),
    ErrorCase.ENDED: ended,
}

# -- the cases of HTTP alone ---------------------------------------------------------------------------------------


def expired(world: World, era: str) -> Outcome:
    name = f"short-{era}"
    token = world.owner.add(name, profile="developer", expires="1s")
    door = AgentEndpoint(world.daemon, token)
    assert door.modern("tools/list").status == 200

    def refused() -> Outcome | None:
        answer = knock(world, era, Authorization=f"Bearer {token}")
        return answer if answer.status != 200 else None

    def over() -> RawAnswer | None:
        answer = door.modern("tools/list")
        return answer if answer.status != 200 else None

    wait_for(over, "the token's time to be over")
    return wait_for(refused, "the token to be refused")


def revoked(world: World, era: str, how: str = "agent:remove") -> Outcome:
    name = f"{how.partition(':')[2]}d-{era}"
    token = world.owner.add(name, profile="developer")
    assert AgentEndpoint(world.daemon, token).modern("tools/list").status == 200
    world.owner.say(how, name=name)
    return knock(world, era, Authorization=f"Bearer {token}")


def folder_gone(world: World, era: str) -> Outcome:
    folder = world.folder / f"work-{era}"
    folder.mkdir()
    token = world.owner.add(f"homeless-{era}", profile="developer", workdir=str(folder))
    shutil.rmtree(folder)
    door = AgentEndpoint(world.daemon, token)
    if era == "modern":
        return told(door.modern("tools/list"))
    return told(door.ask(door.usual(INITIALIZE), INITIALIZE))


def anothers_session(world: World, era: str) -> Outcome:
    token = world.owner.add("other", "w:plain")
    session = AgentEndpoint(world.daemon, token).begin()
    world_door = world.door
    return told(world_door.legacy(session, "tools/list"))


def taken_back(world: World, _: str) -> Outcome:
    door = world.door
    session = door.begin()
    nonce = "taken-back"
    params = {"name": "w_plain", "arguments": {"nonce": nonce, "hold": True}}
    with door.connect() as calling:
        calling.send(door.legacy_bytes(session, legacy_request("tools/call", params, id=3)))
        wait_for(lambda: nonce in world.notes.nonces(), "the witness to see the call")
        with door.connect() as other:
            other.send(door.legacy_bytes(session, notice("notifications/cancelled", {"requestId": 3})))
            assert other.answer().status == 202
        return told(calling.answer())


def meta_missing(world: World, _: str) -> Outcome:
    return knock(world, "modern", body=request("tools/list", meta={CAPABILITIES_KEY: {}}))


def from_the_future(world: World, _: str) -> Outcome:
    body = request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"})
    return knock(world, "modern", body=body, MCP_Protocol_Version="2099-01-01")


OVER_HTTP: dict[ErrorCase, tuple[Callable[[World, str], Outcome], ...]] = {
    ErrorCase.HOST: (lambda world, era: knock(world, era, Host="evil.example"),),
    ErrorCase.ORIGIN: (lambda world, era: knock(world, era, Origin="http://evil.example"),),
    ErrorCase.PATH: (lambda world, era: knock(world, era, target="/elsewhere"),),
    ErrorCase.NO_TOKEN: (
        lambda world, era: knock(world, era, Authorization=None),
        lambda world, era: knock(world, era, Authorization="Basic YTpi"),
    ),
    ErrorCase.BAD_TOKEN: (
        lambda world, era: knock(world, era, Authorization=f"Bearer {UNKNOWN}"),
        expired,
        revoked,
        lambda world, era: revoked(world, era, "agent:rotate"),
    ),
    ErrorCase.LABEL: (
        lambda world, era: knock(world, era, X_Toolcrib_Agent="b"),
        lambda world, era: knock(world, era, X_Toolcrib_Agent="owner"),
    ),
    ErrorCase.CONVERSATION: (
        lambda world, era: knock(world, era, X_Toolcrib_Conversation="x" * 129),
        lambda world, era: knock(world, era, X_Toolcrib_Conversation="a\tb"),
        lambda world, era: knock(world, era, X_Toolcrib_Conversation="\xe2\x80\x8b"),
        lambda world, era: knock(world, era, X_Toolcrib_Conversation="\xff"),
    ),
    ErrorCase.HTTP_METHOD: (
        lambda world, era: knock(world, era, verb="PUT"),
        lambda world, era: knock(world, era, verb="GET", MCP_Protocol_Version=MODERN),
        lambda world, era: knock(world, era, verb="DELETE", MCP_Protocol_Version=MODERN),
    ),
    ErrorCase.HEADER_TWICE: (
        lambda world, era: knock(world, era, Authorization=["Bearer a", "Bearer b"]),
        lambda world, era: knock(world, era, X_Toolcrib_Agent=["a", "a"]),
        lambda world, era: knock(world, era, X_Toolcrib_Conversation=["a", "a"]),
    ),
    ErrorCase.CONTENT_TYPE: (lambda world, era: knock(world, era, Content_Type="text/plain"),),
    ErrorCase.ACCEPT: (lambda world, era: knock(world, era, Accept="application/json"),),
    ErrorCase.TOO_LARGE: (lambda world, era: knock(world, era, body=b"", Content_Length=str(MAX_BODY + 1)),),
    ErrorCase.MALFORMED: (
        lambda world, era: knock(world, era, body=b"{"),
        lambda world, era: knock(world, era, body=b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'),
    ),
    ErrorCase.ENVELOPE: (
        lambda world, era: knock(world, era, body=b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'),
        lambda world, era: knock(world, era, body=b'{"jsonrpc":"2.0","id":1}'),
    ),
    ErrorCase.PARAMS: (
        lambda world, era: knock(world, era, body=b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}'),
    ),
    ErrorCase.META: (meta_missing,),
    ErrorCase.MISMATCH: (
        lambda world, era: knock(world, era, Mcp_Method="tools/call"),
        lambda world, era: knock(world, era, Mcp_Method=None),
        lambda world, era: knock(world, era, MCP_Protocol_Version=LEGACY),
    ),
    ErrorCase.VERSION: (from_the_future,),
    ErrorCase.SESSION_MISSING: (lambda world, era: knock(world, era, Mcp_Session_Id=None),),
    ErrorCase.SESSION_UNKNOWN: (
        lambda world, era: knock(world, era, Mcp_Session_Id="0123456789abcdef"),
        anothers_session,
    ),
    ErrorCase.FOLDER_GONE: (folder_gone,),
    ErrorCase.CANCELLED: (taken_back,),
}

# -- the cases that need a hand inside -----------------------------------------------------------------------------


async def list_within(harness: GatewayHarness, era: str, token: str = "") -> Exchange:
    more = [token] if token else []
    if era == "modern":
        return await harness.ask(modern_body("tools/list"), *more, headers=modern_headers("tools/list"))
    session = await harness.initialize(*more) if more else await harness.initialize(harness.owners_token)
    return await harness.ask(legacy_body("tools/list"), *more, headers={"mcp-session-id": session})


async def stopping(harness: GatewayHarness, era: str, _: pytest.MonkeyPatch) -> Exchange:
    harness.gateway.close()
    if era == "modern":
        return await harness.ask(modern_body("tools/list"), headers=modern_headers("tools/list"))
    return await harness.ask(legacy_body("tools/list"), headers={"mcp-session-id": "x"})


async def half(harness: GatewayHarness, era: str, _: pytest.MonkeyPatch) -> Exchange:
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
        return await harness.ask(modern_body("tools/list"), headers=modern_headers("tools/list"))
    return await harness.ask(legacy_body("initialize", protocolVersion=LEGACY))


async def failed(harness: GatewayHarness, era: str, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.gateway._dispatcher, "_result", fail)
    return await list_within(harness, era)


WITHIN_US: dict[ErrorCase, Callable[[GatewayHarness, str, pytest.MonkeyPatch], Any]] = {
    ErrorCase.STOPPING: stopping,
    ErrorCase.INCOMPLETE: half,
    ErrorCase.TOO_MANY_SESSIONS: too_many,
    ErrorCase.FAILED: failed,
}

AT_THE_END = {ErrorCase.AUDIT_UNWRITABLE}
"""Has a test of its own below."""


def status_in(case: ErrorCase, era: str) -> int | None:
    row = ANSWERS[case]
    return row.modern if era == "modern" else row.legacy


def rows(cases: Any) -> list[Any]:
    """Each case in each era that it can come about in."""
    return [
        pytest.param(case, era, id=f"{era} {case.name.lower()}")
        for case in cases
        for era in ERAS
        if status_in(case, era) is not None
    ]


def check(outcome: Outcome, case: ErrorCase, era: str) -> None:
    row: ErrorAnswer = ANSWERS[case]
    assert (outcome.status, outcome.code) == (status_in(case, era), row.code), outcome
    assert fits(row.text, outcome.text), outcome.text


def test_every_row_of_the_table_is_walked() -> None:
    walked = {*OVER_HTTP, *WITHIN, *WITHIN_US, *AT_THE_END}
    assert walked == set(ErrorCase) == set(ANSWERS)


@pytest.mark.parametrize(("case", "era"), rows(OVER_HTTP))
def test_what_fails_before_a_call_is_understood_has_its_status(world: World, case: ErrorCase, era: str) -> None:
    for bring_about in OVER_HTTP[case]:
        outcome = bring_about(world, era)
        check(outcome, case, era)
        assert ("www-authenticate" in outcome.headers) == (outcome.status == 401)
        assert ("allow" in outcome.headers) == (outcome.status == 405)
        assert world.token not in outcome.text


@pytest.mark.parametrize(("case", "era"), rows(WITHIN))
def test_what_fails_within_a_valid_request_is_told_within_mcp(world: World, case: ErrorCase, era: str) -> None:
    way = HttpWay(world, era)
    check(WITHIN[case](world, way), case, era)


@pytest.mark.parametrize(("case", "era"), rows(WITHIN))
def test_the_bridge_tells_the_same_without_a_status(world: World, case: ErrorCase, era: str) -> None:
    way = BridgeWay(world, era, conversation=f"{era} {case.name}")
    try:
        outcome = WITHIN[case](world, way)
    finally:
        way.close()
    assert outcome.status is None
    check(dataclasses.replace(outcome, status=status_in(case, era)), case, era)


@pytest.mark.parametrize(
    ("case", "hello"),
    [
        (ErrorCase.BAD_TOKEN, {"token": UNKNOWN}),
        (ErrorCase.CONVERSATION, {"conversation": "x" * 129}),
        (ErrorCase.CONVERSATION, {"conversation": "a\nb"}),
    ],
)
def test_a_bridge_that_may_not_come_in_is_told_why_and_hung_up_on(
    world: World, case: ErrorCase, hello: dict[str, str]
) -> None:
    with AgentPipe(world.daemon, **{"token": world.token, **hello}) as pipe:
        message = pipe.message()
        assert message["id"] is None
        assert (message["error"]["code"], message["error"]["message"]) == (ANSWERS[case].code, ANSWERS[case].text)
        with pytest.raises(ConnectionError):
            pipe.line()


def test_a_bridge_of_an_agent_whose_folder_is_gone_is_told_so(world: World) -> None:
    folder = world.folder / "bridged"
    folder.mkdir()
    token = world.owner.add("homeless-bridge", profile="developer", workdir=str(folder))
    shutil.rmtree(folder)
    with AgentPipe(world.daemon, token=token) as pipe:
        error = pipe.message()["error"]
    assert error["code"] == ANSWERS[ErrorCase.FOLDER_GONE].code
    assert fits(ANSWERS[ErrorCase.FOLDER_GONE].text, error["message"])


def test_a_bridge_whose_agent_ends_is_told_so_last(world: World) -> None:
    token = world.owner.add("passing", "w:plain")
    with AgentPipe(world.daemon, token=token, conversation="c") as pipe:
        pipe.send(request("tools/call", {"name": "w_plain", "arguments": {"nonce": "passing", "hold": True}}, id=5))
        wait_for(lambda: "passing" in world.notes.nonces(), "the witness to see the call")
        world.owner.remove("passing")
        assert outcome_of(pipe.answer_to(5)).text.startswith("passing may not use w:plain")
        assert pipe.message()["error"]["message"] == ANSWERS[ErrorCase.BAD_TOKEN].text
        with pytest.raises(ConnectionError):
            pipe.line()


BRIDGE_LINES = {
    ErrorCase.MALFORMED: b"{",
    ErrorCase.ENVELOPE: b"[]",
    ErrorCase.PARAMS: b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}',
    ErrorCase.META: request("tools/list", meta={VERSION_KEY: MODERN}),
    ErrorCase.VERSION: request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"}),
}


@pytest.mark.parametrize(("case", "era"), rows(BRIDGE_LINES))
def test_a_line_that_is_no_request_is_told_so_over_the_bridge(world: World, case: ErrorCase, era: str) -> None:
    way = BridgeWay(world, era)
    try:
        outcome = way.say(BRIDGE_LINES[case])
    finally:
        way.close()
    check(dataclasses.replace(outcome, status=status_in(case, era)), case, era)


@pytest.mark.parametrize(("case", "era"), rows(WITHIN_US))
async def test_what_only_happens_inside_is_told_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: ErrorCase, era: str
) -> None:
    async with opened(tmp_path) as harness:
        exchange = await WITHIN_US[case](harness, era, monkeypatch)
        check(outcome_of(exchange.json, exchange.status), case, era)


def test_a_call_that_may_change_something_is_not_made_when_it_cannot_be_written_down(world: World) -> None:
    ways: list[tuple[str, Way]] = [(era, make(world, era)) for era in ERAS for make in (HttpWay, BridgeWay)]
    with locked(world):
        for number, (era, way) in enumerate(ways):
            outcome = call(way, "w_plain", nonce=f"unwritten-{number}")
            row = ANSWERS[ErrorCase.AUDIT_UNWRITABLE]
            check(dataclasses.replace(outcome, status=row.modern), ErrorCase.AUDIT_UNWRITABLE, era)
            assert outcome.status in (None, 200)
    for _, way in ways:
        way.close()
    assert not [nonce for nonce in world.notes.nonces() if nonce.startswith("unwritten")]

    def works() -> bool:
        answer = world.door.call("w_plain", {"nonce": "written again"})
        return not answer.result.get("isError")

    wait_for(works, "the audit log to be written again")


def test_suggestions_name_only_what_the_agent_may_use(world: World) -> None:
    for tool in ("w_secre", "w_secrets", "w_plian", "late_ever", "crib_session_lst"):
        for era in ERAS:
            text = call(HttpWay(world, era), tool).text
            assert "secret" not in text.replace(tool, ""), text
            assert "crib" not in text.replace(tool, ""), text
    assert "Did you mean w_plain?" in call(HttpWay(world, "modern"), "w_plian").text, "as it is listed"


def test_of_servers_that_an_agent_may_not_use_it_hears_nothing(world: World) -> None:
    """Neither that one is there, nor that it is down or switched off, nor where its configuration lies."""
    token = world.owner.add("narrow", "w:plain", "gone:status")
    for era in ERAS:
        way = HttpWay(world, era, token)
        for tool in ("late_anything", "gone_anything", "gone:anything", "off:anything", "nothing:anything"):
            outcome = call(way, tool)
            assert fits('There is no tool "{name}". List the tools to see their names.', outcome.text), outcome
        assert fits(ANSWERS[ErrorCase.SERVER_DOWN].text, call(way, "gone_status").text)
        assert "switched off" in call(HttpWay(world, era, world.daemon.token), "off:anything").text


def test_the_page_shows_the_table_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    assert page.read_text() == errors_page(), "python tools/error_docs.py > docs/errors.md"


def test_a_result_for_the_model_has_no_code_and_an_error_has_one() -> None:
    for case, row in ANSWERS.items():
        assert (row.modern, row.legacy) != (None, None), case
        if row.code is None:
            assert (row.modern, row.legacy) == (200, 200), case
        else:
            assert row.code in {-32700, -32600, -32601, -32602, -32603, -32020, -32022} or row.code > -32000, case
