"""`auth:` → one header, or how to sign in.

In: the mapping under `auth`. Out: the header's name and value, `OAuthSettings`, or None; `with_token` reads a token
file again for each connection. `servers.account` keeps the tokens of a sign-in.

    {type: none}
    {type: bearer, token}                       Authorization: Bearer <token>
    {type: basic, username, password}           Authorization: Basic <both in base64>
    {type: api_key, apiKey, headerName}         X-API-Key by default
    {type: token_file, tokenPath, headerName}   the file's content, as a bearer token if there is no headerName
    {type: oauth}                               details: clientId, clientSecret, scopes, authUrl, tokenUrl, …
    {type: client_credentials, clientId, clientSecret}    or privateKey in place of clientSecret; issuer
"""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from toolcrib.config.keys import AUTH_KEYS, ConfigField, known_fields, normalized_key
from toolcrib.config.model import Grant, OAuthSettings, ServerConfig, TokenFile
from toolcrib.config.parse import Unreadable
from toolcrib.config.problems import describe, describe_type
from toolcrib.config.read import read_bytes
from toolcrib.config.values import ValueReader

_TOKEN_FILE_LIMIT = 64 * 1024
_KINDS = "none, bearer, basic, api_key, token_file, oauth or client_credentials"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LARGEST_PORT = 65_535
_SECRET = ("client_secret", "private_key")


class AuthHeader(NamedTuple):
    name: str
    value: str
    file: TokenFile | None = None
    """The file that the value was read from."""


def with_token(config: ServerConfig) -> ServerConfig:
    """The configuration with the current content of its token file. Raises `Unreadable`."""
    file = config.token_file
    if file is None:
        return config
    headers = {**config.headers, file.header: file.before + _token_in(file.path)}
    return dataclasses.replace(config, headers=MappingProxyType(headers))


def has_new_token(config: ServerConfig) -> bool:
    """Whether the token file has changed since the headers were made."""
    try:
        return with_token(config).headers != config.headers
    except Unreadable:
        return False


def read_auth(field: ConfigField, values: ValueReader) -> AuthHeader | OAuthSettings | None:
    report = values.report
    if not isinstance(field.value, Mapping):
        report.error(field.path, found=describe_type(field.value), expected=f"a mapping with type: {_KINDS}")
        return None
    given = known_fields(field.value, field.path, AUTH_KEYS, report)
    kind = given.get("type")
    match normalized_key(kind.value) if kind and isinstance(kind.value, str) else None:
        case "none":
            return None
        case "bearer":
            return _bearer(_required(given, "token", field, values), values)
        case "basic":
            return _basic(given, field, values)
        case "api_key":
            header = _header_name(given, values) or "X-API-Key"
            return _plain_header(header, _required(given, "api_key", field, values), values)
        case "token_file":
            return _from_file(given, field, values)
        case "oauth":
            return _oauth(given, field, values)
        case "client_credentials":
            for name in ("client_id", "private_key" if "private_key" in given else "client_secret"):
                _required(given, name, field, values)
            return _oauth(given, field, values, grant=Grant.CLIENT_CREDENTIALS)
        case _:
            where = kind or field
            report.error(where.path, found=describe(kind.value) if kind else "no type", expected=_KINDS)
    return None


def _required(
    given: Mapping[str, ConfigField], name: str, auth: ConfigField, values: ValueReader
) -> ConfigField | None:
    if name not in given:
        values.report.error(auth.path, found=f"no {name}", expected=f"{name} beside type")
    return given.get(name)


def _header_name(given: Mapping[str, ConfigField], values: ValueReader) -> str | None:
    """Variables are not expanded, because messages show header names."""
    field = given.get("header_name")
    if field and not isinstance(field.value, str):
        values.report.error(field.path, found=describe(field.value), expected="a header name")
    return str(field.value) if field else None


def _bearer(token: ConfigField | None, values: ValueReader) -> AuthHeader | None:
    into = ("headers", "Authorization")
    text = values.text(token, into=into, secret=True) if token else None
    if text is None:
        return None
    if into in values.spelled:
        values.spelled[into] = f"Bearer {values.spelled[into]}"
    return AuthHeader("Authorization", f"Bearer {text}")


def _basic(given: Mapping[str, ConfigField], auth: ConfigField, values: ValueReader) -> AuthHeader | None:
    into = ("headers", "Authorization")
    fields = [_required(given, name, auth, values) for name in ("username", "password")]
    texts = [values.text(field, into=into, secret=True) if field else None for field in fields]
    if fields[0] and ":" in (texts[0] or ""):
        values.report.error(fields[0].path, found="a colon", expected="a name without one")
    if None in texts:
        return None
    if into in values.spelled:
        values.spelled[into] = "Basic " + ":".join(str(field.value) for field in fields if field)
    return AuthHeader("Authorization", f"Basic {base64.b64encode(':'.join(map(str, texts)).encode()).decode()}")


def _plain_header(header: str, secret: ConfigField | None, values: ValueReader) -> AuthHeader | None:
    text = values.text(secret, into=("headers", header), secret=True) if secret else None
    return None if text is None else AuthHeader(header, text)


def _from_file(given: Mapping[str, ConfigField], auth: ConfigField, values: ValueReader) -> AuthHeader | None:
    field = _required(given, "token_path", auth, values)
    path = values.folder_or_file(field, into=("auth", "token_path")) if field else None
    if field is None or path is None:
        return None
    try:
        token = _token_in(path)
    except Unreadable as error:
        values.report.error(field.path, found=error.found, expected=error.expected)
        return None
    named = _header_name(given, values)
    file = TokenFile(path=path, header=named or "Authorization", before="" if named else "Bearer ")
    return AuthHeader(file.header, file.before + token, file)


def _oauth(
    given: Mapping[str, ConfigField], auth: ConfigField, values: ValueReader, grant: Grant = Grant.SIGN_IN
) -> OAuthSettings:
    texts = ("client_id", *_SECRET, "client_metadata_url", "auth_url", "token_url", "issuer")
    found: dict[str, Any] = {
        name: values.text(given[name], into=("auth", name), secret=name in _SECRET) or ""
        for name in texts
        if name in given
    }
    for name in ("client_metadata_url", "auth_url", "token_url", "issuer"):
        if found.get(name) and not (found[name].startswith("http") and keeps_secrets(found[name])):
            values.report.error(
                given[name].path,
                found=describe(given[name].value),
                expected="an https:// address without user or password; http:// only for this machine",
            )
    if "auth_url" in given:
        # Nothing is discovered then, so nobody could register a client either.
        for name in ("token_url", "client_id"):
            _required(given, name, auth, values)
    if field := given.get("scopes"):
        listed = values.texts(field, into="scopes") if isinstance(field.value, list) else None
        text = values.text(field, into=("auth", "scopes")) if listed is None else None
        found["scopes"] = listed or tuple((text or "").split())
    if field := given.get("redirect_port"):
        port = values.number(field, least=1, most=_LARGEST_PORT, whole=True)
        found["redirect_port"] = None if port is None else int(port)
    return OAuthSettings(grant=grant, **found)


def keeps_secrets(url: str) -> bool:
    """Whether tokens may be sent there: over TLS, or to this machine."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or not url.isprintable() or " " in url:
        return False
    return parts.scheme in {"https", "wss"} or host in _LOOPBACK


def _token_in(path: Path) -> str:
    try:
        token = read_bytes(path, _TOKEN_FILE_LIMIT, private=True).decode("ascii").strip()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "no content"
        raise Unreadable(found=f"an unreadable file ({reason})", expected="a file with a token") from None
    except ValueError:
        raise Unreadable(found="a file with non-ASCII characters", expected="a file with a token") from None
    if not token or len(token.split()) != 1:
        raise Unreadable(found="a file without exactly one token", expected="a file with a token") from None
    return token
