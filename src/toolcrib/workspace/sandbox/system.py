"""The programs and kernel features that the sandbox needs, and the parts of the system that a command can see.

In: the settings and the server's environment. Out: bubblewrap and the other programs, or a refusal with its reason
and remedy; the folders to bind read-only; a command's environment; bubblewrap's arguments for everything around the
folder, which it reads from a descriptor so that they appear on no command line. No file in the workspace influences
this, because a repository could otherwise choose what it can read, and the model may have written its programs.
`layout` builds the mounts over the folder, `mount_namespace` gives up root.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.signals import with_default_signals
from toolcrib.workspace.sandbox import kernel_rules
from toolcrib.workspace.sandbox.kernel_rules import MACHINES
from toolcrib.workspace.settings.model import GitMode, WorkspaceSettings

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def find_program(name: str, environ: Mapping[str, str], root: Path) -> Path | None:
    folders = [Path(entry) for entry in environ.get("PATH", DEFAULT_PATH).split(":") if entry.startswith("/")]
    for program in (folder / name for folder in folders):
        if os.access(program, os.X_OK) and program.is_file() and not _lies_in(root, program):
            return program
    return None


def _lies_in(root: Path, program: Path) -> bool:
    """Whether the path itself or its link target is inside."""
    return any(Path(os.path.normpath(place)).is_relative_to(root) for place in (program, program.resolve()))


SANDBOX_HOME = "/tmp/home"  # noqa: S108 - the sandbox's own
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Next to /usr: links into it on most systems, folders on some."""
ETC_NAMES = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted", "crypto-policies"),
    *("java", "perl", "fonts", "magic", "terminfo", "static"),
)
"""The parts of /etc that programs need to start. No secrets, and nothing that identifies this machine's users."""
NETWORK_ETC_NAMES = ("resolv.conf", "hosts", "gai.conf")
TOOLCHAIN_STORES = (
    *(".local/share/uv/python", ".pyenv/versions", ".rustup/toolchains", ".cargo/bin", ".nvm/versions"),
    *(
        ".local/share/fnm/node-versions",
        ".volta/tools",
        ".asdf/installs",
        ".local/share/mise/installs",
        ".sdkman/candidates",
    ),
    *(".deno/bin", ".bun/bin", "go/bin"),
)
"""In the home folder: toolchain stores of version managers, which contain only programs."""
SYSTEM_STORES = ("/nix/store", "/gnu/store")
SANDBOX_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def system_links() -> list[tuple[str, str]]:
    """Target and path of top-level folders that are links, such as `/bin` to `usr/bin`."""
    return [(str(Path(path).readlink()), path) for path in SYSTEM_FOLDERS if Path(path).is_symlink()]


def system_folders() -> list[Path]:
    return [
        Path("/usr"),
        *(Path(path) for path in SYSTEM_FOLDERS if Path(path).is_dir() and not Path(path).is_symlink()),
    ]


def etc_paths(settings: WorkspaceSettings) -> list[Path]:
    names = (*ETC_NAMES, *NETWORK_ETC_NAMES) if settings.network else ETC_NAMES
    return [path for name in names if (path := Path("/etc") / name).exists()]


def toolchains(settings: WorkspaceSettings, environ: Mapping[str, str], root: Path) -> list[Path]:
    """Our interpreter, ripgrep, toolchain stores and the settings' `readable`, without nested paths."""
    home = environ.get("HOME")
    ripgrep = find_program("rg", environ, root)
    wanted = [
        *([ripgrep] if ripgrep else []),
        Path(sys.base_prefix),
        Path(sys.prefix),
        own_interpreter().parent,
        *(Path(home) / store for store in TOOLCHAIN_STORES if home),
        *(Path(store) for store in SYSTEM_STORES),
        *settings.readable,
    ]
    found: list[Path] = []
    for path in sorted({place.resolve() for place in wanted if place.exists()}, key=lambda place: len(place.parts)):
        if path != Path("/") and not any(path.is_relative_to(other) for other in [*system_folders(), *found]):
            found.append(path)
    return found


def own_interpreter() -> Path:
    """The Python that runs us, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def etc_files(settings: WorkspaceSettings, uid: int, gid: int) -> dict[str, bytes]:
    """Generated files of /etc: they name one user and, without network, one host."""
    made = {
        "/etc/passwd": f"agent:x:{uid}:{gid}::{SANDBOX_HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".encode(),
        "/etc/group": f"agent:x:{gid}:\nnogroup:x:65534:\n".encode(),
        "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
    }
    return made if settings.network else made | {"/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n"}


def command_environment(
    settings: WorkspaceSettings, environ: Mapping[str, str], root: Path, visible: Sequence[Path]
) -> dict[str, str]:
    """A new environment. From the server's it takes only PATH, without invisible folders, and the settings' names."""
    seen = [*visible, *system_folders(), *(Path(path) for path in SYSTEM_FOLDERS), root]
    path = [
        entry
        for entry in environ.get("PATH", "").split(":")
        if entry.startswith("/") and any(Path(os.path.normpath(entry)).is_relative_to(place) for place in seen)
    ]
    made = {
        "PATH": ":".join(dict.fromkeys([*path, *SANDBOX_PATH, str(own_interpreter().parent)])),
        "HOME": SANDBOX_HOME,
        "TMPDIR": "/tmp",  # noqa: S108
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **{f"GIT_{who}_NAME": "Toolcrib agent" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "agent@localhost" for who in ("AUTHOR", "COMMITTER")},
        "GIT_CONFIG_NOSYSTEM": "1",
        # Packing would rewrite read-only files.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "gc.auto",
        "GIT_CONFIG_VALUE_0": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if settings.git is GitMode.READ_ONLY:
        made["GIT_OPTIONAL_LOCKS"] = "0"
    return made | {name: environ[name] for name in settings.environment if name in environ}


MIN_BUBBLEWRAP = (0, 8)
WRITABLE_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
"""Not /dev/zero: a program that may write to it can map it as memory that no limit counts."""

CLOSING_ARGUMENTS = ("--remount-ro", "/")
"""The sandbox's root is a tmpfs without a size limit, so it becomes read-only."""


@dataclass(frozen=True, kw_only=True)
class BubblewrapArguments:
    """The surroundings of the folder; the same for every command of a sandbox."""

    uid: int
    gid: int
    bound: tuple[Path, ...]
    """Toolchains, read-only."""
    etc: tuple[Path, ...]
    network: bool
    scratch: int
    """Bytes of /tmp, and of /dev/shm."""

    def to_list(self) -> list[str]:
        return [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *(() if self.network else ("--unshare-net",)),
            *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "toolcrib"),
            *("--uid", str(self.uid), "--gid", str(self.gid)),
            *(word for target, link in system_links() for word in ("--symlink", target, link)),
            *_read_only([*system_folders(), *self.etc]),
            *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--remount-ro", "/proc"),
            *("--dev", "/dev", "--perms", "1777", "--size", str(self.scratch), "--tmpfs", "/dev/shm"),  # noqa: S108
            *("--remount-ro", "/dev", "--perms", "1777", "--size", str(self.scratch), "--tmpfs", "/tmp"),  # noqa: S108
            *("--dir", SANDBOX_HOME),
            *_read_only(self.bound),
        ]


def _read_only(paths: Sequence[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]


def bubblewrap_version(output: str) -> tuple[int, ...]:
    """Parse the output of `bwrap --version`; empty if it has no version."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", output)
    return tuple(int(number) for number in found.groups() if number) if found else ()


FILE_TOOLS = "File tools still work."
_SWITCHES = (
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)


@dataclass(frozen=True, kw_only=True)
class SystemSupport:
    bwrap: str
    version: str
    enter: str
    """The program that enters a mount namespace; only root needs it."""
    landlock: int


def find_support(environ: Mapping[str, str], root: Path, *, is_root: bool) -> SystemSupport:
    """WorkspaceError if this system cannot build a sandbox."""
    if sys.platform != "linux":
        raise sandbox_refused(
            f"there is no sandbox for {sys.platform}", "Use Linux, or a Linux container or virtual machine."
        )
    machine = platform.machine()
    if machine not in MACHINES:
        raise sandbox_refused(f"the system call filter does not support {machine}", f"Use {' or '.join(MACHINES)}.")
    program = find_program("bwrap", environ, root)
    if program is None:
        raise sandbox_refused("bubblewrap is not installed", "`apt install bubblewrap`, or `dnf install bubblewrap`.")
    version = _version_of(program)
    if bubblewrap_version(version) < MIN_BUBBLEWRAP:
        required = ".".join(map(str, MIN_BUBBLEWRAP))
        raise sandbox_refused(f"{program} has version {version or ''!r}", f"Install bubblewrap {required} or newer.")
    abi = kernel_rules.landlock_version()
    if abi < 1:
        raise sandbox_refused(
            "the kernel has no Landlock", "Use Linux 5.13 or newer with `landlock` in the boot parameter `lsm=`."
        )
    enter = find_program("nsenter", environ, root)
    if is_root and enter is None:
        raise sandbox_refused("nsenter is not installed, and Toolcrib runs as root", "`apt install util-linux`.")
    return SystemSupport(bwrap=str(program), version=version, enter=str(enter or ""), landlock=abi)


def sandbox_refused(why: str, remedy: str) -> WorkspaceError:
    return WorkspaceError(
        f"Code, tests and linters cannot be run here: {why}.", remedy=f"{remedy} {FILE_TOOLS}", data={"reason": why}
    )


def sandbox_remedy(why: str) -> str:
    """A remedy if bubblewrap itself fails, usually because the system forbids namespaces."""
    for path, bad, setting in _SWITCHES:
        try:
            is_bad = Path(path).read_text().strip() == bad
        except OSError:
            continue
        if is_bad:
            rule = " or give bwrap an AppArmor profile with `userns,`" if "apparmor" in path else ""
            return f"User namespaces are disabled: `sysctl -w {setting}`{rule}."
    if "ermission" in why or "not permitted" in why:
        return "In a container: allow user namespaces and mounts (for Docker `--security-opt seccomp=unconfined`)."
    return "`toolcrib workspace check` shows every probe."


def _version_of(program: Path) -> str:
    try:
        argv = with_default_signals([str(program), "--version"])
        done = subprocess.run(argv, env={}, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).decode(errors="replace").strip()[:200]
