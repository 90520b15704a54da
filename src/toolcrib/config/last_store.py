"""The database that `toolcrib up --store` was given last: whoever is told of none must not open another unseen.

In: the flag of a daemon that has opened its database. Out: the same words later, from a small file in the state folder.
They hold no password: the flag does not take one. `layers` asks, `daemon` writes.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolcrib.config.paths import Paths
from toolcrib.errors import ConfigError


def remember_store(paths: Paths, flag: str | None) -> None:
    """What the last daemon was told; None, or the usual file: nothing that others would not find by themselves."""
    file = paths.last_store
    if flag is None or Path(flag) == paths.database:
        file.unlink(missing_ok=True)
        return
    fresh = file.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{flag}\n")
    fresh.replace(file)


def usual_store(paths: Paths) -> Path:
    """The file in the state folder, unless the last daemon was told to work on something else."""
    try:
        last = paths.last_store.read_text(errors="replace").strip()
    except OSError:
        last = ""
    if last:
        raise ConfigError(
            f"The last daemon was started with --store {last}, and nothing says which database is meant now.",
            remedy=f"To stay there, write `store: {last}` into {paths.user_config}, set TOOLCRIB_STORE, or start with "
            f"`toolcrib up --store` again. To go back to the usual file: `toolcrib up --store {paths.database}`.",
        )
    return paths.database
