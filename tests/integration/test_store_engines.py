"""The daemon on a database of one's choice: said by a flag, a variable or a file, and never with its password shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.agent_clients import AgentClient, nonce_of, refusal
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.postgres import PASSWORD, Postgres
from parts.recording_server import Notes
from toolcrib.store import audit, servers
from toolcrib.store.database import Database

pytestmark = [pytest.mark.slow, pytest.mark.req("ENG-10")]


@pytest.fixture
def notes(toolcrib_home: Home) -> Notes:
    return Notes(toolcrib_home.path / "notes")


def call(daemon: Daemon, nonce: str) -> None:
    with AgentClient(daemon, "owner", daemon.token, "modern") as owner:
        answer = owner.call("w_note", nonce=nonce)
        assert nonce_of(answer) == nonce, refusal(answer)


def nothing_tells_the_password(home: Home) -> None:
    """In no argument of a process that names this home, and in no file that is not the configuration."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"={home.path}".encode() in environ:
            assert PASSWORD.encode() not in words
    for file in home.path.rglob("*"):
        if file.is_file() and file.name not in ("config.json", "pgpass"):
            assert PASSWORD.encode() not in file.read_bytes(), file


def test_what_the_daemon_keeps_is_in_the_database_that_it_was_given(
    engine: str, store_url: str, store_env: dict[str, str], daemon: StartDaemon, cli: Cli, notes: Notes
) -> None:
    started = daemon({"servers": {"w": notes.server("note")}}, env=store_env)
    status = started.wait_until_ready()
    assert status["store"]["engine"] == engine
    assert status["store"]["place"].rpartition("@")[2] == store_url.rpartition("@")[2]
    assert status["store"]["place"] in cli("status").ok().out
    call(started, "first")
    nothing_tells_the_password(started.home)
    assert PASSWORD not in str(status) + cli("config", "show", env=store_env).ok().out
    assert started.stop() == 0
    with Database.open(store_url) as database:
        assert database.read(audit.head) is not None
        identities = database.read(
            lambda connection: list(connection.exec_driver_sql("select identity from known_tools"))
        )
        assert len(identities) == 1
        assert database.read(servers.load_tools, identities[0][0], str(started.home.project))
    assert not (started.home.toolcrib / "state" / "mcp_sessions.db").exists()
    again = daemon(env=store_env)
    again.wait_until_ready()
    call(again, "second")
    assert notes.nonces() == ["first", "second"]
    assert cli("audit", "verify", env=store_env).exit_code == 0


@pytest.fixture
def downed(cli: Cli) -> Iterator[None]:
    """A detached daemon is nobody's child: it ends here, whatever the test did."""
    yield
    assert cli("down").exit_code == 0


@pytest.fixture
def flag(engine: str, store_url: str, toolcrib_home: Home) -> tuple[str, dict[str, str]]:
    """The words for --store, and what else is needed to come in: the password from a file."""
    if engine == "sqlite":
        return store_url, {}
    pgpass = toolcrib_home.path / "pgpass"
    pgpass.write_text(f"*:*:*:*:{PASSWORD}\n")
    pgpass.chmod(0o600)
    return store_url.replace(f":{PASSWORD}", ""), {"PGPASSFILE": str(pgpass)}


@pytest.mark.usefixtures("downed")
def test_a_detached_daemon_takes_the_database_of_the_flag(
    engine: str, flag: tuple[str, dict[str, str]], toolcrib_home: Home, cli: Cli
) -> None:
    store, env = flag
    cli("up", "--detach", "--port", "0", "--store", store, env=env, limit=60).ok()
    assert cli("status", "--json").ok().json["store"] == {"engine": engine, "place": store}
    nothing_tells_the_password(toolcrib_home)


@pytest.mark.usefixtures("downed")
@pytest.mark.usual(engine="postgresql")
def test_what_the_flag_said_is_not_forgotten_when_the_daemon_is_gone(
    flag: tuple[str, dict[str, str]], toolcrib_home: Home, cli: Cli
) -> None:
    store, env = flag
    cli("up", "--detach", "--port", "0", "--store", store, env=env, limit=60).ok()
    cli("agent", "add", "reviewer").ok()
    cli("down").ok()
    nothing_tells_the_password(toolcrib_home)
    for words in (["agent", "list"], ["audit", "verify"], ["up", "--detach", "--port", "0"], ["stdio"]):
        refused = cli(*words, env=env)
        assert refused.exit_code != 0, words
        assert store in refused.err
        assert "TOOLCRIB_STORE" in refused.err
    usual = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    assert not usual.exists()
    assert "reviewer" in cli("agent", "list", env={**env, "TOOLCRIB_STORE": store}).ok().out
    cli("up", "--detach", "--port", "0", "--store", str(usual), env=env, limit=60).ok()
    cli("down").ok()
    assert "No agents yet" in cli("agent", "list", env=env).ok().out


def test_a_password_in_the_flag_is_refused_before_anything_starts(toolcrib_home: Home, cli: Cli) -> None:
    done = cli("up", "--port", "0", "--store", f"postgresql://u:{PASSWORD}@127.0.0.1:1/d")
    assert done.exit_code == 2
    assert PASSWORD not in done.out + done.err
    assert "PGPASSFILE" in done.err
    assert not (toolcrib_home.toolcrib / "state").exists()


def test_a_command_without_a_daemon_uses_the_database_of_the_configuration(
    store_url: str, toolcrib_home: Home, cli: Cli, notes: Notes
) -> None:
    toolcrib_home.write_config({"store": "${WHERE}", "servers": {"w": notes.server("note")}})
    env = {"WHERE": store_url}
    cli("call", "w:note", "nonce=alone", env=env).ok()
    assert notes.nonces() == ["alone"]
    assert not (toolcrib_home.toolcrib / "state" / "mcp_sessions.db").exists()
    with Database.open(store_url) as database:
        assert database.read(audit.head) is not None
    failed = cli("call", "w:note", "nonce=nowhere")
    assert failed.exit_code == 3
    assert "WHERE" in failed.err
    assert notes.nonces() == ["alone"]


@pytest.mark.parametrize("words", [["up", "--port", "0"], ["up", "--port", "0", "--detach"], ["servers"]])
def test_a_postgresql_that_is_away_or_refuses_is_exit_code_nine_with_what_to_do(
    postgres: Postgres, toolcrib_home: Home, cli: Cli, words: list[str]
) -> None:
    for store, said in (
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1/d", "Start PostgreSQL"),
        (postgres.url_of("nowhere"), "does not exist"),
    ):
        done = cli(*words, env={"TOOLCRIB_STORE": store})
        assert done.exit_code == 9, done
        assert said in done.err
        assert PASSWORD not in done.out + done.err
        assert "Traceback" not in done.err
    nothing_tells_the_password(toolcrib_home)
