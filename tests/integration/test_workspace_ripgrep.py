"""ripgrep in the real sandbox makes a search faster: the matches are the same, and nothing outside is leaked."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.racer import CANARY, INSIDE, racing
from parts.sandboxes import open_sandbox
from parts.tool_context import tool_context
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.regex import CaseRule, search_pattern
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools import search_text as searching
from toolcrib.workspace.tools.search_text import SearchTextArguments, SearchTextResult, files_worth_opening, search_text
from toolcrib.workspace.tools.walk import FolderWalk, IgnoredFiles

pytestmark = [pytest.mark.req("FRG-1"), pytest.mark.usefixtures("bwrap", "ripgrep")]


@contextlib.asynccontextmanager
async def sandboxed(root: Path, **chosen: Any) -> AsyncIterator[ToolContext]:
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    with tool_context(root, **chosen) as scene:
        async with open_sandbox(root, scene.settings, environ=environ) as sandbox:

            async def get_sandbox() -> Sandbox:
                return sandbox

            yield dataclasses.replace(scene, folder=sandbox.folder, sandbox=get_sandbox, environ=environ)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def worth_opening(scene: ToolContext, given: SearchTextArguments) -> set[str] | None:
    found = await files_worth_opening(
        scene,
        search_pattern(given.pattern, literal=given.literal, case=given.case),
        scene.folder.path_of(given.path),
        globs=given.glob,
        ignored=IgnoredFiles.SHOWN if given.ignored else IgnoredFiles.LEFT_OUT,
        until=time.monotonic() + 60,
    )
    return None if found is None else {"/".join(parts) for parts in found}


async def search(scene: ToolContext, given: SearchTextArguments) -> SearchTextResult:
    data = (await search_text(scene, given)).data
    assert isinstance(data, SearchTextResult)
    return data


WORDS = (
    "needle", "Needle", "NEEDLE", "néedle", "É", "é", "\u017f", "s", "S", "k", "\u212a", "٣", "3", "_", "a", "b",
    "ab", "foo bar", "foo\tbar", "foo.bar", "{,5}", "a{,5}b", "[", "]", "[a&&b]", "--", "~~", "<a>", "\\", "/", "#",
    "-", "^", "$", "b{start}", "a-b", "x&y", "\u2028", "\xa0", "\x0b", "\x0c", "日本", "",
)  # fmt: skip
PATTERNS = (
    r"needle", r"(?i)needle", r"n.edle", r"\bneedle\b", r"\bedle", r"n\B", r"\W", r"^\W$", r"\w\W\w", r"\D\d",
    r"^\S+$", r"\s", r"^\s*$", r"[\d_]", r"[^\w]$", r"[^\W\d]", r"[\D]3", r"foo\sbar", r"foo[\s.]bar", r"a{,5}b",
    r"a{2}", r"a{1,2}b", r"[[]", r"[]a]b", r"[^]a]b", r"[a&&b]", r"[~a]~", r"[x&]y", r"\<a\>", r"\-", r"a\-b",
    r"[a\-z]-", r"\Q[a&&b]\E", r"(?<n>a)b", r"(?P<n>a)-b", r"[[:alpha:]]\W", r"[[:^alpha:]]", r"\pL\PL", r"\p{Greek}",
    r"\x{e9}", r"\xe9e", r"(?U)a+b", r"(?s)a.b", r"^", r"$", r"^$", r"(?:a|b)$", r"\bb\{start}", r"b{start}",
    r"[a-z&&[^a]]", r"k", r"(?i)k", r"(?i)s$", r"\r$", r"#", r"a#b|/", r"\v", r"\f", r"[^\x00-\x7f]", r"é|٣", r".",
    r"...", r"日.", r"\\", r"[\\/]", r"\^|\$",
)  # fmt: skip


def make_tree(root: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    for number in range(80):
        folder = root.joinpath(*chance.choices(["src", "deep", ".hidden", "build", "näme"], k=chance.randint(0, 3)))
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["".join(chance.choices(WORDS, k=chance.randint(0, 3))) for _ in range(chance.randint(0, 6))]
        text = chance.choice(["\n", "\n", "\r\n"]).join(lines) + chance.choice(["", "\n"])
        data = chance.choice([b"", b"", b"", b"\xef\xbb\xbf"]) + text.encode()
        data += chance.choice([b"", b"", b"", b"\xe9\xff needle", b"\0 needle", b"x" * 70_000 + b"\0needle"])
        (folder / f"f{number}.{chance.choice(['py', 'txt', 'md'])}").write_bytes(data)
        if chance.random() < 0.1:
            rules = chance.choices(["*.md", "build/", "!f1*", "/src", "deep/**", "f?.py", "**/.hidden"], k=2)
            (folder / ".gitignore").write_text("\n".join(rules) + "\n")
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("needle\n")
    (root / "new\nline.txt").write_text("needle\n")


@pytest.mark.parametrize("seed", range(3))
async def test_ripgrep_names_every_matching_file(root: Path, seed: int) -> None:
    make_tree(root, seed)
    answered = fitting = 0
    async with sandboxed(root, output=10_000_000) as scene:
        alone = dataclasses.replace(scene, environ={})
        for number, pattern in enumerate(PATTERNS):
            # Search everything, or a part selected by all arguments at once.
            given = SearchTextArguments(pattern=pattern, limit=1000, ignored=True)
            if seed:
                given = SearchTextArguments(
                    pattern=pattern,
                    case=list(CaseRule)[number % 3],
                    limit=1000,
                    ignored=number % 7 == 0,
                    path="." if number % 5 else "src",
                    glob=[[], [], [], ["*.py"], ["src/**"], ["*.txt", "*.md"]][number % 6],
                )
            data = await search(alone, given)
            assert not data.truncated
            named = await worth_opening(scene, given)
            if named is None:
                # ripgrep does not support the pattern, and the search continues without it.
                continue
            answered += 1
            files = {file.path for file in data.files if not file.escaped}
            fitting += len(files)
            assert files - named == set(), f"{pattern!r} {given}"
    assert answered > 0.8 * len(PATTERNS)
    assert fitting > 300


async def test_a_long_search_opens_only_files_that_ripgrep_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(60):
        (root / f"d{n:02}").mkdir()
        for m in range(20):
            (root / f"d{n:02}" / f"f{m:02}").write_text("needle\n" if (n, m) in {(7, 3), (59, 19)} else "hay\n")
    (root / ".gitignore").write_text("d03/\n")
    opened: list[str] = []
    look_into = searching._RunningSearch._look_into
    narrowed = threading.Event()
    narrow = searching._ask_ripgrep

    def watched(search: searching._RunningSearch, parts: tuple[str, ...], descriptor: int) -> None:
        opened.append("/".join(parts))
        look_into(search, parts, descriptor)
        # The first file takes as long as ripgrep takes for all.
        assert narrowed.wait(60)

    async def watched_narrow(scene: ToolContext, search: searching._RunningSearch) -> None:
        await narrow(scene, search)
        narrowed.set()

    monkeypatch.setattr(searching._RunningSearch, "_look_into", watched)
    monkeypatch.setattr(searching, "_ask_ripgrep", watched_narrow)
    monkeypatch.setattr(searching, "RIPGREP_AFTER", 0.0)
    async with sandboxed(root) as scene:
        data = await search(scene, SearchTextArguments(pattern="needle"))
    assert [file.path for file in data.files] == ["d07/f03", "d59/f19"]
    assert opened == [".gitignore", "d07/f03", "d59/f19"]
    assert data.ignored == 1


async def test_long_output_of_ripgrep_leaves_no_file(root: Path) -> None:
    for n in range(1500):
        (root / f"{'long-name-' * 6}{n}").write_text("needle\n")
    async with sandboxed(root) as scene:
        named = await worth_opening(scene, SearchTextArguments(pattern="needle"))
    assert named is not None
    assert len(named) == 1500
    assert not (root / ".toolcrib" / "output").exists()


@pytest.mark.req("FRG-9")
async def test_ripgrep_names_no_file_outside_and_no_hidden_file(root: Path, tmp_path: Path) -> None:
    for name in ("outside", "root/.toolcrib/runs", "root/.git", "root/src"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "canary.txt").write_text(CANARY)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "link.txt").symlink_to(tmp_path / "outside" / "canary.txt")
    os.mkfifo(root / "fifo")
    async with sandboxed(root) as scene:
        for ignored in (False, True):
            named = await worth_opening(scene, SearchTextArguments(pattern="canary", ignored=ignored))
            assert named == {"src/canary.txt"}


async def test_a_search_works_without_ripgrep_or_a_sandbox(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "f").write_text("needle\n")
    monkeypatch.setattr(searching, "RIPGREP_AFTER", 0.0)
    async with sandboxed(root) as scene:
        sandbox = await scene.sandbox()
        without = dataclasses.replace(scene, environ={"PATH": str(root)})
        assert await worth_opening(without, SearchTextArguments(pattern="n")) is None
        monkeypatch.setattr(sandbox, "refusal", WorkspaceError("no sandbox here"))
        assert await worth_opening(scene, SearchTextArguments(pattern="needle")) is None
        assert (await search(scene, SearchTextArguments(pattern="needle"))).matches == 1
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.req("FRG-9")
async def test_ripgrep_leaks_nothing_while_names_are_swapped(
    tmp_path: Path, sized: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    tries = named = 0
    with racing(tmp_path / "root", tmp_path / "outside") as race:
        async with sandboxed(race.root) as scene:
            began = time.monotonic()
            for path in itertools.cycle((".", "door", "hall")):
                # A busy machine needs longer for some tries.
                if time.monotonic() - began > (sized(4, 10) if min(tries, named) > 10 else 120):
                    break
                tries += 1
                # Toolcrib opens named files only inside; here even the names must not be from outside.
                with contextlib.suppress(WorkspaceError):
                    found = await worth_opening(scene, SearchTextArguments(pattern="lies|canary", path=path))
                    named += len(found or ())
                with contextlib.suppress(WorkspaceError):
                    assert not await worth_opening(scene, SearchTextArguments(pattern="canary", path=path))
                with contextlib.suppress(WorkspaceError):
                    for file in (await search(scene, SearchTextArguments(pattern="lies|canary", path=path))).files:
                        assert file.lines == [f"1: {INSIDE.strip()}"]
    record_property("race", f"ripgrep: {tries} tries, {named} names, {race.swaps} swaps, 0 escapes")
    assert min(tries, named) > 10


# ---- .gitignore, compared with git itself

names = st.sampled_from(["a", "b", "ab", "a.py", "b.log", "build", "x y", "#c", "!d"])
pieces = st.sampled_from(
    ["a", "b", "*", "**", "?", "*.py", "*.log", "build", "[ab]", "[!a]*", "[a-", "x\\ y", "\\#c", "\\!d", "a*b"]
)
lines = st.builds(
    lambda neg, lead, parts, trail: neg + lead + "/".join(parts) + trail,
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(pieces, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "  ", "/**", "\\"]),
)
ignore_files = st.lists(lines, max_size=5).map("\n".join)
trees = st.dictionaries(st.lists(names, min_size=1, max_size=4).map("/".join), st.just(None), min_size=1, max_size=12)


@settings(max_examples=60)
@given(
    trees=trees, rules=st.dictionaries(st.sampled_from(["", "a", "a/b", "build"]), ignore_files, min_size=1, max_size=3)
)
def test_the_walk_ignores_the_same_files_as_git(
    tmp_path_factory: pytest.TempPathFactory, trees: dict[str, None], rules: dict[str, str]
) -> None:
    root = tmp_path_factory.mktemp("ignores")
    for path in trees:
        with contextlib.suppress(OSError):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
    for folder, text in rules.items():
        with contextlib.suppress(OSError):
            (root / folder / ".gitignore").write_text(text + "\n")
    clean = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=root, env=clean, check=True, timeout=60)
    words = ["git", "ls-files", "--others", "--exclude-per-directory=.gitignore", "-z"]
    listed = subprocess.run(words, cwd=root, env=clean, check=True, capture_output=True, timeout=60).stdout
    with contextlib.closing(Folder(root)) as folder:
        walk = FolderWalk(folder, FolderPath(), until=time.monotonic() + 60)
        seen = {"/".join(entry.parts) for entry in walk if entry.kind is FileKind.FILE}
    shutil.rmtree(root)
    assert seen == set(os.fsdecode(listed).split("\0")[:-1])
