"""`connect`: shows, writes or removes the configuration entry that connects a client to Toolcrib.

In: a client's name, an agent's name and the action. Out: an exit code. An agent that `connect` creates for an entry is
removed with that entry; no other agent is. `coding_agents` describes the clients' files.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.connected_agents import (
    ConnectedAgent,
    agent_folders,
    assign_file,
    get_or_create_agent,
    known_agent,
    release_file,
    remove_agent,
)
from toolcrib.cli.options import AsJson, Listing
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.perform import daemon_runs, from_daemon, paths, perform, root
from toolcrib.coding_agents.client_files import ClientEntry, EntryOutcome, write_private_file
from toolcrib.coding_agents.client_spec import ClientScope, ClientSpec, labels
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.own_equivalents import EQUIVALENTS, not_needed
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import working_folder
from toolcrib.errors import ToolcribError, UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8665/mcp"


@dataclass(frozen=True, kw_only=True)
class _ConnectRequest:
    client: ClientSpec
    scope: ClientScope
    http: bool
    agent: str
    conversation: str
    listing: ListingMode | None
    all_tools: bool

    @property
    def name(self) -> str:
        """The agent that the entry names. A project's file is shared with other machines, which have other agents, so
        an entry there names an agent only if you ask for it."""
        return self.agent or ("" if self.scope is ClientScope.PROJECT else self._own)

    @property
    def holder(self) -> str:
        """The agent of a client that uses the entry here. Over HTTP, it needs a token even if the entry names none."""
        return self.name or (self._own if self.http else "")

    @property
    def omits_tools(self) -> bool:
        """Whether workspace tools that the client's own tools replace are left out. The bridge decides which. Without
        it, the entry names them, and a project's file is shared with clients that have other settings."""
        decides = not self.http or self.scope is ClientScope.USER
        return self.client.name in EQUIVALENTS and decides and not self.all_tools

    @property
    def _own(self) -> str:
        """The agent that --write creates for the client; empty if the client has no file to write."""
        return self.client.name if self.client.places else ""


@dataclass(frozen=True, kw_only=True)
class _ConnectResult:
    outcome: EntryOutcome
    who: ConnectedAgent | None = None
    ended: tuple[str, ...] = ()
    generated: Path | None = None


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def connect(
    client: Annotated[str, typer.Argument(metavar="claude|codex|gemini|generic", help="The client.")],
    *,
    agent: Annotated[
        str,
        typer.Option(metavar="NAME", help="Connect as this agent. By default, --write creates one for the client."),
    ] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the entry to the client's configuration file.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entry from the file.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Connect by the endpoint's URL, with the token from TOOLCRIB_TOKEN.")
    ] = False,
    conversation: Annotated[
        str, typer.Option(metavar="LABEL", help="Assign the client's calls to this conversation.")
    ] = "",
    scope: Annotated[str, typer.Option(metavar="user|project", help="Use your own file or this project's.")] = "user",
    listing: Listing = None,
    all_tools: Annotated[
        bool, typer.Option("--all-tools", help="List workspace tools even if the client's own tools replace them.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Connect a client to Toolcrib: show, write or remove its configuration entry.

    Without --write or --remove, the entry is only shown. With --agent, this also creates a client configuration file in
    the agent's private folder, for running the client as that agent. The file contains the agent's token and is removed
    with the agent. If --write created the agent, --remove also removes it.
    """
    if write and remove:
        raise UsageError("--write and --remove can't be used together.", remedy="Use one of them.")
    if not (conversation.isascii() and conversation.isprintable() and len(conversation) <= 200):
        raise UsageError("The conversation's label is not plain text.", remedy="Use up to 200 ASCII characters.")
    request = _ConnectRequest(
        client=client_named(client),
        scope=_scope(scope),
        http=http,
        agent=agent,
        conversation=conversation.strip(),
        listing=listing,
        all_tools=all_tools,
    )
    if http and listing is ListingMode.HANDSHAKE:
        raise UsageError(
            "An entry with a URL can't use --listing handshake, because it is the same in all completions.",
            remedy="Omit --http, or generate a file for each completion with --agent and --conversation.",
        )
    entry = _entry(request)
    entry_file = ClientEntry(client=request.client, scope=request.scope, entry=entry, environ=os.environ, root=root())
    result = _written(request, entry_file) if write else _removed(entry_file) if remove else _shown(request)
    if as_json:
        say_json(_described(request, entry_file, result))
    else:
        _say_result(request, entry_file, result)
    return 0


def _scope(name: str) -> ClientScope:
    try:
        return ClientScope(name)
    except ValueError as error:
        raise UsageError(f"--scope must be user or project, not {name!r}.") from error


def _entry(request: _ConnectRequest) -> dict[str, Any]:
    if request.http:
        client = request.client.name if request.omits_tools else ""
        without = not_needed(client, os.environ, working_folder(), root())
        named = labels(request.name, request.conversation, listing=request.listing or "", without=without)
        return request.client.http(url=_endpoint(), labels=named)
    bridge = _bridge(request.scope is ClientScope.PROJECT)
    options = {
        "--client": request.client.name if request.omits_tools else "",
        "--agent": request.name,
        "--listing": request.listing or "",
    }
    args = [*bridge["args"], *(word for name, value in options.items() if value for word in (name, value))]
    env = {**bridge["env"], **({"TOOLCRIB_CONVERSATION": request.conversation} if request.conversation else {})}
    return request.client.stdio(command=bridge["command"], args=args, env=env)


def _shown(request: _ConnectRequest) -> _ConnectResult:
    if not request.agent:
        return _ConnectResult(outcome=EntryOutcome.SHOWN)
    who = known_agent(request.agent)
    url = _endpoint()
    file = write_private_file(
        agent_folders(), who.name, request.client, url=url, conversation=request.conversation, listing=_said(request)
    )
    return _ConnectResult(outcome=EntryOutcome.SHOWN, who=who, generated=file)


def _said(request: _ConnectRequest) -> str:
    """What the next completion with the generated file says about its list of tools."""
    known = {"conversation": request.conversation, "listing": request.listing}
    given = {name: value for name, value in known.items() if value}
    return str(perform("session:listing", {"agent": request.agent, **given})["listing"])


def _written(request: _ConnectRequest, entry_file: ClientEntry) -> _ConnectResult:
    file = entry_file.known_file()
    if not request.holder:
        return _ConnectResult(outcome=entry_file.write(), ended=release_file(file))
    who = known_agent(request.agent) if request.agent else get_or_create_agent(request.holder)
    try:
        outcome = entry_file.write()
    except ToolcribError:
        if who.new:
            remove_agent(who.name)
        raise
    return _ConnectResult(outcome=outcome, who=who, ended=assign_file(who, file))


def _removed(entry_file: ClientEntry) -> _ConnectResult:
    return _ConnectResult(outcome=entry_file.remove(), ended=release_file(entry_file.known_file()))


def _described(request: _ConnectRequest, entry_file: ClientEntry, result: _ConnectResult) -> dict[str, Any]:
    return {
        "client": request.client.name,
        "scope": request.scope.value,
        "file": None if entry_file.file is None else str(entry_file.file),
        "entry": entry_file.entry,
        "text": entry_file.text,
        "outcome": result.outcome.value,
        "backup": _backup(entry_file, result),
        "agent": request.holder or None,
        "made": result.who is not None and result.who.new,
        "ended": list(result.ended),
        "generated": None if result.generated is None else str(result.generated),
        "notes": list(_notes(request)),
    }


def _backup(entry_file: ClientEntry, result: _ConnectResult) -> str | None:
    return str(entry_file.backup) if result.outcome is EntryOutcome.WRITTEN and entry_file.backup is not None else None


def _say_result(request: _ConnectRequest, entry_file: ClientEntry, result: _ConnectResult) -> None:
    file, outcome = entry_file.file, result.outcome
    if outcome is EntryOutcome.SHOWN:
        hint(
            f"Add this to {file}, or run this command again with --write:"
            if file
            else "Add this to the client's configuration of MCP servers:"
        )
        say(entry_file.text)
    else:
        texts = {
            EntryOutcome.WRITTEN: f"Written to {file}.",
            EntryOutcome.UNCHANGED: f"{file} already has this entry.",
            EntryOutcome.REMOVED: f"Removed from {file}.",
            EntryOutcome.ABSENT: f"{file} has no such entry.",
        }
        say(texts[outcome])
    if backup := _backup(entry_file, result):
        hint(f"The previous version is in {backup}.")
    for line in _about_agents(request, result):
        hint(line)
    if outcome in (EntryOutcome.SHOWN, EntryOutcome.WRITTEN):
        for note in _notes(request):
            hint(note)


def _about_agents(request: _ConnectRequest, result: _ConnectResult) -> list[str]:
    lines = []
    if result.who is not None:
        new = "new " if result.who.new else ""
        lines.append(
            f"{request.client.title} connects as the {new}agent {result.who.name} (profile {result.who.profile})."
        )
    elif result.outcome is EntryOutcome.SHOWN and request.holder:
        lines.append(f"--write creates the agent {request.holder} (profile developer) if it doesn't exist yet.")
    lines += [f"Removed the agent {name}, which was created for this entry." for name in result.ended]
    if result.generated is not None:
        use = request.client.private_use.format(file=result.generated)
        lines.append(f"For runs as {request.agent}: {use}")
        lines.append("That file contains the agent's token. Only you can read it, and it is removed with the agent.")
    return lines


def _notes(request: _ConnectRequest) -> tuple[str, ...]:
    client = request.client
    notes = (*client.http_notes, _token_note(request)) if request.http else client.stdio_notes
    if request.omits_tools:
        notes = (f"--all-tools also lists the workspace tools that {client.title}'s own tools replace.", *notes)
    if request.scope is not ClientScope.PROJECT:
        return notes
    if request.name:
        notes = (*notes, f"Other users of this file need their own agent named {request.name}.")
    return (*notes, *client.project_notes)


def _token_note(request: _ConnectRequest) -> str:
    if not request.holder:
        return "The client needs an agent's token: run `toolcrib agent add NAME`, then connect with --agent NAME."
    file = paths().agents / request.holder / "token"
    return f"The client needs TOOLCRIB_TOKEN in its environment: export TOOLCRIB_TOKEN=\"$(cat '{file}')\""


def _endpoint() -> str:
    if daemon_runs():
        return str(from_daemon("system:status")["endpoint"])
    hint("No daemon is running; this is the default endpoint.")
    return DEFAULT_ENDPOINT


def _bridge(shared: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller, beside it
    """The command that starts the bridge, with the environment it needs to find our files.

    A project's file is shared with other machines, so it contains the bare command name. A user's file gets the
    absolute path, because clients often start with a different PATH than a shell.
    """
    if shared:
        if shutil.which("toolcrib") is None:
            hint("This entry needs `toolcrib` on your PATH: add its folder.")
        return {"command": "toolcrib", "args": ["stdio"], "env": {}}
    env = {"TOOLCRIB_HOME": str(paths().config_dir)} if os.environ.get("TOOLCRIB_HOME") else {}
    script = Path(sys.executable).with_name("toolcrib")
    if script.is_file() and os.access(script, os.X_OK):
        return {"command": str(script), "args": ["stdio"], "env": env}
    # Without -P, a file in the client's project could replace one of our modules.
    return {"command": sys.executable, "args": ["-P", "-m", "toolcrib", "stdio"], "env": env}
