"""The tests' own tools can be trusted: the check for leftovers sees them, and the parts answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parts import fleet, leftovers
from parts.daemon import Home
from parts.postgres import Postgres
from parts.server_process import StartServer, stdio_command
from parts.waiting import wait_for

SLEEP = "import time; time.sleep(600)"
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid)
"""


def pids(processes: list[leftovers.Process]) -> list[int]:
    return [process.pid for process in processes]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_child_that_was_left_is_found_and_ended() -> None:
    before = leftovers.look()
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as child:
        assert child.pid in pids(leftovers.left_behind(before, None))
        assert child.wait(60) < 0


def orphan(environ: dict[str, str]) -> int:
    """The process ID of a process whose parent has ended."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], env=environ, capture_output=True, check=True, timeout=20)
    return int(done.stdout)


@pytest.mark.usefixtures("impatient")
def test_orphans_of_this_run_are_found_and_ended_and_those_of_another_run_are_left_alone(toolcrib_home: Home) -> None:
    before = leftovers.look()
    at_home = orphan(toolcrib_home.environ())
    assert at_home in pids(leftovers.left_behind(before, toolcrib_home.path))
    wait_for(lambda: at_home not in leftovers.look(), "the orphan to be gone")
    marked, foreign = (orphan({"TOOLCRIB_CHILD": "x", leftovers.RUN_NAME: run}) for run in (str(os.getpid()), "1"))
    try:
        found = pids(leftovers.left_behind(before, None))
        assert (marked in found, foreign in found) == (True, False)
    finally:
        os.kill(foreign, signal.SIGKILL)


def test_what_was_there_before_is_nobodys_leftover() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as child:
        before = leftovers.look()
        assert child.pid not in pids(leftovers.left_behind(before, None))
        child.kill()


def test_a_file_outside_the_home_is_seen_and_a_socket_in_it_has_a_path_that_fits(toolcrib_home: Home) -> None:
    stray = toolcrib_home.user / ".config" / "stray"
    stray.parent.mkdir()
    stray.write_text("")
    assert toolcrib_home.stray_files() == [str(stray)]
    stray.unlink()
    assert len(str(toolcrib_home.socket)) < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(fleet.pins()))
def test_each_part_can_be_had(name: str, parts: Callable[[str], list[str]]) -> None:
    for word in parts(name):
        assert Path(word).exists()


@pytest.mark.slow
def test_the_database_answers(postgres: Postgres) -> None:
    assert postgres.sql("select 40 + 2") == "42"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["http", "sse"])
def test_our_own_server_says_its_port(transport: str, start_server: StartServer) -> None:
    server = start_server([*stdio_command("sdk_v2"), "--transport", transport])
    assert server.port > 0
    assert server.process.poll() is None


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_the_odd_server_answers_in_its_era(era: str) -> None:
    opening = {"modern": "server/discover", "legacy": "initialize"}
    requests = [{"jsonrpc": "2.0", "id": 1, "method": opening[era], "params": {"protocolVersion": "2025-11-25"}}]
    requests.append({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        stdio_command("raw_server", "--era", era, "--tools", "3"),
        input=lines,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert "result" in first
    assert [tool["name"] for tool in second["result"]["tools"]][:3] == ["tool_00000", "tool_00001", "tool_00002"]
