"""The configuration's problems, which every command that shows servers shows too: they explain missing ones.

In: a command's context. Out: the problems as texts, and the files that wait for trust.
"""

from __future__ import annotations

from typing import Any

from toolcrib.commands.registry import CommandContext
from toolcrib.config.model import Config
from toolcrib.errors import StoreError


async def current_config(context: CommandContext) -> Config:
    """The configuration in the files; the effective one while the database with the trusted files is unavailable."""
    try:
        return await context.crib.projects.read_config(context.project.root)
    except StoreError:
        return context.project.config


async def describe_problems(context: CommandContext, *, server: str = "") -> dict[str, Any]:
    """The problems of the files as they are now. With a server's name, without those of other servers' entries."""
    return problems_in(await current_config(context), server=server)


def problems_in(config: Config, *, server: str = "") -> dict[str, Any]:
    return {
        "problems": [str(problem) for problem in config.problems if not server or problem.server in ("", server)],
        "untrusted": [str(file) for file in config.untrusted],
    }
