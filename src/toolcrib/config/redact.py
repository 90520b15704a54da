"""Text without its secrets, for people's eyes.

In: a text, an argument list, or a value as it was written. Out: the same with `****` where a secret
stood, and with nothing that could move a terminal's cursor; or the secrets themselves, to be hidden elsewhere.
`problems`, `trust`, `show` and a server's mask stand on it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

HIDDEN = "****"

_TELLING_NAME = (  # Repetitions are bounded: the texts are hostile, and the time to search them must not be.
    r"(?:[\w.-]{0,40}(?:token|secret|passw(?:or)?d|passwd|credential|api_?key|bearer|authorization)"
    r"|(?:[\w.-]{0,40}[_.-])?(?:key|auth|pat))s?(?:[_.-][\w.-]{0,40})?"
)

_OURS = r"tcb_[\w-]{8,}"
"""Toolcrib's own, of agents and of the owner; hidden also where it is stuck to a word before it."""

_PATTERNS = tuple(
    re.compile(rf"{before}(?P<secret>{secret})")
    for before, secret in (
        (r"(?<=://)", r"[^/?#\s]+(?=@)"),
        (rf"(?i)[?&;]{_TELLING_NAME}=", r"[^&#\s]+"),
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
_LONGEST_TELLING = 128
"""Characters: no longer name fits the pattern, and what is remembered stays small."""
_NAMED_SECRET = re.compile(rf"(?is)(-{{0,2}}{_TELLING_NAME}\s{{0,9}}[=:]\s{{0,9}}).+")
_SECRET_OPTION = re.compile(rf"(?i)--?{_TELLING_NAME}")
_REFERENCE = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}")
_SCHEME = re.compile(r"(?i)\s*(?:bearer|basic|token)\s+")


def printable(text: str) -> str:
    """Control and direction characters spelled out, so that a text shows as what it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def mask_text(text: str) -> str:
    """Known shapes of secrets hidden, the rest kept."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found[0].removesuffix(found["secret"]) + HIDDEN, text)
    return printable(text)


def mask_tokens(text: str) -> str:
    """Toolcrib's own tokens hidden, and nothing else; cheap enough for everything that a server says."""
    return _OUR_TOKEN.sub(HIDDEN, text) if "tcb_" in text else text


def secrets_in(text: str) -> Iterator[str]:
    """What `mask_text` would hide."""
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
    """What `mask_args` would hide of arguments without references."""
    for arg, start in zip(args, _secret_starts(args), strict=True):
        if start is not None:
            scheme = _SCHEME.match(arg, start)
            yield arg[scheme.end() if scheme else start :]
        yield from secrets_in(arg)


def tells_a_secret(name: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return len(name) <= _LONGEST_TELLING and _tells(name)


@functools.lru_cache(maxsize=4096)
def _tells(name: str) -> bool:
    probe = f"{name}=x"
    return mask_args((probe,)) != (probe,)


def _secret_starts(args: Sequence[str]) -> Iterator[int | None]:
    """Where in each argument a secret starts that its name tells; None: no name tells of one."""
    before = ""
    for arg in args:
        if _SECRET_OPTION.fullmatch(before) and not arg.startswith("-"):
            yield 0
        else:
            named = _NAMED_SECRET.fullmatch(arg)
            yield named.end(1) if named else None
        before = arg


def mask_spelling(written: str) -> str:
    """A secret's value as it was written: `Bearer ${KEY}` stays readable, literal text is hidden."""
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
