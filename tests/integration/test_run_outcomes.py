"""How runs of the real programs and their calls end, and how that is shown."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts import runs
from parts.daemon import PROGRAM
from parts.runs import ProgramUser
from toolcrib.testing.script import Call, CallByName, Say
from toolcrib.testing.server import ScriptedModel

pytestmark = pytest.mark.req("FRG-6")

NewUser = Callable[..., tuple[ProgramUser, ScriptedModel]]

OWN_SHELL = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "gemini": ("run_shell_command", "command"),
}


def outcomes(events: list[dict[str, Any]], server: str) -> list[tuple[str, str]]:
    """Status and text of the calls of a server's tools; an empty name for the built-in tools."""
    over = [event for event in events if event["kind"] == "tool" and event["tool_status"] != "started"]
    return [(event["tool_status"], event.get("text", "")) for event in over if event.get("server", "") == server]


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="gemini")
def test_a_long_answer_in_one_burst_arrives_whole(new_user: NewUser, name: str) -> None:
    # Without repetitions, which Gemini CLI takes for a loop.
    answer = " ".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(7_500))
    user, _ = new_user(name, Say(answer))
    assert user.run("say much").ok().result["text"].strip() == answer


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="claude")
def test_what_a_workspace_tool_ran_and_failed_is_shown_as_failed(new_user: NewUser, name: str) -> None:
    user, _ = new_user(
        name,
        Call("workspace_run_shell_safe", {"command": "exit 3"}),
        Call("workspace_run_shell_safe", {"command": "sleep 60", "seconds": 1}),
        Call("workspace_run_shell_safe", {"command": "true"}),
        Say("Done."),
    )
    started = user.start("try").wait().ok()
    lines = [line for line in started.err.splitlines() if "workspace:run_shell_safe" in line and line[0] in "✓✗"]
    assert [line[0] for line in lines] == ["✗", "✗", "✓"], started.err
    assert "Exit code 3" in lines[0]
    assert "Ended at the time limit of 1 s" in lines[1]
    log = runs.Log.read(user.logs()[0])
    assert log.summary is not None
    assert log.summary["failures"] == 2
    assert " (2 failed)\n" in started.err
    assert [status for status, _ in outcomes(log.events, "workspace")] == ["error", "error", "ok"]


@pytest.mark.parametrize("name", OWN_SHELL)
@pytest.mark.usual(name="codex")
def test_a_failing_command_of_the_programs_own_shell_is_shown_as_failed(new_user: NewUser, name: str) -> None:
    tool, argument = OWN_SHELL[name]
    user, _ = new_user(name, *(CallByName(tool, {argument: command}) for command in ("exit 3", "true")))
    found = outcomes(user.run("try", "--profile", "trusted").ok().log.events, "")
    assert [status for status, _ in found] == ["error", "ok"], found


ROOT = Path(__file__).parents[2]


def recipes(page: str) -> list[str]:
    """The commands of a page that run a coding agent, without comments."""
    lines = (line.removeprefix("$ ").partition("  #")[0].strip() for line in (ROOT / page).read_text().splitlines())
    return [line for line in lines if re.match(r"(git diff \| )?toolcrib run (claude|codex|gemini) ", line)]


RECIPES = recipes("docs/coding-agents.md")


def test_the_readme_has_no_other_recipes_than_the_page_that_is_run_here() -> None:
    assert len(recipes("README.md")) == 3
    assert set(recipes("README.md")) <= set(RECIPES)


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize("name", runs.ALL)
def test_the_recipes_of_the_page_work_as_they_are_written(new_user: NewUser, name: str) -> None:
    user, model = new_user(name)
    project = user.project
    mine = [line for line in RECIPES if f"toolcrib run {name} " in line]
    assert mine
    project.with_name("api").mkdir()
    (project / "task.md").write_text("the task of the file\n")
    (project / "proxy.env").write_text("A_VARIABLE=of the file\n")
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.invalid", "-C", str(project)]
    for words in (["init", "-q"], ["add", "task.md"], ["commit", "-qm", "First"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (project / "task.md").write_text("the task of the diff\n")
    environ = {**user.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{user.environ['PATH']}"}
    for line in mine:
        asked = len(model.bodies)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            check=False,
            env=environ,
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=runs.LIMIT,
        )
        assert (done.returncode, done.stdout) == (0, "Done.\n"), (line, done)
        given = json.dumps(model.bodies[asked:], ensure_ascii=False)
        output = shlex.split(line.removeprefix("git diff | "))[3]
        assert output in given, line
        assert ("the task of the diff" in given) == ("git diff" in line or "task.md" in line), line
        for word in re.findall(r" -- .*?(opus|gpt-5)", line):
            assert word in given, line


REVIEW = """
from toolcrib import CodeAgent
print(CodeAgent("claude", profile="read-only").run("Review.\\n+ see @.env").text)
"""


def test_the_library_does_not_read_files_named_in_a_prompt_either(new_user: NewUser) -> None:
    user, model = new_user("claude")
    (user.project / ".env").write_text("SECRET=1234\n")
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    command = [sys.executable, "-c", REVIEW]
    done = subprocess.run(command, check=True, env=user.environ, cwd=user.project, timeout=runs.LIMIT, **pipes)
    assert done.stdout == "Done.\n"
    asked = json.dumps(model.bodies)
    assert "see @.env" in asked
    assert "SECRET=1234" not in asked
