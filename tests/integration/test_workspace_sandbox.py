"""Nothing leaves the sandbox: each test is an attack from inside, by code that may do whatever it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import SOMEBODY, opened, own, path_of, printed, python, shell, usual
from parts.waiting import wait_for
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import CommandEnding, Sandbox, SandboxCommand
from toolcrib.workspace.settings.model import DEFAULTS

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture(params=["mine", pytest.param("somebody", marks=needs_root)])
def owner(request: pytest.FixtureRequest) -> str:
    """Whose folder it is: that of whoever runs this, or somebody's, for whom root is left."""
    name: str = request.param
    return name


@pytest.fixture
def root(tmp_path: Path, owner: str) -> Path:
    # Below pytest's own folders nobody else may go; so this is also a test of the way there.
    place = tmp_path / "project"
    place.mkdir()
    (place / "code.py").write_text("x = 1\n")
    return own(place, owner)


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
async def test_of_all_files_outside_not_one_can_be_changed(root: Path) -> None:
    async with opened(root) as sandbox:
        ours = [str(root), "/tmp", "/dev/shm", "/dev/pts"]
        found = json.loads(await printed(sandbox, WALK_AND_WRITE, *ours, seconds=500))
    assert found["paths"] > 1000
    assert found["tried"] > 5000
    assert found["got"] == []


@pytest.mark.parametrize("inside", [".venv", "tools/python", "."])
async def test_the_environment_that_runs_us_cannot_be_changed(
    root: Path, inside: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next server, started by a client that trusts it, would be the command's."""
    packages = root / inside / "lib"
    packages.mkdir(parents=True)
    (packages / "code.py").write_text("x = 1\n")
    own(root, owner)
    monkeypatch.setattr(sys, "prefix", str(root / inside))
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox,
            f"cd {inside}; echo y >> lib/code.py; touch lib/new.pth; mv lib other;"
            f"cd {root}; mv tools else; mv .venv else; cat $OLDPWD/lib/code.py; echo fine > made.txt",
        )
    assert finished.stdout.text() == "x = 1\n"
    assert [path.name for path in packages.iterdir()] == ["code.py"]
    assert (packages / "code.py").read_text() == "x = 1\n"
    assert (root / "made.txt").read_text() == "fine\n"


async def test_the_attack_on_all_files_sees_what_is_writable(root: Path) -> None:
    """The control: of what is writable inside, it finds every kind of change possible."""
    async with opened(root) as sandbox:
        ours = ["/usr", "/etc", "/proc", "/dev", "/root", "/home", "/work", "/nix", str(root)]
        found = json.loads(
            await printed(sandbox, "import os; open('/tmp/file', 'w').close()\n" + WALK_AND_WRITE, *ours)
        )
    kinds = {what for what, path, _ in found["got"] if path.startswith("/tmp")}
    assert kinds >= {"open", "chmod", "utime", "chown", "rename", "create", "mkdir", "symlink", "unlink"}


async def test_the_folder_itself_and_the_private_places_are_writable(root: Path, owner: str) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox, f"echo new > made.txt && mkdir d && mv made.txt d/ && touch /tmp/{mark} && cat d/*"
        )
    assert finished.stdout.text() == "new\n", finished.stderr.text()
    made = (root / "d" / "made.txt").stat()
    assert made.st_uid == (SOMEBODY if owner == "somebody" else os.geteuid())
    assert not Path(f"/tmp/{mark}").exists()


async def test_a_command_that_shall_only_read_can_write_nothing(root: Path) -> None:
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox, "touch a; echo x >> code.py; chmod 600 code.py; rm code.py; mkdir .git .toolcrib", writes=False
        )
    assert finished.stderr.text().count("Read-only file system") == 6
    assert {path.name for path in root.iterdir()} == {"code.py"}
    assert (root / "code.py").read_text() == "x = 1\n"


@contextlib.contextmanager
def listening(place: Path) -> Iterator[dict[str, list[object]]]:
    """Doors of the parent: what connects is counted."""
    doors: dict[str, list[object]] = {}
    name = f"toolcrib-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        made = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "path": (socket.AF_UNIX, socket.SOCK_STREAM, str(place / "door")),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}"),
            "datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{name}-d"),
        }
        for kind, (family, style, address) in made.items():
            try:
                door = stack.enter_context(socket.socket(family, style))
                door.bind(address)
            except OSError:
                continue
            door.setblocking(False)
            if style == socket.SOCK_STREAM:
                door.listen(8)
            doors[kind] = [door, door.getsockname()]
        yield doors


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
            # A datagram to a loopback where nobody listens is sent and lost; the far side says whether it came.
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


async def test_no_network_of_any_kind(root: Path, tmp_path: Path) -> None:
    with listening(tmp_path) as doors:
        given = {
            kind: str(at).replace("\0", "@")
            if isinstance(at, str)
            else "@" + at[1:].decode()
            if isinstance(at, bytes)
            else list(at)  # type: ignore[call-overload]
            for kind, (_, at) in doors.items()
        }
        async with opened(root) as sandbox:
            found = json.loads(await printed(sandbox, REACH, json.dumps(given)))
        for kind, (door, _) in doors.items():
            assert isinstance(door, socket.socket)
            with pytest.raises(BlockingIOError):
                door.recv(1) if kind in {"udp", "datagram"} else door.accept()
    assert found == {"got": [], "interfaces": ["lo"]}


async def test_the_doors_of_that_test_can_be_reached_without_a_sandbox(tmp_path: Path) -> None:
    """The control: the same attack, run outside, gets through."""
    with listening(tmp_path) as doors:
        given = {"tcp": list(doors["tcp"][1]), "path": doors["path"][1]}  # type: ignore[call-overload]
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-I", "-c", REACH, json.dumps(given)],
            capture_output=True,
            timeout=60,
            check=True,
        )
    assert {"tcp", "path"} <= set(json.loads(done.stdout)["got"])


async def test_loopback_and_pairs_of_sockets_work_inside(root: Path) -> None:
    async with opened(root) as sandbox:
        said = await printed(
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
            """,
        )
    assert said.split() == ["hello", "pair", "6"]


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


async def test_no_secret_of_the_parent_can_be_read(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = [f"canary-{kind}-7f3a91" for kind in ("environ", "file", "sibling")]
    monkeypatch.setenv("TOOLCRIB_TEST_SECRET", canaries[0])
    secret = tmp_path / "secret.txt"
    secret.write_text(canaries[1])
    sibling = tmp_path / "project-evil"
    sibling.mkdir()
    (sibling / "token").write_text(canaries[2])
    (root / "link").symlink_to(secret)
    (root / "up").symlink_to("../project-evil")
    files = [str(secret), str(sibling), str(root / "../secret.txt"), "/etc/shadow", "/run", "/var", "/sys"]
    files += [str(Path.home() / name) for name in (".ssh", ".bashrc", ".profile", ".config", ".npmrc", ".netrc")]
    async with opened(root, environ={**usual(), "TOOLCRIB_TEST_SECRET": canaries[0]}) as sandbox:
        given = json.dumps([canaries, files, os.getpid()]).encode()
        found = json.loads((await python(sandbox, READ_SECRETS, stdin=given)).stdout.text())
        through_links = await shell(sandbox, "cat link up/token; ls -R up/")
    assert found["got"] == []
    assert found["processes"] <= 4
    assert not found["sees_server"]
    assert "canary" not in through_links.stdout.text() + through_links.stderr.text()


async def test_only_named_variables_go_in(root: Path) -> None:
    settings = replace(DEFAULTS, environment=("WANTED",))
    environ = {**usual(), "WANTED": "yes", "UNWANTED": "no", "LD_PRELOAD": "/x.so", "GIT_DIR": "/elsewhere"}
    async with opened(root, settings, environ=environ) as sandbox:
        inside = (await shell(sandbox, "env", env={"ASKED": "1"})).stdout.text()
    names = {line.split("=")[0] for line in inside.splitlines()}
    assert {"WANTED", "ASKED", "HOME", "PATH"} <= names
    assert not names & {"UNWANTED", "LD_PRELOAD", "GIT_DIR", "TOOLCRIB_REPORT_FD", "CI"}


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


async def test_dangerous_calls_are_refused(root: Path) -> None:
    async with opened(root) as sandbox:
        got = json.loads(await printed(sandbox, FORBIDDEN))
    assert "DONE" not in got.values(), {name for name, how in got.items() if how == "DONE"}
    absent = {"clone3", "io_uring_setup", "io_uring_enter", "statmount", "unknown", "far", "x32 getpid"}
    assert {name for name in got if got[name] == "ENOSYS"} >= absent & got.keys()
    assert got["keyctl"] == got["ptrace"] == got["bpf"] == got["unshare 10000000"] == "EPERM"
    assert not any(path.stat().st_mode & 0o6000 for path in root.iterdir())


async def test_a_program_for_another_machine_makes_no_call(root: Path) -> None:
    """i386 calls have other numbers: 26 is ptrace there and msync here."""
    code = r"""
    #include <stdio.h>
    int main() { long r; __asm__ volatile ("int $0x80" : "=a"(r) : "a"(20)); printf("%ld\n", r); return 0; }
    """
    if os.uname().machine != "x86_64":
        pytest.skip("a matter of x86_64")
    async with opened(root) as sandbox:
        (root / "old.c").write_text(code)
        finished = await shell(sandbox, "gcc -o /tmp/old old.c && /tmp/old")
    assert finished.stdout.text() == ""
    assert finished.code == 128 + 31 or finished.signal == 31, finished.stderr.text()


async def test_there_is_no_capability_and_no_way_to_one(root: Path) -> None:
    async with opened(root) as sandbox:
        status = (await shell(sandbox, "cat /proc/self/status")).stdout.text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {values[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert values["NoNewPrivs"] == "1"
    assert values["Seccomp"] == "2"


async def test_the_first_process_inside_cannot_be_touched(root: Path) -> None:
    """bubblewrap's own process is under no rule of Landlock: whoever could write into it would be free of them."""
    async with opened(root) as sandbox:
        found = json.loads(
            await printed(
                sandbox,
                """
                import json, os, signal
                got = []
                for name, flags in (("mem", os.O_RDWR), ("mem", 0), ("environ", 0), ("maps", 0)):
                    try:
                        os.open("/proc/1/" + name, flags); got.append(name)
                    except OSError:
                        pass
                for number in (signal.SIGKILL, signal.SIGSTOP):
                    try:
                        os.kill(1, number)
                    except OSError:
                        pass
                print(json.dumps(got))
                """,
            )
        )
    assert found == []


async def test_files_hidden_by_the_settings_are_not_there_for_commands(root: Path, owner: str) -> None:
    deep = root / "conf" / "prod"
    deep.mkdir(parents=True)
    (deep / "key.pem").write_text("canary-pem")
    (root / ".env").write_text("canary-env")
    (root / "vault").mkdir()
    (root / "vault" / "x").write_text("canary-vault")
    own(root, owner)
    settings = replace(DEFAULTS, hidden=("*.pem", ".env", "vault/"))
    attack = (
        "cat .env conf/prod/key.pem vault/x; ls vault; mv .env e; mv conf c; mv conf/prod p; mv vault v; rm -rf vault;"
        "ln .env hard; ln conf/prod/key.pem hard2; cp -r . /tmp/all; grep -r canary . /tmp/all"
    )
    for writes in (True, False):
        async with opened(root, settings) as sandbox:
            first = await shell(sandbox, attack, writes=writes)
            second = await shell(sandbox, attack, writes=writes)
        for finished in (first, second):
            assert "canary" not in finished.stdout.text() + finished.stderr.text()
    assert (root / "vault" / "x").read_text() == "canary-vault"
    assert (deep / "key.pem").read_text() == "canary-pem"
    assert (root / ".env").read_text() == "canary-env"


async def test_toolcribs_own_files_are_read_only_and_run_logs_not_there(root: Path, owner: str) -> None:
    own_place = root / ".toolcrib"
    (own_place / "runs").mkdir(parents=True)
    (own_place / "runs" / "1.log").write_text("canary-run")
    (own_place / "workspace.yml").write_text("network: false\n")
    (own_place / "link").symlink_to("/etc/passwd")
    own(root, owner)
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox,
            "cat .toolcrib/workspace.yml; cat .toolcrib/runs/*; echo network: true > .toolcrib/workspace.yml;"
            "mv .toolcrib t; rm -rf .toolcrib; mkdir -p .toolcrib/runs; ls -A .toolcrib; touch .toolcrib/new",
        )
    assert finished.stdout.text() == "network: false\nworkspace.yml\n"
    assert (own_place / "workspace.yml").read_text() == "network: false\n"
    assert (own_place / "runs" / "1.log").read_text() == "canary-run"


async def test_settings_that_are_not_there_cannot_be_made(root: Path) -> None:
    async with opened(root) as sandbox:
        await shell(sandbox, "mkdir -p .toolcrib; echo network: true > .toolcrib/workspace.yml; mv .toolcrib x; ls -la")
    assert not (root / ".toolcrib").exists()


@pytest.mark.parametrize("name", [".toolcrib", ".git"])
async def test_a_link_in_place_of_a_protected_folder_refuses_commands(root: Path, name: str) -> None:
    """A repository could bring it along: what it leads to would be bound, or a new one put in its place."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    (root / name).symlink_to(outside)
    folder = Folder(root)
    sandbox = await Sandbox.open(folder, DEFAULTS, environ=usual())
    with pytest.raises(WorkspaceError, match="link") as refusal:
        await shell(sandbox, "true")
    assert "Replace it with a folder" in refusal.value.remedy
    await sandbox.close()
    folder.close()
    assert [path.name for path in outside.iterdir()] == ["secret"]


async def test_a_folder_that_was_exchanged_is_not_used(root: Path) -> None:
    async with opened(root) as sandbox:
        root.rename(root.with_name("away"))
        root.mkdir()
        with pytest.raises(WorkspaceError, match="no longer the folder"):
            await shell(sandbox, "true")


@pytest.mark.parametrize(
    "name", ["with space", "ünïcödé 木", "new\nline", "-rf", "--bind", "$(id)", "a'b\"c", "x" * 200]
)
async def test_folders_of_any_name_work(tmp_path: Path, owner: str, name: str) -> None:
    place = tmp_path / name / "in"
    place.mkdir(parents=True)
    own(place, owner)
    async with opened(place) as sandbox:
        finished = await shell(sandbox, 'echo "$PWD"; touch made; ls -A', cwd=path_of())
        assert finished.code == 0, finished.stderr.text()
        assert finished.stdout.text().startswith(f"{place}\n")
    assert (place / "made").exists()


async def test_two_sandboxes_do_not_see_each_other(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    (second / "secret").write_text("canary-second")
    async with opened(first) as one, opened(second) as two:
        going = asyncio.create_task(shell(two, "touch /tmp/mark ready; sleep 20"))
        await asyncio.to_thread(wait_for, (second / "ready").exists, "the second", 20)
        found = await shell(one, f"ls {second}; cat {second}/secret; ls /tmp/mark; ps ax | grep -c '[s]leep 20'")
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    assert "canary" not in found.stdout.text()
    assert found.stdout.text().strip() in {"0", ""}


async def test_sockets_of_outside_that_lie_in_the_folder_are_closed_doors(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        # A path relative to the working folder, for a socket's path may not be long.
        with contextlib.chdir(root):
            door.bind("door.sock")
        door.listen(1)
        async with opened(root) as sandbox:
            said = await printed(
                sandbox,
                """
                import socket
                try:
                    socket.socket(socket.AF_UNIX).connect("door.sock"); print("reached")
                except OSError as error:
                    print("closed")
                """,
            )
    assert said == "closed"


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
async def test_a_command_that_swaps_folders_for_links_gains_nothing_of_the_next(
    root: Path, owner: str, hidden: tuple[str, ...], sized: Callable[[int, int], int]
) -> None:
    """While a sandbox is made, bubblewrap goes to places by their paths; a link there would lead it out."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    own(outside, owner)
    settings = replace(DEFAULTS, hidden=hidden)
    ran = 0
    async with opened(root, settings) as one, opened(root, settings) as two:
        swapping = asyncio.create_task(python(one, SWAP, str(outside), seconds=300))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the swapping", 20)
        end = time.monotonic() + sized(3, 60)
        while time.monotonic() < end:
            for sandbox in (one, two):
                with contextlib.suppress(WorkspaceError):
                    finished = await shell(
                        sandbox, "cat */secret */.git/secret */.toolcrib/*; ls -a n m t h", seconds=1
                    )
                    assert "canary" not in finished.stdout.text()
                    ran += 1
        swapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swapping
    assert ran or hidden
    assert [path.name for path in outside.iterdir()] == ["secret"]


async def test_what_must_be_hidden_waits_for_quiet_if_another_process_runs_something(root: Path, owner: str) -> None:
    (root / "deep").mkdir()
    (root / "deep" / "key.pem").write_text("canary")
    own(root, owner)
    settings = replace(DEFAULTS, hidden=("*.pem",))
    async with opened(root) as careless, opened(root, settings) as careful:
        going = asyncio.create_task(shell(careless, "touch ready; while [ ! -e stop ]; do sleep 0.02; done"))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the first", 20)
        with pytest.raises(WorkspaceError, match="still runs in this folder"):
            await shell(careful, "cat deep/key.pem", seconds=0.3)
        waiting = asyncio.create_task(shell(careful, "cat deep/key.pem; ls deep", seconds=20))
        (root / "stop").touch()
        finished = await waiting
        await going
    assert finished.stdout.text() == "key.pem\n"


async def test_ordinary_work_goes_on(root: Path, owner: str) -> None:
    (root / "a.c").write_text('#include <stdio.h>\nint main(){puts("compiled");return 0;}\n')
    (root / "Makefile").write_text("all:\n\tgcc -o a a.c && ./a\n")
    own(root, owner)
    async with opened(root) as sandbox:
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


async def test_node_runs_if_there_is_one(root: Path) -> None:
    if not Path("/usr/bin/node").exists():
        pytest.skip("no node here")
    script = (
        "const{execSync}=require('child_process');new (require('worker_threads').Worker)('console.log(1)',{eval:true})"
        ";console.log(execSync('echo child').toString())"
    )
    async with opened(root) as sandbox:
        finished = await shell(sandbox, f'node -e "{script}"')
    assert set(finished.stdout.text().split()) == {"1", "child"}, finished.stderr.text()


@pytest.mark.usefixtures("ignored_signals")
async def test_commands_begin_with_default_signals(root: Path) -> None:
    """Also SIGPIPE, which Python ignores."""
    async with opened(root) as sandbox:
        finished = await shell(sandbox, "grep -E '^Sig(Blk|Ign)' /proc/self/status; yes | head -1")
    _, blocked, _, ignored, said = finished.stdout.text().split()
    # The C library keeps 32 and 33 for itself: whoever started the tests may ignore them, and nobody can change that.
    assert int(ignored, 16) & 0x7FFFFFFF == 0
    assert (int(blocked, 16), said) == (0, "y")


async def test_words_reach_the_command_as_they_are(root: Path) -> None:
    words = ["", "two words", "ünï", "-x", "--args", "\n", "a=b", "*", "$HOME"]
    async with opened(root) as sandbox:
        said = await printed(sandbox, "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
        none = await shell(sandbox, "no-such-program-anywhere")
    assert json.loads(said) == words
    assert none.code == 127


async def test_a_program_that_is_not_there_is_said(root: Path) -> None:
    async with opened(root) as sandbox:
        finished = await sandbox.run(SandboxCommand(argv=("no-such-program",), seconds=10))
        missing = await sandbox.run(SandboxCommand(argv=("./code.py",), seconds=10))
    assert finished.ending is CommandEnding.EXITED
    assert finished.code == 127
    assert "no-such-program" in finished.stderr.text()
    assert missing.code == 126


async def test_input_and_report_go_their_ways(root: Path) -> None:
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox,
            "cat; echo told >&$TOOLCRIB_REPORT_FD; ls /proc/self/fd | wc -l",
            stdin=b"given" * 1000,
            reports=True,
        )
    assert finished.stdout.text().startswith("given" * 1000)
    assert finished.report == b"told\n"
    # Standard streams, the report, and the folder that ls itself reads.
    assert finished.stdout.text()[5000:].strip() == "5"
