"""The command line for runs: a project of one's own, and words of which a test needs some."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from parts.run_logs import SEALS
from toolcrib.config.paths import Paths
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

OLD, NEW = "20261115-100000-00000a", "20261116-100000-00000b"
CALL = AgentEvent(
    kind=AgentEventKind.TOOL,
    provider="claude",
    tool_name="read_file",
    server="workspace",
    tool_args={"path": "a.py"},
    tool_status=ToolStatus.OK,
    tool_duration_ms=12.0,
    call="1",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def made_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process then is, as a person at a terminal whose logs are sealed with the tests' key."""
    monkeypatch.setenv("TOOLCRIB_HOME", str(folder / "home"))
    monkeypatch.setattr("sys.stdin", Terminal())
    key = Paths.of_user(os.environ).runs_key
    key.parent.mkdir(parents=True)
    assert SEALS.key is not None
    key.write_text(SEALS.key.hex())
    project = folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "HEAD").touch()
    monkeypatch.chdir(project)
    return project
