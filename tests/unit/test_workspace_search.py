"""search_text: the right lines of any file, within limits; unusable patterns are refused with an alternative."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.tool_context import FileTools, file_tools, make_files, open_descriptors, refused
from toolcrib.workspace import regex
from toolcrib.workspace.regex import CaseRule, search_pattern
from toolcrib.workspace.tools.search_text import SearchTextArguments, search_text

pytestmark = pytest.mark.req("FRG-1")


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[FileTools]:
    with file_tools(tmp_path) as tools:
        yield tools


def matches(data: Any) -> list[tuple[str, int, str]]:
    """Path, number and text of each matching line."""
    found = []
    for file in data.files:
        for line in file.lines:
            number, mark, text = re.split(r"([:-])", line, maxsplit=1)
            if mark == ":":
                found.append((file.path, int(number), text.removeprefix(" ")))
    assert len(found) == data.matches
    return found


def places(tools: FileTools, pattern: str, **given: Any) -> list[tuple[str, int]]:
    return [(path, number) for path, number, _ in matches(tools.search(pattern, **given))]


def paths(tools: FileTools, **given: Any) -> list[str]:
    return [file.path for file in tools.search("needle", **given).files]


def test_matches_have_their_position_and_context(tools: FileTools):
    make_files(tools.root, {"a.py": "one\ntwo\nthe needle here\nfour\nfive\n", "sub/b.py": "needle\n"})
    result = tools.call("search_text", pattern="needle", context=1)
    lines = ["2- two", "3: the needle here", "4- four"]
    assert result.text.splitlines() == ["2 matches in 2 files", "a.py", *lines, "sub/b.py", "1: needle"]
    assert json.loads(msgspec.json.encode(result.data)) == {
        "files": [{"path": "a.py", "lines": lines}, {"path": "sub/b.py", "lines": ["1: needle"]}],
        "matches": 2,
    }


@settings(max_examples=100)
@given(lines=st.lists(st.booleans(), max_size=20), context=st.integers(0, 4))
def test_no_line_of_context_is_shown_twice(tmp_path: Path, lines: list[bool], context: int):
    (tmp_path / "f").write_text("".join("needle\n" if one else "hay\n" for one in lines))
    near = {n + d for n, one in enumerate(lines) if one for d in range(-context, context + 1)}
    with file_tools(tmp_path) as tools:
        data = tools.search("needle", context=context)
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
        ("x", "", []),
        ("x", "x", [1]),
        ("x", "x\nx\nx", [1, 2, 3]),
        ("foo$", "foo\r\nbar\r\n", [1]),
        ("^bar", "foo\r\nbar\r\n", [2]),
        ("^$", "a\r\n\r\nb\r\n", [2]),
        ("\\r$", "a\r\nb\n", [1]),
        ("^import", "\ufeffimport x\n", [1]),
        ("\\d+", "a1\n٣\n", [1]),
        (r"\Q(?=x\E", "(?=x\n", [1]),
        ("[(?=]x", "(?=x\n", [1]),
        (r"\\1", "a\n\\1\n", [2]),
    ],
)
def test_patterns_match_single_lines(tools: FileTools, pattern: str, text: str, lines: list[int]):
    (tools.root / "f").write_bytes(text.encode())
    found = matches(tools.search(pattern))
    assert [number for _, number, _ in found] == lines
    assert all("\r" not in text for _, _, text in found)


def test_case_is_respected_ignored_or_decided_by_the_pattern(tools: FileTools):
    make_files(tools.root, {"f": "Apple\napple\nÉclair\néclair\nAPPLE 1\n"})
    for pattern, case, more, lines in (
        ("apple", CaseRule.SENSITIVE, {}, [2]),
        ("apple", CaseRule.IGNORE, {}, [1, 2, 5]),
        ("apple", CaseRule.SMART, {}, [1, 2, 5]),
        ("Apple", CaseRule.SMART, {}, [1]),
        ("apple\\W", CaseRule.SMART, {}, [5]),
        ("éclair", CaseRule.IGNORE, {}, [3, 4]),
        ("APPLE 1", CaseRule.SMART, {"literal": True}, [5]),
    ):
        assert [number for _, number in places(tools, pattern, case=case, **more)] == lines, (pattern, case)


def test_a_literal_is_not_a_pattern(tools: FileTools):
    make_files(tools.root, {"f": "a.b*(c)[\naxb\n\\d é\n(?=x\n"})
    assert places(tools, "a.b*(c)[", literal=True) == [("f", 1)]
    assert places(tools, "\\d é", literal=True) == [("f", 3)]
    assert places(tools, "(?=x", literal=True) == [("f", 4)]
    assert places(tools, "A.B", literal=True, case=CaseRule.IGNORE) == [("f", 1)]


@pytest.mark.parametrize(
    ("pattern", "place", "message", "remedy"),
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
        ("a)|(b", "", "at character", ""),
        ("a**", 2, "bad repetition", "literal: true"),
        ("[z-a]", 2, "class range", "literal: true"),
        ("x{2000}", 2, "repetition", "literal: true"),
        ("ab\\", None, "trailing", "literal: true"),
        ("((a{100}){100}){100}", None, "repetition", "literal: true"),
        ("half \ud800", None, "Unicode", ""),
    ],
)
def test_an_unusable_pattern_is_refused_with_its_position_and_an_alternative(
    tools: FileTools, pattern: str, place: int | str | None, message: str, remedy: str
):
    error = refused(re.escape(message), tools.search, pattern)
    assert remedy in error.remedy
    assert place is None or f"at character {place}" in error.message


def test_no_pattern_takes_long(tools: FileTools):
    make_files(tools.root, {"f": ("a" * 2000 + "\n") * 100})
    began = time.process_time()
    for pattern in ("(a*)*b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)(.*)x", "(?:a?){500}a{500}b", "(x+x+)+y"):
        assert tools.search(pattern).files == []
    assert time.process_time() - began < 10


def test_binary_files_are_skipped_and_counted_even_a_sparse_gigabyte(tools: FileTools):
    (tools.root / "a.bin").write_bytes(b"needle\0")
    (tools.root / "late.bin").write_bytes(b"needle\n" + b"hay\n" * 500_000 + b"\0")
    (tools.root / "b.txt").write_bytes(b"needle \xe9\xff\n")
    (tools.root / "wide.txt").write_text("needle", encoding="utf-16")
    with (tools.root / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    began = time.process_time()
    data = tools.search("needle", limit=1000)
    assert time.process_time() - began < 5
    assert matches(data) == [("b.txt", 1, "needle \ufffd\ufffd")]
    assert data.binary == 4


def test_a_very_long_line_is_shown_around_its_match(tools: FileTools):
    wide = "é" * 1000 + "needle" + "é" * 1000
    make_files(tools.root, {"min.js": "x" * 500_000 + "needle" + "y" * 500_000 + "\nneedle\n", "wide": wide})
    found = matches(tools.search("needle"))
    assert [(path, number) for path, number, _ in found] == [("min.js", 1), ("min.js", 2), ("wide", 1)]
    for _, _, text in (found[0], found[2]):
        assert re.fullmatch("….*needle.*…", text)
        assert len(text) <= regex.MAX_SHOWN_CHARACTERS + 2


def test_a_file_larger_than_a_piece_is_searched_to_its_end(tools: FileTools):
    hits = (1, 100_000, 262_144, 400_000)
    lines = [f"line {n} needle" if n in hits else f"line {n}" for n in range(1, 400_001)]
    (tools.root / "large.txt").write_text("\r\n".join(lines))
    data = tools.search("needle$", context=2)
    assert data.matches == 4
    shown = [n for hit in hits for n in range(hit - 2, hit + 3) if 1 <= n <= 400_000]
    assert data.files[0].lines == [f"{n}{':' if n in hits else '-'} {lines[n - 1]}" for n in shown]


@settings(max_examples=150)
@given(
    lines=st.lists(st.text("ab \r", max_size=6), max_size=40),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    context=st.integers(0, 3),
    piece=st.integers(1, 40),
    pattern=st.sampled_from(["a", "^a", "b$", "^$", "a *b", "^ab", "ba|bb", " +$", "a\\b"]),
)
def test_the_size_of_a_piece_never_changes_the_result(
    tmp_path: Path, lines: list[str], ending: str, last: bool, context: int, piece: int, pattern: str
):
    text = ending.join(lines) + (ending if last else "")
    path = tmp_path / "pieces.txt"
    path.write_bytes(text.encode())
    plain = text.replace("\r\n", "\n").split("\n")
    plain = plain[:-1] if plain[-1] == "" else plain
    shown = [line.removesuffix("\r") for line in plain]
    expected = [
        (n + 1, shown[max(0, n - context) : n], shown[n + 1 : n + 1 + context])
        for n, line in enumerate(plain)
        if re.search(pattern, line)
    ]
    wanted = search_pattern(pattern, literal=False, case=CaseRule.SENSITIVE)
    around = regex.ContextLines(context, context)
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as file:
        patch.setattr(regex, "PIECE_BYTES", piece)
        patch.setattr(regex, "_FIRST_PIECE", piece)
        found = list(regex.matching_lines(file.fileno(), wanted, around, is_over=lambda: False))
    assert [(line.number, line.before, line.after) for line in found] == expected


def test_a_result_is_cut_at_the_number_of_matches(tools: FileTools):
    make_files(tools.root, {"f": "needle\n" * 50})
    cut, whole = tools.search("needle", limit=49), tools.search("needle", limit=50)
    assert (cut.matches, cut.truncated) == (49, True)
    assert "more matches" in cut.note
    assert (whole.matches, whole.truncated, whole.note) == (50, False, "")


def test_a_result_is_cut_at_the_output_limit_which_counts_json(tmp_path: Path):
    make_files(tmp_path, {"f": ("needle" + "x" * 200 + "\n") * 500, "g": "odd" + '"\t\\' * 50 + "\n" * 1000})
    with file_tools(tmp_path, output=5000) as tools:
        result = tools.call("search_text", pattern="needle", limit=1000, context=3)
    assert len(result.text) < 5500
    assert "more matches" in result.text
    assert len(msgspec.json.encode(result.data)) < 5500
    with file_tools(tmp_path, output=20_000) as tools:
        assert len(msgspec.json.encode(tools.search(".*", path="g", limit=1000))) < 21_000


def test_globs_and_gitignore_choose_the_files_and_a_named_file_is_always_searched(tools: FileTools):
    make_files(tools.root, dict.fromkeys(("a.py", "b.txt", "build/c.py", "sub/d.py", ".hidden.py"), "needle\n"))
    make_files(tools.root, {".gitignore": "build/\n"})
    (tools.root / "link.py").symlink_to("a.py")
    assert paths(tools, glob=["*.py"]) == [".hidden.py", "a.py", "sub/d.py"]
    assert paths(tools, glob=["*.py", "!sub/"]) == [".hidden.py", "a.py"]
    assert paths(tools, path="build") == paths(tools, path="build/c.py") == ["build/c.py"]
    assert paths(tools, path="link.py") == ["a.py"]
    assert paths(tools, ignored=True) == [".hidden.py", "a.py", "b.txt", "build/c.py", "sub/d.py"]
    result = tools.call("search_text", pattern="needle")
    assert "(1 ignored by .gitignore not searched; set ignored: true)" in result.text
    assert json.loads(msgspec.json.encode(result.data))["ignored"] == 1


def test_kept_output_is_searched_only_by_name(tools: FileTools):
    log = ".toolcrib/output/run_tests-1.log"
    make_files(tools.root, {".toolcrib/output/.gitignore": "*\n", log: "needle\n"})
    assert paths(tools) == []
    for path in (".toolcrib/output", log):
        assert places(tools, "needle", path=path) == [(log, 1)]


def test_a_search_stops_at_its_time_limit(tmp_path: Path):
    make_files(tmp_path, {f"f{n}": "needle\n" for n in range(300)})
    with file_tools(tmp_path, seconds={"search_text": 0.0}) as tools:
        data = tools.search("needle", limit=1000)
    assert data.matches < 300
    assert data.truncated
    assert "timed out" in data.note


async def test_a_search_blocks_no_other_task_and_a_cancelled_one_leaves_no_thread_or_file(tools: FileTools):
    for n in range(3):
        (tools.root / f"large{n}").write_text(("ab" * 100 + "\n") * 300_000)
    before = open_descriptors()
    turns = 0
    work = asyncio.ensure_future(search_text(tools.context, SearchTextArguments(pattern="(a|b)+c", path="large0")))
    while not work.done():
        turns += 1
        await asyncio.wait([work], timeout=0.005)
    assert (await work).text.startswith("0 matches")
    assert turns > 3
    work = asyncio.ensure_future(search_text(tools.context, SearchTextArguments(pattern="(a|b)+c")))
    await asyncio.wait([work], timeout=0.02)
    work.cancel()
    began = time.process_time()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.process_time() - began < 5
    assert not [thread for thread in threading.enumerate() if "search" in thread.name]
    assert open_descriptors() == before
