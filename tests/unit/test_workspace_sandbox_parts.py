"""Small parts of the sandbox: output, memory, cgroups, Landlock's rules, variables, versions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from parts.tool_context import file_names, make_files
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import CapturedOutput, kernel_rules, limits, sandbox, system
from toolcrib.workspace.sandbox import process as output
from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.sandbox.limits import LimitGuard, tree_usage
from toolcrib.workspace.settings.model import DEFAULTS, GitMode, Limits

pytestmark = pytest.mark.req("FRG-9")


@given(chunks=st.lists(st.binary(max_size=300), max_size=40), head=st.integers(1, 200), tail=st.integers(1, 200))
def test_a_stream_keeps_its_beginning_and_its_end(chunks: list[bytes], head: int, tail: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "HEAD_BYTES", head)
        patch.setattr(output, "TAIL_BYTES", tail)
        stream = output.OutputStream()
        for chunk in chunks:
            stream.take(chunk)
        captured = stream.captured(None)
    everything = b"".join(chunks)
    assert captured.total == len(everything)
    assert everything.startswith(captured.head)
    assert everything.endswith(captured.tail)
    assert len(captured.head) <= head
    if len(everything) <= head + tail:
        assert captured.head + captured.tail == everything
        assert captured.whole
    else:
        assert tail <= len(captured.tail) < tail + 300


@given(data=st.binary(max_size=500), limit=st.integers(0, 600))
def test_a_cut_text_has_both_ends_and_the_number_of_missing_bytes(data: bytes, limit: int):
    text = CapturedOutput(head=data, total=len(data), kept="the/file").text(limit)
    if len(data) <= limit:
        assert text == data.decode(errors="replace")
    else:
        half = limit // 2
        assert text.startswith(data[:half].decode(errors="replace"))
        assert text.endswith(data[len(data) - half :].decode(errors="replace") if half else "]\n")
        assert f"[… {len(data) - 2 * half} bytes left out; full output: the/file …]" in text


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with contextlib.closing(Folder(tmp_path)) as folder:
        yield folder


def keep_output(folder: Folder, *chunks: bytes) -> str | None:
    kept = output.OutputFile(folder, "tool", after=3)
    for chunk in chunks:
        kept.take(chunk)
    kept.close()
    return kept.path


@pytest.mark.parametrize(
    ("existing", "made"),
    [
        ([], "tool-1.log"),
        (["tool-7.log", "other-41.log"], "tool-42.log"),
        (["tool-999999.log"], "tool-1.log"),
        (["tool-999999.log", "tool-1.log", "x-2.log"], "tool-3.log"),
        (["tool-999999999.log", "tool-1000000000.log"], "tool-1.log"),
        (["tool-٣.log", "tool-\udcff-9.log", "\n-4.log"], "tool-10.log"),
    ],
)
def test_output_is_kept_next_to_files_of_any_name(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, existing: list[str], made: str
):
    place = folder.root / output.OUTPUT_FOLDER
    make_files(place, dict.fromkeys(existing, "the repository's"))
    path = keep_output(folder, b"ab", b"cd", b"ef")
    assert path == f"{output.OUTPUT_FOLDER}/{made}"
    assert (folder.root / path).read_bytes() == b"abcdef"
    assert {(place / name).read_text() for name in existing} <= {"the repository's"}
    # Another program creates the next file first: no error, and no output is kept.
    monkeypatch.setattr(output, "_next_number", lambda _taken: 1)
    (place / "tool-1.log").write_text("theirs")
    assert keep_output(folder, b"abc", b"def") is None
    assert (place / "tool-1.log").read_text() == "theirs"


@contextlib.contextmanager
def python(code: str) -> Iterator[int]:
    """The pid of a process that has run the code and waits."""
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
reading, writing = os.pipe()
for _ in range(4):
    if not os.fork(): held[:]; os.write(writing, b"."); os.read(0, 1); os._exit(0)
for _ in range(4): os.read(reading, 1)
"""


def ending(pid: int, memory: int) -> CommandEnding | None:
    return LimitGuard(replace(DEFAULTS.limits, memory=memory), pid, None).passed()


@pytest.mark.parametrize(
    ("code", "taken"),
    [("", 0), (PRIVATE, 64 * MB), (TABLES, 32 * MB), (SHARED, 32 * MB)],
    ids=["nothing", "private", "tables", "shared"],
)
def test_the_guard_counts_all_memory_of_a_process(code: str, taken: int):
    with python(code) as pid:
        assert ending(pid, taken + 24 * MB) is None
        assert ending(pid, taken) is CommandEnding.MEMORY


def test_memory_that_processes_share_is_counted_once():
    with python(SHARED + FORKS) as pid:
        used = tree_usage(pid, most=100)
        assert used.threads == 5
        assert sum(used.shared.values()) >= 5 * 32 * MB
        assert ending(pid, used.memory + 40 * MB) is None
        assert ending(pid, used.memory + 30 * MB) is CommandEnding.MEMORY


MOUNTS_1 = (
    "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 20 0:27 / /sys/fs/cgroup/pids rw shared:3 - cgroup cgroup rw,pids\n"
    "32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def candidates(folder: Path, mine: str, mounts: str) -> list[tuple[int, tuple[Path, ...]]]:
    (folder / "mine").write_text(mine)
    (folder / "mounts").write_text(mounts)
    found = limits.cgroup_candidates(str(folder / "mine"), str(folder / "mounts"))
    return [(parent.version, parent.places) for parent in found]


def test_cgroups_of_version_1_have_a_folder_for_each_controller(tmp_path: Path):
    mine = "8:pids:/\n4:memory:/user/x\n1:cpu,cpuacct:/\n0::/\n"
    places = (Path("/sys/fs/cgroup/memory/user/x"), Path("/sys/fs/cgroup/pids"))
    assert candidates(tmp_path, mine, MOUNTS_1) == [(1, places)]


def test_cgroups_of_version_2_are_used_if_both_controllers_are_delegated(tmp_path: Path):
    tree = tmp_path / "cgroup"
    (tree / "app.slice/me.scope").mkdir(parents=True)
    given_files = ("0::/app.slice/me.scope\n", f"30 20 0:26 / {tree} rw - cgroup2 cgroup2 rw\n")
    assert candidates(tmp_path, *given_files) == []
    (tree / "app.slice/cgroup.subtree_control").write_text("cpu memory pids\n")
    (tree / "app.slice/me.scope/cgroup.subtree_control").write_text("cpu\n")
    assert candidates(tmp_path, *given_files) == [(2, (tree / "app.slice",))]
    # A container sees a part of the hierarchy.
    (tree / "cgroup.subtree_control").write_text("memory pids\n")
    (tree / "inner").mkdir()
    mounts = f"30 20 0:26 /docker/abc {tree} rw - cgroup2 cgroup2 rw\n"
    assert candidates(tmp_path, "0::/docker/abc/inner\n", mounts) == [(2, (tree,))]
    assert candidates(tmp_path, "0::/elsewhere\n", mounts) == []


def test_a_cgroup_of_version_2_gets_its_limits(tmp_path: Path):
    """On ordinary files, which accept everything."""
    group = limits.CgroupParent(version=2, places=(tmp_path,)).make(Limits(memory=1000, processes=7))
    group.take(42)
    (place,) = tmp_path.iterdir()
    files = {"memory.max": "1000", "memory.oom.group": "1", "pids.max": "7", "cgroup.procs": "42"}
    assert {name: (place / name).read_text() for name in files} == files
    (place / "pids.current").write_text("7\n")
    (place / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert group.is_full()
    assert not group.ran_out_of_memory()
    (place / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert group.ran_out_of_memory()


def test_only_cgroups_of_dead_servers_are_removed(tmp_path: Path):
    kept = {f"toolcrib-{os.getpid()}-1", "toolcrib-x-1", "other"}
    for name in (*kept, "toolcrib-4194999-1"):
        (tmp_path / name).mkdir()
    limits.CgroupParent(version=2, places=(tmp_path,)).sweep()
    assert file_names(tmp_path) == kept


@pytest.mark.parametrize(("abi", "size"), [(1, 8), (2, 8), (3, 8), (4, 16), (5, 16), (6, 24), (7, 24), (9, 24)])
def test_landlock_gets_only_rights_that_its_version_knows(abi: int, size: int):
    attributes = kernel_rules.landlock_attributes(abi)
    assert len(attributes) == size
    handled = int.from_bytes(attributes[:8], "little")
    highest = {1: 12, 2: 13, 3: 14, 4: 14}.get(abi, 15)
    assert handled >> highest == 1
    # Reading and execution are not restricted.
    assert not handled & 0b1101
    rules = dict(kernel_rules.landlock_rules([b"/tree"], [b"/dev/null"], abi))
    assert all(rights & ~handled == 0 for rights in rules.values())
    assert not rules[b"/tree"] & (1 << 6 | 1 << 11)
    assert rules[b"/dev/null"] & (1 << 1)
    assert not rules[b"/dev/null"] & (1 << 8)


def test_a_command_gets_a_new_environment():
    path = "/usr/bin:relative:/home/u/bin:/w/.venv/bin:/usr/../home/u/bin::/opt/tools/bin"
    environ = {"PATH": path, "SECRET": "x", "TOKEN": "y", "HOME": "/home/u"}
    settings = replace(DEFAULTS, environment=("TOKEN", "MISSING"))
    made = system.command_environment(settings, environ, Path("/w"), [Path("/opt/tools")])
    assert made["PATH"].split(":")[:3] == ["/usr/bin", "/w/.venv/bin", "/opt/tools/bin"]
    assert "/home/u/bin" not in made["PATH"]
    assert made.items() >= {"HOME": "/tmp/home", "TOKEN": "y", "GIT_OPTIONAL_LOCKS": "0"}.items()
    assert not {"SECRET", "MISSING"} & made.keys()
    committing = system.command_environment(replace(settings, git=GitMode.COMMIT), environ, Path("/w"), [])
    assert "GIT_OPTIONAL_LOCKS" not in committing


def test_toolchains_never_contain_the_home_or_its_secrets(tmp_path: Path):
    for name in (".ssh", ".pyenv/versions/3.12", ".cargo/bin", "extra"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".cargo/credentials.toml").write_text("secret")
    settings = replace(DEFAULTS, readable=(tmp_path / "extra",))
    found = system.toolchains(settings, {"HOME": str(tmp_path)}, tmp_path / "root")
    assert {tmp_path / ".pyenv/versions", tmp_path / ".cargo/bin", tmp_path / "extra"} <= set(found)
    for secret in (tmp_path / ".ssh", tmp_path / ".cargo/credentials.toml"):
        assert not any(secret.is_relative_to(place) for place in found)


def test_versions_of_bubblewrap_are_read():
    versions = {"bubblewrap 0.8.0": (0, 8, 0), "bubblewrap 0.11": (0, 11), "": (), "no such file": ()}
    assert {text: system.bubblewrap_version(text) for text in versions} == versions


def test_a_self_test_removes_only_the_folder_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_files(tmp_path, ("else/file", "toolcrib-probe-left/secret"))
    (tmp_path / "toolcrib-probe-link").symlink_to(tmp_path / "else")
    with sandbox._outside_folder() as one, sandbox._outside_folder() as other:
        assert not (tmp_path / "toolcrib-probe-left").exists()
        assert one != other
        assert one.is_dir()
        assert other.is_dir()
    assert file_names(tmp_path) == {"else", "toolcrib-probe-link"}
    assert file_names(tmp_path / "else") == {"file"}
