"""A file's bytes → a `ConfigDocument`.

In: a path. Out: `ConfigDocument`, or None if there is no file. Invalid content never raises: an unusable file becomes a
document without data and with a problem. `layers` and `edit` use it.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.config.model import KeyPath
from toolcrib.config.parse import ParsedText, Unreadable, parse_json, parse_yaml
from toolcrib.config.problems import ProblemReport, describe_type

SIZE_LIMIT = 1024 * 1024


class FileFormat(enum.Enum):
    JSON = enum.auto()
    YAML = enum.auto()

    @classmethod
    def of(cls, source: str) -> FileFormat:
        """`.yml` and `.yaml` are YAML; everything else, including variables, is JSON."""
        return cls.YAML if source.endswith((".yml", ".yaml")) else cls.JSON


@dataclass(frozen=True, kw_only=True)
class ConfigDocument:
    data: Mapping[str, Any]
    report: ProblemReport
    content: bytes = b""
    ambiguous: frozenset[KeyPath] = field(default_factory=frozenset)
    """Every mapping with a duplicate key, and all mappings and lists around it."""


def read_document(path: Path) -> ConfigDocument | None:
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        return unusable_document(str(path), error)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "no content"
        return unusable_document(str(path), Unreadable(found=f"an unreadable file ({reason})", expected="a file"))
    return parse_document(str(path), content)


def read_bytes(path: Path, limit: int = SIZE_LIMIT, *, private: bool = False) -> bytes:
    """Reads a regular file of limited size; never blocks, even on a pipe. `private`: only its owner may have access."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise Unreadable(found="something other than a regular file", expected="a file")
        if private and state.st_uid not in (os.geteuid(), 0):
            raise Unreadable(found="a file of another user", expected="your own: copy it, then chmod 600 the copy")
        if private and state.st_mode & 0o077:
            found = f"a file that others can access (mode {stat.S_IMODE(state.st_mode):o})"
            raise Unreadable(found=found, expected="a file that only you can access: run `chmod 600` on it")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Unreadable(found="a file that is too large", expected=f"at most {limit // 1024} KiB")
    return content


def parse_document(source: str, content: bytes) -> ConfigDocument:
    try:
        parsed = parse_text(content, FileFormat.of(source))
        if parsed.data is None:
            parsed.data = {}
        if not isinstance(parsed.data, dict):
            raise Unreadable(found=describe_type(parsed.data), expected="a mapping of names and values", line=1)
    except Unreadable as error:
        return unusable_document(source, error, content)
    report = ProblemReport(source, parsed.lines)
    ambiguous: set[KeyPath] = set()
    for path, line in parsed.duplicates:
        report.error(path, found="a duplicate key", expected="each key once", line=line)
        ambiguous.update(path[:length] for length in range(len(path)))
    return ConfigDocument(data=parsed.data, report=report, content=content, ambiguous=frozenset(ambiguous))


def parse_text(content: bytes, form: FileFormat) -> ParsedText:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            found=f"bytes that are not UTF-8 (offset {error.start})", expected="UTF-8", line=line
        ) from None
    if not text.strip():
        return ParsedText()
    return parse_json(text) if form is FileFormat.JSON else parse_yaml(text)


def unusable_document(source: str, error: Unreadable, content: bytes = b"") -> ConfigDocument:
    report = ProblemReport(source)
    report.error((), found=error.found, expected=error.expected, line=error.line)
    return ConfigDocument(data={}, report=report, content=content)
