"""An agent's own client configurations: files that hold its token, in its private folder.

In: an agent's name, a client, the endpoint. Out: `claude.json`, `codex.toml`, `gemini.json`, `generic.json`, each whole
and the owner's alone. They go with the folder when the agent ends. `connect` asks for one; the daemon renews those that
are there when its address or the agent's token changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolcrib.agents.folder import AgentFolders
from toolcrib.coding_agents.client import SERVER_NAME, Client, labels
from toolcrib.coding_agents.clients import CLIENTS
from toolcrib.coding_agents.connect import language
from toolcrib.errors import ConfigError, NotFound, ToolcribError

log = logging.getLogger(__name__)


def generate(folders: AgentFolders, agent: str, client: Client, *, url: str, conversation: str = "") -> Path:
    """Writes the file with the token that the agent has now."""
    return folders.put(agent, client.private_file, _text(folders, agent, client, url, conversation))


def renew(folders: AgentFolders, agents: Iterable[str], *, url: str) -> None:
    """Brings what was generated for these agents up to date. One that cannot be written stays as it is."""
    for agent in agents:
        try:
            _renew(folders, agent, url)
        except ToolcribError as error:
            log.warning("the client files of agent %s could not be renewed: %s", agent, error.text())


def _renew(folders: AgentFolders, agent: str, url: str) -> None:
    for client in CLIENTS:
        there = folders.get(agent, client.private_file)
        if there is None:
            continue
        text = _text(folders, agent, client, url, _conversation(client, there))
        if text != there:
            folders.put(agent, client.private_file, text)


def _text(folders: AgentFolders, agent: str, client: Client, url: str, conversation: str) -> str:
    token = folders.get(agent)
    if token is None:
        raise NotFound(
            f"{folders.token_file(agent)} is not there.", remedy=f"`toolcrib agent rotate {agent}` makes a new token."
        )
    entry = client.private(url=url, token=token, labels=labels(agent, conversation))
    text: str = language(client).put_entry("", client.keys, SERVER_NAME, entry)
    return text.rstrip("\n")


def _conversation(client: Client, text: str) -> str:
    """The label that the file has had."""
    try:
        entry: Any = language(client).get_entry(text, client.keys, SERVER_NAME)
    except ConfigError:
        return ""
    headers = [value for value in entry.values() if isinstance(value, dict)] if isinstance(entry, dict) else []
    return next((str(found) for known in headers if (found := known.get("X-Toolcrib-Conversation"))), "")
