"""Tries to break out. The sandbox's self-test runs it inside with `python -I -S`; it imports nothing from Toolcrib.

In: JSON in the first argument, with things outside that must be unreachable. Out: JSON through TOOLCRIB_REPORT_FD: the
successful attempts of each probe, empty if none.
"""
# Loading pathlib would slow down every start.
# ruff: noqa: PTH108, PTH110, PTH116, PTH123, PTH208

import ctypes
import errno
import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any

GIVEN = json.loads(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x10000000
KEYCTL = {"x86_64": 250, "aarch64": 219}
IO_URING_SETUP = 425
AF_ALG, AF_VSOCK = 38, 40
DEVICE = "/tmp/.toolcrib-device"  # noqa: S108 - the sandbox's own


def gets_through(what: str, act: Callable[..., Any], *arguments: Any) -> list[str]:
    try:
        act(*arguments)
    except OSError:
        return []
    return [what]


def call(name: str, *arguments: Any) -> int:
    """The errno of a C library call, 0 if it succeeded."""
    ctypes.set_errno(0)
    return ctypes.get_errno() if getattr(LIBC, name)(*arguments) < 0 else 0


def writing() -> list[str]:
    found = []
    for path in GIVEN["folders"]:
        found += gets_through(f"made a file in {path}", os.open, path + "/.toolcrib-probe", os.O_CREAT | os.O_WRONLY)
        found += gets_through(f"changed the time of {path}", os.utime, path)
    for path in GIVEN["files"]:
        found += gets_through(f"opened {path} for writing", os.open, path, os.O_WRONLY)
        if os.path.exists(path):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            found += gets_through(f"changed the mode of {path}", os.chmod, path, mode)
    mode = stat.S_IMODE(os.stat("/dev/null").st_mode)
    return found + gets_through("changed the mode of /dev/null", os.chmod, "/dev/null", mode)


def reading() -> list[str]:
    found = [f"{path} exists" for path in GIVEN["secrets"] if os.path.lexists(path)]
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                inside = file.read()
        except OSError:
            continue
        if (number == "1" and inside) or GIVEN["canary"].encode() in inside:
            found.append(f"process {number} shows variables from outside")
    return found


def network() -> list[str]:
    found = []
    for family, address in GIVEN["listeners"]:
        with socket.socket(getattr(socket, family), socket.SOCK_STREAM) as door:
            door.settimeout(0.5)
            where = tuple(address) if isinstance(address, list) else address.replace("@", "\0", 1)
            found += gets_through(f"reached {address}", door.connect, where)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        found += gets_through("sent to 192.0.2.1", door.sendto, b"x", ("192.0.2.1", 53))
    return found


def privileges() -> list[str]:
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found = [f"{name} is {status[name]}" for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb") if int(status[name], 16)]
    if status.get("NoNewPrivs") != "1":
        found.append("new privileges can be gained")
    if call("mount", None, b"/", None, ctypes.c_ulong(32 | 4096), None) == 0:
        found.append("/ was remounted")
    if call("unshare", NEW_USER) == 0:
        found.append("a user namespace was created")
    return found


def calls() -> list[str]:
    """The filter answers each call with a specific errno, which differs without it."""
    found = []
    if call("syscall", IO_URING_SETUP, 1, None) != errno.ENOSYS:
        found.append("io_uring is available")
    if call("syscall", KEYCTL[os.uname().machine], 0, 0, 0, 0, 0) != errno.EPERM:
        found.append("keyrings can be read")
    for family in (AF_ALG, AF_VSOCK):
        if call("socket", family, 1, 0) != errno.EAFNOSUPPORT:
            found.append(f"sockets of family {family} can be created")
    return found


def rules() -> list[str]:
    """Any user may create device 0:0, unless Landlock forbids devices."""
    try:
        os.mknod(DEVICE, stat.S_IFCHR | 0o600, 0)
    except PermissionError:
        return []
    except OSError as error:
        return [f"Landlock cannot be tested: {error}"]
    os.unlink(DEVICE)
    return ["Landlock is not active"]


def limits() -> list[str]:
    found = []
    for name, most in GIVEN["limits"].items():
        kind = getattr(resource, name)
        soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or hard > most or soft > most:
            found.append(f"{name} is {hard}")
        if hard != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(kind, (soft, hard + 1))
            except (OSError, ValueError):
                continue
            found.append(f"{name} was raised")
    return found


def leave_one_behind() -> list[str]:
    """Starts a process that leaves its parents and session. It must end with the sandbox."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            argv = ["python", "-I", "-S", "-c", "import time; time.sleep(60)", GIVEN["canary"]]
            os.execv("/proc/self/exe", argv)  # noqa: S606
        os._exit(0)
    os.wait()
    return []


PROBES: list[Callable[[], list[str]]] = [writing, reading, privileges, calls, rules, limits, leave_one_behind]
if GIVEN["listeners"]:
    PROBES.append(network)
ANSWERS = {}
for probe in PROBES:
    try:
        ANSWERS[probe.__name__] = probe()
    except Exception as error:
        ANSWERS[probe.__name__] = [f"{type(error).__name__}: {error}"]
os.write(int(os.environ["TOOLCRIB_REPORT_FD"]), json.dumps(ANSWERS).encode())
