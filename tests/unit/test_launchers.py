"""A server that a launcher fetches first: it is waited for, installed once at a time, and ended with patience."""

import asyncio
import contextlib
import fcntl
import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parts.fleet import SERVERS
from parts.live_servers import LIMIT, LiveServers, call, live, odd_config, until
from parts.server_process import stdio_command
from parts.waiting import wait_for
from toolcrib.cli import perform
from toolcrib.cli.server_commands import server_table
from toolcrib.commands import installing as reports
from toolcrib.config.from_code import StdioServer, server_config
from toolcrib.config.launchers import PackageLaunch, launch_of
from toolcrib.config.model import Retry, ServerConfig
from toolcrib.core.kit import Kit
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import installing, server, supervisor, transports
from toolcrib.servers.installing import Installation
from toolcrib.servers.model import Era, ServerState
from toolcrib.servers.stdio import ChildProcess
from unit.test_commands_permission import opened

pytestmark = pytest.mark.req("BNS-9")
__all__ = ["live"]


@pytest.mark.parametrize(
    ("line", "launcher", "package"),
    [
        ("npx -y @scope/server .", "npx", "@scope/server"),
        ("/usr/bin/npx --registry R -y server@1.2", "npx", "server@1.2"),
        ("npx --package=a -p b -- run", "npx", "a b run"),
        ("npx.cmd server", "npx", "server"),
        ("uvx mcp-server-git", "uvx", "mcp-server-git"),
        ("uvx --from git+https://h/r tool", "uvx", "git+https://h/r tool"),
        ("uv --directory /d tool run --python 3.12 a", "uv tool run", "a"),
        ("pipx run --spec a==1 b", "pipx run", "a==1 b"),
        ("bunx a", "bunx", "a"),
        ("bun x a", "bun x", "a"),
        ("npm exec --yes a", "npm exec", "a"),
        ("npm x a", "npm x", "a"),
        ("pnpm dlx a", "pnpm dlx", "a"),
        ("docker run -i --rm -e KEY mcp/fetch --flag", "docker run", "mcp/fetch"),
        ("podman --log-level error container run -it -v a:b image", "podman container run", "image"),
        ("npx", "npx", ""),
        ("uvx --with a --python 3.12 b", "uvx", "a b"),
        ("uv --verbose run --with a server.py", "uv run", "--verbose run --with a server.py"),
        ("uv run --directory /d b", "uv run", "run --directory /d b"),
        ("/usr/bin/env -i -u X A=1 B=c=d npx -y a", "npx", "a"),
        ("env uv tool run a", "uv tool run", "a"),
    ],
)
def test_launchers_are_recognized_by_their_command_line(line, launcher, package):
    command, *args = shlex.split(line)
    assert launch_of(command, args) == PackageLaunch(launcher, package)
    assert server_config("a", {"command": command, "args": args}).connect_timeout == 180
    assert server_config("a", {"command": command, "args": args, "connect_timeout": 7}).connect_timeout == 7
    assert StdioServer("a", command=command, args=args).config().connect_timeout == 180


@pytest.mark.parametrize(
    "line",
    [
        "node npx",
        "uv pip install a",
        "npm run dlx",
        "env",
        "env A=1",
        "env A=1 node npx",
        "env env npx a",
        "docker exec a b",
        "docker",
        "bun server.ts",
        "npxx a",
    ],
)
def test_other_programs_are_no_launchers(line):
    command, *args = shlex.split(line)
    assert launch_of(command, args) is None
    assert StdioServer("a", command=command, args=args).config().connect_timeout == 10


class Npx:
    """The command line of our own launcher, and what it did."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "npx"
        launcher = str(SERVERS / "launcher.py")
        self.program.write_text(f"#!{sys.executable} -IS\nimport runpy\nrunpy.run_path({launcher!r})\n")
        self.program.chmod(0o755)
        self.launches = folder / "launches"
        self.go = folder / "go"
        self.lock = folder / "concurrency.lock"
        self.words = ["-y", f"package-{folder}"]
        self.env = {"LAUNCHES": str(self.launches), "GO": str(self.go)}

    def config(self, **more: Any) -> ServerConfig:
        return odd_config(command=str(self.program), args=tuple(self.words), env=self.env, **more)

    def did(self) -> list[str]:
        return self.launches.read_text().splitlines() if self.launches.exists() else []


@pytest.fixture
def npx(tmp_path):
    return Npx(tmp_path)


async def test_an_installing_server_is_waited_for_and_calls_say_so(live: LiveServers, npx, monkeypatch, caplog):
    caplog.set_level("INFO", logger="toolcrib")
    monkeypatch.setattr(server, "_INSTALLING_CALL", 0.05)
    found = live.make(npx.config())
    found.start_on_demand()
    with pytest.raises(ServerUnavailable, match="still installing"):
        await found.call(call("echo"))
    await until(npx.did)
    assert found.status.installing
    with pytest.raises(ServerUnavailable, match=r"'odd' is still installing \(\d+ s\)\. The call did not run\.$"):
        await found.call(call("echo"))
    npx.go.touch()
    await found.settled(LIMIT)
    assert (found.status.state, found.status.installing) == (ServerState.READY, False)
    assert npx.did() == ["begin", "end"], "one process, which also got the second message of the negotiation"
    began, ended = [record.message for record in caplog.records if record.name == installing.__name__]
    assert began.startswith("odd: installing")
    assert ended.startswith("odd: installed after ")
    assert not Installation(npx.config()).is_due, "the next start of this package is not a cold one"


@pytest.mark.parametrize(("program", "era"), [("odd_stdio", Era.LEGACY), ("sdk_v2", Era.MODERN)])
async def test_both_first_messages_wait_for_a_server_that_is_being_installed(
    live: LiveServers, npx, monkeypatch, program, era
):
    monkeypatch.setattr(transports, "_LAUNCHER_PROBE", 0.01)
    sent, really_send = [], ChildProcess.send

    async def send(child: ChildProcess, message: bytes) -> None:
        sent.append(message)
        await really_send(child, message)

    monkeypatch.setattr(ChildProcess, "send", send)
    npx.env["SERVER"] = json.dumps(stdio_command(program)) if era is Era.MODERN else "null"
    found = live.make(npx.config())
    found.start()
    await until(lambda: len(sent) == 2 and npx.did(), "server/discover and initialize")
    npx.go.touch()
    await found.settled(LIMIT)
    assert (found.status.state, found.era) == (ServerState.READY, era), found.status.last_error
    assert npx.did() == ["begin", "end"]


async def test_a_package_is_installed_by_one_server_at_a_time(live: LiveServers, npx):
    servers = [live.make(npx.config()) for _ in range(2)]
    for one in servers:
        one.start()
    await until(npx.did)
    assert all(one.status.installing for one in servers)
    assert sorted(one.status.waits_for_installation for one in servers) == [False, True]
    npx.go.touch()
    await asyncio.gather(*(one.settled(LIMIT) for one in servers))
    assert [(one.status.state, one.status.waits_for_installation) for one in servers] == [
        (ServerState.READY, False)
    ] * 2
    assert npx.did() == ["begin", "end"] * 2


async def test_another_process_that_installs_the_package_is_waited_for(npx, tmp_path, monkeypatch):
    locks = tmp_path / "locks"
    here = Installation(npx.config(), locks)
    async with here.turn():
        (file,) = locks.iterdir()
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with monkeypatch.context() as hurried:
            hurried.setattr(installing, "_LONGEST_TURN", 0.1)
            with pytest.raises(ServerUnavailable, match=r"starting the same package for 0 s\. End that program"):
                await Installation(npx.config(), locks).turn().__aenter__()
        entering = asyncio.ensure_future(here.turn().__aenter__())
        assert not (await asyncio.wait({entering}, timeout=0.3))[0]
    await entering
    here.answered()


async def test_a_restart_that_installs_does_not_show_the_error_before_it(live: LiveServers, npx):
    launcher = npx.program.read_text()
    npx.program.write_text("#!/bin/sh\necho 'Error: broken' >&2\nexit 1\n")
    found = await live.started(npx.config(retry=Retry(max_attempts=1)))
    assert (found.status.state, "Error: broken" in found.status.last_error) == (ServerState.FAILED, True)
    npx.program.write_text(launcher)
    restarting = asyncio.create_task(found.restart())
    await until(npx.did)
    assert (found.status.installing, found.status.last_error) == (True, "")
    npx.go.touch()
    await restarting
    assert [past.error for past in found.errors] == ["Error: broken (its process exited with code 1)."]


async def test_an_installing_launcher_has_time_to_remove_its_lock(live: LiveServers, npx):
    found = live.make(npx.config())
    found.start()
    await until(npx.did)
    began = found.status.since or 0.0
    restarting = asyncio.create_task(found.restart())
    await until(lambda: npx.did()[1:] == ["asked to end", "begin"])
    assert (found.status.since or 0.0) > began, "its seconds are those of the new installation"
    npx.go.touch()
    await restarting
    assert npx.did()[3:] == ["end"]
    assert not npx.lock.exists()


async def test_commands_without_a_daemon_wait_for_an_installation_and_report_it(live: LiveServers, npx, monkeypatch):
    monkeypatch.setattr(reports, "_TELL_AGAIN", 0.01)
    events = []

    async def emit(event: dict[str, Any]) -> None:
        events.append(event)
        npx.go.touch()

    found = live.make(npx.config())
    found.start()
    await reports.wait_for_installations([found], emit)
    assert found.status.state is ServerState.READY
    assert events[0] == {"progress": "installing… 0 s"}


@pytest.mark.parametrize("first", ["tool:call", "server:list"])
def test_a_command_without_a_daemon_waits_for_the_whole_installation_and_shows_it(
    npx, toolcrib_home, monkeypatch, first
):
    monkeypatch.setattr(server, "_INSTALLING_CALL", 0.05)
    monkeypatch.setattr(reports, "_TELL_AGAIN", 0.01)
    for name, value in toolcrib_home.environ().items():
        monkeypatch.setenv(name, value)
    shown = []

    @contextlib.contextmanager
    def working(_: str):
        def replace(text: str) -> None:
            shown.append(text)
            npx.go.touch()

        yield replace

    monkeypatch.setattr(perform, "working", working)
    toolcrib_home.write_config({"servers": {"odd": {"command": str(npx.program), "args": npx.words, "env": npx.env}}})
    # The second time, its tools are known, so it starts with the call.
    for times, command in enumerate((first, "tool:call"), 1):
        params = {"tool": "odd:echo"} if command == "tool:call" else {}
        with perform.asking(command, params, ()) as ask:
            found = ask(command, params)
        assert found["result"]["content"] if params else found["servers"][0]["tools"] == 2
        assert npx.did() == ["begin", "end"] * times
        assert shown[0] == "installing… 0 s"
        npx.go.unlink()
        installing._fetched.clear()
        shown.clear()


async def test_a_kit_goes_on_without_an_installing_server_and_adds_it_later(npx):
    declared = StdioServer("late", command=npx.program, args=npx.words, env=npx.env)
    async with Kit([declared], connect_limit=0.3) as kit:
        assert kit.connected == ()
        assert kit.missing == {"late": "It is still installing (0.3 s)."}
        npx.go.touch()
        await until(lambda: kit.connected)
        assert kit.missing == {}
        assert (await kit.call("late:echo")).text
    assert npx.did() == ["begin", "end"]


async def test_a_kit_that_closes_ends_what_is_still_installing(npx):
    declared = StdioServer("late", command=npx.program, args=npx.words, env=npx.env)
    async with Kit([declared], connect_limit=0.3) as kit:
        assert kit.missing
        await until(npx.did)
    assert npx.did() == ["begin", "asked to end"]
    assert not npx.lock.exists()


def test_a_server_that_is_being_installed_is_listed_with_its_seconds(capsys):
    server_table([{"name": "files", "state": "connecting", "installing": 14.2, "transport": "stdio"}])
    assert "files  installing… 14 s  " in capsys.readouterr().out
    server_table([{"name": "files", "state": "connecting", "waits_for_installation": True, "transport": "stdio"}])
    shown = capsys.readouterr()
    assert "files  waiting  " in shown.out
    assert "files waits until another server has installed the same package." in shown.err


async def test_the_tools_of_a_server_that_is_being_installed_come_with_its_beginning(npx, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "CONNECT_LIMIT", 0.05)
    entry = {"command": str(npx.program), "args": npx.words, "env": npx.env}
    async with opened(tmp_path / "commands", entry) as commands:
        await until(npx.did)
        began = commands.crib.status()["files"].since
        found = await commands.run("tool:list", server="files")
        assert (found["tools"], found["installing"]) == ([], [{"server": "files", "since": began}])
        npx.go.touch()
        await until(lambda: commands.crib.status()["files"].tools)
        assert (await commands.run("tool:list", server="files"))["installing"] == []


def test_an_unavailable_server_is_listed_with_the_time_of_its_next_attempt(capsys):
    server_table([{"name": "files", "state": "unavailable", "next_attempt": 14.2, "transport": "http"}])
    assert "files  unavailable, retry in 14 s  " in capsys.readouterr().out


def test_adding_a_server_shows_that_it_is_being_installed(daemon, cli, npx):
    running = daemon({})
    env = [word for name, value in npx.env.items() for word in ("--env", f"{name}={value}")]
    added = ("--connect-timeout", "60", *env, "--", str(npx.program), *npx.words)

    def seconds() -> float:
        return max((row.get("installing") or 0 for row in running.status()["servers"]), default=0)

    with ThreadPoolExecutor() as beside:
        adding = beside.submit(cli, "add", "removed", *added)
        wait_for(npx.did, "the launcher to begin")
        running.command("server:remove", name="removed")
        assert "removed was removed while it was connecting" in adding.result().err
        adding = beside.submit(cli, "add", "files", *added)
        wait_for(lambda: seconds() > 1.5, "the installation to take some time")
        npx.go.touch()
        done = adding.result().ok()
    assert npx.did() == ["begin", "asked to end", "begin", "end"]
    assert "installing… " in done.err
    assert "It is ready: 2 tools." in done.out
    assert json.loads((running.home.toolcrib / "config.json").read_text())["servers"]["files"]["connect_timeout"] == 60
