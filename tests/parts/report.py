"""Tests that cannot run: a skip that the summary lists under NOT RUN.

With `CI=true` it is a failure, because every part must be available there.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

PREFIX = "NOT RUN"


def not_run(part: str, reason: str) -> NoReturn:
    message = f"{PREFIX} {part}: {reason}"
    if os.environ.get("CI") == "true":
        raise pytest.fail.Exception(message, pytrace=False) from None
    raise pytest.skip.Exception(message) from None


def summarize(terminal: pytest.TerminalReporter) -> None:
    """Lists each reason once, with the number of tests that did not run."""
    counts: dict[str, int] = {}
    for outcome in ("skipped", "failed", "error"):
        for report in terminal.stats.get(outcome, []):
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if f"{PREFIX} " in text:
                reason = text[text.index(f"{PREFIX} ") :].splitlines()[0]
                counts[reason] = counts.get(reason, 0) + 1
    if counts:
        terminal.section(PREFIX, sep="=", yellow=True, bold=True)
        for reason, count in sorted(counts.items()):
            terminal.line(f"{reason} ({count} tests)")
