"""What a server's process gets to see of our environment, and what must not be seen of its own.

In: our environment and a server's configuration. Out: the child's environment; a `Mask` that takes configured secrets
out of texts. `stdio` starts children with the first; `server` and `stderr_log` pass every text through the second.

A child inherits an allow-list only, for our own environment may hold the keys of every other server:
who and where the user is, locale, temporary and XDG folders, and what a machine needs to reach the network at all
(proxies, certificate stores). A proxy address that holds a password is left out: name it in the server's `env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from toolcrib.config.model import ServerConfig
from toolcrib.config.redact import mask_tokens, printable, secrets_in, secrets_in_args

MARKER = "TOOLCRIB_CHILD"
"""Set in every child, so that whatever it starts can be found again."""

_ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TMP",
        "TEMP",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SYSTEMROOT",
        "SYSTEMDRIVE",
        "PATHEXT",
        "COMSPEC",
        "APPDATA",
        "LOCALAPPDATA",
        "USERPROFILE",
        "USERNAME",
        "HOMEDRIVE",
        "HOMEPATH",
        "PROGRAMFILES",
        "PROGRAMDATA",
        "PROCESSOR_ARCHITECTURE",
    }
)
_ALLOWED_PREFIXES = ("LC_", "XDG_")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})

SHORTEST_SECRET = 6
"""Shorter values (`1`, `true`, `prod`) are no secrets, and masking them would spoil every text."""


def child_environment(config: ServerConfig, environ: Mapping[str, str], marker: str) -> dict[str, str]:
    inherited = {name: value for name, value in environ.items() if inherits(name, value)}
    return {**inherited, **config.env, MARKER: marker}


def inherits(name: str, value: str) -> bool:
    upper = name.upper()
    if upper in _PROXIES:
        return not _holds_password(value)
    return name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)


def _holds_password(address: str) -> bool:
    try:
        return "@" in urlsplit(address if "://" in address else f"//{address}").netloc
    except ValueError:
        return True


class Mask:
    """Replaces configured secrets in a text by stars, and makes it one printable line: it may be a server's own."""

    def __init__(self, config: ServerConfig) -> None:
        values = {
            *_variable_secrets(config.env.values()),
            *_header_secrets(config.headers.values()),
            *_url_secrets(config.url),
            *_with_passwords(secrets_in_args(config.args)),
        }
        self.secrets = sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return printable(mask_tokens(text))


def _variable_secrets(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        yield value
        yield from _with_passwords(secrets_in(value))


def _with_passwords(secrets: Iterable[str]) -> Iterable[str]:
    """Also the password of `user:password`, for programs name it alone, and decoded."""
    for secret in secrets:
        yield secret
        _, _, password = secret.partition(":")
        yield password
        yield unquote(password)


def _header_secrets(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        yield value
        _, _, credential = value.partition(" ")
        if credential:
            yield credential.strip()


def _url_secrets(url: str) -> Iterable[str]:
    """User, password and query: where people put keys into an address."""
    parts = urlsplit(url)
    if parts.query:
        yield parts.query
        yield from (value for pair in parts.query.split("&") for value in [pair.partition("=")[2]])
    if parts.password:
        yield parts.password
