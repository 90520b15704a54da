"""The clients' files that `connect` wrote an agent's name into, and whether `connect` made the agent for them.

In: an agent's private folder and a client's file. Out: a note in that folder, which goes with the agent. An agent that
a person made is never ended by taking an entry out of a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from toolcrib.agents.folder import AgentFolders

_NOTE = "connected.json"


@dataclass(frozen=True, kw_only=True)
class Note:
    files: frozenset[str] = frozenset()
    """Those whose entries name the agent."""
    made: bool = False
    """Whether `connect` made the agent."""


def noted(folders: AgentFolders, agent: str) -> Note:
    text = folders.get(agent, _NOTE)
    try:
        return Note() if text is None else msgspec.json.decode(text, type=Note)
    except msgspec.MsgspecError:
        return Note()


def note(folders: AgentFolders, agent: str, content: Note) -> None:
    folders.put(agent, _NOTE, msgspec.json.encode(content, order="sorted").decode())
