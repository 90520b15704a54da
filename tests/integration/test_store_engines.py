"""The daemon with a database from a flag, a variable or a file, whose password is never shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parts import leftovers
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


def password_is_hidden(home: Home) -> None:
    """It is in no argument of a process of this home, and in no file except the configuration."""
    for process in leftovers.living():
        assert not (process.names(home.path) and PASSWORD in process.words)
    for file in home.path.rglob("*"):
        if file.is_file() and file.name not in ("config.json", "pgpass"):
            assert PASSWORD.encode() not in file.read_bytes(), file


def test_the_daemons_data_is_in_the_configured_database(
    engine: str, store_url: str, store_env: dict[str, str], daemon: StartDaemon, cli: Cli, notes: Notes
) -> None:
    started = daemon({"servers": {"w": notes.server("note")}}, env=store_env)
    status = started.wait_until_ready()
    assert status["store"]["engine"] == engine
    assert status["store"]["place"].rpartition("@")[2] == store_url.rpartition("@")[2]
    assert status["store"]["place"] in cli("status").ok().out
    call(started, "first")
    password_is_hidden(started.home)
    assert PASSWORD not in str(status) + cli("config", "show", env=store_env).ok().out
    assert started.stop() == 0
    with Database.open(store_url) as database:
        assert database.read(audit.head) is not None
        query = "select identity from known_tools"
        [(identity,)] = database.read(lambda connection: list(connection.exec_driver_sql(query)))
        assert database.read(servers.load_tools, identity, None)
    assert not (started.home.toolcrib / "state" / "mcp_sessions.db").exists()
    again = daemon(env=store_env)
    again.wait_until_ready()
    call(again, "second")
    assert notes.nonces() == ["first", "second"]
    assert cli("audit", "verify", env=store_env).exit_code == 0


@pytest.fixture
def downed(cli: Cli) -> Iterator[None]:
    """Ends a detached daemon, which is not a child of the test."""
    yield
    assert cli("down").exit_code == 0


@pytest.fixture
def flag(engine: str, store_url: str, toolcrib_home: Home) -> tuple[str, dict[str, str]]:
    """The value for --store, and variables: the password comes from a file."""
    if engine == "sqlite":
        return store_url, {}
    pgpass = toolcrib_home.path / "pgpass"
    pgpass.write_text(f"*:*:*:*:{PASSWORD}\n")
    pgpass.chmod(0o600)
    return store_url.replace(f":{PASSWORD}", ""), {"PGPASSFILE": str(pgpass)}


@pytest.mark.usefixtures("downed")
@pytest.mark.usual(engine="postgresql")
def test_commands_without_the_flags_database_are_refused_after_the_daemon_ends(
    engine: str, flag: tuple[str, dict[str, str]], toolcrib_home: Home, cli: Cli
) -> None:
    store, env = flag
    cli("up", "--detach", "--port", "0", "--store", store, env=env, limit=60).ok()
    assert cli("status", "--json").ok().json["store"] == {"engine": engine, "place": store}
    password_is_hidden(toolcrib_home)
    cli("agent", "add", "reviewer").ok()
    cli("down").ok()
    password_is_hidden(toolcrib_home)
    for words in (["agent", "list"], ["audit", "verify"], ["up", "--detach", "--port", "0"], ["stdio"]):
        refused = cli(*words, env=env)
        assert refused.exit_code != 0, words
        assert store in refused.err
        assert "TOOLCRIB_STORE" in refused.err
    usual = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
    assert not usual.exists()
    assert "reviewer" in cli("agent", "list", env={**env, "TOOLCRIB_STORE": store}).ok().out
    cli("up", "--detach", "--port", "0", "--store", str(usual), env=env, limit=60).ok()
    assert cli("status", "--json").ok().json["store"] == {"engine": "sqlite", "place": str(usual)}
    cli("down").ok()
    assert "No agents yet" in cli("agent", "list", env=env).ok().out


def test_a_password_in_the_flag_is_refused(toolcrib_home: Home, cli: Cli) -> None:
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
def test_an_unreachable_postgresql_is_exit_code_nine_with_a_remedy(
    postgres: Postgres, toolcrib_home: Home, cli: Cli, words: list[str]
) -> None:
    away = f"postgresql://u:{PASSWORD}@127.0.0.1:1/d"
    for store, text in ((away, "Start PostgreSQL"), (postgres.url_of("nowhere"), "does not exist")):
        done = cli(*words, env={"TOOLCRIB_STORE": store})
        assert done.exit_code == 9, done
        assert text in done.err
        assert PASSWORD not in done.out + done.err
        assert "Traceback" not in done.err
    password_is_hidden(toolcrib_home)
