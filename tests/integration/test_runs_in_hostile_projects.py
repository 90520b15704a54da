"""Runs of the real programs in hostile projects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from parts import fleet
from parts.runs import ProgramUser
from parts.sizes import some
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import CallByName, Say
from toolcrib.testing.server import ScriptedModel, serving

pytestmark = pytest.mark.req("FRG-3", "FRG-5")

MARK = "triggered"
"""A file that the project's traps create."""


NewUser = Callable[..., tuple[ProgramUser, ScriptedModel]]


class WithTheProjectsPrograms(ProgramUser):
    """The project's folder of programs is on PATH, as for many users."""

    @property
    def environ(self) -> dict[str, str]:
        usual = super().environ
        return {**usual, "PATH": f"{self.project}/node_modules/.bin{os.pathsep}{usual['PATH']}"}


def set_trap(user: ProgramUser, client: str) -> Path:
    """The program is a script for `node`, as npm installs it, and the project has one of that name."""
    node, script = fleet.command(client)
    program = user.home.path / "bin" / client
    program.unlink()
    program.symlink_to(script)
    mark = user.home.path / MARK
    trap = user.project / "node_modules" / ".bin" / "node"
    trap.parent.mkdir(parents=True)
    trap.write_text(f'#!/bin/sh\ntouch {mark}\nexec {node} "$@"\n')
    trap.chmod(0o755)
    return mark


@pytest.mark.parametrize(
    ("client", "profile", "triggered"),
    some(
        [("codex", "read-only", False), ("codex", "trusted", True), ("gemini", "read-only", False)],
        [("codex", "developer", False), ("gemini", "developer", False), ("gemini", "trusted", True)],
    ),
)
def test_a_program_does_not_take_its_interpreter_from_the_project_below_all(
    new_user: NewUser, client: str, profile: str, *, triggered: bool
) -> None:
    user, model = new_user(client, kind=WithTheProjectsPrograms)
    mark = set_trap(user, client)
    finished = user.run("look", "--profile", profile).ok()
    assert model.bodies
    assert mark.exists() is triggered
    assert (
        f"Removed from PATH, because the project could have its own node or git there: {user.project}" in finished.err
    ) is (not triggered)


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


@pytest.mark.parametrize(
    ("client", "profile", "triggered"),
    some(
        [("codex", "nothing", False), ("codex", "trusted", True), ("claude", "read-only", False)],
        [("codex", "read-only", False), ("codex", "developer", False), ("gemini", "read-only", False)],
    ),
)
def test_a_filter_of_the_projects_git_does_not_run_below_all(
    new_user: NewUser, client: str, profile: str, *, triggered: bool
) -> None:
    user, model = new_user(client)
    mark = user.home.path / MARK
    commit(user.project)
    git(user.project, "config", "filter.e.clean", f"touch {mark}; cat")
    user.run("look", "--profile", profile).ok()
    assert model.bodies
    assert mark.exists() is triggered


PLANT = """
cd lib && git init -q && echo '*.txt filter=e' > .gitattributes && echo 'as it was' > a.txt && git add . &&
git -c user.name=a -c user.email=a@b.c commit -qm first && echo 'As it is.' > a.txt &&
git config filter.e.clean 'touch {}; cat' && echo planted
"""


def test_a_filter_that_codex_plants_in_a_submodule_does_not_run_in_its_next_run(new_user: NewUser) -> None:
    user, _ = new_user("codex")
    mark = user.home.path / MARK
    commit(user.project)
    git(user.project, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    (user.project / "lib").mkdir()
    (user.project / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n\tignore = none\n')
    with serving(
        user.setup.agent.provider, [CallByName("exec_command", {"cmd": PLANT.format(mark)}), Say("Aye.")]
    ) as model:
        user.use(model.url, ToolOffering.DEFERRED)
        user.run("plant it", "--profile", "developer").ok()
        assert "planted" in str(model.results)
        mark.unlink(missing_ok=True)
        user.run("look", "--profile", "read-only").ok()
    assert not mark.exists()
    git(user.project, "status", "--porcelain")
    assert mark.exists(), "nothing was planted"


@pytest.mark.parametrize(
    "name", some([".gemini/.env", "GEMINI.md"], [".gitignore", ".geminiignore", ".gemini/settings.json"])
)
def test_a_pipe_that_gemini_would_wait_for_is_named_at_once(new_user: NewUser, name: str) -> None:
    user, model = new_user("gemini")
    pipe = user.project / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    finished = user.run("look", "--profile", "read-only")
    assert finished.exit_code == 2
    assert f"{pipe} is not a regular file" in finished.out
    assert model.bodies == []


@pytest.mark.req("FRG-4")
@pytest.mark.parametrize(
    ("client", "name"),
    some(
        [("claude", "CLAUDE.md"), ("codex", "AGENTS.md"), ("gemini", ".env")],
        [("claude", ".claude/settings.json"), ("claude", ".mcp.json"), ("codex", ".gitignore")],
    ),
)
def test_other_pipes_do_not_block_a_run(new_user: NewUser, client: str, name: str) -> None:
    user, model = new_user(client)
    pipe = user.project / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    user.run("look", "--profile", "read-only", "--timeout", "30s").ok()
    assert model.bodies
