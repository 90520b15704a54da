"""Changes a user's or a project's file, for `toolcrib add` and `toolcrib remove`.

In: a path and an entry in the form of a list item: `{"name": …, "command": …}`. Out: the file with the smallest
possible change, replaced atomically, or `ConfigError` and an unchanged file. `${VAR}` is written unexpanded. In YAML
only the lines of the entry change. The new text is parsed and compared before it is written, so an unusual layout leads
to an error and never to lost data.
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

from toolcrib.config.contribution import Contribution, ServerEntry, take_entry
from toolcrib.config.keys import normalized_key
from toolcrib.config.model import Layer, Severity
from toolcrib.config.parse import Unreadable
from toolcrib.config.paths import server_key
from toolcrib.config.problems import ProblemReport
from toolcrib.config.read import SIZE_LIMIT, FileFormat, parse_text, read_bytes
from toolcrib.config.trust import digest_of, has_no_links
from toolcrib.config.values import EntryContext
from toolcrib.config.yaml_edit import NAME_KEYS, whole_yaml, with_keys, with_server, without_server
from toolcrib.errors import ConfigError, UnknownServer


class IfExists(enum.Enum):
    REFUSE = enum.auto()
    REPLACE = enum.auto()


@dataclass(frozen=True, kw_only=True)
class ProjectEdit:
    """The conditions for changing a project's file."""

    root: Path
    """No component of the path below it may be a symbolic link, or a repository could redirect the change."""
    trusted: Collection[str]
    """Digests that the user trusts. A file with another digest is not changed, because the edit would make the rest of
    it trusted without a review."""


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    file: Path
    digest: str
    """Of the file after the change."""
    before: bytes | None
    """None if there was no file."""

    @property
    def changed(self) -> bool:
        return digest_of(self.file, self.before or b"") != self.digest

    def undo(self) -> None:
        """Restores the previous content, unless the file has changed since."""
        with _locked(self.file.parent):
            content = _content(self.file)
            if content is None or digest_of(self.file, content) != self.digest:
                return
            if self.before is None:
                self.file.unlink()
            else:
                _replace(self.file, self.before)


def add_server(
    path: Path, entry: Mapping[str, Any], *, if_exists: IfExists = IfExists.REFUSE, project: ProjectEdit | None = None
) -> ConfigEdit:
    """Raises `ConfigError` for an entry that `load` would refuse; its variables may still be unset."""
    name, body = _checked(entry, project.root if project else None)

    def change(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if held := _find(data, name):
            if if_exists is IfExists.REFUSE:
                raise ConfigError(
                    f"{path} already has a server {held!r}.",
                    remedy="Choose another name, or replace it with `toolcrib add --replace`.",
                )
            text, data = _without(path, text, data, held)
        return _with(path, text, data, name, body)

    return _change(path, change, project)


def remove_server(path: Path, name: str, *, project: ProjectEdit | None = None) -> ConfigEdit:
    def change(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        held = _find(data, name)
        if held != name:
            near = f"Did you mean {held!r}?" if held else "Run `toolcrib servers` to see the names."
            raise UnknownServer(f"{path} has no server {name!r}.", remedy=near)
        return _without(path, text, data, name)

    return _change(path, change, project)


class ServerSwitch(enum.Enum):
    ON = enum.auto()
    OFF = enum.auto()


def switch_server(
    path: Path,
    name: str,
    switch: ServerSwitch,
    *,
    tool: str = "",
    below: bool = False,
    project: ProjectEdit | None = None,
) -> ConfigEdit:
    """Switches a server on or off, or one of its tools. With `below`, a file with lower precedence has the server: then
    this one has at most an entry that switches it off, and gets or loses that one."""

    def change(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        wanted = copy.deepcopy(data)
        entry = next((entry for held, entry in _entries(wanted) if held == name), None)
        if entry is None:
            if not below:
                raise UnknownServer(f"{path} has no server {name!r}.", remedy="`toolcrib servers` shows the names.")
            switched = _switched({}, switch, tool)
            return _with(path, text, data, name, switched) if switched else (text, data)
        before = dict(entry)
        entry.clear()
        entry.update(_switched(before, switch, tool))
        if below and not any(_restricts(key, value) for key, value in entry.items()):
            return _without(path, text, data, name)
        changed = {key: entry.get(key) for key in {**before, **entry} if entry.get(key) != before.get(key)}
        return _written(path, text, wanted, lambda: with_keys(text, name, changed)), wanted

    return _change(path, change, project)


def _switched(entry: Mapping[str, Any], switch: ServerSwitch, tool: str) -> dict[str, Any]:
    """The entry with the server, or the tool, switched on or off."""
    result, on = dict(entry), switch is ServerSwitch.ON
    keys = {normalized_key(key): key for key in entry}
    if tool:
        key = keys.get("disabled_tools", "disabled_tools")
        listed = entry.get(key) or []
        if not isinstance(listed, list):
            raise ConfigError(f"{key} is not a list.", remedy="Correct it first.")
        names = [name for name in listed if name != tool or not on] + ([] if on or tool in listed else [tool])
        result |= {key: names}
        if not names:
            del result[key]
    else:
        result |= {key: on is (word == "enabled") for word, key in keys.items() if word in ("enabled", "disabled")}
        if not on and not {"enabled", "disabled"} & keys.keys():
            result["enabled"] = False
    return result


def _restricts(key: str, value: Any) -> bool:
    """Whether an entry with this key has an effect. One with only `enabled: true` has none."""
    word = normalized_key(key)
    return word not in NAME_KEYS and value is not {"enabled": True, "disabled": False}.get(word)


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for _key, section in _sections(data):
        named = section.items() if isinstance(section, Mapping) else ((_name_of(one), one) for one in section or ())
        yield from ((name, entry) for name, entry in named if isinstance(name, str) and isinstance(entry, dict))


def _checked(entry: Mapping[str, Any], project: Path | None) -> tuple[str, dict[str, Any]]:
    """The name and the rest, checked as by `load`, except that variables may be unset."""
    body: dict[str, Any] = {
        key: copy.deepcopy(value) for key, value in entry.items() if normalized_key(key) not in NAME_KEYS
    }
    name = next((value for key, value in entry.items() if normalized_key(key) in NAME_KEYS), None)
    report = ProblemReport("the new entry")
    context = EntryContext(layer=Layer.USER, environ={}, home=Path.home(), root=project)
    take_entry(ServerEntry(name=name, entry=body, path=()), Contribution(report=report), context)
    wrong = [p for p in report.problems if p.severity is Severity.ERROR and p not in report.unset]
    if wrong:
        raise ConfigError(" ".join(str(problem) for problem in wrong), remedy="Nothing was written.")
    return str(name), body


def _find(data: Mapping[str, Any], name: str) -> str | None:
    return next((held for held in _server_names(data) if server_key(held) == server_key(name)), None)


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for wanted in ("servers", "mcp_servers"):
        yield from ((key, section) for key, section in data.items() if normalized_key(key) == wanted)


def _server_names(data: Mapping[str, Any]) -> Iterator[str]:
    for _key, section in _sections(data):
        if isinstance(section, Mapping):
            yield from section
        elif isinstance(section, list):
            yield from (name for item in section if (name := _name_of(item)) is not None)


def _name_of(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        return None
    name = next((value for key, value in item.items() if normalized_key(key) in NAME_KEYS), None)
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
    return _written(path, text, wanted, lambda: with_server(text, name, body)), wanted


def _without(path: Path, text: str, data: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    wanted = copy.deepcopy(data)
    for _key, section in _sections(wanted):
        if isinstance(section, dict) and name in section:
            del section[name]
            break
        if isinstance(section, list) and any(_name_of(item) == name for item in section):
            section[:] = [item for item in section if _name_of(item) != name]
            break
    return _written(path, text, wanted, lambda: without_server(text, name)), wanted


def _written(path: Path, text: str, wanted: dict[str, Any], edit_yaml: Callable[[], str]) -> str:
    """A text that parses to `wanted`: the smallest change, or a rewritten text if there are no comments to lose."""
    if FileFormat.of(path.name) is FileFormat.JSON:
        return json.dumps(wanted, indent=_indent(text), ensure_ascii=False) + "\n"
    candidates = [edit_yaml()]
    if "#" not in text:
        candidates.append(whole_yaml(wanted))
    for candidate in candidates:
        with contextlib.suppress(Unreadable):
            if (parse_text(candidate.encode(), FileFormat.YAML).data or {}) == wanted:
                return candidate
    raise ConfigError(f"The layout of {path} can't be changed without losing its comments.", remedy="Edit it by hand.")


def _indent(text: str) -> int | str | None:
    if "\n" not in text.strip() and text.strip() not in ("", "{}"):
        return None
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else 2


def _change(
    path: Path, change: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]], project: ProjectEdit | None
) -> ConfigEdit:
    # A symbolic link, as made by dotfile managers, stays a link: only its target changes.
    target = Path(os.path.realpath(path))
    if project is not None and not has_no_links(Path(os.path.realpath(project.root)) / path.relative_to(project.root)):
        raise ConfigError(f"{path} is behind a symbolic link.", remedy="Replace the link with a file in the project.")
    form = FileFormat.of(path.name)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(target.parent):
            before = _content(target)
            if project is not None and before is not None and digest_of(target, before) not in project.trusted:
                raise ConfigError(
                    f"{path} has content that you have not trusted.",
                    remedy="Review it with `toolcrib trust`, then try again.",
                )
            text, data = _parsed(before, form)
            changed, wanted = change(text, data)
            if wanted == data:
                return ConfigEdit(file=target, digest=digest_of(target, before or b""), before=before)
            content = changed.encode()
            if len(content) > SIZE_LIMIT or parse_text(content, form).data != wanted:
                raise ConfigError(f"This entry can't be added to {path}.", remedy="Edit the file by hand.")
            _replace(target, content)
            return ConfigEdit(file=target, digest=digest_of(target, content), before=before)
    except Unreadable as error:
        line = f":{error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: found {error.found}, expected {error.expected}.") from None
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid Unicode text"
        raise ConfigError(f"Cannot write {path} ({reason}).") from None


def _content(target: Path) -> bytes | None:
    try:
        return read_bytes(target)
    except FileNotFoundError:
        return None


def _parsed(content: bytes | None, form: FileFormat) -> tuple[str, dict[str, Any]]:
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
    """Serializes concurrent changes. The folder itself is locked, so no lock file is left behind."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, content: bytes) -> None:
    """Replaces the file atomically and keeps its mode; a new file is readable by its owner only."""
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
