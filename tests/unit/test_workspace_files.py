"""What read_file, write_file, edit_file and stat_file do with the files that they may touch."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from parts.report import not_run
from parts.scenes import scene_in
from parts.small_disk import small_disk
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.atomic_write import open_own_folder
from toolcrib.workspace.folder import FolderPath
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.edits import TextEdit, apply_edit
from toolcrib.workspace.tools.files import (
    EditFileArguments,
    EditFileResult,
    ReadFileArguments,
    ReadFileResult,
    WriteFileArguments,
    WriteFileResult,
    WriteMode,
    edit_file,
    read_file,
    write_file,
)
from toolcrib.workspace.tools.listing import StatFileArguments, StatFileResult, stat_file

pytestmark = pytest.mark.req("FRG-1")

MB = 1024 * 1024
texts = st.text(st.one_of(st.sampled_from("ab\n\r\t é€😀\x0b\x0c\u2028"), st.characters(exclude_categories=["Cs"])))
text_forms = st.sampled_from(
    [("utf-8", b""), ("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)]
)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ToolContext]:
    (tmp_path / "root").mkdir()
    with scene_in(tmp_path / "root") as scene:
        yield scene


@pytest.fixture
def root(scene: ToolContext) -> Path:
    return scene.folder.root


def read(scene: ToolContext, path: str, **given: Any) -> ReadFileResult:
    done = read_file(scene, ReadFileArguments(path=path, **given))
    msgspec.json.encode(done.data)
    assert isinstance(done.data, ReadFileResult)
    return done.data


def write(scene: ToolContext, path: str, content: str, **given: Any) -> WriteFileResult:
    data = write_file(scene, WriteFileArguments(path=path, content=content, **given)).data
    assert isinstance(data, WriteFileResult)
    return data


def edit(scene: ToolContext, path: str, old: str, new: str, **given: Any) -> EditFileResult:
    done = edit_file(scene, EditFileArguments(path=path, old=old, new=new, **given))
    msgspec.json.encode(done.data)
    assert isinstance(done.data, EditFileResult)
    return done.data


def status(scene: ToolContext, path: str) -> StatFileResult:
    data = stat_file(scene, StatFileArguments(path=path)).data
    assert isinstance(data, StatFileResult)
    return data


def pieces(scene: ToolContext, path: str, **given: Any) -> Iterator[ReadFileResult]:
    """As a model would go on, until nothing says how."""
    piece = read(scene, path, **given)
    for _ in range(10_000):
        yield piece
        if piece.next_line is not None:
            piece = read(scene, path, **{**given, "start_line": piece.next_line})
        elif piece.next_offset is not None:
            piece = read(scene, path, **{**given, "offset": piece.next_offset, "start_line": 1, "lines": None})
        else:
            return
    raise AssertionError("it never ends")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_read_with_its_lines_and_line_ends(scene: ToolContext, root: Path):
    (root / "a.txt").write_bytes(b"one\ntwo\nthree")
    found = read(scene, "a.txt")
    assert found == ReadFileResult(text="one\ntwo\nthree", newline="lf", total_lines=3)
    part = read_file(scene, ReadFileArguments(path="a.txt", start_line=2, lines=1))
    assert part.data == ReadFileResult(text="two\n", size=13, first_line=2, last_line=2, total_lines=3, next_line=3)
    assert part.text == "a.txt, lines 2-2 of 3 (continue with start_line: 3)\ntwo\n"


def test_of_a_usual_file_nothing_is_said_but_its_text(scene: ToolContext, root: Path):
    (root / "a.txt").write_bytes(b"one\ntwo\n")
    assert json.loads(msgspec.json.encode(read(scene, "a.txt"))) == {"text": "one\ntwo\n", "total_lines": 2}
    (root / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n")
    told = json.loads(msgspec.json.encode(read(scene, "a.txt")))
    assert told == {"text": "one\r\n", "bom": True, "newline": "crlf", "total_lines": 1}


@given(text=texts, most=st.integers(8, 60))
def test_a_text_takes_up_no_more_room_than_there_is_in_json_too(tmp_path: Path, text: str, most: int):
    (tmp_path / "a").write_text("x" + text, newline="")
    with scene_in(tmp_path, read=most) as scene:
        for piece in pieces(scene, "a", encoding="utf-8"):
            assert len(msgspec.json.encode(piece.text)) <= most


@pytest.mark.parametrize(
    ("raw", "newline", "total"),
    [
        (b"", "none", 0),
        (b"x", "none", 1),
        (b"a\nb\n", "lf", 2),
        (b"a\r\nb\r\n", "crlf", 2),
        (b"a\rb\r", "cr", 2),
        (b"a\r\nb\n", "mixed", 2),
        (b"a\rb\nc", "mixed", 2),
        (b"a\x0cb\xe2\x80\xa8c\n", "lf", 1),
    ],
)
def test_line_ends_are_told_and_lines_counted_as_other_tools_count(
    scene: ToolContext, root: Path, raw: bytes, newline: str, total: int
):
    (root / "a").write_bytes(raw)
    found = read(scene, "a")
    assert (found.newline, found.total_lines, found.text) == (newline, total, raw.decode())


def test_a_cut_pair_at_the_end_of_the_first_bytes_is_no_mixture(scene: ToolContext, root: Path):
    (root / "a").write_bytes(b"x" + b"ab\r\n" * 20_000)
    assert (root / "a").read_bytes()[65_535:65_537] == b"\r\n"
    assert read(scene, "a").newline == "crlf"
    (root / "a").write_bytes(b"x" * 70_000 + b"\r\n")
    assert read(scene, "a").newline is None


@pytest.mark.parametrize("start", [2, 3, 99])
def test_a_line_that_is_not_there_is_said_with_the_number_of_lines(scene: ToolContext, root: Path, start: int):
    (root / "a").write_text("only\n")
    with pytest.raises(WorkspaceError, match=f"no line {start}: the file has 1"):
        read(scene, "a", start_line=start)


@pytest.mark.parametrize("encoding", [None, "binary"])
def test_a_byte_that_is_not_there_is_said_with_the_size(scene: ToolContext, root: Path, encoding: str | None):
    (root / "a").write_text("four")
    for offset in (5, 2**70):
        with pytest.raises(WorkspaceError, match=f"no byte {offset}: the file has 4"):
            read(scene, "a", offset=offset, encoding=encoding)
    assert read(scene, "a", offset=4).text == ""
    with pytest.raises(WorkspaceError, match="not by both"):
        read(scene, "a", offset=1, lines=1)


@pytest.mark.parametrize(
    ("raw", "encoding", "bom"),
    [
        (codecs.BOM_UTF8 + "é\n".encode(), "utf-8", True),
        (codecs.BOM_UTF16_LE + "é\n".encode("utf-16-le"), "utf-16-le", True),
        (codecs.BOM_UTF16_BE + "é\n".encode("utf-16-be"), "utf-16-be", True),
        (codecs.BOM_UTF32_LE + "é\n".encode("utf-32-le"), "utf-32-le", True),
        ("é\n".encode(), "utf-8", False),
    ],
)
def test_a_byte_order_mark_names_the_encoding_and_lives_through_edit_and_write(
    scene: ToolContext, root: Path, raw: bytes, encoding: str, bom: bool
):
    (root / "a").write_bytes(raw)
    found = read(scene, "a")
    assert (found.text, found.encoding or "utf-8", found.bom) == ("é\n", encoding, bom)
    edit(scene, "a", "é", "è")
    assert (root / "a").read_bytes() == raw.replace("é".encode(encoding), "è".encode(encoding))
    write(scene, "a", "é\n")
    assert (root / "a").read_bytes() == raw
    write(scene, "a", "é\n", mode=WriteMode.APPEND)
    assert (root / "a").read_bytes() == raw + "é\n".encode(encoding)


@pytest.mark.parametrize("name", ["latin-1", "cp1252", "ISO-8859-15", "utf-16", "shift_jis", "utf-8-sig"])
def test_other_encodings_are_read_written_and_edited_by_name(scene: ToolContext, root: Path, name: str):
    text = "カナ\n" if name == "shift_jis" else "grün\n"
    write(scene, "a", text, encoding=name)
    assert (root / "a").read_bytes().decode(name) == text
    assert read(scene, "a", encoding=name).text == text
    edit(scene, "a", text[0], "x", encoding=name)
    assert (root / "a").read_bytes().decode(name) == "x" + text[1:]


@pytest.mark.parametrize(
    "name", ["rot13", "zlib", "hex", "idna", "punycode", "unicode_escape", "no-such", "a\0b", "../x"]
)
def test_what_is_no_encoding_of_texts_is_refused(scene: ToolContext, root: Path, name: str):
    (root / "a").write_bytes(b"x")
    for do in (lambda: read(scene, "a", encoding=name), lambda: write(scene, "a", "y", encoding=name)):
        with pytest.raises(WorkspaceError, match="not a text encoding"):
            do()
    assert (root / "a").read_bytes() == b"x"


def test_single_bytes_that_are_no_utf8_are_told_and_live_through_an_edit(scene: ToolContext, root: Path):
    raw = b"a long line of text with one \xe9 in it\nand another line\n"
    (root / "a").write_bytes(raw)
    done = read_file(scene, ReadFileArguments(path="a"))
    assert isinstance(done.data, ReadFileResult)
    assert done.data.note.startswith("1 byte is not UTF-8")
    assert done.data.text == raw.decode(errors="replace")
    assert "edit_file keeps such bytes" in done.text
    edit(scene, "a", "another", "one more")
    assert (root / "a").read_bytes() == raw.replace(b"another", b"one more")
    with pytest.raises(WorkspaceError, match="not valid Unicode"):
        edit(scene, "a", "line", "\udce9", all=True)
    with pytest.raises(WorkspaceError, match="not valid Unicode"):
        write(scene, "a", "\udce9")


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"text\0text", "binary data"),
        ("дом".encode("cp1251") * 9, "not UTF-8"),
    ],
)
def test_a_binary_file_is_said_as_such_and_given_as_base64_when_asked_for(
    scene: ToolContext, root: Path, raw: bytes, what: str
):
    (root / "a").write_bytes(raw)
    told = read(scene, "a")
    assert (told.kind, told.text, told.base64, told.size) == ("binary", None, None, len(raw))
    assert what in told.note
    assert 'encoding: "binary"' in told.note
    assert base64.b64decode(read(scene, "a", encoding="binary").base64 or "") == raw
    with pytest.raises(WorkspaceError, match=what):
        edit(scene, "a", "t", "u")


def test_binary_ranges_put_together_are_the_file_and_base64_writes_it_again(tmp_path: Path):
    raw = os.urandom(5000)
    (tmp_path / "a").write_bytes(raw)
    with scene_in(tmp_path, read=1000) as scene:
        got = [base64.b64decode(piece.base64 or "") for piece in pieces(scene, "a", encoding="binary")]
        assert b"".join(got) == raw
        assert max(map(len, got)) <= 750
        few = read(scene, "a", encoding="binary", offset=10, length=5)
        assert (base64.b64decode(few.base64 or ""), few.truncated, few.next_offset) == (raw[10:15], False, 15)
        write(scene, "b", base64.b64encode(raw).decode(), encoding="binary")
        assert (tmp_path / "b").read_bytes() == raw
        with pytest.raises(WorkspaceError, match="not base64"):
            write(scene, "new/b", "not base64!", encoding="binary")
        assert not (tmp_path / "new").exists()
        with pytest.raises(WorkspaceError, match="not base64"):
            write(scene, "b", "é", encoding="binary")
        assert (tmp_path / "b").read_bytes() == raw


def test_a_text_that_does_not_fit_is_cut_at_a_line_and_says_how_to_go_on(tmp_path: Path):
    (tmp_path / "a").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    with scene_in(tmp_path, read=100) as scene:
        first = read(scene, "a")
        assert (first.truncated, first.last_line, first.next_line, first.total_lines) == (True, 11, 12, 1000)
        assert first.text is not None
        assert first.text.endswith("line 11\n")
        assert "".join(piece.text or "" for piece in pieces(scene, "a")) == (tmp_path / "a").read_text()


@given(
    text=texts, form=text_forms, most=st.integers(1, 40), lines=st.none() | st.integers(1, 4), start=st.integers(0, 9)
)
@example(text="a\r\nb", form=("utf-8", b""), most=2, lines=None, start=0)
def test_consecutive_ranges_put_together_are_the_whole_text(
    tmp_path: Path, text: str, form: tuple[str, bytes], most: int, lines: int | None, start: int
):
    encoding, mark = form
    assume(not text.startswith("\ufeff") and not (mark == codecs.BOM_UTF16_LE and text.startswith("\0")))
    (tmp_path / "a").write_bytes(mark + text.encode(encoding))
    named = {"encoding": encoding} if "\0" in text else {}
    with scene_in(tmp_path, read=most) as scene:
        got = list(pieces(scene, "a", lines=lines, **named))
        assert "".join(piece.text or "" for piece in got) == text
        assert all(len((piece.text or "").encode()) <= max(most, 4) for piece in got)
        byte = min(len(mark) + start * 4, len(mark) + len(text.encode(encoding)))
        assume(
            (mark + text.encode(encoding))[:byte].decode(encoding, "ignore").encode(encoding)
            == (mark + text.encode(encoding))[:byte]
        )
        by_byte = "".join(piece.text or "" for piece in pieces(scene, "a", offset=byte, **named))
        assert by_byte == (mark + text.encode(encoding))[max(byte, len(mark)) :].decode(encoding)


@given(text=texts, form=text_forms, append=texts)
def test_what_is_written_is_read_again(tmp_path: Path, text: str, form: tuple[str, bytes], append: str):
    assume(not append.startswith("\ufeff"))
    encoding, mark = form
    with scene_in(tmp_path, session_bytes=2**40) as scene:
        (tmp_path / "a").write_bytes(mark)
        write(scene, "a", text, encoding=encoding)
        found = read(scene, "a", encoding=encoding)
        assert ("\ufeff" if text.startswith("\ufeff") else "") + (found.text or "") == text
        assert found.bom == (mark != b"" or text.startswith("\ufeff"))
        write(scene, "a", append, mode=WriteMode.APPEND, encoding=encoding)
        assert (read(scene, "a", encoding=encoding).text or "") == text.removeprefix("\ufeff") + append


def test_a_huge_file_is_read_in_part_without_being_read_whole(scene: ToolContext, root: Path):
    with (root / "huge").open("wb") as file:
        file.write(b"a line of text\n" * 200_000)
        file.truncate(5 * 1024 * MB)
    tracemalloc.start()
    try:
        begins = time.process_time()
        found = read(scene, "huge", start_line=199_999, lines=1)
        tail = read(scene, "huge", offset=5 * 1024 * MB - 10, encoding="binary")
        assert time.process_time() - begins < 10
        assert tracemalloc.get_traced_memory()[1] < 8 * MB
    finally:
        tracemalloc.stop()
    assert (found.text, found.size, found.total_lines) == ("a line of text\n", 5 * 1024 * MB, None)
    assert base64.b64decode(tail.base64 or "") == bytes(10)
    with pytest.raises(WorkspaceError, match="too large to edit"):
        edit(scene, "huge", "a", "b")


@pytest.mark.req("FRG-10")
def test_counting_through_a_huge_file_and_writing_end_when_time_is_up(scene: ToolContext, root: Path):
    (root / "a").write_text("line\n" * 10)
    late = dataclasses.replace(scene, deadline=time.monotonic() - 1)
    with pytest.raises(WorkspaceError, match="in time") as refused:
        read(late, "a", start_line=5)
    assert "offset" in refused.value.remedy
    for change in (lambda: write(late, "a", "new"), lambda: edit(late, "a", "line", "row", all=True)):
        with pytest.raises(WorkspaceError, match="time is up"):
            change()
    assert (root / "a").read_text() == "line\n" * 10


def test_modes_of_writing(scene: ToolContext, root: Path):
    made = write(scene, "new/folders/a.txt", "one\n")
    assert made == WriteFileResult(path="new/folders/a.txt", created=True, written=4)
    with pytest.raises(WorkspaceError, match="already exists"):
        write(scene, "new/folders/a.txt", "two\n", mode=WriteMode.CREATE)
    added = write(scene, "new/folders/a.txt", "two\n", mode=WriteMode.APPEND)
    assert added == WriteFileResult(path="new/folders/a.txt", written=4, size=8)
    assert (root / "new/folders/a.txt").read_text() == "one\ntwo\n"
    write(scene, "new/folders/a.txt", "three")
    assert (root / "new/folders/a.txt").read_text() == "three"
    assert write(scene, "b.txt", "x", mode=WriteMode.CREATE).created
    assert write(scene, "c.txt", "x", mode=WriteMode.APPEND).created
    with pytest.raises(WorkspaceError, match="no nowhere in the workspace"):
        write(scene, "nowhere/a.txt", "x", make_dirs=False)
    assert names(root) == {"new", "b.txt", "c.txt"}
    assert names(root / "new" / "folders") == {"a.txt"}


def test_writing_and_editing_keep_the_mode_but_no_setuid(scene: ToolContext, root: Path):
    for mode, afterwards in ((0o755, 0o755), (0o600, 0o600), (0o664, 0o664), (0o4755, 0o755)):
        (root / "a").write_text("one")
        (root / "a").chmod(mode)
        write(scene, "a", "two")
        assert stat.S_IMODE((root / "a").stat().st_mode) == afterwards
        (root / "a").chmod(mode)
        edit(scene, "a", "two", "three")
        assert stat.S_IMODE((root / "a").stat().st_mode) == afterwards


def test_a_read_only_file_is_not_replaced(scene: ToolContext, root: Path):
    (root / "a").write_text("one")
    (root / "a").chmod(0o444)
    for change in (lambda: write(scene, "a", "two"), lambda: edit(scene, "a", "one", "two")):
        with pytest.raises(WorkspaceError, match="read-only"):
            change()
    assert (root / "a").read_text() == "one"
    assert status(scene, "a").why_not == "it is read-only (mode 0444)"


@pytest.mark.req("FRG-9")
def test_what_root_makes_belongs_to_the_folders_owner_and_what_it_changes_to_its_own(tmp_path: Path):
    if os.geteuid() != 0:
        not_run("owners", "only root may give files away")
    os.chown(tmp_path, 4321, 8765)
    (tmp_path / "theirs").write_text("one")
    os.chown(tmp_path / "theirs", 1111, 2222)
    with scene_in(tmp_path) as scene:
        write(scene, "new/deep/a.txt", "x")
        write(scene, "theirs", "two")
        edit(scene, "theirs", "two", "three")
        os.close(open_own_folder(scene.folder, FolderPath((".toolcrib", "output"))))
    for name in ("new", "new/deep", "new/deep/a.txt", ".toolcrib", ".toolcrib/output"):
        there = (tmp_path / name).stat()
        assert (there.st_uid, there.st_gid) == (4321, 8765), name
    assert ((tmp_path / "theirs").stat().st_uid, (tmp_path / "theirs").stat().st_gid) == (1111, 2222)


@pytest.mark.req("FRG-9")
def test_the_servers_own_folder_is_never_made_through_a_link(scene: ToolContext, root: Path):
    (root / "src").mkdir()
    (root / ".toolcrib").symlink_to("src")
    with pytest.raises(WorkspaceError):
        open_own_folder(scene.folder, FolderPath((".toolcrib", "output")))
    assert names(root / "src") == set()


@pytest.mark.req("FRG-10")
def test_quota_and_size_are_held_before_anything_is_written(tmp_path: Path):
    (tmp_path / "a").write_text("as it was")
    with scene_in(tmp_path, session_bytes=30, file_size=20) as scene:
        for path, content, given in (
            ("a", "x" * 21, {}),
            ("a", "x" * 12, {"mode": WriteMode.APPEND}),
            ("b", "x" * 21, {"mode": WriteMode.CREATE}),
        ):
            with pytest.raises(WorkspaceError, match="the maximum is 20"):
                write(scene, path, content, **given)
        with pytest.raises(WorkspaceError, match="the maximum is 20"):
            edit(scene, "a", "was", "x" * 20)
        assert scene.session.written == 0
        write(scene, "c", "x" * 18)
        with pytest.raises(WorkspaceError):
            write(scene, "c", "y" * 13)
        with pytest.raises(WorkspaceError):
            edit(scene, "c", "x" * 18, "y" * 13)
        assert scene.session.written == 18
    assert (tmp_path / "a").read_text() == "as it was"
    assert (tmp_path / "c").read_text() == "x" * 18
    assert names(tmp_path) == {"a", "c"}


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path):
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        root = disk / "root"
        root.mkdir()
        (root / "a").write_text("as it was")
        filler = disk.fill()
        with scene_in(root) as scene:
            for change in (
                lambda: write(scene, "a", "x" * 50_000),
                lambda: write(scene, "a", "x" * 50_000, mode=WriteMode.APPEND),
                lambda: write(scene, "b", "x" * 50_000),
                lambda: edit(scene, "a", "was", "x" * 50_000),
            ):
                with pytest.raises(WorkspaceError, match="the disk is full") as refused:
                    change()
                assert "as it was" in refused.value.remedy
            assert (root / "a").read_text() == "as it was"
            assert names(root) == {"a"}
            filler.unlink()
            write(scene, "a", "x" * 50_000)
        assert (root / "a").stat().st_size == 50_000


@pytest.mark.parametrize("broken", ["fsync", "rename", "write"])
def test_whatever_fails_on_the_way_the_file_is_as_it_was(
    scene: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    (root / "a").write_text("as it was")

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, broken, fails)
    with pytest.raises(WorkspaceError, match="a failed: Input/output error"):
        write(scene, "a", "new")
    monkeypatch.undo()
    assert (root / "a").read_text() == "as it was"
    assert names(root) == {"a"}


def test_the_new_file_is_on_the_disk_before_it_takes_the_name_and_the_folder_after(
    scene: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "a").write_text("old")
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        steps.append(f"{'folder' if is_folder else 'file'} on disk, a holds {(root / 'a').read_text()}")
        fsync(descriptor)

    def noted_rename(*names: str, **given: int) -> None:
        steps.append("rename")
        rename(*names, **given)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write(scene, "a", "new")
    assert steps == ["file on disk, a holds old", "rename", "folder on disk, a holds new"]


@pytest.mark.parametrize("how", ["edit", "append", "append to nothing"])
def test_a_change_of_somebody_else_meanwhile_is_not_lost(
    scene: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    if how != "append to nothing":
        (root / "a").write_text("one two")
    fsync = os.fsync

    def meanwhile(descriptor: int) -> None:
        (root / "a").write_text("theirs!")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(WorkspaceError, match="changed in the meantime"):
        if how == "edit":
            edit(scene, "a", "one", "1")
        else:
            write(scene, "a", "three", mode=WriteMode.APPEND)
    assert (root / "a").read_text() == "theirs!"
    assert names(root) == {"a"}


def test_changes_at_the_same_time_all_arrive(scene: ToolContext, root: Path):
    (root / "log").write_text("")
    (root / "code").write_text("".join(f"<{number}>\n" for number in range(40)))

    def change(number: int) -> None:
        write(scene, "log", f"{number}\n", mode=WriteMode.APPEND)
        edit(scene, "code", f"<{number}>", f"[{number}]")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(40)))
    assert sorted(map(int, (root / "log").read_text().split())) == list(range(40))
    assert (root / "code").read_text() == "".join(f"[{number}]\n" for number in range(40))


def test_of_two_that_create_a_file_only_one_does(scene: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch):
    fsync = os.fsync

    def meanwhile(descriptor: int) -> None:
        (root / "a").write_text("theirs")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(WorkspaceError, match="already exists"):
        write(scene, "a", "mine", mode=WriteMode.CREATE)
    assert (root / "a").read_text() == "theirs"
    assert names(root) == {"a"}


def test_an_edit_tells_matches_lines_and_a_diff(scene: ToolContext, root: Path):
    (root / "a.py").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    done = edit_file(scene, EditFileArguments(path="a.py", old="line 10\n", new="line ten\nand a half\n"))
    assert done.data == EditFileResult(
        path="a.py",
        matches=1,
        diff="@@ -8,5 +8,6 @@\n line 8\n line 9\n-line 10\n+line ten\n+and a half\n line 11\n line 12\n",
    )
    assert done.text.startswith("Edited a.py in 1 place.\n@@")


def test_an_edit_that_is_not_unique_is_refused_with_the_lines_unless_that_was_meant(scene: ToolContext, root: Path):
    (root / "a").write_text("x = 1\ny = 2\nx = 1\n")
    for chosen in ({}, {"expected": 3}, {"expected": 1, "all": True}):
        with pytest.raises(WorkspaceError, match=r"occurs 2 times \(lines 1, 3\)") as refused:
            edit(scene, "a", "x = 1", "x = 2", **chosen)
        assert "expected: 2" in refused.value.remedy
    assert (root / "a").read_text() == "x = 1\ny = 2\nx = 1\n"
    assert edit(scene, "a", "x = 1", "x = 2", expected=2).matches == 2
    assert edit(scene, "a", "x = 2", "x = 3", all=True).matches == 2
    assert (root / "a").read_text() == "x = 3\ny = 2\nx = 3\n"


@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("def mian(argv):\n", "2: def main(argv):"),
        ("\treturn 0", "3:     return 0"),
        ("return 0\n    print()", "3:     return 0"),
        ("something else altogether", "Read the file"),
    ],
)
def test_an_edit_that_matches_nothing_tells_the_nearest_lines(scene: ToolContext, root: Path, old: str, told: str):
    (root / "a").write_text("import sys\ndef main(argv):\n    return 0\n")
    with pytest.raises(WorkspaceError, match="not found in the file") as refused:
        edit(scene, "a", old, "x")
    assert told in refused.value.text()


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("one", "one")])
def test_an_edit_that_says_nothing_is_refused(scene: ToolContext, root: Path, old: str, new: str):
    (root / "a").write_text("one")
    with pytest.raises(WorkspaceError, match=r"is empty|are the same"):
        edit(scene, "a", old, new)


def test_several_edits_are_made_in_order_all_or_none(scene: ToolContext, root: Path):
    (root / "a").write_text("one two three")
    more = (TextEdit(old="1 two", new="1 2"), TextEdit(old="not there", new="x"))
    with pytest.raises(WorkspaceError, match="not found"):
        edit(scene, "a", "one", "1", more=more)
    assert (root / "a").read_text() == "one two three"
    assert edit(scene, "a", "one", "1", more=more[:1]).matches == 2
    assert (root / "a").read_text() == "1 2 three"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\nb\n", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "c\r\nd", b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\n", "", b"b\r\n"),
        (b"a\rb\r", "a\nb", "c\nd", b"c\rd\r"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"a\nb\n", "a\nb", "x\r\ny", b"x\r\ny\n"),
    ],
)
def test_line_ends_of_the_file_stay_what_they_are(
    scene: ToolContext, root: Path, before: bytes, old: str, new: str, after: bytes
):
    (root / "a").write_bytes(before)
    edit(scene, "a", old, new)
    assert (root / "a").read_bytes() == after


@given(text=texts, form=text_forms, new=texts, cut=st.tuples(st.integers(0, 30), st.integers(1, 6)))
def test_an_edit_is_an_exact_replacement_whatever_mark_and_line_ends(
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
    (tmp_path / "a").write_bytes(mark + text.encode(encoding))
    with scene_in(tmp_path, session_bytes=2**40) as scene:
        done = edit(scene, "a", old, new, all=True, encoding=encoding)
    has_mark = text.startswith("\ufeff") and not mark
    wanted = mark + text.replace(meant_old, meant_new).encode(encoding)
    assume(not has_mark)
    assert (tmp_path / "a").read_bytes() == wanted
    assert done.matches == text.count(meant_old)


@given(st.text("ab\n"), st.text("ab\n", min_size=1, max_size=2), texts)
def test_a_replacement_in_a_text_is_what_str_replace_does(text: str, old: str, new: str):
    assume(old in text and old != new)
    assert apply_edit(text, TextEdit(old=old, new=new, all=True))[0] == text.replace(old, new)


def test_the_diff_of_a_large_change_is_bounded_and_quick(scene: ToolContext, root: Path):
    (root / "a").write_text("x = 1\n" * 200_000)
    begins = time.process_time()
    done = edit(scene, "a", "x", "y", all=True)
    assert time.process_time() - begins < 10
    assert done.matches == 200_000
    assert len(done.diff) < 5000
    (root / "b").write_text("x" * MB)
    assert len(edit(scene, "b", "x" * MB, "y").diff) < 5000


def test_stat_tells_kind_size_mode_time_and_what_may_be_written(scene: ToolContext, root: Path):
    (root / ".git").mkdir()
    (root / "a").write_text("four")
    (root / "a").chmod(0o640)
    os.utime(root / "a", (0, 1_700_000_000))
    (root / "link").symlink_to("a")
    os.link(root / "a", root / "twin")
    assert status(scene, "a") == StatFileResult(
        kind="file", size=4, mode="0640", modified="2023-11-14T22:13:20+00:00", writable=False,
        why_not="it has 2 hard links, some of which may be outside",
    )  # fmt: skip
    (root / "twin").unlink()
    assert status(scene, "a").writable
    assert (status(scene, "link").kind, status(scene, "link").target) == ("link", "a")
    assert (status(scene, ".").kind, status(scene, ".").writable) == ("folder", True)
    assert status(scene, ".git").why_not == ".git belongs to git and is off limits to tools"
    with scene_in(root, read_only=True) as reading:
        assert status(reading, "a").why_not == "the workspace is read-only"


def test_a_time_beyond_all_calendars_is_told_all_the_same(
    scene: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "a").touch()
    real = os.fstat
    far: Callable[[int], os.stat_result] = lambda fd: os.stat_result((*real(fd)[:7], 0, 2**50, 0))  # noqa: E731
    monkeypatch.setattr(os, "fstat", far)
    assert status(scene, "a").modified == f"{2**50} s after 1970"
