"""bubblewrap's words: which namespaces, which mounts, which variables.

In: what the system has, what lies over the folder. Out: words that go to bubblewrap through a descriptor, so that they
are on no command line. `places` says what is bound, `layout` what lies over the folder, `stage` how root is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.workspace.sandbox import places

LOWEST_VERSION = (0, 8)
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
"""That may be written to. Not /dev/zero: who may write to it can map it as memory that no limit counts."""

CLOSING = ("--remount-ro", "/")
"""The root of the sandbox is a tmpfs without a bound; nobody shall fill it."""


@dataclass(frozen=True, kw_only=True)
class Shell:
    """What is around the folder; the same for every command of a sandbox."""

    uid: int
    gid: int
    bound: tuple[Path, ...]
    """Toolchains, read-only."""
    etc: tuple[Path, ...]
    network: bool
    scratch: int
    """Bytes of /tmp, and of /dev/shm."""

    def words(self) -> list[str]:
        return [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *(() if self.network else ("--unshare-net",)),
            *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "toolcrib"),
            *("--uid", str(self.uid), "--gid", str(self.gid)),
            *(word for target, link in places.system_links() for word in ("--symlink", target, link)),
            *_read_only([*places.system_folders(), *self.etc]),
            *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--remount-ro", "/proc"),
            *("--dev", "/dev", "--perms", "1777", "--size", str(self.scratch), "--tmpfs", "/dev/shm"),  # noqa: S108
            *("--remount-ro", "/dev", "--perms", "1777", "--size", str(self.scratch), "--tmpfs", "/tmp"),  # noqa: S108
            *("--dir", places.HOME),
            *_read_only(self.bound),
        ]


def _read_only(paths: Sequence[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]


def version(said: str) -> tuple[int, ...]:
    """Of `bwrap --version`; empty if it says none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    return tuple(int(number) for number in found.groups() if number) if found else ()
