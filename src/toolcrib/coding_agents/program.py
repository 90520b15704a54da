"""Finds the program of a client, and its version.

In: a client, the person's environment, the folder of the run. Out: `Program`, or an error with the line that installs
it. Nothing in the project is taken: it may be anybody's work. The version is cached, since some programs take
longer to print it than a run takes to start.
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
    """The absolute ones: another would be looked for in the project."""
    not_beneath: tuple[Path, ...]
    """The run's own folders."""

    @classmethod
    def of(cls, environ: Mapping[str, str], workdir: Path) -> SearchPath:
        given = environ.get("PATH", os.defpath).split(os.pathsep)
        home = home_of(environ).resolve()
        own = {workdir.absolute(), workdir.resolve(), project_of(workdir)}
        return cls(
            folders=tuple(Path(folder) for folder in given if Path(folder).is_absolute()),
            # Whoever works in the home folder itself, or above it, has their programs there too.
            not_beneath=tuple(folder for folder in own if not home.is_relative_to(folder)),
        )

    @property
    def of_the_project(self) -> tuple[Path, ...]:
        return tuple(folder for folder in self.folders if self._is_of_the_project(folder))

    @property
    def kept(self) -> str:
        """PATH without the project's folders. An empty one would mean the working folder."""
        outside = [str(folder) for folder in self.folders if not self._is_of_the_project(folder)]
        return os.pathsep.join(outside) or os.defpath

    def why_not(self, file: Path) -> str:
        """Why a program is passed over; empty if it is not. Raises OSError."""
        real = file.resolve()
        # The link itself counts as well as what it leads to.
        link = file.parent.resolve() / file.name
        if any(place.is_relative_to(own) for own in self.not_beneath for place in (link, real)):
            return "it lies in the project that the run works in"
        if real.stat().st_mode & stat.S_IWOTH:
            return "every user of this machine can change it"
        return ""

    def _is_of_the_project(self, folder: Path) -> bool:
        # Where links lead round in a circle, `Path.resolve` would raise.
        places = (folder, Path(os.path.realpath(folder)))
        return any(place.is_relative_to(own) for own in self.not_beneath for place in places)


_LIMIT = 30.0
"""Seconds that a program may take to say its version."""
_LEAVE = 0.5
_NEUTRAL = Path("/")
"""Where it is asked: a folder of nobody's project, and not one of ours to remove, which a sudden end would leave."""
_MOST_WORDS = 64 * 1024
"""Bytes of its answer that are looked at."""
_MOST_REMEMBERED = 256 * 1024
_FRESH = 24 * 3600.0
"""Seconds that a version is trusted: behind the same small starter of a version manager another may come to stand."""
_VERSION = re.compile(r"(?<![\d.])\d{1,9}\.\d{1,9}\.\d{1,9}(?!\d)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Program:
    path: Path
    version: str


def find_program(client: ClientSpec, environ: Mapping[str, str], workdir: Path) -> Program:
    """The program on PATH of the person's own environment, whole. Blocks while a program is asked for its version.

    Raises NotFound if it is missing, too old, or does not say what it is.
    """
    if client.headless is None:
        raise UsageError(f"How {client.title} is run is not known.", remedy="Choose another client.")
    search = SearchPath.of(environ, workdir)
    path = _on_path(client, client.headless, search)
    memory = Paths.of_user(environ).programs
    version = _cached_version(memory, path)
    # What was too old may have been replaced behind the same file.
    if not version or _is_too_old(version, client.headless):
        with _version_lock(memory):
            # Of many runs that begin at once, the first has asked meanwhile.
            asked = _cached_version(memory, path)
            if not asked or asked == version:
                asked = _ask_version(client.headless, path, {**environ, "PATH": search.kept})
                _cache_version(memory, path, asked)
        version = asked
    if _is_too_old(version, client.headless):
        raise NotFound(
            f"{path} is version {version}; {client.title} is needed in version {_dotted(client.headless.oldest)} or "
            "newer.",
            remedy=f"Install it anew: {client.headless.install}",
            data={"found": version, "wanted": _dotted(client.headless.oldest)},
        )
    return Program(path=path, version=version)


@contextlib.contextmanager
def _version_lock(memory: Path) -> Iterator[None]:
    """One process at a time; where nothing can be remembered, everybody asks for themselves."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ToolcribError):
            private_folder(memory.parent)
            turn = os.open(memory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, turn)
            fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _on_path(client: ClientSpec, headless: HeadlessSpec, search: SearchPath) -> Path:
    passed_over: list[str] = []
    for file in (folder / headless.program for folder in search.folders):
        with contextlib.suppress(OSError):
            if not (file.is_file() and os.access(file, os.X_OK)):
                continue
            why = search.why_not(file)
            if not why:
                return file
            passed_over.append(f"{file} was passed over: {why}.")
    raise NotFound(
        " ".join([f"{client.title} is not installed: there is no '{headless.program}' on PATH.", *passed_over]),
        remedy=f"Install it: {headless.install}",
        data={"looked_in": [str(folder) for folder in search.folders]},
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _is_too_old(version: str, headless: HeadlessSpec) -> bool:
    return tuple(map(int, version.split("."))) < headless.oldest


def _ask_version(headless: HeadlessSpec, path: Path, environ: Mapping[str, str]) -> str:
    said = _version_output(path, {name: value for name, value in environ.items() if _is_harmless(name, value)})
    found = _VERSION.search(said)
    if found is None:
        shown = mask_text(" ".join(said.split())[:200])
        raise NotFound(
            f"{path} does not say its version: `--version` gave {f'“{shown}”' if shown else 'nothing'} within "
            f"{_LIMIT:g} s.",
            remedy=f"Look at it, or install it anew: {headless.install}",
        )
    return found[0]


def _is_harmless(name: str, value: str) -> bool:
    """A version needs no secret to be said."""
    if name in ("PATH", "HOME"):
        return True
    return not (name.startswith("TOOLCRIB_") or names_a_secret(name) or mask_text(value) != value)


def _version_output(path: Path, environ: Mapping[str, str]) -> str:
    """What `--version` prints, as far as it comes in time."""
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
                # Whoever has closed its output is about to end; the rest of its group is ended in any case.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LEAVE)
                reaper.end(process.pid, marker)
    except (OSError, ValueError) as error:
        raise NotFound(f"{path} cannot be started: {error}.", remedy="Look at it, or install it anew.") from None
    finally:
        reaper.close()


def _read(process: subprocess.Popen[bytes]) -> str:
    pipe = process.stdout
    if pipe is None:
        return ""
    deadline = time.monotonic() + _LIMIT
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(said) < _MOST_WORDS and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = pipe.read(_MOST_WORDS - len(said))
            if not chunk:
                break
            said += chunk
    return said.decode(errors="replace")


def _file_mark(path: Path) -> list[Any]:
    """What tells a program from another one at the same path. Raises OSError."""
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
    """Without it the next run asks again, so nothing is said where it cannot be kept."""
    with contextlib.suppress(OSError, ToolcribError):
        private_folder(memory.parent)
        entries = dict(_still_there(_entries(memory)))
        entries[str(path)] = {"program": _file_mark(path), "version": version, "at": time.time()}
        descriptor, new = tempfile.mkstemp(dir=memory.parent, prefix=f".{memory.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                json.dump(entries, file)
            Path(new).replace(memory)
        except BaseException:
            Path(new).unlink()
            raise


def _still_there(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, entry in entries.items():
        with contextlib.suppress(OSError, ValueError):
            if Path(path).exists():
                yield path, entry


def _entries(memory: Path) -> dict[str, Any]:
    """Whatever the file holds: one that makes no sense is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(memory, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            entries = json.loads(os.read(file.fileno(), _MOST_REMEMBERED))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
