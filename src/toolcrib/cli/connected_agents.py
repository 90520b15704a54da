"""The agents that clients' entries name: created when an entry needs one, and removed with it.

In: an agent's name, a client's file. Out: a `ConnectedAgent`. A note in the agent's private folder lists the files that
name it and whether `connect` created it. Only such an agent is removed with its last entry. Used by `connect` and
`agent remove`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from toolcrib.cli.perform import paths, perform
from toolcrib.errors import ToolcribError
from toolcrib.identity.agent_folders import AgentFolders

_NOTE = "connected.json"


@dataclass(frozen=True, kw_only=True)
class ConnectNote:
    files: frozenset[str] = frozenset()
    """Files with an entry that names the agent."""
    made: bool = False
    """Whether `connect` created the agent."""


def _read_note(agent: str) -> ConnectNote:
    text = agent_folders().get(agent, _NOTE)
    try:
        return ConnectNote() if text is None else msgspec.json.decode(text, type=ConnectNote)
    except msgspec.MsgspecError:
        return ConnectNote()


def _write_note(agent: str, note: ConnectNote) -> None:
    agent_folders().put(agent, _NOTE, msgspec.json.encode(note, order="sorted").decode())


NEW_AGENT_PROFILE = "developer"
"""The default for a client: it may use every tool but not change Toolcrib itself."""


@dataclass(frozen=True, kw_only=True)
class ConnectedAgent:
    name: str
    profile: str
    new: bool = False
    """Whether it was created just now."""


def agent_folders() -> AgentFolders:
    return AgentFolders(paths().agents)


def known_agent(name: str) -> ConnectedAgent:
    """Returns the agent of this name. Raises `NotFound` if it doesn't exist."""
    shown = perform("agent:show", {"name": name})
    return ConnectedAgent(name=name, profile=str(shown["profile"]))


def get_or_create_agent(name: str) -> ConnectedAgent:
    agents = {agent["name"]: agent for agent in perform("agent:list")["agents"]}
    if name in agents:
        return ConnectedAgent(name=name, profile=str(agents[name]["profile"]))
    perform("agent:add", {"name": name, "profile": NEW_AGENT_PROFILE})
    return ConnectedAgent(name=name, profile=NEW_AGENT_PROFILE, new=True)


def assign_file(who: ConnectedAgent, file: Path) -> tuple[str, ...]:
    """Records that the file's entry names this agent. Removes and returns agents created for the previous entry."""
    before = _read_note(who.name)
    _write_note(who.name, ConnectNote(files=before.files | {str(file)}, made=before.made or who.new))
    return release_file(file, but=who.name)


def release_file(file: Path, *, but: str = "") -> tuple[str, ...]:
    """Removes and returns the agents that were created for this file only."""
    ended = []
    for name in _agent_names():
        before = _read_note(name)
        if name == but or str(file) not in before.files:
            continue
        rest = before.files - {str(file)}
        if before.made and not rest:
            remove_agent(name)
            ended.append(name)
        else:
            _write_note(name, ConnectNote(files=rest, made=before.made))
    return tuple(ended)


def connected_files() -> dict[str, frozenset[str]]:
    """Maps each agent to the files in which `connect` wrote an entry that names it."""
    found = {}
    for name in _agent_names():
        # An agent must be removable even if its note is unreadable.
        with contextlib.suppress(ToolcribError):
            found[name] = _read_note(name).files
    return found


def remove_agent(name: str) -> None:
    perform("agent:remove", {"name": name})


def _agent_names() -> list[str]:
    try:
        return sorted(path.name for path in paths().agents.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
