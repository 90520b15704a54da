"""account:* — sign in at a server, sign out, and list the accounts.

In: a server's name. Out: its account without tokens, and the server's state. `servers.sign_in` does the work in this
process, because the browser's answer arrives here; the command line opens the address that comes as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.commands.server import ServerName, configured_server, describe_server
from toolcrib.config.auth import keeps_secrets
from toolcrib.config.model import Grant, ServerConfig
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import NotFound, SignInFailed, StoreError, UsageError
from toolcrib.events import AuditedChange
from toolcrib.servers.account import AccountRecord, account_key, client_turn, load_account, signed_in
from toolcrib.servers.sign_out import delete_account, revoke
from toolcrib.servers.web import shown_url

if TYPE_CHECKING:
    from toolcrib.servers.redirect_listener import RedirectListener

_TELL_AGAIN = 1.0
"""Seconds between two events while the browser is waited for."""


class AccountState(enum.StrEnum):
    OK = "ok"
    NEEDS_SIGN_IN = "needs a sign-in"
    LACKS_PERMISSION = "lacks a permission"


class SignIn(Parameters):
    name: str
    scopes: list[str] = Field(default_factory=list)
    """Asked for instead of those in the entry or of the server."""


@registry.command("account:login", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.NAMED)
async def login(context: CommandContext, params: SignIn) -> dict[str, Any]:
    """Sign in at a server, in the browser, and connect to it. Cancelling ends the sign-in."""
    config = configured_server(context, params.name)
    _refuse_other_credentials(config)
    key, vault = account_key(config), context.crib.environment.vault
    # Connections sign in with a client's own credentials too, at any time.
    turn = client_turn(vault, key) if _is_automatic(config) else contextlib.nullcontext()
    try:
        async with turn:
            record = await _sign_in(context, config, tuple(params.scopes))
    except SignInFailed as error:
        await _record(context, "sign-in failed", params.name, reason=error.message)
        raise
    await _record(context, "signed in", params.name, issuer=record.issuer, scopes=list(record.scopes))
    await _reconnect(context, key)
    return {**describe_server(context, params.name), "account": describe_account(record, config)}


def _refuse_other_credentials(config: ServerConfig) -> None:
    if config.oauth is not None:
        return
    name = config.name
    if not config.url:
        raise UsageError(
            f"'{name}' is a program on this machine, so there is nothing to sign in at.",
            remedy="It gets its credentials from `env` in its entry.",
        )
    if not keeps_secrets(config.url):
        raise UsageError(
            f"'{name}' has an address without TLS, so no tokens are sent to it.",
            remedy="Use its https:// address, or set its headers.",
        )
    raise UsageError(
        f"The entry of '{name}' has other credentials: `auth` or an Authorization header.",
        remedy="Remove them from the entry to sign in instead.",
    )


def _is_automatic(config: ServerConfig) -> bool:
    """Whether no person is needed."""
    return config.oauth is not None and config.oauth.grant is Grant.CLIENT_CREDENTIALS


async def _sign_in(context: CommandContext, config: ServerConfig, scopes: tuple[str, ...]) -> AccountRecord:
    here = context.crib.environment
    shown_at: float | None = None

    async def show(url: str, listener: RedirectListener) -> None:
        nonlocal shown_at
        shown_at = time.monotonic()
        await context.emit({"open": url, "redirect": listener.url})

    signing = asyncio.create_task(signed_in(config, here.vault, here.mask, show, scopes=scopes))
    try:
        while not (await asyncio.wait({signing}, timeout=_TELL_AGAIN))[0]:
            if shown_at is not None:
                await context.emit({"progress": f"waiting for the browser… {time.monotonic() - shown_at:.0f} s"})
        return signing.result()
    finally:
        signing.cancel()
        await asyncio.wait({signing})


async def _reconnect(context: CommandContext, key: str) -> None:
    """In all projects, also the instances that agents have for themselves."""
    servers = [one for one in context.crib.projects.pool.servers if account_key(one.config) == key]
    await asyncio.gather(*(server.restart() for server in servers))


@registry.command("account:logout", CommandEffect.CHANGES, Availability.SOCKET)
async def logout(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Sign out: delete the accounts of this name, and revoke their tokens."""
    config = context.project.config.servers.get(params.name)
    here, own = context.crib.environment, None if config is None else account_key(config)
    if config is not None and _is_automatic(config):
        raise UsageError(
            f"'{params.name}' signs in by itself, with the client's credentials in its entry.",
            remedy=f"Disable it with: toolcrib disable {params.name}",
        )
    keys = [key for key, record in (await _accounts(here.vault)).items() if record.server == params.name]
    if not keys:
        raise NotFound(f"There is no account of {params.name!r}.", remedy="`toolcrib accounts` lists the accounts.")
    ended: list[dict[str, Any]] = []
    for key in keys:
        verify_tls = config is None or key != own or config.verify_tls
        if (record := await delete_account(here.vault, key)) is not None:
            why = "the command was cancelled"
            try:
                # At once, because running servers have the tokens in memory, and a revocation can take long.
                why, _ = await asyncio.gather(
                    revoke(record, here.mask, verify_tls=verify_tls), _reconnect(context, key)
                )
            finally:
                await _record(context, "signed out", params.name, issuer=record.issuer, revoked=why or "yes")
            ended.append({**describe_account(record), "not_revoked": why})
    return {"server": params.name, "accounts": ended}


@registry.command("account:list", CommandEffect.REVEALS, Availability.SOCKET, scope=CommandScope.PROJECT)
async def accounts(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the accounts: where you are signed in, with which scopes, and until when."""
    vault = context.crib.environment.vault
    used = {account_key(config): config for config in context.project.config.servers.values() if config.oauth}
    found = await _accounts(vault)
    rows = [{**describe_account(record, used.get(key)), "in_use": key in used} for key, record in found.items()]
    damaged = await asyncio.to_thread(vault.damaged, CredentialKind.ACCOUNT)
    return {
        "accounts": sorted(rows, key=lambda row: (row["server"], row["url"])),
        "problems": [f"{file}: {why}" for file, why in damaged.items()],
    }


async def _accounts(vault: Vault) -> dict[str, AccountRecord]:
    """By key; without those that cannot be read."""

    def read() -> dict[str, AccountRecord]:
        keys = vault.names(CredentialKind.ACCOUNT)
        return {key: record for key in keys if (record := load_account(vault, key)) is not None}

    return await asyncio.to_thread(read)


async def account_of(context: CommandContext, config: ServerConfig) -> dict[str, Any] | None:
    """A server's account for display; None if it has none, or if it cannot be read."""
    try:
        record = await asyncio.to_thread(load_account, context.crib.environment.vault, account_key(config))
    except StoreError:
        return None
    return None if record is None or config.oauth is None else describe_account(record, config)


def describe_account(record: AccountRecord, config: ServerConfig | None = None) -> dict[str, Any]:
    """For display, without tokens. `config` is the entry that uses it."""
    renewed = bool(record.refresh_token) or (config is not None and _is_automatic(config))
    state, reason = AccountState.OK, ""
    over = record.expires_at is not None and record.expires_at <= time.time()
    if record.ended or (over and not renewed):
        state, reason = AccountState.NEEDS_SIGN_IN, record.ended or "its token has expired"
    elif record.asked:
        state, reason = AccountState.LACKS_PERMISSION, " ".join(record.asked)
    return {
        "server": record.server,
        "url": shown_url(record.url),
        "issuer": record.issuer,
        "scopes": list(record.scopes),
        "signed_in_at": record.signed_in_at,
        "expires_at": None if record.ended else record.expires_at,
        "renewed": renewed,
        "state": state,
        "reason": reason,
    }


async def _record(context: CommandContext, what: str, server: str, **more: Any) -> None:
    change = AuditedChange(what=what, agent=context.principal.name, detail={"server": server, **more})
    await context.services.record(change)
