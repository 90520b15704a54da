"""`kill -9` at random moments under load: acknowledged changes survive, and no call runs twice.

The seed is printed with every failure. The answers to the owner's commands and the results of calls are compared with
the next daemon's data, and with the calls that the server recorded.
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
"""What a client gets from a killed daemon: a closed connection, or part of an answer."""


@dataclass
class Confirmed:
    """Everything that was acknowledged, over all rounds."""

    agents: dict[str, str] = field(default_factory=dict)
    """Name and token."""
    ended: dict[str, str] = field(default_factory=dict)
    """Names and tokens of agents whose removal was acknowledged, and tokens that were replaced."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    allowed: set[tuple[str, str]] = field(default_factory=set)
    profiles: dict[str, str] = field(default_factory=dict)
    """Each with the tools that its last acknowledged rules allow."""
    conversations: set[tuple[str, str]] = field(default_factory=set)
    legacy: dict[str, str] = field(default_factory=dict)
    """Session ids, each with the token of its agent."""
    sent: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    """The nonces of calls whose result arrived."""
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Entries of the audit log about calls, by number."""
    number: Iterator[int] = field(default_factory=itertools.count)

    def has_some_of_each(self) -> bool:
        return all((self.ran, self.agents, self.ended, self.allowed, self.denied, self.profiles, self.legacy))


class Load:
    """Callers, an owner and new conversations, until the daemon is killed."""

    def __init__(self, daemon: Daemon, confirmed: Confirmed, crew: dict[str, str]) -> None:
        self._daemon = daemon
        self._confirmed = confirmed
        self._crew = crew
        self._killed = threading.Event()

    def run_until_killed(self, after: float, *, once: Callable[[], bool] = lambda: True) -> None:
        """Kills the daemon `after` so many seconds, counted from the moment that `once` is true."""
        works = [lambda era=era: self._call(era) for era in itertools.islice(itertools.cycle(ERAS), CALLERS)]
        with ThreadPoolExecutor(len(works) + 2) as pool:
            running = [pool.submit(self._guard, work) for work in (*works, self._rule, self._come)]
            try:
                # A worker that ends before the kill has failed, so there is nothing left to wait for.
                wait_for(lambda: once() or any(each.done() for each in running), "the load to begin")
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
                nonce = f"n{next(self._confirmed.number)}"
                self._confirmed.sent.append(nonce)
                answer = client.call("w_note", nonce=nonce)
                assert nonce_of(answer) == nonce, refusal(answer)
                self._confirmed.ran.append(nonce)

    def _rule(self) -> None:
        """The owner adds, narrows, widens, rotates and removes."""
        owner, confirmed = Owner(self._daemon), self._confirmed
        while not self._killed.is_set():
            number = next(confirmed.number)
            name = f"g{number}"
            confirmed.agents[name] = owner.add(name)
            tools = f"w:t{number}"
            owner.allow(name, tools)
            confirmed.allowed.add((name, tools))
            owner.deny(name, "w:note")
            confirmed.denied.add((name, "w:note"))
            profile = f"p{number % 3}"
            confirmed.profiles.pop(profile, None)
            owner.put_profile(profile, {"allow": tools})
            confirmed.profiles[profile] = tools
            if number % 3 == 0:
                self._end_one(owner, name)

    def _end_one(self, owner: Owner, name: str) -> None:
        """During a change, the agent is in neither list: only the acknowledgement shows that it was done."""
        confirmed = self._confirmed
        token = confirmed.agents.pop(name)
        if len(confirmed.ended) % 2:
            for kept in (confirmed.allowed, confirmed.denied):
                kept.difference_update({pair for pair in kept if pair[0] == name})
            owner.remove(name)
            confirmed.ended[name] = token
        else:
            new = owner.rotate(name)
            confirmed.ended[f"{name} before"] = token
            confirmed.agents[name] = new

    def _come(self) -> None:
        """Begins conversations of either era, with a new agent per round, since an agent's sessions are limited."""
        name = f"guest{next(self._confirmed.number)}"
        token = Owner(self._daemon).add(name, "w:*")
        self._confirmed.agents[name] = token
        while not self._killed.is_set():
            label = f"c{next(self._confirmed.number)}"
            with AgentClient(self._daemon, name, token, "legacy", conversation=f"{label} legacy") as client:
                self._confirmed.conversations.add((name, f"{label} legacy"))
                self._confirmed.legacy[client.session] = token
            with AgentClient(self._daemon, name, token, "modern", conversation=label) as client:
                assert client.ask("tools/list").status == 200
                self._confirmed.conversations.add((name, label))


def check(daemon: Daemon, confirmed: Confirmed, crew: dict[str, str], notes: Notes, since: float) -> None:
    owner = Owner(daemon)
    _check_agents(daemon, owner, confirmed)
    _check_sessions(daemon, owner, confirmed, crew)
    # The chain protects earlier entries.
    fresh = owner.audit(tool="w:note", since=datetime.fromtimestamp(since, UTC).isoformat())
    confirmed.rows |= {row["seq"]: row for row in fresh}
    _check_audit_log(list(confirmed.rows.values()), confirmed, notes)


def _check_agents(daemon: Daemon, owner: Owner, confirmed: Confirmed) -> None:
    listed = sorted(owner.say("agent:list")["agents"], key=lambda row: row["created_at"])
    known = {row["name"] for row in listed}
    assert confirmed.agents.keys() <= known
    assert not [name for name in confirmed.ended if name in known]
    # A token shows its whole row. Only the last ones of each round: the earlier ones were checked before.
    for token in list(confirmed.agents.values())[-12:]:
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 200
    # Also an agent or a token that was being created: either it does not exist, or its file holds the valid token.
    for row in listed[-12:]:
        token = Path(row["token_file"]).read_text().strip()
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 200, row
    folders = {path.name for path in (daemon.home.toolcrib / "state" / "agents").iterdir()}
    assert folders == known
    for token in list(confirmed.ended.values())[-12:]:
        assert AgentEndpoint(daemon, token).modern("tools/list").status == 401
    for pairs, effect in ((confirmed.allowed, "allow"), (confirmed.denied, "deny")):
        for name, tools in sorted(pairs, key=lambda pair: int(pair[0][1:]))[-12:]:
            rules = owner.say("agent:show", name=name)["rules"]
            assert any(rule.get(effect) == tools for rule in rules), (name, effect, tools, rules)
    for profile, tools in confirmed.profiles.items():
        assert owner.say("profile:show", name=profile)["rules"] == [{"allow": tools}]


def _check_sessions(daemon: Daemon, owner: Owner, confirmed: Confirmed, crew: dict[str, str]) -> None:
    known = {(row["agent"], row["conversation"]) for row in owner.sessions()}
    assert confirmed.conversations <= known
    stranger = AgentEndpoint(daemon, crew["modern"])
    for session, token in list(confirmed.legacy.items())[-12:]:
        assert AgentEndpoint(daemon, token).legacy(session, "ping").result == {}
        assert stranger.legacy(session, "ping").status == 404


def _check_audit_log(rows: list[dict[str, Any]], confirmed: Confirmed, notes: Notes) -> None:
    seen = Counter(notes.nonces())
    assert [nonce for nonce, times in seen.items() if times != 1] == [], "these ran twice"
    assert not set(confirmed.ran) - seen.keys(), "these have a result and never ran"
    assert seen.keys() <= set(confirmed.sent)
    intents = [row for row in rows if row["kind"] == "intent"]
    call = {row["arguments"]["nonce"]: row["call"] for row in intents}
    assert len(call) == len(intents), "a call was intended twice"
    assert not seen.keys() - call.keys(), "these ran and are not in the audit log"
    outcomes = [row for row in rows if row["kind"] == "outcome"]
    became = {row["call"]: row["outcome"] for row in outcomes}
    assert len(became) == len(outcomes), "a call ended twice"
    answered = {nonce: became.get(call[nonce]) for nonce in confirmed.ran}
    assert set(answered.values()) <= {"ok"}, "these were answered, and their outcome is not in the audit log"


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(1500)
@pytest.mark.usual(engine="sqlite")
def test_acknowledged_changes_survive_a_kill_and_no_call_runs_twice(
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
    confirmed = Confirmed()
    running = daemon(config, env=store_env)
    crew = {era: Owner(running).add(f"crew-{era}", "w:*") for era in ERAS}
    for number in range(sized(5, 50)):
        running.wait_until_ready("w")
        since = time.time()
        # Even on a busy machine, the first kill comes when something of each kind was acknowledged.
        once = {"once": confirmed.has_some_of_each} if number == 0 else {}
        Load(running, confirmed, crew).run_until_killed(moments.uniform(0.02, LONGEST), **once)
        running = daemon(env=store_env)
        check(running, confirmed, crew, notes, since)
        verified = cli("audit", "verify", "--json", env=store_env)
        assert verified.exit_code == 0, verified
