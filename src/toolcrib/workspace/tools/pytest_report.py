"""Runs pytest and reports events line by line. Stand-alone: it runs in the sandbox, with the project's Python.

In: pytest's arguments; the number of a pipe in TOOLCRIB_REPORT_FD. Out: one JSON object per line on that pipe, written
immediately, so that a run that is killed has still reported its progress. `run_tests` passes this file's source to
`python -c`, because Toolcrib may not be installed inside the sandbox, and reads the lines.

It imports nothing from Toolcrib and supports Python 3.8, because the project chooses its Python.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

DETAILED = 20
"""Failures reported with a traceback; later ones only have a message."""
NAMED = 200
"""Failures that are reported; later ones are only counted."""
NAME, MESSAGE, TRACE, OUTPUT = 500, 1000, 4000, 2000


class Reporter:
    """A pytest plugin. Outcomes have the names of pytest's summary line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.owner = os.getpid()
        self.failures = 0
        self.warnings = 0
        self.deselected = 0
        self.config: Any = None

    def report(self, what: str, **fields: Any) -> None:
        # A forked test has a copy of this plugin; only the original reports.
        if self.fd < 0 or os.getpid() != self.owner:
            return
        line = memoryview(json.dumps({"is": what, **fields}).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self.fd, line) :]
        except OSError:
            self.fd = -1

    def pytest_configure(self, config: Any) -> None:
        self.config = config

    def pytest_deselected(self, items: Any) -> None:
        self.deselected += len(items)

    def pytest_warning_recorded(self) -> None:
        self.warnings += 1

    def pytest_collection_finish(self, session: Any) -> None:
        self.report("collected", total=len(session.items), deselected=self.deselected)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report("start", id=cut(nodeid, NAME))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.report("finish", id=cut(nodeid, NAME))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.outcome("error", report)
        elif report.skipped:
            self.outcome("skipped", report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        if status and status[0]:
            self.outcome(str(status[0]), report)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.report("internal", trace=ends(str(excrepr), TRACE))

    def outcome(self, category: str, report: Any) -> None:
        self.report("outcome", category=cut(category, 40))
        if category not in ("failed", "error"):
            return
        self.failures += 1
        if self.failures > NAMED:
            return
        file, line, message = place(report)
        found = {
            "category": category,
            "id": cut(report.nodeid, NAME),
            "file": cut(file, NAME),
            "line": line,
            "message": cut(message, MESSAGE),
        }
        if self.failures <= DETAILED:
            found["trace"] = ends(str(report.longrepr or ""), TRACE)
            found["output"] = ends("\n".join(f"[{name}]\n{text}" for name, text in report.sections), OUTPUT)
        self.report("failure", **found)


def place(report: Any) -> tuple[str, int, str]:
    """File, line and message of a failure: where the project's code raised it, or else the test's location."""
    location = getattr(report, "location", None) or (str(report.nodeid).partition("::")[0], None, "")
    file, line = str(location[0]), int(location[1] or 0) + 1
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = str(report.longrepr or "").strip().splitlines()
        message = next((line for line in reversed(lines) if line.startswith("E ")), lines[-1] if lines else "")
        return file, line, message[2:].strip() if message.startswith("E ") else message
    path = str(crash.path)
    if path.startswith(os.getcwd() + os.sep) and "site-packages" not in path:  # noqa: PTH109 - for Python 3.8
        file, line = path, int(crash.lineno)
    return file, line, str(crash.message)


def cut(text: object, limit: int) -> str:
    whole = sound(str(text))
    return whole if len(whole) <= limit else whole[: limit - 1] + "…"


def ends(text: str, limit: int) -> str:
    """A quarter from the beginning, the rest from the end, which matters more."""
    text = sound(text)
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit - limit // 4
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def sound(text: str) -> str:
    """Removes lone surrogates, which the reader of the lines cannot decode."""
    return text.encode("utf-8", "replace").decode()


def main() -> int:
    # Child processes of the tests must neither find the pipe nor keep it open.
    fd = int(os.environ.pop("TOOLCRIB_REPORT_FD", "-1"))
    if fd >= 0:
        os.set_inheritable(fd, False)
    reporter = Reporter(fd)
    try:
        import pytest  # noqa: PLC0415 - the project's pytest, which may be missing
    except ImportError:
        reporter.report("missing")
        return 4
    sys.argv[0] = "pytest"
    code = int(pytest.main(sys.argv[1:], plugins=[reporter]))
    reporter.report("end", code=code, warnings=reporter.warnings)
    return code


if __name__ == "__main__":
    sys.exit(main())
