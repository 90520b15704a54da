"""What of the machine a command can see: the system, the interpreter, toolchains. All of it read-only.

In: the settings and the server's environment. Out: folders to bind, and the variables that a command gets. Nothing
here is ever named by a file of the workspace: what a repository says would choose what it gets to read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolcrib.workspace.sandbox.programs import find_program
from toolcrib.workspace.settings.model import GitMode, Settings

HOME = "/tmp/home"  # noqa: S108 - the sandbox's own
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside /usr: links into it on most systems, folders on some."""
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted", "crypto-policies"),
    *("java", "perl", "fonts", "magic", "terminfo", "static"),
)
"""Of /etc, what programs need to start. No secrets, and nothing that tells who uses this machine."""
ETC_OF_NETWORK = ("resolv.conf", "hosts", "gai.conf")
STORES = (
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
"""Below the home: toolchains that their managers keep there, which hold programs and nothing else."""
EVERYWHERE = ("/nix/store", "/gnu/store")
USUAL_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def system_links() -> list[tuple[str, str]]:
    """Top folders that are links, as `/bin` to `usr/bin`: what they say, and where they are."""
    return [(str(Path(path).readlink()), path) for path in SYSTEM if Path(path).is_symlink()]


def system_folders() -> list[Path]:
    return [Path("/usr"), *(Path(path) for path in SYSTEM if Path(path).is_dir() and not Path(path).is_symlink())]


def etc(settings: Settings) -> list[Path]:
    names = (*ETC, *ETC_OF_NETWORK) if settings.network else ETC
    return [path for name in names if (path := Path("/etc") / name).exists()]


def toolchains(settings: Settings, environ: Mapping[str, str], root: Path) -> list[Path]:
    """The interpreter that runs us, ripgrep, known stores of toolchains, what the settings add; none inside another."""
    home = environ.get("HOME")
    ripgrep = find_program("rg", environ, root)
    wanted = [
        *([ripgrep] if ripgrep else []),
        Path(sys.base_prefix),
        Path(sys.prefix),
        interpreter().parent,
        *(Path(home) / store for store in STORES if home),
        *(Path(store) for store in EVERYWHERE),
        *settings.readable,
    ]
    there: list[Path] = []
    for path in sorted({place.resolve() for place in wanted if place.exists()}, key=lambda place: len(place.parts)):
        if path != Path("/") and not any(path.is_relative_to(other) for other in [*system_folders(), *there]):
            there.append(path)
    return there


def interpreter() -> Path:
    """The Python that runs us, not a link in some environment to it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def files(settings: Settings, uid: int, gid: int) -> dict[str, bytes]:
    """Files of /etc that are made anew: they name one user and, without network, one host."""
    made = {
        "/etc/passwd": f"agent:x:{uid}:{gid}::{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".encode(),
        "/etc/group": f"agent:x:{gid}:\nnogroup:x:65534:\n".encode(),
        "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
    }
    return made if settings.network else made | {"/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n"}


def environment(settings: Settings, environ: Mapping[str, str], root: Path, visible: Sequence[Path]) -> dict[str, str]:
    """Made anew: nothing of the server's own variables but the search path, cut to what is there, and what is named."""
    seen = [*visible, *system_folders(), *(Path(path) for path in SYSTEM), root]
    path = [
        entry
        for entry in environ.get("PATH", "").split(":")
        if entry.startswith("/") and any(Path(os.path.normpath(entry)).is_relative_to(place) for place in seen)
    ]
    made = {
        "PATH": ":".join(dict.fromkeys([*path, *USUAL_PATH, str(interpreter().parent)])),
        "HOME": HOME,
        "TMPDIR": "/tmp",  # noqa: S108
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **{f"GIT_{who}_NAME": "Toolcrib agent" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "agent@localhost" for who in ("AUTHOR", "COMMITTER")},
        "GIT_CONFIG_NOSYSTEM": "1",
        # Packing rewrites what is read-only here.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "gc.auto",
        "GIT_CONFIG_VALUE_0": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if settings.git is GitMode.READ_ONLY:
        made["GIT_OPTIONAL_LOCKS"] = "0"
    return made | {name: environ[name] for name in settings.environment if name in environ}
