"""What a model reads when the workspace refuses: in the words of the tools that it has here.

In: an error whose remedy speaks of an argument that only the workspace's own tools have. Out: the same error with a
remedy that works here. The tools beside wrap what they ask of the workspace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType

from toolcrib.errors import WorkspaceError

_REMEDIES = MappingProxyType(
    {
        "all": "Give more of the text around it, or replace_all: true.",
        "argv": "Give a command line.",
        "encoding": "Only text can be read and edited here: UTF-8, or with a byte order mark.",
        "literal": "A backslash makes a special character an ordinary one.",
        "mode": "To change it, give the text to replace as old_string.",
        "offset": "Search it for what you need.",
    }
)


@contextlib.contextmanager
def local_remedies() -> Iterator[None]:
    try:
        yield
    except WorkspaceError as error:
        remedy = _REMEDIES.get(error.data.get("argument", ""), error.remedy)
        raise WorkspaceError(error.message, remedy=remedy, data=error.data) from error
