"""No path leads a file tool out of its folder, or to what is not for tools. All of it by openat2, and by the walk."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.report import not_run
from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import confined_open
from toolcrib.workspace.confined_open import open_beneath, open_child, openat2
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.protected_paths import check_root
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.files import (
    EditFileArguments,
    ReadFileArguments,
    WriteFileArguments,
    WriteMode,
    edit_file,
    read_file,
    write_file,
)
from toolcrib.workspace.tools.listing import StatFileArguments, stat_file

pytestmark = pytest.mark.req("FRG-9")

CANARY = "canary-of-the-outside"
HIDDEN = ("*.pem", "secrets/")

TOOLS: dict[str, Callable[[ToolContext, str], ToolResult]] = {
    "read": lambda scene, path: read_file(scene, ReadFileArguments(path=path)),
    "read-binary": lambda scene, path: read_file(scene, ReadFileArguments(path=path, encoding="binary")),
    "overwrite": lambda scene, path: write_file(scene, WriteFileArguments(path=path, content="mine")),
    "create": lambda scene, path: write_file(
        scene, WriteFileArguments(path=path, content="mine", mode=WriteMode.CREATE)
    ),
    "append": lambda scene, path: write_file(
        scene, WriteFileArguments(path=path, content="mine", mode=WriteMode.APPEND)
    ),
    "edit": lambda scene, path: edit_file(scene, EditFileArguments(path=path, old="a", new="b", all=True)),
    "stat": lambda scene, path: stat_file(scene, StatFileArguments(path=path)),
}
WRITERS = ("overwrite", "create", "append", "edit")


@dataclasses.dataclass(frozen=True)
class Yard:
    """A folder with all kinds of traps, and what lies around it."""

    top: Path

    @property
    def root(self) -> Path:
        return self.top / "root"

    def seen(self) -> dict[str, tuple[Any, ...]]:
        """Everything, with contents, modes and times."""
        found = {}
        for folder, folders, files in os.walk(os.fsencode(self.top)):
            for name in (*folders, *files):
                path = folder + b"/" + name
                there = os.lstat(path)
                content: bytes | None = None
                if stat.S_ISREG(there.st_mode):
                    content = Path(os.fsdecode(path)).read_bytes()
                times = there.st_mtime_ns if not stat.S_ISDIR(there.st_mode) else 0
                found[os.fsdecode(path)] = (there.st_mode, there.st_nlink, there.st_ino, times, content)
        return found


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "src" / ".git", root / ".git" / "hooks", root / ".toolcrib" / "runs", root / "secrets"):
        folder.mkdir(parents=True)
    for folder in (outside / "dir", tmp_path / "root-evil"):
        folder.mkdir(parents=True)
    for path in (outside / "secret.txt", outside / "dir" / "secret.txt", tmp_path / "root-evil" / "secret.txt"):
        path.write_text(CANARY)
    for name in (
        ".git/config",
        ".git/hooks/post-checkout",
        ".toolcrib/workspace.yml",
        "src/main.py",
        "src/.git/config",
    ):
        (root / name).write_text("a = 1\n")
    for name in (".toolcrib/runs/1.log", "secrets/x.txt", "key.pem"):
        (root / name).write_text(CANARY)
    links = {
        "out-file": outside / "secret.txt",
        "out-relative": "../outside/secret.txt",
        "out-dir": outside,
        "out-evil": f"{root}-evil",
        "up": "..",
        "chain-1": "src/chain-2",
        "src/chain-2": "../chain-3",
        "chain-3": "../outside/secret.txt",
        "top": "/",
        "magic-root": f"/proc/self/root{outside}",
        "magic-cwd": "/proc/self/cwd",
        "magic-fd": "/proc/self/fd",
        "proc": "/proc",
        "loop": "loop",
        "dangling": "../outside/not-there",
        "to-git": ".git",
        "to-config": ".git/config",
        "src/to-git-around": f"{root}/.git",
        "to-runs": ".toolcrib/runs",
        "to-log": "src/../.toolcrib/runs/1.log",
        "to-key": "key.pem",
        "src/to-secrets": "../secrets",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.link(outside / "secret.txt", root / "twin")
    os.link(root / ".git" / "config", root / "git-twin")
    os.mkfifo(root / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        here = os.open(root, os.O_PATH)
        # By the descriptor: a path of a socket must be short.
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        yield Yard(tmp_path)


@pytest.fixture(params=["kernel", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By openat2, and as a kernel without it would have it."""
    if request.param == "walk":
        monkeypatch.setattr(confined_open, "openat2", failing(errno.ENOSYS))


@pytest.fixture(autouse=True)
def no_descriptor_left_and_no_hanging() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError("a tool hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    opened = len([*Path("/proc/self/fd").iterdir()])
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


def failing(number: int) -> Callable[..., int]:
    def openat2(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return openat2


def answer(do: Callable[[ToolContext, str], ToolResult], scene: ToolContext, path: str) -> tuple[str, bool]:
    """All that a model gets to see, and whether it was refused."""
    try:
        done = do(scene, path)
    except WorkspaceError as error:
        return error.text() + repr(error.data), True
    return done.text + msgspec.json.encode(done.data).decode(), False


def refuses(yard: Yard, path: str, tools: tuple[str, ...] = tuple(TOOLS)) -> None:
    """Each tool on a yard of its own that must stay as it is."""
    before = yard.seen()
    with scene_in(yard.root, hidden=HIDDEN) as scene:
        for name in tools:
            said, refused = answer(TOOLS[name], scene, path)
            assert refused, f"{name} did it: {said}"
            assert CANARY not in said
            assert yard.seen() == before, name


OUTSIDE = [
    "../root-evil/secret.txt",
    "../outside/secret.txt",
    "src/../../outside/secret.txt",
    "./src/./../../outside/secret.txt",
    "src/" + "../" * 60 + "etc/passwd",
    "{root}-evil/secret.txt",
    "{root}/../outside/secret.txt",
    "{top}/outside/secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/",
    "..",
    "out-dir/secret.txt",
    "out-dir/dir/secret.txt",
    "out-evil/secret.txt",
    "up/outside/secret.txt",
    "up/root-evil/secret.txt",
    "top/etc/passwd",
    "top{top}/outside/secret.txt",
    "magic-root/secret.txt",
    "magic-cwd/pyproject.toml",
    "magic-fd/0",
    "proc/self/root/etc/passwd",
    "proc/self/environ",
    "loop/x",
]
LINKS = ["out-file", "out-relative", "chain-1", "src/chain-2", "chain-3", "magic-root", "magic-cwd", "dangling", "loop"]
MALFORMED = [
    "src/main.py\0.txt",
    "\0",
    "src/\udcff.py",
    "\ud800",
    "x" * 256,
    "src/" + "é" * 128,
    "src/" * 1100 + "x",
    "x/" * 5000,
    "src/main.py/x",
]
NO_FILES = ["", ".", "src", "src/", "{root}", "fifo", "socket"]
GUARDED = [
    ".git/config",
    ".git/hooks/post-checkout",
    ".git/hooks/new",
    ".git/new/folder/x",
    ".git",
    ".GIT/config",
    ".Git/hooks/x",
    ".git\u200c/config",
    ".g\u200dit/config",
    "\ufeff.git/config",
    ".\uff47it/config",
    ".git./config",
    ".git /config",
    ".git. . /config",
    ".git::$INDEX_ALLOCATION/config",
    "git~1/config",
    "src/.git/config",
    "src/new/.git/hooks/x",
    "src/../.git/config",
    "{root}/.git/config",
    "to-git/config",
    "to-git/hooks/new",
    "to-git/hooks/post-checkout",
    "to-git/new/folder/x",
    "to-config",
    "src/to-git-around/config",
    ".toolcrib/workspace.yml",
    ".toolcrib/new.yml",
    ".toolcrib",
    ".TOOLCRIB/workspace.yml",
    "src/.toolcrib/x",
    "twin",
    "git-twin",
]
UNREADABLE = [
    ".toolcrib/runs/1.log",
    ".toolcrib/RUNS/1.log",
    ".toolcrib/runs",
    "src/../.toolcrib/runs/1.log",
    "to-runs/1.log",
    "key.pem",
    "KEY.PEM",
    "src/new.pem",
    "secrets/x.txt",
    "secrets",
    "src/to-secrets/x.txt",
]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leads_out_is_refused_by_every_tool(yard: Yard, path: str):
    refuses(yard, path.format(root=yard.root, top=yard.top))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", LINKS)
def test_a_link_that_leads_out_can_be_looked_at_but_not_gone_through(yard: Yard, path: str):
    refuses(yard, path, tuple(set(TOOLS) - {"stat"}))
    with scene_in(yard.root) as scene:
        said, refused = answer(TOOLS["stat"], scene, path)
    assert not refused
    assert '"kind":"link"' in said
    assert "nowhere" in said
    assert CANARY not in said
    assert str(yard.top / "outside") not in said


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", MALFORMED, ids=range(len(MALFORMED)))
def test_a_path_that_is_none_is_refused_by_every_tool(yard: Yard, path: str):
    refuses(yard, path)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", NO_FILES)
def test_what_is_no_regular_file_is_neither_read_nor_written_and_never_waited_for(yard: Yard, path: str):
    refuses(yard, path.format(root=yard.root), tuple(set(TOOLS) - {"stat"}))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["character", "block"])
def test_a_device_is_neither_read_nor_written(yard: Yard, kind: str):
    # /dev/zero would be read for ever; the other is the first RAM disk.
    mode, device = (stat.S_IFCHR, os.makedev(1, 5)) if kind == "character" else (stat.S_IFBLK, os.makedev(1, 0))
    try:
        os.mknod(yard.root / "device", mode | 0o666, device)
    except PermissionError:
        not_run("devices", "this user may not make any")
    refuses(yard, "device", tuple(set(TOOLS) - {"stat"}))
    with scene_in(yard.root) as scene:
        assert f"{kind} device" in answer(TOOLS["stat"], scene, "device")[0]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", GUARDED)
def test_what_is_gits_or_toolcribs_or_has_another_name_elsewhere_cannot_be_written(yard: Yard, path: str):
    refuses(yard, path.format(root=yard.root), WRITERS)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", UNREADABLE)
def test_logs_of_runs_and_hidden_files_are_out_of_reach_for_every_tool(yard: Yard, path: str):
    refuses(yard, path)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", ["to-log", "to-key"])
def test_a_link_to_what_cannot_be_read_gives_nothing_of_it(yard: Yard, path: str):
    refuses(yard, path, tuple(set(TOOLS) - {"stat"}))
    with scene_in(yard.root, hidden=HIDDEN) as scene:
        said, _ = answer(TOOLS["stat"], scene, path)
    assert CANARY not in said


@pytest.mark.usefixtures("way")
def test_a_name_that_is_not_for_tools_stays_so_when_it_is_a_link_to_something_else(yard: Yard):
    shutil.rmtree(yard.root / ".git")
    shutil.rmtree(yard.root / ".toolcrib")
    (yard.root / "src" / "runs").mkdir()
    (yard.root / "src" / "runs" / "1.log").write_text(CANARY)
    for name in (".git", ".toolcrib"):
        (yard.root / name).symlink_to("src")
    (yard.root / "alias.pem").symlink_to("src/main.py")
    refuses(yard, ".git/main.py", WRITERS)
    refuses(yard, ".toolcrib/main.py", WRITERS)
    refuses(yard, ".toolcrib/runs/1.log")
    refuses(yard, "alias.pem")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", *LINKS, "out-dir/secret.txt", "up/outside", "proc/self", "top"]
)
def test_the_way_down_itself_never_leads_out_whoever_judges_it_afterwards(yard: Yard, path: str):
    before = yard.seen()
    with contextlib.closing(Folder(yard.root)) as folder, pytest.raises(OSError, match=r"leads out|Too many levels"):
        os.close(open_beneath(folder.fd, path.split("/")))
    assert yard.seen() == before


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"../outside/secret.txt", errno.EXDEV),
        (b"out-file", errno.EXDEV),
        (b"/etc/passwd", errno.EXDEV),
        (b"fds/0", errno.ELOOP),
    ],
)
def test_the_kernel_is_told_to_stay_beneath_and_to_follow_no_magic_link(yard: Yard, path: bytes, number: int):
    top = yard.root if not path.startswith(b"fds") else Path("/proc/self")
    with contextlib.ExitStack() as stack:
        here = os.open(top, os.O_PATH)
        stack.callback(os.close, here)
        try:
            os.close(openat2(here, b".", os.O_PATH))
        except OSError as error:
            not_run("openat2", f"this system lacks it: {error.strerror}")
        with pytest.raises(OSError, match=os.strerror(number)) as refused:
            os.close(openat2(here, path.replace(b"fds", b"fd"), os.O_PATH))
    assert refused.value.errno == number


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tool", ["read", "edit", "stat"])
def test_a_missing_file_is_said_with_the_near_names_but_never_hidden_ones(yard: Yard, tool: str):
    before = yard.seen()
    with scene_in(yard.root, hidden=HIDDEN) as scene:
        for asked, near in (("src/mian.py", "src/main.py"), ("scr/main.py", "src"), ("SRC/main.py", "src")):
            with pytest.raises(WorkspaceError, match="does not exist") as refused:
                TOOLS[tool](scene, asked)
            assert near in refused.value.data["near"]
            assert near in refused.value.remedy
        for asked in ("kez.pen", "secretz", ".toolcrib/run"):
            with pytest.raises(WorkspaceError) as refused:
                TOOLS[tool](scene, asked)
            assert not {"key.pem", "secrets", ".toolcrib/runs"} & set(refused.value.data.get("near", ()))
    assert yard.seen() == before


@pytest.mark.usefixtures("way")
def test_links_that_stay_inside_work_for_reading_and_writing(yard: Yard):
    links = {
        "near": "src/main.py",
        "there/back": "../src/main.py",
        "top-down": yard.root / "src" / "main.py",
        "dir": "src",
    }
    (yard.root / "there").mkdir()
    for name, target in links.items():
        (yard.root / name).symlink_to(target)
    with scene_in(yard.root) as scene:
        for number, path in enumerate(("near", "there/back", "top-down", "dir/main.py", "dir/../there/back")):
            write_file(scene, WriteFileArguments(path=path, content=f"written {number}\n"))
            assert f"written {number}" in read_file(scene, ReadFileArguments(path=path)).text
            assert (yard.root / "src" / "main.py").read_text() == f"written {number}\n"
        assert (yard.root / "near").is_symlink()
        assert '"target":"src/main.py"' in answer(TOOLS["stat"], scene, "there/back")[0]


def test_an_absolute_path_may_name_the_root_as_it_is_or_as_it_was_given(tmp_path: Path):
    (tmp_path / "real" / "src").mkdir(parents=True)
    (tmp_path / "given").symlink_to("real")
    with contextlib.closing(Folder(tmp_path / "given")) as folder:
        for path in (
            "src/a.py",
            "./src//a.py",
            "x/../src/a.py",
            f"{tmp_path}/real/src/a.py",
            f"{tmp_path}/given/src/a.py",
        ):
            assert folder.path_of(path) == FolderPath(("src", "a.py"))
        assert str(folder.path_of("")) == str(folder.path_of(f"{tmp_path}/given")) == "."


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.py", "...", " ", "..a", "a..", "é"])).map("/".join) | st.text())
def test_a_spot_has_plain_names_only_and_says_what_normal_paths_say(path: str):
    with contextlib.closing(Folder(Path(__file__).parent)) as folder:
        try:
            place = folder.path_of(path)
        except WorkspaceError:
            return
        assert not {"", ".", ".."} & set(place.parts)
        assert not any("/" in part or "\0" in part for part in place.parts)
        assert str(place) == os.path.normpath(path or ".")


@pytest.mark.usefixtures("way")
def test_a_name_that_is_no_utf8_is_found_by_its_bytes_and_shown_with_a_mark(yard: Yard):
    name = os.fsdecode(b"caf\xe9.txt")
    (yard.root / name).write_text("coffee")
    with contextlib.closing(Folder(yard.root)) as folder:
        place = FolderPath((name,))
        descriptor = folder.open_file(place)
        assert os.read(descriptor, 10) == b"coffee"
        assert folder.real_path(descriptor) == place
        os.close(descriptor)
        assert str(place) == "caf\ufffd.txt"
        with pytest.raises(WorkspaceError) as refused:
            folder.open_file(folder.path_of("caff.txt"))
        msgspec.json.encode(refused.value.data)


def test_where_the_kernel_keeps_asking_to_try_again_the_walk_takes_over(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    tries = []

    def again(*_: object) -> int:
        tries.append(1)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(confined_open, "openat2", again)
    with scene_in(yard.root) as scene:
        assert "a = 1" in read_file(scene, ReadFileArguments(path="src/main.py")).text
        assert 1 < len(tries) < 100


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_step_down_takes_one_name_and_no_way(yard: Yard, name: str):
    with contextlib.closing(Folder(yard.root)) as folder, pytest.raises(ValueError, match="not one name"):
        open_child(folder.fd, name, os.O_RDONLY)


def test_a_step_down_never_goes_through_a_link(yard: Yard):
    with contextlib.closing(Folder(yard.root)) as folder:
        for name in ("out-dir", "out-file", "to-git"):
            with pytest.raises(OSError, match="symbolic link"):
                open_child(folder.fd, name, os.O_RDONLY)


def test_a_folder_knows_whether_its_path_still_leads_to_it_and_works_where_it_went(yard: Yard):
    with contextlib.closing(Folder(yard.root)) as folder:
        assert folder.same()
        yard.root.rename(yard.top / "moved")
        assert not folder.same()
        (yard.top / "root").mkdir()
        assert not folder.same()
        os.close(folder.open_file(folder.path_of("src/main.py")))
        assert folder.status(folder.path_of("src/main.py")).st_size == 6
    assert folder.fd == -1
    with pytest.raises(WorkspaceError):
        folder.open_file(FolderPath(("src", "main.py")))


@pytest.mark.parametrize("tool", WRITERS)
@pytest.mark.parametrize("inside", [".venv", "tools/python", "."])
def test_the_environment_that_runs_us_cannot_be_written(
    tmp_path: Path, tool: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / inside / "lib" / "code.py"
    code.parent.mkdir(parents=True)
    code.write_text("a = 1\n")
    (tmp_path / "lib.py").write_text("a = 1\n")
    monkeypatch.setattr("sys.prefix", str(tmp_path / inside))
    with scene_in(tmp_path) as scene:
        for path in (code, code.parent / "new.pth"):
            with pytest.raises(WorkspaceError):
                TOOLS[tool](scene, str(path.relative_to(tmp_path)))
        TOOLS[tool](scene, "new.py" if tool == "create" else "lib.py")
    assert code.read_text() == "a = 1\n"
    assert [path.name for path in code.parent.iterdir()] == ["code.py"]


def test_a_user_without_a_home_has_workspaces_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    Folder(tmp_path).close()
    with pytest.raises(WorkspaceError):
        check_root(Path("/usr"))


@pytest.mark.parametrize("root", ["/", "/usr", "/usr/lib", "/etc", "/proc/self", "/dev", "/tmp", "/home", "/run"])
def test_folders_of_the_system_cannot_be_a_workspace(root: str):
    with pytest.raises(WorkspaceError, match="cannot be a workspace") as refused:
        Folder(Path(root))
    assert "one project" in refused.value.remedy


def test_what_holds_home_or_toolcribs_files_or_lies_in_them_cannot_be_a_workspace(tmp_path: Path):
    home, state = tmp_path / "people" / "me", tmp_path / "people" / "me" / ".local" / "toolcrib"
    project, link = home / "project", tmp_path / "link"
    for folder in (state / "agents", project / ".git" / "hooks", project / "src"):
        folder.mkdir(parents=True)
    link.symlink_to(home)
    for root in (tmp_path / "people", home, link, state, state.parent, state / "agents", project / ".git" / "hooks"):
        with pytest.raises(WorkspaceError, match="cannot be a workspace"):
            Folder(root, unfit=[state], home=home)
    for root in (project, project / "src", link / "project"):
        Folder(root, unfit=[state], home=home).close()
    check_root(Path("/usr/src/app"), home=home)
    for missing in (tmp_path / "nothing", project / "file"):
        (project / "file").touch()
        with pytest.raises(WorkspaceError, match="cannot be a workspace") as refused:
            Folder(missing, home=home)
        assert "exists" in refused.value.remedy
