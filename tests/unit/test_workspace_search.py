"""search_text: the right lines of any file, within bounds, and patterns refused with what would work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import regex
from toolcrib.workspace.regex import CaseRule, search_pattern
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.search_text import SearchTextArguments, SearchTextResult, search_text

pytestmark = pytest.mark.req("FRG-1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def found(scene: ToolContext, pattern: str, **given: Any) -> SearchTextResult:
    data = (await search_text(scene, SearchTextArguments(pattern=pattern, **given))).data
    assert isinstance(data, SearchTextResult)
    return data


def matches(data: SearchTextResult) -> list[tuple[str, int, str]]:
    """Path, number and text of each line that matches."""
    found = []
    for file in data.files:
        for line in file.lines:
            number, mark, text = re.split(r"([:-])", line, maxsplit=1)
            if mark == ":":
                found.append((file.path, int(number), text.removeprefix(" ")))
    assert len(found) == data.matches
    return found


def places(data: SearchTextResult) -> list[tuple[str, int]]:
    return [(path, number) for path, number, _ in matches(data)]


async def test_matches_have_their_place_and_what_stands_around(root: Path):
    (root / "a.py").write_text("one\ntwo\nthe needle here\nfour\nfive\n")
    (root / "sub").mkdir()
    (root / "sub" / "b.py").write_text("needle\n")
    with scene_in(root) as scene:
        done = await search_text(scene, SearchTextArguments(pattern="needle", context=1))
    assert done.text.splitlines() == [
        "2 matches in 2 files",
        "a.py",
        "2- two",
        "3: the needle here",
        "4- four",
        "sub/b.py",
        "1: needle",
    ]
    assert json.loads(msgspec.json.encode(done.data)) == {
        "files": [
            {"path": "a.py", "lines": ["2- two", "3: the needle here", "4- four"]},
            {"path": "sub/b.py", "lines": ["1: needle"]},
        ],
        "matches": 2,
    }


@settings(max_examples=100)
@given(lines=st.lists(st.booleans(), max_size=20), context=st.integers(0, 4))
def test_no_line_around_matches_is_shown_twice(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bool], context: int
):
    root = tmp_path_factory.mktemp("around")
    (root / "f").write_text("".join("needle\n" if one else "hay\n" for one in lines))
    near = {n + d for n, one in enumerate(lines) if one for d in range(-context, context + 1)}
    with scene_in(root) as scene:
        data = asyncio.run(found(scene, "needle", context=context))
    expected = [f"{n + 1}: needle" if one else f"{n + 1}- hay" for n, one in enumerate(lines) if n in near]
    assert [line for file in data.files for line in file.lines] == expected


@pytest.mark.parametrize(
    ("pattern", "text", "lines"),
    [
        ("^b", "ab\nb\n", [2]),
        ("b$", "ab\nba\nb", [1, 3]),
        ("^$", "a\n\nb\n", [2]),
        ("^$", "a\n\n", [2]),
        ("x*", "a\nb\n", [1, 2]),
        ("a\\sb", "a\nb\na b\n", [3]),
        ("[^x]b", "a\nb\nab\n", [3]),
        ("a.*b", "a\nb\nacb\n", [3]),
        ("(?s)a.b", "a\nb\na b\n", [3]),
        ("\\bcat\\b", "concat\na cat.\n", [2]),
        ("^é.$", "éa\ne\n", [1]),
        ("a|b", "c\na\nb", [2, 3]),
        ("a)|(b", None, []),
        ("x", "", []),
        ("x", "x", [1]),
        ("x", "x\nx\nx", [1, 2, 3]),
        ("foo$", "foo\r\nbar\r\n", [1]),
        ("^bar", "foo\r\nbar\r\n", [2]),
        ("^$", "a\r\n\r\nb\r\n", [2]),
        ("\\r$", "a\r\nb\n", [1]),
        ("^import", "\ufeffimport x\n", [1]),
        ("\\d+", "a1\n٣\n", [1]),
    ],
)
async def test_lines_are_matched_as_people_expect(root: Path, pattern: str, text: str | None, lines: list[int]):
    (root / "f").write_bytes((text or "").encode())
    with scene_in(root) as scene:
        if text is None:
            with pytest.raises(WorkspaceError, match="at character"):
                await found(scene, pattern)
            return
        data = await found(scene, pattern)
    assert [number for _, number, _ in matches(data)] == lines
    assert all("\r" not in text for _, _, text in matches(data))


async def test_case_can_be_kept_ignored_or_judged_by_the_pattern(root: Path):
    (root / "f").write_text("Apple\napple\nÉclair\néclair\nAPPLE 1\n")

    async def lines(pattern: str, case: CaseRule, **more: Any) -> list[int]:
        with scene_in(root) as scene:
            return [number for _, number in places(await found(scene, pattern, case=case, **more))]

    assert await lines("apple", CaseRule.SENSITIVE) == [2]
    assert await lines("apple", CaseRule.IGNORE) == [1, 2, 5]
    assert await lines("apple", CaseRule.SMART) == [1, 2, 5]
    assert await lines("Apple", CaseRule.SMART) == [1]
    assert await lines("apple\\W", CaseRule.SMART) == [5], "the letter of an escape is no capital"
    assert await lines("éclair", CaseRule.IGNORE) == [3, 4]
    assert await lines("APPLE 1", CaseRule.SMART, literal=True) == [5]


async def test_a_literal_is_taken_as_it_is(root: Path):
    (root / "f").write_text("a.b*(c)[\naxb\n\\d é\n")
    with scene_in(root) as scene:
        assert places(await found(scene, "a.b*(c)[", literal=True)) == [("f", 1)]
        assert places(await found(scene, "\\d é", literal=True)) == [("f", 3)]
        assert places(await found(scene, "A.B", literal=True, case=CaseRule.IGNORE)) == [("f", 1)]


@pytest.mark.parametrize(
    ("pattern", "place", "says", "remedy"),
    [
        ("a(?=b)", 2, "look-around", "search twice"),
        ("(?<!a)b", 1, "look-around", "search twice"),
        ("(?<=a)b", 1, "look-around", "search twice"),
        ("(a)\\1", 4, "back-references", "Write out the repeated text"),
        ("(?P<x>a)(?P=x)", 9, "back-references", "Write"),
        ("(?>a)", 1, "atomic", "Leave"),
        ("(?x) a", 1, "(?x)", "Leave"),
        ("a\\nb", 2, "never spans lines", "context"),
        ("a\nb", 2, "never spans lines", "context"),
        ("\\Aa", 1, "line by line", "^ and $"),
        ("(?-m)^a", 1, "line by line", "flag m"),
        ("(a", 1, "missing )", "literal: true"),
        ("a**", 2, "bad repetition", "literal: true"),
        ("[z-a]", 2, "class range", "literal: true"),
        ("x{2000}", 2, "repetition", "literal: true"),
        ("ab\\", None, "trailing", "literal: true"),
        ("((a{100}){100}){100}", None, "repetition", "literal: true"),
        ("half \ud800", None, "Unicode", ""),
    ],
)
async def test_a_pattern_that_cannot_be_used_is_refused_with_its_place_and_what_would_work(
    root: Path, pattern: str, place: int | None, says: str, remedy: str
):
    with scene_in(root) as scene, pytest.raises(WorkspaceError) as error:
        await found(scene, pattern)
    assert says in error.value.message
    assert remedy in error.value.remedy
    if place is not None:
        assert f"at character {place}" in error.value.message


async def test_what_looks_refusable_but_is_plain_is_taken(root: Path):
    (root / "f").write_text("(?=x\n\\1\n")
    with scene_in(root) as scene:
        assert places(await found(scene, "(?=x", literal=True)) == [("f", 1)]
        assert places(await found(scene, r"\Q(?=x\E")) == [("f", 1)]
        assert places(await found(scene, "[(?=]x")) == [("f", 1)]
        assert places(await found(scene, r"\\1")) == [("f", 2)]


async def test_no_pattern_takes_long(root: Path):
    (root / "f").write_text(("a" * 2000 + "\n") * 100)
    began = time.process_time()
    with scene_in(root) as scene:
        for pattern in ("(a*)*b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)(.*)x", "(?:a?){500}a{500}b", "(x+x+)+y"):
            assert (await found(scene, pattern)).files == []
    assert time.process_time() - began < 10


async def test_binary_files_are_skipped_and_counted(root: Path):
    (root / "a.bin").write_bytes(b"needle\0")
    (root / "late.bin").write_bytes(b"needle\n" + b"hay\n" * 500_000 + b"\0")
    (root / "b.txt").write_bytes(b"needle \xe9\xff\n")
    (root / "wide.txt").write_text("needle", encoding="utf-16")
    with scene_in(root) as scene:
        data = await found(scene, "needle", limit=1000)
    assert matches(data) == [("b.txt", 1, "needle \ufffd\ufffd")]
    assert data.binary == 3


async def test_a_very_long_line_is_shown_around_its_match(root: Path):
    (root / "min.js").write_text("x" * 500_000 + "needle" + "y" * 500_000 + "\nneedle\n")
    (root / "wide").write_text("é" * 1000 + "needle" + "é" * 1000)
    with scene_in(root) as scene:
        data = await found(scene, "needle")
    assert places(data) == [("min.js", 1), ("min.js", 2), ("wide", 1)]
    for _, _, text in (matches(data)[0], matches(data)[2]):
        assert "needle" in text
        assert len(text) <= regex.MAX_SHOWN_CHARACTERS + 2
        assert text.startswith("…")
        assert text.endswith("…")


async def test_a_file_larger_than_a_piece_is_searched_to_its_end(root: Path):
    lines = [f"line {n}" for n in range(1, 400_001)]
    for n in (1, 100_000, 262_144, 400_000):
        lines[n - 1] += " needle"
    (root / "large.txt").write_text("\r\n".join(lines))
    with scene_in(root) as scene:
        data = await found(scene, "needle$", context=2)
    assert data.matches == 4
    assert data.files[0].lines == [
        *("1: line 1 needle", "2- line 2", "3- line 3"),
        *("99998- line 99998", "99999- line 99999", "100000: line 100000 needle"),
        *("100001- line 100001", "100002- line 100002"),
        *("262142- line 262142", "262143- line 262143", "262144: line 262144 needle"),
        *("262145- line 262145", "262146- line 262146"),
        *("399998- line 399998", "399999- line 399999", "400000: line 400000 needle"),
    ]


async def test_a_sparse_file_of_a_gigabyte_costs_nothing(root: Path):
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (root / "text").write_text("needle\n")
    began = time.process_time()
    with scene_in(root) as scene:
        data = await found(scene, "needle")
    assert places(data) == [("text", 1)]
    assert data.binary == 1
    assert time.process_time() - began < 5


@settings(max_examples=150)
@given(
    lines=st.lists(st.text("ab \r", max_size=6), max_size=40),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    context=st.integers(0, 3),
    piece=st.integers(1, 40),
    pattern=st.sampled_from(["a", "^a", "b$", "^$", "a *b", "^ab", "ba|bb", " +$", "a\\b"]),
)
def test_pieces_never_change_what_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    ending: str,
    last: bool,
    context: int,
    piece: int,
    pattern: str,
):
    text = ending.join(lines) + (ending if last else "")
    path = tmp_path_factory.getbasetemp() / "pieces.txt"
    path.write_bytes(text.encode())
    plain = text.replace("\r\n", "\n").split("\n")
    plain = plain[:-1] if plain[-1] == "" else plain
    expected = [
        (n + 1, plain[max(0, n - context) : n], plain[n + 1 : n + 1 + context])
        for n, line in enumerate(plain)
        if re.search(pattern, line)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regex, "PIECE_BYTES", piece)
        patch.setattr(regex, "_FIRST_PIECE", piece)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            wanted = search_pattern(pattern, literal=False, case=CaseRule.SENSITIVE)
            got = list(
                regex.matching_lines(descriptor, wanted, regex.ContextLines(context, context), is_over=lambda: False)
            )
        finally:
            os.close(descriptor)

    def without_returns(texts: list[str]) -> list[str]:
        return [text.removesuffix("\r") for text in texts]

    assert [(line.number, line.before, line.after) for line in got] == [
        (number, without_returns(before), without_returns(after)) for number, before, after in expected
    ]


async def test_the_answer_is_cut_at_its_limit_and_says_so(root: Path):
    (root / "f").write_text("needle\n" * 50)
    with scene_in(root) as scene:
        cut = await found(scene, "needle", limit=49)
        whole = await found(scene, "needle", limit=50)
    assert (cut.matches, cut.truncated) == (49, True)
    assert "more matches" in cut.note
    assert (whole.matches, whole.truncated, whole.note) == (50, False, "")


async def test_the_answer_is_cut_at_the_limit_for_output(root: Path):
    (root / "f").write_text(("needle" + "x" * 200 + "\n") * 500)
    with scene_in(root, output=5000) as scene:
        done = await search_text(scene, SearchTextArguments(pattern="needle", limit=1000, context=3))
    assert len(done.text) < 5500
    assert "more matches" in done.text
    assert len(msgspec.json.encode(done.data)) < 5500


async def test_what_json_makes_longer_counts_as_long_as_it_is(root: Path):
    (root / "f").write_text("needle" + '"\t\\' * 50 + "\n" * 1000)
    with scene_in(root, output=20_000) as scene:
        done = await search_text(scene, SearchTextArguments(pattern=".*", limit=1000))
    assert len(msgspec.json.encode(done.data)) < 21_000


async def test_globs_and_gitignore_choose_the_files_and_a_named_file_is_always_searched(root: Path):
    for name in ("a.py", "b.txt", "build/c.py", "sub/d.py", ".hidden.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("needle\n")
    (root / ".gitignore").write_text("build/\n")
    (root / "link.py").symlink_to("a.py")
    with scene_in(root) as scene:
        assert [m.path for m in (await found(scene, "needle", glob=["*.py"])).files] == [
            ".hidden.py",
            "a.py",
            "sub/d.py",
        ]
        assert [m.path for m in (await found(scene, "needle", glob=["*.py", "!sub/"])).files] == [
            ".hidden.py",
            "a.py",
        ]
        assert [m.path for m in (await found(scene, "needle", path="build")).files] == ["build/c.py"]
        assert [m.path for m in (await found(scene, "needle", path="build/c.py")).files] == ["build/c.py"]
        assert [m.path for m in (await found(scene, "needle", path="link.py")).files] == ["a.py"]
        everything = await found(scene, "needle", ignored=True)
        done = await search_text(scene, SearchTextArguments(pattern="needle"))
    assert "(1 ignored by .gitignore not searched; ignored: true does)" in done.text
    assert json.loads(msgspec.json.encode(done.data))["ignored"] == 1
    assert [m.path for m in everything.files] == [".hidden.py", "a.py", "b.txt", "build/c.py", "sub/d.py"]


async def test_kept_output_is_searched_when_it_is_named(root: Path):
    (root / ".toolcrib" / "output").mkdir(parents=True)
    (root / ".toolcrib" / "output" / ".gitignore").write_text("*\n")
    (root / ".toolcrib" / "output" / "run_tests-1.log").write_text("needle\n")
    with scene_in(root) as scene:
        assert (await found(scene, "needle")).files == []
        for path in (".toolcrib/output", ".toolcrib/output/run_tests-1.log"):
            assert places(await found(scene, "needle", path=path)) == [(".toolcrib/output/run_tests-1.log", 1)]


async def test_a_search_ends_when_its_time_is_up_and_says_so(root: Path):
    for n in range(300):
        (root / f"f{n}").write_text("needle\n")
    with scene_in(root, seconds={"search_text": 0.0}) as scene:
        data = await found(scene, "needle", limit=1000)
    assert data.matches < 300
    assert data.truncated
    assert "time was up" in data.note


async def test_the_loop_goes_on_while_a_search_works(root: Path):
    (root / "f").write_text("x" * 200 + "\n", encoding="ascii")
    (root / "large").write_text(("ab" * 100 + "\n") * 300_000)
    turns = 0
    with scene_in(root) as scene:
        work = asyncio.ensure_future(found(scene, "(a|b)+c", limit=1))
        while not work.done():
            turns += 1
            await asyncio.wait([work], timeout=0.005)
        assert (await work).files == []
    assert turns > 3


async def test_a_search_that_is_cancelled_ends_its_thread_and_closes_its_files(root: Path):
    for n in range(3):
        (root / f"large{n}").write_text(("ab" * 100 + "\n") * 300_000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with scene_in(root) as scene:
        work = asyncio.ensure_future(found(scene, "(a|b)+c"))
        await asyncio.wait([work], timeout=0.02)
        work.cancel()
        began = time.process_time()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert time.process_time() - began < 5
        assert not [thread for thread in threading.enumerate() if "search" in thread.name]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
