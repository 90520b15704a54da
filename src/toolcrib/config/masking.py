"""Masks secrets in text: patterns for common kinds of secrets, and the `Masker`, which knows the configured ones.

In: a text, an argument list, a value as written; configurations, whose secrets the masker learns. Out: the same with
`****` in place of each secret, also in its JSON, URL and base64 forms, and without characters that could move a
terminal's cursor. Error texts, logs, the audit log, jobs, runs and approvals all use one `Masker`; only the audit log
also hides text that looks like a secret, and approvals name the owner of each secret. `printable` and `storable` escape
characters of untrusted texts.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from toolcrib.config.model import Config, Layer, ServerConfig

HIDDEN = "****"

_SENSITIVE_NAME = (  # Repetitions are bounded, so that hostile text can't make the search slow.
    r"(?:[\w.-]{0,40}(?:token|secret|passw(?:or)?d|passwd|credential|api_?key|bearer|authorization)"
    r"|(?:[\w.-]{0,40}[_.-])?(?:key|auth|pat))s?(?:[_.-][\w.-]{0,40})?"
)

_OURS = r"tcb_[\w-]{8,}"
"""Toolcrib's own tokens, of agents and of the owner; hidden even directly after another word."""

_PATTERNS = tuple(
    re.compile(rf"{before}(?P<secret>{secret})")
    for before, secret in (
        (r"(?<=://)", r"[^/?#\s]+(?=@)"),
        (rf"(?i)[?&;]{_SENSITIVE_NAME}=", r"[^&#\s]+"),
        (r"(?i)\b(?:bearer|basic)\s+", r"[\w.~+/=-]{6,}"),
        (r"\b", r"(?:sk|pk|rk)-[\w-]{8,}"),
        (r"\b", r"(?:gh[pousr]_|github_pat_|glpat-|npm_|hf_|xox[abeprs]-|pypi-)[\w-]{8,}"),
        (r"\b", r"(?:AKIA|ASIA)[A-Z0-9]{12,}"),
        (r"\b", r"AIza[\w-]{20,}"),
        (r"\b", r"eyJ[\w-]{8,}(?:\.[\w-]+)*"),
        (r"", _OURS),
    )
)
_OUR_TOKEN = re.compile(_OURS)
_LONGEST_SECRET_NAME = 128
"""Characters: a longer name can't match the pattern, and the cache stays small."""
_NAMED_SECRET = re.compile(rf"(?is)(-{{0,2}}{_SENSITIVE_NAME}\s{{0,9}}[=:]\s{{0,9}}).+")
_SECRET_OPTION = re.compile(rf"(?i)--?{_SENSITIVE_NAME}")
_REFERENCE = re.compile(r"\$\{(?:(?:env:)?[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?|input:[\w.-]+)\}")
_SCHEME = re.compile(r"(?i)\s*(?:bearer|basic|token)\s+")


def printable(text: str) -> str:
    """Escapes control and direction characters, so that a text displays as what it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def storable(text: str) -> str:
    """Escapes characters that the database cannot store, for untrusted texts that must be recorded."""
    if is_storable(text):
        return text
    return "".join(f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)


def is_storable(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def mask_text(text: str) -> str:
    """Hides text that looks like a secret."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found[0].removesuffix(found["secret"]) + HIDDEN, text)
    return printable(text)


def mask_tokens(text: str) -> str:
    """Hides only Toolcrib's own tokens; cheap enough for every message of a server."""
    return _OUR_TOKEN.sub(HIDDEN, text) if "tcb_" in text else text


def secrets_in(text: str) -> Iterator[str]:
    """The texts that `mask_text` hides."""
    for pattern in _PATTERNS:
        yield from (found["secret"] for found in pattern.finditer(text))


def mask_args(args: Sequence[str]) -> tuple[str, ...]:
    """Also hides `--token=…`, `API_KEY=…`, `Authorization: …`, and the word after a bare `--token`."""
    masked: list[str] = []
    for arg, start in zip(args, _secret_starts(args), strict=True):
        if start is None:
            masked.append(mask_text(_without_defaults(arg)))
        else:
            masked.append(printable(arg[:start]) + mask_spelling(arg[start:]))
    return tuple(masked)


def secrets_in_args(args: Sequence[str]) -> Iterator[str]:
    """The texts that `mask_args` hides in arguments without references."""
    for arg, start in zip(args, _secret_starts(args), strict=True):
        if start is not None:
            scheme = _SCHEME.match(arg, start)
            yield arg[scheme.end() if scheme else start :]
        yield from secrets_in(arg)


def names_a_secret(name: str) -> bool:
    """Whether a key's name suggests that its value is a secret."""
    return len(name) <= _LONGEST_SECRET_NAME and _names_a_secret(name)


@functools.lru_cache(maxsize=4096)
def _names_a_secret(name: str) -> bool:
    probe = f"{name}=x"
    return mask_args((probe,)) != (probe,)


def _secret_starts(args: Sequence[str]) -> Iterator[int | None]:
    """For each argument, the position of the secret that its name announces, or None."""
    before = ""
    for arg in args:
        if _SECRET_OPTION.fullmatch(before) and not arg.startswith("-"):
            yield 0
        else:
            named = _NAMED_SECRET.fullmatch(arg)
            yield named.end(1) if named else None
        before = arg


def mask_spelling(written: str) -> str:
    """Masks a secret's value as written: `Bearer ${KEY}` stays readable, literal text is hidden."""
    shown: list[str] = []
    position = 0
    for reference in _REFERENCE.finditer(written):
        shown.append(_hide_literal(written[position : reference.start()]))
        shown.append(_without_defaults(reference[0]))
        position = reference.end()
    shown.append(_hide_literal(written[position:]))
    return "".join(shown)


def _hide_literal(text: str) -> str:
    if not text or _SCHEME.fullmatch(text):
        return text
    scheme = _SCHEME.match(text)
    return (scheme[0] if scheme else "") + HIDDEN


def _without_defaults(text: str) -> str:
    return _REFERENCE.sub(lambda found: re.sub(r":-[^{}]+", f":-{HIDDEN}", found[0]), text)


SHORTEST_SECRET = 6
"""Characters. Shorter values (`1`, `true`, `prod`) are not secrets, and masking them would make texts unreadable."""
_SHORTEST_FORM = 6
"""Characters: a shorter piece of base64 occurs in unrelated texts."""
_KEPT_IN_URLS = "!$&'()*+,;=:@/?"
"""Characters that HTTP clients don't escape in a path or a query."""
_NEVER_SECRET = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"})
"""Variables that exist on every machine. A project's file that uses one must not cause its value to be masked."""
_REMEMBERED = 4096
_REMEMBERED_LENGTH = 200


class Masker:
    """Safe to use from several threads: `learn` replaces the set of secrets, together with its cache, in one step."""

    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = ()) -> None:
        self._known = _Known({})
        self._changing = threading.Lock()
        self.learn(secrets)

    def learn(self, secrets: Mapping[str, str] | Iterable[str]) -> None:
        """Adds values and their owners; `named` skips values without an owner. Those of a removed server stay, because
        it may still be quoted."""
        whose = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, "")
        parts = ((part, of) for value, of in whose.items() for part in _parts(value))
        long = [(part, of) for part, of in parts if len(part) >= SHORTEST_SECRET]
        with self._changing:
            known = self._known.secrets
            new = {part: of for part, of in long if part not in known or (of and not known[part])}
            if new:
                self._known = _Known({**known, **new})

    def forget(self, ended: Iterable[str]) -> None:
        """Removes values that are of no use to anybody any more: each one costs time with every text."""
        gone = {part for value in ended for part in _parts(value)}
        if gone:
            with self._changing:
                self._known = _Known({value: of for value, of in self._known.secrets.items() if value not in gone})

    def __call__(self, text: str) -> str:
        """Hides known secrets and text that looks like one; the result is printable."""
        return self._known(text)

    def known(self, text: str) -> str:
        """Hides only known secrets and keeps every other character."""
        return mask_tokens(self._known.hidden(text, lambda _: HIDDEN))

    def line(self, text: str) -> str:
        """Like `known`, as one printable line."""
        return printable(self.known(text))

    def named(self, text: str) -> str:
        """Hides only secrets with an owner, which the mask names, for a person who decides on an approval."""
        return self._known.hidden(text, lambda whose: f"[secret {whose}]", named=True)


class _Known:
    """An immutable set of secrets, with a cache, because the same names of agents, tools and rules are masked often."""

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
            # A match that overlaps the last one is covered by the same mask.
            end = max(end, -behind)
        return "".join([*shown, text[end:]])


def _parts(value: str) -> tuple[str, ...]:
    """The value and each of its lines, because a key may be printed line by line."""
    return value, value.strip(), *(line.strip() for line in value.splitlines())


def _forms(value: str) -> Iterator[str]:
    yield value
    # A surrogate has no bytes, so it has no other form.
    data = value.encode(errors="ignore")
    for ascii_only in (True, False):
        yield (escaped := json.dumps(value, ensure_ascii=ascii_only)[1:-1])
        yield escaped.replace("/", "\\/")
    every = "".join(f"%{byte:02X}" for byte in data)
    for quoted in (quote(data), quote(data, safe=""), quote(data, safe=_KEPT_IN_URLS), quote_plus(data), every):
        yield quoted
        yield _lower_escapes(quoted)
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        # Text before it in the encoded data shifts it by one or two bytes; the characters at both ends that
        # depend on the neighbours are left out.
        for shift, first in ((0, 0), (1, 2), (2, 3)):
            encoded = alphabet(bytes(shift) + data).decode().rstrip("=")
            whole = len(encoded) if (shift + len(data)) % 3 == 0 else len(encoded) - 1
            if whole - first >= _SHORTEST_FORM:
                yield encoded[first:whole]


def _lower_escapes(quoted: str) -> str:
    """`%2F` can also be written `%2f`."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def mask_tree(value: Any, mask: Callable[[str], str], hides: Callable[[str], bool] = lambda name: False) -> Any:
    """Masks the strings and keys of a JSON tree. A value whose name `hides` accepts is hidden whatever its type."""
    if isinstance(value, Mapping):
        shown: dict[str, Any] = {}
        for key, inner in value.items():
            name = mask(str(key))
            while name in shown:
                # Two keys that are equal after masking are both kept.
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
    """The keys, tokens and passwords in servers, tool rules, jobs and the store, each with its owner."""
    of_rules = [rule.secrets for rule in config.tools]
    of_jobs = {key: f"api_keys.{provider} of jobs" for provider, key in config.settings.jobs.api_keys.items()}
    of_store = dict.fromkeys(_with_passwords(secrets_in(config.settings.store)), "store")
    of_servers = [secrets_of_server(server) for server in config.servers.values()]
    of_user = {value: f"{name} of your secrets" for name, value in config.secrets.items()}
    found = [secret for some in (of_user, of_store, of_jobs, *of_rules, *of_servers) for secret in some.items()]
    return dict(sorted(found, key=lambda secret: bool(secret[1])))


def secrets_of_server(config: ServerConfig) -> dict[str, str]:
    """The secrets, each with its owner. Literal values in a project's file have no owner: otherwise the file's author
    could hide parts of an agent's request from the user. Values from the user's environment and token files have
    one."""
    found = [
        *((value, name) for name, text in config.env.items() for value in _variable_secrets(text)),
        *((value, name) for name, text in config.headers.items() for value in _header_secrets(text)),
        *((secret, name) for name in ("client_secret", "private_key") if (secret := getattr(config.oauth, name, ""))),
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
    """Also the password of `user:password`, as written and decoded, because programs print it separately."""
    for secret in secrets:
        yield secret
        _, _, password = secret.partition(":")
        yield password
        yield unquote(password)


def _header_secrets(value: str) -> Iterator[str]:
    yield value
    scheme, _, credential = value.partition(" ")
    yield credential.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            yield from _with_passwords([base64.b64decode(credential).decode()])


def _url_secrets(url: str) -> Iterator[str]:
    """The password and the query, where people put keys into a URL."""
    parts = urlsplit(url)
    if parts.query:
        yield parts.query
        for value in (pair.partition("=")[2] for pair in parts.query.split("&")):
            # As written, and as the server decodes it.
            yield from (value, unquote(value), unquote_plus(value))
    if parts.password:
        yield from (parts.password, unquote(parts.password))
