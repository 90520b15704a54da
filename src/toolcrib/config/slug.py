"""What a server's name becomes where only `[a-zA-Z0-9_-]` is allowed: in file names and tools' names.

In: a name. Out: a safe one, which two names may share. It stands alone so that `paths` stays light.
"""

from __future__ import annotations

import re


def slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def same_name(name: str) -> str:
    """Equal for names that tools' public names could not tell apart."""
    return slug(name).lower()
