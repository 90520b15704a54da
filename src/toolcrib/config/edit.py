"""Changing a user's file: `toolcrib add` and `toolcrib remove`.

In: a path and an entry, in the shape of a list's item: `{"name": …, "command": …}`. Out: the file, changed as
little as possible and all at once, or `ConfigError` and the file as it was. `${VAR}` is written as it stands.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.config import yaml_edit
from toolcrib.config.entries import TimeUnit
from toolcrib.config.json_text import Unreadable
from toolcrib.config.keys import plain
from toolcrib.config.model import Layer, Severity
from toolcrib.config.problems import Report
from toolcrib.config.read import SIZE_LIMIT, Format, parse_text, read_bytes
from toolcrib.config.shapes import Contribution, Entry, take_entry
from toolcrib.config.slug import same_name
from toolcrib.config.trust import digest_of, is_real
from toolcrib.config.values import Surroundings
from toolcrib.errors import ConfigError, UnknownServer

_NAME_KEYS = ("name", "server_name")


class IfExists(enum.Enum):
    REFUSE = enum.auto()
    REPLACE = enum.auto()


@dataclass(frozen=True, kw_only=True)
class InProject:
    """The terms for changing a project's file."""

    root: Path
    """A repository must not lead the change elsewhere by a link."""
    trusted: Collection[str]
    """Digests that the person trusts: a file that says anything else is not changed, for the rest of it would come
    to be trusted unseen."""


@dataclass(frozen=True, kw_only=True)
class Edited:
    file: Path
    digest: str
    """Of the file as it is now."""
    before: bytes | None
    """None: there was no file."""

    def undo(self) -> None:
        """Gives the file its old bytes back, unless somebody changed it since."""
        with _locked(self.file.parent):
            content = _content(self.file)
            if content is None or digest_of(self.file, content) != self.digest:
                return
            if self.before is None:
                self.file.unlink()
            else:
                _replace(self.file, self.before)


def add_server(
    path: Path, entry: Mapping[str, Any], *, if_exists: IfExists = IfExists.REFUSE, project: InProject | None = None
) -> Edited:
    """Raises `ConfigError` for an entry that `load` would refuse; variables need not be set yet."""
    name, body = _checked(entry, project.root if project else None)

    def change(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if held := _find(data, name):
            if if_exists is IfExists.REFUSE:
                raise ConfigError(
                    f"{path} has a server {held!r} already.",
                    remedy="Choose another name, or replace it with `toolcrib add --replace`.",
                )
            text, data = _without(path, text, data, held)
        return _with(path, text, data, name, body)

    return _change(path, change, project)


def remove_server(path: Path, name: str, *, project: InProject | None = None) -> Edited:
    def change(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        held = _find(data, name)
        if held != name:
            near = f"Did you mean {held!r}?" if held else "`toolcrib servers` shows the names."
            raise UnknownServer(f"{path} has no server {name!r}.", remedy=near)
        return _without(path, text, data, name)

    return _change(path, change, project)


def _checked(entry: Mapping[str, Any], project: Path | None) -> tuple[str, dict[str, Any]]:
    """The name and the rest, after the same check that `load` makes; only unset variables are let through."""
    body: dict[str, Any] = {key: copy.deepcopy(value) for key, value in entry.items() if plain(key) not in _NAME_KEYS}
    name = next((value for key, value in entry.items() if plain(key) in _NAME_KEYS), None)
    report = Report("the new entry")
    around = Surroundings(layer=Layer.USER, environ={}, home=Path.home(), root=project)
    found = Entry(name=name, entry=body, path=(), unit=TimeUnit.SECONDS)
    take_entry(found, Contribution(report=report), around)
    wrong = [p for p in report.problems if p.severity is Severity.ERROR and p not in report.unset]
    if wrong:
        raise ConfigError(" ".join(str(problem) for problem in wrong), remedy="Nothing was written.")
    return str(name), body


def _find(data: Mapping[str, Any], name: str) -> str | None:
    return next((held for held in _names(data) if same_name(held) == same_name(name)), None)


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for wanted in ("servers", "mcp_servers"):
        yield from ((key, section) for key, section in data.items() if plain(key) == wanted)


def _names(data: Mapping[str, Any]) -> Iterator[str]:
    for _key, section in _sections(data):
        if isinstance(section, Mapping):
            yield from section
        elif isinstance(section, list):
            yield from (name for item in section if (name := _name_of(item)) is not None)


def _name_of(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        return None
    name = next((value for key, value in item.items() if plain(key) in _NAME_KEYS), None)
    return name if isinstance(name, str) else None


def _with(path: Path, text: str, data: dict[str, Any], name: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    wanted = copy.deepcopy(data)
    key, section = next(_sections(wanted), ("servers", None))
    if section is None:
        wanted[key] = {name: body}
    elif isinstance(section, dict):
        section[name] = body
    elif isinstance(section, list):
        section.append({"name": name, **body})
    else:
        raise ConfigError(f"{path}: {key} is neither a mapping nor a list.", remedy="Correct it first.")
    return _written(path, text, wanted, lambda: yaml_edit.with_server(text, name, body)), wanted


def _without(path: Path, text: str, data: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    wanted = copy.deepcopy(data)
    for _key, section in _sections(wanted):
        if isinstance(section, dict) and name in section:
            del section[name]
            break
        if isinstance(section, list) and any(_name_of(item) == name for item in section):
            section[:] = [item for item in section if _name_of(item) != name]
            break
    return _written(path, text, wanted, lambda: yaml_edit.without_server(text, name)), wanted


def _written(path: Path, text: str, wanted: dict[str, Any], edit_yaml: Callable[[], str]) -> str:
    """The new text that says `wanted`: the smallest change that does, or a new text where no comment is lost."""
    if Format.of(path.name) is Format.JSON:
        return json.dumps(wanted, indent=_indent(text), ensure_ascii=False) + "\n"
    candidates = [edit_yaml()]
    if "#" not in text:
        candidates.append(yaml_edit.whole(wanted))
    for candidate in candidates:
        with contextlib.suppress(Unreadable):
            if (parse_text(candidate.encode(), Format.YAML).data or {}) == wanted:
                return candidate
    raise ConfigError(
        f"{path} is laid out in a way that cannot be changed without losing its comments.", remedy="Change it by hand."
    )


def _indent(text: str) -> int | str | None:
    if "\n" not in text.strip() and text.strip() not in ("", "{}"):
        return None
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else 2


def _change(
    path: Path, change: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]], project: InProject | None
) -> Edited:
    # A person's link, as dotfile tools make them, stays a link: its target is what changes.
    target = Path(os.path.realpath(path))
    if project is not None and not is_real(Path(os.path.realpath(project.root)) / path.relative_to(project.root)):
        raise ConfigError(f"{path} is reached by a link.", remedy="Make it a file of the project itself.")
    form = Format.of(path.name)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(target.parent):
            before = _content(target)
            if project is not None and before is not None and digest_of(target, before) not in project.trusted:
                raise ConfigError(
                    f"{path} holds what you have not trusted.",
                    remedy="Look at it with `toolcrib trust`, then change it.",
                )
            text, data = _parsed(before, form)
            changed, wanted = change(text, data)
            content = changed.encode()
            if len(content) > SIZE_LIMIT or parse_text(content, form).data != wanted:
                raise ConfigError(f"{path} cannot hold this entry.", remedy="Change it by hand.")
            _replace(target, content)
            return Edited(file=target, digest=digest_of(target, content), before=before)
    except Unreadable as error:
        line = f":{error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: found {error.found}, expected {error.expected}.") from None
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "text that no file can hold"
        raise ConfigError(f"{path} cannot be written ({reason}).") from None


def _content(target: Path) -> bytes | None:
    try:
        return read_bytes(target)
    except FileNotFoundError:
        return None


def _parsed(content: bytes | None, form: Format) -> tuple[str, dict[str, Any]]:
    if content is None:
        return "", {}
    parsed = parse_text(content, form)
    data = {} if parsed.data is None else parsed.data
    if not isinstance(data, dict):
        raise Unreadable(found="no mapping", expected="a mapping with `servers:`", line=1)
    if parsed.duplicates:
        path, line = parsed.duplicates[0]
        raise Unreadable(found=f"{path[-1]!r} a second time", expected="each key once", line=line)
    return content.decode("utf-8-sig"), data


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two changes at once wait for each other; the folder itself is the lock, so nothing is left behind."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, content: bytes) -> None:
    """All or nothing; the mode stays as it was, a new file is for its owner alone."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
