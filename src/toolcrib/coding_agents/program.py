"""Finds the program of a client, and its version.

In: a client, the user's environment, the run's folder. Out: `Program`, or an error with the command that installs it.
Programs inside the project are ignored, because the project may be untrusted. The version is cached, since some
programs take longer to print it than a run takes to start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import selectors
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import ClientSpec, HeadlessSpec
from toolcrib.config.masking import mask_text, names_a_secret
from toolcrib.config.paths import Paths, home_of, private_folder, project_of
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.servers.environment import MARKER
from toolcrib.servers.reaper import Reaper, guarded


@dataclass(frozen=True, kw_only=True)
class SearchPath:
    folders: tuple[Path, ...]
    """Absolute ones only: a relative one would be searched for in the project."""
    not_beneath: tuple[Path, ...]
    """The folders of the run and its project."""

    @classmethod
    def of(cls, environ: Mapping[str, str], workdir: Path) -> SearchPath:
        given = environ.get("PATH", os.defpath).split(os.pathsep)
        home = home_of(environ).resolve()
        own = {workdir.absolute(), workdir.resolve(), project_of(workdir)}
        return cls(
            folders=tuple(Path(folder) for folder in given if Path(folder).is_absolute()),
            # A user who works in the home folder, or above it, has their programs there too.
            not_beneath=tuple(folder for folder in own if not home.is_relative_to(folder)),
        )

    @property
    def of_the_project(self) -> tuple[Path, ...]:
        return tuple(folder for folder in self.folders if self._is_of_the_project(folder))

    @property
    def kept(self) -> str:
        """PATH without the project's folders; never empty, which would mean the working folder."""
        outside = [str(folder) for folder in self.folders if not self._is_of_the_project(folder)]
        return os.pathsep.join(outside) or os.defpath

    def why_not(self, file: Path) -> str:
        """Why a program is skipped; empty if it is not. Raises OSError."""
        real = file.resolve()
        # Both the link and its target count.
        link = file.parent.resolve() / file.name
        if any(place.is_relative_to(own) for own in self.not_beneath for place in (link, real)):
            return "it is inside the run's project"
        if real.stat().st_mode & stat.S_IWOTH:
            return "every user of this machine can change it"
        return ""

    def _is_of_the_project(self, folder: Path) -> bool:
        # `Path.resolve` would raise on circular links.
        places = (folder, Path(os.path.realpath(folder)))
        return any(place.is_relative_to(own) for own in self.not_beneath for place in places)


_VERSION_TIMEOUT = 30.0
"""Seconds that a program may take to print its version."""
_EXIT_TIMEOUT = 0.5
_NEUTRAL = Path("/")
"""The working folder for `--version`: in no project, and not a temporary folder that a crash would leave behind."""
_MAX_OUTPUT = 64 * 1024
"""Bytes of the output that are read."""
_MAX_CACHE_SIZE = 256 * 1024
_FRESH = 24 * 3600.0
"""Seconds that a cached version stays valid: a version manager may switch versions behind the same launcher file."""
_VERSION = re.compile(r"(?<![\d.])\d{1,9}\.\d{1,9}\.\d{1,9}(?!\d)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Program:
    path: Path
    version: str


def find_program(client: ClientSpec, environ: Mapping[str, str], workdir: Path) -> Program:
    """The program on PATH of the user's complete environment. Blocks while a program prints its version.

    Raises NotFound if it is missing, too old, or does not print a version.
    """
    if client.headless is None:
        raise UsageError(f"Toolcrib does not know how to run {client.title}.", remedy="Choose another client.")
    search = SearchPath.of(environ, workdir)
    path = _on_path(client, client.headless, search)
    memory = Paths.of_user(environ).programs
    version = _cached_version(memory, path)
    # A version that was too old may have been replaced behind the same file.
    if not version or _is_too_old(version, client.headless):
        with _version_lock(memory):
            # If many runs start at once, the first may have updated the cache meanwhile.
            current = _cached_version(memory, path)
            if not current or current == version:
                current = _ask_version(client.headless, path, {**environ, "PATH": search.kept})
                _cache_version(memory, path, current)
        version = current
    if _is_too_old(version, client.headless):
        raise NotFound(
            f"{path} is version {version}; Toolcrib requires {client.title} "
            f"{_dotted(client.headless.oldest)} or later.",
            remedy=f"Update it: {client.headless.install}",
            data={"found": version, "wanted": _dotted(client.headless.oldest)},
        )
    return Program(path=path, version=version)


@contextlib.contextmanager
def _version_lock(memory: Path) -> Iterator[None]:
    """One process at a time. If the cache cannot be written, each process runs `--version`."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ToolcribError):
            private_folder(memory.parent)
            turn = os.open(memory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, turn)
            fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _on_path(client: ClientSpec, headless: HeadlessSpec, search: SearchPath) -> Path:
    skipped: list[str] = []
    for file in (folder / headless.program for folder in search.folders):
        with contextlib.suppress(OSError):
            if not (file.is_file() and os.access(file, os.X_OK)):
                continue
            why = search.why_not(file)
            if not why:
                return file
            skipped.append(f"{file} was skipped: {why}.")
    raise NotFound(
        " ".join([f"{client.title} is not installed: '{headless.program}' is not on PATH.", *skipped]),
        remedy=f"Install it: {headless.install}",
        data={"looked_in": [str(folder) for folder in search.folders]},
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _is_too_old(version: str, headless: HeadlessSpec) -> bool:
    return tuple(map(int, version.split("."))) < headless.oldest


def _ask_version(headless: HeadlessSpec, path: Path, environ: Mapping[str, str]) -> str:
    output = _version_output(path, {name: value for name, value in environ.items() if _is_harmless(name, value)})
    found = _VERSION.search(output)
    if found is None:
        shown = mask_text(" ".join(output.split())[:200])
        raise NotFound(
            f"{path} does not print its version: `--version` printed {f'“{shown}”' if shown else 'nothing'} within "
            f"{_VERSION_TIMEOUT:g} s.",
            remedy=f"Check it, or reinstall it: {headless.install}",
        )
    return found[0]


def _is_harmless(name: str, value: str) -> bool:
    """`--version` needs no secrets."""
    if name in ("PATH", "HOME"):
        return True
    return not (name.startswith("TOOLCRIB_") or names_a_secret(name) or mask_text(value) != value)


def _version_output(path: Path, environ: Mapping[str, str]) -> str:
    """The output of `--version` until the time limit."""
    reaper = Reaper()
    marker = reaper.new_marker()
    try:
        reaper.start()
        process = subprocess.Popen(
            guarded([str(path), "--version"]),
            env={**environ, MARKER: marker},
            cwd=_NEUTRAL,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        with process:
            reaper.watch(process.pid)
            try:
                return _read(process)
            finally:
                # A program that has closed its output is about to exit. The rest of its process group is ended anyway.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_TIMEOUT)
                reaper.end(process.pid, marker)
    except (OSError, ValueError) as error:
        raise NotFound(f"{path} cannot be started: {error}.", remedy="Check it, or reinstall it.") from None
    finally:
        reaper.close()


def _read(process: subprocess.Popen[bytes]) -> str:
    pipe = process.stdout
    if pipe is None:
        return ""
    deadline = time.monotonic() + _VERSION_TIMEOUT
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(output) < _MAX_OUTPUT and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = pipe.read(_MAX_OUTPUT - len(output))
            if not chunk:
                break
            output += chunk
    return output.decode(errors="replace")


def _file_mark(path: Path) -> list[Any]:
    """Distinguishes a program from another at the same path. Raises OSError."""
    real = path.resolve()
    state = real.stat()
    return [str(real), state.st_size, state.st_mtime_ns]


def _cached_version(memory: Path, path: Path) -> str:
    with contextlib.suppress(OSError):
        match _entries(memory).get(str(path)):
            case {"program": mark, "version": str(version), "at": int() | float() as at}:
                fresh = 0 <= time.time() - at < _FRESH
                return version if fresh and mark == _file_mark(path) and _VERSION.fullmatch(version) else ""
    return ""


def _cache_version(memory: Path, path: Path, version: str) -> None:
    """Errors are ignored: without the cache, the next run asks again."""
    with contextlib.suppress(OSError, ToolcribError):
        private_folder(memory.parent)
        entries = dict(_existing(_entries(memory)))
        entries[str(path)] = {"program": _file_mark(path), "version": version, "at": time.time()}
        descriptor, new = tempfile.mkstemp(dir=memory.parent, prefix=f".{memory.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                json.dump(entries, file)
            Path(new).replace(memory)
        except BaseException:
            Path(new).unlink()
            raise


def _existing(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, entry in entries.items():
        with contextlib.suppress(OSError, ValueError):
            if Path(path).exists():
                yield path, entry


def _entries(memory: Path) -> dict[str, Any]:
    """The cached entries; empty if the file is invalid."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(memory, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            entries = json.loads(os.read(file.fileno(), _MAX_CACHE_SIZE))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
