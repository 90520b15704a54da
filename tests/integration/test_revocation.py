"""A permission is revoked while callers send calls without a pause: none passes after the acknowledgement.

"Passes" is exact here, and needs no clock of the daemon:
- A call whose first byte was sent after the acknowledgement is refused, and the server never sees it.
- A call that was sent before may have run or not. But after the acknowledgement the owner calls the tool `mark`, and
  the daemon writes to a server in the order of its decisions, into one pipe: a call of the agent after the mark would
  have been allowed after the acknowledgement. There is none.
- Every call with a result reached the server exactly once.
"""

from __future__ import annotations

import contextlib
import itertools
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
"""How often each caller succeeds before the revocation, and tries after it."""
BAD_TOKEN = "token"
NO_RULE = "no rule allows it"


@dataclass(frozen=True)
class Way:
    """One way to revoke a permission."""

    error: str
    """What a caller gets afterwards; `BAD_TOKEN`: its token is no longer known."""
    prepare: Callable[[Owner, str], str]
    """Adds the agent, which may use the server's tools; returns its token."""
    revoke: Callable[[Owner, str], Any]


def plain(owner: Owner, name: str) -> str:
    return owner.add(name, "w:*")


def with_profile(owner: Owner, name: str) -> str:
    owner.put_profile(f"of-{name}", {"allow": "w:*"})
    return owner.add(name, profile=f"of-{name}")


def with_parent(owner: Owner, name: str) -> str:
    owner.add(f"parent-{name}", "w:*")
    return owner.add(name, "w:*", parent=f"parent-{name}")


def deny_by_profile(owner: Owner, name: str) -> None:
    owner.put_profile(f"of-{name}", {"allow": "w:*"}, {"deny": "*:note"})


def cli(*words: str) -> Callable[[Owner, str], Any]:
    """On the real command line; acknowledged when the process has ended."""
    return lambda owner, name: run_cli(owner.daemon.home, *(word.format(name=name) for word in words)).ok()


WAYS: dict[str, Way] = {
    "removed": Way(BAD_TOKEN, plain, lambda owner, name: owner.remove(name)),
    "rotated": Way(BAD_TOKEN, plain, lambda owner, name: owner.rotate(name)),
    "denied": Way("agent {name}: deny w:note", plain, lambda owner, name: owner.deny(name, "w:note")),
    "no longer allowed": Way(NO_RULE, plain, lambda owner, name: owner.allow(name, "w:*", remove=True)),
    "denied by the profile": Way("profile of-{name}: deny *:note", with_profile, deny_by_profile),
    "no longer allowed by the profile": Way(NO_RULE, with_profile, lambda own, name: own.put_profile(f"of-{name}")),
    "removed with the parent": Way(BAD_TOKEN, with_parent, lambda owner, name: owner.remove(f"parent-{name}")),
    "denied to the parent": Way("deny w:note", with_parent, lambda own, name: own.deny(f"parent-{name}", "w:note")),
    "removed at the command line": Way(BAD_TOKEN, plain, cli("agent", "remove", "{name}")),
    "denied at the command line": Way("agent {name}: deny w:*", plain, cli("deny", "{name}", "w:*")),
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


@dataclass(kw_only=True)
class Tried:
    nonce: str
    sent: float
    ran: bool
    error: str


class Hammer:
    """Calls without a pause until `stop` is set."""

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
            error = "" if ran else refusal(answer)
            self.tried.append(Tried(nonce=nonce, sent=sent, ran=ran, error=error))

    def after(self, moment: float) -> list[Tried]:
        return [each for each in tuple(self.tried) if each.sent > moment]


@contextlib.contextmanager
def hammering(hammers: list[Hammer]) -> Iterator[None]:
    """They send calls while the block runs; a failure is raised at its end."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(hammers)) as pool:
        running = [pool.submit(hammer.run, stop) for hammer in hammers]
        try:
            wait_for(
                lambda: any(each.done() for each in running) or all(len(h.tried) >= TURNS for h in hammers),
                "every caller to succeed",
            )
            yield
        finally:
            stop.set()
    for each in running:
        each.result()


@pytest.mark.parametrize("way", WAYS)
def test_no_call_passes_after_the_revocation_was_acknowledged(
    stage: Stage, way: str, sized: Callable[[int, int], int]
) -> None:
    for _ in range(sized(3, 25)):
        _one_round(stage, WAYS[way])


def _one_round(stage: Stage, way: Way) -> None:
    name = stage.name()
    token = way.prepare(stage.owner, name)
    with contextlib.ExitStack() as stack:
        hammers = []
        for number in range(CALLERS):
            member = stack.enter_context(AgentClient(stage.daemon, name, token, ERAS[number % 2]))
            hammers.append(Hammer(member, f"{name}.{number}"))
        with hammering(hammers):
            way.revoke(stage.owner, name)
            acknowledged = time.monotonic()
            stage.mark(f"{name} mark")
            wait_for(lambda: all(len(h.after(acknowledged)) >= TURNS for h in hammers), "every caller to try again")
    tried = [each for hammer in hammers for each in hammer.tried]
    late = [each for hammer in hammers for each in hammer.after(acknowledged)]
    assert [each for each in late if each.ran] == []
    assert [each for each in late if way.error.format(name=name) not in each.error] == []
    before, after = stage.seen_before_and_after(f"{name} mark")
    assert [nonce for nonce in after if nonce.startswith(f"{name}.")] == []
    assert {each.nonce for each in late}.isdisjoint(before)
    assert all(before.count(each.nonce) == 1 for each in tried if each.ran)
    assert sum(each.ran for each in tried) >= CALLERS * TURNS


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", QUICK)
def test_a_revocation_stops_begun_calls_and_notifies_the_client(stage: Stage, way: str, era: str) -> None:
    name, error = stage.name(), WAYS[way].error
    token = WAYS[way].prepare(stage.owner, name)
    with contextlib.ExitStack() as stack:
        late, running, idle = (stack.enter_context(AgentClient(stage.daemon, name, token, era)) for _ in range(3))
        stream = stack.enter_context(idle.listening())
        assert "w_note" in idle.tools()
        # The token is valid when the head of this request is read, but not when its body arrives.
        whole = late.bytes_of("tools/call", {"name": "w_note", "arguments": {"nonce": f"{name} late"}})
        late.connection.send(whole[:-10])
        running.send_call("w_note", nonce=name, hold=True)
        wait_for(lambda: name in stage.notes.nonces(), "the server to see the call")
        WAYS[way].revoke(stage.owner, name)
        late.connection.send(whole[-10:])
        assert error.format(name=name) in refusal(late.answer())
        assert "may have run" in refusal(running.answer())
        wait_for(lambda: name in stage.notes.cancelled(), "the server to receive the cancellation")
        listing = idle.ask("tools/list")
        if error == BAD_TOKEN:
            assert listing.status == 401
            with pytest.raises(ConnectionError):
                while stream.event():
                    pass
        else:
            assert "w_note" not in {tool["name"] for tool in listing.result["tools"]}
            assert stream.event()["method"] == "notifications/tools/list_changed"
    assert Endpoint(stage.daemon).call("w_release").status == 200
    stage.mark(f"{name} end")
    assert f"{name} late" not in stage.notes.nonces()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", [name for name in QUICK if WAYS[name].error != NO_RULE])
def test_a_revocation_stops_a_call_that_waits_for_approval(stage: Stage, way: str, era: str) -> None:
    name = stage.name()
    with AgentClient(stage.daemon, name, WAYS[way].prepare(stage.owner, name), era) as member:
        stage.owner.allow(name, "w:note", ask=True)
        member.send_call("w_note", nonce=name)

        def waiting() -> list[dict[str, Any]]:
            return [row for row in stage.owner.say("approval:list")["approvals"] if row["agent"] == name]

        wait_for(waiting, "the call to wait for approval")
        WAYS[way].revoke(stage.owner, name)
        assert refusal(member.answer())
        assert not waiting()
    stage.mark(f"{name} mark")
    assert name not in stage.notes.nonces()


def test_a_restored_permission_applies_to_the_next_request(stage: Stage) -> None:
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


def test_a_rotated_token_keeps_the_sessions_and_the_old_one_is_refused(stage: Stage) -> None:
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
def test_a_new_agent_with_an_old_name_inherits_nothing(stage: Stage, conversation: str | None) -> None:
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
