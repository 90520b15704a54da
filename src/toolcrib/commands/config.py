"""config:*, trust:* and workspace:* — the configuration, trust in project files, and the workspace tools' settings."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.commands.problems import problems_in
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, Parameters, PathText, registry
from toolcrib.config.model import Severity
from toolcrib.config.problems import sorted_problems
from toolcrib.config.show import mask
from toolcrib.config.trust import trust_digest
from toolcrib.errors import ConfigError, NotFound
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.workspace import examine


@registry.command("config:check", CommandEffect.READS, Availability.SOCKET)
async def check(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Read the configuration again and report all problems."""
    crib, root = context.crib, context.project.root
    config = await crib.projects.read_config(root)
    trusted = await crib.trust.files()
    workspace = load_settings(root, environ=crib.environment.variables, is_trusted=lambda _, digest: digest in trusted)
    problems = sorted_problems((*config.problems, *workspace.problems))
    waiting = [*config.waiting, *filter(None, [workspace.waiting])]
    return {
        "ok": not any(problem.severity is Severity.ERROR for problem in problems),
        "servers": sorted(config.servers),
        "problems": [{**asdict(problem), "text": str(problem)} for problem in problems],
        "untrusted": [str(one.file) for one in waiting],
        "waiting": [{"file": str(one.file), "digest": one.digest, "effects": list(one.effects)} for one in waiting],
    }


@registry.command("config:reload", CommandEffect.CHANGES, Availability.SOCKET)
async def reload(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Read the configuration again and apply what changed. The daemon does so by itself when a file changes."""
    projects = context.crib.projects
    async with projects.editing:
        reloaded = asdict(await projects.reload(by=context.principal.name))
    config, last = context.project.config, projects.last_change
    return {
        **{name: reloaded[name] for name in reloaded if name != "at"},
        "last_change": None if last is None else asdict(last),
        "ok": not any(problem.severity is Severity.ERROR for problem in config.problems),
        **problems_in(config),
    }


@registry.command("config:show", CommandEffect.READS, Availability.SOCKET)
async def show(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Show the effective configuration with secrets masked."""
    return {"config": mask(await context.crib.projects.read_config(context.project.root))}


class UntrustFile(Parameters):
    file: PathText


class TrustFile(UntrustFile):
    digest: str
    """From `config:check`, for the content that the user reviewed; a file that changed since is not trusted."""


@registry.command("trust:add", CommandEffect.CHANGES, Availability.SOCKET, cached=True)
async def trust(context: CommandContext, params: TrustFile) -> dict[str, Any]:
    """Trust a project's file in its current form; any later change needs trust again."""
    file = Path(params.file)
    digest = trust_digest(file)
    if digest != params.digest:
        raise ConfigError(f"{file} has changed since you reviewed it.", remedy="Review it again with `toolcrib trust`.")
    await context.crib.trust.add_file(file, digest)
    await context.crib.projects.reload(by=context.principal.name)
    return {"file": str(file), "sha256": digest}


@registry.command("trust:remove", CommandEffect.CHANGES, Availability.SOCKET, cached=True)
async def untrust(context: CommandContext, params: UntrustFile) -> dict[str, Any]:
    """Stop trusting a project's file; the servers that it started end."""
    was_trusted = await context.crib.trust.remove_file(Path(params.file))
    await context.crib.projects.reload(by=context.principal.name)
    return {"file": params.file, "was_trusted": was_trusted}


class CheckWorkspace(Parameters):
    root: PathText | None = None
    """Default: the project's folder."""


@registry.command("workspace:check", CommandEffect.REVEALS, Availability.SOCKET)
async def check_workspace(context: CommandContext, params: CheckWorkspace) -> dict[str, Any]:
    """Show the workspace of a folder: its confinement, its sandbox, and which tools are refused and why."""
    crib = context.crib
    root = Path(params.root) if params.root else context.project.root
    if not os.path.isdir(root):  # noqa: PTH112 - pathlib raises for a parent folder without access
        raise NotFound(f"There is no folder {root}.", remedy="Give an existing folder.")
    trusted = await crib.trust.files()
    loaded = load_settings(root, environ=crib.environment.variables, is_trusted=lambda _, digest: digest in trusted)
    found = await examine(
        root,
        loaded,
        environ=crib.environment.variables,
        unfit=(crib.environment.paths.config_dir, crib.environment.paths.state_dir, crib.environment.paths.run_dir),
        unsafe_no_sandbox=crib.environment.flags.unsafe_no_sandbox,
    )
    return {**found, "offered": crib.projects.home.config.settings.workspace}
