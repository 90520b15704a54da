"""Signs a person in at a server, with OAuth: discovery, registration, the browser, tokens.

In: the server's configuration, and a function that shows the person an address to open. Out: an `AccountRecord`, stored
in the vault. The flow is the SDK's, and this is the only module that touches its OAuth provider: its requests are sent
by `checked_http`, its browser answers in `redirect_listener`. The hot path and refreshes don't use it.

Importing this module loads the SDK, so commands import it late.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import (
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    is_valid_client_metadata_url,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from mcp_types.version import LATEST_PROTOCOL_VERSION
from pydantic import AnyHttpUrl, AnyUrl

from toolcrib import __version__
from toolcrib.config.masking import Masker
from toolcrib.config.model import Grant, OAuthSettings, ServerConfig, Transport
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import AlreadyRunning, PortTaken, SignInFailed, UsageError
from toolcrib.servers.account import AccountRecord, account_key, load_account, save_account, scopes_in, token_end
from toolcrib.servers.checked_http import CheckedAnswer, CheckedHttp, system_addresses
from toolcrib.servers.client_assertion import signed_assertion
from toolcrib.servers.oauth_documents import OAuthDocuments, cut, error_in
from toolcrib.servers.post_client import Resolve
from toolcrib.servers.redirect_listener import PATH, RedirectListener, redirect_listener
from toolcrib.servers.web import shown_url

# It logs whole answers of token endpoints.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)

PERSON_WITHIN = 300.0
"""Seconds that a person has to sign in."""
_OURS = {"Accept": "application/json", "User-Agent": f"toolcrib/{__version__}", "Connection": "close"}
_FORGOTTEN = frozenset({"invalid_client", "unauthorized_client"})
"""How an authorization server answers a client that it no longer knows."""
_PROBE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": LATEST_PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}

Show = Callable[[str, RedirectListener], Awaitable[None]]
"""Gets the address to open, and the listener to which the browser will be redirected."""


class _ClientGone(Exception):
    """The authorization server no longer knows the registered client."""


@dataclass(frozen=True, kw_only=True)
class SignInOrder:
    config: ServerConfig
    vault: Vault
    mask: Masker
    show: Show
    scopes: tuple[str, ...] = ()
    """Asked for instead of those in the entry or of the server."""
    resolve: Resolve = system_addresses


async def sign_in(order: SignInOrder) -> AccountRecord:
    """The record is stored durably when this returns. Raises `SignInFailed`, `UsageError` if the server needs no
    sign-in, `AlreadyRunning`, `PortTaken`, `StoreError`."""
    config, vault = order.config, order.vault
    key = account_key(config)
    async with contextlib.AsyncExitStack() as stack:
        try:
            stack.enter_context(vault.lock(CredentialKind.ACCOUNT, f"sign-in {key}", wait=False))
        except BlockingIOError:
            raise AlreadyRunning(
                f"A sign-in at '{config.name}' is in progress.",
                remedy="Finish it in the browser, or end it with Ctrl-C where it was started.",
            ) from None
        try:
            http = CheckedHttp(_http_url(config), verify_tls=config.verify_tls, resolve=order.resolve)
            record = await _signed_in(order, await stack.enter_async_context(http))
        except SignInFailed as error:
            text = order.mask.line(f"Signing in at '{config.name}' failed: {error.message}")
            raise SignInFailed(text, remedy=error.remedy, data={"server": config.name}) from None
        await save_account(vault, key, record)
        return record


async def _signed_in(order: SignInOrder, http: CheckedHttp) -> AccountRecord:
    settings = order.config.oauth or OAuthSettings()
    before = await asyncio.to_thread(load_account, order.vault, account_key(order.config))
    if settings.grant is Grant.CLIENT_CREDENTIALS:
        try:
            return await _Flow(order, http, None, before, None).run()
        except _ClientGone:
            raise SignInFailed("its authorization server rejects the client.", remedy=_CHECK_CLIENT) from None
    known = before if before and _is_reusable(before, settings) else None
    for client in (known, None):
        async with contextlib.AsyncExitStack() as stack:
            wanted = settings.redirect_port or (client.redirect_port if client else 0) or 0
            try:
                listener = await stack.enter_async_context(redirect_listener(wanted))
            except OSError as error:
                if wanted == settings.redirect_port:
                    raise PortTaken(
                        f"Port {wanted}, the redirect_port of '{order.config.name}', cannot be used: {error.strerror}.",
                        remedy="End the program that uses it, or register and set another port.",
                    ) from None
                # The client was registered with another address, so a new one is needed.
                continue
            try:
                return await _Flow(order, http, listener, before, client).run()
            except _ClientGone:
                if client is None:
                    raise SignInFailed("its authorization server rejects the client.", remedy=_CHECK_CLIENT) from None
    raise SignInFailed("no port of this machine can receive the browser's answer.")


_CHECK_CLIENT = "Check the client's details in the entry's auth."


def _is_reusable(record: AccountRecord, settings: OAuthSettings) -> bool:
    """Whether the last sign-in's registered client can be used again."""
    # Other endpoints must not get the registered client's secret.
    configured = settings.client_id or settings.client_metadata_url or settings.token_url
    return record.redirect_port is not None and not record.ended and not configured


class _Storage:
    """The SDK's view of what is stored: only the client."""

    def __init__(self, client: OAuthClientInformationFull | None, learn: Callable[..., None]) -> None:
        self._client = client
        self._learn = learn

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._learn(tokens.access_token, tokens.refresh_token)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._learn(client_info.client_secret)


class _ClientCredentials(OAuthClientProvider):
    """The SDK's flow without a person. The SDK's own class for it warns unless the issuer is known beforehand."""

    def __init__(self, url: str, storage: _Storage, token_request: Callable[[], httpx2.Request]) -> None:
        super().__init__(url, OAuthClientMetadata(redirect_uris=None, grant_types=["client_credentials"]), storage)
        self._token_request = token_request

    async def _perform_authorization(self) -> httpx2.Request:
        return self._token_request()


class _Flow:
    """One run of the SDK's flow."""

    def __init__(
        self,
        order: SignInOrder,
        http: CheckedHttp,
        listener: RedirectListener | None,
        before: AccountRecord | None,
        reused: AccountRecord | None,
    ) -> None:
        """Without a `listener`, the client's own credentials are used, and no person is needed."""
        self._order = order
        self._settings = order.config.oauth or OAuthSettings()
        self._given = bool(self._settings.auth_url or (listener is None and self._settings.token_url))
        """Whether the endpoints are in the entry."""
        self._http = http
        self._listener = listener
        self._before = before
        self._url = _http_url(order.config)
        self._challenged = False
        self._documents = OAuthDocuments(http, needs_pkce=listener is not None)
        self._sent_at = 0.0
        more = before.scopes + before.asked if before and before.asked and not order.scopes else ()
        self._more = " ".join(dict.fromkeys(more))
        """Scopes besides the usual ones."""
        if (url := self._settings.client_metadata_url) and not is_valid_client_metadata_url(url):
            raise SignInFailed("its client_metadata_url is not an https address of a document.", remedy=_CHECK_CLIENT)
        self._provider = self._made_provider(_Storage(self._client(reused), self._learn))
        self._context = self._provider.context

    def _made_provider(self, storage: _Storage) -> OAuthClientProvider:
        # Its query may hold a key, and would be the resource in requests to the authorization server.
        url = self._url.partition("?")[0]
        if self._listener is None:
            return _ClientCredentials(url, storage, self._token_request)
        redirect = [AnyUrl(self._listener.url)]
        return OAuthClientProvider(
            url,
            OAuthClientMetadata(redirect_uris=redirect, client_name="Toolcrib", scope=self._more or None),
            storage,
            redirect_handler=functools.partial(self._send_person, self._listener),
            callback_handler=functools.partial(self._person_returns, self._listener),
            client_metadata_url=self._settings.client_metadata_url or None,
        )

    def _learn(self, *secrets: str | None) -> None:
        owner = f"account of server {self._order.config.name}"
        self._order.mask.learn({secret: owner for secret in secrets if secret})

    def _client(self, reused: AccountRecord | None) -> OAuthClientInformationFull | None:
        settings = self._settings
        if settings.client_id:
            return OAuthClientInformationFull(
                client_id=settings.client_id, client_secret=settings.client_secret or None
            )
        if reused is None:
            return None
        return OAuthClientInformationFull(
            client_id=reused.client_id,
            client_secret=reused.client_secret or None,
            token_endpoint_auth_method=reused.client_auth,
            issuer=reused.issuer,
        )

    async def run(self) -> AccountRecord:
        self._http.check(self._url, "The server's address")
        request = httpx2.Request(
            "POST", self._url, json=_PROBE, headers={"MCP-Protocol-Version": LATEST_PROTOCOL_VERSION}
        )
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            response = await self._probed(outgoing)
            while (outgoing := await flow.asend(response)) is not request:
                response = await self._answered(outgoing)
        except (OAuthTokenError, OAuthRegistrationError) as error:
            # The rest may quote tokens.
            raise SignInFailed(f"{cut(str(error).partition(':')[0])}.") from None
        except OAuthFlowError as error:
            raise SignInFailed(f"{cut(str(error))}.") from None
        except OverflowError:
            raise SignInFailed("the token's lifetime is not a possible number of seconds.") from None
        finally:
            await flow.aclose()
        try:
            return self._record()
        except ValueError as error:
            raise SignInFailed(f"its authorization server sent a token that cannot be used: {error}.") from None

    # The requests.

    async def _probed(self, request: httpx2.Request) -> httpx2.Response:
        """Asks the server without credentials, for what it demands."""
        config = self._order.config
        headers = {**config.headers, **_OURS, "MCP-Protocol-Version": LATEST_PROTOCOL_VERSION}
        if config.transport in (Transport.HTTP, Transport.STDIO):
            headers |= {
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
                "Mcp-Method": "server/discover",
            }
            answer = await self._http.send("POST", self._url, headers, request.content)
        else:
            answer = await self._http.send("GET", self._url, {**headers, "Accept": "text/event-stream"})
        self._challenged = answer.status in (401, 403)
        real = httpx2.Response(answer.status, headers=dict(answer.headers), request=request)
        return self._challenge(real if self._challenged else httpx2.Response(401, request=request), request)

    def _challenge(self, real: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        """The server's demand, with the scopes that we want."""
        scope = " ".join(self._order.scopes or self._settings.scopes) or extract_scope_from_www_auth(real)
        fields = {"resource_metadata": extract_resource_metadata_from_www_auth(real)}
        if scope:
            fields["scope"] = union_scopes(scope, self._more)
        # Then the SDK adds the scopes in the server's metadata to ours.
        adds = bool(self._more and not scope)
        if adds:
            fields["error"] = "insufficient_scope"
        written = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        return httpx2.Response(403 if adds else 401, headers={"WWW-Authenticate": f"Bearer {written}"}, request=request)

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        if request.method == "GET":
            return await self._document(url, request)
        kind = request.headers.get("Content-Type", "")
        registers = kind.startswith("application/json")
        if registers:
            self._check_registration()
        self._sent_at = time.time()
        headers = {**_OURS, "Content-Type": kind}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        answer = await self._http.send("POST", url, headers, request.content)
        if answer.status not in (200, 201):
            self._refuse(url, answer, "the registration of a client" if registers else "the request for a token")
        return _response(answer, request)

    async def _document(self, url: str, request: httpx2.Request) -> httpx2.Response:
        if self._given:
            return self._given_document(url, request)
        answer = await self._http.send("GET", url, {**_OURS, "MCP-Protocol-Version": LATEST_PROTOCOL_VERSION})
        if answer.elsewhere:
            self._documents.obstacles.append(f"{shown_url(url)} redirects to another host ({answer.elsewhere})")
        elif answer.status == 200:
            self._documents.check(url, answer.body)
        elif answer.status not in (404, 405):
            self._documents.obstacles.append(f"{shown_url(url)} answered with HTTP {answer.status}")
        return _response(answer, request)

    def _given_document(self, url: str, request: httpx2.Request) -> httpx2.Response:
        """The endpoints in the entry, in place of a document."""
        if "oauth-protected-resource" in urlsplit(url).path:
            return httpx2.Response(404, request=request)
        document = {
            "issuer": _origin(self._url),
            "authorization_endpoint": self._settings.auth_url or self._settings.token_url,
            "token_endpoint": self._settings.token_url,
        }
        return httpx2.Response(200, json=document, request=request)

    def _check_metadata(self) -> None:
        """Raises if the SDK would guess endpoints that nobody named."""
        why = f" ({'; '.join(self._documents.obstacles)})" if self._documents.obstacles else ""
        found = self._context.oauth_metadata is not None
        if not found and self._context.auth_server_url:
            issuer = cut(shown_url(self._context.auth_server_url))
            raise SignInFailed(f"its authorization server {issuer} publishes no usable metadata{why}.")
        if not found and not self._challenged:
            raise UsageError(f"Server '{self._order.config.name}' needs no sign-in: it answers without one.")
        if not found and why:
            raise SignInFailed(f"it publishes no usable metadata{why}.", remedy=_OTHERWISE)

    def _check_registration(self) -> None:
        self._check_metadata()
        metadata = self._context.oauth_metadata
        if metadata is not None and metadata.registration_endpoint is None and self._listener is not None:
            raise SignInFailed(
                f"{shown_url(str(metadata.issuer))} does not register clients by itself.",
                remedy=f"Register one there, with a redirect address such as http://127.0.0.1:8666{PATH}, and set "
                "`auth: {type: oauth, client_id: …, client_secret: …, redirect_port: 8666}` in the entry.",
            )

    def _refuse(self, url: str, answer: CheckedAnswer, what: str) -> None:
        """An endpoint's answer is an error."""
        where = shown_url(url)
        if answer.elsewhere:
            raise SignInFailed(f"{where} redirects {what} to another address ({answer.elsewhere}).")
        code, text = error_in(answer.body)
        if code in _FORGOTTEN and not what.startswith("the registration"):
            raise _ClientGone
        if self._context.oauth_metadata is None and what.startswith("the registration"):
            raise SignInFailed("it demands credentials, but publishes no way to sign in.", remedy=_OTHERWISE)
        raise SignInFailed(f"{where} refused {what} (HTTP {answer.status}{text}).")

    def _check_server(self) -> None:
        """Before the authorization server gets anything."""
        self._check_metadata()
        self._choose_client_auth()
        if self._settings.token_url and self._context.oauth_metadata:
            self._context.oauth_metadata.token_endpoint = AnyHttpUrl(self._settings.token_url)
        issuer = self._issuer()
        if self._settings.issuer and not issuers_match(issuer, self._settings.issuer):
            raise SignInFailed(
                f"it names the authorization server {shown_url(issuer)}, but the entry's auth names "
                f"{shown_url(self._settings.issuer)}.",
                remedy=_CHECK_CLIENT,
            )
        if self._settings.client_id and self._before and self._before.issuer not in ("", issuer):
            raise SignInFailed(
                f"it now names another authorization server, {shown_url(issuer)}, which would get the client's secret "
                f"for {shown_url(self._before.issuer)}.",
                remedy=f"If that is right, run `toolcrib logout {self._order.config.name}` first.",
            )

    def _token_request(self) -> httpx2.Request:
        """A request for a token with the client's own credentials."""
        self._check_server()
        context, settings = self._context, self._settings
        form, headers = {"grant_type": "client_credentials"}, {"Content-Type": "application/x-www-form-urlencoded"}
        if settings.private_key:
            form |= signed_assertion(settings, self._issuer())
        else:
            form, headers = context.prepare_token_auth(form, headers)
        if context.should_include_resource_param(context.protocol_version):
            form["resource"] = context.get_resource_url()
        if context.client_metadata.scope:
            form["scope"] = context.client_metadata.scope
        return httpx2.Request("POST", self._provider._get_token_endpoint(), data=form, headers=headers)

    # The person.

    async def _send_person(self, listener: RedirectListener, url: str) -> None:
        self._check_server()
        await self._http.check_host(url, "The authorization address")
        listener.expect(parse_qs(urlsplit(url).query)["state"][-1])
        await self._order.show(url, listener)

    async def _person_returns(self, listener: RedirectListener) -> AuthorizationCodeResult:
        try:
            async with asyncio.timeout(PERSON_WITHIN):
                given = await listener.answer()
        except TimeoutError:
            raise SignInFailed(
                f"nobody signed in within {PERSON_WITHIN / 60:.0f} minutes.", remedy="Run the command again."
            ) from None
        if error := given.get("error", ""):
            if error in _FORGOTTEN:
                raise _ClientGone
            text = ": ".join(filter(None, (error, given.get("error_description"))))
            raise SignInFailed(f"the authorization server answered: {cut(text).rstrip('.')}.")
        iss = None if self._given else given.get("iss")
        return AuthorizationCodeResult(code=given.get("code", ""), state=given["state"], iss=iss)

    def _choose_client_auth(self) -> None:
        client, metadata = self._context.client_info, self._context.oauth_metadata
        if client is None or client.token_endpoint_auth_method is not None:
            return
        offered = (metadata and metadata.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
        posts = "client_secret_post" in offered and "client_secret_basic" not in offered
        secret = "client_secret_post" if posts else "client_secret_basic"
        client.token_endpoint_auth_method = secret if client.client_secret else "none"

    def _issuer(self) -> str:
        if self._given:
            return _origin(self._settings.token_url)
        metadata = self._context.oauth_metadata
        return str(metadata.issuer) if metadata else _origin(self._url)

    def _record(self) -> AccountRecord:
        context, config = self._context, self._order.config
        tokens, client, metadata = context.current_tokens, context.client_info, context.oauth_metadata
        assert tokens is not None and client is not None  # noqa: S101 - the flow has ended
        registered = not (self._settings.client_id or client.client_id == self._settings.client_metadata_url)
        return AccountRecord(
            server=config.name,
            url=config.url,
            issuer=self._issuer(),
            resource=context.get_resource_url(),
            token_url=self._provider._get_token_endpoint(),
            revocation_url=str((metadata and metadata.revocation_endpoint) or ""),
            client_id=client.client_id,
            client_secret=client.client_secret or "",
            client_auth=client.token_endpoint_auth_method or "none",
            redirect_port=self._listener.port if registered and self._listener else None,
            scopes=scopes_in(tokens.scope or ""),
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or "",
            expires_at=token_end(tokens.expires_in, self._sent_at),
            refreshed_at=self._sent_at,
            signed_in_at=self._sent_at,
        )


_OTHERWISE = "Set the server's auth or headers, if it accepts a key or a token."


def _http_url(config: ServerConfig) -> str:
    scheme, rest = config.url.split("://", 1)
    return f"{ {'ws': 'http', 'wss': 'https'}.get(scheme.lower(), scheme.lower()) }://{rest}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _response(answer: CheckedAnswer, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(answer.status, content=answer.body, request=request)
