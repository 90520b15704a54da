"""config:* and trust:* — what the configuration says, and which project files may take part."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.commands.registry import Context, Effect, Parameters, PathText, Reach, registry
from toolcrib.config import mask, trust_digest
from toolcrib.config.model import Severity
from toolcrib.config.problems import sorted_problems
from toolcrib.errors import ConfigError
from toolcrib.workspace.settings.load import load_settings


@registry.command("config:check", effect=Effect.READS, reach=Reach.SOCKET)
async def check(context: Context, _: Parameters) -> dict[str, Any]:
    """Read the configuration anew and report everything that is wrong with it."""
    crib, root = context.crib, context.project.root
    config = await crib.read_config(root)
    trusted = await crib.trust.files()
    workspace = load_settings(root, environ=crib.environ, is_trusted=lambda _, digest: digest in trusted)
    problems = sorted_problems((*config.problems, *workspace.problems))
    waiting = [*config.waiting, *filter(None, [workspace.waiting])]
    return {
        "ok": not any(problem.severity is Severity.ERROR for problem in problems),
        "servers": sorted(config.servers),
        "problems": [{**asdict(problem), "text": str(problem)} for problem in problems],
        "untrusted": [str(one.file) for one in waiting],
        "waiting": [{"file": str(one.file), "digest": one.digest, "effects": list(one.effects)} for one in waiting],
    }


@registry.command("config:show", effect=Effect.READS, reach=Reach.SOCKET)
async def show(context: Context, _: Parameters) -> dict[str, Any]:
    """Show the configuration in force, secrets masked."""
    return {"config": mask(await context.crib.read_config(context.project.root))}


class ProjectFile(Parameters):
    file: PathText


class Trusted(ProjectFile):
    digest: str
    """Of the content that the person looked at, as `config:check` has it; a file that changed since is not trusted."""


@registry.command("trust:add", parameters=Trusted, effect=Effect.CHANGES, reach=Reach.SOCKET)
async def trust(context: Context, params: Trusted) -> dict[str, Any]:
    """Trust a project's file as it is now; any later change to it asks again."""
    file = Path(params.file)
    digest = trust_digest(file)
    if digest != params.digest:
        raise ConfigError(
            f"{file} is not what it was when you looked at it.", remedy="Look again with `toolcrib trust`."
        )
    await context.crib.trust.add_file(file, digest)
    await context.crib.reload(by=context.caller.agent)
    return {"file": str(file), "sha256": digest}


@registry.command("trust:remove", parameters=ProjectFile, effect=Effect.CHANGES, reach=Reach.SOCKET)
async def untrust(context: Context, params: ProjectFile) -> dict[str, Any]:
    """Take the trust in a project's file back; what it started ends."""
    was_trusted = await context.crib.trust.remove_file(Path(params.file))
    await context.crib.reload(by=context.caller.agent)
    return {"file": params.file, "was_trusted": was_trusted}
