"""Claude Code, Codex and Gemini CLI themselves at work in a folder, with the workspace tools of the real daemon."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parts import coding_agents, fleet
from parts.coding_agents import CodingAgent, InstalledAgent
from parts.daemon import Cli, Home, StartDaemon
from toolcrib.testing.script import Call
from toolcrib.testing.server import serving

pytestmark = [pytest.mark.req("FRG-1"), pytest.mark.usefixtures("bwrap")]

PAGE = (
    (Path(__file__).parents[2] / "docs" / "workspace.md")
    .read_text()
    .replace("/path/to/venv/bin/python", sys.executable)
)
WRONG = "def double(number: int) -> int:\n    return number + 2\n"
RIGHT = WRONG.replace("+ 2", "* 2")
TEST = "from doubling import double\n\n\ndef test_three_doubled_is_six() -> None:\n    assert double(3) == 6\n"


@pytest.fixture(params=coding_agents.ALL, ids=lambda agent: str(agent.name))
def client(request: pytest.FixtureRequest, parts: Callable[[str], list[str]]) -> CodingAgent:
    agent: CodingAgent = request.param
    parts(agent.name)
    return agent


@pytest.mark.usual(client="codex")
def test_a_coding_agent_reads_fails_mends_and_passes(
    client: CodingAgent, toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    project = toolcrib_home.path / "doubling"
    project.mkdir()
    (project / "doubling.py").write_text(WRONG)
    (project / "test_doubling.py").write_text(TEST)
    daemon()
    cli("agent", "add", "worker", "--profile", "developer", "--workdir", str(project)).ok()
    generated = cli("connect", client.name, "--agent", "worker", "--json").ok().json["generated"]
    steps = (
        Call("workspace_read_file", {"path": "doubling.py"}),
        Call("workspace_run_tests", {}),
        Call("workspace_edit_file", {"path": "doubling.py", "old": "number + 2", "new": "number * 2"}),
        Call("workspace_run_tests", {}),
        Call("workspace_read_file", {"path": "../t/config.json"}),
    )
    with serving(client.provider, steps) as model:
        coding_agents.install_agent(client, toolcrib_home.path / "client", model).run(
            cwd=project, generated=Path(generated)
        )
    read, failed, edited, passed, outside = model.results
    assert "return number + 2" in read
    assert "crashed" not in failed.lower()
    assert "test_three_doubled_is_six" in failed
    assert "assert 5 == 6" in failed
    assert "1 failed" in failed or '"failed":1' in failed
    assert "doubling.py" in edited
    assert "1 passed" in passed or '"passed":1' in passed
    assert "servers" not in outside
    assert (project / "doubling.py").read_text() == RIGHT


def follow(installed: InstalledAgent, project: Path) -> InstalledAgent:
    """Sets the program up as docs/workspace.md says, and gives it the words that it names."""
    page = PAGE.partition("### Alone\n")[2].partition("### From Python\n")[0]
    if installed.agent.name == "claude":
        add, ask = (shlex.split(line) for line in re.findall(r"^\$ claude (.+)", page, re.MULTILINE))
        subprocess.run(
            [*fleet.command("claude"), *add],
            env=dict(installed.environ),
            cwd=project,
            check=True,
            capture_output=True,
            timeout=60,
        )
        words = (
            *installed.agent.words[: installed.agent.words.index("--allowedTools")],
            *ask[ask.index("--allowedTools") :],
        )
        # On a busy machine the server starts too late for Claude's first request, which has all tools here.
        environ = {**installed.environ, "CLAUDE_CODE_MCP_STARTUP_WAIT_MS": "60000"}
        return dataclasses.replace(installed, agent=dataclasses.replace(installed.agent, words=words), environ=environ)
    [recipe] = re.findall(
        r"```toml\n(.*?)```" if installed.agent.name == "codex" else r"```json\n(.*?)```", page, re.DOTALL
    )
    if installed.agent.name == "codex":
        installed.file.write_text(installed.file.read_text() + recipe)
    else:
        installed.file.write_text(json.dumps({**json.loads(installed.file.read_text()), **json.loads(recipe)}))
    return installed


@pytest.mark.req("FRG-2")
def test_the_recipes_for_the_server_alone_work_as_they_are_written(client: CodingAgent, home_folder: Home) -> None:
    project = home_folder.path / "doubling"
    project.mkdir()
    (project / "doubling.py").write_text(WRONG)
    with serving(client.provider, (Call("search_text", {"pattern": "return"}),)) as model:
        installed = follow(coding_agents.install_agent(client, home_folder.path / "client", model), project)
        installed.run(cwd=project)
    assert ["return number + 2" in result for result in model.results] == [True], model.results
