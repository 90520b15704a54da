"""Parses and validates a workspace settings document.

In: a `ConfigDocument` of `config`, from a file of unknown origin. Out: `SettingsFromFile`; errors go to the document's
report with their line, and its reader decides how to treat a file with errors. Nothing that the file names is opened,
and no variable is expanded. Variables that would change which code runs cannot be passed to commands, and private
folders cannot be made readable; for a link, its target counts too.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolcrib.config.keys import ConfigField, strict_fields
from toolcrib.config.model import KeyPath, Layer
from toolcrib.config.paths import Paths, home_of
from toolcrib.config.problems import ProblemReport, describe, describe_type
from toolcrib.config.read import ConfigDocument
from toolcrib.config.values import EntryContext, Interpolation, ValueReader
from toolcrib.workspace.globs import ignores_something
from toolcrib.workspace.settings.model import (
    GUARDED,
    LIMITS,
    LIMITS_KEYS,
    SECONDS_KEYS,
    SECONDS_LIMIT,
    TOOL_NAMES,
    TOOL_SECONDS,
    USUAL_SECONDS,
    GitMode,
    LimitKey,
    SettingsFromFile,
)

_OURS = ("TOOLCRIB_",)
_LOADERS = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC_", "GLIBC_", "MALLOC_")
_RUNS_CODE = frozenset(
    {
        "BASHOPTS",
        "BASH_ENV",
        "ENV",
        "GCONV_PATH",
        "IFS",
        "LOCPATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PROMPT_COMMAND",
        "PS4",
        "RUBYLIB",
        "RUBYOPT",
        "SHELLOPTS",
    }
)
_SET_INSIDE = frozenset({"HOME", "LOGNAME", "PATH", "PWD", "SHELL", "TEMP", "TMP", "TMPDIR", "USER"})
_GIT_PLAIN = ("GIT_AUTHOR_", "GIT_COMMITTER_")


def why_not_passed(name: str) -> str:
    if name.upper().startswith(_OURS):
        return "Variables that begin with TOOLCRIB_ are private to Toolcrib."
    if name.upper().startswith(_LOADERS) or name.upper() in _RUNS_CODE:
        return "It decides which code programs load."
    if name.startswith("GIT_") and not name.startswith(_GIT_PLAIN):
        return "It decides what git runs; GIT_AUTHOR_* and GIT_COMMITTER_* are allowed."
    if name in _SET_INSIDE:
        return "The sandbox sets it itself."
    return ""


_KEYS = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".local/share/keyrings")
_SYSTEM = (Path("/proc"), Path("/sys"), Path("/dev"), Path("/run"), Path("/var/run"))


@dataclass(frozen=True, kw_only=True)
class PrivateFolders:
    """Folders that commands must not read."""

    home: Path
    ours: tuple[Path, ...]
    """Toolcrib's own folders: tokens, the database, the daemon's socket."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> PrivateFolders:
        paths = Paths.of_user(environ)
        ours = (paths.config_dir, paths.state_dir, paths.cache_dir, paths.run_dir)
        return cls(home=home_of(environ), ours=ours)


def why_not_readable(folder: Path, private: PrivateFolders) -> str:
    for place in {folder, _real(folder)}:
        if any(home.is_relative_to(place) for home in {private.home, _real(private.home)}):
            return "It is or contains your home directory: name a folder inside it."
        if any(_touch(place, own) for ours in private.ours for own in {ours, _real(ours)}):
            return "Toolcrib keeps its own files there."
        if any(_touch(place, _real(private.home / keys)) or _touch(place, private.home / keys) for keys in _KEYS):
            return "Keys are kept there."
        if any(_touch(place, system) for system in _SYSTEM):
            return "It belongs to the system and shows other processes."
    return ""


def lies_within(root: Path, folder: Path) -> bool:
    """Whether a folder is in the workspace, by path or by link target: tools there could redirect the link."""
    real = _real(root)
    return folder.is_relative_to(root) or folder.is_relative_to(real) or _real(folder).is_relative_to(real)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _touch(one: Path, other: Path) -> bool:
    return other.is_relative_to(one) or one.is_relative_to(other)


MAX_ENTRIES = 256
"""Entries of one list."""
MAX_TEXT_LENGTH = 1024

_SWITCH = {"on": True, "off": False}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class SettingsReader(ValueReader):
    """Reads values as in other configuration files, but stricter and without variables."""

    def __init__(self, report: ProblemReport, private: PrivateFolders) -> None:
        literal = Interpolation.LITERAL
        super().__init__(EntryContext(layer=Layer.USER, environ={}, home=private.home, spelling=literal), report)
        self.private = private

    def wrong(self, given: ConfigField, expected: str, suggestion: str = "") -> None:
        self.report.error(given.path, found=describe(given.value), expected=expected, suggestion=suggestion)

    def limit(self, given: ConfigField, key: LimitKey) -> float | None:
        value = self.number(given, least=key.least, most=key.most, whole=key.whole)
        # Bytes, calls and processes stay integers.
        return int(value * key.unit) if value is not None and key.whole else value

    def text(self, field: ConfigField, *, into: KeyPath = (), secret: bool = False) -> str | None:
        """Unlike the base class, refuses numbers and booleans."""
        if not isinstance(field.value, str) or not field.value.strip():
            self.wrong(field, "text")
        elif not field.value.isprintable() or len(field.value) > MAX_TEXT_LENGTH:
            self.wrong(field, f"printable text of at most {MAX_TEXT_LENGTH} characters")
        else:
            return super().text(field, into=into, secret=secret)
        return None

    def entries(self, given: ConfigField) -> list[tuple[ConfigField, str]]:
        """The texts of a list, each with its own field for further errors."""
        if not isinstance(given.value, list):
            self.wrong(given, "a list of strings")
            return []
        if len(given.value) > MAX_ENTRIES:
            self.report.error(given.path, found=f"{len(given.value)} entries", expected=f"at most {MAX_ENTRIES}")
            return []
        fields = list(given.parts().values())
        return [(one, text) for one in fields if (text := self.text(one)) is not None]

    def fields(self, given: ConfigField, known: Sequence[str]) -> dict[str, ConfigField]:
        if not isinstance(given.value, Mapping):
            self.report.error(given.path, found=describe_type(given.value), expected="a mapping")
            return {}
        return strict_fields(given.value, given.path, {name: name for name in known}, self.report)


def read_settings(document: ConfigDocument, private: PrivateFolders) -> SettingsFromFile:
    """The valid part of the file; the rest is reported."""
    reader = SettingsReader(document.report, private)
    fields = reader.fields(ConfigField(value=document.data, path=()), TOP_KEYS)
    chosen: dict[str, Any] = {}
    for name, field in fields.items():
        chosen |= _READ[name](field, reader)
    return SettingsFromFile(**chosen)


def _flag(name: str) -> Callable[[ConfigField, SettingsReader], dict[str, Any]]:
    return lambda given, reader: {name: reader.flag(given)}


def _tools(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    switched: dict[str, bool] = {}
    for name, field in reader.fields(given, TOOL_NAMES).items():
        # `on` and `off` are plain text in our YAML; true and false are accepted too.
        if (value := _switch(field, reader)) is not None:
            switched[name] = value
    return {"tools": MappingProxyType(switched)}


def _switch(given: ConfigField, reader: SettingsReader) -> bool | None:
    value = _SWITCH.get(given.value) if isinstance(given.value, str) else given.value
    if isinstance(value, bool):
        return value
    reader.wrong(given, "on or off")
    return None


def _git(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    if isinstance(given.value, str) and given.value in tuple(GitMode):
        return {"git": GitMode(given.value)}
    reader.wrong(given, " or ".join(GitMode))
    return {}


def _environment(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    names: set[str] = set()
    for field, name in reader.entries(given):
        if not _NAME.fullmatch(name):
            reader.wrong(field, "the name of a variable", "List names only: the values come from the server.")
        elif why := why_not_passed(name):
            reader.wrong(field, "a variable that commands may have", why)
        else:
            names.add(name)
    return {"environment": tuple(sorted(names))}


def _readable(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    folders: set[Path] = set()
    for field, text in reader.entries(given):
        folder = reader.private.home / text[2:] if text == "~" or text.startswith("~/") else Path(text)
        if not folder.is_absolute() or ".." in folder.parts:
            reader.wrong(field, "an absolute path, or one that starts with ~/, without ..")
        elif why := why_not_readable(folder, reader.private):
            reader.wrong(field, "a folder that commands may read", why)
        else:
            folders.add(folder)
    return {"readable": tuple(sorted(folders))}


def _hidden(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    patterns: list[str] = []
    for field, pattern in reader.entries(given):
        if _hides(pattern):
            patterns.append(pattern)
        else:
            reader.wrong(
                field, "a pattern such as .env* or secrets/**", "It can only hide; .., ! and \\ are not allowed."
            )
    return {"hidden": tuple(dict.fromkeys(patterns))}


def _hides(pattern: str) -> bool:
    """False for a pattern that hides nothing, such as a comment: it is a mistake."""
    if pattern != pattern.strip() or ".." in pattern.split("/") or "\\" in pattern:
        return False
    return ignores_something(pattern)


def _guarded(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    if not isinstance(given.value, Mapping) or len(given.value) > MAX_ENTRIES:
        reader.wrong(given, f"a mapping such as {{.vscode: off, deploy/**: on}}, with at most {MAX_ENTRIES} entries")
        return {}
    switched: dict[str, bool] = {}
    for key, value in given.value.items():
        pattern = reader.text(ConfigField(value=key, path=(*given.path, key)))
        is_on = _switch(ConfigField(value=value, path=(*given.path, key)), reader)
        if pattern is None or is_on is None:
            continue
        if not is_on and pattern not in GUARDED:
            near = difflib.get_close_matches(pattern, GUARDED, n=1)
            hint = f"Did you mean {near[0]}?" if near else ""
            found = "off for a pattern that is not guarded by default"
            reader.report.error((*given.path, key), found=found, expected=", ".join(GUARDED), suggestion=hint)
        elif is_on and not _hides(pattern):
            reader.wrong(
                ConfigField(value=key, path=(*given.path, key)), "a pattern such as deploy/**, without .., ! and \\"
            )
        else:
            switched[pattern] = is_on
    return {"guarded": MappingProxyType(switched)}


def _python(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    text = reader.text(given)
    if text is not None and text.startswith("~/"):
        text = str(reader.private.home / text[2:])
    return {"python": text}


def _limits(given: ConfigField, reader: SettingsReader) -> dict[str, Any]:
    fields = reader.fields(given, LIMITS_KEYS)
    seconds: dict[str, float] = {}
    if times := fields.pop("seconds", None):
        seconds = _seconds(times, reader)
    numbers = {LIMITS[word].name: reader.limit(field, LIMITS[word]) for word, field in fields.items()}
    understood = {name: value for name, value in numbers.items() if value is not None}
    return {"limits": MappingProxyType(understood), "seconds": MappingProxyType(seconds)}


def _seconds(given: ConfigField, reader: SettingsReader) -> dict[str, float]:
    """`default` applies to the tools with the default limit; a named tool has its own."""
    found = {name: reader.limit(field, SECONDS_LIMIT) for name, field in reader.fields(given, SECONDS_KEYS).items()}
    seconds = {name: value for name, value in found.items() if value is not None}
    default = seconds.pop("default", None)
    if default is None:
        return seconds
    return {name: default for name, usual in TOOL_SECONDS.items() if usual == USUAL_SECONDS} | seconds


_READ: Mapping[str, Callable[[ConfigField, SettingsReader], dict[str, Any]]] = {
    "read_only": _flag("read_only"),
    "tools": _tools,
    "git": _git,
    "network": _flag("network"),
    "forbid_shell_in_ci": _flag("forbid_shell_in_ci"),
    "environment": _environment,
    "readable": _readable,
    "hidden": _hidden,
    "guarded": _guarded,
    "repositories": _flag("repositories"),
    "python": _python,
    "limits": _limits,
}
TOP_KEYS = tuple(_READ)
