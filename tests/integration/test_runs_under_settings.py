"""What a folder's `workspace.yml` forbids, the real programs do not do by their own tools either."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from parts import runs
from parts.daemon import Home, StartDaemon
from parts.runs import CLAUDE, CODEX, Desk, Person
from parts.sizes import some
from toolcrib.policy.profile import BUILTIN
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import CallByName, Say, Step
from toolcrib.testing.server import ScriptedModel, serving

SECRET = "s3cret-0123456789"

pytestmark = pytest.mark.req("FRG-3")


@dataclass(frozen=True, kw_only=True)
class InCi(Desk):
    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "CI": "true"}


Start = Callable[..., tuple[Desk, ScriptedModel]]


@pytest.fixture
def start(toolcrib_home: Home, bwrap: Path, parts: Callable[[str], list[str]]) -> Iterator[Start]:
    for name in runs.ALL:
        parts(name)
    with contextlib.ExitStack() as stack:

        def begin(
            person: Person, settings: str, *steps: Step, offering: ToolOffering | None = None
        ) -> tuple[Desk, ScriptedModel]:
            made = stack.enter_context(runs.desk(person, toolcrib_home, toolcrib_home.project))
            model = stack.enter_context(serving(person.agent.provider, [*steps, Say("Done.")]))
            made.use(model.url, offering)
            (made.project / ".env").write_text(f"KEY={SECRET}\n")
            (made.project / "there.txt").write_text("as it was\n")
            (made.project / ".toolcrib").mkdir()
            (made.project / ".toolcrib" / "workspace.yml").write_text(settings)
            return made, model

        yield begin


def reads(person: Person, folder: Path, name: str) -> list[Step]:
    """Ways to read a file by the program's own tools."""
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
    desk, model = start(person, 'read_only: true\nhidden: [".env*"]\n', *steps)
    before = set(folder.iterdir())
    log = desk.run("try", "--profile", profile).ok().log
    assert len(model.results) == len(steps), "the model made every attempt"
    assert SECRET not in received(model)
    assert set(folder.iterdir()) == before
    assert log.metadata["own_tools"] == "none"
    [said] = [text for text in log.told("log", "toolcrib") if text.startswith("Own tools")]
    assert said.startswith(
        f"Own tools of {client}: none, instead of {BUILTIN[profile].own_tools} "
        "(`hidden` in workspace.yml; `read_only` in workspace.yml)."
    )


@pytest.mark.parametrize("client", some(["claude"], ["gemini"]))
def test_a_program_still_reads_by_itself_where_the_folder_is_only_read_only(
    start: Start, toolcrib_home: Home, client: str
) -> None:
    person, folder = runs.ALL[client], toolcrib_home.project
    steps = [*reads(person, folder, "there.txt"), *person.writes(folder).values()]
    desk, model = start(person, "read_only: true\n", *steps)
    before = set(folder.iterdir())
    log = desk.run("try").ok().log
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
    desk, model = start(CODEX, settings, *steps, offering=ToolOffering.DEFERRED)
    in_ci = InCi(person=desk.person, home=desk.home, project=desk.project)
    told = in_ci.run("try").ok()
    assert "as it was" not in received(model)
    assert not (folder / "shell").exists()
    assert (folder / "patched").exists(), "what it may still do"
    assert not (folder / ".idea").exists(), "other programs obey what is there"
    assert "Own tools of codex: edit, without a shell, instead of edit (" in told.err
    names = {tool.name for talk in model.conversations for tool in (*talk.tools, *talk.found)}
    assert "exec_command" not in names


def test_a_run_in_ci_has_no_workspace_shell_though_its_daemon_was_started_elsewhere(
    start: Start, daemon: StartDaemon, toolcrib_home: Home
) -> None:
    daemon()
    shell = CallByName("mcp__toolcrib__workspace_run_shell_safe", {"command": "touch by-our-shell"})
    desk, model = start(CLAUDE, "{}\n", shell)
    InCi(person=desk.person, home=desk.home, project=desk.project).run("try").ok()
    assert len(model.results) == 1
    assert not (toolcrib_home.project / "by-our-shell").exists()
    assert "run_shell_safe" not in {tool.name for tool in model.offered}
