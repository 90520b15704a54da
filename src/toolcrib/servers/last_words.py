"""What the lines that a server wrote to stderr mean.

In: the lines of one process. Out: the one that explains its end (`explanation`), what to do about a broken npm cache
(`cache_remedy`), and the lines without a first-generation SDK's complaint about our first message (`ProbeNoise`).
Used by `stdio`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_LONGEST = 500
_NPM = re.compile(r"npm (?:error|ERR!) ?(.*)")
_NPM_DETAIL = re.compile(
    r"(?:code|syscall|errno|path|dest|command|signal|cwd|network) .*|A complete log of this run .*|\s.*|"
)
_FAILURE = re.compile(
    r"(?:Uncaught |Unhandled |fatal: |docker: |panic: |thread '[^']*' (?:\(\d+\) )?panicked at |Exception in thread ).+"
    r"|[\w.]*(?:Error|Exception)(?: \[\w+\])?(?:: .*)?"
    r"|(?:\S+: )?(?i:fatal error|error): .+"
    r"|.+: (?:command )?not found"
)
_A_GROUP = re.compile(r"(?:\w+\.)*(?:Base)?ExceptionGroup: ")
_IN_A_GROUP = re.compile(r"^[ +]*(?:\| +)+")
_LOGGED = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|\[error\]|\blevel=(?:error|fatal)\b")
_UNINFORMATIVE = re.compile(
    r"Node\.js v[\d.]+|[\s|+\-^}{]*|npm (?:warn|notice)\b.*|Run '.* --help' for more information"
)
_UV = re.compile("\\s*\N{MULTIPLICATION SIGN}\\s+(.+)")
_CAUSE = re.compile(r"\s*(?:cause:|╰─▶|Caused by:)\s*(.*)")


def explanation(lines: Sequence[str]) -> str:
    """The line that explains why the process ended; empty if it wrote nothing useful."""
    npm = [found[1] for found in map(_NPM.fullmatch, lines) if found]
    told = [line for line in npm if not _NPM_DETAIL.fullmatch(line)]
    if npm:
        found = _last(told, _FAILURE.fullmatch) or next(iter(told), "") or npm[-1]
        return f"npm error: {found}"[:_LONGEST]
    flat = [_IN_A_GROUP.sub("", line, count=1) for line in lines]
    found = _last(flat, lambda line: _FAILURE.fullmatch(line) and not _A_GROUP.match(line))
    if not found and (failed := next(filter(None, map(_UV.fullmatch, flat)), None)):
        found = failed[1]
    if found:
        return ": ".join((found.rstrip(":"), *_first_cause(flat)))[:_LONGEST]
    useful = [line.strip() for line in flat if not _UNINFORMATIVE.fullmatch(line)]
    return (_last(useful, _LOGGED.search) or next(reversed(useful), ""))[:_LONGEST]


def _last(lines: Sequence[str], fits: Callable[[str], object]) -> str:
    return next((line for line in reversed(lines) if fits(line)), "")


def _first_cause(lines: Sequence[str]) -> list[str]:
    """uv writes the cause of its error below it."""
    return [found[1] for found in map(_CAUSE.fullmatch, lines) if found][:1]


def fetch_failed(lines: Sequence[str]) -> bool:
    """Whether a launcher reported its own failure, not the server's."""
    return any(line.lstrip().startswith(_OF_LAUNCHERS) for line in lines)


_OF_LAUNCHERS = ("npm error", "npm ERR!", "error: ", "\N{MULTIPLICATION SIGN} ", "docker: ", "ERR_PNPM_")
_NPX_FOLDER = re.compile(r"(?:^|[\s'\"(])(/[^\s'\"]*/_npx/[0-9a-f]+)(?=[/'\"\s]|$)")
_BROKEN_CACHE = re.compile(
    r"Cannot find (?:package|module) '|ENOTEMPTY|ECOMPROMISED|Lock compromised|EEXIST|ENOENT.*/_npx/"
)


def cache_remedy(lines: Sequence[str]) -> str:
    """What to delete if npx's copy of a package is incomplete or locked; empty otherwise."""
    if not any(map(_BROKEN_CACHE.search, lines)):
        return ""
    if folder := next(filter(None, map(_NPX_FOLDER.search, lines)), None):
        place = folder[1]
    elif any(map(_NPM.fullmatch, lines)) or any("/_npx/" in line for line in lines):
        # The path is not printed, or masked as a value of the configuration.
        place = "the folder _npx in `npm config get cache`"
    else:
        return ""
    return f"npx's copy of the package is broken. Delete {place}, then restart the server."


_COMPLAINT = re.compile(r"Failed to validate request: \d+ validation errors? for ClientRequest")
_DETAIL = re.compile(
    r"\w+Request(?:\.\w+)*|  .*\[type=\w+, input_value=.*\]|    For further information visit \S+|\s{20,}.*|\s*"
)
"""The last but one is a line as `rich` indents it."""


class ProbeNoise:
    """Removes the hundred lines that Python servers on SDK 1.x write when they get `server/discover`."""

    def __init__(self) -> None:
        self._inside = False

    def removed(self, lines: Sequence[str]) -> list[str]:
        return [line for line in lines if not self._is_noise(line)]

    def _is_noise(self, line: str) -> bool:
        self._inside = bool(_COMPLAINT.search(line) or (self._inside and _DETAIL.fullmatch(line)))
        return self._inside
