"""The walk shows all that may be seen, in order, and nothing else, whatever the tree looks like."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts.racer import CANARY, Race, racing
from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.globs import IgnoreRules, IgnoreRulesCache, IgnoreVerdict
from toolcrib.workspace.tools import walk as walking
from toolcrib.workspace.tools.listing import (
    FindFilesArguments,
    FindFilesResult,
    ListDirArguments,
    ListDirResult,
    find_files,
    list_dir,
)
from toolcrib.workspace.tools.project_structure import (
    ProjectStructureArguments,
    ProjectStructureResult,
    project_structure,
)
from toolcrib.workspace.tools.search_text import SearchTextArguments, SearchTextResult, search_text
from toolcrib.workspace.tools.walk import MAX_DEPTH, FolderEntry, FolderWalk, IgnoredFiles, WalkLimit

pytestmark = pytest.mark.req("FRG-9")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Iterator[Folder]:
    with contextlib.closing(Folder(root)) as folder:
        yield folder


def lay(root: Path, *names: str, **contents: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text(contents.get(name, "x"))


def walk(folder: Folder, start: str = ".", **how: object) -> FolderWalk:
    return FolderWalk(folder, folder.path_of(start), until=time.monotonic() + 60, **how)  # type: ignore[arg-type]


def seen(folder: Folder, start: str = ".", **how: object) -> list[str]:
    return ["/".join(entry.parts) for entry in walk(folder, start, **how)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Not beyond ASCII: to git `?` is one byte, here it is one character.
NAMES = ("a", "b", "ab", "a.o", "b.o", "c", "x y", ".h")
PARTS = (
    *(
        "a",
        "b",
        "ab",
        "c",
        ".h",
        "ä",
        "*",
        "**",
        "***",
        "?",
        "*.o",
        "a*",
        "*b",
        "a**",
        "*.*",
        "x y",
        "x\\ y",
        "\\a",
        "a\\",
    ),
    *("[ab]", "[!a]", "[^b]", "[a-b]", "[]a]", "[a", "[[:alpha:]]", ""),
)


def random_pattern(chance: random.Random) -> str:
    pattern = "/".join(chance.choice(PARTS) for _ in range(chance.choice((1, 1, 1, 2, 2, 3))))
    before = ("!" if chance.random() < 0.3 else "") + ("/" if chance.random() < 0.2 else "")
    after = ("/" if chance.random() < 0.25 else "") + chance.choice((*[""] * 20, " ", "  ", "\\ ", "\t", "\r"))
    return f"{before}{pattern}{after}"


def random_tree(root: Path, chance: random.Random) -> None:
    """Two levels of folders, some with a `.gitignore` of their own."""
    tops = [root / name for name in chance.sample(NAMES, 3)]
    folders = [root, *tops, *(top / name for top in tops for name in chance.sample(NAMES, 2))]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    for folder in folders:
        for name in chance.sample(NAMES, 3):
            if not (folder / name).exists():
                (folder / name).touch()
        if folder == root or chance.random() < 0.35:
            lines = [random_pattern(chance) for _ in range(chance.randint(1, 4))]
            (folder / ".gitignore").write_text("\n".join(lines) + "\n")


def not_ignored_by_git(root: Path) -> set[str]:
    everything = [path.relative_to(root) for path in root.rglob("*") if ".git" not in path.relative_to(root).parts]
    asked = "\0".join(map(str, everything)).encode()
    words = ["git", "-C", str(root), "check-ignore", "--no-index", "-z", "--stdin"]
    said = subprocess.run(words, input=asked, capture_output=True, check=False).stdout.decode().split("\0")
    ignored = {Path(name) for name in said if name}
    return {str(path) for path in everything if ignored.isdisjoint((path, *path.parents))}


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_show_what_git_does_not_ignore(
    tmp_path: Path, sized: Callable[[int, int], int], seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    for number in range(sized(25, 1000)):
        root = tmp_path / str(number)
        random_tree(root, chance)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        with contextlib.closing(Folder(root)) as folder:
            rules = {str(file.relative_to(root)): file.read_text() for file in root.rglob(".gitignore")}
            assert set(seen(folder)) == not_ignored_by_git(root), rules
        shutil.rmtree(root)


@pytest.mark.xfail(strict=True, reason="why code of our own reads .gitignore files; once this passes, pathspec can")
def test_pathspec_decides_about_folders_as_git_does() -> None:
    pathspec = pytest.importorskip("pathspec")
    # What lies in `build` can be taken back, since `build` itself is not ignored; so a walk has to go in.
    rules = pathspec.GitIgnoreSpec.from_lines(["build/**", "!build/keep"], backend="re2")
    assert not rules.match_file("build/")


def test_entries_come_sorted_and_a_folder_before_what_it_holds(folder: Folder, root: Path):
    lay(root, "b/z", "b/a/x", "a.txt", "b-c", "c")
    found = seen(folder)
    assert found == ["a.txt", "b", "b/a", "b/a/x", "b/z", "b-c", "c"]


def test_every_kind_is_named_and_nothing_is_opened_to_know_it(folder: Folder, root: Path):
    lay(root, "file", "folder/inner")
    (root / "link").symlink_to("folder")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        kinds = {entry.name: entry.kind for entry in walk(folder, depth=1)}
    assert kinds == {
        "fifo": FileKind.OTHER,
        "file": FileKind.FILE,
        "folder": FileKind.FOLDER,
        "link": FileKind.LINK,
        "socket": FileKind.OTHER,
    }


def test_links_are_shown_and_never_followed(folder: Folder, root: Path, tmp_path: Path):
    lay(tmp_path, "outside/secret")
    lay(root, "a/b")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "a" / "loop").symlink_to("..")
    (root / "self").symlink_to(".")
    assert seen(folder) == ["a", "a/b", "a/loop", "out", "self"]


def test_a_link_that_is_named_and_stays_inside_is_walked_where_it_leads(folder: Folder, root: Path):
    lay(root, "a/b/c")
    (root / "way").symlink_to("a/b")
    assert seen(folder, "way") == ["a/b/c"]


def test_ignored_things_are_left_out_with_all_that_is_below(folder: Folder, root: Path):
    lay(root, "build/x", "src/a.py", "src/a.pyc", "src/keep.pyc", "src/deep/only.txt", "src/deep/b.pyc")
    (root / ".gitignore").write_text("build/\n*.pyc\n")
    (root / "src" / ".gitignore").write_text("!keep.pyc\n")
    (root / "src" / "deep" / ".gitignore").write_text("/only.txt\n")
    left = [".gitignore", "src", "src/.gitignore", "src/a.py", "src/deep", "src/deep/.gitignore", "src/keep.pyc"]
    assert seen(folder) == left
    assert seen(folder, "src/deep") == ["src/deep/.gitignore"], "rules from above count below"
    everything = seen(folder, ignored=IgnoredFiles.SHOWN)
    assert {"build", "build/x", "src/a.pyc", "src/deep/only.txt"} < set(everything)


def test_a_folder_that_is_named_is_shown_though_it_is_ignored(folder: Folder, root: Path):
    lay(root, "node_modules/pkg/index.js", "node_modules/pkg/dist/x")
    (root / ".gitignore").write_text("node_modules/\n")
    (root / "node_modules/pkg/.gitignore").write_text("dist\n")
    assert seen(folder, "node_modules") == [
        "node_modules/pkg",
        "node_modules/pkg/.gitignore",
        "node_modules/pkg/index.js",
    ]


@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_a_gitignore_that_is_no_file_says_nothing(folder: Folder, root: Path, tmp_path: Path, what: str):
    lay(root, "a", "b")
    (tmp_path / "rules").write_text("a\n")
    make = {
        "fifo": os.mkfifo,
        "link": lambda path: path.symlink_to(tmp_path / "rules"),
        "folder": lambda path: path.mkdir(),
    }[what]
    make(root / ".gitignore")
    assert seen(folder) == [".gitignore", "a", "b"]


def test_git_and_run_logs_are_never_shown_and_toolcribs_folder_only_if_asked_for(folder: Folder, root: Path):
    lay(
        root,
        ".git/config",
        "sub/.GIT/x",
        ".toolcrib/runs/log",
        ".toolcrib/output/a.log",
        ".toolcrib/workspace.yml",
        "f",
    )
    (root / ".toolcrib" / "output" / ".gitignore").write_text("*\n")
    assert seen(folder) == ["f", "sub"]
    own = [".toolcrib/output", ".toolcrib/output/.gitignore", ".toolcrib/output/a.log", ".toolcrib/workspace.yml"]
    assert seen(folder, ".toolcrib") == own
    assert seen(folder, ignored=IgnoredFiles.SHOWN) == [".toolcrib", *own, "f", "sub"]
    for start in (".git", "sub/.GIT", ".toolcrib/runs"):
        with pytest.raises(WorkspaceError):
            seen(folder, start)


def test_what_the_settings_hide_is_not_shown(root: Path):
    lay(root, "secrets/key", "a/.env", "a/b")
    with contextlib.closing(Folder(root, hidden=("secrets/", ".env"))) as folder:
        assert seen(folder, ignored=IgnoredFiles.SHOWN) == ["a", "a/b"]


@pytest.fixture
def deep_tree(root: Path) -> Iterator[Path]:
    try:
        here = os.open(root, os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("level", dir_fd=here)
            below = os.open("level", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        yield root
    finally:
        # Python's rmtree would go as deep as the tree, and no deeper than its stack.
        subprocess.run(["rm", "-rf", "--", str(root / "level")], check=True, timeout=60)


@pytest.mark.usefixtures("deep_tree")
def test_a_tree_of_two_thousand_levels_ends_and_holds_few_descriptors(folder: Folder):
    before = descriptors()
    most = 0
    deep = walk(folder)
    count = 0
    for count, _ in enumerate(deep, start=1):  # noqa: B007 - it counts
        most = max(most, descriptors() - before)
    assert count == MAX_DEPTH
    assert deep.stops == [WalkLimit.DEPTH]
    assert most <= MAX_DEPTH + 2
    assert descriptors() == before


def test_a_walk_that_is_left_early_closes_what_it_opened(folder: Folder, root: Path):
    lay(root, "a/b/c/d")
    before = descriptors()
    for _ in range(50):
        entries = iter(walk(folder))
        for _ in range(3):
            next(entries)
        entries.close()  # type: ignore[attr-defined]
    assert descriptors() == before


def test_a_walk_ends_when_its_time_is_up(folder: Folder, root: Path):
    for n in range(2000):
        (root / f"f{n}").touch()
    late = FolderWalk(folder, FolderPath(), until=time.monotonic() - 1)
    assert list(late) == []
    assert late.stops == [WalkLimit.TIME]


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("content", ["kept", "*"])
def test_the_clock_is_looked_at_between_two_entries_and_two_folders(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, content: str
):
    """Also where .gitignore leaves out every one of them, and none is shown."""
    lay(root, *(f"f{n:03}" for n in range(200)), *(f"g{n:03}/f" for n in range(20)))
    (root / ".gitignore").write_text(f"{content}\n")
    judged: list[str] = []
    verdict = IgnoreRules.verdict

    def slow(rules: IgnoreRules, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        judged.append(path)
        return verdict(rules, path, is_folder=is_folder)

    monkeypatch.setattr(IgnoreRules, "verdict", slow)
    monkeypatch.setattr("toolcrib.workspace.tools.walk.time.monotonic", lambda: float(len(judged)))
    late = FolderWalk(folder, FolderPath(), until=2.5)
    assert len(list(late)) <= 3
    assert len(judged) == 3
    assert late.left_out <= 3
    assert late.stops == [WalkLimit.TIME]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The .gitignore files whose patterns were compiled since."""
    found: list[bytes] = []
    of_file = IgnoreRules.of_file

    def counted(content: bytes) -> IgnoreRules:
        found.append(content)
        return of_file(content)

    monkeypatch.setattr(IgnoreRules, "of_file", counted)
    monkeypatch.setattr(walking, "_known_rules", IgnoreRulesCache())
    return found


def test_rules_are_read_only_while_there_is_time(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bytes]
):
    for n in range(20):
        lay(root, f"d{n:02}/f")
        (root / f"d{n:02}/.gitignore").write_text(f"x{n}\n")
    monkeypatch.setattr("toolcrib.workspace.tools.walk.time.monotonic", lambda: float(len(compiled)))
    late = FolderWalk(folder, FolderPath(), until=2.5)
    list(late)
    assert len(compiled) == 3
    assert late.stops == [WalkLimit.TIME]


def test_the_same_rules_are_made_once_and_heavy_ones_not_without_end(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bytes]
):
    for n in range(6):
        lay(root, f"d{n}/seen", f"d{n}/ignored")
        (root / f"d{n}/.gitignore").write_text("ignored\n")
    assert [path for path in seen(folder) if path.endswith("/ignored")] == []
    assert len(compiled) == 1
    # Enough for three of them.
    monkeypatch.setattr(walking, "MAX_RULES", 3 * IgnoreRules(["ignored"]).weight)
    cut = walk(folder)
    shown = ["/".join(entry.parts) for entry in cut]
    assert [path for path in shown if path.endswith("/ignored")] == ["d3/ignored", "d4/ignored", "d5/ignored"]
    assert cut.stops == [WalkLimit.RULES]


def test_a_gitignore_that_is_too_large_is_told(folder: Folder, root: Path):
    lay(root, "a", "b")
    (root / ".gitignore").write_text("a\n" + "*a" * 20 * 20_000)
    cut = walk(folder)
    assert [entry.name for entry in cut] == [".gitignore", "b"]
    assert cut.stops == [WalkLimit.RULES]


def test_a_walk_ends_at_its_most_entries(folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch):
    lay(root, *(f"d{n}/f{m}" for n in range(10) for m in range(10)))
    monkeypatch.setattr(walking, "MAX_ENTRIES", 30)
    many = walk(folder)
    assert len(list(many)) == 30
    assert many.stops == [WalkLimit.ENTRIES]
    monkeypatch.undo()
    monkeypatch.setattr(walking, "MAX_FOLDER_NAMES", 5)
    wide = walk(folder)
    assert len(list(wide)) == 5 + 5 * 5
    assert wide.stops == [WalkLimit.ONE_FOLDER]


def test_names_that_are_no_utf8_come_as_they_are(folder: Folder, root: Path):
    (root / os.fsdecode(b"caf\xe9")).write_text("x")
    assert [os.fsencode(entry.name) for entry in walk(folder)] == [b"caf\xe9"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_is_closed_to_us_is_counted(folder: Folder, root: Path):
    lay(root, "closed/a", "open/b")
    (root / "closed").chmod(0)
    try:
        shut = walk(folder)
        assert ["/".join(e.parts) for e in shut] == ["closed", "open", "open/b"]
        assert shut.unreadable == 1
    finally:
        (root / "closed").chmod(0o700)


def test_a_file_that_became_a_pipe_or_a_link_is_not_opened(folder: Folder, root: Path, tmp_path: Path):
    lay(root, "a", "b")
    lay(tmp_path, "secret")
    entries: dict[str, FolderEntry] = {}
    for entry in walk(folder):
        (root / entry.name).unlink()
        if entry.name == "a":
            os.mkfifo(root / "a")
        else:
            (root / "b").symlink_to(tmp_path / "secret")
        with pytest.raises(OSError):
            entry.open()
        entries[entry.name] = entry
    assert set(entries) == {"a", "b"}


async def everything_told(race: Race, seconds: float) -> tuple[int, int]:
    """What the walking tools tell while names are swapped; how often they were asked, and how often refused."""
    tries = refused = 0
    end = time.monotonic() + seconds
    with scene_in(race.root) as scene:
        for path in itertools.cycle((".", "door", "door/sub", "hall", "hall/way")):
            if time.monotonic() > end:
                return tries, refused
            tries += 4
            for ask in (
                lambda path=path: list_dir(scene, ListDirArguments(path=path, depth=5)),
                lambda path=path: find_files(scene, FindFilesArguments(glob="**", path=path)),
                lambda path=path: project_structure(scene, ProjectStructureArguments(path=path)),
                lambda path=path: search_text(scene, SearchTextArguments(pattern="lies", path=path)),
            ):
                try:
                    done = ask()
                    done = await done if not hasattr(done, "data") else done
                except WorkspaceError as error:
                    refused += 1
                    told = error.text()
                else:
                    told = done.text
                    assert isinstance(
                        done.data, ListDirResult | FindFilesResult | ProjectStructureResult | SearchTextResult
                    )
                assert CANARY.split(":")[0] not in told
                assert "canary" not in told
    raise AssertionError("unreachable")


@pytest.mark.slow
async def test_nothing_outside_is_listed_or_searched_while_names_are_swapped(
    tmp_path: Path, sized: Callable[[int, int], int], record_property: Callable[[str, object], None]
):
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    with racing(tmp_path / "root", tmp_path / "outside") as race:
        # Their names and their text are only outside.
        (race.outside / "canary-name").write_text(CANARY)
        (race.outside / "sub" / "canary-name").write_text(CANARY)
        (race.outside / "way" / "canary-name").write_text(CANARY)
        tries, refused = await everything_told(race, sized(3, 10))
    told = f"list, find, structure, search: {tries} tries, {refused} refused, {race.swaps} swaps, 0 escapes"
    print(told)
    record_property("race", told)
    assert tries > 200
    assert 0 < refused < tries
