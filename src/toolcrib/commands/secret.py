"""secret:* — the user's secrets: values for `${NAME}` and `${input:NAME}` in the configuration.

In: names, and values to store. Out: names, never values. A change is in effect when the command returns: servers whose
entries it makes valid or different connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, Parameters, registry
from toolcrib.config.model import Problem, ServerConfig
from toolcrib.config.values import INPUT, SECRET_NAME, references
from toolcrib.credentials.keys import KeyStore
from toolcrib.credentials.vault import CredentialKind
from toolcrib.errors import NotFound, StoreError
from toolcrib.events import AuditedChange
from toolcrib.identity.state import nothing_changed

_SECRET = CredentialKind.SECRET


def _usable_name(name: str) -> str:
    if re.fullmatch(SECRET_NAME, name) is None:
        raise PydanticCustomError("name", "A name has up to 128 letters, digits, _, . and -")
    return name


class SecretName(Parameters):
    name: Annotated[str, AfterValidator(_usable_name)]


class SetSecret(SecretName):
    value: str = Field(min_length=1, repr=False)


@registry.command("secret:set", CommandEffect.CHANGES, Availability.SOCKET)
async def set_secret(context: CommandContext, params: SetSecret) -> dict[str, Any]:
    """Store a secret. Servers that use it connect with the new value."""
    crib, name = context.crib, params.name
    crib.environment.mask.learn({params.value: f"{name} of your secrets"})
    vault, waiting = crib.environment.vault, _uses(context, name)["servers"]
    async with crib.projects.editing:
        before = None
        with contextlib.suppress(StoreError):
            before = await asyncio.to_thread(vault.get, _SECRET, name)
        await asyncio.to_thread(vault.put, _SECRET, name, params.value.encode())
        await _recorded(context, "secret set", name, before)
    uses = _uses(context, name)
    # An entry that lacks something else too is not in use yet.
    return {"name": name, "replaced": before is not None, **uses, "servers": sorted({*waiting, *uses["servers"]})}


@registry.command("secret:remove", CommandEffect.CHANGES, Availability.SOCKET)
async def remove_secret(context: CommandContext, params: SecretName) -> dict[str, Any]:
    """Delete a secret. Servers that need it stop."""
    crib, name = context.crib, params.name
    vault, uses = crib.environment.vault, _uses(context, name)
    async with crib.projects.editing:
        before = None
        with contextlib.suppress(StoreError):
            # A damaged one can be removed too.
            before = await asyncio.to_thread(vault.get, _SECRET, name)
        if not await asyncio.to_thread(vault.delete, _SECRET, name):
            known = ", ".join(await asyncio.to_thread(vault.names, _SECRET)) or "none"
            raise NotFound(f"There is no secret {name!r}.", remedy=f"Secrets: {known}.")
        await _recorded(context, "secret removed", name, before)
    return {"name": name, **uses}


async def _recorded(context: CommandContext, what: str, name: str, before: bytes | None) -> None:
    """Records the change and reloads the configuration. If the change can't be recorded, it is undone."""
    vault, detail = context.crib.environment.vault, {"name": name, "via": str(context.via)}
    try:
        await context.services.record(AuditedChange(what=what, agent=context.principal.name, detail=detail))
    except StoreError as error:
        if before is None:
            await asyncio.to_thread(vault.delete, _SECRET, name)
        else:
            await asyncio.to_thread(vault.put, _SECRET, name, before)
        raise nothing_changed(error) from error
    await context.crib.projects.reload(by=context.principal.name)


@registry.command("secret:list", CommandEffect.REVEALS, Availability.SOCKET)
async def list_secrets(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the secrets and the servers that use them, and what the configuration needs but is not set. No values."""
    vault = context.crib.environment.vault
    names = await asyncio.to_thread(vault.names, _SECRET)
    damaged = await asyncio.to_thread(vault.damaged, _SECRET)
    return {
        "secrets": [{"name": name, **_uses(context, name)} for name in names],
        "missing": _missing(context),
        "damaged": [{"file": str(file), "reason": reason} for file, reason in damaged.items()],
        "key_store": await key_store(context),
    }


async def key_store(context: CommandContext) -> KeyStore | None:
    """Where the key of secrets and sign-ins is; None if that cannot be read."""
    with contextlib.suppress(StoreError):
        return await asyncio.to_thread(context.crib.environment.vault.key_store)
    return None


class MigrateSecrets(Parameters):
    to: KeyStore
    bus: str = ""
    """The address of the caller's session bus."""


@registry.command("secret:migrate", CommandEffect.CHANGES, Availability.SOCKET)
async def migrate(context: CommandContext, params: MigrateSecrets) -> dict[str, Any]:
    """Make a new key for secrets and sign-ins, in a file or the system's keyring, and encrypt them again."""
    crib = context.crib
    detail = {"to": str(params.to), "via": str(context.via)}
    async with crib.projects.editing:
        count = await asyncio.to_thread(crib.environment.vault.migrate, params.to, bus=params.bus)
        await crib.projects.reload(by=context.principal.name)
    await context.services.record(AuditedChange(what="secrets migrated", agent=context.principal.name, detail=detail))
    return {"key_store": params.to, "entries": count}


def _uses(context: CommandContext, name: str) -> dict[str, Any]:
    """The servers that use it; whether only another part of the configuration does, such as a setting or an entry that
    lacks something else; and whether a variable comes before it."""
    servers = {server.name for server in _servers(context) if name in _names_in(server)}
    waiting = {problem.server for problem in _unset(context) if _plain(problem) == name and problem.server}
    read = any(name in project.config.secrets for project in context.crib.projects)
    return {
        "servers": sorted(servers | waiting),
        "elsewhere": read and not servers,
        "environment": name in context.crib.environment.variables,
    }


def _missing(context: CommandContext) -> list[dict[str, Any]]:
    """What the caller's project needs, each with the servers that need it and the file's description."""
    problems = [problem for problem in context.project.config.problems if problem.variable]
    about = context.project.config.inputs
    return [
        {
            "name": name,
            "servers": sorted({one.server for one in problems if _plain(one) == name and one.server}),
            "about": about.get(name, "") if any(one.variable == INPUT + name for one in problems) else "",
        }
        for name in dict.fromkeys(map(_plain, problems))
    ]


def _servers(context: CommandContext) -> Iterator[ServerConfig]:
    for project in context.crib.projects:
        yield from project.config.servers.values()


def _unset(context: CommandContext) -> Iterator[Problem]:
    for project in context.crib.projects:
        yield from (problem for problem in project.config.problems if problem.variable)


def _names_in(server: ServerConfig) -> set[str]:
    """Also those that a variable of the environment hides."""
    written = (name for text in server.spelled.values() for name, _ in references(text))
    return {*server.secrets, *(name.removeprefix(INPUT) for name in written)}


def _plain(problem: Problem) -> str:
    return problem.variable.removeprefix(INPUT)
