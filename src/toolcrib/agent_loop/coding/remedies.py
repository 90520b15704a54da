"""Workspace errors with remedies that fit the coding tools.

In: an error whose remedy mentions an argument that only the workspace's own tools have. Out: the same error with a
remedy for the coding tool. `files` and `search` wrap their workspace calls in `local_remedies`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType

from toolcrib.errors import WorkspaceError

_REMEDIES = MappingProxyType(
    {
        "all": "Give more of the surrounding text, or replace_all: true.",
        "argv": "Give a command line.",
        "encoding": "Only text can be read and edited: UTF-8, or with a byte order mark.",
        "literal": "Escape special characters with a backslash.",
        "mode": "To change it, give the text to replace as old_string.",
        "offset": "Search the file instead.",
    }
)


@contextlib.contextmanager
def local_remedies() -> Iterator[None]:
    try:
        yield
    except WorkspaceError as error:
        remedy = _REMEDIES.get(error.data.get("argument", ""), error.remedy)
        raise WorkspaceError(error.message, remedy=remedy, data=error.data) from error
