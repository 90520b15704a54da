"""config:* and trust:* — what the configuration says, and which project files may take part."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.config import mask, trust_digest
from toolcrib.config.model import Severity
from toolcrib.errors import ConfigError


@registry.command("config:check", effect=Effect.READS, reach=Reach.SOCKET)
async def check(context: Context, _: Parameters) -> dict[str, Any]:
    """Read the configuration anew and report everything that is wrong with it."""
    config = await context.crib.read_config(context.project.root)
    return {
        "ok": not any(problem.severity is Severity.ERROR for problem in config.problems),
        "servers": sorted(config.servers),
        "problems": [{**asdict(problem), "text": str(problem)} for problem in config.problems],
        "untrusted": [str(file) for file in config.untrusted],
        "waiting": [
            {"file": str(waiting.file), "digest": waiting.digest, "effects": list(waiting.effects)}
            for waiting in config.waiting
        ],
    }


@registry.command("config:show", effect=Effect.READS, reach=Reach.SOCKET)
async def show(context: Context, _: Parameters) -> dict[str, Any]:
    """Show the configuration in force, secrets masked."""
    return {"config": mask(await context.crib.read_config(context.project.root))}


class Trusted(Parameters):
    file: Path
    digest: str | None = None
    """Of the content that the person looked at; a file that changed since is not trusted."""


@registry.command("trust:add", parameters=Trusted, effect=Effect.CHANGES, reach=Reach.SOCKET)
async def trust(context: Context, params: Trusted) -> dict[str, Any]:
    """Trust a project's file as it is now; any later change to it asks again."""
    digest = trust_digest(params.file)
    if params.digest is not None and digest != params.digest:
        raise ConfigError(
            f"{params.file} is not what it was when you looked at it.", remedy="Look again with `toolcrib trust`."
        )
    await context.crib.trust.add_file(params.file, digest)
    await context.crib.reload()
    return {"file": str(params.file), "sha256": digest}


@registry.command("trust:remove", parameters=Trusted, effect=Effect.CHANGES, reach=Reach.SOCKET)
async def untrust(context: Context, params: Trusted) -> dict[str, Any]:
    """Take the trust in a project's file back; what it started ends."""
    was_trusted = await context.crib.trust.remove_file(params.file)
    await context.crib.reload()
    return {"file": str(params.file), "was_trusted": was_trusted}
