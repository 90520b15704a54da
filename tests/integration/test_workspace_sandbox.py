"""Code in the sandbox cannot leave it, and where a sandbox does not hold, no code runs.

Each test is an attack from inside. Refusals have a reason and a remedy, and file tools still work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from parts.sandboxes import (
    OTHER_UID,
    SandboxPool,
    give_to,
    give_to_owner_of,
    make_folder,
    minimal_environ,
    needs_root,
    open_sandbox,
    output_of,
    python,
    shell,
    tried_sandbox,
)
from parts.waiting import wait_for
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import FolderPath
from toolcrib.workspace.sandbox import CommandEnding, Sandbox, SandboxCommand, kernel_rules, mount_namespace, system
from toolcrib.workspace.sandbox import sandbox as selftest
from toolcrib.workspace.settings.model import DEFAULTS

pytestmark = [
    *(pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    # Other users may not enter pytest's folders, so this also tests the path to the folder.
    async with pool.use() as sandbox:
        write(sandbox, "code.py", "x = 1\n")
        yield sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = make_folder(tmp_path)
    (place / "a.txt").write_text("here\n")
    return place


def write(sandbox: Sandbox, path: str, text: str) -> Path:
    file = sandbox.folder.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    give_to_owner_of(sandbox.folder.root)
    return file


async def until_exists(path: Path) -> None:
    await asyncio.to_thread(wait_for, path.exists, f"{path.name} to exist", 20)


# ---- files


WALK_AND_WRITE = r"""
import errno, json, os, stat, sys
ours = tuple(sys.argv[1:])
DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
ELSE = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.ENODEV, errno.ENOTSUP, errno.EBUSY, errno.EIO,
        errno.ESRCH, errno.ETXTBSY, errno.ENAMETOOLONG}
got, tried, paths = [], 0, 0

def attempt(what, path, act, *arguments, **named):
    global tried
    tried += 1
    try:
        result = act(*arguments, **named)
    except OSError as error:
        if error.errno not in DENIED | ELSE:
            got.append([what, path, errno.errorcode.get(error.errno)])
        return
    if what == "open" and isinstance(result, int):
        os.close(result)
    got.append([what, path, "done"])

def attack(path, is_device):
    # Each would change something if it were allowed, and nothing that lasts if it were.
    there = os.lstat(path)
    if not stat.S_ISLNK(there.st_mode):
        if not stat.S_ISDIR(there.st_mode) and not is_device:
            attempt("open", path, os.open, path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        attempt("chmod", path, os.chmod, path, stat.S_IMODE(there.st_mode))
        attempt("setxattr", path, os.setxattr, path, "user.toolcrib", b"x")
    attempt("utime", path, os.utime, path, ns=(there.st_atime_ns, there.st_mtime_ns), follow_symlinks=False)
    attempt("chown", path, os.chown, path, os.getuid(), os.getgid(), follow_symlinks=False)
    attempt("rename", path, os.rename, path, path)
    if stat.S_ISDIR(there.st_mode):
        attempt("create", path, os.open, path + "/.attack", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        attempt("mkdir", path, os.mkdir, path + "/.attack-folder")
        attempt("symlink", path, os.symlink, "x", path + "/.attack-link")
    else:
        attempt("unlink", path, os.rmdir, path)

waiting = ["/"]
seen = set()
while waiting:
    folder = waiting.pop()
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    alike = set()
    for path in [folder] + [os.path.join(folder, name) for name in names]:
        if path.startswith(ours) or path in seen:
            continue
        seen.add(path)
        try:
            there = os.lstat(path)
        except OSError:
            continue
        paths += 1
        # Files of one folder, mount, mode and owner are equally protected: one of them is enough.
        kind = (there.st_mode, there.st_uid, there.st_gid, there.st_dev)
        if stat.S_ISREG(there.st_mode) and not path.startswith("/proc/"):
            if kind in alike:
                continue
            alike.add(kind)
        is_device = stat.S_ISCHR(there.st_mode)
        try:
            attack(path, is_device)
        except FileNotFoundError:
            continue
        parts = path.split("/")
        if stat.S_ISDIR(there.st_mode) and not (path.startswith("/proc/") and len(parts) > 4):
            waiting.append(path)
print(json.dumps({"paths": paths, "tried": tried, "got": got[:50], "count": len(got)}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_file_outside_can_be_changed(sandbox: Sandbox) -> None:
    ours = [str(sandbox.folder.root), "/tmp", "/dev/shm", "/dev/pts"]
    found = json.loads(await output_of(sandbox, WALK_AND_WRITE, *ours, seconds=500))
    assert found["paths"] > 1000
    assert found["tried"] > 5000
    assert found["got"] == []


async def test_that_attack_finds_every_change_where_files_are_writable(sandbox: Sandbox) -> None:
    """The control."""
    ours = ["/usr", "/etc", "/proc", "/dev", "/root", "/home", "/work", "/nix", str(sandbox.folder.root)]
    source = "import os; open('/tmp/file', 'w').close()\n" + WALK_AND_WRITE
    found = json.loads(await output_of(sandbox, source, *ours))
    kinds = {what for what, path, _ in found["got"] if path.startswith("/tmp")}
    assert kinds >= {"open", "chmod", "utime", "chown", "rename", "create", "mkdir", "symlink", "unlink"}


@pytest.mark.parametrize("inside", [".venv", "tools/python", "."])
async def test_toolcribs_own_environment_cannot_be_changed(
    tmp_path: Path, inside: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next server, which its client trusts, would run the command's code."""
    root = make_folder(tmp_path)
    packages = root / inside / "lib"
    packages.mkdir(parents=True)
    (packages / "code.py").write_text("x = 1\n")
    give_to(owner, root)
    monkeypatch.setattr(sys, "prefix", str(root / inside))
    async with open_sandbox(root) as sandbox:
        result = await shell(
            sandbox,
            f"cd {inside}; echo y >> lib/code.py; touch lib/new.pth; mv lib other;"
            f"cd {root}; mv tools else; mv .venv else; cat $OLDPWD/lib/code.py; echo fine > made.txt",
        )
    assert result.stdout.text() == "x = 1\n"
    assert [path.name for path in packages.iterdir()] == ["code.py"]
    assert (packages / "code.py").read_text() == "x = 1\n"
    assert (root / "made.txt").read_text() == "fine\n"


async def test_the_folder_and_private_folders_are_writable_unless_the_command_only_reads(
    sandbox: Sandbox, owner: str
) -> None:
    root = sandbox.folder.root
    attack = "touch a; echo x >> code.py; chmod 600 code.py; rm code.py; mkdir .git .toolcrib"
    reading = await shell(sandbox, attack, writes=False)
    assert reading.stderr.text().count("Read-only file system") == 6
    assert {path.name for path in root.iterdir()} == {"code.py"}
    assert (root / "code.py").read_text() == "x = 1\n"
    mark = f"mark-{secrets.token_hex(8)}"
    line = f"echo new > made.txt && mkdir d && mv made.txt d/ && touch /tmp/{mark} && cat d/*"
    writing = await shell(sandbox, line)
    assert writing.stdout.text() == "new\n", writing.stderr.text()
    assert (root / "d" / "made.txt").stat().st_uid == (OTHER_UID if owner == "other" else os.geteuid())
    assert not Path(f"/tmp/{mark}").exists()


async def test_hidden_files_cannot_be_read_by_commands(pool: SandboxPool) -> None:
    attack = (
        "cat .env conf/prod/key.pem vault/x; ls vault; mv .env e; mv conf c; mv conf/prod p; mv vault v; rm -rf vault;"
        "ln .env hard; ln conf/prod/key.pem hard2; cp -r . /tmp/all; grep -r canary . /tmp/all"
    )
    async with pool.use(replace(DEFAULTS, hidden=("*.pem", ".env", "vault/"))) as sandbox:
        hidden = [write(sandbox, path, "canary") for path in ("conf/prod/key.pem", ".env", "vault/x")]
        for writes in (True, True, False, False):
            result = await shell(sandbox, attack, writes=writes)
            assert "canary" not in result.stdout.text() + result.stderr.text()
        assert [path.read_text() for path in hidden] == ["canary"] * 3


async def test_hidden_files_wait_until_commands_of_another_process_end(owner: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / "deep").mkdir()
    (root / "deep" / "key.pem").write_text("canary")
    give_to(owner, root)
    async with open_sandbox(root) as careless, open_sandbox(root, replace(DEFAULTS, hidden=("*.pem",))) as careful:
        running = asyncio.create_task(shell(careless, "touch ready; while [ ! -e stop ]; do sleep 0.02; done"))
        await until_exists(root / "ready")
        with pytest.raises(WorkspaceError, match="is running in this folder"):
            await shell(careful, "cat deep/key.pem", seconds=0.3)
        waiting = asyncio.create_task(shell(careful, "cat deep/key.pem; ls deep", seconds=20))
        (root / "stop").touch()
        result = await waiting
        await running
    assert result.stdout.text() == "key.pem\n"


async def test_toolcribs_files_cannot_be_created_or_changed_and_run_logs_cannot_be_read(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    await shell(sandbox, "mkdir -p .toolcrib; echo network: true > .toolcrib/workspace.yml; mv .toolcrib x; ls -la")
    assert not (root / ".toolcrib").exists()
    log = write(sandbox, ".toolcrib/runs/1.log", "canary-run")
    settings = write(sandbox, ".toolcrib/workspace.yml", "network: false\n")
    (root / ".toolcrib" / "link").symlink_to("/etc/passwd")
    give_to_owner_of(root)
    result = await shell(
        sandbox,
        "cat .toolcrib/workspace.yml; cat .toolcrib/runs/*; echo network: true > .toolcrib/workspace.yml;"
        "mv .toolcrib t; rm -rf .toolcrib; mkdir -p .toolcrib/runs; ls -A .toolcrib; touch .toolcrib/new",
    )
    assert result.stdout.text() == "network: false\nworkspace.yml\n"
    assert (settings.read_text(), log.read_text()) == ("network: false\n", "canary-run")


@pytest.mark.parametrize("name", [".toolcrib", ".git"])
async def test_a_link_in_place_of_a_protected_folder_refuses_commands(
    sandbox: Sandbox, name: str, tmp_path: Path
) -> None:
    """A repository could contain one. Its target would be mounted, or it would be replaced."""
    (tmp_path / "secret").write_text("canary")
    (sandbox.folder.root / name).symlink_to(tmp_path)
    with pytest.raises(WorkspaceError, match="link") as error:
        await shell(sandbox, "true")
    assert "Replace it with a folder" in error.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


async def test_a_folder_that_was_replaced_is_not_used(root: Path) -> None:
    async with open_sandbox(root) as sandbox:
        root.rename(root.with_name("away"))
        root.mkdir()
        with pytest.raises(WorkspaceError, match="no longer the folder"):
            await shell(sandbox, "true")


async def test_folders_may_have_any_name(tmp_path: Path, owner: str) -> None:
    names = ["with space", "ünïcödé 木", "new\nline", "-rf", "--bind", "$(id)", "a'b\"c", "x" * 200]
    root = tmp_path.joinpath(*names)
    root.mkdir(parents=True)
    give_to(owner, root)
    async with open_sandbox(root) as sandbox:
        result = await shell(sandbox, 'echo "$PWD"; touch made; ls -A', cwd=FolderPath(()))
        assert result.code == 0, result.stderr.text()
        assert result.stdout.text().startswith(f"{root}\n")
    assert (root / "made").exists()


async def test_two_sandboxes_do_not_see_each_other(pool: SandboxPool) -> None:
    async with pool.use() as one, pool.use(name="second") as two:
        second = two.folder.root
        write(two, "secret", "canary-second")
        running = asyncio.create_task(shell(two, "touch /tmp/mark ready; sleep 20"))
        await until_exists(second / "ready")
        found = await shell(one, f"ls {second}; cat {second}/secret; ls /tmp/mark; ps ax | grep -c '[s]leep 20'")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert "canary" not in found.stdout.text()
    assert found.stdout.text().strip() in {"0", ""}


SWAP = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("n/.git"); open("n/.git/x", "w").close()
os.makedirs("m"); open("m/.git", "w").write("gitdir: x")
os.makedirs("t/.toolcrib"); open("t/.toolcrib/x", "w").close()
os.makedirs("h"); open("h/a.hide", "w").close(); open("b.hide", "w").close()
names = [b"n", b"m", b"t", b"h", b"b.hide"]
for name in names:
    os.symlink(b"/oldroot" + os.fsencode(sys.argv[1]) + (b"/b.hide" if name == b"b.hide" else b""), b"l" + name)
open("ready", "w").close()
while True:
    for name in names:
        libc.renameat2(-100, name, -100, b"l" + name, 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(), ("*.hide",)], ids=["repositories", "hidden"])
async def test_swapping_folders_for_links_shows_nothing_to_the_next_command(
    owner: str, tmp_path: Path, hidden: tuple[str, ...], sized: Callable[[int, int], int]
) -> None:
    """While a sandbox is built, bubblewrap finds places by their paths; a link there would lead it out."""
    root = make_folder(tmp_path, owner)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    give_to(owner, outside)
    settings = replace(DEFAULTS, hidden=hidden)
    ran = 0
    async with open_sandbox(root, settings) as one, open_sandbox(root, settings) as two:
        swapping = asyncio.create_task(python(one, SWAP, str(outside), seconds=300))
        await until_exists(root / "ready")
        end = time.monotonic() + sized(3, 60)
        while time.monotonic() < end:
            for sandbox in (one, two):
                with contextlib.suppress(WorkspaceError):
                    attack = "cat */secret */.git/secret */.toolcrib/*; ls -a n m t h"
                    result = await shell(sandbox, attack, seconds=1)
                    assert "canary" not in result.stdout.text()
                    ran += 1
        swapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swapping
    assert ran or hidden
    assert [path.name for path in outside.iterdir()] == ["secret"]


# ---- network


@contextlib.contextmanager
def listening(place: Path) -> Iterator[dict[str, socket.socket]]:
    """Listeners outside, by kind."""
    name = f"toolcrib-test-{os.getpid()}"
    addresses: dict[str, tuple[int, int, Any]] = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "path": (socket.AF_UNIX, socket.SOCK_STREAM, str(place / "door")),
        "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}"),
        "datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{name}-d"),
    }
    listeners: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        for kind, (family, style, address) in addresses.items():
            try:
                listener = stack.enter_context(socket.socket(family, style))
                listener.bind(address)
            except OSError:
                continue
            listener.setblocking(False)
            if style == socket.SOCK_STREAM:
                listener.listen(8)
            listeners[kind] = listener
        yield listeners


def addresses_as_json(listeners: dict[str, socket.socket]) -> str:
    """Abstract addresses begin with @."""
    names = {kind: listener.getsockname() for kind, listener in listeners.items()}
    return json.dumps({k: f"@{name[1:].decode()}" if isinstance(name, bytes) else name for k, name in names.items()})


REACH = r"""
import errno, json, socket, sys
got = []
def attempt(what, act):
    try:
        act()
    except OSError as error:
        return
    got.append(what)
for kind, address in json.loads(sys.argv[1]).items():
    family = {"tcp6": socket.AF_INET6}.get(kind, socket.AF_INET if kind in ("tcp", "udp") else socket.AF_UNIX)
    style = socket.SOCK_DGRAM if kind in ("udp", "datagram") else socket.SOCK_STREAM
    address = tuple(address[:2]) if isinstance(address, list) else address.replace("@", "\0", 1)
    with socket.socket(family, style) as door:
        door.settimeout(1)
        if kind == "udp":
            # A datagram without a listener is lost silently, so the listener outside checks whether it arrived.
            try:
                door.sendto(b"x", address)
            except OSError:
                pass
        else:
            attempt(kind, lambda: door.connect(address))
for target in ("1.1.1.1", "192.0.2.1", "169.254.169.254", "255.255.255.255"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        attempt("udp to " + target, lambda: door.sendto(b"x", (target, 53)))
    with socket.socket() as door:
        door.settimeout(1)
        attempt("tcp to " + target, lambda: door.connect((target, 80)))
attempt("dns", lambda: socket.getaddrinfo("example.org", 80))
attempt("broadcast", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("ff02::1", 9, 0, 1)))
families = {"packet": 17, "alg": 38, "vsock": 40, "bluetooth": 31, "can": 29, "tipc": 30, "xdp": 44, "key": 15,
            "rds": 21, "llc": 26, "x25": 9, "ax25": 3, "nfc": 39, "qipcrtr": 42, "mctp": 45}
for name, family in families.items():
    for style in (1, 2, 3, 5):
        attempt(name, lambda: socket.socket(family, style, 0).close())
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
attempt("raw6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58).close())
for protocol in range(1, 23):
    attempt("netlink %d" % protocol, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close())
print(json.dumps({"got": got, "interfaces": [name for _, name in socket.if_nameindex()]}))
"""


async def test_there_is_no_network(sandbox: Sandbox, tmp_path: Path) -> None:
    with listening(tmp_path) as listeners:
        found = json.loads(await output_of(sandbox, REACH, addresses_as_json(listeners)))
        for kind, listener in listeners.items():
            with pytest.raises(BlockingIOError):
                listener.recv(1) if kind in {"udp", "datagram"} else listener.accept()
    assert found == {"got": [], "interfaces": ["lo"]}


async def test_that_attack_reaches_listeners_without_a_sandbox(tmp_path: Path) -> None:
    """The control."""
    with listening(tmp_path) as listeners:
        addresses = addresses_as_json({kind: listeners[kind] for kind in ("tcp", "path")})
        words = [sys.executable, "-I", "-c", REACH, addresses]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=60, check=True)
    assert {"tcp", "path"} <= set(json.loads(done.stdout)["got"])


async def test_loopback_and_socket_pairs_work_inside_and_sockets_of_outside_processes_do_not(sandbox: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # A relative path, because a socket's path may not be long.
        with contextlib.chdir(sandbox.folder.root):
            listener.bind("door.sock")
        listener.listen(1)
        output = await output_of(
            sandbox,
            """
            import socket, threading, multiprocessing, asyncio
            server = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
            with socket.create_connection(server.getsockname()) as client:
                print(client.recv(5).decode())
            a, b = socket.socketpair()
            a.sendall(b"pair"); print(b.recv(4).decode())
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(sum(pool.map(abs, [-1, -2, -3])))
            from multiprocessing import shared_memory
            block = shared_memory.SharedMemory(create=True, size=4096); block.close(); block.unlink()
            asyncio.run(asyncio.sleep(0))
            try:
                socket.socket(socket.AF_UNIX).connect("door.sock"); print("reached")
            except OSError as error:
                print("closed")
            """,
        )
    assert output.split() == ["hello", "pair", "6", "closed"]


async def test_the_network_works_if_the_settings_allow_it(root: Path) -> None:
    connect = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('reached')"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with open_sandbox(root, replace(DEFAULTS, network=True)) as sandbox:
            assert await output_of(sandbox, connect, str(listener.getsockname()[1])) == "reached"
            assert (await python(sandbox, "import socket; socket.socket(17, 3)")).code != 0


# ---- secrets, system calls, privileges


READ_SECRETS = r"""
import json, os, sys
canaries, files, server = json.loads(sys.stdin.read())
got = []
def look(path):
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 20)
    except OSError:
        return
    for canary in canaries:
        if canary.encode() in content:
            got.append([path, canary[:12]])
for name, value in os.environ.items():
    got.extend([name, "environment"] for canary in canaries if canary in value)
for path in files:
    if os.path.lexists(path):
        got.append([path, "is there"])
for number in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps", "mem", "auxv"):
        look("/proc/%s/%s" % (number, name))
    for link in ("cwd", "root", "exe"):
        try:
            entries = os.listdir("/proc/%s/%s" % (number, link))
        except OSError:
            continue
        if link == "root" and "var" in entries:
            got.append([number, "root of the machine"])
    try:
        for descriptor in os.listdir("/proc/%s/fd" % number):
            target = os.readlink("/proc/%s/fd/%s" % (number, descriptor))
            if target.startswith("/") and not target.startswith(("/proc/", "/dev/", "/memfd:")):
                got.append([number, target])
    except OSError:
        pass
processes = [number for number in os.listdir("/proc") if number.isdigit()]
sees_server = server > 50 and os.path.exists("/proc/%d" % server)
print(json.dumps({"got": got, "processes": len(processes), "sees_server": sees_server}))
"""


async def test_no_secret_outside_can_be_read_and_only_named_variables_are_passed_on(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = [f"canary-{kind}-7f3a91" for kind in ("environ", "file", "sibling")]
    monkeypatch.setenv("TOOLCRIB_TEST_SECRET", canaries[0])
    root = make_folder(tmp_path, owner)
    secret, sibling = tmp_path / "secret.txt", make_folder(tmp_path, name="project-evil")
    secret.write_text(canaries[1])
    (sibling / "token").write_text(canaries[2])
    (root / "link").symlink_to(secret)
    (root / "up").symlink_to("../project-evil")
    files = [str(secret), str(sibling), str(root / "../secret.txt"), "/etc/shadow", "/run", "/var", "/sys"]
    files += [str(Path.home() / name) for name in (".ssh", ".bashrc", ".profile", ".config", ".npmrc", ".netrc")]
    environ = {**minimal_environ(), "WANTED": "yes", "UNWANTED": "no", "LD_PRELOAD": "/x.so", "GIT_DIR": "/elsewhere"}
    environ["TOOLCRIB_TEST_SECRET"] = canaries[0]
    async with open_sandbox(root, replace(DEFAULTS, environment=("WANTED",)), environ=environ) as sandbox:
        given = json.dumps([canaries, files, os.getpid()]).encode()
        found = json.loads((await python(sandbox, READ_SECRETS, stdin=given)).stdout.text())
        through_links = await shell(sandbox, "cat link up/token; ls -R up/")
        inside = (await shell(sandbox, "env", env={"ASKED": "1"})).stdout.text()
    assert found["got"] == []
    assert found["processes"] <= 4
    assert not found["sees_server"]
    assert "canary" not in through_links.stdout.text() + through_links.stderr.text()
    names = {line.split("=")[0] for line in inside.splitlines()}
    assert {"WANTED", "ASKED", "HOME", "PATH"} <= names
    assert not names & {"UNWANTED", "LD_PRELOAD", "GIT_DIR", "TOOLCRIB_REPORT_FD", "CI", "TOOLCRIB_TEST_SECRET"}


FORBIDDEN = r"""
import ctypes, errno, fcntl, json, os, platform
libc = ctypes.CDLL(None, use_errno=True)
got = {}
def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    got[name + str(arguments[:1])] = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "DONE"
X86 = platform.machine() == "x86_64"
numbers = dict(keyctl=250 if X86 else 219, add_key=248 if X86 else 217, ptrace=101 if X86 else 117,
    bpf=321 if X86 else 280, perf_event_open=298 if X86 else 241, userfaultfd=323 if X86 else 282,
    kexec_load=246 if X86 else 104,
    init_module=175 if X86 else 105, open_by_handle_at=304 if X86 else 265, process_vm_readv=310 if X86 else 270,
    setns=308 if X86 else 268, pidfd_getfd=438, fsopen=430, open_tree=428, move_mount=429, mount_setattr=442,
    syslog=103 if X86 else 116, quotactl=179 if X86 else 60, memfd_secret=447, reboot=169 if X86 else 142,
    fanotify_init=300 if X86 else 262, clone3=435, io_uring_setup=425, io_uring_enter=426, statmount=457,
    unknown=480, far=5000)
for name, number in numbers.items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0)
    got[name] = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "DONE"
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
    ctypes.set_errno(0)
    got["unshare %x" % flag] = "DONE" if libc.unshare(flag) == 0 else errno.errorcode.get(ctypes.get_errno())
got["remount /"] = "DONE" if libc.mount(None, b"/", None, ctypes.c_ulong(32 | 4096), None) == 0 else "no"
got["remount /usr"] = "DONE" if libc.mount(None, b"/usr", None, ctypes.c_ulong(32 | 4096), None) == 0 else "no"
got["umount"] = "DONE" if libc.umount2(b"/proc/sys", 2) == 0 else "no"
got["chroot"] = "DONE" if libc.chroot(b"/tmp") == 0 else "no"
got["setuid 0"] = "DONE" if os.getuid() != 0 and libc.setuid(0) == 0 else "no"
got["setuid other"] = "DONE" if libc.setuid(4242) == 0 else "no"
master, slave = os.openpty()
for name, code in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
    for high in (0, 1 << 32):
        ctypes.set_errno(0)
        result = libc.syscall(16 if X86 else 29, slave, ctypes.c_ulong(code | high), b"x")
        got["%s %d" % (name, high > 0)] = "DONE" if result == 0 else errno.errorcode.get(ctypes.get_errno())
if X86:
    # x32: the same calls under other numbers.
    ctypes.set_errno(0)
    got["x32 getpid"] = "DONE" if libc.syscall(0x40000000 + 39) >= 0 else errno.errorcode.get(ctypes.get_errno())
for name, act in (("suid chmod", lambda: os.chmod("made", 0o4755)), ("sgid chmod", lambda: os.chmod("made", 0o2755)),
                  ("suid open", lambda: os.close(os.open("made2", os.O_CREAT | os.O_WRONLY, 0o4755))),
                  ("suid mknod", lambda: os.mknod("made3", 0o104755)),
                  ("device", lambda: os.mknod("made4", 0o20666, os.makedev(1, 3))),
                  ("block device", lambda: os.mknod("/tmp/made5", 0o60666, os.makedev(254, 0))),
                  ("whiteout", lambda: os.mknod("/tmp/made6", 0o20000, 0))):
    open("made", "w").close()
    try:
        act()
        got[name] = "DONE"
    except OSError as error:
        got[name] = errno.errorcode[error.errno]
print(json.dumps(got))
"""


async def test_dangerous_system_calls_are_refused(sandbox: Sandbox) -> None:
    got = json.loads(await output_of(sandbox, FORBIDDEN))
    assert "DONE" not in got.values(), {name for name, how in got.items() if how == "DONE"}
    absent = {"clone3", "io_uring_setup", "io_uring_enter", "statmount", "unknown", "far", "x32 getpid"}
    assert {name for name in got if got[name] == "ENOSYS"} >= absent & got.keys()
    assert got["keyctl"] == got["ptrace"] == got["bpf"] == got["unshare 10000000"] == "EPERM"
    assert not any(path.stat().st_mode & 0o6000 for path in sandbox.folder.root.iterdir())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86_64 has these calls")
async def test_system_calls_of_another_architecture_are_refused(sandbox: Sandbox) -> None:
    """i386 calls have other numbers: 26 is ptrace there and msync here."""
    code = r"""
    #include <stdio.h>
    int main() { long r; __asm__ volatile ("int $0x80" : "=a"(r) : "a"(20)); printf("%ld\n", r); return 0; }
    """
    write(sandbox, "old.c", code)
    result = await shell(sandbox, "gcc -o /tmp/old old.c && /tmp/old")
    assert result.stdout.text() == ""
    assert result.code == 128 + 31 or result.signal == 31, result.stderr.text()


async def test_commands_have_no_capabilities_and_cannot_touch_the_first_process(sandbox: Sandbox) -> None:
    """Landlock does not restrict bubblewrap's own process, so writing to it would be a way out."""
    status = (await shell(sandbox, "cat /proc/self/status")).stdout.text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {values[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    source = """
        import os, signal
        for name, flags in (("mem", os.O_RDWR), ("mem", 0), ("environ", 0), ("maps", 0)):
            try:
                os.open("/proc/1/" + name, flags); print(name)
            except OSError:
                pass
        for number in (signal.SIGKILL, signal.SIGSTOP):
            try:
                os.kill(1, number)
            except OSError:
                pass
        print("alive")
        """
    assert await output_of(sandbox, source) == "alive"


# ---- ordinary commands


async def test_compilers_and_tools_work(sandbox: Sandbox) -> None:
    write(sandbox, "a.c", '#include <stdio.h>\nint main(){puts("compiled");return 0;}\n')
    write(sandbox, "Makefile", "all:\n\tgcc -o a a.c && ./a\n")
    made = await shell(sandbox, "make")
    assert "compiled" in made.stdout.text(), made.stderr.text()
    tools = await shell(
        sandbox,
        "git init -q /tmp/r && cd /tmp/r && echo a > a && git add a && git commit -qm first &&"
        "git log --oneline | wc -l;"
        'python3 -c \'import ssl, sqlite3, subprocess; print(subprocess.check_output(["echo", "sub"]).decode())\';'
        "echo done > /dev/null; echo err > /dev/stderr; head -c 4 /dev/urandom | wc -c; id -un; date; mktemp",
    )
    assert tools.code == 0, tools.stderr.text()
    assert tools.stdout.text().split()[:4] == ["1", "sub", "4", "agent"]
    assert tools.stderr.text() == "err\n"


@pytest.mark.skipif(not Path("/usr/bin/node").exists(), reason="node is not installed")
async def test_node_works(sandbox: Sandbox) -> None:
    script = (
        "const{execSync}=require('child_process');new (require('worker_threads').Worker)('console.log(1)',{eval:true})"
        ";console.log(execSync('echo child').toString())"
    )
    result = await shell(sandbox, f'node -e "{script}"')
    assert set(result.stdout.text().split()) == {"1", "child"}, result.stderr.text()


@pytest.mark.usefixtures("ignored_signals")
async def test_commands_start_with_default_signals(sandbox: Sandbox) -> None:
    """Also SIGPIPE, which Python ignores."""
    result = await shell(sandbox, "grep -E '^Sig(Blk|Ign)' /proc/self/status; yes | head -1")
    _, blocked, _, ignored, line = result.stdout.text().split()
    # The C library reserves signals 32 and 33. The starter of the tests may ignore them, and nothing can change that.
    assert int(ignored, 16) & 0x7FFFFFFF == 0
    assert (int(blocked, 16), line) == (0, "y")


async def test_a_command_gets_its_arguments_input_and_report_unchanged(sandbox: Sandbox) -> None:
    words = ["", "two words", "ünï", "-x", "--args", "\n", "a=b", "*", "$HOME"]
    output = await output_of(sandbox, "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(output) == words
    assert (await shell(sandbox, "no-such-program-anywhere")).code == 127
    missing = await sandbox.run(SandboxCommand(argv=("no-such-program",), seconds=10))
    assert (missing.ending, missing.code) == (CommandEnding.EXITED, 127)
    assert "no-such-program" in missing.stderr.text()
    assert (await sandbox.run(SandboxCommand(argv=("./code.py",), seconds=10))).code == 126
    line = "cat; echo report >&$TOOLCRIB_REPORT_FD; ls /proc/self/fd | wc -l"
    result = await shell(sandbox, line, stdin=b"given" * 1000, reports=True)
    assert result.report == b"report\n"
    # Five descriptors: the standard streams, the report, and the folder that ls itself reads.
    assert result.stdout.text().strip() == "given" * 1000 + "5"


# ---- refusals


async def check_refusal(sandbox: Sandbox, reason: str, remedy: str) -> None:
    assert sandbox.refusal is not None
    assert reason in sandbox.refusal.message
    assert remedy in sandbox.refusal.remedy
    assert "File tools still work" in sandbox.refusal.remedy
    assert sandbox.describe()["sandbox"] == "refused"
    mark = sandbox.folder.root / "ran"
    with pytest.raises(WorkspaceError) as error:
        await sandbox.run(SandboxCommand(argv=("touch", str(mark)), seconds=5))
    assert error.value is sandbox.refusal
    assert not mark.exists()
    descriptor = sandbox.folder.open_file(sandbox.folder.path_of("a.txt"))
    assert os.read(descriptor, 10) == b"here\n"
    os.close(descriptor)


VERSION = "[ $1 = --version ] && echo bubblewrap 0.9.0 && exit;"
UID_MAP = "setting up uid map: Permission denied"
IGNORES_OPTIONS = 'while [ $1 != -- ]; do shift; done; shift; exec "$@"'


@pytest.mark.parametrize(
    ("script", "reason", "remedy"),
    [
        ("echo bubblewrap 0.6.1", "0.6.1", "0.8 or newer"),
        ("exit 1", "has version ''", "0.8 or newer"),
        (f"{VERSION} echo 'bwrap: {UID_MAP}' >&2; exit 1", UID_MAP, "namespaces"),
        (f"{VERSION} kill -9 $$", "could not be created", "workspace check"),
        (f"{VERSION} {IGNORES_OPTIONS}", "is not a sandbox", ""),
    ],
)
async def test_a_broken_bubblewrap_is_refused(
    root: Path, tmp_path: Path, script: str, reason: str, remedy: str
) -> None:
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    async with tried_sandbox(root, environ={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as sandbox:
        await check_refusal(sandbox, reason, remedy)


async def test_missing_programs_are_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tried_sandbox(root, environ={"PATH": str(tmp_path)}) as sandbox:
        await check_refusal(sandbox, "bubblewrap is not installed", "apt install bubblewrap")
    if os.geteuid() == 0:
        (tmp_path / "bwrap").symlink_to(str(shutil.which("bwrap")))
        async with tried_sandbox(root, environ={"PATH": str(tmp_path)}) as sandbox:
            await check_refusal(sandbox, "nsenter is not installed", "util-linux")


def no_namespace(*_: object) -> None:
    raise OSError("unshare: Operation not permitted")


ALLOW_ALL = bytes.fromhex("060000000000ff7f")


@pytest.mark.parametrize(
    ("module", "name", "replacement", "reason", "remedy"),
    [
        (kernel_rules, "landlock_version", lambda: 0, "no Landlock", "5.13"),
        (kernel_rules, "landlock_attributes", lambda _: b"", "Landlock is not active", ""),
        (kernel_rules, "seccomp_program", lambda *_, **__: ALLOW_ALL, "dangerous system calls are refused", ""),
        (selftest, "_processes_with", lambda _: "4242", "process 4242 still runs", ""),
        (system.sys, "platform", "darwin", "no sandbox for darwin", "Use Linux"),
        (system.platform, "machine", lambda: "riscv64", "riscv64", ""),
        pytest.param(
            *(mount_namespace, "build_mount_namespace", no_namespace, "Operation not permitted", "container"),
            marks=needs_root,
        ),
    ],
)
async def test_a_system_without_a_protection_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, replacement: Any, reason: str, remedy: str
) -> None:
    monkeypatch.setattr(module, name, replacement)
    async with tried_sandbox(root) as sandbox:
        await check_refusal(sandbox, reason, remedy)


def without(words: list[str], left_out: list[str]) -> list[str]:
    for at in range(len(words) - len(left_out) + 1):
        if words[at : at + len(left_out)] == left_out:
            return words[:at] + words[at + len(left_out) :]
    return words


@pytest.mark.parametrize(
    ("left_out", "probe"),
    [
        (["--unshare-net"], "no network, no socket from outside"),
        (["--remount-ro", "/"], "nothing outside can be changed"),
        pytest.param(["--cap-drop", "ALL"], "no capabilities", marks=needs_root),
    ],
)
async def test_the_self_test_notices_each_missing_protection(
    root: Path, monkeypatch: pytest.MonkeyPatch, left_out: list[str], probe: str
) -> None:
    to_list = system.BubblewrapArguments.to_list
    monkeypatch.setattr(system.BubblewrapArguments, "to_list", lambda self: without(to_list(self), left_out))
    monkeypatch.setattr(system, "CLOSING_ARGUMENTS", tuple(without(list(system.CLOSING_ARGUMENTS), left_out)))
    # Landlock would still forbid it, and this tests the mounts.
    if left_out[0] == "--remount-ro":
        monkeypatch.setattr(kernel_rules, "landlock_attributes", lambda _: b"")
    async with tried_sandbox(root) as sandbox:
        assert any(probe in found.name for found in sandbox.probes if not found.held), sandbox.probes
        assert sandbox.refusal is not None


@pytest.mark.parametrize(
    ("content", "setting"),
    [("1", "apparmor_restrict_unprivileged_userns=0"), ("0", "unprivileged_userns_clone=1")],
)
async def test_the_remedy_names_the_setting_that_forbids_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, setting: str
) -> None:
    (tmp_path / "switch").write_text(f"{content}\n")
    monkeypatch.setattr(system, "_SWITCHES", ((str(tmp_path / "switch"), content, f"kernel.{setting}"),))
    assert f"sysctl -w kernel.{setting}" in system.sandbox_remedy("Permission denied")


async def test_an_open_sandbox_describes_its_protections_and_a_closed_one_runs_nothing(root: Path) -> None:
    async with open_sandbox(root) as sandbox:
        description = sandbox.describe()
    assert description["sandbox"] == "bubblewrap"
    assert description["landlock"] >= 1
    assert description["bubblewrap"].startswith("bubblewrap ")
    assert {probe["name"] for probe in description["probes"]} == set(selftest.PROBE_NAMES.values())
    assert all(probe["held"] for probe in description["probes"])
    with pytest.raises(WorkspaceError, match="closed"):
        await shell(sandbox, "touch ran")
    assert not (root / "ran").exists()


async def test_an_unsafe_sandbox_warns_and_still_has_limits(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {**minimal_environ(), "SECRET": "canary", "HOME": str(root.parent)}
    with caplog.at_level(logging.WARNING):
        async with open_sandbox(root, environ=environ, unsafe=True) as sandbox:
            assert sandbox.unsafe
            assert sandbox.describe()["unsafe"] is True
            outside = await shell(sandbox, f"touch {root.parent}/outside; env; pwd")
            late = await shell(sandbox, "sleep 600 & sleep 600", seconds=0.5)
            limits = await output_of(sandbox, "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE))")
    assert "WITHOUT A SANDBOX" in caplog.text
    assert (root.parent / "outside").exists()
    assert "canary" not in outside.stdout.text()
    assert outside.stdout.text().endswith(f"{root}\n")
    assert late.ending is CommandEnding.TIMEOUT
    assert limits == str((DEFAULTS.limits.file_size,) * 2)
