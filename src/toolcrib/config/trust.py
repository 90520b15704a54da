"""Whether a project's file may do anything, and what it would do.

In: a project's file, untouched: no variable is filled in and no file it names is read. Out: the digest that
trust is bound to, and lines for the person who decides. Who is trusted is kept by `store`, which `load` asks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.json_text import Unreadable
from toolcrib.config.keys import Field, plain, spread
from toolcrib.config.problems import Report, describe, describe_type
from toolcrib.config.read import Document, read_bytes
from toolcrib.config.redact import mask_args, mask_text, printable
from toolcrib.config.settings import SETTINGS, USERS_ALONE
from toolcrib.config.shapes import Entry, entries_of, rules_in
from toolcrib.config.slug import same_name
from toolcrib.config.tool_rules import effects_of_rules
from toolcrib.errors import ConfigError


def digest_of(path: Path, content: bytes) -> str:
    """Covers the place and the bytes: the same file in another project is another question."""
    place = os.fsencode(path)
    return hashlib.sha256(len(place).to_bytes(4, "big") + place + content).hexdigest()


def trust_digest(path: Path) -> str:
    """The digest of a project's file as it is now."""
    place = Path(os.path.realpath(path.absolute().parent)) / path.name
    try:
        return digest_of(place, read_bytes(place))
    except (OSError, Unreadable):
        raise ConfigError(f"{path} cannot be read.", remedy="Name a project's configuration file.") from None


def is_real(path: Path) -> bool:
    """No link on the way to it, so that nothing from elsewhere is read in a project's name."""
    return not path.is_symlink() and os.path.realpath(path) == str(path)


def effects_of(document: Document, users_names: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each thing the file would do; `users_names` are the names it could take over."""
    silent = Report(document.report.source)
    effects: list[str] = []
    for entry in entries_of(document.data, silent):
        name = printable(entry.name) if isinstance(entry.name, str) else describe_type(entry.name)
        effects.append(f"{name}: {_effect(entry, silent)}")
        if isinstance(entry.name, str) and (held := users_names.get(same_name(entry.name))):
            effects.append(f"{name}: takes the place of your own server {printable(held)}")
    effects += [f"sets {key}" for key in document.data if plain(key) in SETTINGS.keys() - USERS_ALONE]
    effects += [line for given in rules_in(document.data) for line in effects_of_rules(given.value)]
    return tuple(effects)


def _effect(entry: Entry, silent: Report) -> str:
    if not isinstance(entry.entry, Mapping):
        return "is no server"
    fields = spread(entry.entry, entry.path, silent)
    if "url" in fields:
        headers = _names(fields.get("headers"))
        return f"connects to {_shown(fields['url'].value)}" + (f" with the headers {headers}" if headers else "")
    if "command" in fields:
        args = fields["args"].value if "args" in fields else []
        words = [fields["command"].value, *(args if isinstance(args, list) else [args])]
        line = " ".join(_quoted(word) for word in mask_args([_text(word) for word in words]))
        variables = _names(fields.get("env"))
        return f"starts {line}" + (f" with {variables} set" if variables else "")
    return "is switched off" if {"enabled", "disabled"} & fields.keys() else "is no server"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else describe(value)


def _quoted(word: str) -> str:
    return f"'{word}'" if not word or any(character in " '\"" for character in word) else word


def _shown(value: Any) -> str:
    return mask_text(value) if isinstance(value, str) else describe_type(value)


def _names(field: Field | None) -> str:
    return ", ".join(printable(name) for name in field.value) if field and isinstance(field.value, Mapping) else ""
