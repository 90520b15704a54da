"""A person, a project, and a server that notes its calls in Toolcrib's place: where a program shows its own hands.

In: a client's launch for an order. Out: what the program printed, which traps sprang, what arrived at the server. The
disk is the witness. Each program's own settings and readings are in its tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import fleet
from parts.own import StartServer
from toolcrib.coding_agents.client_spec import Launch

LIMIT = 90.0


@dataclass(kw_only=True)
class Place:
    base: Path
    url: str
    program: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    """What the person has set, besides what everybody has."""

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def project(self) -> Path:
        return self.base / "project"

    @property
    def marks(self) -> set[str]:
        """The traps that sprang, and whatever else was written there, outside the project."""
        return {mark.name for mark in (self.base / "marks").iterdir()}

    def mark(self, name: str) -> str:
        """A command that leaves a mark."""
        return f"touch {self.base}/marks/{name}"

    def seen(self) -> list[dict[str, Any]]:
        """The calls that arrived at the server in Toolcrib's place."""
        file = self.base / "seen"
        notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [note for note in notes if note["method"] == "tools/call"]

    def calls(self) -> list[dict[str, Any]]:
        """Their arguments."""
        return [note["arguments"] for note in self.seen()]

    def persons(self, **more: str) -> dict[str, str]:
        """The environment that the person starts a run in."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.base / "tmp")}
        return {**own, **more, **self.environ}

    def started(
        self, made: Launch, environ: Mapping[str, str], *, around: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs the program as it was made, to its end; `around` are words that start it."""
        words = [*around, *self.program, *made.words]
        process = subprocess.Popen(
            words,
            env={**environ, **made.environ},
            cwd=self.project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(made.stdin, timeout=LIMIT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def furnish(base: Path, start_server: StartServer, *folders: str) -> str:
    """Makes the place's folders and starts its server, whose address it gives."""
    for name in ("home", "project", "tmp", "marks", *folders):
        (base / name).mkdir(parents=True)
    (base / "project" / "there.txt").write_text("as it was\n")
    words = [sys.executable, str(fleet.SERVERS / "own_v2.py"), "--transport", "http"]
    return start_server(words, env={"TOOLCRIB_TEST_SEEN": str(base / "seen")}).url("http")


def put(file: Path, data: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))
