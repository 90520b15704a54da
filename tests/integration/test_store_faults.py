"""The daemon when its database is full, locked, unreachable or damaged.

Calls that may change something are refused with a remedy, calls that only read continue, `status` shows the fault, and
the daemon recovers without a restart.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from parts import fleet
from parts import postgres as databases
from parts.agent_clients import ERAS, AgentClient, nonce_of, refusal
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.report import not_run
from parts.small_disk import small_disk
from parts.waiting import wait_for
from toolcrib.store import servers
from toolcrib.store.database import Database

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-9")]


@dataclass(frozen=True)
class Fault:
    """A temporary fault of a database."""

    text: str
    remedy: str
    begins: Callable[[], object]
    passes: Callable[[], object]
    store: str = ""

    @property
    def env(self) -> dict[str, str]:
        return {"TOOLCRIB_STORE": self.store} if self.store else {}


LOCKED = ("locked by another process", "End the program that holds it")


@contextlib.contextmanager
def full_disk(home: Home) -> Iterator[Fault]:
    state = home.toolcrib / "state"
    with small_disk(state, kilobytes=8192) as disk:
        yield Fault("disk is full", "Free some disk space", disk.fill, (state / "filler").unlink)


@contextlib.contextmanager
def locked_file(home: Home) -> Iterator[Fault]:
    with contextlib.ExitStack() as holders:

        def begins() -> None:
            file = home.toolcrib / "state" / "mcp_sessions.db"
            holder = holders.enter_context(contextlib.closing(sqlite3.connect(file, isolation_level=None)))
            holder.execute("BEGIN IMMEDIATE")

        yield Fault(*LOCKED, begins, holders.close)


@contextlib.contextmanager
def own_postgres() -> Iterator[databases.Postgres]:
    try:
        with databases.running() as server:
            yield server
    except fleet.NotRun as reason:
        not_run("PostgreSQL", str(reason))


@contextlib.contextmanager
def locked_tables(home: Home) -> Iterator[Fault]:
    with own_postgres() as server, contextlib.ExitStack() as holders:

        def begins() -> None:
            holder = holders.enter_context(contextlib.closing(psycopg.connect(server.url)))
            holder.execute("LOCK TABLE audit, agents, sessions IN EXCLUSIVE MODE")

        yield Fault(*LOCKED, begins, holders.close, server.url)


@contextlib.contextmanager
def postgres_away(home: Home) -> Iterator[Fault]:
    with own_postgres() as server:
        yield Fault("cannot be reached", "Start PostgreSQL", server.crash, server.start, server.url)


FAULTS = [full_disk, locked_file, locked_tables, postgres_away]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def fault(request: pytest.FixtureRequest, toolcrib_home: Home) -> Iterator[Fault]:
    with request.param(toolcrib_home) as fault:
        yield fault


@pytest.fixture
def notes(toolcrib_home: Home) -> Notes:
    return Notes(toolcrib_home.path / "notes")


Start = Callable[..., Daemon]


@pytest.fixture
def start(daemon: StartDaemon, notes: Notes) -> Start:
    def started(env: dict[str, str] | None = None) -> Daemon:
        running = daemon({"servers": {"w": notes.server("note")}}, env=env)
        running.wait_until_ready()
        return running

    return started


def as_owner(daemon: Daemon, era: str = "modern") -> AgentClient:
    return AgentClient(daemon, "owner", daemon.token, era, conversation="c")


def change(client: AgentClient, nonce: str) -> str:
    """Why a call that changes something was refused; empty if it ran."""
    answer = client.call("w_note", nonce=nonce)
    return "" if nonce_of(answer) == nonce else refusal(answer)


def reads(client: AgentClient) -> None:
    answer = client.call("crib_system_health")
    assert refusal(answer) == ""
    assert "w_note" in client.tools()


def ends_well(daemon: Daemon) -> None:
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log_tail()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.usual(fault=("full_disk", "postgres_away"))
def test_changes_are_refused_reads_continue_and_the_daemon_recovers(
    fault: Fault, era: str, start: Start, cli: Cli, notes: Notes
) -> None:
    started = start(fault.env)
    with as_owner(started, era) as owner:
        assert change(owner, "before") == ""
        fault.begins()
        for number in range(3):
            error = change(owner, f"refused-{number}")
            assert fault.text in error
            assert fault.remedy in error
            assert databases.PASSWORD not in error
            reads(owner)
        shown = cli("status").ok()
        assert fault.remedy in shown.out + shown.err
        assert started.status()["audit"]["writable"] is False
        fault.passes()
        wait_for(lambda: started.status()["audit"]["writable"], "the audit log to be written again")
        assert change(owner, "after") == ""
    assert notes.nonces() == ["before", "after"]
    ends_well(started)


@pytest.mark.usual(fault=("full_disk", "locked_tables"))
def test_agents_and_rules_do_not_change_while_they_cannot_be_stored(
    fault: Fault, start: Start, cli: Cli, notes: Notes
) -> None:
    started = start(fault.env)
    token = cli("agent", "add", "reviewer", "--profile", "developer", "--json").ok().json["token"]
    fault.begins()
    added = cli("agent", "add", "late", "--profile", "developer", limit=60)
    # On a full disk, writing the token's file fails first.
    assert (added.exit_code, any(text in added.err for text in (fault.text, "No space left"))) == (9, True), added
    allowed = cli("allow", "reviewer", "w:*", limit=60)
    assert allowed.exit_code == 9, allowed
    assert fault.text in allowed.err
    assert fault.remedy in allowed.err
    # A denial applies at once, even if it cannot be stored.
    denied = cli("deny", "reviewer", "w:note", limit=60)
    assert (denied.exit_code, fault.remedy in denied.err) == (9, True)
    with AgentClient(started, "reviewer", token, "modern") as reviewer:
        assert "may not use" in change(reviewer, "denied")
    fault.passes()
    wait_for(lambda: cli("agent", "add", "late", "--profile", "developer").exit_code == 0, "an agent to be added")
    assert {agent["name"] for agent in cli("agent", "list", "--json").ok().json["agents"]} == {"reviewer", "late"}
    assert notes.nonces() == []
    assert cli("audit", "verify").exit_code == 0


@pytest.mark.usual(fault=("locked_file", "postgres_away"))
def test_the_daemon_stops_in_time_while_its_database_cannot_be_written(
    fault: Fault, start: Start, notes: Notes
) -> None:
    started = start(fault.env)
    with as_owner(started) as owner:
        assert change(owner, "before") == ""
        fault.begins()
        assert fault.text in change(owner, "refused")
    ends_well(started)
    fault.passes()
    with as_owner(start(fault.env)) as owner:
        assert change(owner, "after") == ""
    assert notes.nonces() == ["before", "after"]


def damage(file: Path) -> None:
    """Leaves the header, so that the file still looks like a database."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xa5" * (size - 100))


def test_a_damaged_file_at_startup_is_exit_code_nine_with_a_remedy_and_is_left_unchanged(
    toolcrib_home: Home, cli: Cli
) -> None:
    file = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    with Database.open(file) as database:
        database.write(servers.remember_tools, "id", None, [b"x" * 100_000])
    damage(file)
    before = file.read_bytes()
    for words in (["up", "--port", "0"], ["up", "--port", "0", "--detach"], ["servers"]):
        done = cli(*words)
        assert done.exit_code == 9, done
        assert "is damaged" in done.err
        assert f"mv {file} {file}.damaged" in done.err
        assert "Traceback" not in done.err
        assert file.read_bytes() == before
    file.rename(f"{file}.damaged")
    cli("servers").ok()


def test_a_file_that_is_damaged_while_the_daemon_runs_stops_changes_but_not_the_daemon(
    start: Start, toolcrib_home: Home, cli: Cli
) -> None:
    file = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    first = start()
    with as_owner(first) as owner:
        assert change(owner, "before") == ""
    first.stop()
    # Now everything is in the file itself, and no page of it in the next daemon's memory.
    started = start()
    damage(file)
    with as_owner(started) as owner:
        error = wait_for(lambda: change(owner, "refused"), "a call to be refused")
        assert "is damaged" in error
        assert "move the file away" in error
        reads(owner)
    shown = cli("status").ok()
    assert "is damaged" in shown.out + shown.err
    ends_well(started)
    for name in ("", "-wal", "-shm"):
        Path(f"{file}{name}").unlink(missing_ok=True)
    with as_owner(start()) as owner:
        assert change(owner, "after") == ""
