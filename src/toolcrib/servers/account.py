"""The sign-in at one server: its tokens, kept valid for all connections of this process.

In: a server's configuration, the vault. Out: an `AccountRecord`, bound to the entry's name and address; an `Account`,
whose header the transports send. `renewal` renews the tokens in a process of its own, so that an answer with new ones
is stored even if this process is killed. `sign_in` gets the first ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from toolcrib.config.masking import Masker
from toolcrib.config.model import Grant, OAuthSettings, ServerConfig
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import ServerUnavailable, SignInFailed, StoreError, UsageError
from toolcrib.servers.post_client import PostResponse
from toolcrib.signals import with_default_signals

if TYPE_CHECKING:
    from toolcrib.servers.sign_in import Show, SignInOrder

_AHEAD = 0.1
"""The share of a token's life before its end in which it is renewed while calls go on with it."""
_MOST_AHEAD = 300.0
_MARGIN = 5.0
"""Seconds before its end in which calls wait for the new token: they may travel, and clocks differ."""
_TRY_LOCK = 0.1
_RETRY = 5.0
"""Seconds after a failed renewal in which none is tried again."""
_USELESS = 60.0
"""Seconds after a renewal in which no rejected token is renewed, if the server rejects the new token too."""
_RENEWAL = "toolcrib.servers.renewal"
LOADING_SDK = threading.Lock()
"""Held while a thread loads modules that load the MCP SDK. Its modules import each other, so two threads that begin
with different ones end in an import deadlock, which Python raises as an error."""
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_CLOSING = 1.0
_LONGEST_REASON = 4096
_MAX_SCOPES, _LONGEST_SCOPE = 64, 256
_PAST_TOKENS = 8
_LONGEST_TOKEN = 64 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]*")
_SCOPES = re.compile(
    r'\bscope=(?:"([\x20\x21\x23-\x5b\x5d-\x7e]{1,4096})"|([\x21\x23-\x2b\x2d-\x5b\x5d-\x7e]{1,4096}))'
)

_Result = TypeVar("_Result")


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    server: str
    """The entry's name."""
    url: str
    issuer: str = ""
    resource: str = ""
    """The resource indicator of token requests; empty if they have none."""
    token_url: str = ""
    revocation_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    client_auth: str = ""
    """The client's authentication at the token endpoint: `client_secret_basic`, `client_secret_post` or `none`."""
    redirect_port: int | None = None
    """The port that the client was registered with."""
    scopes: tuple[str, ...] = ()
    """As granted."""
    asked: tuple[str, ...] = ()
    """Scopes that a call lacked since, for the next sign-in."""
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float | None = None
    """Seconds since the epoch; None if unknown."""
    refreshed_at: float = 0.0
    """When these tokens were issued."""
    signed_in_at: float = 0.0
    pending: float | None = None
    """When a refresh was sent whose answer is unknown."""
    ended: str = ""
    """Why a new sign-in is needed; empty if it is not."""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.access_token) or len(self.access_token) > _LONGEST_TOKEN:
            raise ValueError("the access token is longer than a header may be, or contains characters that none may")

    def __repr__(self) -> str:
        return f"AccountRecord(server={self.server!r})"


def scopes_in(scope: str) -> tuple[str, ...]:
    """Those in an answer with tokens."""
    usable = (one for one in scope.split() if len(one) <= _LONGEST_SCOPE and _TOKEN.fullmatch(one))
    return tuple(itertools.islice(usable, _MAX_SCOPES))


def token_end(expires_in: Any, issued_at: float) -> float | None:
    """For `expires_at`. Servers write `expires_in` in several forms; None for one that cannot be true."""
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return None
    return issued_at + seconds if 0 < seconds < math.inf else None


def has_ended(record: AccountRecord) -> bool:
    """Whether the access token can't be used any more, or nobody knows."""
    return record.expires_at is None or time.time() >= record.expires_at - _MARGIN


def account_key(config: ServerConfig) -> str:
    """Another entry, another address, or an unverified certificate never gets the same account."""
    return hashlib.sha256(json.dumps([config.name, config.url, config.verify_tls]).encode()).hexdigest()[:32]


def load_account(vault: Vault, key: str) -> AccountRecord | None:
    """Raises `StoreError` if it cannot be read."""
    held = vault.get(CredentialKind.ACCOUNT, key)
    if held is None:
        return None
    try:
        return msgspec.json.decode(held, type=AccountRecord)
    except msgspec.MsgspecError as error:
        raise StoreError(f"A stored account is damaged: {error}.", remedy="Sign in again.") from None


def store_account(vault: Vault, key: str, record: AccountRecord) -> None:
    """Stored durably when this returns."""
    vault.put(CredentialKind.ACCOUNT, key, msgspec.json.encode(record))


async def signed_in(
    config: ServerConfig, vault: Vault, mask: Masker, show: Show, *, scopes: tuple[str, ...] = ()
) -> AccountRecord:
    """The record of a new sign-in; see `sign_in.sign_in`."""
    order, sign_in = await asyncio.to_thread(_load_sign_in)
    return await sign_in(order(config=config, vault=vault, mask=mask, show=show, scopes=scopes))


def _load_sign_in() -> tuple[type[SignInOrder], Callable[[SignInOrder], Awaitable[AccountRecord]]]:
    """In a thread, because it loads the SDK, which takes half a second."""
    with LOADING_SDK:
        from toolcrib.servers.sign_in import SignInOrder, sign_in  # noqa: PLC0415 - see above

    return SignInOrder, sign_in


async def locked(vault: Vault, key: str, work: Callable[[], _Result]) -> _Result:
    """Does the work in a thread, between renewals. Nothing waits in a thread: a renewal may take long, and threads are
    few."""

    def attempt() -> _Result:
        with vault.lock(CredentialKind.ACCOUNT, key, wait=False):
            return work()

    while True:
        try:
            return await asyncio.to_thread(attempt)
        except BlockingIOError:
            await asyncio.sleep(_TRY_LOCK)


async def save_account(vault: Vault, key: str, record: AccountRecord) -> None:
    """Like `store_account`, between renewals."""
    await locked(vault, key, functools.partial(store_account, vault, key, record))


@contextlib.asynccontextmanager
async def client_turn(vault: Vault, key: str) -> AsyncIterator[None]:
    """For sign-ins with a client's own credentials: one at a time, in all processes."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(vault.lock(CredentialKind.ACCOUNT, f"client {key}", wait=False))
                break
            except BlockingIOError:
                await asyncio.sleep(_TRY_LOCK)
        yield


class AccountUnusable(ServerUnavailable):
    """No request can be sent with the account now. The text is shown as it is in all places, after a call with the
    addition that it did not run."""


def login_command(name: str) -> str:
    return f"toolcrib login {'-- ' if name.startswith('-') else ''}{shlex.quote(name)}"


def sign_in_needed(config: ServerConfig, why: str = "") -> AccountUnusable:
    server = f"Server '{config.name}'"
    if config.oauth is not None and config.oauth.grant is Grant.CLIENT_CREDENTIALS:
        return AccountUnusable(
            f"{server} rejects the client's id and secret{why and f' ({why})'}. Check the entry's auth."
        )
    again = f" again ({why})" if why else ""
    return AccountUnusable(f"{server} needs a sign-in{again}: run `{login_command(config.name)}`.")


def asks_for_sign_in(name: str, error: str) -> bool:
    """Whether a server's error is one that a sign-in would end."""
    return error.startswith(f"Server '{name}' needs ")


class Account:
    """The account of one entry. Its methods may wait for a renewal, of which one runs at a time for everybody."""

    def __init__(self, config: ServerConfig, vault: Vault, mask: Masker) -> None:
        self._config = config
        self._key = account_key(config)
        self._vault = vault
        self._mask = mask
        self._record: AccountRecord | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._failed: tuple[float, AccountUnusable] | None = None
        """When the last renewal failed, by the monotonic clock, and why."""
        self._unreadable: AccountUnusable | None = None
        """Why the stored account could not be read."""
        self._useless_until = 0.0
        """By the monotonic clock; 0 if the last renewal of a rejected token helped."""
        self._tokens: list[str] = []
        """That were in use, the newest last."""
        self._due = self._ends = float("inf")
        """When the token is to be renewed, and when it can't be used any more (seconds since the epoch)."""
        self.authorization = ""
        """The header's value with the current token; empty without one."""
        self.header = b""
        """The same as a header line."""
        self.described: Mapping[str, str] | None = None
        """For the audit entries of calls; None while nobody is signed in."""

    @property
    def is_signed_in(self) -> bool:
        return self._record is not None and not self._record.ended

    async def open(self) -> None:
        """Reads the account again, for a new connection. Raises `AccountUnusable`."""
        self._unreadable = None
        try:
            await self._load()
        except AccountUnusable as error:
            if self._is_automatic:
                raise
            # The server may need no account. If it does, this is why there is none.
            self._unreadable = error
            self._take(None)
        if self._record is None and self._is_automatic:
            await self._renewed()
        elif self._record is not None and self._record.ended:
            raise sign_in_needed(self._config, self._record.ended)
        await self.current()

    async def current(self) -> bytes:
        """The header line for a request, with a token that is valid now. Raises `AccountUnusable`."""
        now = time.time()
        if now >= self._due and self._is_renewable:
            if now >= self._ends:
                await self._renewed()
            elif self._recent_failure is None:
                self._begin_renewal()
        return self.header

    async def authorized(self, send: Callable[[bytes], Awaitable[PostResponse]]) -> PostResponse:
        """Sends a request with the current token, and once more with a new one if the server rejects it.

        Raises `AccountUnusable`; the request did not run then. Raises what `send` raises.
        """
        header = await self.current()
        response = await send(header)
        if response.status == _UNAUTHORIZED:
            response.close()
            if not await self.rejected(header):
                raise self.needed()
            response = await send(self.header)
            self.repeated(response.status)
        if (refusal := await self.refusal(response.status, response.headers)) is not None:
            response.close()
            raise refusal
        return response

    async def rejected(self, header: bytes) -> bool:
        """Whether a request with this header, which got a 401, can be sent again with another one.

        Raises `AccountUnusable` if the account can't be used any more.
        """
        if header == self.header:
            await self._load()
        if header == self.header and self._is_renewable and time.monotonic() >= self._useless_until:
            await self._renewed()
            self._useless_until = time.monotonic() + _USELESS
        return bool(self.header) and header != self.header

    def repeated(self, status: int) -> None:
        """Notes the answer to a request that was sent again."""
        if status != _UNAUTHORIZED:
            self._useless_until = 0.0

    async def refusal(self, status: int, headers: Mapping[str, str]) -> AccountUnusable | None:
        """The error of a request with this answer, if a sign-in would help. Scopes that were lacking are stored for
        it."""
        if status == _UNAUTHORIZED:
            return self.needed()
        challenge = headers.get("www-authenticate", "") if status == _FORBIDDEN else ""
        if "insufficient_scope" not in challenge:
            return None
        found = _SCOPES.search(challenge)
        scopes = scopes_in(found[1] or found[2]) if found else ()
        if scopes:
            await locked(self._vault, self._key, functools.partial(self._ask_for, scopes))
        what = f" ({self._mask.line(' '.join(scopes))[:200]})" if scopes else ""
        name = self._config.name
        return AccountUnusable(f"Server '{name}' needs another permission{what}: run `{login_command(name)}`.")

    def needed(self) -> AccountUnusable:
        """The error of a request that got a 401."""
        if self._unreadable is not None:
            return self._unreadable
        why = self._record.ended or "the server rejects its token" if self._record else ""
        return sign_in_needed(self._config, why)

    def _ask_for(self, scopes: tuple[str, ...]) -> None:
        if (record := load_account(self._vault, self._key)) is not None:
            asked = tuple(dict.fromkeys((*record.asked, *scopes)))[:_MAX_SCOPES]
            store_account(self._vault, self._key, msgspec.structs.replace(record, asked=asked))

    @property
    def _is_automatic(self) -> bool:
        """Whether no person is needed to get a token."""
        return self._config.oauth is not None and self._config.oauth.grant is Grant.CLIENT_CREDENTIALS

    @property
    def _is_renewable(self) -> bool:
        return self._is_automatic or bool(self._record and self._record.refresh_token)

    async def _load(self) -> None:
        try:
            self._take(await asyncio.to_thread(load_account, self._vault, self._key))
        except StoreError as error:
            raise AccountUnusable(
                f"The account of server '{self._config.name}' is unreadable. {error.text()}"
            ) from None

    def _take(self, record: AccountRecord | None) -> None:
        self._record, self.described = record, None
        self.authorization, self.header, self._due, self._ends = "", b"", float("inf"), float("inf")
        if record is None or record.ended:
            return
        self._learn(record)
        self.described = {"account": record.server, "issuer": record.issuer}
        self.authorization = f"Bearer {record.access_token}"
        self.header = f"Authorization: {self.authorization}\r\n".encode()
        if record.expires_at is not None:
            self._ends = self._due = record.expires_at - _MARGIN
            if record.pending is None:
                # A refresh token whose use has an unknown result is used again only if nothing else is left.
                ahead = min((record.expires_at - record.refreshed_at) * _AHEAD, _MOST_AHEAD)
                self._due = record.expires_at - max(_MARGIN, ahead)

    def _learn(self, record: AccountRecord) -> None:
        """Hides the secrets in all texts, and the last tokens, which may still be quoted."""
        now = [token for token in (record.access_token, record.refresh_token) if token]
        owner = f"account of server {self._config.name}"
        self._mask.learn({secret: owner for secret in (*now, record.client_secret) if secret})
        past = [token for token in self._tokens if token not in now]
        self._mask.forget(past[:-_PAST_TOKENS])
        self._tokens = past[-_PAST_TOKENS:] + now

    async def close(self) -> None:
        """Waits a moment for a renewal. Its process ends by itself."""
        if self._renewing is not None:
            await asyncio.wait({self._renewing}, timeout=_CLOSING)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})

    def _begin_renewal(self) -> asyncio.Task[None]:
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
            self._renewing.add_done_callback(self._renewal_ended)
        return self._renewing

    def _renewal_ended(self, task: asyncio.Task[None]) -> None:
        self._renewing = None
        error = None if task.cancelled() else task.exception()
        self._failed = (time.monotonic(), error) if isinstance(error, AccountUnusable) else None

    @property
    def _recent_failure(self) -> AccountUnusable | None:
        return self._failed[1] if self._failed and time.monotonic() < self._failed[0] + _RETRY else None

    async def _renewed(self) -> None:
        """Waits for a renewal. A caller that is cancelled doesn't end it for the others."""
        if (failure := self._recent_failure) is not None:
            raise failure
        await asyncio.shield(self._begin_renewal())

    async def _renew(self) -> None:
        before = self._record
        if self._is_automatic:
            why = await self._by_credentials(before)
        else:
            why = await self._by_process(before)
        await self._load()
        after = self._record
        if after is not None and not after.ended and (before is None or after.refreshed_at != before.refreshed_at):
            return
        if after is None or after.ended:
            raise sign_in_needed(self._config, after.ended if after else "")
        why = why or "the attempt was ended."
        raise AccountUnusable(f"The sign-in at server '{self._config.name}' could not be renewed: {why}")

    async def _by_process(self, before: AccountRecord | None) -> str:
        """Returns why it failed; empty if it did not, or if the reason is in the record."""
        order = {
            "paths": {name: str(path) for name, path in asdict(self._vault.paths).items()},
            "key": self._key,
            "verify_tls": self._config.verify_tls,
            "refreshed_at": before.refreshed_at if before else 0.0,
            "pending": before.pending if before else None,
        }
        try:
            said = await _run_apart([sys.executable, "-P", "-m", _RENEWAL], json.dumps(order).encode())
        except OSError as error:
            return f"a process for it could not be started: {error.strerror}."
        return self._mask.line(said.decode(errors="replace").strip())

    async def _by_credentials(self, before: AccountRecord | None) -> str:
        """The same, with the client's own id and secret."""

        async def nobody(*_: object) -> None:
            raise SignInFailed("it asks for a person to sign in.")

        try:
            async with client_turn(self._vault, self._key):
                await self._load()
                if self._record == before:
                    await signed_in(self._config, self._vault, self._mask, nobody)
        except (SignInFailed, UsageError, StoreError) as error:
            return error.text()
        return ""


async def _run_apart(command: list[str], given: bytes) -> bytes:
    """The output of a program that goes on when this process ends: it forks once it has read what is given."""
    # Event loops close a pipe's descriptor twice, and the second time it may be another thread's file.
    ours, theirs = socket.socketpair()

    def start() -> None:
        # Closed here: a caller that is cancelled does not wait for this thread.
        with theirs:
            pipes: Any = {"input": given, "stdout": theirs, "stderr": subprocess.DEVNULL}
            subprocess.run(with_default_signals(command), start_new_session=True, check=False, **pipes)

    try:
        await asyncio.to_thread(start)
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        ours.close()
        raise
    try:
        return await reader.read(_LONGEST_REASON)
    finally:
        writer.close()


class Accounts:
    """The accounts of a process: all connections of an entry share one."""

    def __init__(self, vault: Vault, mask: Masker) -> None:
        self._vault = vault
        self._mask = mask
        self._by_key: dict[tuple[str, OAuthSettings], Account] = {}

    def of(self, config: ServerConfig) -> Account | None:
        """None if the server can't have one."""
        if config.oauth is None:
            return None
        key = account_key(config), config.oauth
        if key not in self._by_key:
            self._by_key[key] = Account(config, self._vault, self._mask)
        return self._by_key[key]

    async def close(self) -> None:
        await asyncio.gather(*(account.close() for account in self._by_key.values()))
