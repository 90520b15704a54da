"""The masker: texts without the secrets that Toolcrib knows, in whatever form they come.

In: configurations, whose secrets it learns, and texts. Out: the texts with stars for known values and for their JSON,
URL and base64 forms. Error texts, logs, the book, jobs, runs and approvals all go through one `Masker`; only the book
also hides what looks like a secret, and approvals say whose secret it is. Patterns are in `redact`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from toolcrib.config.model import Config, Layer, ServerConfig
from toolcrib.config.redact import HIDDEN, mask_text, mask_tokens, printable, secrets_in, secrets_in_args

SHORTEST_SECRET = 6
"""Characters. Shorter values (`1`, `true`, `prod`) are no secrets, and masking them would spoil every text."""
_SHORTEST_FORM = 6
"""Characters: a shorter piece of base64 stands in texts that have nothing to do with the secret."""
_KEPT_IN_URLS = "!$&'()*+,;=:@/?"
"""What HTTP clients leave as it is in a path or a query."""
_NEVER_SECRET = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"})
"""Variables of every machine. A project's file that names one must not make a person read a mask for it."""
_REMEMBERED = 4096
_REMEMBERED_LENGTH = 200


class Masker:
    """Used by several threads: what one of them learns must not meet what another has masked without knowing it."""

    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = ()) -> None:
        self._known = _Known({})
        self.learn(secrets)

    def learn(self, secrets: Mapping[str, str] | Iterable[str]) -> None:
        """Values, and whose they are; nobody's are not `named`. None is forgotten: a server that is gone may still be
        quoted."""
        whose = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, "")
        known = self._known.secrets
        parts = ((part, of) for value, of in whose.items() for part in _parts(value))
        long = ((part, of) for part, of in parts if len(part) >= SHORTEST_SECRET)
        new = {part: of for part, of in long if part not in known or (of and not known[part])}
        if new:
            self._known = _Known({**known, **new})

    def __call__(self, text: str) -> str:
        """Also without what looks like a secret, and printable."""
        return self._known(text)

    def known(self, text: str) -> str:
        """Only what is known to be a secret is hidden; the rest stays as it is, character by character."""
        return mask_tokens(self._known.hidden(text, lambda _: HIDDEN))

    def line(self, text: str) -> str:
        """The same, in one printable line."""
        return printable(self.known(text))

    def named(self, text: str) -> str:
        """Only somebody's secrets are hidden, and the mask says whose: for a person who decides by the rest."""
        return self._known.hidden(text, lambda whose: f"[secret {whose}]", named=True)


class _Known:
    """One set of secrets, which never changes.

    Names of agents, tools and rules come again and again: what was masked once is remembered.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.secrets = secrets
        somebodys_last = sorted(secrets.items(), key=lambda secret: bool(secret[1]))
        self._forms = {form: whose for value, whose in somebodys_last for form in _forms(value)}
        self._masked: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        masked = self._masked.get(text)
        if masked is None:
            masked = mask_text(self.hidden(text, lambda _: HIDDEN))
            if len(text) <= _REMEMBERED_LENGTH:
                if len(self._masked) >= _REMEMBERED:
                    self._masked = {}
                self._masked[text] = masked
        return masked

    def hidden(self, text: str, mask: Callable[[str], str], *, named: bool = False) -> str:
        found = sorted(
            (match.start(), -match.end(), whose)
            for form, whose in self._forms.items()
            if (whose or not named) and form in text
            for match in re.finditer(re.escape(form), text)
        )
        shown: list[str] = []
        end = 0
        for start, behind, whose in found:
            if start >= end:
                shown += [text[end:start], mask(whose)]
            # One that overlaps with the last is behind the same mask.
            end = max(end, -behind)
        return "".join([*shown, text[end:]])


def _parts(value: str) -> tuple[str, ...]:
    """Also the lines of a value of several, for a key may be printed line by line."""
    return value, value.strip(), *(line.strip() for line in value.splitlines())


def _forms(value: str) -> Iterator[str]:
    yield value
    # A surrogate has no bytes, and so no other form.
    data = value.encode(errors="ignore")
    for ascii_only in (True, False):
        yield (escaped := json.dumps(value, ensure_ascii=ascii_only)[1:-1])
        yield escaped.replace("/", "\\/")
    every = "".join(f"%{byte:02X}" for byte in data)
    for quoted in (quote(data), quote(data, safe=""), quote(data, safe=_KEPT_IN_URLS), quote_plus(data), every):
        yield quoted
        yield _lower_escapes(quoted)
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        # What stands before it in the encoded text shifts it by one or two bytes; the pieces at both ends that
        # depend on the neighbours are left out.
        for shift, first in ((0, 0), (1, 2), (2, 3)):
            encoded = alphabet(bytes(shift) + data).decode().rstrip("=")
            whole = len(encoded) if (shift + len(data)) % 3 == 0 else len(encoded) - 1
            if whole - first >= _SHORTEST_FORM:
                yield encoded[first:whole]


def _lower_escapes(quoted: str) -> str:
    """`%2F` may as well be written `%2f`."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def mask_tree(value: Any, mask: Callable[[str], str], hides: Callable[[str], bool] = lambda name: False) -> Any:
    """A tree of plain JSON, its keys too. What a name `hides` is hidden whatever it is."""
    if isinstance(value, Mapping):
        shown: dict[str, Any] = {}
        for key, inner in value.items():
            name = mask(str(key))
            while name in shown:
                # Two keys that look alike now: neither takes the other's place.
                name += "*"
            shown[name] = _below(str(key), inner, mask, hides)
        return shown
    if isinstance(value, list | tuple):
        return [mask_tree(inner, mask, hides) for inner in value]
    return mask(value) if isinstance(value, str) else value


def _below(name: str, value: Any, mask: Callable[[str], str], hides: Callable[[str], bool]) -> Any:
    if isinstance(value, list | tuple):
        return [_below(name, inner, mask, hides) for inner in value]
    if isinstance(value, Mapping | bool) or value is None or not hides(name):
        return mask_tree(value, mask, hides)
    return HIDDEN


def secrets_of(config: Config) -> dict[str, str]:
    """What stands for a key, token or password in servers' entries, rules for tools, keys of jobs and the store."""
    of_rules = [rule.secrets for rule in config.tools]
    of_jobs = {key: f"api_keys.{provider} of jobs" for provider, key in config.settings.jobs.api_keys.items()}
    of_store = dict.fromkeys(_with_passwords(secrets_in(config.settings.store)), "store")
    of_servers = [secrets_of_server(server) for server in config.servers.values()]
    found = [secret for some in (of_store, of_jobs, *of_rules, *of_servers) for secret in some.items()]
    return dict(sorted(found, key=lambda secret: bool(secret[1])))


def secrets_of_server(config: ServerConfig) -> dict[str, str]:
    """By value: whose it is. What a project's file says itself is nobody's: its author could hide from a person by it
    what an agent asks for. What the user's environment and token files hold for it is the user's."""
    found = [
        *((value, name) for name, text in config.env.items() for value in _variable_secrets(text)),
        *((value, name) for name, text in config.headers.items() for value in _header_secrets(text)),
        *((value, "url") for value in _url_secrets(config.url)),
        *((value, "args") for value in _with_passwords(secrets_in_args(config.args))),
    ]
    if config.source.layer is Layer.PROJECT:
        file = config.token_file
        supplied = {**config.supplied, **({file.header: config.headers[file.header]} if file else {})}
        secret = ((name, text) for name, text in supplied.items() if name not in _NEVER_SECRET)
        own = [(value, name) for name, text in secret for value in (text, *_header_secrets(text))]
        return dict.fromkeys((value for value, _ in found), "") | _of(config, own)
    return _of(config, found)


def _of(config: ServerConfig, found: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {value: f"{name} of server {config.name}" for value, name in found}


def _variable_secrets(value: str) -> Iterator[str]:
    yield value
    yield from _with_passwords(secrets_in(value))


def _with_passwords(secrets: Iterable[str]) -> Iterator[str]:
    """Also the password of `user:password`, for programs name it alone, and decoded."""
    for secret in secrets:
        yield secret
        _, _, password = secret.partition(":")
        yield password
        yield unquote(password)


def _header_secrets(value: str) -> Iterator[str]:
    yield value
    _, _, credential = value.partition(" ")
    yield credential.strip()


def _url_secrets(url: str) -> Iterator[str]:
    """User, password and query: where people put keys into an address."""
    parts = urlsplit(url)
    if parts.query:
        yield parts.query
        for value in (pair.partition("=")[2] for pair in parts.query.split("&")):
            # As it is written, and as the server reads it.
            yield from (value, unquote(value), unquote_plus(value))
    if parts.password:
        yield from (parts.password, unquote(parts.password))
