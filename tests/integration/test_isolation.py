"""Two hundred agents at once, all with the JSON-RPC id 0: none can see, end, hear or use what belongs to another.

The servers record every call before they answer.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import (
    ERAS,
    AgentClient,
    AgentEndpoint,
    Owner,
    all_at_once,
    all_events,
    changes,
    nonce_of,
    refusal,
)
from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.raw_client import INITIALIZE, Endpoint, Header, RawAnswer, legacy_request, notice, request
from parts.recording_server import Notes
from parts.waiting import wait_for

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("FRG-11", "KSI-9")

AGENTS = 200
SERVERS = 4
TOOLS = [f"t{number:02d}" for number in range(AGENTS // SERVERS)]
UNKNOWN_SESSION = "0123456789abcdef0123456789abcdef"
OWNERS_COMMANDS = ("agent:list", "agent:add", "permission:allow", "session:list", "audit:query")


@dataclass(frozen=True, kw_only=True)
class Crowd:
    daemon: Daemon
    owner: Owner
    notes: Notes
    tokens: dict[str, str]
    """By agent, in the order of their numbers."""

    def tool(self, name: str) -> str:
        """The one tool that the agent may use."""
        number = int(name.removeprefix("a"))
        return f"w{number % SERVERS}_{TOOLS[number // SERVERS]}"

    def member(self, name: str, era: str, **more: Any) -> AgentClient:
        return AgentClient(self.daemon, name, self.tokens[name], era, **more)

    def newcomer(self, name: str, era: str, *allowed: str, **more: Any) -> AgentClient:
        """An agent for one test."""
        return AgentClient(self.daemon, name, self.owner.add(name, *allowed, **more), era)

    def release(self) -> None:
        """Answers every held call."""
        mcp = Endpoint(self.daemon)
        for number in range(SERVERS):
            assert mcp.call(f"w{number}_release").status == 200

    def wait_for_calls(self, nonces: set[str]) -> None:
        wait_for(lambda: nonces <= set(self.notes.nonces()), "the servers to see every call")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    notes = Notes(Path(tmp_path_factory.mktemp("notes")) / "seen")
    servers = {f"w{number}": notes.server(*TOOLS, era=ERAS[number % 2]) for number in range(SERVERS)}
    with shared_daemon({"servers": servers}, ready=list(servers)) as daemon:
        owner = Owner(daemon)

        def add(number: int) -> tuple[str, str]:
            name = f"a{number:03d}"
            return name, owner.add(name, f"w{number % SERVERS}:{TOOLS[number // SERVERS]}")

        with ThreadPoolExecutor(16) as pool:
            tokens = dict(pool.map(add, range(AGENTS)))
        yield Crowd(daemon=daemon, owner=owner, notes=notes, tokens=tokens)


@pytest.fixture
def everybody(crowd: Crowd) -> Iterator[list[AgentClient]]:
    """A client for each agent: of either era in turn, over every server's era."""
    with contextlib.ExitStack() as stack:
        members = all_at_once(lambda pair: crowd.member(pair[1], ERAS[(pair[0] // 2) % 2]), enumerate(crowd.tokens))
        yield [stack.enter_context(member) for member in members]


def test_two_hundred_concurrent_agents_see_only_their_own_tools_and_answers(
    crowd: Crowd, everybody: list[AgentClient]
) -> None:
    assert Counter(member.era for member in everybody) == {"modern": AGENTS / 2, "legacy": AGENTS / 2}
    assert all_at_once(AgentClient.tools, everybody) == [
        {crowd.tool(member.name), "crib_result"} for member in everybody
    ]
    for member in everybody:
        member.send_call(crowd.tool(member.name), nonce=f"own-{member.name}", hold=True)
    wanted = {f"own-{member.name}" for member in everybody}
    crowd.wait_for_calls(wanted)
    crowd.release()
    for member in everybody:
        answer = member.answer()
        assert json.loads(answer.message)["id"] == 0
        result = answer.result["structuredContent"]
        assert (result["nonce"], f"_{result['tool']}") == (f"own-{member.name}", crowd.tool(member.name)[2:])
    ran = Counter(nonce for nonce in crowd.notes.nonces() if nonce in wanted)
    assert ran == Counter(dict.fromkeys(wanted, 1))


def test_no_agent_can_call_the_tool_of_any_other_nor_learn_it_from_an_error(
    crowd: Crowd, everybody: list[AgentClient], sized: Callable[[int, int], int]
) -> None:
    step = AGENTS // sized(8, AGENTS)

    def try_all(member: AgentClient) -> None:
        for other in crowd.tokens:
            if other != member.name:
                error = refusal(member.call(crowd.tool(other), nonce=f"stolen-{member.name}"))
                assert "may not use" in error, (member.name, member.era, other, error)

    # An odd step takes agents of both eras.
    all_at_once(try_all, everybody[:: step | 1])
    assert not [nonce for nonce in crowd.notes.nonces() if nonce.startswith("stolen")]
    foreign = {crowd.tool(other) for other in crowd.tokens} - {crowd.tool("a001")}
    for era in ERAS:
        with crowd.member("a001", era) as member:
            for name in ("w1_t0", "w2_t01", "w1_t99", "crib_agent_lst", "crib"):
                body = member.call(name).body.decode().replace(name, "")
                assert not [word for word in (*foreign, "crib_") if word in body], body


# Every route, with a credential or a session of another agent.

METHODS = ("tools/list", "tools/call", "ping", "prompts/list", "notifications/cancelled", "notifications/initialized")
SESSION_ROUTES = [*(f"legacy {method}" for method in METHODS), "GET", "DELETE"]
MODERN = ("server/discover", "tools/list", "tools/call", "subscriptions/listen", "notifications/cancelled")
ROUTES = [*(f"modern {method}" for method in MODERN), *SESSION_ROUTES, "initialize"]


def bytes_for(route: str, mcp: AgentEndpoint, session: str, tool: str) -> bytes:
    """A request on this route, with a legacy session's id and a tool."""
    kind, _, method = route.partition(" ")
    whole = {"GET": mcp.stream_bytes(session), "DELETE": mcp.delete_bytes(session)}
    whole["initialize"] = mcp.raw(mcp.usual(INITIALIZE), INITIALIZE)
    if kind in whole:
        return whole[kind]
    call = {"name": tool, "arguments": {"nonce": "foreign"}}
    listen = {"notifications": {"toolsListChanged": True}}
    params: dict[str, Any] = {"tools/call": call, "subscriptions/listen": listen}.get(method, {})
    notification = notice(method, {"requestId": 0}) if method.startswith("notifications/") else None
    if kind == "legacy":
        return mcp.legacy_bytes(session, notification or legacy_request(method, params, id=0))
    body = notification or request(method, params, id=0)
    return mcp.raw(mcp.usual(body, *mcp.modern_headers(method, params.get("name"))), body)


OWN = ("Authorization", "Bearer {own}")

BEARERS = ("tcb_" + "A" * 43, "", "{short}", "{own}A", "{capitals}", "{own}, Bearer {own}", "a000", "*")
CREDENTIALS: dict[str, tuple[int, list[Header]]] = {
    "none": (401, []),
    "two headers": (400, [OWN, ("Authorization", "Bearer {other}")]),
    "Basic": (401, [("Authorization", "Basic {own}")]),
    **{f"the label of {name}": (403, [OWN, ("X-Toolcrib-Agent", name)]) for name in ("a000", "owner", "no-such-agent")},
    **{f"Bearer {token}": (401, [("Authorization", f"Bearer {token}")]) for token in BEARERS},
}
"""Each with the status that it must get; {own} and {other} are tokens."""


def ask_with(mcp: AgentEndpoint, request_bytes: bytes, credentials: list[Header]) -> RawAnswer:
    """The request with other credentials than the endpoint's own."""
    own = f"Authorization: {mcp.auth[1]}\r\n".encode()
    assert request_bytes.count(own) == 1
    given = "".join(f"{name}: {value}\r\n" for name, value in credentials).encode()
    with mcp.connect() as connection:
        connection.send(request_bytes.replace(own, given))
        return connection.answer()


@pytest.mark.parametrize("credential", CREDENTIALS)
@pytest.mark.req("KSI-7")
def test_no_route_accepts_an_invalid_credential(crowd: Crowd, credential: str) -> None:
    with crowd.member("a000", "legacy") as victim:
        own, other = crowd.tokens["a001"], crowd.tokens["a000"]
        asker = AgentEndpoint(crowd.daemon, own)
        words = {"own": own, "other": other, "short": own[:-1], "capitals": own.upper()}
        status, given = CREDENTIALS[credential]
        headers = [(name, value.format(**words)) for name, value in given]
        before = len(crowd.notes.calls())
        for route in ROUTES:
            answer = ask_with(asker, bytes_for(route, asker, victim.session, crowd.tool("a000")), headers)
            assert answer.status == status, (route, answer)
            assert answer.error["message"], route
            assert ("www-authenticate" in answer.headers) == (status == 401), route
            assert "mcp-session-id" not in answer.headers, route
            for secret in (own, other, crowd.tool("a000")):
                assert secret.encode() not in answer.body, route
        assert len(crowd.notes.calls()) == before
        assert victim.ask("ping").result == {}


@pytest.mark.parametrize("route", SESSION_ROUTES)
def test_a_session_of_another_agent_is_as_unknown_as_one_that_never_existed(crowd: Crowd, route: str) -> None:
    with crowd.member("a000", "legacy") as victim, crowd.member("a001", "legacy") as asker, victim.listening() as open_:
        victim.send_call(crowd.tool("a000"), nonce=f"kept-{route}", hold=True)
        crowd.wait_for_calls({f"kept-{route}"})
        answers = []
        for session in (victim.session, UNKNOWN_SESSION):
            with asker.endpoint.connect() as connection:
                connection.send(bytes_for(route, asker.endpoint, session, crowd.tool("a000")))
                answers.append(connection.answer())
        assert answers[0].status == answers[1].status == 404
        assert answers[0].body == answers[1].body
        # Nothing of the session's agent has changed: its call is answered, its stream and session continue.
        crowd.release()
        assert nonce_of(victim.answer()) == f"kept-{route}"
        assert victim.ask("ping").result == {}
        crowd.owner.deny("a000", f"w3:{route}")
        assert open_.event()["method"] == "notifications/tools/list_changed"
    assert "foreign" not in crowd.notes.nonces()
    assert f"kept-{route}" not in crowd.notes.cancelled()


def test_another_agents_session_is_ignored_on_modern_requests_and_cannot_be_taken_over_by_the_owner(
    crowd: Crowd,
) -> None:
    with crowd.member("a000", "legacy") as victim:
        mcp = AgentEndpoint(crowd.daemon, crowd.tokens["a001"], ("Mcp-Session-Id", victim.session))
        tools = mcp.modern("tools/list", id=0)
        assert {tool["name"] for tool in tools.result["tools"]} == {crowd.tool("a001"), "crib_result"}
        before = len(crowd.notes.calls())
        assert nonce_of(mcp.call(crowd.tool("a000"), {"nonce": "x"}, id=0)) is None
        assert len(crowd.notes.calls()) == before
        # A session's actions belong to its agent, whatever the token.
        owner = AgentEndpoint(crowd.daemon, crowd.daemon.token)
        assert owner.legacy(victim.session, "tools/list").status == 404
        with owner.connect() as connection:
            connection.send(owner.delete_bytes(victim.session))
            assert connection.answer().status == 404
        assert victim.ask("ping").result == {}


@pytest.mark.parametrize("era", ERAS)
def test_a_cancellation_affects_no_other_call_with_the_same_id(crowd: Crowd, era: str) -> None:
    """All with id 0: of another agent, and of another conversation and session of the same agent."""
    name, tool = "a002", crowd.tool("a002")
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(crowd.member(name, era))
        others = {
            "another agent": stack.enter_context(crowd.member("a006", "legacy")),
            "the same agent's other session": stack.enter_context(crowd.member(name, "legacy")),
            "its other conversation": stack.enter_context(crowd.member(name, "legacy", conversation="other")),
        }
        victim.send_call(tool, nonce=f"mine-{era}", hold=True)
        for who, other in others.items():
            other.send_call(crowd.tool(other.name), nonce=f"{era} {who}", hold=True)
        crowd.wait_for_calls({f"mine-{era}", *(f"{era} {who}" for who in others)})
        for who, other in others.items():
            other.cancel()
            assert "cancelled" in refusal(other.answer()), who
        gone = crowd.member("a010", "modern")
        gone.send_call(crowd.tool("a010"), nonce=f"gone-{era}", hold=True)
        crowd.wait_for_calls({f"gone-{era}"})
        gone.close()
        taken = {f"gone-{era}", *(f"{era} {who}" for who in others)}
        wait_for(lambda: taken <= set(crowd.notes.cancelled()), "the server to receive each cancellation")
        crowd.release()
        assert nonce_of(victim.answer()) == f"mine-{era}"
        assert f"mine-{era}" not in crowd.notes.cancelled()


def test_progress_with_one_token_reaches_its_own_caller_only(crowd: Crowd, everybody: list[AgentClient]) -> None:
    some = everybody[:40]

    def work(member: AgentClient) -> None:
        member.send_call(crowd.tool(member.name), meta={"progressToken": 0}, nonce=f"p-{member.name}", progress=5)
        answer = member.answer()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        reports = [line["params"] for line in lines if line.get("method") == "notifications/progress"]
        assert {(report["message"], report["progressToken"]) for report in reports} == {(f"p-{member.name}", 0)}
        assert nonce_of(answer) == f"p-{member.name}"

    all_at_once(work, some)


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("era", ERAS)
def test_only_the_agent_whose_permission_changed_is_notified(crowd: Crowd, era: str) -> None:
    with contextlib.ExitStack() as stack:
        changed = stack.enter_context(crowd.newcomer(f"changed-{era}", era, "w0:*"))
        others = [stack.enter_context(crowd.newcomer(f"other-{era}-{of}", of, "w0:*")) for of in ERAS]
        stream = stack.enter_context(changed.listening())
        streams = [stack.enter_context(other.listening()) for other in others]
        crowd.owner.deny(changed.name, "w0:t00")
        event = stream.event()
        assert event["method"] == "notifications/tools/list_changed"
        if era == "modern":
            assert event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 0
        assert "w0_t00" not in changed.tools()
        # A new token ends the streams of the old one, so every message on them can be counted.
        for other in others:
            crowd.owner.rotate(other.name)
        assert [changes(all_events(each)) for each in streams] == [0, 0]


def test_one_conversation_label_of_two_agents_makes_two_sessions(crowd: Crowd) -> None:
    def sessions() -> dict[str, dict[str, Any]]:
        found = [row for row in crowd.owner.sessions() if row["conversation"] == "plan"]
        return {row["agent"]: row for row in found}

    with (
        crowd.member("a020", "modern", conversation="plan") as one,
        crowd.member("a021", "legacy", conversation="plan") as two,
    ):
        for member, times in ((one, 2), (two, 3)):
            for turn in range(times):
                assert nonce_of(member.call(crowd.tool(member.name), nonce=f"{member.name}-{turn}"))
        rows = sessions()
        assert rows.keys() == {"a020", "a021"}
        assert rows["a020"]["id"] != rows["a021"]["id"]
        assert {name: row["calls"] for name, row in rows.items()} == {"a020": 2, "a021": 3}
        crowd.owner.say("session:end", id=rows["a020"]["id"])
        assert nonce_of(two.call(crowd.tool("a021"), nonce="still")) == "still"
        assert sessions()["a021"]["id"] == rows["a021"]["id"]


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("profile", ["developer", "trusted", "read-only"])
def test_no_command_reveals_other_agents_or_changes_permissions(crowd: Crowd, profile: str) -> None:
    """Every command that the owner sees, called by an agent with the most harmful arguments."""
    listed = {tool["name"] for tool in Endpoint(crowd.daemon).modern("tools/list").result["tools"]}
    commands = sorted(name for name in listed if name.startswith("crib_"))
    assert {f"crib_{name.replace(':', '_')}" for name in OWNERS_COMMANDS} <= set(commands)
    name = f"curious-{profile}"
    guesses: list[dict[str, Any]] = [
        *({}, {"name": "a000"}),
        {"agent": "a000", "tools": "*", "tool": "w0:t00"},
        {"agent": name, "tools": "*"},
        {"name": f"made-by-{profile}", "profile": "owner"},
        {"id": "a1", "approved": True},
    ]
    agents = {row["name"] for row in crowd.owner.say("agent:list")["agents"]}
    with crowd.newcomer(name, "modern", profile=profile) as curious:
        raw = [{"command": other, "parameters": guess} for other in OWNERS_COMMANDS for guess in guesses]
        for command in {*commands, "crib_raw_command"}:
            for arguments in [*guesses, *(raw if command == "crib_raw_command" else [])]:
                body = curious.call(command, **arguments).body.decode()
                leaked = [word for word in ('"a001"', "a117", "own-a", *crowd.tokens.values()) if word in body]
                assert not leaked, (command, arguments, leaked, body[:2000])
        curious_rules = crowd.owner.say("agent:show", name=name)
        assert not curious_rules.get("rules"), curious_rules
        # The same calls work for a command that the agent may use.
        health = refusal(curious.call("crib_raw_command", command="system:health", parameters={}))
        assert ("may not use" in health) == (profile != "trusted"), health
        assert not refusal(curious.call("crib_system_health"))
    assert {row["name"] for row in crowd.owner.say("agent:list")["agents"]} == {*agents, name}
