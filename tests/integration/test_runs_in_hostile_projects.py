"""Runs of the real programs in projects that were written to harm whoever runs something there."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import fleet, runs
from parts.daemon import Home
from parts.runs import Desk
from parts.sizes import some
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import CallByName, Say
from toolcrib.testing.server import ScriptedModel, serving

MARK = "sprang"
"""A file that the project's own `node` leaves."""


class WithTheProjectsPrograms(Desk):
    """The person has the project's folder of programs on PATH, as many do."""

    @property
    def environ(self) -> dict[str, str]:
        usual = super().environ
        return {**usual, "PATH": f"{self.project}/node_modules/.bin{os.pathsep}{usual['PATH']}"}


@pytest.fixture
def start(
    toolcrib_home: Home, parts: Callable[[str], list[str]]
) -> Iterator[Callable[[str], tuple[Desk, ScriptedModel]]]:
    for name in runs.ALL:
        parts(name)
    with contextlib.ExitStack() as stack:

        def begin(client: str) -> tuple[Desk, ScriptedModel]:
            person = runs.ALL[client]
            made = stack.enter_context(runs.desk(person, toolcrib_home, toolcrib_home.project))
            model = stack.enter_context(serving(person.agent.provider, [Say("Hello there.")]))
            made.use(model.url)
            return made, model

        yield begin


def set_trap(desk: Desk, client: str) -> Path:
    """The program is a script for `node`, as npm installs it, and the project has one of that name."""
    node, script = fleet.command(client)
    program = desk.home.path / "bin" / client
    program.unlink()
    program.symlink_to(script)
    mark = desk.home.path / MARK
    trap = desk.project / "node_modules" / ".bin" / "node"
    trap.parent.mkdir(parents=True)
    trap.write_text(f'#!/bin/sh\ntouch {mark}\nexec {node} "$@"\n')
    trap.chmod(0o755)
    return mark


@pytest.mark.req("FRG-3", "FRG-5")
@pytest.mark.parametrize(
    ("client", "profile", "springs"),
    some(
        [("codex", "read-only", False), ("codex", "trusted", True), ("gemini", "read-only", False)],
        [("codex", "developer", False), ("gemini", "developer", False), ("gemini", "trusted", True)],
    ),
)
def test_a_program_does_not_take_its_interpreter_from_the_project_below_all(
    start: Callable[[str], tuple[Desk, ScriptedModel]], client: str, profile: str, *, springs: bool
) -> None:
    desk, model = start(client)
    mark = set_trap(desk, client)
    hostile = WithTheProjectsPrograms(person=desk.person, home=desk.home, project=desk.project)
    told = hostile.run("look", "--profile", profile).ok()
    assert model.bodies
    assert mark.exists() is springs
    assert (
        f"Left out of PATH, for the project could have a node or a git of its own there: {desk.project}" in told.err
    ) is (not springs)


def git(folder: Path, *words: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    """A file that the configuration has a filter for, and a change that leaves its size."""
    git(folder, "init", "--quiet")
    (folder / ".gitattributes").write_text("*.txt filter=e\n")
    (folder / "a.txt").write_text("as it was\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    (folder / "a.txt").write_text("As it is.\n")


@pytest.mark.req("FRG-3", "FRG-5")
@pytest.mark.parametrize(
    ("client", "profile", "springs"),
    some(
        [("codex", "nothing", False), ("codex", "trusted", True), ("claude", "read-only", False)],
        [("codex", "read-only", False), ("codex", "developer", False), ("gemini", "read-only", False)],
    ),
)
def test_a_filter_of_the_projects_git_does_not_run_below_all(
    start: Callable[[str], tuple[Desk, ScriptedModel]], client: str, profile: str, *, springs: bool
) -> None:
    desk, model = start(client)
    mark = desk.home.path / MARK
    commit(desk.project)
    git(desk.project, "config", "filter.e.clean", f"touch {mark}; cat")
    desk.run("look", "--profile", profile).ok()
    assert model.bodies
    assert mark.exists() is springs


PLANT = """
cd lib && git init -q && echo '*.txt filter=e' > .gitattributes && echo 'as it was' > a.txt && git add . &&
git -c user.name=a -c user.email=a@b.c commit -qm first && echo 'As it is.' > a.txt &&
git config filter.e.clean 'touch {}; cat' && echo planted
"""


@pytest.mark.req("FRG-3", "FRG-5")
def test_a_filter_that_codex_plants_in_a_submodule_does_not_run_in_its_next_run(
    start: Callable[[str], tuple[Desk, ScriptedModel]],
) -> None:
    desk, _ = start("codex")
    mark = desk.home.path / MARK
    commit(desk.project)
    git(desk.project, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    (desk.project / "lib").mkdir()
    (desk.project / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n\tignore = none\n')
    with serving(
        desk.person.agent.provider, [CallByName("exec_command", {"cmd": PLANT.format(mark)}), Say("Aye.")]
    ) as model:
        desk.use(model.url, ToolOffering.DEFERRED)
        desk.run("plant it", "--profile", "developer").ok()
        assert "planted" in str(model.results)
        mark.unlink(missing_ok=True)
        desk.run("look", "--profile", "read-only").ok()
    assert not mark.exists()
    git(desk.project, "status", "--porcelain")
    assert mark.exists(), "nothing was planted"


@pytest.mark.req("FRG-5")
@pytest.mark.parametrize(
    "name", some([".gemini/.env", "GEMINI.md"], [".gitignore", ".geminiignore", ".gemini/settings.json"])
)
def test_a_pipe_that_gemini_would_wait_for_is_named_at_once(
    start: Callable[[str], tuple[Desk, ScriptedModel]], name: str
) -> None:
    desk, model = start("gemini")
    pipe = desk.project / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    told = desk.run("look", "--profile", "read-only")
    assert told.exit_code == 2
    assert f"{pipe} is no file" in told.out
    assert model.bodies == []


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5")
@pytest.mark.parametrize(
    ("client", "name"),
    some(
        [("claude", "CLAUDE.md"), ("codex", "AGENTS.md"), ("gemini", ".env")],
        [("claude", ".claude/settings.json"), ("claude", ".mcp.json"), ("codex", ".gitignore")],
    ),
)
def test_pipes_that_nobody_waits_for_are_no_hindrance(
    start: Callable[[str], tuple[Desk, ScriptedModel]], client: str, name: str
) -> None:
    desk, model = start(client)
    pipe = desk.project / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    desk.run("look", "--profile", "read-only", "--timeout", "30s").ok()
    assert model.bodies
