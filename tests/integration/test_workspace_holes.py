"""Every path that leads out, at every tool that takes a path, from three sides: nothing outside is touched or told.

The tables are in `parts/holes.py`, the ground in `parts/traps.py`. A control without a sandbox shows that what must
never turn up would be seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from parts import holes, sides, traps
from parts.daemon import Home, StartDaemon
from parts.holes import CODE_FORMS, FILE_FORMS, PATTERN_FORMS, WORD_FORMS, WRITE_FORMS
from parts.sides import Said, Side
from parts.traps import Ground, leaked

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow]

FEW = (
    "absolute",
    "dots",
    "a sibling that begins alike",
    "variables of the server",
    "through a link",
    "its root",
    "a log through a link",
)
"""One of each kind, for what takes long: a server passes paths on to the same code."""
MOST_SECONDS = 15.0
"""For any of these calls. Whoever waits at a pipe's end waits longer."""


@pytest.fixture(scope="module", params=sides.NAMES)
def opened(request: pytest.FixtureRequest, shared_home: Home, bwrap: Path) -> Iterator[tuple[Side, Ground]]:
    """A side and its ground; each side has a ground of its own."""
    name = f"p-{request.param}"
    place = shared_home.path / request.param
    place.mkdir()
    ground = traps.lay(place, name=name)
    secret = {traps.SECRET_NAME: traps.SECRET}
    if request.param == "stdio":
        with sides.over_stdio(shared_home, env=secret, root=ground.root) as side:
            yield side, ground
    elif request.param == "daemon":
        start: StartDaemon = request.getfixturevalue("start_shared_daemon")
        with sides.at_daemon(start, ground.root, env=secret) as side:
            yield side, ground
    else:
        with sides.in_process(ground.root, environ=shared_home.environ(secret)) as side:
            yield side, ground


@pytest.fixture
def there(opened: tuple[Side, Ground]) -> Iterator[tuple[Side, Ground]]:
    yield opened
    assert not opened[1].harm()


def tried(side: Side, tool: str, arguments: Mapping[str, object]) -> Said:
    """The answer, which is a result or words, and tells nothing of outside."""
    said = side.call(tool, **arguments)
    assert not leaked(said.whole), f"{tool} {arguments} tells {leaked(said.whole)}: {said}"
    assert said.text.strip(), f"{tool} {arguments} says nothing"
    assert "a bug in the workspace" not in said.text, f"{tool} {arguments}: {said}"
    return said


@pytest.mark.parametrize("form", FILE_FORMS)
def test_a_path_that_leads_out_is_refused_by_whatever_reads(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = FILE_FORMS[form]
    for what, path in (holes.leading_out(ground) | holes.run_logs(ground)).items():
        said = tried(side, tool, arguments(path))
        assert said.is_error, f"{what} ({path}): {said}"


@pytest.mark.parametrize("form", FILE_FORMS)
def test_of_a_link_that_leads_out_only_the_link_is_told(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = FILE_FORMS[form]
    for what, path in holes.links_out(ground).items():
        said = tried(side, tool, arguments(path))
        if tool == "stat_file":
            assert said.data["kind"] == "link", f"{what}: {said}"
            assert str(ground.outside) not in said.whole, f"{what}: {said}"
        else:
            assert said.is_error, f"{what}: {said}"


@pytest.mark.parametrize("form", WRITE_FORMS)
def test_a_path_that_leads_out_is_never_written(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = WRITE_FORMS[form]
    for what, path in (holes.leading_out(ground) | holes.links_out(ground) | {"hard": "hard.txt"}).items():
        link = (ground.root / path).readlink() if (ground.root / path).is_symlink() else None
        said = tried(side, tool, arguments(path))
        assert said.is_error, f"{what} ({path}): {said}"
        # A link is not replaced by a file either.
        assert link is None or (ground.root / path).readlink() == link, what


def names_in(ground: Ground) -> set[Path]:
    return {*ground.root.iterdir(), *(ground.root / "src").iterdir()}


@pytest.mark.parametrize("form", WRITE_FORMS)
def test_what_is_git_s_or_toolcrib_s_is_not_written_and_not_made(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = WRITE_FORMS[form]
    before = traps.seen(ground.root / ".git") | traps.seen(ground.root / ".toolcrib") | traps.seen(ground.root / "sub")
    names = names_in(ground)
    for what, path in holes.never_writable(ground).items():
        said = tried(side, tool, arguments(path))
        assert said.is_error, f"{what} ({path}): {said}"
    after = traps.seen(ground.root / ".git") | traps.seen(ground.root / ".toolcrib") | traps.seen(ground.root / "sub")
    assert after == before
    assert names_in(ground) == names


@pytest.mark.parametrize("form", [*FILE_FORMS, *WRITE_FORMS])
def test_pipes_sockets_and_devices_are_neither_waited_for_nor_written(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = {**FILE_FORMS, **WRITE_FORMS}[form]
    for name in ("pipe", "door", "zeros"):
        if not os.path.lexists(ground.root / name):
            continue
        mode = (ground.root / name).stat().st_mode
        said = tried(side, tool, arguments(name))
        assert said.is_error or tool == "stat_file", f"{name}: {said}"
        assert (ground.root / name).stat().st_mode == mode


@pytest.mark.parametrize("form", [*FILE_FORMS, *WRITE_FORMS])
def test_odd_words_are_names_or_are_refused(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = {**FILE_FORMS, **WRITE_FORMS}[form]
    for word in holes.odd_words(ground).values():
        tried(side, tool, arguments(word))


@pytest.mark.parametrize("form", PATTERN_FORMS)
def test_no_pattern_reaches_beyond_the_folder(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = PATTERN_FORMS[form]
    table = holes.leading_out(ground) | holes.links_out(ground) | holes.run_logs(ground) | holes.odd_words(ground)
    for word in table.values():
        tried(side, tool, arguments(word))


def asked_of(side: Side, table: Mapping[str, str]) -> Mapping[str, str]:
    return table if side.name == "here" else {what: path for what, path in table.items() if what in FEW}


@pytest.mark.parametrize("form", CODE_FORMS)
def test_a_path_that_leads_out_is_refused_by_whatever_runs(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = CODE_FORMS[form]
    for what, path in asked_of(side, holes.leading_out(ground) | holes.run_logs(ground)).items():
        said = tried(side, tool, arguments(path))
        assert said.is_error, f"{what} ({path}): {said}"


@pytest.mark.parametrize("form", CODE_FORMS)
def test_what_runs_sees_nothing_behind_a_link(there: tuple[Side, Ground], form: str) -> None:
    side, _ = there
    tool, arguments = CODE_FORMS[form]
    names = ("test_out.py", "outdir", "chain1", "marker", "runs") if side.name == "here" else ("outdir",)
    for name in names:
        tried(side, tool, arguments(name))


@pytest.mark.usual(opened="daemon")
def test_what_runs_is_ended_at_a_pipe(there: tuple[Side, Ground]) -> None:
    side, ground = there
    os.mkfifo(ground.root / "pipe.py")
    try:
        for tool in ("run_lint", "run_tests"):
            tried(side, tool, {"paths": ["pipe.py"], "seconds": 1.5})
        tried(side, "project_diff", {"path": "pipe.py"})
    finally:
        (ground.root / "pipe.py").unlink()


@pytest.mark.parametrize("form", WORD_FORMS)
@pytest.mark.usual(opened="stdio")
def test_a_word_given_to_a_program_stays_a_word(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = WORD_FORMS[form]
    few = ("NUL", "an output file", "a file of arguments", "a command", "a newline")
    heavy = few if tool == "run_tests" else holes.odd_words(ground)
    for what in heavy if side.name == "here" else few[:3]:
        tried(side, tool, arguments(holes.odd_words(ground)[what]))


@pytest.mark.parametrize("form", ["project_diff", "run_tests", "run_lint", "run_shell_safe in"])
@pytest.mark.usual(opened="daemon")
def test_odd_words_are_no_options_of_what_runs(there: tuple[Side, Ground], form: str) -> None:
    side, ground = there
    tool, arguments = CODE_FORMS[form]
    few = ("NUL", "an output file", "a file of arguments", "a plugin", "a report", "a node", "a node after dots")
    heavy = few if tool == "run_tests" else holes.odd_words(ground)
    for what in heavy if side.name == "here" else few[:3]:
        tried(side, tool, arguments(holes.odd_words(ground)[what]))


@pytest.mark.usual(opened="stdio")
def test_a_name_that_looks_like_an_option_is_a_name(there: tuple[Side, Ground]) -> None:
    """Where such a file is really there, it gets as far as the program."""
    side, ground = there
    names = ["--output=here", "-pnothing", "@src", ":!test_ok.py"]
    for name in names:
        (ground.root / name).mkdir(exist_ok=True)
        (ground.root / name / "test_inner.py").write_text("def test_inner():\n    assert True\n")
    for name in names if side.name == "here" else names[:1]:
        ran = tried(side, "run_tests", {"paths": [name], "seconds": 20})
        assert ran.data.get("passed") == 1, f"{name}: {ran}"
        linted = tried(side, "run_lint", {"paths": [name], "tools": ["ruff"]})
        assert not linted.is_error
        assert linted.data["tools"][0].get("state", "ran") == "ran", f"{name}: {linted}"
        differs = tried(side, "project_diff", {"path": name})
        assert [path.rstrip("/") for path in differs.data["untracked"]] == [name], f"{name}: {differs}"
        found = tried(side, "search_text", {"path": name, "pattern": "assert"})
        assert found.data["matches"] == 1


ROUTES = {
    "absolute": "{outside}/{name}",
    "dots": "../outside/{name}",
    "through a link": "outdir/{name}",
    "through a link that goes up": "updir/{name}",
    "through a link to the top": "slash{outside}/{name}",
    "through a link to a process": "self/root{outside}/{name}",
}


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_does_not_tell_whether_something_is_there(there: tuple[Side, Ground], route: str) -> None:
    """A file, a folder, nothing at all: the same words for each."""
    side, ground = there
    names = ("secret.txt", "deep", "absent")
    for form in (*FILE_FORMS, *WRITE_FORMS, *CODE_FORMS):
        tool, arguments = {**FILE_FORMS, **WRITE_FORMS, **CODE_FORMS}[form]
        if tool == "project_diff":
            continue
        told = set()
        for name in names:
            path = ROUTES[route].format(outside=ground.outside, name=name)
            said = tried(side, tool, arguments(path))
            assert said.is_error, said
            told.add(said.text.replace(name, "NAME"))
        assert len(told) == 1, f"{form}: {told}"


def test_links_out_are_told_alike_whether_they_lead_to_something_or_not(there: tuple[Side, Ground]) -> None:
    side, _ = there
    for form, (tool, arguments) in {**FILE_FORMS, **WRITE_FORMS}.items():
        if tool == "stat_file":
            continue
        told = {tried(side, tool, arguments(name)).text.replace(name, "NAME") for name in ("out.txt", "gone.txt")}
        assert len(told) == 1, f"{form}: {told}"


def test_no_argument_chooses_another_root(there: tuple[Side, Ground]) -> None:
    side, ground = there
    every = {**FILE_FORMS, **WRITE_FORMS, **CODE_FORMS}
    for tool, arguments in every.values():
        for name in ("root", "workdir", "workspace", "base_dir", "directory", "env", "environment", "unsafe"):
            given = {**arguments("secret.txt"), name: str(ground.outside)}
            said = tried(side, tool, given)
            assert said.is_error, f"{tool} took {name}: {said}"
            assert name in said.text
        if tool != "run_shell_safe":
            assert tried(side, tool, {**arguments("secret.txt"), "cwd": str(ground.outside)}).is_error


@pytest.mark.parametrize("path", ["\udcff", "src/\ud800.py", "../outside/\udfff"])
def test_half_a_character_is_refused_in_words(there: tuple[Side, Ground], path: str) -> None:
    side, _ = there
    if side.name == "stdio":
        pytest.skip("the SDK's client does not send it")
    for tool, arguments in {**FILE_FORMS, **WRITE_FORMS, **CODE_FORMS, **PATTERN_FORMS, **WORD_FORMS}.values():
        said = tried(side, tool, arguments(path))
        assert said.is_error, f"{tool}: {said}"


def test_a_waiting_reader_of_a_pipe_gets_nothing(there: tuple[Side, Ground]) -> None:
    """With somebody at the other end a pipe can be opened; it is no file all the same."""
    side, ground = there
    got: list[bytes] = []

    def listen() -> None:
        descriptor = os.open(ground.root / "pipe", os.O_RDWR | os.O_NONBLOCK)
        ready.set()
        over.wait(60)
        try:
            got.append(os.read(descriptor, 1000))
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)

    ready, over = threading.Event(), threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    ready.wait(60)
    try:
        for tool, arguments in {**FILE_FORMS, **WRITE_FORMS}.values():
            assert tried(side, tool, arguments("pipe")).is_error or tool == "stat_file"
    finally:
        over.set()
        listener.join(60)
    assert got == []


def test_what_must_never_turn_up_would_be_seen(shared_home: Home, tmp_path: Path) -> None:
    """The control: without a sandbox the same words get out, the program outside runs, and its mark is found."""
    ground = traps.lay(tmp_path)
    environ = shared_home.environ({traps.SECRET_NAME: traps.SECRET})
    with sides.in_process(ground.root, environ=environ, unsafe=True) as side:
        said = side.sh(f"cat ../outside/secret.txt .toolcrib/runs/log.txt; ls -la ../outside; {ground.marker}")
    wanted = {traps.WORD, traps.NAME, str(traps.SIZE), traps.RAN, traps.RUN_LOG}
    assert wanted <= set(leaked(said.whole)), said
    assert f"{ground.outside}/ran" in ground.harm()
