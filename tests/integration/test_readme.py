"""The README's commands and programs work as written, on a machine without `python`, in a copy of the checkout."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Home
from toolcrib.testing import Call, Say, scripted

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = "/bin/sh"


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found, f"the README has no section {title!r}"
    return found[1]


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in blocks("console", text)[0].splitlines() if line.startswith("$ ")]


@pytest.fixture
def checkout(toolcrib_home: Home) -> Path:
    """The project's files after `make up`, with the environment of the tests."""
    folder = toolcrib_home.path / "checkout"
    folder.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "README.md", folder)
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    return folder


@pytest.fixture
def bare(toolcrib_home: Home) -> Mapping[str, str]:
    """The PATH of a machine that has `python3`, but no `python`."""
    folder = toolcrib_home.path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "uname"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    (folder / "python3").symlink_to(sys.executable)
    assert shutil.which("python", path=str(folder)) is None
    return {"PATH": str(folder)}


def execute(command: list[str], home: Home, folder: Path, env: Mapping[str, str], stdin: str = "") -> str:
    """The output of a command that must succeed."""
    pipes: dict[str, Any] = {"input": stdin, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run(command, check=False, env=home.environ(env), cwd=folder, **pipes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def typed(lines: list[str], home: Home, folder: Path, env: Mapping[str, str]) -> str:
    """The output of these lines in one shell, which ends at the first that fails."""
    return execute([SHELL, "-e"], home, folder, env, "\n".join(lines) + "\n")


def is_now(text: str) -> bool:
    return abs(datetime.fromisoformat(text.strip()) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.req("BNS-1")
def test_the_first_call_works_as_written_and_then_in_every_folder(toolcrib_home, daemon, checkout, bare):
    daemon(env=bare)
    lines = commands(section("First call"))
    assert lines[0] == ". .venv/bin/activate"
    printed = typed(lines, toolcrib_home, checkout, bare).splitlines()
    assert any("It is ready: 1 tool." in line for line in printed)
    assert any(line.startswith("time:now") for line in printed)
    assert is_now(printed[-1])
    elsewhere = [f'. "{checkout}/.venv/bin/activate"', lines[-1]]
    assert is_now(typed(elsewhere, toolcrib_home, toolcrib_home.project, bare))


@pytest.mark.req("BNS-1")
def test_the_server_from_npm_reads_the_projects_files_as_written(toolcrib_home, daemon, checkout, bare, parts):
    lines = commands(section("Daemon"))
    # Replaces only the download: the package is in the tests' cache.
    npx = Path(bare["PATH"]) / "npx"
    npx.write_text(
        f'#!{SHELL}\n[ "$1 $2 $3" = "--prefix=/ -y @modelcontextprotocol/server-filesystem" ] || exit 1\nshift 3\n'
        f'exec {shlex.join(parts("filesystem"))} "$@"\n'
    )
    npx.chmod(0o755)
    daemon(env=bare)
    printed = typed([". .venv/bin/activate", *lines], toolcrib_home, checkout, bare)
    assert "# Toolcrib\n" in printed


def run_program(program: str, *place: Any) -> list[str]:
    return execute([sys.executable, "-W", "error", "-c", program], *place).splitlines()


@pytest.mark.req("BNS-1", "ENG-5", "ENG-6")
def test_the_program_with_the_tools_alone_runs_as_written(toolcrib_home, checkout, bare):
    typed(commands(section("First call")), toolcrib_home, checkout, bare)
    _, program = blocks("python", section("Library"))
    definitions, lisbon, utc = run_program(program, toolcrib_home, checkout, bare)
    (offered,) = ast.literal_eval(definitions)
    assert offered["name"] == "mcp_now"
    assert offered["description"].startswith("[time] ")
    assert is_now(lisbon)
    assert is_now(utc)


@pytest.mark.req("KAI-1", "KAI-2")
def test_the_program_with_an_agent_runs_as_written(toolcrib_home, checkout, bare):
    program, _ = blocks("python", section("Library"))
    with scripted("anthropic", [Call("now", {"zone": "Europe/Lisbon"}), Say("It is late.")]) as model:
        # Replaces only the provider.
        given = f'base_url="{model.url}", api_key="none", max_steps='
        assert program.count("max_steps=") == 1
        lines = run_program(program.replace("max_steps=", given), toolcrib_home, checkout, bare)
    assert {tool.name for tool in model.offered} == {"now", "Read", "Glob", "Grep"}
    assert is_now(model.results[0])
    assert [line.split()[0] for line in lines[:2]] == ["run_started", "mcp_connected"]
    assert lines[-1] == "run_finished It is late."
