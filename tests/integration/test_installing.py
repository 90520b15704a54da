"""Servers that the real `npx` and `uvx` fetch, with empty caches."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Daemon, StartDaemon
from parts.fleet import pins
from parts.report import not_run
from parts.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.req("BNS-9", "BNS-10")]

INSTALLS = 180.0
_OF_LAUNCHERS = ("npm_config_", "UV_", "PIP_", "SSL_", "NODE_EXTRA_")


@pytest.fixture
def caches(tmp_path: Path) -> dict[str, str]:
    """Variables for empty caches, and the user's own settings for reaching the registries."""
    given = {name: value for name, value in os.environ.items() if name.startswith(_OF_LAUNCHERS)}
    own = {"npm_config_cache": "npm", "UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "tools", "NODE_COMPILE_CACHE": "node"}
    npmrc = subprocess.run([npx_part("npm"), "config", "get", "userconfig"], capture_output=True, text=True, check=True)
    return {
        **given,
        **{name: str(tmp_path / folder) for name, folder in own.items()},
        "npm_config_userconfig": npmrc.stdout.strip(),
        "UV_PYTHON": sys.executable,
    }


def npx_part(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        not_run(program, f"{program} is not installed")
    return found


def npx_entry(part: str, env: dict[str, str], *args: str) -> dict[str, Any]:
    ((package, version),) = pins()[part].packages.items()
    return {"command": npx_part("npx"), "args": ["-y", f"{package}@{version}", *args], "env": env}


def servers_of(daemon: Daemon) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in daemon.command("server:list")["servers"]}


def log_of(daemon: Daemon) -> str:
    return (daemon.home.toolcrib / "state" / "toolcrib.log").read_text()


def npx_folders(env: dict[str, str]) -> list[Path]:
    return list(Path(env["npm_config_cache"], "_npx").glob("*"))


def locks(env: dict[str, str]) -> list[Path]:
    return [lock for folder in npx_folders(env) for lock in folder.glob("concurrency.lock")]


def test_servers_with_empty_caches_are_ready_at_their_first_start(
    daemon: StartDaemon, caches: dict[str, str], parts: Callable[[str], list[str]]
) -> None:
    [uvx] = parts("uv")
    ((package, version),) = pins()["time"].packages.items()
    arguments = [f"{package}@{version}", "--local-timezone", "UTC"]
    running = daemon(
        {
            "servers": {
                "one": npx_entry("memory", {**caches, "MEMORY_FILE_PATH": "/dev/null"}),
                "two": npx_entry("memory", {**caches, "MEMORY_FILE_PATH": "/dev/zero"}),
                "time": {"command": uvx, "args": arguments, "env": caches},
            }
        }
    )
    wait_for(lambda: sum(row["waits_for_installation"] for row in servers_of(running).values()) == 1, "one to wait")
    running.wait_until_ready(limit=INSTALLS)
    assert [row["attempts"] for row in servers_of(running).values()] == [0, 0, 0]
    assert not any(row["last_error"] for row in servers_of(running).values())
    assert log_of(running).count(": installed after ") == 2, "one cold start of npx and one of uvx"
    assert not locks(caches)
    # The next start finds an incomplete copy.
    [folder] = npx_folders(caches)
    shutil.rmtree(folder / "node_modules" / "@modelcontextprotocol" / "sdk" / "dist")
    broken = running.command("server:restart", name="one")
    # The path itself is masked here, like every value of `env`.
    assert "Cannot find module" in broken["last_error"]
    remedy = "npx's copy of the package is broken. Delete the folder _npx in `npm config get cache`, then restart"
    assert broken["last_error"].startswith(remedy)


@pytest.mark.soak
def test_three_npx_servers_with_an_empty_cache_are_ready_at_their_first_start(
    daemon: StartDaemon, caches: dict[str, str], tmp_path: Path
) -> None:
    names = ("filesystem", "memory", "everything")
    arguments = {"filesystem": [str(tmp_path)]}
    running = daemon({"servers": {name: npx_entry(name, caches, *arguments.get(name, ())) for name in names}})
    running.wait_until_ready(limit=INSTALLS)
    assert [row["attempts"] for row in servers_of(running).values()] == [0, 0, 0]


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_is_completed_by_the_next_start(
    daemon: StartDaemon, caches: dict[str, str], number: signal.Signals
) -> None:
    config = {"servers": {"memory": npx_entry("memory", caches)}}
    first = daemon(config)
    wait_for(lambda: locks(caches), "npx to begin its installation")
    os.kill(first.pid, number)
    first.process.wait(60)
    if number == signal.SIGTERM:
        assert not locks(caches)
    second = daemon(config)
    # A lock that was left behind counts for a minute.
    second.wait_until_ready(limit=INSTALLS)
    assert servers_of(second)["memory"]["attempts"] == 0
