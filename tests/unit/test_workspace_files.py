"""read_file, write_file, edit_file and stat_file on files that they may access."""

from __future__ import annotations

import base64
import codecs
import dataclasses
import errno
import json
import os
import stat
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from parts.report import not_run
from parts.small_disk import small_disk
from parts.tool_context import FileTools, file_names, file_tools, refused
from toolcrib.workspace.atomic_write import open_own_folder
from toolcrib.workspace.folder import FolderPath
from toolcrib.workspace.tools.edits import TextEdit
from toolcrib.workspace.tools.files import EditFileResult, ReadFileResult, WriteFileResult, WriteMode
from toolcrib.workspace.tools.listing import StatFileResult

pytestmark = pytest.mark.req("FRG-1")

MB = 1024 * 1024
APPEND = {"mode": WriteMode.APPEND}
texts = st.text(st.one_of(st.sampled_from("ab\n\r\t é€😀\x0b\x0c\u2028"), st.characters(exclude_categories=["Cs"])))
BOMS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
text_forms = st.sampled_from([("utf-8", b""), *BOMS.items()])


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[FileTools]:
    (tmp_path / "root").mkdir()
    with file_tools(tmp_path / "root") as tools:
        yield tools


@pytest.fixture
def file(tools: FileTools) -> Path:
    """The file `a`."""
    return tools.root / "a"


def pieces(tools: FileTools, **given: Any) -> Iterator[ReadFileResult]:
    """Reads the file `a` to its end, as a model does: from the position in each result."""
    piece = tools.read("a", **given)
    for _ in range(10_000):
        yield piece
        if piece.next_line is not None:
            piece = tools.read("a", **{**given, "start_line": piece.next_line})
        elif piece.next_offset is not None:
            piece = tools.read("a", **{**given, "offset": piece.next_offset, "start_line": 1, "lines": None})
        else:
            return
    raise AssertionError("it never ends")


def joined(found: Iterator[ReadFileResult]) -> str:
    return "".join(piece.text or "" for piece in found)


def test_a_result_has_the_text_its_lines_and_only_unusual_facts(tools: FileTools, file: Path):
    file.write_bytes(b"one\ntwo\nthree")
    assert tools.read("a") == ReadFileResult(text="one\ntwo\nthree", newline="lf", total_lines=3)
    part = tools.call("read_file", path="a", start_line=2, lines=1)
    assert part.data == ReadFileResult(text="two\n", size=13, first_line=2, last_line=2, total_lines=3, next_line=3)
    assert part.text == "a, lines 2-2 of 3 (continue with start_line: 3)\ntwo\n"
    file.write_bytes(b"one\ntwo\n")
    assert json.loads(msgspec.json.encode(tools.read("a"))) == {"text": "one\ntwo\n", "total_lines": 2}
    file.write_bytes(b"\xef\xbb\xbfone\r\n")
    result = json.loads(msgspec.json.encode(tools.read("a")))
    assert result == {"text": "one\r\n", "bom": True, "newline": "crlf", "total_lines": 1}


def test_line_ends_are_detected_and_lines_counted_as_other_tools_do(tools: FileTools, file: Path):
    for raw, newline, total in (
        (b"", "none", 0),
        (b"x", "none", 1),
        (b"a\nb\n", "lf", 2),
        (b"a\r\nb\r\n", "crlf", 2),
        (b"a\rb\r", "cr", 2),
        (b"a\r\nb\n", "mixed", 2),
        (b"a\rb\nc", "mixed", 2),
        (b"a\x0cb\xe2\x80\xa8c\n", "lf", 1),
    ):
        file.write_bytes(raw)
        result = tools.read("a")
        assert (result.newline, result.total_lines, result.text) == (newline, total, raw.decode())
    # The sample ends between the two characters of a line end.
    raw = b"x" + b"ab\r\n" * 20_000
    assert raw[65_535:65_537] == b"\r\n"
    file.write_bytes(raw)
    assert tools.read("a").newline == "crlf"
    file.write_bytes(b"x" * 70_000 + b"\r\n")
    assert tools.read("a").newline is None


def test_a_range_beyond_the_end_is_refused_with_the_number_of_lines_or_bytes(tools: FileTools, file: Path):
    file.write_text("only\n")
    for start in (2, 3, 99):
        refused(f"no line {start}: the file has 1", tools.read, "a", start_line=start)
    file.write_text("four")
    for encoding in (None, "binary"):
        for offset in (5, 2**70):
            refused(f"no byte {offset}: the file has 4", tools.read, "a", offset=offset, encoding=encoding)
    assert tools.read("a", offset=4).text == ""
    refused("not both", tools.read, "a", offset=1, lines=1)


def test_a_byte_order_mark_sets_the_encoding_and_survives_edits_and_writes(tools: FileTools, file: Path):
    for encoding, mark in (*BOMS.items(), ("utf-32-le", codecs.BOM_UTF32_LE), ("utf-8", b"")):
        raw = mark + "é\n".encode(encoding)
        file.write_bytes(raw)
        result = tools.read("a")
        assert (result.text, result.encoding or "utf-8", result.bom) == ("é\n", encoding, mark != b"")
        tools.edit("a", "é", "è")
        assert file.read_bytes() == raw.replace("é".encode(encoding), "è".encode(encoding))
        tools.write("a", "é\n")
        assert file.read_bytes() == raw
        tools.write("a", "é\n", **APPEND)
        assert file.read_bytes() == raw + "é\n".encode(encoding)


def test_encodings_are_chosen_by_name_and_unknown_ones_refused(tools: FileTools, file: Path):
    for name in ("latin-1", "cp1252", "ISO-8859-15", "utf-16", "shift_jis", "utf-8-sig"):
        text = "カナ\n" if name == "shift_jis" else "grün\n"
        file.unlink(missing_ok=True)
        tools.write("a", text, encoding=name)
        assert file.read_bytes().decode(name) == text
        assert tools.read("a", encoding=name).text == text
        tools.edit("a", text[0], "x", encoding=name)
        assert file.read_bytes().decode(name) == "x" + text[1:]
    file.write_bytes(b"x")
    for name in ("rot13", "zlib", "hex", "idna", "punycode", "unicode_escape", "no-such", "a\0b", "../x"):
        refused("not a text encoding", tools.read, "a", encoding=name)
        refused("not a text encoding", tools.write, "a", "y", encoding=name)
    assert file.read_bytes() == b"x"


def test_single_bytes_that_are_not_utf8_are_noted_and_survive_an_edit(tools: FileTools, file: Path):
    raw = b"a long line of text with one \xe9 in it\nand another line\n"
    file.write_bytes(raw)
    result = tools.call("read_file", path="a")
    assert isinstance(result.data, ReadFileResult)
    assert result.data.note.startswith("1 byte is not UTF-8")
    assert result.data.text == raw.decode(errors="replace")
    assert "edit_file keeps such bytes" in result.text
    tools.edit("a", "another", "one more")
    assert file.read_bytes() == raw.replace(b"another", b"one more")
    refused("not valid Unicode", tools.edit, "a", "line", "\udce9", all=True)
    refused("not valid Unicode", tools.write, "a", "\udce9")


def test_a_binary_file_is_described_and_returned_as_base64_on_request(tools: FileTools, file: Path):
    kinds = {b"\x89PNG\r\n\x1a\n\0\0": "a PNG image", b"text\0text": "binary data"}
    for raw, note in (kinds | {"дом".encode("cp1251") * 9: "not UTF-8"}).items():
        file.write_bytes(raw)
        result = tools.read("a")
        assert (result.kind, result.text, result.base64, result.size) == ("binary", None, None, len(raw))
        assert note in result.note
        assert 'encoding: "binary"' in result.note
        assert base64.b64decode(tools.read("a", encoding="binary").base64) == raw
        refused(note, tools.edit, "a", "t", "u")


def test_binary_ranges_add_up_to_the_file_and_base64_writes_it(tmp_path: Path):
    raw = os.urandom(5000)
    (tmp_path / "a").write_bytes(raw)
    with file_tools(tmp_path, read=1000) as tools:
        found = [base64.b64decode(piece.base64 or "") for piece in pieces(tools, encoding="binary")]
        assert b"".join(found) == raw
        assert max(map(len, found)) <= 750
        few = tools.read("a", encoding="binary", offset=10, length=5)
        assert (base64.b64decode(few.base64), few.truncated, few.next_offset) == (raw[10:15], False, 15)
        tools.write("b", base64.b64encode(raw).decode(), encoding="binary")
        for path, content in (("new/b", "not base64!"), ("b", "é")):
            refused("not base64", tools.write, path, content, encoding="binary")
    assert file_names(tmp_path) == {"a", "b"}
    assert (tmp_path / "b").read_bytes() == raw


def test_a_text_that_does_not_fit_is_cut_at_a_line_end(tmp_path: Path):
    (tmp_path / "a").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    with file_tools(tmp_path, read=100) as tools:
        first = tools.read("a")
        assert (first.truncated, first.last_line, first.next_line, first.total_lines) == (True, 11, 12, 1000)
        assert first.text.endswith("line 11\n")
        assert joined(pieces(tools)) == (tmp_path / "a").read_text()


@given(
    text=texts, form=text_forms, limit=st.integers(1, 60), lines=st.none() | st.integers(1, 4), start=st.integers(0, 9)
)
@example(text="a\r\nb", form=("utf-8", b""), limit=2, lines=None, start=0)
def test_consecutive_ranges_add_up_to_the_whole_text(
    tmp_path: Path, text: str, form: tuple[str, bytes], limit: int, lines: int | None, start: int
):
    encoding, mark = form
    assume(not text.startswith("\ufeff") and not (mark == codecs.BOM_UTF16_LE and text.startswith("\0")))
    raw = mark + text.encode(encoding)
    (tmp_path / "a").write_bytes(raw)
    named = {"encoding": encoding} if "\0" in text else {}
    with file_tools(tmp_path, read=limit) as tools:
        found = list(pieces(tools, lines=lines, **named))
        assert joined(iter(found)) == text
        assert all(len((piece.text or "").encode()) <= max(limit, 4) for piece in found)
        # The limit counts the text as JSON; one character needs at most 8 bytes there.
        assert all(len(msgspec.json.encode(piece.text or "")) <= max(limit, 8) for piece in found)
        byte = min(len(mark) + start * 4, len(raw))
        assume(raw[:byte].decode(encoding, "ignore").encode(encoding) == raw[:byte])
        by_byte = joined(pieces(tools, offset=byte, **named))
        assert by_byte == raw[max(byte, len(mark)) :].decode(encoding)


@given(text=texts, form=text_forms, append=texts)
def test_written_text_is_read_unchanged(tmp_path: Path, text: str, form: tuple[str, bytes], append: str):
    assume(not append.startswith("\ufeff"))
    encoding, mark = form
    with file_tools(tmp_path, session_bytes=2**40) as tools:
        (tmp_path / "a").write_bytes(mark)
        tools.write("a", text, encoding=encoding)
        found = tools.read("a", encoding=encoding)
        assert ("\ufeff" if text.startswith("\ufeff") else "") + (found.text or "") == text
        assert found.bom == (mark != b"" or text.startswith("\ufeff"))
        tools.write("a", append, **APPEND, encoding=encoding)
        assert (tools.read("a", encoding=encoding).text or "") == text.removeprefix("\ufeff") + append


def test_a_part_of_a_huge_file_is_read_without_loading_all_of_it(tools: FileTools, file: Path):
    with file.open("wb") as writer:
        writer.write(b"a line of text\n" * 200_000)
        writer.truncate(5 * 1024 * MB)
    tracemalloc.start()
    try:
        begins = time.process_time()
        found = tools.read("a", start_line=199_999, lines=1)
        tail = tools.read("a", offset=5 * 1024 * MB - 10, encoding="binary")
        assert time.process_time() - begins < 10
        assert tracemalloc.get_traced_memory()[1] < 8 * MB
    finally:
        tracemalloc.stop()
    assert (found.text, found.size, found.total_lines) == ("a line of text\n", 5 * 1024 * MB, None)
    assert base64.b64decode(tail.base64) == bytes(10)
    refused("too large to edit", tools.edit, "a", "a", "b")


@pytest.mark.req("FRG-10")
def test_reading_and_writing_stop_at_the_deadline(tools: FileTools, file: Path):
    file.write_text("line\n" * 10)
    late = FileTools(dataclasses.replace(tools.context, deadline=time.monotonic() - 1))
    error = refused("in time", late.read, "a", start_line=5)
    assert "offset" in error.remedy
    refused("timed out", late.write, "a", "new")
    refused("timed out", late.edit, "a", "line", "row", all=True)
    assert file.read_text() == "line\n" * 10


def test_modes_of_writing(tools: FileTools):
    path = "new/folders/a.txt"
    assert tools.write(path, "one\n") == WriteFileResult(path=path, created=True, written=4)
    refused("already exists", tools.write, path, "two\n", mode=WriteMode.CREATE)
    assert tools.write(path, "two\n", **APPEND) == WriteFileResult(path=path, written=4, size=8)
    assert (tools.root / path).read_text() == "one\ntwo\n"
    tools.write(path, "three")
    assert (tools.root / path).read_text() == "three"
    assert tools.write("b.txt", "x", mode=WriteMode.CREATE).created
    assert tools.write("c.txt", "x", **APPEND).created
    refused("no nowhere in the workspace", tools.write, "nowhere/a.txt", "x", make_dirs=False)
    assert file_names(tools.root) == {"new", "b.txt", "c.txt"}
    assert file_names(tools.root / "new" / "folders") == {"a.txt"}


def test_writing_and_editing_keep_the_mode_without_setuid(tools: FileTools, file: Path):
    for mode, afterwards in ((0o755, 0o755), (0o600, 0o600), (0o664, 0o664), (0o4755, 0o755)):
        file.write_text("one")
        file.chmod(mode)
        tools.write("a", "two")
        assert stat.S_IMODE(file.stat().st_mode) == afterwards
        file.chmod(mode)
        tools.edit("a", "two", "three")
        assert stat.S_IMODE(file.stat().st_mode) == afterwards
    file.chmod(0o444)
    refused("read-only", tools.write, "a", "four")
    refused("read-only", tools.edit, "a", "three", "four")
    assert file.read_text() == "three"
    assert tools.stat("a").why_not == "it is read-only (mode 0444)"


@pytest.mark.req("FRG-9")
def test_files_that_root_creates_belong_to_the_folders_owner_and_changed_files_keep_theirs(tmp_path: Path):
    if os.geteuid() != 0:
        not_run("owners", "only root can change the owner of a file")
    os.chown(tmp_path, 4321, 8765)
    (tmp_path / "theirs").write_text("one")
    os.chown(tmp_path / "theirs", 1111, 2222)
    with file_tools(tmp_path) as tools:
        tools.write("new/deep/a.txt", "x")
        tools.write("theirs", "two")
        tools.edit("theirs", "two", "three")
        os.close(open_own_folder(tools.context.folder, FolderPath((".toolcrib", "output"))))
    created = ("new", "new/deep", "new/deep/a.txt", ".toolcrib", ".toolcrib/output")
    expected = dict.fromkeys(created, (4321, 8765)) | {"theirs": (1111, 2222)}
    assert {name: ((tmp_path / name).stat().st_uid, (tmp_path / name).stat().st_gid) for name in expected} == expected


@pytest.mark.req("FRG-9")
def test_the_servers_own_folder_is_never_created_through_a_link(tools: FileTools):
    (tools.root / "src").mkdir()
    (tools.root / ".toolcrib").symlink_to("src")
    refused("", open_own_folder, tools.context.folder, FolderPath((".toolcrib", "output")))
    assert file_names(tools.root / "src") == set()


@pytest.mark.req("FRG-10")
def test_quota_and_file_size_are_checked_before_anything_is_written(tmp_path: Path):
    (tmp_path / "a").write_text("as it was")
    with file_tools(tmp_path, session_bytes=30, file_size=20) as tools:
        for path, size, given in (("a", 21, {}), ("a", 12, APPEND), ("b", 21, {"mode": WriteMode.CREATE})):
            refused("the maximum is 20", tools.write, path, "x" * size, **given)
        refused("the maximum is 20", tools.edit, "a", "was", "x" * 20)
        assert tools.context.session.written == 0
        tools.write("c", "x" * 18)
        refused("", tools.write, "c", "y" * 13)
        refused("", tools.edit, "c", "x" * 18, "y" * 13)
        assert tools.context.session.written == 18
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "as it was", "c": "x" * 18}


def test_a_full_disk_leaves_the_file_unchanged_and_nothing_next_to_it(tmp_path: Path):
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        root = disk / "root"
        root.mkdir()
        (root / "a").write_text("as it was")
        filler = disk.fill()
        large = "x" * 50_000
        with file_tools(root) as tools:
            for change in (
                lambda: tools.write("a", large),
                lambda: tools.write("a", large, **APPEND),
                lambda: tools.write("b", large),
                lambda: tools.edit("a", "was", large),
            ):
                error = refused("the disk is full", change)
                assert "as it was" in error.remedy
            assert {path.name: path.read_text() for path in root.iterdir()} == {"a": "as it was"}
            filler.unlink()
            tools.write("a", large)
        assert (root / "a").stat().st_size == 50_000


def test_a_failed_write_leaves_the_file_unchanged(tools: FileTools, file: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file.write_text("as it was")
    for broken in ("fsync", "rename", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fails)
            refused("a failed: Input/output error", tools.write, "a", "new")
        assert file.read_text() == "as it was"
        assert file_names(tools.root) == {"a"}


def test_a_file_is_synced_before_its_rename_and_its_folder_after(tools: FileTools, file: Path, monkeypatch: Any):
    file.write_text("old")
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        steps.append(f"{'folder' if is_folder else 'file'} on disk, a holds {file.read_text()}")
        fsync(descriptor)

    def noted_rename(*names: str, **given: int) -> None:
        steps.append("rename")
        rename(*names, **given)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    tools.write("a", "new")
    assert steps == ["file on disk, a holds old", "rename", "folder on disk, a holds new"]


@pytest.mark.parametrize(
    ("before", "change", "error"),
    [
        ("one two", lambda tools: tools.edit("a", "one", "1"), "changed in the meantime"),
        ("one two", lambda tools: tools.write("a", "three", **APPEND), "changed in the meantime"),
        (None, lambda tools: tools.write("a", "three", **APPEND), "changed in the meantime"),
        (None, lambda tools: tools.write("a", "mine", mode=WriteMode.CREATE), "already exists"),
    ],
    ids=["edit", "append", "append to a new file", "create"],
)
def test_a_concurrent_change_by_another_program_is_not_lost(
    tools: FileTools, file: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, change: Any, error: str
):
    if before:
        file.write_text(before)
    fsync = os.fsync

    def meanwhile(descriptor: int) -> None:
        file.write_text("theirs!")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    refused(error, change, tools)
    assert file.read_text() == "theirs!"
    assert file_names(tools.root) == {"a"}


def test_concurrent_calls_lose_no_change(tools: FileTools):
    (tools.root / "log").write_text("")
    (tools.root / "code").write_text("".join(f"<{number}>\n" for number in range(40)))

    def change(number: int) -> None:
        tools.write("log", f"{number}\n", **APPEND)
        tools.edit("code", f"<{number}>", f"[{number}]")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(40)))
    assert sorted(map(int, (tools.root / "log").read_text().split())) == list(range(40))
    assert (tools.root / "code").read_text() == "".join(f"[{number}]\n" for number in range(40))


def test_an_edit_returns_matches_and_a_diff(tools: FileTools, file: Path):
    file.write_text("".join(f"line {number}\n" for number in range(1, 21)))
    result = tools.call("edit_file", path="a", old="line 10\n", new="line ten\nand a half\n")
    diff = "@@ -8,5 +8,6 @@\n line 8\n line 9\n-line 10\n+line ten\n+and a half\n line 11\n line 12\n"
    assert result.data == EditFileResult(path="a", matches=1, diff=diff)
    assert result.text.startswith("Edited a in 1 place.\n@@")


def test_an_ambiguous_edit_is_refused_and_several_edits_are_applied_in_order_or_not_at_all(
    tools: FileTools, file: Path
):
    file.write_text("x = 1\ny = 2\nx = 1\n")
    for chosen in ({}, {"expected": 3}, {"expected": 1, "all": True}):
        error = refused(r"occurs 2 times \(lines 1, 3\)", tools.edit, "a", "x = 1", "x = 2", **chosen)
        assert "expected: 2" in error.remedy
    assert file.read_text() == "x = 1\ny = 2\nx = 1\n"
    assert tools.edit("a", "x = 1", "x = 2", expected=2).matches == 2
    assert tools.edit("a", "x = 2", "x = 3", all=True).matches == 2
    more = (TextEdit(old="z = 3\ny", new="z = 3\nw"), TextEdit(old="not there", new="x"))
    refused("not found", tools.edit, "a", "x = 3\ny", "z = 3\ny", more=more)
    assert file.read_text() == "x = 3\ny = 2\nx = 3\n", "all or none"
    assert tools.edit("a", "x = 3\ny", "z = 3\ny", more=more[:1]).matches == 2
    assert file.read_text() == "z = 3\nw = 2\nx = 3\n", "in this order"


def test_an_impossible_edit_is_refused_with_the_nearest_lines(tools: FileTools, file: Path):
    file.write_text("import sys\ndef main(argv):\n    return 0\n")
    for old, near in (
        ("def mian(argv):\n", "2: def main(argv):"),
        ("\treturn 0", "3:     return 0"),
        ("return 0\n    print()", "3:     return 0"),
        ("something else altogether", "Read the file"),
    ):
        assert near in refused("not found in the file", tools.edit, "a", old, "x").text()
    refused("is empty", tools.edit, "a", "", "x")
    refused("are the same", tools.edit, "a", "import", "import")


def test_an_edit_keeps_the_files_line_ends(tools: FileTools, file: Path):
    for before, old, new, after in (
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\nb\n", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "c\r\nd", b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\n", "", b"b\r\n"),
        (b"a\rb\r", "a\nb", "c\nd", b"c\rd\r"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"a\nb\n", "a\nb", "x\r\ny", b"x\r\ny\n"),
    ):
        file.write_bytes(before)
        tools.edit("a", old, new)
        assert file.read_bytes() == after


@given(text=texts, form=text_forms, new=texts, cut=st.tuples(st.integers(0, 30), st.integers(1, 6)))
def test_an_edit_is_an_exact_replacement_with_any_mark_and_line_ends(
    tmp_path: Path, text: str, form: tuple[str, bytes], new: str, cut: tuple[int, int]
):
    encoding, mark = form
    old = text[cut[0] : cut[0] + cut[1]]
    assume(old and old != new and "\0" not in text[:1])
    only = {"\r\n": "\r\n" in text, "\n": "\n" in text.replace("\r\n", ""), "\r": "\r" in text.replace("\r\n", "")}
    ends = [end for end, there in only.items() if there]
    meant_old, meant_new = old, new
    if len(ends) == 1 and ends[0] != "\n":
        meant_old, meant_new = (part if "\r" in part else part.replace("\n", ends[0]) for part in (old, new))
    assume(meant_old in text and meant_old != meant_new)
    assume(mark or not text.startswith("\ufeff"))
    (tmp_path / "a").write_bytes(mark + text.encode(encoding))
    with file_tools(tmp_path, session_bytes=2**40) as tools:
        result = tools.edit("a", old, new, all=True, encoding=encoding)
    assert (tmp_path / "a").read_bytes() == mark + text.replace(meant_old, meant_new).encode(encoding)
    assert result.matches == text.count(meant_old)


def test_the_diff_of_a_large_change_is_short_and_fast(tools: FileTools, file: Path):
    file.write_text("x = 1\n" * 200_000)
    begins = time.process_time()
    result = tools.edit("a", "x", "y", all=True)
    assert time.process_time() - begins < 10
    assert result.matches == 200_000
    assert len(result.diff) < 5000
    file.write_text("x" * MB)
    assert len(tools.edit("a", "x" * MB, "y").diff) < 5000


def test_stat_has_kind_size_mode_time_and_why_a_file_is_not_writable(tools: FileTools, file: Path, monkeypatch: Any):
    (tools.root / ".git").mkdir()
    file.write_text("four")
    file.chmod(0o640)
    os.utime(file, (0, 1_700_000_000))
    (tools.root / "link").symlink_to("a")
    os.link(file, tools.root / "twin")
    assert tools.stat("a") == StatFileResult(
        kind="file", size=4, mode="0640", modified="2023-11-14T22:13:20+00:00", writable=False,
        why_not="it has 2 hard links, perhaps outside the folder",
    )  # fmt: skip
    (tools.root / "twin").unlink()
    assert tools.stat("a").writable
    assert (tools.stat("link").kind, tools.stat("link").target) == ("link", "a")
    assert (tools.stat(".").kind, tools.stat(".").writable) == ("folder", True)
    assert tools.stat(".git").why_not == ".git belongs to git and is off limits to tools"
    with file_tools(tools.root, read_only=True) as reading:
        assert reading.stat("a").why_not == "the workspace is read-only"
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((*fstat(fd)[:7], 0, 2**50, 0)))
    assert tools.stat("a").modified == f"{2**50} s after 1970", "beyond the calendar"
