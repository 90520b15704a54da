"""How a run of the real programs ended, and what its calls came to: what is shown is what happened."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts import runs
from parts.daemon import PROGRAM, Home
from parts.runs import CLAUDE, CODEX, GEMINI, Desk, Person
from toolcrib.testing.script import Call, CallByName, Say, Step
from toolcrib.testing.server import serving

Start = Callable[..., Desk]

OWN_SHELL: dict[str, tuple[Person, Step, Step]] = {
    "claude": (CLAUDE, CallByName("Bash", {"command": "exit 3"}), CallByName("Bash", {"command": "true"})),
    "codex": (CODEX, CallByName("exec_command", {"cmd": "exit 3"}), CallByName("exec_command", {"cmd": "true"})),
    "gemini": (
        GEMINI,
        CallByName("run_shell_command", {"command": "exit 3"}),
        CallByName("run_shell_command", {"command": "true"}),
    ),
}


@pytest.fixture
def start(toolcrib_home: Home, bwrap: Path, parts: Callable[[str], list[str]]) -> Iterator[Start]:
    for name in runs.ALL:
        parts(name)
    with contextlib.ExitStack() as stack:

        def begin(person: Person, *steps: Step) -> Desk:
            made = stack.enter_context(runs.desk(person, toolcrib_home, toolcrib_home.project))
            made.use(stack.enter_context(serving(person.agent.provider, steps)).url)
            return made

        yield begin


def outcomes(events: list[dict[str, Any]], server: str) -> list[tuple[str, str]]:
    """Of the calls of a server's tools, the program's own by the empty name: how each ended, and what was said."""
    over = [event for event in events if event["kind"] == "tool" and event["tool_status"] != "started"]
    return [(event["tool_status"], event.get("text", "")) for event in over if event.get("server", "") == server]


@pytest.mark.req("FRG-6", "FRG-7")
@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="gemini")
def test_a_long_answer_in_one_burst_arrives_whole(start: Start, name: str) -> None:
    # Nothing is said twice: Gemini CLI would take that for a loop.
    answer = " ".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(7_500))
    told = start(runs.ALL[name], Say(answer)).run("say much")
    assert told.ok().result["text"].strip() == answer


@pytest.mark.req("FRG-6", "FRG-7")
@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="claude")
def test_what_a_workspace_tool_ran_and_failed_is_shown_as_failed(start: Start, name: str) -> None:
    desk = start(
        runs.ALL[name],
        Call("workspace_run_shell_safe", {"command": "exit 3"}),
        Call("workspace_run_shell_safe", {"command": "sleep 60", "seconds": 1}),
        Call("workspace_run_shell_safe", {"command": "true"}),
        Say("Done."),
    )
    begun = desk.start("try").wait().ok()
    lines = [line for line in begun.err.splitlines() if "workspace:run_shell_safe" in line and line[0] in "✓✗"]
    assert [line[0] for line in lines] == ["✗", "✗", "✓"], begun.err
    assert "Exit code 3" in lines[0]
    assert "Ended at the time limit of 1 s" in lines[1]
    log = runs.Log.read(desk.logs()[0])
    assert log.summary is not None
    assert log.summary["failures"] == 2
    assert " (2 failed)\n" in begun.err
    assert [status for status, _ in outcomes(log.events, "workspace")] == ["error", "error", "ok"]


@pytest.mark.req("FRG-6")
@pytest.mark.parametrize("name", OWN_SHELL)
@pytest.mark.usual(name="codex")
def test_a_failing_command_of_the_programs_own_shell_is_shown_as_failed(start: Start, name: str) -> None:
    person, fails, works = OWN_SHELL[name]
    desk = start(person, fails, works, Say("Done."))
    found = outcomes(desk.run("try", "--profile", "trusted").ok().log.events, "")
    assert [status for status, _ in found] == ["error", "ok"], found


ROOT = Path(__file__).parents[2]


def recipes(page: str) -> list[str]:
    """The commands of a page that run a coding agent, without what is said of them."""
    lines = (line.removeprefix("$ ").partition("  #")[0].strip() for line in (ROOT / page).read_text().splitlines())
    return [line for line in lines if re.match(r"(git diff \| )?toolcrib run (claude|codex|gemini) ", line)]


RECIPES = recipes("docs/coding-agents.md")


def test_the_readme_has_no_other_recipes_than_the_page_that_is_run_here() -> None:
    assert len(recipes("README.md")) == 3
    assert set(recipes("README.md")) <= set(RECIPES)


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize("name", runs.ALL)
def test_the_recipes_of_the_page_work_as_they_are_written(
    toolcrib_home: Home, bwrap: Path, parts: Callable[[str], list[str]], name: str
) -> None:
    for program in runs.ALL:
        parts(program)
    mine = [line for line in RECIPES if f"toolcrib run {name} " in line]
    assert mine
    person, project = runs.ALL[name], toolcrib_home.project
    toolcrib_home.project.with_name("api").mkdir()
    (project / "task.md").write_text("the task of the file\n")
    (project / "proxy.env").write_text("A_VARIABLE=of the file\n")
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.invalid", "-C", str(project)]
    for words in (["init", "-q"], ["add", "task.md"], ["commit", "-qm", "First"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (project / "task.md").write_text("the task of the diff\n")
    with (
        runs.desk(person, toolcrib_home, project) as desk,
        serving(person.agent.provider, [], last_words="Done.") as model,
    ):
        desk.use(model.url)
        environ = {**desk.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{desk.environ['PATH']}"}
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
            said = shlex.split(line.removeprefix("git diff | "))[3]
            assert said in given, line
            assert ("the task of the diff" in given) == ("git diff" in line or "task.md" in line), line
            for word in re.findall(r" -- .*?(opus|gpt-5)", line):
                assert word in given, line


REVIEW = """
from toolcrib import CodeAgent
print(CodeAgent("claude", profile="read-only").run("Review.\\n+ see @.env").text)
"""


@pytest.mark.req("FRG-6")
def test_a_file_that_a_prompt_names_is_not_read_for_a_program_that_uses_the_library_either(
    toolcrib_home: Home, bwrap: Path, parts: Callable[[str], list[str]]
) -> None:
    parts("claude")
    (toolcrib_home.project / ".env").write_text("SECRET=1234\n")
    with (
        runs.desk(CLAUDE, toolcrib_home, toolcrib_home.project) as desk,
        serving(CLAUDE.agent.provider, [], last_words="Done.") as model,
    ):
        desk.use(model.url)
        done = subprocess.run(
            [sys.executable, "-c", REVIEW],
            check=True,
            env=desk.environ,
            cwd=desk.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=runs.LIMIT,
        )
        assert done.stdout == "Done.\n"
        asked = json.dumps(model.bodies)
        assert "see @.env" in asked
        assert "SECRET=1234" not in asked
