"""The folders that a server learns when it asks for roots.

In: a project's root, a client's roots. Out: the result of `roots/list`. Nothing outside the project is in it. Used by
`questions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from toolcrib.config.masking import printable

MAX_ROOTS = 100
_LONGEST_NAME = 200


def roots_of(root: Path | None) -> dict[str, Any]:
    return {"roots": [] if root is None else [{"uri": root.as_uri(), "name": root.name or str(root)}]}


def roots_inside(result: Mapping[str, Any], root: Path | None) -> dict[str, Any]:
    """A client's roots, as far as they are existing folders inside the caller's project. Reads the disk.

    They are written anew, without links, so that the server can't read them in another way than we do.
    """
    roots = result.get("roots")
    kept: dict[Path, dict[str, Any]] = {}
    for one in roots[:MAX_ROOTS] if isinstance(roots, list) and root is not None else ():
        path = _folder(one.get("uri")) if isinstance(one, dict) else None
        if path is None or root is None or not path.is_relative_to(os.path.realpath(root)):
            continue
        name = one.get("name")
        named = {"name": printable(name[:_LONGEST_NAME])} if isinstance(name, str) else {}
        kept.setdefault(path, {"uri": path.as_uri(), **named})
    return {"roots": list(kept.values())}


def _folder(uri: Any) -> Path | None:
    """The real path of an existing folder."""
    try:
        parts = urlsplit(uri) if isinstance(uri, str) else None
        if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            return None
        path = Path(os.path.realpath(unquote(parts.path, errors="surrogateescape"), strict=True))
        return path if parts.path.startswith("/") and path.is_dir() else None
    except (OSError, ValueError):
        # It doesn't exist, contains a NUL, or is too long.
        return None
