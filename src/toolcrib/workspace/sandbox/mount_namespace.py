"""Where the server is root: a view of the machine in which bubblewrap can be started as the folder's owner.

In: the owner and the folders that a sandbox needs. Out: words that enter the view and leave root behind (`nsenter`).
Runs once, when a sandbox is opened; the view lives as long as its descriptor.

The view differs from the machine in two things. Devices are read-only, so that root inside, where root owns the folder
and nothing can be left behind, cannot change the modes of the machine's own. And folders that the owner may not enter
(an interpreter below /root) show nothing but what is needed of them.

`main` is run alone, by `python -I -S`, in a process of its own.
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
"""nosuid, noexec, noatime: a mount that has them keeps them."""


@dataclass(frozen=True, kw_only=True)
class MountNamespace:
    descriptor: int
    words: tuple[str, ...]

    def close(self) -> None:
        os.close(self.descriptor)


def build_mount_namespace(
    owner: tuple[int, int], needed: Sequence[Path], enter: str, interpreter: Path
) -> MountNamespace:
    """OSError with the reason where it cannot be made."""
    uid, gid = owner
    words = [str(interpreter), "-I", "-S", "-E", __file__, str(uid), str(gid), *map(str, needed)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={})
    with process:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            _, said = process.communicate()
            raise OSError((said.decode(errors="replace").strip().splitlines() or ["it ended"])[-1])
        descriptor = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
        process.communicate()
    leaving = () if uid == 0 else (f"--setgid={gid}", f"--setuid={uid}")
    return MountNamespace(descriptor=descriptor, words=(enter, f"--mount=/proc/self/fd/{descriptor}", *leaving, "--"))


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
        _open_way(libc, top, paths)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def _closed_above(path: str, uid: int, gid: int) -> str:
    """The topmost folder on the way that the owner may not enter; empty if the way is open."""
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


def _open_way(libc: ctypes.CDLL, top: str, paths: Sequence[str]) -> None:
    """Puts an empty folder over the closed one, and into it what is needed, at its own place."""
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
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    _check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
