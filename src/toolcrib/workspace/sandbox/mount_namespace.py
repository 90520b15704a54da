"""If the server runs as root: a mount namespace in which bubblewrap can start as the folder's owner.

In: the owner and the folders that a sandbox needs. Out: a command prefix that enters the namespace and drops root
(`nsenter`). Built once, when a sandbox opens; the namespace lives as long as its descriptor.

It differs from the machine's namespace in two ways. Devices are read-only, so that commands that run as root (because
root owns the folder) cannot change the modes of the real ones. And folders that the owner may not enter, such as an
interpreter below /root, show only the paths that are needed.

`main` runs standalone, by `python -I -S`, in its own process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_NEW_MOUNTS = 0x00020000
_BIND, _REC, _SLAVE, _REMOUNT, _READ_ONLY = 4096, 16384, 1 << 19, 32, 1
_KEPT_FLAGS = 2 | 8 | 1024
"""nosuid, noexec, noatime: flags that a remount must keep."""


@dataclass(frozen=True, kw_only=True)
class MountNamespace:
    descriptor: int
    command: tuple[str, ...]

    def close(self) -> None:
        os.close(self.descriptor)


def build_mount_namespace(
    owner: tuple[int, int], needed: Sequence[Path], enter: str, interpreter: Path
) -> MountNamespace:
    """Raises OSError with the reason if it cannot be built."""
    uid, gid = owner
    command = [str(interpreter), "-I", "-S", "-E", __file__, str(uid), str(gid), *map(str, needed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={})
    with process:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            _, stderr = process.communicate()
            raise OSError((stderr.decode(errors="replace").strip().splitlines() or ["it ended"])[-1])
        descriptor = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
        process.communicate()
    leaving = () if uid == 0 else (f"--setgid={gid}", f"--setuid={uid}")
    return MountNamespace(descriptor=descriptor, command=(enter, f"--mount=/proc/self/fd/{descriptor}", *leaving, "--"))


def main(uid: int, gid: int, needed: Sequence[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS), "unshare")
    _mount(libc, None, "/", _REC | _SLAVE)
    _mount(libc, "/dev", "/dev", _BIND)
    _mount(libc, None, "/dev", _REMOUNT | _BIND | _READ_ONLY | (os.statvfs("/dev").f_flag & _KEPT_FLAGS))
    closed: dict[str, list[str]] = {}
    for path in needed:
        if top := _closed_above(path, uid, gid):
            closed.setdefault(top, []).append(path)
    for top, paths in closed.items():
        _open_parents(libc, top, paths)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def _closed_above(path: str, uid: int, gid: int) -> str:
    """The topmost parent folder that the owner may not enter; empty if there is none."""
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        parts = path.split("/")[1:-1]
        for length in range(1, len(parts) + 1):
            above = "/" + "/".join(parts[:length])
            if not os.access(above, os.X_OK, effective_ids=True):
                return above
    finally:
        os.seteuid(0)
        os.setegid(0)
    return ""


def _open_parents(libc: ctypes.CDLL, top: str, paths: Sequence[str]) -> None:
    """Mounts an empty folder over the closed one, and binds the needed paths into it."""
    held = [(path, os.open(path, os.O_PATH), Path(path).is_dir()) for path in paths]
    _mount(libc, "tmpfs", top, 0, "tmpfs", "mode=0755,size=1m")
    for path, descriptor, is_folder in held:
        place = Path(path)
        (place if is_folder else place.parent).mkdir(0o755, parents=True, exist_ok=True)
        if not is_folder:
            place.touch()
        _mount(libc, f"/proc/self/fd/{descriptor}", path, _BIND | _REC)
        os.close(descriptor)


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, flags: int, kind: str | None = None, data: str | None = None
) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
