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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.config.contribution import Contribution, ServerEntry, take_entry
from toolcrib.config.keys import normalized_key
from toolcrib.config.model import Layer, Severity
from toolcrib.config.parse import NodeKind, Unreadable, YamlNode, parse_nodes
from toolcrib.config.paths import server_key
from toolcrib.config.problems import ProblemReport
from toolcrib.config.read import SIZE_LIMIT, FileFormat, parse_text, read_bytes
from toolcrib.config.trust import digest_of, has_no_links
from toolcrib.config.values import EntryContext
from toolcrib.errors import ConfigError, UnknownServer

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_PLAIN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_STEP = 2


def with_server(text: str, name: str, entry: Mapping[str, Any]) -> str:
    section = _yaml_section(text)
    if section is None:
        return _inserted(text, len(text.splitlines()), [("servers:", 0), *_yaml_lines(name, entry, _STEP)])
    key, node = section
    if node.kind is NodeKind.SCALAR or (node.flow and not node.children):
        # An empty section: nothing after the colon, or `{}`.
        indent = key.start.column + _STEP
        head, tail = text[: key.end.offset].rstrip(), text[node.end.offset :]
        colon = "" if head.endswith(":") else ":"
        body = "".join(f"\n{' ' * depth}{line}" for line, depth in _yaml_lines(name, entry, indent))
        first, newline, rest = tail.removeprefix(":").partition("\n")
        return f"{head}{colon}{first}{body}{newline or chr(10)}{rest}"
    listed = {"name": name, **entry}
    if node.flow:
        addition = flow_yaml(listed) if node.kind is NodeKind.LIST else f"{flow_yaml(name)}: {flow_yaml(entry)}"
        last = node.children[-1].end.offset
        return f"{text[:last]}, {addition}{text[last:]}"
    column = node.start.column
    lines = [(f"- {flow_yaml(listed)}", column)] if node.kind is NodeKind.LIST else _yaml_lines(name, entry, column)
    return _inserted(text, _line_after(node), lines)


def without_server(text: str, name: str) -> str:
    """Deletes the lines of the entry; a comment above it stays."""
    section = _yaml_section(text)
    if section is None:
        return text
    key, node = section
    if node.kind is NodeKind.LIST:
        entries = [(item, item) for item in node.children]
        position = next((at for at, (item, _) in enumerate(entries) if _name_in(item) == name), None)
    else:
        entries = node.pairs
        position = next((at for at, (item, _) in enumerate(entries) if item.text == name), None)
    if position is None:
        return text
    if node.flow:
        return _without_flow(text, entries, position)
    first, last = entries[position]
    lines = text.splitlines(keepends=True)
    del lines[first.start.line : _line_after(last)]
    if len(entries) == 1:
        empty = "[]" if node.kind is NodeKind.LIST else "{}"
        lines[key.start.line] = re.sub(r":(\s*)(#.*)?$", rf": {empty}\1\2", lines[key.start.line], count=1)
    return "".join(lines)


def _without_flow(text: str, entries: Sequence[tuple[YamlNode, YamlNode]], position: int) -> str:
    """Deletes the entry and one comma beside it; returns the text unchanged if there is a comment between them."""
    start, end = entries[position][0].start.offset, entries[position][1].end.offset
    cut = start, end
    if position + 1 < len(entries):
        cut = start, entries[position + 1][0].start.offset
    elif position > 0:
        cut = entries[position - 1][1].end.offset, end
    if "#" in text[cut[0] : start] + text[end : cut[1]]:
        return text
    return text[: cut[0]] + text[cut[1] :]


def whole_yaml(data: Mapping[str, Any]) -> str:
    """The whole document as new YAML, only for a text without comments."""
    return "".join(
        f"{' ' * depth}{line}\n" for key, value in data.items() for line, depth in _yaml_lines(key, value, 0)
    )


def _yaml_section(text: str) -> tuple[YamlNode, YamlNode] | None:
    root = parse_nodes(text)
    found = (
        [pair for pair in root.pairs if pair[0].kind is NodeKind.SCALAR]
        if root and root.kind is NodeKind.MAPPING
        else []
    )
    for wanted in ("servers", "mcp_servers"):
        for key, value in found:
            if normalized_key(key.text) == wanted:
                return key, value
    return None


def _name_in(item: YamlNode) -> str | None:
    if item.kind is not NodeKind.MAPPING:
        return None
    return next((value.text for key, value in item.pairs if normalized_key(key.text) in ("name", "server_name")), None)


def _line_after(node: YamlNode) -> int:
    return node.end.line if node.end.column == 0 and node.end.line > node.start.line else node.end.line + 1


def _inserted(text: str, at: int, lines: Sequence[tuple[str, int]]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    existing = text.splitlines(keepends=True)
    if existing and at >= len(existing) and not existing[-1].endswith("\n"):
        existing[-1] += newline
    existing[at:at] = [f"{' ' * depth}{line}{newline}" for line, depth in lines]
    return "".join(existing)


def _yaml_lines(key: str, value: Any, depth: int) -> list[tuple[str, int]]:
    """A key and its value as lines with their indentation: mappings as blocks, the rest on one line."""
    if isinstance(value, Mapping) and value:
        inner = [line for name, item in value.items() for line in _yaml_lines(name, item, depth + _STEP)]
        return [(f"{flow_yaml(key)}:", depth), *inner]
    return [(f"{flow_yaml(key)}: {flow_yaml(value)}", depth)]


def flow_yaml(value: Any) -> str:
    """A value on one line: plain words plain, everything else in quotes."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN else _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow_yaml(key)}: {flow_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_yaml(item) for item in value) + "]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_NAME_KEYS = ("name", "server_name")


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


def _checked(entry: Mapping[str, Any], project: Path | None) -> tuple[str, dict[str, Any]]:
    """The name and the rest, checked as by `load`, except that variables may be unset."""
    body: dict[str, Any] = {
        key: copy.deepcopy(value) for key, value in entry.items() if normalized_key(key) not in _NAME_KEYS
    }
    name = next((value for key, value in entry.items() if normalized_key(key) in _NAME_KEYS), None)
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
    name = next((value for key, value in item.items() if normalized_key(key) in _NAME_KEYS), None)
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
