"""The sandbox's small parts: output, cgroups, Landlock's rules, variables, versions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as some
import pytest
from hypothesis import given

from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import CapturedOutput, kernel_rules, limits, sandbox, system
from toolcrib.workspace.sandbox import process as output
from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.sandbox.limits import LimitGuard, tree_usage
from toolcrib.workspace.settings.model import DEFAULTS, GitMode, Limits

pytestmark = pytest.mark.req("FRG-9")


@given(
    chunks=some.lists(some.binary(max_size=300), max_size=40), head=some.integers(1, 200), tail=some.integers(1, 200)
)
def test_a_stream_keeps_its_beginning_and_its_end(chunks: list[bytes], head: int, tail: int) -> None:
    before = output.HEAD_BYTES, output.TAIL_BYTES
    output.HEAD_BYTES, output.TAIL_BYTES = head, tail
    try:
        stream = output.OutputStream()
        for chunk in chunks:
            stream.take(chunk)
        got = stream.captured(None)
    finally:
        output.HEAD_BYTES, output.TAIL_BYTES = before
    everything = b"".join(chunks)
    assert got.total == len(everything)
    assert everything.startswith(got.head)
    assert everything.endswith(got.tail)
    assert len(got.head) <= head
    if len(everything) <= head + tail:
        assert got.head + got.tail == everything
        assert got.whole
    else:
        assert len(got.tail) >= tail
        assert len(got.tail) < tail + 300


@given(data=some.binary(max_size=500), limit=some.integers(0, 600))
def test_a_cut_text_shows_both_ends_and_says_what_is_missing(data: bytes, limit: int) -> None:
    text = CapturedOutput(head=data, total=len(data), kept="the/file").text(limit)
    if len(data) <= limit:
        assert text == data.decode(errors="replace")
    else:
        half = limit // 2
        assert text.startswith(data[:half].decode(errors="replace"))
        assert text.endswith(data[len(data) - half :].decode(errors="replace") if half else "]\n")
        assert f"[… {len(data) - 2 * half} bytes left out; all of it: the/file …]" in text


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with contextlib.closing(Folder(tmp_path)) as folder:
        yield folder


@pytest.mark.parametrize(
    ("brought", "made"),
    [
        ([], "tool-1.log"),
        (["tool-7.log", "other-41.log"], "tool-42.log"),
        (["tool-999999.log"], "tool-1.log"),
        (["tool-999999.log", "tool-1.log", "x-2.log"], "tool-3.log"),
        (["tool-999999999.log", "tool-1000000000.log"], "tool-1.log"),
        (["tool-٣.log", "tool-\udcff-9.log", "\n-4.log"], "tool-10.log"),
    ],
)
def test_output_is_kept_whatever_names_a_repository_brings(
    folder: Folder, tmp_path: Path, brought: list[str], made: str
) -> None:
    place = tmp_path / output.OUTPUT_FOLDER
    place.mkdir(parents=True)
    for name in brought:
        (place / name).write_text("the repository's")
    kept = output.OutputFile(folder, "tool", after=3)
    for chunk in (b"ab", b"cd", b"ef"):
        kept.take(chunk)
    kept.close()
    assert kept.path == f"{output.OUTPUT_FOLDER}/{made}"
    assert (tmp_path / kept.path).read_bytes() == b"abcdef"
    assert {(place / name).read_text() for name in brought} <= {"the repository's"}


def test_output_that_cannot_be_kept_is_no_error(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the name in between."""
    monkeypatch.setattr(output, "_next_number", lambda _taken: 1)
    (tmp_path / output.OUTPUT_FOLDER).mkdir(parents=True)
    (tmp_path / output.OUTPUT_FOLDER / "tool-1.log").write_text("theirs")
    kept = output.OutputFile(folder, "tool", after=1)
    kept.take(b"abc")
    kept.take(b"def")
    kept.close()
    assert kept.path is None
    assert (tmp_path / output.OUTPUT_FOLDER / "tool-1.log").read_text() == "theirs"


@contextlib.contextmanager
def python(code: str) -> Iterator[int]:
    """The pid of one that has said that it is done, and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import mmap, os\n{code}\nprint(flush=True); os.read(0, 1)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid


MB = 1024 * 1024
PRIVATE = "held = bytearray(os.urandom(1)) * (64 << 20)"
TABLES = """
held = mmap.mmap(-1, 16 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
held.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(held), 2 << 20): held[at]
"""
SHARED = "held = mmap.mmap(-1, 32 << 20); held.write(bytes(len(held)))"
FORKS = """
told, tell = os.pipe()
for _ in range(4):
    if not os.fork(): held[:]; os.write(tell, b"."); os.read(0, 1); os._exit(0)
for _ in range(4): os.read(told, 1)
"""


@pytest.mark.parametrize(
    ("code", "taken"),
    [("", 0), (PRIVATE, 64 * MB), (TABLES, 32 * MB), (SHARED, 32 * MB)],
    ids=["nothing", "private", "tables", "shared"],
)
def test_the_watcher_counts_whatever_memory_a_process_takes(code: str, taken: int) -> None:
    room = 24 * MB
    with python(code) as pid:
        for limit, ending in ((taken + room, None), (taken, CommandEnding.MEMORY)):
            assert LimitGuard(replace(DEFAULTS.limits, memory=limit), pid, None).passed() is ending


def test_memory_that_processes_share_is_counted_once() -> None:
    with python(SHARED + FORKS) as pid:
        used = tree_usage(pid, most=100)
        assert used.threads == 5
        assert sum(used.shared.values()) >= 5 * 32 * MB
        limit = used.memory + 40 * MB
        assert LimitGuard(replace(DEFAULTS.limits, memory=limit), pid, None).passed() is None
        limit = used.memory + 30 * MB
        assert LimitGuard(replace(DEFAULTS.limits, memory=limit), pid, None).passed() is CommandEnding.MEMORY


MOUNTS_1 = (
    "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 20 0:27 / /sys/fs/cgroup/pids rw shared:3 - cgroup cgroup rw,pids\n"
    "32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def test_version_1_has_a_place_for_each_controller(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(MOUNTS_1)
    (tmp_path / "mine").write_text("8:pids:/\n4:memory:/user/x\n1:cpu,cpuacct:/\n0::/\n")
    (nest,) = limits.cgroup_candidates(str(tmp_path / "mine"), str(tmp_path / "mounts"))
    assert nest.version == 1
    assert nest.places == (Path("/sys/fs/cgroup/memory/user/x"), Path("/sys/fs/cgroup/pids"))


def test_version_2_is_used_where_both_controllers_are_handed_on(tmp_path: Path) -> None:
    tree = tmp_path / "cgroup"
    (tree / "app.slice/me.scope").mkdir(parents=True)
    (tmp_path / "mounts").write_text(f"30 20 0:26 / {tree} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "mine").write_text("0::/app.slice/me.scope\n")
    table = str(tmp_path / "mine"), str(tmp_path / "mounts")
    assert limits.cgroup_candidates(*table) == []
    (tree / "app.slice/cgroup.subtree_control").write_text("cpu memory pids\n")
    (tree / "app.slice/me.scope/cgroup.subtree_control").write_text("cpu\n")
    (nest,) = limits.cgroup_candidates(*table)
    assert (nest.version, nest.places) == (2, (tree / "app.slice",))


def test_a_container_sees_a_part_of_the_hierarchy(tmp_path: Path) -> None:
    tree = tmp_path / "cgroup"
    (tree / "inner").mkdir(parents=True)
    (tree / "cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "mounts").write_text(f"30 20 0:26 /docker/abc {tree} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "mine").write_text("0::/docker/abc/inner\n")
    (nest,) = limits.cgroup_candidates(str(tmp_path / "mine"), str(tmp_path / "mounts"))
    assert nest.places == (tree,)
    (tmp_path / "mine").write_text("0::/elsewhere\n")
    assert limits.cgroup_candidates(str(tmp_path / "mine"), str(tmp_path / "mounts")) == []


def test_a_group_of_version_2_has_its_limits(tmp_path: Path) -> None:
    """On plain files, which take whatever is written."""
    nest = limits.CgroupParent(version=2, places=(tmp_path,))
    group = nest.make(Limits(memory=1000, processes=7))
    (place,) = tmp_path.iterdir()
    assert (place / "memory.max").read_text() == "1000"
    assert (place / "memory.oom.group").read_text() == "1"
    assert (place / "pids.max").read_text() == "7"
    group.take(42)
    assert (place / "cgroup.procs").read_text() == "42"
    (place / "pids.current").write_text("7\n")
    (place / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert group.is_full()
    assert not group.ran_out_of_memory()
    (place / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert group.ran_out_of_memory()


def test_groups_of_dead_servers_are_swept_and_others_are_not(tmp_path: Path) -> None:
    alive, dead = tmp_path / f"toolcrib-{os.getpid()}-1", tmp_path / "toolcrib-4194999-1"
    for place in (alive, dead, tmp_path / "toolcrib-x-1", tmp_path / "other"):
        place.mkdir()
    limits.CgroupParent(version=2, places=(tmp_path,)).sweep()
    assert {place.name for place in tmp_path.iterdir()} == {alive.name, "toolcrib-x-1", "other"}


@pytest.mark.parametrize(("abi", "size"), [(1, 8), (2, 8), (3, 8), (4, 16), (5, 16), (6, 24), (7, 24), (9, 24)])
def test_landlock_is_told_only_what_its_version_knows(abi: int, size: int) -> None:
    told = kernel_rules.landlock_attributes(abi)
    assert len(told) == size
    handled = int.from_bytes(told[:8], "little")
    highest = {1: 12, 2: 13, 3: 14, 4: 14}.get(abi, 15)
    assert handled >> highest == 1
    # Reading and running are not ruled.
    assert not handled & 0b1101
    rules = dict(kernel_rules.landlock_rules([b"/tree"], [b"/dev/null"], abi))
    assert all(rights & ~handled == 0 for rights in rules.values())
    assert not rules[b"/tree"] & (1 << 6 | 1 << 11)
    assert rules[b"/dev/null"] & (1 << 1)
    assert not rules[b"/dev/null"] & (1 << 8)


def test_variables_are_made_anew() -> None:
    environ = {
        "PATH": "/usr/bin:relative:/home/u/bin:/w/.venv/bin:/usr/../home/u/bin::/opt/tools/bin",
        "SECRET": "x",
        "TOKEN": "y",
        "HOME": "/home/u",
    }
    settings = replace(DEFAULTS, environment=("TOKEN", "MISSING"))
    made = system.command_environment(settings, environ, Path("/w"), [Path("/opt/tools")])
    assert made["PATH"].split(":")[:3] == ["/usr/bin", "/w/.venv/bin", "/opt/tools/bin"]
    assert "/home/u/bin" not in made["PATH"]
    assert made["HOME"] == "/tmp/home"
    assert made["TOKEN"] == "y"
    assert not {"SECRET", "MISSING"} & made.keys()
    assert made["GIT_OPTIONAL_LOCKS"] == "0"
    assert "GIT_OPTIONAL_LOCKS" not in system.command_environment(
        replace(settings, git=GitMode.COMMIT), environ, Path("/w"), []
    )


def test_toolchains_never_hold_the_home_itself(tmp_path: Path) -> None:
    for name in (".ssh", ".pyenv/versions/3.12", ".cargo/bin", "extra"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".cargo/credentials.toml").write_text("secret")
    settings = replace(DEFAULTS, readable=(tmp_path / "extra",))
    found = system.toolchains(settings, {"HOME": str(tmp_path)}, tmp_path / "root")
    assert {tmp_path / ".pyenv/versions", tmp_path / ".cargo/bin", tmp_path / "extra"} <= set(found)
    assert not any((tmp_path / ".ssh").is_relative_to(place) for place in found)
    assert not any((tmp_path / ".cargo/credentials.toml").is_relative_to(place) for place in found)


@pytest.mark.parametrize(
    ("said", "expected"),
    [("bubblewrap 0.8.0", (0, 8, 0)), ("bubblewrap 0.11", (0, 11)), ("", ()), ("no such file", ())],
)
def test_versions_are_read(said: str, expected: tuple[int, ...]) -> None:
    assert system.bubblewrap_version(said) == expected


def test_the_next_self_test_clears_away_what_a_killed_one_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "else").mkdir()
    left = tmp_path / "toolcrib-probe-left"
    left.mkdir()
    (left / "secret").touch()
    (tmp_path / "toolcrib-probe-link").symlink_to(tmp_path / "else")
    with sandbox._outside_folder() as one, sandbox._outside_folder() as other:
        assert not left.exists()
        assert one != other
        assert one.is_dir()
        assert other.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"else", "toolcrib-probe-link"}
