"""The daemon's log, a rotated file.

In: the level, and events from the bus. Out: lines. Server states and failed calls are logged; successful calls are
not, because there are too many.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from pathlib import Path

from toolcrib.config.masking import Masker
from toolcrib.events import CallFailed, ConfigProblem, ConfigReloaded, Event, ServerStateChanged

log = logging.getLogger(__name__)

_BYTES = 5 * 1024 * 1024
_KEPT = 3


class _MaskedFormatter(logging.Formatter):
    """Masks known secrets in every line, including tracebacks and lines of other libraries."""

    def __init__(self, mask: Masker) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        return self._mask.known(super().format(record))


def log_to(file: Path, level: str, mask: Masker) -> logging.Handler:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=_BYTES, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(_MaskedFormatter(mask))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("toolcrib").setLevel(level.upper())
    return handler


LOGGED = (ServerStateChanged, CallFailed, ConfigProblem, ConfigReloaded)
_TROUBLE = frozenset({"unavailable", "failed"})


def write_to_log(event: Event) -> None:
    match event:
        case ServerStateChanged(server=server, state=state, reason=reason) if state in _TROUBLE:
            log.warning("%s is %s: %s", _plain(server), state, _plain(reason))
        case ServerStateChanged(server=server, state=state):
            log.info("%s is %s", _plain(server), state)
        case ConfigProblem(problem=problem):
            log.warning("configuration: %s", _plain(problem))
        case ConfigReloaded() as reloaded:
            log.info("configuration reloaded; %s", _plain("; ".join(reloaded.lines())))
        case CallFailed(server=""):
            # An unknown tool's name can be any text. The audit log has it, with secrets masked.
            return
        case CallFailed(tool=tool, caller=caller, outcome=outcome, duration=duration):
            log.info("%s by %s: %s after %.2f s", _plain(tool), caller, outcome, duration)


def _plain(text: str) -> str:
    """A server's text must not be able to forge log lines."""
    return "".join(c if c.isprintable() else "?" for c in text)
