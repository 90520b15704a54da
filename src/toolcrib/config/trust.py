"""The digest and the effects of a project's file, for the user who decides whether to trust it.

In: a project's file as written: variables are not expanded and the files it names are not read. Out: the digest that
trust is bound to, and the file's whole content in readable form. `store` records the trusted digests, and `layers`
checks them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.contribution import SECTIONS, ServerEntry, entries_of
from toolcrib.config.keys import ConfigField, flat_fields, normalized_key
from toolcrib.config.model import WORKSPACE_FOLDER, KeyPath
from toolcrib.config.parse import Unreadable
from toolcrib.config.paths import server_key
from toolcrib.config.problems import ProblemReport, describe_type, key_text
from toolcrib.config.read import ConfigDocument, read_bytes
from toolcrib.config.settings import SETTINGS, USER_ONLY_SETTINGS
from toolcrib.config.show import visible
from toolcrib.config.values import INPUT, Secrets, references
from toolcrib.errors import ConfigError

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./?&~${}-]+")


def digest_of(path: Path, content: bytes) -> str:
    """Covers the path and the content: trust in one project doesn't extend to the same file in another."""
    place = os.fsencode(path)
    return hashlib.sha256(len(place).to_bytes(4, "big") + place + content).hexdigest()


def trust_digest(path: Path) -> str:
    """The digest of a project's file as it is now."""
    place = Path(os.path.realpath(path.absolute().parent)) / path.name
    try:
        return digest_of(place, read_bytes(place))
    except (OSError, Unreadable):
        raise ConfigError(f"Cannot read {path}.", remedy="Give the path of a project's configuration file.") from None


def has_no_links(path: Path) -> bool:
    """Whether no component of the path is a link, so that a project's file can't be a file from elsewhere."""
    return not path.is_symlink() and os.path.realpath(path) == str(path)


def effects_of(
    document: ConfigDocument, users_names: Mapping[str, str], environ: Mapping[str, str], secrets: Secrets
) -> tuple[str, ...]:
    """The file's whole content as written, safe to print, so that the user sees everything before trusting it.

    Nothing is masked, because variables are not expanded; the lines only state where each variable's value is from.
    `users_names` are the names of the user's own servers, which the file could replace.
    """
    silent = ProblemReport(document.report.source)
    entries = tuple(entries_of(document.data, silent))
    lines: list[str] = []
    for entry in entries:
        name = visible(entry.name) if isinstance(entry.name, str) else describe_type(entry.name)
        deed, shown = _deed(entry, silent)
        lines.append(f"{name}: {deed}")
        if isinstance(entry.name, str) and (held := users_names.get(server_key(entry.name))):
            lines.append(f"{name}: replaces your own server {visible(held)}")
            if "url" in flat_fields(_mapping(entry.entry), entry.path, silent):
                lines.append(f"{name}: uses your sign-in there, if its name and address are the same")
        rest = {key: value for key, value in _mapping(entry.entry).items() if (*entry.path, key) not in shown}
        lines += [f"  {line}" for line in (*_leaves(rest), *_variables(entry.entry, environ, secrets))]
    is_one_server = any(not entry.path for entry in entries)
    rest = (
        {} if is_one_server else {k: value for k, value in document.data.items() if normalized_key(k) not in SECTIONS}
    )
    if lines or {normalized_key(key) for key in rest} & {*SETTINGS.keys() - USER_ONLY_SETTINGS, "tools"}:
        lines += [f"sets {line}" for line in (*_leaves(rest), *_variables(rest, environ, secrets))]
    return tuple(lines)


def _deed(entry: ServerEntry, silent: ProblemReport) -> tuple[str, list[KeyPath]]:
    """A line about what the entry does, and the paths of the values in that line."""
    fields = flat_fields(_mapping(entry.entry), entry.path, silent)
    if url := fields.get("url"):
        return f"connects to {_word(url.value)}", [url.path]
    if command := fields.get("command"):
        args = fields.get("args") or ConfigField(value=[], path=())
        words = [command.value, *(args.value if isinstance(args.value, list) else [args.value])]
        return f"starts {' '.join(map(_word, words))}", [command.path, args.path]
    if {"enabled", "disabled"} & fields.keys():
        return "is switched off", []
    return "has tools that are switched off" if "disabled_tools" in fields else "is not a server", []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[str]:
    """One line for each value, including unknown keys, so that future settings are shown too."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for position, inner in enumerate(value):
            yield f"{visible(key_text((*path, position)))}: {_json(inner)}"
    else:
        yield f"{visible(key_text(path))}: {_json(value)}"


def _variables(value: Any, environ: Mapping[str, str], secrets: Secrets) -> Iterator[str]:
    for name, has_default in dict.fromkeys(found for text in _texts(value) for found in references(text)):
        if name == WORKSPACE_FOLDER[2:-1]:
            yield f"${{{name}}} is the folder of this project"
        elif name not in environ and name.removeprefix(INPUT) in secrets:
            yield f"${{{name}}} is your secret {name.removeprefix(INPUT)}, and its value is used"
        elif name.startswith(INPUT):
            yield f"${{{name}}} is not among your secrets"
        elif environ.get(name):
            yield f"${{{name}}} is set in Toolcrib's environment, and its value is used"
        elif has_default:
            yield f"${{{name}}} is not set in Toolcrib's environment: the text after :- is used"
        else:
            yield f"${{{name}}} is {'empty' if name in environ else 'not set'} in Toolcrib's environment"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def _word(value: Any) -> str:
    return value if isinstance(value, str) and _PLAIN_WORD.fullmatch(value) else _json(value)


def _json(value: Any) -> str:
    """JSON, so that a backslash can't be confused with an escaped character."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))
