"""Requests to launch a coding agent, for tests of the launch functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import LaunchRequest
from toolcrib.policy.profile import OwnTools

TOKEN = "tcb_secret"
URL = "http://127.0.0.1:7000/mcp"
NEW_SESSION = "0b5f3a2e-4f6d-4c3b-9a51-7f1f6d1c2b3a"
PROMPT = "--help is part of the prompt"
LABELS = {"X-Toolcrib-Agent": "agent-1", "X-Toolcrib-Conversation": "c1"}
BELOW_ALL = [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT]


def launch_request(folder: Path, own_tools: OwnTools = OwnTools.READ, **given: Any) -> LaunchRequest:
    """A request with `home`, `project` and `private` in this folder."""
    for name in ("home", "project", "private"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    usual: dict[str, Any] = {
        "prompt": PROMPT,
        "new_session": NEW_SESSION,
        "own_tools": own_tools,
        "url": URL,
        "token": TOKEN,
        "headers": LABELS,
        "folder": folder / "private",
        "workdir": folder / "project",
        "environ": {"HOME": str(folder / "home")},
    }
    return LaunchRequest(**{**usual, **given})
