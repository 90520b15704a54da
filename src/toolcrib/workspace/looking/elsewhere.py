"""Where a file lies that a model looked for in the wrong folder.

In: an error that says that a path is not there. Out: the same error, naming places where something of that name is.
`workspace` asks, and only for an error that a model will see: it costs a walk, which is short.
"""

from __future__ import annotations

import itertools
import time

from toolcrib.errors import ToolcribError, WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.looking.answer import is_utf8
from toolcrib.workspace.looking.walk import Walk

MOST_SECONDS = 0.3
MOST_ENTRIES = 20_000
MOST_NAMED = 3


def is_about_a_missing_path(error: ToolcribError) -> bool:
    """`confined.refusal` says then what is near."""
    return isinstance(error, WorkspaceError) and "near" in error.data and bool(error.data.get("path"))


def with_places(folder: Folder, error: ToolcribError) -> ToolcribError:
    asked = str(error.data["path"])
    name = asked.rpartition("/")[2]
    walk = Walk(folder, Spot(), until=time.monotonic() + MOST_SECONDS)
    entries = itertools.islice(walk, MOST_ENTRIES)
    same = ("/".join(entry.parts) for entry in entries if entry.name == name)
    found = list(itertools.islice(filter(is_utf8, same), MOST_NAMED))
    if not found:
        return error
    near = list(dict.fromkeys([*found, *error.data["near"]]))[:MOST_NAMED]
    return WorkspaceError(error.message, remedy=f"Did you mean {', '.join(near)}?", data={"path": asked, "near": near})
