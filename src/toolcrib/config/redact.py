"""Text without its secrets, for people's eyes.

In: a text, an argument list, or a value as it was written. Out: the same with `****` where a secret
stood, and with nothing that could move a terminal's cursor. `problems`, `trust` and `mask` stand on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "****"

_TELLING_NAME = (  # Repetitions are bounded: the texts are hostile, and the time to search them must not be.
    r"(?:[\w.-]{0,40}(?:token|secret|passw(?:or)?d|passwd|credential|api_?key|bearer|authorization)"
    r"|(?:[\w.-]{0,40}[_.-])?(?:key|auth|pat))s?(?:[_.-][\w.-]{0,40})?"
)

_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=://)[^/\s@]+@", f"{HIDDEN}@"),
        (rf"(?i)([?&;]{_TELLING_NAME}=)[^&#\s]+", rf"\1{HIDDEN}"),
        (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}", rf"\1 {HIDDEN}"),
        (r"\b(?:sk|pk|rk)-[\w-]{8,}", HIDDEN),
        (r"\b(?:gh[pousr]_|github_pat_|glpat-|npm_|hf_|xox[abeprs]-|pypi-)[\w-]{8,}", HIDDEN),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}", HIDDEN),
        (r"\bAIza[\w-]{20,}", HIDDEN),
        (r"\beyJ[\w-]{8,}(?:\.[\w-]+)*", HIDDEN),
    )
)
_NAMED_SECRET = re.compile(rf"(?is)(-{{0,2}}{_TELLING_NAME}\s{{0,9}}[=:]\s{{0,9}}).+")
_SECRET_OPTION = re.compile(rf"(?i)--?{_TELLING_NAME}")
_REFERENCE = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}")
_SCHEME = re.compile(r"(?i)\s*(?:bearer|basic|token)\s+")


def printable(text: str) -> str:
    """Control and direction characters spelled out, so that a text shows as what it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def mask_text(text: str) -> str:
    """Known shapes of secrets hidden, the rest kept."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return printable(text)


def mask_args(args: Sequence[str]) -> tuple[str, ...]:
    """Also hides `--token=…`, `API_KEY=…`, `Authorization: …`, and the word after a bare `--token`."""
    masked: list[str] = []
    for position, arg in enumerate(args):
        follows_option = position > 0 and _SECRET_OPTION.fullmatch(args[position - 1]) is not None
        if follows_option and not arg.startswith("-"):
            masked.append(mask_spelling(arg))
        elif named := _NAMED_SECRET.fullmatch(arg):
            masked.append(printable(named[1]) + mask_spelling(arg[named.end(1) :]))
        else:
            masked.append(mask_text(_without_defaults(arg)))
    return tuple(masked)


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
