"""The environment of a run's program.

In: the user's environment, the run's folder, the names to withhold, the variables from `--env` and `--env-file`. Out:
`ProgramEnvironment`: the variables, and the values that no log may show. The program gets the user's whole environment,
so that login, model and settings are theirs, except Toolcrib's variables and those meant for Toolcrib's servers only.

Below `all`, a `git` that cannot start other programs comes first in PATH: coding agents call git outside any sandbox,
and a repository's configuration can name programs (fsmonitor, filters, hooks, textconv, included files, submodules).
No list of them would be complete, so a kernel rule keeps git from starting any (`workspace.sandbox.kernel_rules`).
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from toolcrib.coding_agents.program import SearchPath
from toolcrib.config.masking import printable
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools
from toolcrib.servers.environment import inherits
from toolcrib.workspace.sandbox.kernel_rules import MACHINES, no_children_program

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
# Checking a submodule for changes needs a separate process, without which `git status` would fail.
os.execv(git, [git, "-c", "diff.ignoreSubmodules=dirty", *sys.argv[4:]])
"""


def search_path_with_plain_git(folder: Path, path: str) -> str:
    """Writes the program below `folder`. Returns `path` unchanged if it has no git. Raises ConfigError."""
    git = shutil.which("git", path=path)
    if git is None:
        return path
    programs = folder / _FOLDER
    if os.pathsep in str(programs):
        raise ConfigError(
            f"{folder} has {os.pathsep!r} in its name, so it cannot be added to PATH.",
            remedy=f"Set TOOLCRIB_HOME to a folder without {os.pathsep!r}.",
        )
    programs.mkdir(mode=0o700, exist_ok=True)
    (programs / "git").write_text(_script(git), encoding="utf-8", errors="surrogateescape")
    (programs / "git").chmod(0o700)
    return f"{programs}{os.pathsep}{path}"


def _script(git: str) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        return f"#!/bin/sh\necho {shlex.quote(_REFUSAL)} >&2\nexit 128\n"
    command = (sys.executable, "-I", "-S", "-c", _CODE, git, no_children_program(machine).hex(), _REFUSAL)
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'


OURS = "TOOLCRIB_"
"""The prefix of Toolcrib's variables, including the marker for child processes."""
MAX_FILE_SIZE = 1024 * 1024
"""Bytes."""

_DIRECT = ("NO_PROXY", "no_proxy")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_IN_DOUBLE_QUOTES = re.compile(r'"((?:[^"\\]|\\.)*)"(.*)', re.DOTALL)
_IN_SINGLE_QUOTES = re.compile(r"'([^']*)'(.*)", re.DOTALL)
_COMMENT = re.compile(r"[ \t]#.*", re.DOTALL)
_BLANK = " \t\r"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`"}


@dataclass(frozen=True, kw_only=True)
class ProgramEnvironment:
    environ: Mapping[str, str]
    secrets: frozenset[str]
    """Values to mask in logs and output."""
    left_out: tuple[str, ...]
    """Names of the user's variables that the program does not get."""
    warnings: tuple[str, ...] = ()
    """For the user, one line each."""


def program_environment(
    environ: Mapping[str, str],
    *,
    workdir: Path,
    own_tools: OwnTools,
    keeps: tuple[str, ...],
    withheld: Iterable[str],
    named: Iterable[str] = (),
    file: Path | None = None,
) -> ProgramEnvironment:
    """`keeps`: prefixes of the program's variables; `withheld`: names that Toolcrib's configuration refers to.

    Raises UsageError.
    """
    wanted = {name: _named(name, environ) for name in named}
    added, warnings = ({}, []) if file is None else _read(file)
    secret = {name for name in withheld if not inherits(name, environ.get(name, ""))}

    def passes(name: str) -> bool:
        if name.startswith(OURS):
            return False
        return name not in secret or name.startswith(keeps)

    passed = {name: value for name, value in environ.items() if passes(name)}
    given = {**passed, **wanted, **added}
    given["PATH"], path_warnings = _path(given, workdir, own_tools)
    warnings += path_warnings
    hidden = [*wanted.values(), *added.values(), *(passed[name] for name in secret & passed.keys())]
    return ProgramEnvironment(
        environ=given,
        secrets=frozenset(hidden),
        left_out=tuple(sorted(environ.keys() - given.keys())),
        warnings=tuple(warnings),
    )


def without_proxy(environ: Mapping[str, str], url: str) -> dict[str, str]:
    """The environment with this address excluded from proxies; unchanged if the URL has no host.

    All three programs use the user's proxy even for addresses on this machine. They may also read a proxy from their
    own files, so the exclusion is added even if no variable names a proxy.
    """
    host = urlsplit(url).hostname
    if not host:
        return dict(environ)
    given = {name: environ[name] for name in _DIRECT if environ.get(name)}
    # Programs differ in which of the two they read; and `*` means everything only on its own.
    current = {name: given.get(name) or next(iter(given.values()), "") for name in _DIRECT}
    more = {name: was if was.strip() == "*" else ",".join(filter(None, (was, host))) for name, was in current.items()}
    return {**environ, **more}


def _path(environ: Mapping[str, str], workdir: Path, own_tools: OwnTools) -> tuple[str, list[str]]:
    """PATH without the project's folders, where a hostile project may have its own `node` or `git`; and warnings for
    the user. At level `all` the program may run those too."""
    search = SearchPath.of(environ, workdir)
    warnings = []
    if len(search.folders) < len(environ.get("PATH", os.defpath).split(os.pathsep)):
        warnings.append("Relative folders in PATH are not passed on: they would refer to the project.")
    if own_tools is OwnTools.ALL:
        return os.pathsep.join(map(str, search.folders)) or os.defpath, warnings
    if search.of_the_project:
        folders = ", ".join(printable(str(folder)) for folder in search.of_the_project)
        warnings.append(f"Removed from PATH, because the project could have its own node or git there: {folders}.")
    return search.kept, warnings


def _named(name: str, environ: Mapping[str, str]) -> str:
    alone, has_value, _ = name.partition("=")
    if has_value:
        raise UsageError(
            f"--env takes only a name{f' ({alone})' if _NAME.fullmatch(alone) else ''}, because every user of this "
            "machine can read a value on the command line.",
            remedy="Set the variable first, or write it into a file and pass that with --env-file.",
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{printable(name)!r} is not a valid variable name.", remedy="Use only letters, digits and underscores."
        )
    if name.startswith(OURS):
        raise UsageError(
            f"{name} belongs to Toolcrib and is not passed on.", remedy="Omit it: the run gets what it needs."
        )
    if name not in environ:
        raise UsageError(f"{name} is not set.", remedy="Set it first, or omit --env.")
    return environ[name]


def _read(file: Path) -> tuple[dict[str, str], list[str]]:
    try:
        with file.open("rb") as opened:
            state = os.fstat(opened.fileno())
            content = opened.read(MAX_FILE_SIZE + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(
            f"The environment file {_shown(file)} cannot be read: {why or error}.",
            remedy="Pass an existing file with --env-file.",
        ) from None
    if len(content) > MAX_FILE_SIZE:
        raise UsageError(
            f"The environment file {_shown(file)} is larger than {MAX_FILE_SIZE} bytes.",
            remedy="Check that it is the right file. It should contain NAME=VALUE lines.",
        )
    return _parsed(content, file), list(_open_to_others(file, state))


def _open_to_others(file: Path, state: os.stat_result) -> Iterator[str]:
    if stat.S_ISREG(state.st_mode) and state.st_mode & _OTHERS:
        can = "change" if state.st_mode & stat.S_IWOTH else "read"
        yield f"Every user of this machine can {can} {_shown(file)}. Run `chmod 600` on it."


def _shown(file: Path) -> str:
    return printable(str(file))


def _parsed(content: bytes, file: Path) -> dict[str, str]:
    """Parses NAME=VALUE lines. No error quotes a line, since its content is secret."""
    values: dict[str, str] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            entry = _entry(line)
        except ValueError as error:
            # `from None`: a decoding error holds the bytes.
            raise UsageError(
                f"{_shown(file)}, line {number}: {error}.", remedy='Write NAME=VALUE or NAME="VALUE".'
            ) from None
        if entry is not None:
            values[entry[0]] = entry[1]
    return values


def _entry(line: bytes) -> tuple[str, str] | None:
    """None for a blank line or a comment. Raises ValueError with the reason."""
    try:
        text = line.decode().strip(_BLANK)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if not text or text.startswith("#"):
        return None
    name, equals, value = text.partition("=")
    name = re.sub(r"^export[ \t]+", "", name).strip(_BLANK)
    if not equals:
        raise ValueError("it has no =")
    if not _NAME.fullmatch(name):
        raise ValueError("the text before the = is not a valid variable name")
    if name.startswith(OURS):
        raise ValueError("Toolcrib's variables are not passed on")
    if "\0" in value:
        raise ValueError("a variable cannot contain a null character")
    return name, _value(value)


def _value(written: str) -> str:
    text = written.lstrip(_BLANK)
    if not text.startswith(("'", '"')):
        return _COMMENT.sub("", written).strip(_BLANK)
    quoted = (_IN_DOUBLE_QUOTES if text[0] == '"' else _IN_SINGLE_QUOTES).fullmatch(text)
    if quoted is None:
        raise ValueError("a quote is not closed")
    inside, after = quoted.groups()
    if _COMMENT.sub("", after).strip(_BLANK):
        raise ValueError("there is text after the closing quote")
    return inside if text[0] == "'" else _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[0]), inside)
