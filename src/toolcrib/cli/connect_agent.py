"""Who a connected client is: the agent that its entry names, made where it was not there and ended with the entry.

In: a client, and the agent that the person named or not. Out: an `Identity`. Only an agent that `connect` made is ended
by `connect`; the owner's token is nobody's identity here. `connect_command` is the one above, `agent:*` does the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolcrib.agents.folder import AgentFolders
from toolcrib.cli.reach import paths, perform
from toolcrib.coding_agents import made

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
    files = frozenset() if who.new else made.users(folders(), who.name)
    if files is not None:
        made.note(folders(), who.name, files | {str(file)})
    return leave(file, but=who.name)


def leave(file: Path, *, but: str = "") -> tuple[str, ...]:
    """Ends the agents that were made for this file and for no other."""
    ended = []
    for name in made.made_for(folders(), _names(), file):
        if name == but:
            continue
        rest = (made.users(folders(), name) or frozenset()) - {str(file)}
        if rest:
            made.note(folders(), name, rest)
        else:
            end(name)
            ended.append(name)
    return tuple(ended)


def end(name: str) -> None:
    perform("agent:remove", {"name": name})


def _names() -> list[str]:
    try:
        return sorted(path.name for path in paths().agents.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
