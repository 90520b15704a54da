"""Who a connected client is: the agent that its entry names, made where it was not there and ended with the entry.

In: a client, and the agent that the person named or not. Out: an `Identity`. Only an agent that `connect` made is ended
by `connect`; the owner's token is nobody's identity here. `connect_command` is the one above, `agent:*` does the work.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from toolcrib.agents.folder import AgentFolders
from toolcrib.cli.reach import paths, perform
from toolcrib.coding_agents import made
from toolcrib.coding_agents.made import Note
from toolcrib.errors import ToolcribError

PROFILE = "developer"
"""What a client may do for which nothing was said: use every tool, and change nothing of Toolcrib's own."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    name: str
    profile: str
    new: bool = False
    """It was made just now."""


def folders() -> AgentFolders:
    return AgentFolders(paths().agents)


def known(name: str) -> Identity:
    """The agent of this name; `NotFound` where there is none."""
    shown = perform("agent:show", {"name": name})
    return Identity(name=name, profile=str(shown["profile"]))


def ensured(name: str) -> Identity:
    """The agent of this name, made now if there is none."""
    there = {agent["name"]: agent for agent in perform("agent:list")["agents"]}
    if name in there:
        return Identity(name=name, profile=str(there[name]["profile"]))
    perform("agent:add", {"name": name, "profile": PROFILE})
    return Identity(name=name, profile=PROFILE, new=True)


def take(who: Identity, file: Path) -> tuple[str, ...]:
    """Notes that the file's entry names this agent now; ends and tells those that were made for the one before."""
    before = made.noted(folders(), who.name)
    made.note(folders(), who.name, Note(files=before.files | {str(file)}, made=before.made or who.new))
    return leave(file, but=who.name)


def leave(file: Path, *, but: str = "") -> tuple[str, ...]:
    """Ends the agents that were made for this file and for no other."""
    ended = []
    for name in _names():
        before = made.noted(folders(), name)
        if name == but or str(file) not in before.files:
            continue
        rest = before.files - {str(file)}
        if before.made and not rest:
            end(name)
            ended.append(name)
        else:
            made.note(folders(), name, Note(files=rest, made=before.made))
    return tuple(ended)


def entries() -> dict[str, frozenset[str]]:
    """By agent: the files into which `connect` wrote an entry that names it."""
    found = {}
    for name in _names():
        # Whatever is wrong with the note, an agent must be removable.
        with contextlib.suppress(ToolcribError):
            found[name] = made.noted(folders(), name).files
    return found


def end(name: str) -> None:
    perform("agent:remove", {"name": name})


def _names() -> list[str]:
    try:
        return sorted(path.name for path in paths().agents.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
