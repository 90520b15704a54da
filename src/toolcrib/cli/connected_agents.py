"""The agents that clients' entries name: created where an entry needs one, and removed with it.

In: an agent's name, a client's file. Out: a `ConnectedAgent`. A note in the agent's private folder says which files
name it, and whether `connect` created it: only such an agent is removed with its last entry. `connect` and
`agent remove` are the users.
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
    """Those whose entries name the agent."""
    made: bool = False
    """Whether `connect` made the agent."""


def _read_note(agent: str) -> ConnectNote:
    text = agent_folders().get(agent, _NOTE)
    try:
        return ConnectNote() if text is None else msgspec.json.decode(text, type=ConnectNote)
    except msgspec.MsgspecError:
        return ConnectNote()


def _write_note(agent: str, note: ConnectNote) -> None:
    agent_folders().put(agent, _NOTE, msgspec.json.encode(note, order="sorted").decode())


NEW_AGENT_PROFILE = "developer"
"""What a client may do for which nothing was said: use every tool, and change nothing of Toolcrib's own."""


@dataclass(frozen=True, kw_only=True)
class ConnectedAgent:
    name: str
    profile: str
    new: bool = False
    """It was made just now."""


def agent_folders() -> AgentFolders:
    return AgentFolders(paths().agents)


def known_agent(name: str) -> ConnectedAgent:
    """The agent of this name; `NotFound` where there is none."""
    shown = perform("agent:show", {"name": name})
    return ConnectedAgent(name=name, profile=str(shown["profile"]))


def get_or_create_agent(name: str) -> ConnectedAgent:
    """The agent of this name, made now if there is none."""
    there = {agent["name"]: agent for agent in perform("agent:list")["agents"]}
    if name in there:
        return ConnectedAgent(name=name, profile=str(there[name]["profile"]))
    perform("agent:add", {"name": name, "profile": NEW_AGENT_PROFILE})
    return ConnectedAgent(name=name, profile=NEW_AGENT_PROFILE, new=True)


def assign_file(who: ConnectedAgent, file: Path) -> tuple[str, ...]:
    """Notes that the file's entry names this agent now; ends, and returns, those that were made for the one before."""
    before = _read_note(who.name)
    _write_note(who.name, ConnectNote(files=before.files | {str(file)}, made=before.made or who.new))
    return release_file(file, but=who.name)


def release_file(file: Path, *, but: str = "") -> tuple[str, ...]:
    """Ends the agents that were made for this file and for no other."""
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
    """By agent: the files into which `connect` wrote an entry that names it."""
    found = {}
    for name in _agent_names():
        # Whatever is wrong with the note, an agent must be removable.
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
