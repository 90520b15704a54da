"""The daemon when its database is full, locked, gone or damaged.

What may change something is refused with a text that says what to do, what only reads goes on, `status` says so, and
it recovers by itself: nobody has to start anything anew but what broke.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that befalls a database, and passes."""

    env: dict[str, str]
    begins: Callable[[], object]
    passes: Callable[[], object]
    told: str
    """What is wrong."""
    remedy: str


@contextlib.contextmanager
def full_disk(home: Home) -> Iterator[Fault]:
    state = home.toolcrib / "state"
    with small_disk(state, kilobytes=8192) as disk:
        yield Fault(
            env={},
            begins=disk.fill,
            passes=(state / "filler").unlink,
            told="disk is full",
            remedy="Free some disk space",
        )


@contextlib.contextmanager
def locked_file(home: Home) -> Iterator[Fault]:
    holders: list[sqlite3.RawConnection] = []

    def begins() -> None:
        holders.append(sqlite3.connect(home.toolcrib / "state" / "mcp_sessions.db", isolation_level=None))
        holders[-1].execute("BEGIN IMMEDIATE")

    yield Fault(
        env={},
        begins=begins,
        passes=lambda: holders.pop().close(),
        told="locked by another process",
        remedy="End the program that holds it",
    )
    for holder in holders:
        holder.close()


@contextlib.contextmanager
def own_postgres() -> Iterator[databases.Postgres]:
    try:
        with databases.running() as server:
            yield server
    except fleet.NotRun as reason:
        not_run("PostgreSQL", str(reason))


@contextlib.contextmanager
def locked_tables(home: Home) -> Iterator[Fault]:
    holders: list[psycopg.RawConnection] = []
    with own_postgres() as server:

        def begins() -> None:
            holders.append(psycopg.connect(server.url))
            holders[-1].execute("LOCK TABLE audit, agents, sessions IN EXCLUSIVE MODE")

        yield Fault(
            env={"TOOLCRIB_STORE": server.url},
            begins=begins,
            passes=lambda: holders.pop().close(),
            told="locked by another process",
            remedy="End the program that holds it",
        )
        for holder in holders:
            holder.close()


@contextlib.contextmanager
def postgres_away(home: Home) -> Iterator[Fault]:
    with own_postgres() as server:
        yield Fault(
            env={"TOOLCRIB_STORE": server.url},
            begins=server.crash,
            passes=server.start,
            told="cannot be reached",
            remedy="Start PostgreSQL",
        )


FAULTS = [full_disk, locked_file, locked_tables, postgres_away]


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def fault(request: pytest.FixtureRequest, toolcrib_home: Home) -> Iterator[Fault]:
    with request.param(toolcrib_home) as fault:
        yield fault


@pytest.fixture
def notes(toolcrib_home: Home) -> Notes:
    return Notes(toolcrib_home.path / "notes")


def changes(client: AgentClient, nonce: str) -> str:
    """Why the changing call was refused; empty: it ran."""
    answer = client.call("w_note", nonce=nonce)
    return "" if nonce_of(answer) == nonce else refusal(answer)


def reads(client: AgentClient) -> None:
    answer = client.call("crib_system_health")
    assert refusal(answer) == ""
    assert "w_note" in client.tools()


def recovered(daemon: Daemon, client: AgentClient, nonce: str) -> None:
    wait_for(lambda: daemon.status()["audit"]["writable"], "the audit log to be written again")
    assert changes(client, nonce) == ""


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.usual(fault=("full_disk", "postgres_away"))
def test_what_changes_is_refused_what_reads_goes_on_and_it_recovers(
    fault: Fault, era: str, daemon: StartDaemon, cli: Cli, notes: Notes
) -> None:
    started = daemon({"servers": {"w": notes.server("note")}}, env=fault.env)
    started.wait_until_ready()
    with AgentClient(started, "owner", started.token, era, conversation="c") as owner:
        assert changes(owner, "before") == ""
        fault.begins()
        for number in range(3):
            said = changes(owner, f"refused-{number}")
            assert fault.told in said
            assert fault.remedy in said
            assert databases.PASSWORD not in said
            reads(owner)
        shown = cli("status").ok()
        assert fault.remedy in shown.out + shown.err
        assert started.status()["audit"]["writable"] is False
        fault.passes()
        recovered(started, owner, "after")
    assert notes.nonces() == ["before", "after"]
    assert started.stop() == 0
    assert "Traceback" not in started.log_tail()


@pytest.mark.usual(fault=("full_disk", "locked_tables"))
def test_no_agent_or_rule_comes_or_goes_while_it_cannot_be_kept(
    fault: Fault, daemon: StartDaemon, cli: Cli, notes: Notes
) -> None:
    started = daemon({"servers": {"w": notes.server("note")}}, env=fault.env)
    started.wait_until_ready()
    token = cli("agent", "add", "reviewer", "--profile", "developer", "--json").ok().json["token"]
    fault.begins()
    added = cli("agent", "add", "late", "--profile", "developer", limit=60)
    # On a full disk already the file for its token fails.
    assert (added.exit_code, any(said in added.err for said in (fault.told, "No space left"))) == (9, True), added
    allowed = cli("allow", "reviewer", "w:*", limit=60)
    assert allowed.exit_code == 9, allowed
    assert fault.told in allowed.err
    assert fault.remedy in allowed.err
    # What narrows counts at once, whether it can be kept or not.
    narrowed = cli("deny", "reviewer", "w:note", limit=60)
    assert (narrowed.exit_code, fault.remedy in narrowed.err) == (9, True)
    with AgentClient(started, "reviewer", token, "modern") as reviewer:
        assert "may not use" in changes(reviewer, "denied")
    fault.passes()
    wait_for(lambda: cli("agent", "add", "late", "--profile", "developer").exit_code == 0, "an agent to be added")
    assert {agent["name"] for agent in cli("agent", "list", "--json").ok().json["agents"]} == {"reviewer", "late"}
    assert notes.nonces() == []
    assert cli("audit", "verify").exit_code == 0


@pytest.mark.usual(fault=("locked_file", "postgres_away"))
def test_the_daemon_ends_in_time_while_nothing_can_be_written(fault: Fault, daemon: StartDaemon, notes: Notes) -> None:
    started = daemon({"servers": {"w": notes.server("note")}}, env=fault.env)
    started.wait_until_ready()
    with AgentClient(started, "owner", started.token, "modern") as owner:
        assert changes(owner, "before") == ""
        fault.begins()
        assert fault.told in changes(owner, "refused")
    assert started.stop() == 0
    assert "Traceback" not in started.log_tail()
    fault.passes()
    again = daemon(env=fault.env)
    again.wait_until_ready()
    with AgentClient(again, "owner", again.token, "modern") as owner:
        assert changes(owner, "after") == ""
    assert notes.nonces() == ["before", "after"]


# --- damaged ---------------------------------------------------------------------------------------------------------


def damage(file: Path) -> None:
    """Past the header, so that it still looks like a database from afar."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xa5" * (size - 100))


@pytest.fixture
def damaged(toolcrib_home: Home) -> Path:
    file = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    with Database.open(file) as database:
        database.write(servers.remember_tools, "id", None, [b"x" * 100_000])
    damage(file)
    return file


@pytest.mark.parametrize("words", [["up", "--port", "0"], ["up", "--port", "0", "--detach"], ["servers"]])
def test_a_damaged_file_at_the_start_is_exit_code_nine_with_what_to_do_and_stays_as_it_is(
    damaged: Path, cli: Cli, words: list[str]
) -> None:
    before = damaged.read_bytes()
    done = cli(*words)
    assert done.exit_code == 9, done
    assert "is damaged" in done.err
    assert f"mv {damaged} {damaged}.damaged" in done.err
    assert "Traceback" not in done.err
    assert damaged.read_bytes() == before
    damaged.rename(f"{damaged}.damaged")
    cli("servers").ok()


def test_a_file_that_is_damaged_while_the_daemon_runs_ends_changes_and_not_the_daemon(
    daemon: StartDaemon, toolcrib_home: Home, cli: Cli, notes: Notes
) -> None:
    config: dict[str, Any] = {"servers": {"w": notes.server("note")}}
    file = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    started = daemon(config)
    started.wait_until_ready()
    with AgentClient(started, "owner", started.token, "modern") as owner:
        assert changes(owner, "before") == ""
        started.stop()
        # Now all of it is in the file itself, and no page of it in the next daemon's memory.
        started = daemon(config)
        started.wait_until_ready()
    damage(file)
    with AgentClient(started, "owner", started.token, "modern") as owner:
        said = wait_for(lambda: changes(owner, "refused"), "a call to be refused")
        assert "is damaged" in said
        assert "move the file away" in said
        reads(owner)
    shown = cli("status").ok()
    assert "is damaged" in shown.out + shown.err
    assert started.stop() == 0
    assert "Traceback" not in started.log_tail()
    for name in ("", "-wal", "-shm"):
        Path(f"{file}{name}").unlink(missing_ok=True)
    again = daemon(config)
    again.wait_until_ready()
    with AgentClient(again, "owner", again.token, "modern") as owner:
        assert changes(owner, "after") == ""
