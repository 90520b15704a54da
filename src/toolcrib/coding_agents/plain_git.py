"""A `git` for a run's program that starts no other program.

In: the run's private folder, the PATH that the program would get. Out: a PATH in which this `git` comes first. The
programs call git by themselves, outside of any sandbox, and a repository's configuration can name programs: fsmonitor,
filters, hooks, textconv and more, also in included files and in submodules. No list of them would be complete, so the
kernel refuses git every new process. `workspace.sandbox.seccomp` has the filter; `runs.preparing` is above.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

from toolcrib.errors import ConfigError
from toolcrib.workspace.sandbox.seccomp import without_children
from toolcrib.workspace.sandbox.syscalls import MACHINES

_FOLDER = "bin"
_REFUSAL = "fatal: not a git repository: Toolcrib cannot keep git from starting programs on this machine"
_CODE = """\
import ctypes, os, sys
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
git, code, refusal = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3]
prctl = ctypes.CDLL(None).prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
if prctl(NO_NEW_PRIVILEGES, 1, None, 0, 0) or prctl(SECCOMP, FILTER, ctypes.byref(Filter(len(code) // 8, code)), 0, 0):
    print(refusal, file=sys.stderr)
    sys.exit(128)
# Looking for changes in a submodule takes a process of its own, without which `git status` would fail.
os.execv(git, [git, "-c", "diff.ignoreSubmodules=dirty", *sys.argv[4:]])
"""


def search_path_with_plain_git(folder: Path, path: str) -> str:
    """Puts the program into a folder below `folder`; `path` as it is where it has no git. Raises ConfigError."""
    git = shutil.which("git", path=path)
    if git is None:
        return path
    programs = folder / _FOLDER
    if os.pathsep in str(programs):
        raise ConfigError(
            f"{folder} has a {os.pathsep!r} in its name and cannot be in a program's PATH.",
            remedy="Set TOOLCRIB_HOME to a folder without it.",
        )
    programs.mkdir(mode=0o700, exist_ok=True)
    (programs / "git").write_text(_script(git), encoding="utf-8", errors="surrogateescape")
    (programs / "git").chmod(0o700)
    return f"{programs}{os.pathsep}{path}"


def _script(git: str) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        return f"#!/bin/sh\necho {shlex.quote(_REFUSAL)} >&2\nexit 128\n"
    words = (sys.executable, "-I", "-S", "-c", _CODE, git, without_children(machine).hex(), _REFUSAL)
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
