"""Every path that leads out, for every tool that takes a path, by three routes: nothing outside is changed or leaked.

The tables are in `parts/holes.py`, the project in `parts/traps.py`. A control without a sandbox shows that leaks would
be noticed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts import holes, sides, traps
from parts.daemon import Home, StartDaemon
from parts.holes import CODE_FORMS, FILE_FORMS, PATTERN_FORMS, WORD_FORMS, WRITE_FORMS
from parts.sides import Side
from parts.traps import HostileProject, leaks_in, snapshot

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

FEW = (
    *("absolute", "dots", "a sibling with the same prefix", "variables of the server", "through a link", "its root"),
    "a log through a link",
)
"""One path of each kind, for slow calls: a server passes paths on to the same code."""
READ_OR_WRITE = {**FILE_FORMS, **WRITE_FORMS}
TAKES_PATH = {**READ_OR_WRITE, **CODE_FORMS}


Opened = dict[str, tuple[Side, HostileProject]]


@pytest.fixture(scope="module")
def open_sides() -> Iterator[tuple[contextlib.ExitStack, Opened]]:
    with contextlib.ExitStack() as stack:
        yield stack, {}


@pytest.fixture(scope="module", params=sides.NAMES)
def opened(
    request: pytest.FixtureRequest,
    shared_home: Home,
    bwrap: Path,
    start_shared_daemon: StartDaemon,
    open_sides: tuple[contextlib.ExitStack, Opened],
) -> tuple[Side, HostileProject]:
    """A side and its own project, opened once."""
    stack, found = open_sides
    if request.param not in found:
        project = traps.lay_traps(shared_home.path / request.param, name=f"p-{request.param}")
        secret = {traps.SECRET_NAME: traps.SECRET}
        if request.param == "stdio":
            opening = sides.over_stdio(shared_home, env=secret, root=project.root)
        elif request.param == "daemon":
            opening = sides.at_daemon(start_shared_daemon, project.root, env=secret)
        else:
            opening = sides.in_process(project.root, environ=shared_home.environ(secret))
        found[request.param] = stack.enter_context(opening), project
    return found[request.param]


@pytest.fixture
def side(opened: tuple[Side, HostileProject]) -> Iterator[Side]:
    yield opened[0]
    assert not opened[1].changes_outside()


@pytest.fixture
def project(opened: tuple[Side, HostileProject]) -> HostileProject:
    return opened[1]


@pytest.mark.parametrize("form", FILE_FORMS)
def test_reading_refuses_paths_that_lead_out(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = FILE_FORMS[form]
    for what, path in (holes.leading_out(project) | holes.run_logs(project)).items():
        answer = side.checked(tool, **arguments(path))
        assert answer.is_error, f"{what} ({path}): {answer}"
    for what, path in holes.links_out(project).items():
        answer = side.checked(tool, **arguments(path))
        if tool == "stat_file":
            assert answer.data["kind"] == "link", f"{what}: {answer}"
            assert str(project.outside) not in answer.whole, f"{what}: {answer}"
        else:
            assert answer.is_error, f"{what}: {answer}"


def protected(project: HostileProject) -> object:
    root = project.root
    return snapshot(root / ".git", root / ".toolcrib", root / "sub"), {*root.iterdir(), *(root / "src").iterdir()}


@pytest.mark.parametrize("form", WRITE_FORMS)
def test_writing_refuses_paths_that_lead_out_or_belong_to_git_or_toolcrib(
    side: Side, project: HostileProject, form: str
) -> None:
    tool, arguments = WRITE_FORMS[form]
    for what, path in (holes.leading_out(project) | holes.links_out(project) | {"hard": "hard.txt"}).items():
        link = (project.root / path).readlink() if (project.root / path).is_symlink() else None
        answer = side.checked(tool, **arguments(path))
        assert answer.is_error, f"{what} ({path}): {answer}"
        # A link is not replaced by a file either.
        assert link is None or (project.root / path).readlink() == link, what
    before = protected(project)
    for what, path in holes.never_writable(project).items():
        answer = side.checked(tool, **arguments(path))
        assert answer.is_error, f"{what} ({path}): {answer}"
    assert protected(project) == before


@pytest.mark.parametrize("form", READ_OR_WRITE)
def test_special_files_and_odd_words_do_no_harm(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = READ_OR_WRITE[form]
    for name in ("pipe", "door", "zeros"):
        if os.path.lexists(project.root / name):
            mode = (project.root / name).stat().st_mode
            answer = side.checked(tool, **arguments(name))
            assert answer.is_error or tool == "stat_file", f"{name}: {answer}"
            assert (project.root / name).stat().st_mode == mode
    for word in holes.odd_words(project).values():
        side.checked(tool, **arguments(word))


@pytest.mark.parametrize("form", PATTERN_FORMS)
def test_patterns_match_only_inside(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = PATTERN_FORMS[form]
    for table in (holes.leading_out, holes.links_out, holes.run_logs, holes.odd_words):
        for word in table(project).values():
            side.checked(tool, **arguments(word))


@pytest.mark.parametrize("form", CODE_FORMS)
def test_running_refuses_paths_that_lead_out(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = CODE_FORMS[form]
    for what, path in (holes.leading_out(project) | holes.run_logs(project)).items():
        if side.name == "here" or what in FEW:
            answer = side.checked(tool, **arguments(path))
            assert answer.is_error, f"{what} ({path}): {answer}"
    for name in ("test_out.py", "outdir", "chain1", "marker", "runs") if side.name == "here" else ("outdir",):
        side.checked(tool, **arguments(name))


@pytest.mark.usual(opened="daemon")
def test_running_ends_at_a_pipe(side: Side, project: HostileProject) -> None:
    os.mkfifo(project.root / "pipe.py")
    try:
        for tool in ("run_lint", "run_tests"):
            side.checked(tool, paths=["pipe.py"], seconds=1.5)
        side.checked("project_diff", path="pipe.py")
    finally:
        (project.root / "pipe.py").unlink()


def few_or_all(side: Side, project: HostileProject, tool: str, few: tuple[str, ...]) -> list[str]:
    words = holes.odd_words(project)
    names: Any = (few if tool == "run_tests" else words) if side.name == "here" else few[:3]
    return [words[name] for name in names]


@pytest.mark.parametrize("form", WORD_FORMS)
@pytest.mark.usual(opened="stdio")
def test_words_for_a_program_stay_words(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = WORD_FORMS[form]
    few = ("NUL", "an output file", "a file of arguments", "a command", "a newline")
    for word in few_or_all(side, project, tool, few):
        side.checked(tool, **arguments(word))


@pytest.mark.parametrize("form", ["project_diff", "run_tests", "run_lint", "run_shell_safe in"])
@pytest.mark.usual(opened="daemon")
def test_paths_for_a_program_are_never_options(side: Side, project: HostileProject, form: str) -> None:
    tool, arguments = CODE_FORMS[form]
    few = ("NUL", "an output file", "a file of arguments", "a plugin", "a report", "a node", "a node after dots")
    for word in few_or_all(side, project, tool, few):
        side.checked(tool, **arguments(word))


@pytest.mark.usual(opened="stdio")
def test_an_existing_name_that_looks_like_an_option_is_a_name(side: Side, project: HostileProject) -> None:
    names = ["--output=here", "-pnothing", "@src", ":!test_ok.py"]
    for name in names:
        (project.root / name).mkdir(exist_ok=True)
        (project.root / name / "test_inner.py").write_text("def test_inner():\n    assert True\n")
    for name in names if side.name == "here" else names[:1]:
        ran = side.checked("run_tests", paths=[name], seconds=20)
        assert ran.data.get("passed") == 1, f"{name}: {ran}"
        linted = side.checked("run_lint", paths=[name], tools=["ruff"])
        assert not linted.is_error
        assert linted.data["tools"][0].get("state", "ran") == "ran", f"{name}: {linted}"
        diff = side.checked("project_diff", path=name)
        assert [path.rstrip("/") for path in diff.data["untracked"]] == [name], f"{name}: {diff}"
        assert side.checked("search_text", path=name, pattern="assert").data["matches"] == 1


ROUTES = {
    "absolute": "{outside}/{name}",
    "dots": "../outside/{name}",
    "through a link": "outdir/{name}",
    "through a link that goes up": "updir/{name}",
    "through a link to the top": "slash{outside}/{name}",
    "through a link to a process": "self/root{outside}/{name}",
}


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_does_not_show_whether_a_path_outside_exists(side: Side, project: HostileProject, route: str) -> None:
    for form, (tool, arguments) in TAKES_PATH.items():
        texts = set()
        for name in ("secret.txt", "deep", "absent") if tool != "project_diff" else ():
            answer = side.checked(tool, **arguments(ROUTES[route].format(outside=project.outside, name=name)))
            assert answer.is_error, answer
            texts.add(answer.text.replace(name, "NAME"))
        assert len(texts) <= 1, f"{form}: {texts}"


def test_links_and_other_arguments_show_nothing_from_outside(side: Side, project: HostileProject) -> None:
    for form, (tool, arguments) in READ_OR_WRITE.items():
        if tool != "stat_file":
            answers = [(name, side.checked(tool, **arguments(name))) for name in ("out.txt", "gone.txt")]
            assert len({answer.text.replace(name, "NAME") for name, answer in answers}) == 1, f"{form}: {answers}"
    for tool, arguments in TAKES_PATH.values():
        for name in ("root", "workdir", "workspace", "base_dir", "directory", "env", "environment", "unsafe"):
            answer = side.checked(tool, **{**arguments("secret.txt"), name: str(project.outside)})
            assert answer.is_error, f"{tool} took {name}: {answer}"
            assert name in answer.text
        if tool != "run_shell_safe":
            assert side.checked(tool, **{**arguments("secret.txt"), "cwd": str(project.outside)}).is_error


@pytest.mark.parametrize("path", ["\udcff", "src/\ud800.py", "../outside/\udfff"])
def test_half_a_character_is_refused(side: Side, path: str) -> None:
    if side.name == "stdio":
        pytest.skip("the SDK's client does not send it")
    for tool, arguments in {**TAKES_PATH, **PATTERN_FORMS, **WORD_FORMS}.values():
        answer = side.checked(tool, **arguments(path))
        assert answer.is_error, f"{tool}: {answer}"


def test_nothing_is_written_to_a_pipe_with_a_reader(side: Side, project: HostileProject) -> None:
    """With a process at its other end a pipe can be opened."""
    got: list[bytes] = []
    ready, over = threading.Event(), threading.Event()

    def listen() -> None:
        descriptor = os.open(project.root / "pipe", os.O_RDWR | os.O_NONBLOCK)
        ready.set()
        over.wait(60)
        try:
            got.append(os.read(descriptor, 1000))
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)

    listener = threading.Thread(target=listen)
    listener.start()
    ready.wait(60)
    try:
        for tool, arguments in READ_OR_WRITE.values():
            assert side.checked(tool, **arguments("pipe")).is_error or tool == "stat_file"
    finally:
        over.set()
        listener.join(60)
    assert got == []


def test_leaks_and_changes_would_be_noticed(shared_home: Home, tmp_path: Path) -> None:
    """The control: without a sandbox the words get out, and the program outside runs and leaves its mark."""
    project = traps.lay_traps(tmp_path)
    environ = shared_home.environ({traps.SECRET_NAME: traps.SECRET})
    with sides.in_process(project.root, environ=environ, unsafe=True) as side:
        answer = side.sh(f"cat ../outside/secret.txt .toolcrib/runs/log.txt; ls -la ../outside; {project.marker}")
    wanted = {traps.WORD, traps.NAME, str(traps.SIZE), traps.RAN, traps.RUN_LOG}
    assert wanted <= set(leaks_in(answer.whole)), answer
    assert f"{project.outside}/ran" in project.changes_outside()


# ---- random calls, where each finds what the last one left

NAMES = (
    *("a", "b.py", "src", "c", "test_x.py", "outdir", "out.txt", "door2", "notes.txt"),
    *(".toolcrib", ".git", "runs", ".."),
)


class Walker:
    """Draws calls. Half of the paths lead out, the others consist of a few names, so that they meet again."""

    def __init__(self, project: HostileProject, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311
        self.project = project
        tables = (holes.leading_out, holes.links_out, holes.run_logs, holes.never_writable, holes.odd_words)
        self.hostile = [path for table in tables for path in table(project).values() if "\0" not in path]
        self.forms = list({**READ_OR_WRITE, **PATTERN_FORMS}.values())
        slow = {**CODE_FORMS, **WORD_FORMS}
        self.slow = [form for form in slow.values() if form[0] in ("project_diff", "run_shell_safe")]

    def path(self) -> str:
        if self.draw.random() < 0.5:
            return self.draw.choice(self.hostile)
        return "/".join(self.draw.choice(NAMES) for _ in range(self.draw.randint(1, 4)))

    def call(self) -> tuple[str, Mapping[str, Any]]:
        chance = self.draw.random()
        if chance < 0.04:
            return "run_shell_safe", {"command": self.draw.choice(self.changes_by_code())}
        tool, arguments = self.draw.choice(self.slow if chance < 0.06 else self.forms)
        return tool, arguments(self.path())

    def changes_by_code(self) -> list[str]:
        name, other = self.draw.choice(NAMES[:9]), self.draw.choice(NAMES[:9])
        return [
            f"ln -sfn {self.project.outside} {name}",
            f"ln -sfn ../outside {name}/{other}",
            f"ln -sfn {self.project.outside}/secret.txt {name}",
            f"mv -T {name} {other}",
            f"rm -rf {name}; mkdir -p {name}/{other}",
            f"ln -sfn .git {name}; ln -sfn .toolcrib {other}",
            f"cp -a {name} {other}; chmod -R 700 {name}",
            f"rm -rf {name}; mkfifo {name}",
        ]

    def change_from_outside(self) -> None:
        """Another process changes the folder, with more rights than code inside has."""
        name = self.project.root / self.draw.choice(NAMES[:9])
        if name.is_dir() and not name.is_symlink():
            shutil.rmtree(name)
        else:
            name.unlink(missing_ok=True)
        targets = (self.project.outside, self.project.sibling, Path("/proc/self"), Path("../outside/deep"))
        name.symlink_to(self.draw.choice(targets))


@pytest.mark.parametrize("seed", [4, 9])
def test_no_order_of_calls_leads_out(
    hostile: HostileProject, environ: dict[str, str], seed: int, sized: Callable[[int, int], int]
) -> None:
    walker = Walker(hostile, seed)
    own = (hostile.root / ".toolcrib", hostile.root / ".git" / "hooks")
    before = snapshot(*own), (hostile.root / ".git" / "config").read_bytes()
    made: list[tuple[str, Mapping[str, Any]]] = []
    succeeded = 0
    # The number bounds it on a fast machine, the clock on a slow one.
    until = time.monotonic() + sized(7, 120)
    with sides.in_process(hostile.root, environ=environ) as side:
        for step in range(sized(1500, 100_000)):
            if time.monotonic() > until:
                break
            if step % 40 == 39:
                walker.change_from_outside()
            made.append(walker.call())
            answer = side.call(made[-1][0], **made[-1][1])
            succeeded += not answer.is_error
            assert not leaks_in(answer.whole), f"{made[-30:]}: {answer}"
            assert "a bug in the workspace" not in answer.text, f"{made[-30:]}: {answer}"
            if step % 100 == 0:
                assert not hostile.changes_outside(), made[-101:]
    assert not hostile.changes_outside(), made[-101:]
    assert (snapshot(*own), (hostile.root / ".git" / "config").read_bytes()) == before
    assert len(made) // 20 < succeeded < len(made), "some calls succeed and some fail"
