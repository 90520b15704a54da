"""One renewal for everybody: a daemon and one-shot programs at the moment of expiry, and `kill -9` around it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parts import leftovers
from parts.agent_clients import all_at_once
from parts.authorization_server import AuthorizationServer
from parts.daemon import Daemon, Home, StartDaemon
from parts.preloaded import Preloaded
from parts.raw_client import Endpoint
from parts.signing_in import sign_in
from parts.sizes import sized
from parts.waiting import wait_for
from toolcrib.config.from_code import server_config
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import Vault
from toolcrib.servers.account import AccountRecord, account_key, load_account, store_account

pytestmark = [pytest.mark.req("BNS-6", "KSI-3"), pytest.mark.slow, pytest.mark.timeout(900)]

CALLERS = 50
PROGRAMS = 5
ONE_SHOT = Path(__file__).parents[1] / "parts" / "one_shot.py"
RENEWAL = "toolcrib.servers.renewal"
ROUNDS = sized(12, 100)
SPAN = 1.0
"""Seconds in which a call that needs a renewal is answered, usually."""


@dataclass(kw_only=True)
class Scene:
    home: Home
    authorization: AuthorizationServer
    start: StartDaemon

    def __post_init__(self) -> None:
        url = self.authorization.url
        self.entry = {"url": url, "connect_timeout": 60}
        self.vault = Vault(Paths.of_user({"TOOLCRIB_HOME": str(self.home.toolcrib)}))
        self.key = account_key(server_config("web", {"url": url}))

    def daemon(self) -> Daemon:
        return self.start({"servers": {"web": self.entry}})

    @property
    def record(self) -> AccountRecord:
        record = load_account(self.vault, self.key)
        assert record is not None
        return record

    def change(self, **fields: Any) -> None:
        store_account(self.vault, self.key, msgspec.structs.replace(self.record, **fields))

    def program(self, when: str = "now") -> subprocess.Popen[str]:
        """A one-shot program that is ready to call."""
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, str(ONE_SHOT), self.authorization.url, when]
        env = self.home.environ()
        program = Preloaded(command, env=env, cwd=self.home.project, text=True, start_new_session=True, **pipes)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", program.communicate()
        return program

    def renewals(self, among: Sequence[int] = ()) -> list[int]:
        """The processes that renew now."""
        found = [one.pid for one in leftovers.living() if RENEWAL in one.words and one.names(self.home.path)]
        return [pid for pid in found if pid in (among or found)]

    def reapers(self) -> list[int]:
        """The processes that clean up after one that has ended."""
        found = [one for one in leftovers.living() if "reaper_child" in one.words and one.names(self.home.path)]
        return [one.pid for one in found if one.parent == 1]

    def wait_for_renewals(self) -> None:
        wait_for(lambda: not self.renewals(), "the renewals to end")


def result_of(program: subprocess.Popen[str]) -> str:
    out, err = program.communicate("\n", timeout=60)
    assert program.returncode == 0, err
    return out.strip()


def result_from(daemon: Daemon) -> str:
    message = json.loads(Endpoint(daemon).call("web:whoami").message)
    return str(message["result"]["content"][0]["text"] if "result" in message else message)


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


@pytest.fixture
def scene(toolcrib_home: Home, daemon: StartDaemon, authorization: AuthorizationServer) -> Scene:
    return Scene(home=toolcrib_home, authorization=authorization, start=daemon)


@pytest.mark.parametrize("why", ["rejected", "expired"])
def test_everybody_shares_one_renewal(scene: Scene, why: str) -> None:
    running = scene.daemon()
    assert "Signed in" in sign_in(scene.home, "web").out
    with ThreadPoolExecutor(PROGRAMS) as pool:
        programs = list(pool.map(scene.program, ["late" if why == "expired" else "now"] * PROGRAMS))
    scene.authorization.expire()
    if why == "expired":
        scene.change(expires_at=1.0)
        running.command("server:restart", name="web")
        assert len(scene.authorization.refreshes) == 1
        scene.authorization.expire()
        scene.change(expires_at=1.0)
    before = len(scene.authorization.refreshes)
    scene.authorization.delays["token"] = 0.5
    calls: list[Callable[[], str]] = [lambda: result_from(running)] * CALLERS
    calls += [lambda program=program: result_of(program) for program in programs]
    assert all_at_once(lambda call: call(), calls) == ["sign-in 1"] * (CALLERS + PROGRAMS)
    assert len(scene.authorization.refreshes) == before + 1
    assert scene.authorization.reused == []
    assert scene.record.access_token == scene.authorization.tokens("access")[-1]


KINDS = ["daemon", "daemon's group", "program", "program's group"]


def test_kill_9_at_any_instant_costs_no_sign_in(scene: Scene) -> None:
    seed = random.randrange(10**9)  # noqa: S311 - instants
    chance = random.Random(seed)  # noqa: S311 - instants
    running = scene.daemon()
    assert "Signed in" in sign_in(scene.home, "web").out
    unanswered = 0
    for number in range(ROUNDS):
        kind, before = KINDS[number % len(KINDS)], len(scene.authorization.refreshes)
        scene.authorization.delays["token"] = chance.choice([0, 0.1, 0.3])
        program = scene.program()
        scene.authorization.expire()
        victim = running.process if kind.startswith("daemon") else program
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(killed, running if kind.startswith("daemon") else program)
            threading.Event().wait(chance.uniform(0, SPAN))
            # A program ends with its answer.
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if "group" in kind else os.kill)(victim.pid, signal.SIGKILL)
            victim.wait(60)
            unanswered += call.result() != "sign-in 1"
        if victim is not program:
            assert result_of(program) == "sign-in 1", f"seed {seed}, round {number}"
            running = scene.daemon()
        assert result_from(running) == "sign-in 1", f"seed {seed}, round {number}"
        assert len(scene.authorization.refreshes) == before + 1, f"seed {seed}, round {number}"
        assert scene.record.pending is None
    assert scene.authorization.reused == []
    assert 0 < unanswered < ROUNDS, f"the kills were all too {'late' if not unanswered else 'early'}"
    scene.wait_for_renewals()


def killed(victim: Daemon | subprocess.Popen[str]) -> str:
    """The result of a call; empty if the victim was killed before it had one."""
    try:
        return result_from(victim) if isinstance(victim, Daemon) else result_of(victim)
    except (OSError, ValueError, AssertionError):
        return ""


def ctrl_c(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGINT)


ENDS: dict[str, Callable[[subprocess.Popen[Any]], None]] = {
    "kill -9": lambda process: process.kill(),
    "kill -9 of the group": lambda process: os.killpg(process.pid, signal.SIGKILL),
    "Ctrl-C": ctrl_c,
}


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("kind", ["daemon", "program"])
def test_a_renewal_goes_on_when_its_process_ends(scene: Scene, kind: str, end: str) -> None:
    running = scene.daemon()
    assert "Signed in" in sign_in(scene.home, "web").out
    program = scene.program()
    first = scene.record
    scene.authorization.expire()
    victim: Daemon | subprocess.Popen[str] = running if kind == "daemon" else program
    process = running.process if kind == "daemon" else program
    with ThreadPoolExecutor(1) as pool, scene.authorization.holding("token"):
        pool.submit(killed, victim)
        wait_for(lambda: scene.authorization.waiting("token"), "the request for a token")
        assert scene.record.pending is not None
        begun = scene.renewals()
        ENDS[end](process)
        process.wait(60)
        wait_for(lambda: not scene.reapers(), "what cleans up after it to end")
        wait_for(lambda: len(scene.renewals(begun)) <= 1, "its starter to end")
        assert scene.renewals(begun)
    scene.wait_for_renewals()
    assert scene.record.access_token != first.access_token
    assert scene.record.pending is None
    if kind == "daemon":
        assert result_of(program) == "sign-in 1"
    else:
        assert result_from(running) == "sign-in 1"
    assert len(scene.authorization.refreshes) == 1
