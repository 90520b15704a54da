"""The built-in tools of the real programs obey a folder's `workspace.yml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts import runs
from parts.daemon import Home
from parts.runs import CODEX, ProgramSetup, ProgramUser
from parts.sizes import some
from toolcrib.policy.profile import BUILTIN
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import CallByName, Step
from toolcrib.testing.server import ScriptedModel

SECRET = "s3cret-0123456789"

pytestmark = pytest.mark.req("FRG-3")


@dataclass(frozen=True, kw_only=True)
class InCi(ProgramUser):
    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "CI": "true"}


NewUser = Callable[..., tuple[ProgramUser, ScriptedModel]]
Start = Callable[..., tuple[ProgramUser, ScriptedModel]]


@pytest.fixture
def start(new_user: NewUser) -> Start:
    """`new_user` in a project with these settings."""

    def begin(client: str, settings: str, *steps: Step, **more: Any) -> tuple[ProgramUser, ScriptedModel]:
        user, model = new_user(client, *steps, **more)
        (user.project / ".env").write_text(f"KEY={SECRET}\n")
        (user.project / "there.txt").write_text("as it was\n")
        (user.project / ".toolcrib").mkdir()
        (user.project / ".toolcrib" / "workspace.yml").write_text(settings)
        return user, model

    return begin


def reads(person: ProgramSetup, folder: Path, name: str) -> list[Step]:
    """Ways to read a file with the program's built-in tools."""
    file = str(folder / name)
    match person.agent.name:
        case "claude":
            return [
                CallByName("Read", {"file_path": file}),
                CallByName("Grep", {"pattern": "KEY", "output_mode": "content"}),
            ]
        case "codex":
            return [CallByName("exec_command", {"cmd": f"cat {file}"})]
        case _:
            return [CallByName("read_file", {"file_path": file}), CallByName("grep_search", {"pattern": "KEY"})]


def received(model: ScriptedModel) -> str:
    return "\n".join(map(str, model.bodies))


@pytest.mark.parametrize(
    ("client", "profile"),
    some(
        [("claude", "developer"), ("codex", "developer"), ("gemini", "trusted")],
        [("claude", "trusted"), ("codex", "trusted"), ("gemini", "developer")],
    ),
)
def test_no_program_reads_what_is_hidden_or_writes_where_nothing_may(
    start: Start, toolcrib_home: Home, client: str, profile: str
) -> None:
    person, folder = runs.ALL[client], toolcrib_home.project
    steps = [*reads(person, folder, ".env"), *person.writes(folder).values()]
    user, model = start(client, 'read_only: true\nhidden: [".env*"]\n', *steps)
    before = set(folder.iterdir())
    log = user.run("try", "--profile", profile).ok().log
    assert len(model.results) == len(steps), "the model made every attempt"
    assert SECRET not in received(model)
    assert set(folder.iterdir()) == before
    assert log.metadata["own_tools"] == "none"
    [warning] = [text for text in log.texts("log", "toolcrib") if text.startswith("Own tools")]
    assert warning.startswith(
        f"Own tools of {client}: none, instead of {BUILTIN[profile].own_tools} "
        "(`hidden` in workspace.yml; `read_only` in workspace.yml)."
    )


@pytest.mark.parametrize("client", some(["claude"], ["gemini"]))
def test_built_in_tools_may_read_in_a_read_only_folder(start: Start, toolcrib_home: Home, client: str) -> None:
    person, folder = runs.ALL[client], toolcrib_home.project
    steps = [*reads(person, folder, "there.txt"), *person.writes(folder).values()]
    user, model = start(client, "read_only: true\n", *steps)
    before = set(folder.iterdir())
    log = user.run("try").ok().log
    assert "as it was" in received(model)
    assert set(folder.iterdir()) == before
    assert log.metadata["own_tools"] == "read"


@pytest.mark.parametrize("settings", some(["forbid_shell_in_ci: true\n"], ["tools: {run_shell_safe: off}\n"]))
def test_codex_has_no_shell_of_its_own_where_the_workspace_has_none(
    start: Start, toolcrib_home: Home, settings: str
) -> None:
    folder = toolcrib_home.project
    steps = [
        *reads(CODEX, folder, "there.txt"),
        *CODEX.writes(folder / ".idea").values(),
        *CODEX.writes(folder).values(),
    ]
    user, model = start("codex", settings, *steps, offering=ToolOffering.DEFERRED, kind=InCi)
    finished = user.run("try").ok()
    assert "as it was" not in received(model)
    assert not (folder / "shell").exists()
    assert (folder / "patched").exists(), "what it may still do"
    assert not (folder / ".idea").exists(), "files there configure other programs"
    assert "Own tools of codex: edit, without a shell, instead of edit (" in finished.err
    names = {tool.name for talk in model.conversations for tool in (*talk.tools, *talk.found)}
    assert "exec_command" not in names


def test_a_run_in_ci_has_no_workspace_shell_though_its_daemon_was_started_elsewhere(
    start: Start, toolcrib_home: Home
) -> None:
    shell = CallByName("mcp__toolcrib__workspace_run_shell_safe", {"command": "touch by-our-shell"})
    user, model = start("claude", "{}\n", shell, kind=InCi)
    user.run("try").ok()
    assert len(model.results) == 1
    assert not (toolcrib_home.project / "by-our-shell").exists()
    assert "run_shell_safe" not in {tool.name for tool in model.offered}
