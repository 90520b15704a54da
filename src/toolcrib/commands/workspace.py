"""workspace:* — what the workspace tools may do in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from toolcrib.commands.registry import Context, Effect, Parameters, PathText, Reach, registry
from toolcrib.errors import NotFound
from toolcrib.workspace.settings.load import load_settings


class Where(Parameters):
    root: PathText | None = None
    """The project's own folder if none is given."""


@registry.command("workspace:check", parameters=Where, effect=Effect.REVEALS, reach=Reach.SOCKET)
async def check(context: Context, params: Where) -> dict[str, Any]:
    """Show what is confined in a folder, which sandbox is in force, and which tools are refused and why."""
    from toolcrib.workspace.check import examine  # noqa: PLC0415 - all the tools

    crib = context.crib
    root = Path(params.root) if params.root else context.project.root
    if not os.path.isdir(root):  # noqa: PTH112 - pathlib raises for a folder above that is not ours
        raise NotFound(f"There is no folder {root}.", remedy="Name one that exists.")
    trusted = await crib.trust.files()
    loaded = load_settings(root, environ=crib.environ, is_trusted=lambda _, digest: digest in trusted)
    found = await examine(
        root,
        loaded,
        environ=crib.environ,
        unfit=(crib.paths.config_dir, crib.paths.state_dir, crib.paths.run_dir),
        unsafe_no_sandbox=crib.flags.unsafe_no_sandbox,
    )
    return {**found, "offered": crib.home.config.settings.workspace}
