"""Agents that `connect` made, and the clients' files that use them.

In: an agent's private folder and a client's file. Out: a note in that folder. An agent that a person made has no such
note, and is never ended by taking an entry out of a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from toolcrib.agents.folder import AgentFolders

_NOTE = "connected.json"


def users(folders: AgentFolders, agent: str) -> frozenset[str] | None:
    """The files whose entries name the agent; None where `connect` did not make it."""
    text = folders.get(agent, _NOTE)
    if text is None:
        return None
    try:
        return frozenset(map(str, json.loads(text)))
    except (ValueError, TypeError):
        return None


def note(folders: AgentFolders, agent: str, files: Iterable[str]) -> None:
    folders.put(agent, _NOTE, json.dumps(sorted(files)))


def made_for(folders: AgentFolders, agents: Iterable[str], file: Path) -> tuple[str, ...]:
    """Those of the agents that were made for this file, too."""
    return tuple(agent for agent in agents if str(file) in (users(folders, agent) or ()))
