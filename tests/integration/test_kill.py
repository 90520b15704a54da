"""`kill -9` at random moments under load: what was acknowledged is there afterwards, and nothing ran twice.

The seed is printed with every failure. What the owner and the clients were told, the command socket's answers and the
results of calls, is compared with what the next daemon knows, and with what the witness saw.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-3", "KSI-8")

CALLERS = 4
LONGEST = 0.7
"""Seconds of load before a kill, at most."""
BROKEN = (OSError, ValueError, LookupError)
"""How a conversation looks whose other side was killed: cut off, or an answer that is not whole."""


@dataclass
class Told:
    """What was acknowledged to somebody, over all rounds."""

    agents: dict[str, str] = field(default_factory=dict)
    """Name and token."""
    ended: dict[str, str] = field(default_factory=dict)
    """Names and tokens of agents whose removal was acknowledged, and tokens that were replaced."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    allowed: set[tuple[str, str]] = field(default_factory=set)
    profiles: dict[str, str] = field(default_factory=dict)
    """Each with the tools that its last acknowledged content allows."""
    conversations: set[tuple[str, str]] = field(default_factory=set)
    legacy: dict[str, str] = field(default_factory=dict)
    """Session ids, each with the token of its agent."""
    sent: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    """The nonces of calls whose result arrived."""
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the audit log said of calls, by its numbers."""
    number: Iterator[int] = field(default_factory=itertools.count)

    def some_of_all(self) -> bool:
        return all((self.ran, self.agents, self.ended, self.allowed, self.denied, self.profiles, self.legacy))


class Load:
    """Callers, an owner and newcomers, all at work until the daemon is gone."""

    def __init__(self, daemon: Daemon, told: Told, crew: dict[str, str]) -> None:
        self._daemon = daemon
        self._told = told
        self._crew = crew
        self._killed = threading.Event()

    def run_until_killed(self, after: float, *, once: Callable[[], bool] = lambda: True) -> None:
        """`once` this is so, and so many seconds after it."""
        works = [lambda era=era: self._call(era) for era in itertools.islice(itertools.cycle(ERAS), CALLERS)]
        with ThreadPoolExecutor(len(works) + 2) as pool:
            running = [pool.submit(self._guard, work) for work in (*works, self._rule, self._come)]
            try:
                # One that ends while the daemon lives has failed; then there is nothing left to wait for.
                wait_for(lambda: once() or any(each.done() for each in running), "a load that is at work")
                wait(running, timeout=after, return_when=FIRST_COMPLETED)
            finally:
                self._killed.set()
                self._daemon.kill()
            for each in running:
                each.result(timeout=30)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BROKEN:
            if not self._killed.is_set():
                raise

    def _call(self, era: str) -> None:
        with AgentClient(self._daemon, "crew", self._crew[era], era, conversation=f"calls-{era}") as client:
            while not self._killed.is_set():
                nonce = f"n{next(self._told.number)}"
                self._told.sent.append(nonce)
                answer = client.call("w_note", nonce=nonce)
                assert nonce_of(answer) == nonce, refusal(answer)
                self._told.ran.append(nonce)

    def _rule(self) -> None:
        """The owner adds, narrows, widens, rotates and removes."""
        owner, told = Owner(self._daemon), self._told
        while not self._killed.is_set():
            number = next(told.number)
            name = f"g{number}"
            told.agents[name] = owner.add(name)
            tools = f"w:t{number}"
            owner.allow(name, tools)
            told.allowed.add((name, tools))
            owner.deny(name, "w:note")
            told.denied.add((name, "w:note"))
            profile = f"p{number % 3}"
            told.profiles.pop(profile, None)
            owner.put_profile(profile, {"allow": tools})
            told.profiles[profile] = tools
            if number % 3 == 0:
                self._end_one(owner, name)

    def _end_one(self, owner: Owner, name: str) -> None:
        """What is being changed is in neither list: whether it was done is known only from its acknowledgement."""
        told = self._told
        token = told.agents.pop(name)
        if len(told.ended) % 2:
            for kept in (told.allowed, told.denied):
                kept.difference_update({pair for pair in kept if pair[0] == name})
            owner.remove(name)
            told.ended[name] = token
        else:
            new = owner.rotate(name)
            told.ended[f"{name} before"] = token
            told.agents[name] = new

    def _come(self) -> None:
        """New conversations of either era begin; each round's are of an agent of their own, for no agent has all."""
        name = f"guest{next(self._told.number)}"
        token = Owner(self._daemon).add(name, "w:*")
        self._told.agents[name] = token
        while not self._killed.is_set():
            label = f"c{next(self._told.number)}"
            with AgentClient(self._daemon, name, token, "legacy", conversation=f"{label} legacy") as client:
                self._told.conversations.add((name, f"{label} legacy"))
                self._told.legacy[client.session] = token
            with AgentClient(self._daemon, name, token, "modern", conversation=label) as client:
                assert client.ask("tools/list").status == 200
                self._told.conversations.add((name, label))


def check(daemon: Daemon, told: Told, crew: dict[str, str], notes: Notes, since: float) -> None:
    owner = Owner(daemon)
    _check_who(daemon, owner, told)
    _check_sessions(daemon, owner, told, crew)
    # What was in the audit log before is held there by its chain.
    fresh = owner.audit(tool="w:note", since=datetime.fromtimestamp(since, UTC).isoformat())
    told.rows |= {row["seq"]: row for row in fresh}
    _check_audit_log(list(told.rows.values()), told, notes)


def _check_who(daemon: Daemon, owner: Owner, told: Told) -> None:
    listed = sorted(owner.say("agent:list")["agents"], key=lambda row: row["created_at"])
    known = {row["name"] for row in listed}
    assert told.agents.keys() <= known
    assert not [name for name in told.ended if name in known]
    # A token shows its whole row: the last ones of each round, for all were there before.
    for token in list(told.agents.values())[-12:]:
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 200
    # Also an agent or a token that was being made: either there is none, or its file holds the one that counts.
    for row in listed[-12:]:
        token = Path(row["token_file"]).read_text().strip()
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 200, row
    folders = {path.name for path in (daemon.home.toolcrib / "state" / "agents").iterdir()}
    assert folders == known
    for token in list(told.ended.values())[-12:]:
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 401
    for pairs, effect in ((told.allowed, "allow"), (told.denied, "deny")):
        for name, tools in sorted(pairs, key=lambda pair: int(pair[0][1:]))[-12:]:
            rules = owner.say("agent:show", name=name)["rules"]
            assert any(rule.get(effect) == tools for rule in rules), (name, effect, tools, rules)
    for profile, tools in told.profiles.items():
        assert owner.say("profile:show", name=profile)["rules"] == [{"allow": tools}]


def _check_sessions(daemon: Daemon, owner: Owner, told: Told, crew: dict[str, str]) -> None:
    known = {(row["agent"], row["conversation"]) for row in owner.sessions()}
    assert told.conversations <= known
    stranger = AgentEndpoint(daemon, crew["modern"])
    for session, token in list(told.legacy.items())[-12:]:
        assert AgentEndpoint(daemon, token).legacy(session, "ping").result == {}
        assert stranger.legacy(session, "ping").status == 404


def _check_audit_log(rows: list[dict[str, Any]], told: Told, notes: Notes) -> None:
    seen = Counter(notes.nonces())
    assert [nonce for nonce, times in seen.items() if times != 1] == [], "these ran twice"
    assert not set(told.ran) - seen.keys(), "these have a result and never ran"
    assert seen.keys() <= set(told.sent)
    intents = [row for row in rows if row["kind"] == "intent"]
    call = {row["arguments"]["nonce"]: row["call"] for row in intents}
    assert len(call) == len(intents), "a call was intended twice"
    assert not seen.keys() - call.keys(), "these ran and are not in the audit log"
    outcomes = [row for row in rows if row["kind"] == "outcome"]
    became = {row["call"]: row["outcome"] for row in outcomes}
    assert len(became) == len(outcomes), "a call ended twice"
    answered = {nonce: became.get(call[nonce]) for nonce in told.ran}
    assert set(answered.values()) <= {"ok"}, "these were answered, and their outcome is not in the audit log"


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(1500)
@pytest.mark.usual(engine="sqlite")
def test_what_was_acknowledged_outlives_a_kill_and_nothing_runs_twice(
    daemon: StartDaemon,
    cli: Cli,
    toolcrib_home: Home,
    store_env: dict[str, str],
    tmp_path: Path,
    sized: Callable[[int, int], int],
) -> None:
    seed = int(os.environ.get("TOOLCRIB_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    print(f"TOOLCRIB_TEST_SEED={seed}")
    moments = random.Random(seed)  # noqa: S311 - chooses moments, guards nothing
    notes = Notes(tmp_path / "seen")
    config = {"servers": {"w": notes.server("note")}, "audit_values": True}
    told = Told()
    running = daemon(config, env=store_env)
    crew = {era: Owner(running).add(f"crew-{era}", "w:*") for era in ERAS}
    for number in range(sized(5, 50)):
        running.wait_until_ready("w")
        since = time.time()
        # Whatever the machine is busy with, the first kill comes when there is something of everything to lose.
        once = {"once": told.some_of_all} if number == 0 else {}
        Load(running, told, crew).run_until_killed(moments.uniform(0.02, LONGEST), **once)
        running = daemon(env=store_env)
        check(running, told, crew, notes, since)
        verified = cli("audit", "verify", "--json", env=store_env)
        assert verified.exit_code == 0, verified
