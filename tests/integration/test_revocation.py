"""A permission taken away while callers hammer: not one call passes once the change was acknowledged.

What "passes" means is exact here, and needs no clock of the daemon's:
- A call whose first byte a client sent after the acknowledgement arrived is refused, and the witness never saw it.
- A call that was sent before may have run or not. But after the acknowledgement the owner calls the tool `mark`, and
  the daemon writes to a server in the order of its deciding, down one pipe: a call of the agent that the witness saw
  after the mark would have been let through after the acknowledgement. There is none.
- A result that a caller got is a call that the witness saw, once.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, Owner, nonce_of, refusal
from parts.daemon import Daemon, nothing_left_behind, run_cli, shared_daemon
from parts.raw_client import Endpoint
from parts.recording_server import Notes
from parts.waiting import wait_for

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-5", "KSI-9")

CALLERS = 6
TURNS = 3
"""How often each caller gets through before the change, and tries after it."""
NOBODY = "token"
NO_RULE = "no rule allows it"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to take a permission away."""

    says: str
    """What a caller is told afterwards; `NOBODY`: its token is no longer known."""
    prepare: Callable[[Owner, str], str]
    """Makes the agent, which may use the witness's tools; gives its token."""
    narrow: Callable[[Owner, str], Any]


def _plain(owner: Owner, name: str) -> str:
    return owner.add(name, "w:*")


def _with_a_profile(owner: Owner, name: str) -> str:
    owner.put_profile(f"of-{name}", {"allow": "w:*"})
    return owner.add(name, profile=f"of-{name}")


def _with_a_parent(owner: Owner, name: str) -> str:
    owner.add(f"parent-{name}", "w:*")
    return owner.add(name, "w:*", parent=f"parent-{name}")


def _typed(*words: str) -> Callable[[Owner, str], Any]:
    """At the real command line; acknowledged when the process has ended."""
    return lambda owner, name: run_cli(
        owner.daemon.home, *(word.format(name=name) for word in words), cwd=owner.daemon.home.project
    ).ok()


WAYS: dict[str, Way] = {
    "removed": Way(says=NOBODY, prepare=_plain, narrow=lambda owner, name: owner.remove(name)),
    "rotated": Way(says=NOBODY, prepare=_plain, narrow=lambda owner, name: owner.rotate(name)),
    "denied": Way(
        says="agent {name}: deny w:note", prepare=_plain, narrow=lambda owner, name: owner.deny(name, "w:note")
    ),
    "no longer allowed": Way(
        says=NO_RULE, prepare=_plain, narrow=lambda owner, name: owner.allow(name, "w:*", remove=True)
    ),
    "denied by the profile": Way(
        says="profile of-{name}: deny *:note",
        prepare=_with_a_profile,
        narrow=lambda owner, name: owner.put_profile(f"of-{name}", {"allow": "w:*"}, {"deny": "*:note"}),
    ),
    "no longer allowed by the profile": Way(
        says=NO_RULE, prepare=_with_a_profile, narrow=lambda owner, name: owner.put_profile(f"of-{name}")
    ),
    "removed with the parent": Way(
        says=NOBODY, prepare=_with_a_parent, narrow=lambda owner, name: owner.remove(f"parent-{name}")
    ),
    "denied to the parent": Way(
        says="deny w:note",
        prepare=_with_a_parent,
        narrow=lambda owner, name: owner.deny(f"parent-{name}", "w:note"),
    ),
    "removed at the command line": Way(says=NOBODY, prepare=_plain, narrow=_typed("agent", "remove", "{name}")),
    "denied at the command line": Way(
        says="agent {name}: deny w:*", prepare=_plain, narrow=_typed("deny", "{name}", "w:*")
    ),
}
QUICK = [name for name in WAYS if not name.endswith("command line")]


@dataclass(frozen=True, kw_only=True)
class Stage:
    daemon: Daemon
    owner: Owner
    notes: Notes
    _names: Iterator[int] = field(default_factory=itertools.count)

    def name(self) -> str:
        return f"agent-{next(self._names)}"

    def mark(self, nonce: str) -> None:
        assert nonce_of(Endpoint(self.daemon).call("w_mark", {"nonce": nonce})) == nonce

    def seen_before_and_after(self, mark: str) -> tuple[list[str], list[str]]:
        nonces = self.notes.nonces()
        at = nonces.index(mark)
        return nonces[:at], nonces[at + 1 :]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    notes = Notes(Path(tmp_path_factory.mktemp("notes")) / "seen")
    with shared_daemon({"servers": {"w": notes.server("note", "mark")}}, ready=["w"]) as daemon:
        yield Stage(daemon=daemon, owner=Owner(daemon), notes=notes)


@pytest.fixture(scope="module")
def delays() -> Iterator[list[tuple[float, float]]]:
    """For each change at the socket: seconds until the first refusal arrived, and until it was acknowledged."""
    measured: list[tuple[float, float]] = []
    yield measured
    if len(measured) >= 2:
        for what, times in zip(("first refusal", "acknowledgement"), zip(*measured, strict=True), strict=True):
            hundredths = statistics.quantiles([1000 * each for each in times], n=100)
            print(f"\nrevocation, {what}: median {hundredths[49]:.1f} ms, p95 {hundredths[94]:.1f} ms, n={len(times)}")


@dataclass(kw_only=True)
class Tried:
    nonce: str
    sent: float
    ended: float
    ran: bool
    told: str


class Hammer:
    """One caller that calls without a pause until it is told to stop."""

    def __init__(self, member: AgentClient, label: str) -> None:
        self.member = member
        self.label = label
        self.tried: list[Tried] = []

    def run(self, stop: threading.Event) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            nonce = f"{self.label}-{number}"
            sent = time.monotonic()
            answer = self.member.call("w_note", nonce=nonce)
            ran = nonce_of(answer) == nonce
            told = "" if ran else refusal(answer)
            self.tried.append(Tried(nonce=nonce, sent=sent, ended=time.monotonic(), ran=ran, told=told))

    def after(self, moment: float) -> list[Tried]:
        return [each for each in tuple(self.tried) if each.sent > moment]


@contextlib.contextmanager
def hammering(hammers: list[Hammer]) -> Iterator[None]:
    """They call while the block runs; one that fails is heard of at the end of it."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(hammers)) as pool:
        running = [pool.submit(hammer.run, stop) for hammer in hammers]
        try:
            wait_for(
                lambda: any(each.done() for each in running) or all(len(h.tried) >= TURNS for h in hammers),
                "every caller to get through",
            )
            yield
        finally:
            stop.set()
    for each in running:
        each.result()


@pytest.mark.parametrize("way", WAYS)
def test_not_one_call_passes_after_the_change_was_acknowledged(
    stage: Stage, way: str, delays: list[tuple[float, float]], sized: Callable[[int, int], int]
) -> None:
    for _ in range(sized(3, 25)):
        delay = _one_round(stage, WAYS[way])
        if way in QUICK:
            delays.append(delay)


def _one_round(stage: Stage, way: Way) -> tuple[float, float]:
    name = stage.name()
    token = way.prepare(stage.owner, name)
    with contextlib.ExitStack() as stack:
        hammers = []
        for number in range(CALLERS):
            member = stack.enter_context(AgentClient(stage.daemon, name, token, ERAS[number % 2]))
            hammers.append(Hammer(member, f"{name}.{number}"))
        with hammering(hammers):
            began = time.monotonic()
            way.narrow(stage.owner, name)
            acknowledged = time.monotonic()
            stage.mark(f"{name} mark")
            wait_for(lambda: all(len(h.after(acknowledged)) >= TURNS for h in hammers), "every caller to try again")
    says = way.says.format(name=name)
    tried = [each for hammer in hammers for each in hammer.tried]
    late = [each for hammer in hammers for each in hammer.after(acknowledged)]
    assert [each for each in late if each.ran] == []
    assert [each for each in late if says not in each.told] == []
    before, after = stage.seen_before_and_after(f"{name} mark")
    assert [nonce for nonce in after if nonce.startswith(f"{name}.")] == []
    assert {each.nonce for each in late}.isdisjoint(before)
    assert all(before.count(each.nonce) == 1 for each in tried if each.ran)
    assert sum(each.ran for each in tried) >= CALLERS * TURNS
    first = min(each.ended for each in tried if not each.ran)
    return first - began, acknowledged - began


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", QUICK)
def test_a_request_whose_body_arrives_after_the_change_is_refused(stage: Stage, way: str, era: str) -> None:
    """The token was good when the head of the request was read; what counts is the moment of the call."""
    name = stage.name()
    with AgentClient(stage.daemon, name, WAYS[way].prepare(stage.owner, name), era) as member:
        whole = member.bytes_of("tools/call", {"name": "w_note", "arguments": {"nonce": name}})
        member.connection.send(whole[:-10])
        # An answer on another connection shows that the daemon has had a turn to read the first part.
        assert nonce_of(Endpoint(stage.daemon).call("w_mark", {"nonce": f"{name} mark"}))
        WAYS[way].narrow(stage.owner, name)
        member.connection.send(whole[-10:])
        assert WAYS[way].says.format(name=name) in refusal(member.answer())
    stage.mark(f"{name} end")
    assert name not in stage.notes.nonces()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", QUICK)
def test_a_call_under_way_is_stopped_by_the_change(stage: Stage, way: str, era: str) -> None:
    name = stage.name()
    with AgentClient(stage.daemon, name, WAYS[way].prepare(stage.owner, name), era) as member:
        member.send_call("w_note", nonce=name, hold=True)
        wait_for(lambda: name in stage.notes.nonces(), "the witness to see the call")
        WAYS[way].narrow(stage.owner, name)
        assert "may have run" in refusal(member.answer())
        wait_for(lambda: name in stage.notes.cancelled(), "the witness to hear that it is over")
    assert Endpoint(stage.daemon).call("w_release").status == 200


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", QUICK)
def test_a_connected_client_hears_of_the_change(stage: Stage, way: str, era: str) -> None:
    """Its stream tells it, or, where its token is no longer good for one, ends."""
    name = stage.name()
    with (
        AgentClient(stage.daemon, name, WAYS[way].prepare(stage.owner, name), era) as member,
        member.listening() as stream,
    ):
        assert "w_note" in member.tools()
        WAYS[way].narrow(stage.owner, name)
        listing = member.ask("tools/list")
        if WAYS[way].says == NOBODY:
            assert listing.status == 401
            with pytest.raises(ConnectionError):
                while stream.event():
                    pass
        else:
            assert "w_note" not in {tool["name"] for tool in listing.result["tools"]}
            assert stream.event()["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", [name for name in QUICK if WAYS[name].says != NO_RULE])
def test_a_call_that_waits_for_a_persons_word_is_stopped_by_the_change(stage: Stage, way: str, era: str) -> None:
    name = stage.name()
    with AgentClient(stage.daemon, name, WAYS[way].prepare(stage.owner, name), era) as member:
        stage.owner.allow(name, "w:note", ask=True)
        member.send_call("w_note", nonce=name)

        def waiting() -> list[dict[str, Any]]:
            return [row for row in stage.owner.say("approval:list")["approvals"] if row["agent"] == name]

        wait_for(waiting, "the call to wait for a person")
        WAYS[way].narrow(stage.owner, name)
        assert refusal(member.answer())
        assert not waiting()
    stage.mark(f"{name} mark")
    assert name not in stage.notes.nonces()


def test_a_permission_given_back_is_good_for_the_very_next_request(stage: Stage) -> None:
    name = stage.name()
    token = stage.owner.add(name, "w:*")
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(AgentClient(stage.daemon, name, token, era)) for era in ERAS]
        for turn in range(10):
            stage.owner.deny(name, "w:note")
            for member in members:
                assert "deny w:note" in refusal(member.call("w_note", nonce=f"{name} no {turn}"))
                assert "w_note" not in member.tools()
            stage.owner.deny(name, "w:note", remove=True)
            for member in members:
                assert nonce_of(member.call("w_note", nonce=f"{name} {turn}")) == f"{name} {turn}"
                assert "w_note" in member.tools()
    assert not [nonce for nonce in stage.notes.nonces() if nonce.startswith(f"{name} no")]


def test_a_new_token_keeps_the_sessions_and_the_old_one_is_good_for_nothing(stage: Stage) -> None:
    name = stage.name()
    old = stage.owner.add(name, "w:*")
    with AgentClient(stage.daemon, name, old, "legacy", conversation="kept") as member:
        assert nonce_of(member.call("w_note", nonce=f"{name} 1"))
        new = stage.owner.rotate(name)
        assert new != old
        assert refusal(member.call("w_note", nonce=f"{name} 2")).startswith("401")
        with AgentClient(stage.daemon, name, new, "modern", conversation="kept") as again:
            again.era, again.session = "legacy", member.session
            assert nonce_of(again.call("w_note", nonce=f"{name} 3")) == f"{name} 3"
    (session,) = [row for row in stage.owner.sessions() if row["agent"] == name]
    assert (session["conversation"], session["calls"]) == ("kept", 2)
    assert f"{name} 2" not in stage.notes.nonces()


@pytest.mark.parametrize("conversation", [None, "plan"])
def test_a_new_agent_of_an_old_name_finds_nothing_of_the_one_before(stage: Stage, conversation: str | None) -> None:
    name = stage.name()
    old = stage.owner.add(name, "w:*")
    with AgentClient(stage.daemon, name, old, "legacy", conversation=conversation) as before:
        assert nonce_of(before.call("w_note", nonce=f"{name} 1"))
        stage.owner.remove(name)
        assert not [row for row in stage.owner.sessions() if row["agent"] == name]
        new = stage.owner.add(name, "w:mark")
        with AgentClient(stage.daemon, name, new, "legacy", conversation=conversation) as after:
            after.session, own = before.session, after.session
            assert refusal(after.call("w_mark", nonce=f"{name} 2")).startswith("404")
            after.session = own
            assert "may not use" in refusal(after.call("w_note", nonce=f"{name} 3"))
            assert nonce_of(after.call("w_mark", nonce=f"{name} 4"))
        assert refusal(before.call("w_note", nonce=f"{name} 5")).startswith("401")
    assert [nonce for nonce in stage.notes.nonces() if nonce.startswith(f"{name} ")] == [f"{name} 1", f"{name} 4"]
    (session,) = [row for row in stage.owner.sessions() if row["agent"] == name]
    assert (session["calls"], session["denied"]) == (2, 1)
