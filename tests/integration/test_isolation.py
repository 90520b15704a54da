"""Two hundred agents at once, all with the JSON-RPC id 0: nobody sees, ends, hears or does what is another's.

What counts is what the far side saw: a witness writes every call down before it answers.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner, all_at_once, changes, heard, nonce_of, refusal
from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.raw_client import INITIALIZE, LEGACY, Endpoint, Header, RawAnswer, legacy_request, notice
from parts.recording_server import Notes
from parts.waiting import wait_for

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("FRG-11", "KSI-9")

AGENTS = 200
SERVERS = 4
TOOLS = [f"t{number:02d}" for number in range(AGENTS // SERVERS)]
NEVER_WAS = "0123456789abcdef0123456789abcdef"
OWNERS_ALONE = ("agent:list", "agent:add", "permission:allow", "session:list", "audit:query")


@dataclass(frozen=True, kw_only=True)
class Crowd:
    daemon: Daemon
    owner: Owner
    notes: Notes
    tokens: dict[str, str]
    """By agent, in the order of their numbers."""

    def tool(self, name: str) -> str:
        """The one tool that the agent may use, as clients name it."""
        number = int(name.removeprefix("a"))
        return f"w{number % SERVERS}_{TOOLS[number // SERVERS]}"

    def member(self, name: str, era: str, **more: Any) -> AgentClient:
        return AgentClient(self.daemon, name, self.tokens[name], era, **more)

    def newcomer(self, name: str, era: str, *allowed: str, **more: Any) -> AgentClient:
        """An agent of one test alone."""
        return AgentClient(self.daemon, name, self.owner.add(name, *allowed, **more), era)

    def release(self) -> None:
        """Every held call is answered."""
        door = Endpoint(self.daemon)
        for number in range(SERVERS):
            assert door.call(f"w{number}_release").status == 200

    def wait_for_calls(self, nonces: set[str]) -> None:
        wait_for(lambda: nonces <= set(self.notes.nonces()), "the witnesses to see every call")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    notes = Notes(Path(tmp_path_factory.mktemp("notes")) / "seen")
    servers = {f"w{number}": notes.server(*TOOLS, era=ERAS[number % 2]) for number in range(SERVERS)}
    with shared_daemon({"servers": servers}, ready=list(servers)) as daemon:
        owner = Owner(daemon)
        tokens = {}
        for number in range(AGENTS):
            name, mine = f"a{number:03d}", TOOLS[number // SERVERS]
            tokens[name] = owner.add(name, f"w{number % SERVERS}:{mine}")
        yield Crowd(daemon=daemon, owner=owner, notes=notes, tokens=tokens)


@pytest.fixture
def everybody(crowd: Crowd) -> Iterator[list[AgentClient]]:
    """A client for each agent: of either era in turn, over every server's era."""
    with contextlib.ExitStack() as stack:
        members = all_at_once(lambda pair: crowd.member(pair[1], ERAS[(pair[0] // 2) % 2]), enumerate(crowd.tokens))
        yield [stack.enter_context(member) for member in members]


def test_two_hundred_agents_at_once_each_see_only_their_own_tools(crowd: Crowd, everybody: list[AgentClient]) -> None:
    assert Counter(member.era for member in everybody) == {"modern": AGENTS / 2, "legacy": AGENTS / 2}
    assert all_at_once(AgentClient.tools, everybody) == [{crowd.tool(member.name)} for member in everybody]


def test_two_hundred_calls_under_way_with_one_id_are_each_answered_to_their_own_caller(
    crowd: Crowd, everybody: list[AgentClient]
) -> None:
    for member in everybody:
        member.send_call(crowd.tool(member.name), nonce=f"own-{member.name}", hold=True)
    wanted = {f"own-{member.name}" for member in everybody}
    crowd.wait_for_calls(wanted)
    crowd.release()
    for member in everybody:
        answer = member.answer()
        assert json.loads(answer.message)["id"] == 0
        told = answer.result["structuredContent"]
        assert (told["nonce"], f"_{told['tool']}") == (f"own-{member.name}", crowd.tool(member.name)[2:])
    ran = Counter(nonce for nonce in crowd.notes.nonces() if nonce in wanted)
    assert ran == Counter(dict.fromkeys(wanted, 1))


def test_no_agent_can_call_the_tool_of_any_other(
    crowd: Crowd, everybody: list[AgentClient], sized: Callable[[int, int], int]
) -> None:
    step = AGENTS // sized(8, AGENTS)

    def try_all(member: AgentClient) -> None:
        for other in crowd.tokens:
            if other != member.name:
                told = refusal(member.call(crowd.tool(other), nonce=f"stolen-{member.name}"))
                assert "may not use" in told, (member.name, member.era, other, told)

    # An odd step takes agents of both eras.
    all_at_once(try_all, everybody[:: step | 1])
    assert not [nonce for nonce in crowd.notes.nonces() if nonce.startswith("stolen")]


def test_what_an_agent_is_told_of_an_unknown_name_names_nothing_of_others(crowd: Crowd) -> None:
    for era in ERAS:
        with crowd.member("a001", era) as member:
            own = crowd.tool("a001")
            for name in ("w1_t0", "w2_t01", "w1_t99", "crib_agent_lst", "crib"):
                body = member.call(name).body.decode()
                others = {crowd.tool(other) for other in crowd.tokens} - {own}
                assert not [tool for tool in others if tool in body.replace(name, "")], body
                assert "crib_" not in body.replace(name, "")


# Every route, asked with a credential or a session that is not the asker's.

Ask = Callable[[AgentEndpoint, str, str], bytes]
"""The bytes of a request, of an endpoint, a legacy session's id and a tool."""


def _modern(method: str, params: dict[str, Any] | None = None) -> Ask:
    def ask(door: AgentEndpoint, _: str, tool: str) -> bytes:
        told = {"name": tool, "arguments": {"nonce": "foreign"}} if method == "tools/call" else params
        return door.modern_bytes(method, told, id=0)

    return ask


def _legacy(method: str) -> Ask:
    def ask(door: AgentEndpoint, session: str, tool: str) -> bytes:
        told = {"name": tool, "arguments": {"nonce": "foreign"}} if method == "tools/call" else {}
        return door.legacy_bytes(session, legacy_request(method, told, id=0))

    return ask


def _notice(method: str) -> Ask:
    return lambda door, session, _: door.legacy_bytes(session, notice(method, {"requestId": 0}))


def _modern_notice(door: AgentEndpoint, _: str, __: str) -> bytes:
    method = "notifications/cancelled"
    body = notice(method, {"requestId": 0})
    return door.raw(door.usual(body, *door.modern_headers(method)), body)


MODERN_ROUTES: dict[str, Ask] = {
    "discover": _modern("server/discover"),
    "list": _modern("tools/list"),
    "call": _modern("tools/call"),
    "listen": _modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
    "a notice": _modern_notice,
}
SESSION_ROUTES: dict[str, Ask] = {
    **{f"legacy {method}": _legacy(method) for method in ("tools/list", "tools/call", "ping", "prompts/list")},
    "legacy cancellation": _notice("notifications/cancelled"),
    "legacy initialized": _notice("notifications/initialized"),
    "GET": lambda door, session, _: door.stream_bytes(session),
    "DELETE": lambda door, session, _: door.delete_bytes(session),
}
ROUTES: dict[str, Ask] = {
    **MODERN_ROUTES,
    **SESSION_ROUTES,
    "initialize": lambda door, _, __: door.raw(door.usual(INITIALIZE), INITIALIZE),
}

Credential = Callable[[str, str], tuple[int, list[Header]]]
"""Of the asker's and the other's token: the status that it must give, and the headers."""


def _bearer(make: Callable[[str], str]) -> Credential:
    return lambda own, _: (401, [("Authorization", make(own))])


CREDENTIALS: dict[str, Credential] = {
    "none": lambda own, other: (401, []),
    "an unknown one": _bearer(lambda token: "Bearer tcb_" + "A" * 43),
    "an empty one": _bearer(lambda token: "Bearer "),
    "one cut short": _bearer(lambda token: f"Bearer {token[:-1]}"),
    "one drawn out": _bearer(lambda token: f"Bearer {token}A"),
    "one in capitals": _bearer(lambda token: f"Bearer {token.upper()}"),
    "two in one": _bearer(lambda token: f"Bearer {token}, Bearer {token}"),
    "another scheme": _bearer(lambda token: f"Basic {token}"),
    "the name of an agent": _bearer(lambda token: "Bearer a000"),
    "a glob": _bearer(lambda token: "Bearer *"),
    "two headers": lambda own, other: (400, [("Authorization", f"Bearer {own}"), ("Authorization", f"Bearer {other}")]),
    "the label of another agent": lambda own, other: (
        403,
        [("Authorization", f"Bearer {own}"), ("X-Toolcrib-Agent", "a000")],
    ),
    "the label of the owner": lambda own, other: (
        403,
        [("Authorization", f"Bearer {own}"), ("X-Toolcrib-Agent", "owner")],
    ),
    "the label of nobody": lambda own, other: (
        403,
        [("Authorization", f"Bearer {own}"), ("X-Toolcrib-Agent", "no-such-agent")],
    ),
}


def ask_with(door: AgentEndpoint, request_bytes: bytes, credentials: list[Header]) -> RawAnswer:
    """The request with other credentials than the endpoint's own."""
    own = f"Authorization: {door.auth[1]}\r\n".encode()
    assert request_bytes.count(own) == 1
    given = "".join(f"{name}: {value}\r\n" for name, value in credentials).encode()
    with door.connect() as connection:
        connection.send(request_bytes.replace(own, given))
        return connection.answer()


@pytest.mark.parametrize("credential", CREDENTIALS)
@pytest.mark.req("KSI-7")
def test_no_route_takes_a_credential_that_is_not_the_askers(crowd: Crowd, credential: str) -> None:
    with crowd.member("a000", "legacy") as victim:
        asker = AgentEndpoint(crowd.daemon, crowd.tokens["a001"])
        status, headers = CREDENTIALS[credential](crowd.tokens["a001"], crowd.tokens["a000"])
        before = len(crowd.notes.calls())
        for route, ask in ROUTES.items():
            answer = ask_with(asker, ask(asker, victim.session, crowd.tool("a000")), headers)
            assert answer.status == status, (route, answer)
            assert answer.error["message"], route
            assert ("www-authenticate" in answer.headers) == (status == 401), route
            assert "mcp-session-id" not in answer.headers, route
            for secret in (crowd.tokens["a000"], crowd.tokens["a001"], crowd.tool("a000")):
                assert secret.encode() not in answer.body, route
        assert len(crowd.notes.calls()) == before
        assert victim.ask("ping").result == {}


@pytest.mark.parametrize("route", SESSION_ROUTES)
def test_a_session_of_another_is_as_unknown_as_one_that_never_was(crowd: Crowd, route: str) -> None:
    ask = SESSION_ROUTES[route]
    with crowd.member("a000", "legacy") as victim, crowd.member("a001", "legacy") as asker, victim.listening() as open_:
        victim.send_call(crowd.tool("a000"), nonce=f"kept-{route}", hold=True)
        crowd.wait_for_calls({f"kept-{route}"})
        told = []
        for session in (victim.session, NEVER_WAS):
            with asker.door.connect() as connection:
                connection.send(ask(asker.door, session, crowd.tool("a000")))
                told.append(connection.answer())
        assert told[0].status == told[1].status == 404
        assert told[0].body == told[1].body
        # Nothing of the owner's was touched: its call is answered, its stream and its session go on.
        crowd.release()
        assert nonce_of(victim.answer()) == f"kept-{route}"
        assert victim.ask("ping").result == {}
        crowd.owner.deny("a000", f"w3:{route}")
        assert open_.event()["method"] == "notifications/tools/list_changed"
    assert "foreign" not in crowd.notes.nonces()
    assert f"kept-{route}" not in crowd.notes.cancelled()


def test_another_agents_session_id_on_a_modern_request_means_nothing(crowd: Crowd) -> None:
    with crowd.member("a000", "legacy") as victim:
        door = AgentEndpoint(crowd.daemon, crowd.tokens["a001"], ("Mcp-Session-Id", victim.session))
        tools = door.modern("tools/list", id=0)
        assert {tool["name"] for tool in tools.result["tools"]} == {crowd.tool("a001")}
        before = len(crowd.notes.calls())
        assert nonce_of(door.call(crowd.tool("a000"), {"nonce": "x"}, id=0)) is None
        assert len(crowd.notes.calls()) == before


def test_the_owner_of_the_machine_does_not_take_over_a_session_of_an_agent(crowd: Crowd) -> None:
    """Also the most powerful token is bound to its own sessions: what a session does is its agent's doing."""
    with crowd.member("a000", "legacy") as victim:
        door = Endpoint(crowd.daemon)
        assert door.legacy(victim.session, "tools/list").status == 404
        assert (
            door.ask(
                [door.host, door.auth, ("Mcp-Session-Id", victim.session), ("MCP-Protocol-Version", LEGACY)],
                verb="DELETE",
            ).status
            == 404
        )
        assert victim.ask("ping").result == {}


@pytest.mark.parametrize("era", ERAS)
def test_a_cancellation_reaches_nobody_elses_call(crowd: Crowd, era: str) -> None:
    """All with id 0: another agent's, and another conversation's and another session's of the same agent."""
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
        wait_for(lambda: taken <= set(crowd.notes.cancelled()), "the witness to hear of each cancellation")
        crowd.release()
        assert nonce_of(victim.answer()) == f"mine-{era}"
        assert f"mine-{era}" not in crowd.notes.cancelled()


def test_progress_with_one_token_comes_to_its_own_caller_alone(crowd: Crowd, everybody: list[AgentClient]) -> None:
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
def test_a_change_of_one_agents_permission_is_told_to_that_one_alone(crowd: Crowd, era: str) -> None:
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
        # A new token ends the streams of the old one, so that all that was ever said on them can be counted.
        for other in others:
            crowd.owner.rotate(other.name)
        assert [changes(heard(each)) for each in streams] == [0, 0]


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
        told = sessions()
        assert told.keys() == {"a020", "a021"}
        assert told["a020"]["id"] != told["a021"]["id"]
        assert {name: row["calls"] for name, row in told.items()} == {"a020": 2, "a021": 3}
        crowd.owner.say("session:end", id=told["a020"]["id"])
        assert nonce_of(two.call(crowd.tool("a021"), nonce="still")) == "still"
        assert sessions()["a021"]["id"] == told["a021"]["id"]


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("profile", ["developer", "trusted", "read-only"])
def test_no_command_tells_an_agent_of_others_or_lets_it_rule(crowd: Crowd, profile: str) -> None:
    """Every command that the owner's own list shows, called by an agent with the arguments that would hurt most."""
    listed = {tool["name"] for tool in Endpoint(crowd.daemon).modern("tools/list").result["tools"]}
    commands = sorted(name for name in listed if name.startswith("crib_"))
    assert {f"crib_{name.replace(':', '_')}" for name in OWNERS_ALONE} <= set(commands)
    name = f"curious-{profile}"
    guesses: list[dict[str, Any]] = [
        {},
        {"name": "a000"},
        {"agent": "a000", "tools": "*", "tool": "w0:t00"},
        {"agent": name, "tools": "*"},
        {"name": f"made-by-{profile}", "profile": "owner"},
        {"id": "a1", "approved": True},
    ]
    agents = {row["name"] for row in crowd.owner.say("agent:list")["agents"]}
    with crowd.newcomer(name, "modern", profile=profile) as curious:
        raw = [{"command": other, "parameters": guess} for other in OWNERS_ALONE for guess in guesses]
        for command in {*commands, "crib_raw_command"}:
            for arguments in [*guesses, *(raw if command == "crib_raw_command" else [])]:
                body = curious.call(command, **arguments).body.decode()
                leaked = [word for word in ('"a001"', "a117", "own-a", *crowd.tokens.values()) if word in body]
                assert not leaked, (command, arguments, leaked, body[:2000])
        curious_rules = crowd.owner.say("agent:show", name=name)
        assert not curious_rules.get("rules"), curious_rules
        # The way that was tried is a way: what an agent may ask for is answered on it.
        health = refusal(curious.call("crib_raw_command", command="system:health", parameters={}))
        assert ("may not use" in health) == (profile != "trusted"), health
        assert not refusal(curious.call("crib_system_health"))
    assert {row["name"] for row in crowd.owner.say("agent:list")["agents"]} == {*agents, name}
