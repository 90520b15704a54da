"""What this system has to build a sandbox of, and what to do where something is missing.

In: the server's environment. Out: the means, or a refusal with its reason and remedy. `sandbox` asks once.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.signals import with_default_signals
from toolcrib.workspace.sandbox import bwrap, landlock
from toolcrib.workspace.sandbox.programs import find_program
from toolcrib.workspace.sandbox.syscalls import MACHINES

FILE_TOOLS = "File tools go on working."
_SWITCHES = (
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)


@dataclass(frozen=True, kw_only=True)
class Means:
    bwrap: str
    version: str
    enter: str
    """The program that enters a stage; only root needs it."""
    machine: str
    landlock: int


def find(environ: Mapping[str, str], root: Path, *, is_root: bool) -> Means:
    """WorkspaceError where a sandbox cannot be built here."""
    if sys.platform != "linux":
        raise refused(
            f"there is no sandbox for {sys.platform}", "Use Linux, or a container or virtual machine with it."
        )
    machine = platform.machine()
    if machine not in MACHINES:
        raise refused(f"the filter of system calls does not know {machine}", f"Use {' or '.join(MACHINES)}.")
    program = find_program("bwrap", environ, root)
    if program is None:
        raise refused("bubblewrap is not installed", "`apt install bubblewrap`, or `dnf install bubblewrap`.")
    said = _version_of(program)
    if bwrap.version(said) < bwrap.LOWEST_VERSION:
        wanted = ".".join(map(str, bwrap.LOWEST_VERSION))
        raise refused(f"{program} says {said or 'nothing'!r}", f"Install bubblewrap {wanted} or newer.")
    abi = landlock.version()
    if abi < 1:
        raise refused(
            "the kernel has no Landlock", "Use Linux 5.13 or newer with `landlock` in the boot parameter `lsm=`."
        )
    enter = find_program("nsenter", environ, root)
    if is_root and enter is None:
        raise refused("nsenter is not installed, and Toolcrib runs as root", "`apt install util-linux`.")
    return Means(bwrap=str(program), version=said, enter=str(enter or ""), machine=machine, landlock=abi)


def refused(why: str, remedy: str) -> WorkspaceError:
    return WorkspaceError(
        f"No code is run here, neither tests nor linters: {why}.", remedy=f"{remedy} {FILE_TOOLS}", data={"reason": why}
    )


def remedy_for(why: str) -> str:
    """What helps where bubblewrap itself fails: most often the system forbids namespaces."""
    for path, bad, setting in _SWITCHES:
        try:
            is_bad = Path(path).read_text().strip() == bad
        except OSError:
            continue
        if is_bad:
            rule = " or give bwrap a profile of AppArmor with `userns,`" if "apparmor" in path else ""
            return f"User namespaces are switched off here: `sysctl -w {setting}`{rule}."
    if "ermission" in why or "not permitted" in why:
        return "In a container: allow user namespaces and mounts (for Docker `--security-opt seccomp=unconfined`)."
    return "`toolcrib workspace check` shows every probe."


def _version_of(program: Path) -> str:
    try:
        words = with_default_signals([str(program), "--version"])
        done = subprocess.run(words, env={}, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).decode(errors="replace").strip()[:200]
