"""Servers from one place that a program names: a file, or a mapping of its own.

In: the place, and the user's configuration. Out: that configuration with the servers of the place, and its rules for
tools, and no others. Where the store lies and how the book is kept stay the user's: there is one book, whoever takes
something. `Crib` uses it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from toolcrib.config.model import Config, Layer, Severity
from toolcrib.config.paths import home_of
from toolcrib.config.read import Document, parse_document, read_document
from toolcrib.config.shapes import contribution_of
from toolcrib.config.values import Surroundings
from toolcrib.errors import ConfigError, UsageError

OwnSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A file's path, or `{"servers": {…}}` (also `mcpServers`) as a file would have it, `${VAR}` included."""


def refuse_no_source(source: object) -> None:
    if source is not None and not isinstance(source, str | os.PathLike | Mapping):
        raise UsageError(
            f"A configuration cannot be a {type(source).__name__}.",
            remedy='Give a file\'s path, or a mapping as a file would have it: {"servers": {…}}.',
        )


def with_servers_of(source: OwnSource, config: Config, *, environ: Mapping[str, str]) -> Config:
    """Raises `ConfigError` for a file that cannot be read, and for anything wrong in a program's own mapping.

    In a file, an entry with a mistake is left out, as everywhere; `problems` tells of it.
    """
    document = _document(source)
    file = None if isinstance(source, Mapping) else Path(source).absolute()
    around = Surroundings(
        layer=Layer.FLAGS, environ=environ, home=home_of(environ), file=file, root=file.parent if file else Path.cwd()
    )
    found = contribution_of(document, around)
    wrong = [str(problem) for problem in document.report.problems if problem.severity is Severity.ERROR]
    if wrong and (file is None or not document.data):
        raise ConfigError(" ".join(wrong), remedy="Correct the configuration.")
    return dataclasses.replace(
        config,
        servers=MappingProxyType(found.servers),
        tools=found.tools,
        problems=tuple(document.report.problems),
        waiting=(),
    )


def _document(source: OwnSource) -> Document:
    if isinstance(source, Mapping):
        try:
            text = json.dumps(source, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"The configuration cannot be used: {error}.") from error
        made = parse_document("the configuration", text.encode())
        # It was never lines of text.
        made.report.lines = {}
        return made
    document = read_document(Path(source))
    if document is None:
        raise ConfigError(f"There is no file {os.fspath(source)}.", remedy="Name another, or make it.")
    return document


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is nothing that a configuration can hold")
