"""The demos of `examples/mcp` do what their page says, with the real programs, and leave only their logs.

`expected/` holds their output with `--scripted`; TOOLCRIB_WRITE_EXPECTED=1 writes it again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts import leftovers, runs
from parts.daemon import Home
from parts.runs import Log, ProgramUser
from parts.sizes import some
from parts.waiting import wait_for
from toolcrib.testing.__main__ import step_from
from toolcrib.testing.server import serving

pytestmark = [pytest.mark.req("FRG-8"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
DEMOS = ROOT / "examples" / "mcp"
LIMIT = 240.0
SCRIPT: dict[str, Any] = json.loads((DEMOS / "scripted.json").read_text())

NewUser = Callable[[str], ProgramUser]

MASKS = (
    (r"/\S*/toolcrib-(?:offline|demo)\.\w+(?:/tmp/toolcrib-demo\.\w+)?", "<folder>"),
    (r"\d{8}-\d{6}-[0-9a-f]{6}", "<run>"),
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<session>"),
    (r"\b[0-9a-f]{10}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d-\d\d \d\d:\d\d\b|^\d\d:\d\d:\d\d", "<time>"),
    (r"\b\d+(?:\.\d+)? m?s\b", "<took>"),
    (r"\b\d+(?:\.\d+)? k?B\b(?: +\d+)?", "<size>"),
    (r"^(claude|codex|gemini) [\d.]+ as", r"\1 <version> as"),
    (r"^(  model +).*", r"\1<model>"),
    (r"^(  tokens +).*|~?[\d,]+ tokens|[\d,]+ / [\d,]+|^(tokens: ).*", r"\1\2<tokens>"),
    (r"held \d+ events", "held <n> events"),
    # Each program's own tests check these lines.
    (r"^(  (?:not )?governed +).*(?:\n {16}.*)*", r"\1<…>"),
)


def masked(text: str, user: ProgramUser) -> str:
    """Without the parts that differ between runs or machines."""
    text = text.replace(str(DEMOS), "<examples>").replace(str(user.folder), "<home>")
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return text


def check(name: str, printed: str, user: ProgramUser) -> None:
    file = DEMOS / "expected" / f"{name}.txt"
    output = masked(printed, user)
    if os.environ.get("TOOLCRIB_WRITE_EXPECTED"):
        file.write_text(output)
    # The width of a column depends on the masked texts.
    assert re.sub(" {2,}", "  ", output) == re.sub(" {2,}", "  ", file.read_text())


@pytest.fixture
def new_user(toolcrib_home: Home, bwrap: Path, parts: Callable[[str], list[str]]) -> Iterator[NewUser]:
    with contextlib.ExitStack() as stack:

        def make(client: str) -> ProgramUser:
            for name in runs.ALL:
                parts(name)
            return stack.enter_context(runs.program_user(runs.ALL[client], toolcrib_home, toolcrib_home.project))

        yield make


def start(user: ProgramUser, *words: str | Path) -> subprocess.Popen[str]:
    """Starts a demo as a user who has Toolcrib in the checkout, and nothing of it at home."""
    environ = {name: value for name, value in user.environ.items() if name != "TOOLCRIB_HOME"}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [str(word) for word in words]
    return subprocess.Popen(command, env=environ, cwd=user.project, text=True, start_new_session=True, **pipes)


def run(user: ProgramUser, *words: str | Path) -> str:
    process = start(user, *words)
    try:
        out, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, out
    return out


def processes(user: ProgramUser) -> list[str]:
    """The demo's processes, including those with a home that it created."""
    return [process.words for process in leftovers.living() if process.names(user.home.path)]


def assert_nothing_left(user: ProgramUser) -> None:
    wait_for(lambda: not processes(user), "every process to end")
    assert list(Path(user.environ["TMPDIR"]).iterdir()) == []
    assert list(user.project.iterdir()) == []
    assert not (user.home.toolcrib / "state").exists()


def logs(user: ProgramUser) -> list[Log]:
    folder = user.folder / ".local" / "state" / "toolcrib-demos" / ".toolcrib" / "runs"
    return [Log.read(file) for file in sorted(folder.glob("*"))]


def calls(log: Log) -> list[tuple[str, str, str]]:
    """Tool calls that passed Toolcrib: tool, decision, status."""
    over = [event for event in log.events if event["kind"] == "tool" and event["tool_status"] != "started"]
    return [(e["tool_name"], e["decision"], e["tool_status"]) for e in over if e.get("server")]


CALLS = [
    [("read_file", "allow", "ok")],
    [("write_file", "allow", "ok"), ("write_file", "allow", "ok"), ("run_tests", "allow", "ok")],
    [("read_file", "allow", "ok"), ("write_file", "allow", "ok"), ("write_file", "deny", "denied")],
]


@pytest.mark.parametrize("client", sorted(runs.ALL))
@pytest.mark.usual(client="codex")
def test_a_scripted_demo_prints_what_is_expected_and_leaves_only_its_logs(new_user: NewUser, client: str) -> None:
    user = new_user(client)
    check(f"{client}_tools_demo", run(user, DEMOS / f"{client}_tools_demo.sh", "--scripted"), user)
    assert_nothing_left(user)
    kept = logs(user)
    assert [calls(log) for log in kept] == CALLS
    assert {log.metadata["conversation"] for log in kept} == {kept[0].metadata["conversation"]}
    assert [path.name for path in user.folder.iterdir()] == [".local"], "the user's own files are unchanged"
    if client == "codex":
        check("view_last_run_events", run(user, DEMOS / "view_last_run_events.sh"), user)


@pytest.mark.parametrize("client", some(["codex"], ["claude", "gemini"]))
def test_a_demo_uses_the_users_login_and_the_model_gets_what_the_page_says(new_user: NewUser, client: str) -> None:
    user = new_user(client)
    steps = [step_from(step) for step in SCRIPT["steps"]]
    with serving(user.setup.agent.provider, steps) as model:
        user.use(model.url)
        before = user.settings()
        run(user, DEMOS / f"{client}_tools_demo.sh")
    # Gemini CLI sends its model the earlier results of a session twice.
    read, first, second, tests, again, review, refused = dict.fromkeys(model.results)
    assert "class Game" in read
    assert all("written" in reported for reported in (first, second, review))
    assert re.search(r"2 passed|\"passed\": ?2", tests)
    assert "_POINTS[lines]" in again, "the written text is on the disk"
    assert "may not use workspace:write_file" in refused
    assert [calls(log) for log in logs(user)] == CALLS
    assert user.settings() == before
    wait_for(lambda: not processes(user), "every process to end")
    assert list(user.project.iterdir()) == []


def without_pytest(user: ProgramUser) -> Path:
    """The `bin` of an environment with Toolcrib and its dependencies, but without pytest."""
    folder = user.home.path / "plain"
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "pytest" not in path.name:
            (packages / path.name).symlink_to(path)
    program = folder / "bin" / "toolcrib"
    program.write_text(f"#!{folder}/bin/python\nfrom toolcrib.cli.main import main\nmain()\n")
    program.chmod(0o755)
    return program.parent


@pytest.mark.soak
def test_a_demo_without_pytest_shows_that_the_tests_did_not_run(new_user: NewUser) -> None:
    user = new_user("codex")
    path = f"PATH={without_pytest(user)}{os.pathsep}{user.environ['PATH']}"
    printed = run(user, "env", path, DEMOS / "codex_tools_demo.sh", "--scripted")
    [reported] = [line for line in printed.splitlines() if " workspace:run_tests  " in line and line[0] in "✓✗"]
    assert reported.startswith("✗")
    assert "pytest" in reported
    assert not re.search(r"\bpass(ed)?\b", printed.replace("The result of run_tests says whether the tests pass.", ""))
    _, second, _ = [calls(log) for log in logs(user)]
    assert second[-1] == ("run_tests", "allow", "error")


def test_the_demo_in_python_prints_what_is_expected_and_leaves_nothing(new_user: NewUser) -> None:
    user = new_user("claude")
    check("tools_demo", run(user, sys.executable, DEMOS / "tools_demo.py", "--scripted"), user)
    assert_nothing_left(user)


@pytest.mark.parametrize("words", [("codex_tools_demo.sh", "--scripted"), ("tools_demo.py", "codex", "--scripted")])
def test_an_interrupted_demo_leaves_nothing(new_user: NewUser, words: tuple[str, ...]) -> None:
    user = new_user("codex")
    python = (sys.executable,) if words[0].endswith(".py") else ()
    process = start(user, *python, DEMOS / words[0], *words[1:])
    try:
        wait_for(lambda: any("codex exec" in words for words in processes(user)), "the program to run")
        # A terminal sends the signal to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in (130, -signal.SIGINT), out
    assert_nothing_left(user)


def tetris() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tetris", DEMOS / "project" / "tetris.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tetris", module)
        spec.loader.exec_module(module)
    return module


TETRIS = tetris()
MOVES = st.tuples(st.sampled_from(sorted(TETRIS.SHAPES)), st.integers(0, 3), st.integers(-5, 6))


@given(st.lists(MOVES, max_size=60))
def test_the_game_of_the_demos_keeps_its_rules(moves: list[tuple[str, int, int]]) -> None:
    game, dropped = TETRIS.Game(TETRIS.Piece("T")), 0
    for following, turns, aside in moves:
        if game.over:
            assert game.dropped(following) is game
            break
        game = game.moved(turns=turns)
        for _ in range(abs(aside)):
            game = game.moved(x=1 if aside > 0 else -1)
        game, dropped = game.dropped(following), dropped + 1
        assert len(game.filled) == 4 * dropped - 10 * game.lines
        assert all(0 <= x < TETRIS.WIDTH and 0 <= y < TETRIS.HEIGHT for x, y in game.filled)
