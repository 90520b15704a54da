"""The servers of the user's own configuration never run files that are in a project.

With the real `python -m` and the real npx, through the daemon.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import AgentClient, Owner, refusal
from parts.daemon import Daemon, Home
from parts.report import not_run
from parts.server_process import stdio_command

pytestmark = [pytest.mark.req("BNS-10"), pytest.mark.slow]


@pytest.fixture
def proof(toolcrib_home: Home) -> Path:
    return toolcrib_home.path / "proof"


@pytest.fixture
def project(toolcrib_home: Home) -> Path:
    folder = toolcrib_home.path / "cloned"
    (folder / ".git" / "HEAD").mkdir(parents=True)
    return folder


def by_module(home: Home) -> dict[str, dict[str, Any]]:
    """A server that is installed as the module `mymcp`, outside of the project and in it."""
    installed = home.path / "installed"
    installed.mkdir()
    words = stdio_command("raw_server", "--plain", "--tools", "1")
    text = f"import sys, runpy\nsys.argv[1:] = {words[4:]!r}\nrunpy.run_path({words[3]!r}, run_name='__main__')\n"
    (installed / "mymcp.py").write_text(text)
    entry = {"command": sys.executable, "args": ["-m", "mymcp"], "env": {"PYTHONPATH": str(installed)}}
    return {"neutral": entry, "inside": {**entry, "cwd": "project"}}


def python_trap(proof: Path) -> str:
    return f"open({str(proof)!r}, 'w')\nraise SystemExit('planted')\n"


def ready_in(running: Daemon, project: Path) -> list[str]:
    """The servers that answer there after a restart."""
    restarted = {name: running.command("server:restart", project, name=name) for name in ("neutral", "inside")}
    return [name for name, found in restarted.items() if found["state"] == "ready"]


def test_a_module_in_the_repository_or_planted_by_an_agent_is_not_run_for_the_users(
    toolcrib_home, daemon, project, proof
):
    planted = [project / name for name in ("mymcp.py", "runpy.py", "sitecustomize.py")]
    for file in planted:
        file.write_text(python_trap(proof))
    running = daemon({"servers": by_module(toolcrib_home)})
    assert ready_in(running, project) == ["neutral", "inside"], running.command("server:list", project)
    for file in planted:
        file.unlink()
    token = Owner(running).add("planter", profile="developer", workdir=str(project))
    with AgentClient(running, "planter", token, "legacy") as agent:
        agent.tools()
        assert not refusal(agent.call("workspace_write_file", path="mymcp.py", content=python_trap(proof)))
        assert ready_in(running, project) == ["neutral", "inside"]
        assert {"neutral_tool_00000", "inside_tool_00000"} <= agent.tools()
    assert (project / "mymcp.py").exists()
    assert not proof.exists()


def plant_package(project: Path, proof: Path) -> None:
    package = project / "node_modules" / "mymcp"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "mymcp", "version": "1.0.0", "bin": {"mymcp": "run.js"}}')
    script = package / "run.js"
    script.write_text(f"#!/usr/bin/env node\nrequire('fs').writeFileSync({str(proof)!r}, '')\n")
    script.chmod(0o755)
    (project / "node_modules" / ".bin").mkdir()
    (project / "node_modules" / ".bin" / "mymcp").symlink_to("../mymcp/run.js")
    (project / "package.json").write_text('{"name": "cloned"}')


def test_a_package_in_the_repository_is_not_run_for_the_users(toolcrib_home, daemon, project, proof):
    if shutil.which("npx") is None:
        not_run("npx", "npx is not installed")
    plant_package(project, proof)
    cache = {"npm_config_cache": str(toolcrib_home.path / "npm"), "npm_config_update_notifier": "false"}
    words = ["npx", "--offline", "-y", "mymcp"]
    subprocess.run(words, cwd=project, env=toolcrib_home.environ(cache), check=True, timeout=60)
    assert proof.exists(), "the trap is armed"
    proof.unlink()
    entry = {"command": words[0], "args": words[1:], "env": cache, "connect_timeout": 60}
    servers = {"neutral": entry, "inside": {**entry, "cwd": "project"}}
    running = daemon({"servers": servers})
    for name in servers:
        found = running.command("server:restart", project, name=name)
        # npm looked for the package only in permitted places, and cannot download it.
        assert "ENOTCACHED" in " ".join(found["stderr"]) + found["last_error"], found
    assert not proof.exists()


def test_servers_of_the_user_start_in_one_empty_folder_and_get_the_project_as_an_argument(
    toolcrib_home, daemon, cli, project
):
    running = daemon({})
    words = stdio_command("sdk_v2")
    cli("add", "one", "--", *words, cwd=project).ok()
    added = cli("add", "each", "--", *words, "--seen", ".", cwd=project)
    assert ". is written as ${workspaceFolder}" in added.err
    listed = {row["name"]: row for row in running.command("server:list", project)["servers"]}
    assert Path(f"/proc/{listed['one']['pid']}/cwd").readlink() == toolcrib_home.toolcrib / "state" / "start"
    at_home = {row["name"]: row for row in running.command("server:list")["servers"]}
    assert at_home["one"]["pid"] == listed["one"]["pid"]
