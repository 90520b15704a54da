"""The walk shows every visible file, in order, and nothing else, for any tree."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts.tool_context import make_files, open_descriptors, refused
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.globs import IgnoreRules, IgnoreRulesCache, IgnoreVerdict
from toolcrib.workspace.tools import walk as walking
from toolcrib.workspace.tools.walk import MAX_DEPTH, FolderWalk, IgnoredFiles, WalkLimit

pytestmark = pytest.mark.req("FRG-9")

CLOCK = "toolcrib.workspace.tools.walk.time.monotonic"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Iterator[Folder]:
    with contextlib.closing(Folder(root)) as folder:
        yield folder


def walk(folder: Folder, start: str = ".", **how: object) -> FolderWalk:
    return FolderWalk(folder, folder.path_of(start), until=time.monotonic() + 60, **how)  # type: ignore[arg-type]


def paths_of(entries: FolderWalk) -> list[str]:
    return ["/".join(entry.parts) for entry in entries]


def seen(folder: Folder, start: str = ".", **how: object) -> list[str]:
    return paths_of(walk(folder, start, **how))


# Only ASCII: to git `?` is one byte, here it is one character.
NAMES = ("a", "b", "ab", "a.o", "b.o", "c", "x y", ".h")
PARTS = (
    *("a", "b", "ab", "c", ".h", "ä", "*", "**", "***", "?", "*.o", "a*", "*b", "a**", "*.*", "x y", "x\\ y", "\\a"),
    *("a\\", "[ab]", "[!a]", "[^b]", "[a-b]", "[]a]", "[a", "[[:alpha:]]", ""),
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
    paths = "\0".join(map(str, everything)).encode()
    command = ["git", "-C", str(root), "check-ignore", "--no-index", "-z", "--stdin"]
    found = subprocess.run(command, input=paths, capture_output=True, check=False).stdout.decode().split("\0")
    ignored = {Path(name) for name in found if name}
    return {str(path) for path in everything if ignored.isdisjoint((path, *path.parents))}


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_show_the_files_that_git_does_not_ignore(
    tmp_path: Path, sized: Callable[[int, int], int], seed: int
):
    chance = random.Random(seed)  # noqa: S311
    for number in range(sized(25, 1000)):
        root = tmp_path / str(number)
        random_tree(root, chance)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        with contextlib.closing(Folder(root)) as folder:
            rules = {str(file.relative_to(root)): file.read_text() for file in root.rglob(".gitignore")}
            assert set(seen(folder)) == not_ignored_by_git(root), rules
        shutil.rmtree(root)


@pytest.mark.xfail(strict=True, reason="why our own code reads .gitignore files; once this passes, pathspec can")
def test_pathspec_decides_about_folders_as_git_does():
    pathspec = pytest.importorskip("pathspec")
    # Files in `build` can be included again because `build` itself is not ignored, so a walk must enter it.
    rules = pathspec.GitIgnoreSpec.from_lines(["build/**", "!build/keep"], backend="re2")
    assert not rules.match_file("build/")


def test_entries_are_sorted_and_have_their_kind(folder: Folder, root: Path):
    make_files(root, ("b/z", "b/a/x", "a.txt", "b-c", "c"))
    assert seen(folder) == ["a.txt", "b", "b/a", "b/a/x", "b/z", "b-c", "c"]
    (root / "link").symlink_to("b")
    os.mkfifo(root / "fifo")
    (root / os.fsdecode(b"caf\xe9")).touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        kinds = {os.fsencode(entry.name): entry.kind for entry in walk(folder, depth=1)}
    files = dict.fromkeys((b"a.txt", b"b-c", b"c", b"caf\xe9"), FileKind.FILE)
    others = {b"b": FileKind.FOLDER, b"fifo": FileKind.OTHER, b"link": FileKind.LINK, b"socket": FileKind.OTHER}
    assert kinds == files | others


def test_links_are_shown_and_only_followed_as_the_start_of_a_walk(folder: Folder, root: Path, tmp_path: Path):
    make_files(tmp_path, ("outside/secret", "root/a/b/c"))
    links = {"out": tmp_path / "outside", "a/loop": "..", "self": ".", "way": "a/b"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert seen(folder) == ["a", "a/b", "a/b/c", "a/loop", "out", "self", "way"]
    assert seen(folder, "way") == ["a/b/c"]


def test_ignored_files_and_folders_are_left_out_unless_named(folder: Folder, root: Path):
    make_files(root, ("build/x", "src/a.py", "src/a.pyc", "src/keep.pyc", "src/deep/only.txt", "src/deep/b.pyc"))
    make_files(root, ("node_modules/pkg/index.js", "node_modules/pkg/dist/x"))
    rules = {"": "build/\n*.pyc\nnode_modules/\n", "src/": "!keep.pyc\n", "src/deep/": "/only.txt\n"}
    make_files(root, {f"{place}.gitignore": text for place, text in rules.items()})
    make_files(root, {"node_modules/pkg/.gitignore": "dist\n"})
    left = [".gitignore", "src", "src/.gitignore", "src/a.py", "src/deep", "src/deep/.gitignore", "src/keep.pyc"]
    assert seen(folder) == left
    assert seen(folder, "src/deep") == ["src/deep/.gitignore"], "rules of outer folders apply"
    everything = seen(folder, ignored=IgnoredFiles.SHOWN)
    assert {"build", "build/x", "src/a.pyc", "src/deep/only.txt"} < set(everything)
    inside = ["node_modules/pkg", "node_modules/pkg/.gitignore", "node_modules/pkg/index.js"]
    assert seen(folder, "node_modules") == inside


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_gitignore_that_is_not_a_file_has_no_rules(folder: Folder, root: Path, tmp_path: Path, kind: str):
    make_files(tmp_path, {"rules": "a\n", "root/a": "", "root/b": ""})
    make = {"fifo": os.mkfifo, "link": lambda path: path.symlink_to(tmp_path / "rules"), "folder": Path.mkdir}[kind]
    make(root / ".gitignore")
    assert seen(folder) == [".gitignore", "a", "b"]


def test_git_and_run_logs_are_never_shown_and_toolcribs_folder_only_on_request(folder: Folder, root: Path):
    own = [".toolcrib/output", ".toolcrib/output/.gitignore", ".toolcrib/output/a.log", ".toolcrib/workspace.yml"]
    make_files(root, (".git/config", "sub/.GIT/x", ".toolcrib/runs/log", *own[2:], "f"))
    make_files(root, {own[1]: "*\n"})
    assert seen(folder) == ["f", "sub"]
    assert seen(folder, ".toolcrib") == own
    assert seen(folder, ignored=IgnoredFiles.SHOWN) == [".toolcrib", *own, "f", "sub"]
    for start in (".git", "sub/.GIT", ".toolcrib/runs"):
        refused("", seen, folder, start)


def test_files_hidden_by_the_settings_are_not_shown(root: Path):
    make_files(root, ("secrets/key", "a/.env", "a/b"))
    with contextlib.closing(Folder(root, hidden=("secrets/", ".env"))) as folder:
        assert seen(folder, ignored=IgnoredFiles.SHOWN) == ["a", "a/b"]


@pytest.fixture
def deep_tree(root: Path) -> Iterator[None]:
    try:
        here = os.open(root, os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("level", dir_fd=here)
            below = os.open("level", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        yield
    finally:
        # Python's rmtree is recursive, and this tree is deeper than its stack.
        subprocess.run(["rm", "-rf", "--", str(root / "level")], check=True, timeout=60)


@pytest.mark.usefixtures("deep_tree")
def test_a_walk_of_two_thousand_levels_ends_and_closes_its_descriptors(folder: Folder):
    before = open_descriptors()
    deep = walk(folder)
    opened = [open_descriptors() - before for _ in deep]
    assert len(opened) == MAX_DEPTH
    assert deep.stops == [WalkLimit.DEPTH]
    assert max(opened) <= MAX_DEPTH + 2
    for _ in range(50):
        entries = iter(walk(folder))
        for _ in range(3):
            next(entries)
        entries.close()  # type: ignore[attr-defined]
    assert open_descriptors() == before


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("content", ["kept", "*"], ids=["all shown", "all ignored"])
def test_the_time_limit_is_checked_between_entries(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, content: str
):
    make_files(root, (*(f"f{n:03}" for n in range(200)), *(f"g{n:03}/f" for n in range(20))))
    make_files(root, {".gitignore": f"{content}\n"})
    judged: list[str] = []
    verdict = IgnoreRules.verdict

    def slow(rules: IgnoreRules, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        judged.append(path)
        return verdict(rules, path, is_folder=is_folder)

    monkeypatch.setattr(IgnoreRules, "verdict", slow)
    monkeypatch.setattr(CLOCK, lambda: float(len(judged)))
    late = FolderWalk(folder, FolderPath(), until=2.5)
    assert len(list(late)) <= 3
    assert len(judged) == 3
    assert late.left_out <= 3
    assert late.stops == [WalkLimit.TIME]
    over = FolderWalk(folder, FolderPath(), until=2.5)
    assert (list(over), over.stops) == ([], [WalkLimit.TIME])


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


def test_rules_are_compiled_only_until_the_time_limit(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bytes]
):
    make_files(root, {f"d{n:02}/.gitignore": f"x{n}\n" for n in range(20)})
    monkeypatch.setattr(CLOCK, lambda: float(len(compiled)))
    late = FolderWalk(folder, FolderPath(), until=2.5)
    list(late)
    assert len(compiled) == 3
    assert late.stops == [WalkLimit.TIME]


def test_equal_rules_are_compiled_once_and_their_total_weight_is_limited(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[bytes]
):
    for n in range(6):
        make_files(root / f"d{n}", {"seen": "", "ignored": "", ".gitignore": "ignored\n"})
    assert [path for path in seen(folder) if path.endswith("/ignored")] == []
    assert len(compiled) == 1
    # Enough for three of them.
    monkeypatch.setattr(walking, "MAX_RULES", 3 * IgnoreRules(["ignored"]).weight)
    cut = walk(folder)
    assert [path for path in paths_of(cut) if path.endswith("/ignored")] == ["d3/ignored", "d4/ignored", "d5/ignored"]
    assert cut.stops == [WalkLimit.RULES]


def test_a_gitignore_that_is_too_large_is_reported(folder: Folder, root: Path):
    make_files(root, {"a": "", "b": "", ".gitignore": "a\n" + "*a" * 20 * 20_000})
    cut = walk(folder)
    assert paths_of(cut) == [".gitignore", "b"]
    assert cut.stops == [WalkLimit.RULES]


@pytest.mark.parametrize(
    ("limit", "most", "shown", "stop"),
    [("MAX_ENTRIES", 30, 30, WalkLimit.ENTRIES), ("MAX_FOLDER_NAMES", 5, 5 + 5 * 5, WalkLimit.ONE_FOLDER)],
)
def test_a_walk_stops_at_its_limits(
    folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, shown: int, stop: WalkLimit
):
    make_files(root, (f"d{n}/f{m}" for n in range(10) for m in range(10)))
    monkeypatch.setattr(walking, limit, most)
    many = walk(folder)
    assert (len(list(many)), many.stops) == (shown, [stop])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_counted(folder: Folder, root: Path):
    make_files(root, ("closed/a", "open/b"))
    (root / "closed").chmod(0)
    try:
        closed = walk(folder)
        assert paths_of(closed) == ["closed", "open", "open/b"]
        assert closed.unreadable == 1
    finally:
        (root / "closed").chmod(0o700)


def test_a_file_that_became_a_pipe_or_a_link_is_not_opened(folder: Folder, root: Path, tmp_path: Path):
    make_files(tmp_path, ("root/a", "root/b", "secret"))
    names = []
    for entry in walk(folder):
        (root / entry.name).unlink()
        if entry.name == "a":
            os.mkfifo(root / "a")
        else:
            (root / "b").symlink_to(tmp_path / "secret")
        with pytest.raises(OSError):
            entry.open()
        names.append(entry.name)
    assert names == ["a", "b"]
