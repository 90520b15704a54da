"""No path leads a file tool out of its folder or to protected files, with and without openat2."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.report import not_run
from parts.tool_context import FileTools, file_names, file_tools, make_files, open_descriptors, refused
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import confined_open
from toolcrib.workspace.confined_open import open_beneath, open_child, openat2
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.protected_paths import check_root
from toolcrib.workspace.settings.model import GUARDED
from toolcrib.workspace.tools.files import WriteMode

pytestmark = pytest.mark.req("FRG-9")

CANARY = "canary-of-the-outside"
HIDDEN = ("*.pem", "secrets/")
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read": ("read_file", {}),
    "read-binary": ("read_file", {"encoding": "binary"}),
    "overwrite": ("write_file", {"content": "mine"}),
    "create": ("write_file", {"content": "mine", "mode": WriteMode.CREATE}),
    "append": ("write_file", {"content": "mine", "mode": WriteMode.APPEND}),
    "edit": ("edit_file", {"old": "a", "new": "b", "all": True}),
    "stat": ("stat_file", {}),
}
WRITERS = ("overwrite", "create", "append", "edit")
ALL_BUT_STAT = ("read", "read-binary", *WRITERS)
with_and_without_openat2 = pytest.mark.usefixtures("opener")


def call(tools: FileTools, name: str, path: str) -> str:
    """Everything that a model gets to see."""
    tool, arguments = CALLS[name]
    result = tools.call(tool, path=path, **arguments)
    return result.text + msgspec.json.encode(result.data).decode()


class Trapped:
    """A folder full of traps, and the files around it."""

    def __init__(self, top: Path) -> None:
        self.top, self.root, self.outside = top, top / "root", top / "outside"

    def state(self) -> dict[str, tuple[Any, ...]]:
        """Every file with its content, mode and time."""
        found = {}
        for folder, folders, files in os.walk(os.fsencode(self.top)):
            for name in (*folders, *files):
                path = folder + b"/" + name
                status = os.lstat(path)
                content = Path(os.fsdecode(path)).read_bytes() if stat.S_ISREG(status.st_mode) else None
                time = status.st_mtime_ns if not stat.S_ISDIR(status.st_mode) else 0
                found[os.fsdecode(path)] = (status.st_mode, status.st_nlink, status.st_ino, time, content)
        return found

    def refuses(self, path: str, calls: Collection[str] = CALLS) -> None:
        """Every call is refused, shows nothing from outside and changes nothing."""
        path = path.format(root=self.root, top=self.top)
        before = self.state()
        with file_tools(self.root, hidden=HIDDEN) as tools:
            for name in calls:
                error = refused("", call, tools, name, path)
                assert CANARY not in error.text() + repr(error.data)
                assert self.state() == before, name


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Trapped]:
    trapped = Trapped(tmp_path)
    root, outside = trapped.root, trapped.outside
    ours = (".git/config", ".git/hooks/post-checkout", ".toolcrib/workspace.yml", "src/main.py", "src/.git/config")
    make_files(root, dict.fromkeys(ours, "a = 1\n"))
    make_files(root, dict.fromkeys((".toolcrib/runs/1.log", "secrets/x.txt", "key.pem"), CANARY))
    theirs = ("outside/secret.txt", "outside/dir/secret.txt", "root-evil/secret.txt")
    make_files(tmp_path, dict.fromkeys(theirs, CANARY))
    links = {
        "out-file": outside / "secret.txt", "out-relative": "../outside/secret.txt", "out-dir": outside,
        "out-evil": f"{root}-evil", "up": "..", "chain-1": "src/chain-2", "src/chain-2": "../chain-3",
        "chain-3": "../outside/secret.txt", "top": "/", "magic-root": f"/proc/self/root{outside}",
        "magic-cwd": "/proc/self/cwd", "magic-fd": "/proc/self/fd", "proc": "/proc", "loop": "loop",
        "dangling": "../outside/not-there", "to-git": ".git", "to-config": ".git/config",
        "src/to-git-around": f"{root}/.git", "to-runs": ".toolcrib/runs", "to-log": "src/../.toolcrib/runs/1.log",
        "to-key": "key.pem", "src/to-secrets": "../secrets",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.link(outside / "secret.txt", root / "twin")
    os.link(root / ".git" / "config", root / "git-twin")
    os.mkfifo(root / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        here = os.open(root, os.O_PATH)
        # Through the descriptor, because the path of a socket must be short.
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        yield trapped


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With openat2, and as on a kernel without it."""

    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if request.param == "walk":
        monkeypatch.setattr(confined_open, "openat2", missing)


@pytest.fixture(autouse=True)
def no_open_descriptors_and_no_hanging() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError("a tool hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    opened = open_descriptors()
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert open_descriptors() == opened


OUTSIDE = [
    "../root-evil/secret.txt", "../outside/secret.txt", "src/../../outside/secret.txt",
    "./src/./../../outside/secret.txt", "src/" + "../" * 60 + "etc/passwd", "{root}-evil/secret.txt",
    "{root}/../outside/secret.txt", "{top}/outside/secret.txt", "/etc/passwd", "//etc/passwd", "/proc/self/environ",
    "/", "..", "out-dir/secret.txt", "out-dir/dir/secret.txt", "out-evil/secret.txt", "up/outside/secret.txt",
    "up/root-evil/secret.txt", "top/etc/passwd", "top{top}/outside/secret.txt", "magic-root/secret.txt",
    "magic-cwd/pyproject.toml", "magic-fd/0", "proc/self/root/etc/passwd", "proc/self/environ", "loop/x",
]  # fmt: skip
MALFORMED = [
    "src/main.py\0.txt", "\0", "src/\udcff.py", "\ud800", "x" * 256, "src/" + "é" * 128, "src/" * 1100 + "x",
    "x/" * 5000, "src/main.py/x",
]  # fmt: skip
UNREADABLE = [
    ".toolcrib/runs/1.log", ".toolcrib/RUNS/1.log", ".toolcrib/runs", "src/../.toolcrib/runs/1.log", "to-runs/1.log",
    "key.pem", "KEY.PEM", "src/new.pem", "secrets/x.txt", "secrets", "src/to-secrets/x.txt",
]  # fmt: skip
LINKS = ["out-file", "out-relative", "chain-1", "src/chain-2", "chain-3", "magic-root", "magic-cwd", "dangling", "loop"]
NOT_REGULAR = ["", ".", "src", "src/", "{root}", "fifo", "socket"]
PROTECTED = [
    ".git/config", ".git/hooks/post-checkout", ".git/hooks/new", ".git/new/folder/x", ".git", ".GIT/config",
    ".Git/hooks/x", ".git\u200c/config", ".g\u200dit/config", "\ufeff.git/config", ".\uff47it/config", ".git./config",
    ".git /config", ".git. . /config", ".git::$INDEX_ALLOCATION/config", "git~1/config", "src/.git/config",
    "src/new/.git/hooks/x", "src/../.git/config", "{root}/.git/config", "to-git/config", "to-git/hooks/new",
    "to-git/hooks/post-checkout", "to-git/new/folder/x", "to-config", "src/to-git-around/config",
    ".toolcrib/workspace.yml", ".toolcrib/new.yml", ".toolcrib", ".TOOLCRIB/workspace.yml", "src/.toolcrib/x",
    "twin", "git-twin",
]  # fmt: skip


REFUSALS = {
    "every tool": ([*OUTSIDE, *MALFORMED, *UNREADABLE], tuple(CALLS)),
    "reading and writing": (NOT_REGULAR, ALL_BUT_STAT),
    "writing": (PROTECTED, WRITERS),
}


@with_and_without_openat2
@pytest.mark.parametrize(
    ("calls", "path"),
    [
        pytest.param(calls, path, id=f"{name}-{n}")
        for name, (paths, calls) in REFUSALS.items()
        for n, path in enumerate(paths)
    ],
)
def test_forbidden_paths_are_refused_without_waiting_or_leaking(trapped: Trapped, calls: Any, path: str):
    trapped.refuses(path, calls)


@with_and_without_openat2
@pytest.mark.parametrize("path", [*LINKS, "to-log", "to-key"])
def test_stat_shows_a_forbidden_link_but_nothing_of_its_target(trapped: Trapped, path: str):
    trapped.refuses(path, ALL_BUT_STAT)
    with file_tools(trapped.root, hidden=HIDDEN) as tools:
        shown = call(tools, "stat", path)
    assert CANARY not in shown
    assert str(trapped.outside) not in shown
    if path in LINKS:
        assert '"kind":"link"' in shown
        assert "unavailable" in shown


@with_and_without_openat2
@pytest.mark.parametrize("kind", ["character", "block"])
def test_a_device_is_neither_read_nor_written(trapped: Trapped, kind: str):
    # /dev/zero, which never ends, and the first RAM disk.
    mode, device = (stat.S_IFCHR, os.makedev(1, 5)) if kind == "character" else (stat.S_IFBLK, os.makedev(1, 0))
    try:
        os.mknod(trapped.root / "device", mode | 0o666, device)
    except PermissionError:
        not_run("devices", "this user cannot create devices")
    trapped.refuses("device", ALL_BUT_STAT)
    with file_tools(trapped.root) as tools:
        assert f"{kind} device" in call(tools, "stat", "device")


@with_and_without_openat2
def test_a_protected_name_stays_protected_as_a_link_to_another_file(trapped: Trapped):
    shutil.rmtree(trapped.root / ".git")
    shutil.rmtree(trapped.root / ".toolcrib")
    make_files(trapped.root, {"src/runs/1.log": CANARY})
    for name in (".git", ".toolcrib"):
        (trapped.root / name).symlink_to("src")
        trapped.refuses(f"{name}/main.py", WRITERS)
    (trapped.root / "alias.pem").symlink_to("src/main.py")
    trapped.refuses(".toolcrib/runs/1.log")
    trapped.refuses("alias.pem")


@with_and_without_openat2
@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", *LINKS, "out-dir/secret.txt", "up/outside", "proc/self", "top"]
)
def test_opening_beneath_a_folder_never_leaves_it_even_without_later_checks(trapped: Trapped, path: str):
    before = trapped.state()
    with contextlib.closing(Folder(trapped.root)) as folder, pytest.raises(OSError, match=r"leads out|Too many levels"):
        os.close(open_beneath(folder.fd, path.split("/")))
    assert trapped.state() == before


def test_openat2_stays_beneath_the_folder_and_follows_no_magic_link(trapped: Trapped):
    outside = ("../outside/secret.txt", "out-file", "/etc/passwd")
    for root, path, number in (
        *((trapped.root, path, errno.EXDEV) for path in outside),
        ("/proc/self", "fd/0", errno.ELOOP),
    ):
        with contextlib.ExitStack() as stack:
            here = os.open(root, os.O_PATH)
            stack.callback(os.close, here)
            try:
                os.close(openat2(here, b".", os.O_PATH))
            except OSError as error:
                not_run("openat2", f"this system lacks it: {error.strerror}")
            with pytest.raises(OSError, match=os.strerror(number)) as caught:
                os.close(openat2(here, path.encode(), os.O_PATH))
        assert caught.value.errno == number


@with_and_without_openat2
@pytest.mark.parametrize("name", ["read", "edit", "stat"])
def test_the_error_for_a_missing_file_suggests_similar_names_but_never_hidden_ones(trapped: Trapped, name: str):
    before = trapped.state()
    with file_tools(trapped.root, hidden=HIDDEN) as tools:
        for path, near in (("src/mian.py", "src/main.py"), ("scr/main.py", "src"), ("SRC/main.py", "src")):
            error = refused("does not exist", call, tools, name, path)
            assert near in error.data["near"]
            assert near in error.remedy
        for path in ("kez.pen", "secretz", ".toolcrib/run"):
            error = refused("", call, tools, name, path)
            assert not {"key.pem", "secrets", ".toolcrib/runs"} & set(error.data.get("near", ()))
    assert trapped.state() == before


@with_and_without_openat2
def test_links_within_the_folder_work_for_reading_and_writing(trapped: Trapped):
    main = trapped.root / "src" / "main.py"
    (trapped.root / "there").mkdir()
    links = {"near": "src/main.py", "there/back": "../src/main.py", "top-down": main, "dir": "src"}
    for name, target in links.items():
        (trapped.root / name).symlink_to(target)
    with file_tools(trapped.root) as tools:
        for path in ("near", "there/back", "top-down", "dir/main.py", "dir/../there/back"):
            tools.write(path, f"written to {path}\n")
            assert tools.read(path).text == main.read_text() == f"written to {path}\n"
        assert (trapped.root / "near").is_symlink()
        assert tools.stat("there/back").target == "src/main.py"


def test_an_absolute_path_may_name_the_root_or_a_link_to_it(tmp_path: Path):
    (tmp_path / "real" / "src").mkdir(parents=True)
    (tmp_path / "given").symlink_to("real")
    with contextlib.closing(Folder(tmp_path / "given")) as folder:
        for path in ("src/a.py", "./src//a.py", "x/../src/a.py", "{}/real/src/a.py", "{}/given/src/a.py"):
            assert folder.path_of(path.format(tmp_path)) == FolderPath(("src", "a.py"))
        assert str(folder.path_of("")) == str(folder.path_of(f"{tmp_path}/given")) == "."


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.py", "...", " ", "..a", "a..", "é"])).map("/".join) | st.text())
def test_a_folder_path_has_only_plain_names_and_equals_the_normalized_path(path: str):
    with contextlib.closing(Folder(Path(__file__).parent)) as folder:
        try:
            found = folder.path_of(path)
        except WorkspaceError:
            return
        assert not {"", ".", ".."} & set(found.parts)
        assert not any("/" in part or "\0" in part for part in found.parts)
        assert str(found) == os.path.normpath(path or ".")


@with_and_without_openat2
def test_a_name_that_is_not_utf8_is_opened_by_its_bytes_and_shown_with_a_replacement(trapped: Trapped):
    name = os.fsdecode(b"caf\xe9.txt")
    (trapped.root / name).write_text("coffee")
    with contextlib.closing(Folder(trapped.root)) as folder:
        path = FolderPath((name,))
        descriptor = folder.open_file(path)
        assert os.read(descriptor, 10) == b"coffee"
        assert folder.real_path(descriptor) == path
        os.close(descriptor)
        assert str(path) == "caf\ufffd.txt"
        msgspec.json.encode(refused("", folder.open_file, folder.path_of("caff.txt")).data)


def test_the_walk_takes_over_if_the_kernel_keeps_answering_again(trapped: Trapped, monkeypatch: pytest.MonkeyPatch):
    tries = []

    def again(*_: object) -> int:
        tries.append(1)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(confined_open, "openat2", again)
    with file_tools(trapped.root) as tools:
        assert tools.read("src/main.py").text == "a = 1\n"
    assert 1 < len(tries) < 100


def test_a_child_is_one_name_and_never_a_link(trapped: Trapped):
    with contextlib.closing(Folder(trapped.root)) as folder:
        for name in ("", ".", "..", "a/b", "/etc"):
            with pytest.raises(ValueError, match="not one name"):
                open_child(folder.fd, name, os.O_RDONLY)
        for name in ("out-dir", "out-file", "to-git"):
            with pytest.raises(OSError, match="symbolic link"):
                open_child(folder.fd, name, os.O_RDONLY)


def test_a_folder_detects_that_it_was_moved_and_still_works(trapped: Trapped):
    with contextlib.closing(Folder(trapped.root)) as folder:
        assert folder.same()
        trapped.root.rename(trapped.top / "moved")
        assert not folder.same()
        trapped.root.mkdir()
        assert not folder.same()
        os.close(folder.open_file(folder.path_of("src/main.py")))
        assert folder.status(folder.path_of("src/main.py")).st_size == 6
    assert folder.fd == -1
    refused("", folder.open_file, FolderPath(("src", "main.py")))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inside", [".venv", "tools/python", "."])
def test_the_environment_that_runs_toolcrib_cannot_be_written(
    tmp_path: Path, name: str, inside: str, monkeypatch: pytest.MonkeyPatch
):
    code = Path(inside) / "lib" / "code.py"
    make_files(tmp_path, {str(code): "a = 1\n", "lib.py": "a = 1\n"})
    monkeypatch.setattr("sys.prefix", str(tmp_path / inside))
    with file_tools(tmp_path) as tools:
        for path in (code, code.with_name("new.pth")):
            refused("", call, tools, name, str(path))
        call(tools, name, "new.py" if name == "create" else "lib.py")
    assert (tmp_path / code).read_text() == "a = 1\n"
    assert file_names((tmp_path / code).parent) == {"code.py"}


def test_a_user_without_a_home_can_use_workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", missing)
    Folder(tmp_path).close()
    refused("", check_root, Path("/usr"))


def test_folders_of_the_system_of_toolcrib_and_around_the_home_cannot_be_a_workspace(tmp_path: Path):
    for root in ("/", "/usr", "/usr/lib", "/etc", "/proc/self", "/dev", "/tmp", "/home", "/run"):
        assert "one project" in refused("cannot be a workspace", Folder, Path(root)).remedy
    home, state = tmp_path / "people" / "me", tmp_path / "people" / "me" / ".local" / "toolcrib"
    project, link = home / "project", tmp_path / "link"
    for folder in (state / "agents", project / ".git" / "hooks", project / "src"):
        folder.mkdir(parents=True)
    link.symlink_to(home)
    for root in (tmp_path / "people", home, link, state, state.parent, state / "agents", project / ".git" / "hooks"):
        refused("cannot be a workspace", Folder, root, unfit=[state], home=home)
    for root in (project, project / "src", link / "project"):
        Folder(root, unfit=[state], home=home).close()
    check_root(Path("/usr/src/app"), home=home)
    (project / "file").touch()
    for root in (tmp_path / "nothing", project / "file"):
        assert "existing folder" in refused("cannot be a workspace", Folder, root, home=home).remedy


# Repositories and files that other programs obey.

REF, HASH = "ref: refs/heads/main\n", "0123456789abcdef0123456789abcdef01234567\n"
CONFIG = "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = {}\n"
REPOSITORY = {"HEAD": REF, "config": CONFIG, "objects/x": "", "refs/x": ""}


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[FileTools]:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    with file_tools(tmp_path / "root") as tools:
        yield tools


def is_repository(place: Path) -> bool:
    """Asks git, which runs the programs that the configuration names."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CEILING_DIRECTORIES": str(place.parent)}
    command = ["git", "-c", "safe.directory=*", "-C", str(place), "status"]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    return b"not a git repository" not in done.stderr


def test_files_written_by_another_program_are_a_repository_that_runs_a_program(tmp_path: Path):
    """The control for the next test."""
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    program.chmod(0o755)
    make_files(tmp_path / "root", REPOSITORY | {"config": CONFIG.format(program)})
    assert is_repository(tmp_path / "root")
    assert (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("place", ["", "sub/"])
def test_a_folder_does_not_become_a_repository_in_any_order_of_writes(tools: FileTools, place: str):
    for number, order in enumerate(itertools.permutations(REPOSITORY)):
        for name in order:
            path, content = f"{place}{number}/{name}", REPOSITORY[name]
            if name == "HEAD":
                error = refused("treat its folder as a repository", tools.write, path, content)
                assert "repositories: true in workspace.yml" in error.remedy
            else:
                tools.write(path, content)
    folders = [tools.root / place / str(number) for number in range(24)]
    assert all((folder / "refs" / "x").exists() for folder in folders)
    assert not any(map(is_repository, (folders[0], folders[-1])))
    assert not list(tools.root.rglob("HEAD"))


def test_no_spelling_of_a_head_is_written_at_once_in_parts_or_through_a_link(tools: FileTools):
    for name in ("HEAD", "head", "HeAd", "HEAD.", "HEAD::$DATA"):
        for content in (REF, "ref:refs/x", "ref: \t refs/heads/x", HASH, HASH.upper(), HASH * 3):
            refused("as a repository", tools.write, name, content)
            assert not (tools.root / name).exists()
    tools.write("HEAD", "ref: re")
    (tools.root / "way").symlink_to("HEAD")
    refused("", tools.write, "HEAD", "fs/heads/x", mode=WriteMode.APPEND)
    refused("", tools.write, "way", REF)
    refused("", tools.edit, "HEAD", "ref: re", REF)
    assert (tools.root / "HEAD").read_text() == "ref: re"


@pytest.mark.parametrize("as_link", [False, True], ids=["file", "link"])
def test_a_folder_with_a_head_gets_no_other_part_of_a_repository(tools: FileTools, as_link: bool):
    head = tools.root / "sub" / "HEAD"
    head.symlink_to("refs/heads/x") if as_link else head.write_text(REF)
    for name in ("objects/x", "refs/x", "commondir", "config", "Config", "hooks/pre-commit"):
        refused("sub has a git HEAD", tools.write, f"sub/{name}", "x")
        assert file_names(tools.root / "sub") == {"HEAD"}
    tools.write("sub/main.py", "fine")


@pytest.mark.parametrize("pattern", GUARDED)
def test_guarded_files_are_readable_but_not_writable(tools: FileTools, pattern: str):
    name = pattern.replace("*", "a")
    (tools.root / "sub" / name).write_text("as it was\n")
    for path in (f"{name}/new", name.upper(), f"sub/{name}", f"sub/{name}.", f"new/{name}/deep/x"):
        error = refused("", tools.write, path, "x")
        assert f'guarded: {{"{pattern}": off}}' in str(error), path
    refused("", tools.edit, f"sub/{name}", "as", "so")
    assert [path.name for path in tools.root.rglob("*")] == ["sub", name]
    assert tools.read(f"sub/{name}").text == "as it was\n"
    assert "guarded" in tools.stat(f"sub/{name}").why_not


def test_a_link_to_a_guarded_folder_is_not_followed_and_similar_names_are_written(tools: FileTools):
    (tools.root / ".vscode").mkdir()
    (tools.root / "way").symlink_to(".vscode")
    refused(r"\.vscode", tools.write, "way/tasks.json", "{}")
    assert not file_names(tools.root / ".vscode")
    for name in (
        *(".vscodes", "vscode/x", ".env", "AGENTS.md", "CLAUDE.md", "code-workspace", ".github/x.yml", "src/head"),
        *("config", "refs/config", "objects/refs", "hooks/x", "commondir", "HEAD", "info"),
    ):
        tools.write(name, "ordinary\n")
        assert (tools.root / name).read_text() == "ordinary\n"
    tools.edit("HEAD", "ordinary", "ref to something else")


def test_settings_allow_repositories_and_change_the_guarded_patterns(tmp_path: Path):
    guarded = (*(pattern for pattern in GUARDED if pattern != ".vscode"), "deploy/**", "*.tf")
    with file_tools(tmp_path, repositories=True, guarded=guarded) as tools:
        tools.write("HEAD", REF)
        tools.write(".vscode/settings.json", "{}")
        for path in ("deploy/x", "deploy/a/b", "a/main.tf", "MAIN.TF", ".idea/x"):
            refused("configures other programs", tools.write, path, "x")
    assert (tmp_path / "HEAD").read_text() == REF
