"""Runs of the real programs in projects that were written to harm whoever runs something there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import fleet, runs
from parts.daemon import Home
from parts.runs import Desk
from parts.sizes import some
from toolcrib.testing.script import Say
from toolcrib.testing.server import Model, serving

MARK = "sprang"
"""A file that the project's own `node` leaves."""


class WithTheProjectsPrograms(Desk):
    """The person has the project's folder of programs on PATH, as many do."""

    @property
    def environ(self) -> dict[str, str]:
        usual = super().environ
        return {**usual, "PATH": f"{self.project}/node_modules/.bin{os.pathsep}{usual['PATH']}"}


@pytest.fixture
def start(toolcrib_home: Home, parts: Callable[[str], list[str]]) -> Iterator[Callable[[str], tuple[Desk, Model]]]:
    for name in runs.ALL:
        parts(name)
    with contextlib.ExitStack() as stack:

        def begin(client: str) -> tuple[Desk, Model]:
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
    start: Callable[[str], tuple[Desk, Model]], client: str, profile: str, *, springs: bool
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


@pytest.mark.req("FRG-5")
@pytest.mark.parametrize(
    "name", some([".gemini/.env", "GEMINI.md"], [".gitignore", ".geminiignore", ".gemini/settings.json"])
)
def test_a_pipe_that_gemini_would_wait_for_is_named_at_once(
    start: Callable[[str], tuple[Desk, Model]], name: str
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
    start: Callable[[str], tuple[Desk, Model]], client: str, name: str
) -> None:
    desk, model = start(client)
    pipe = desk.project / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    desk.run("look", "--profile", "read-only", "--timeout", "30s").ok()
    assert model.bodies
