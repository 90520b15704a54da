"""`connect`: the entry that points a client at Toolcrib, shown, written or removed.

In: a client's name, the agent its entry names, and what to do. Out: an exit code. An agent that `connect` creates for
an entry is removed with that entry; no other agent is. `coding_agents` knows the clients' files.
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
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.perform import daemon_runs, from_daemon, paths, root
from toolcrib.coding_agents.client_files import ClientEntry, EntryOutcome, write_private_file
from toolcrib.coding_agents.client_spec import ClientScope, ClientSpec, labels
from toolcrib.coding_agents.clients import client_named
from toolcrib.errors import ToolcribError, UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8665/mcp"


@dataclass(frozen=True, kw_only=True)
class _ConnectRequest:
    """What the person asked for."""

    client: ClientSpec
    scope: ClientScope
    http: bool
    agent: str
    conversation: str

    @property
    def name(self) -> str:
        """The agent that the entry names. A project's file goes to other machines, which have other agents: an entry
        there names one only if the person says so."""
        return self.agent or ("" if self.scope is ClientScope.PROJECT else self._own)

    @property
    def holder(self) -> str:
        """The agent that whoever uses the entry here is: over HTTP a token is needed, also where none is named."""
        return self.name or (self._own if self.http else "")

    @property
    def _own(self) -> str:
        """The agent that --write makes for the client; where nothing can be written, none."""
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
        str, typer.Option(metavar="NAME", help="Who the client is. Without it --write makes an agent for the client.")
    ] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the entry into the client's file.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the entry out of it again.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="An entry with the endpoint's URL; the token stays in TOOLCRIB_TOKEN.")
    ] = False,
    conversation: Annotated[
        str, typer.Option(metavar="LABEL", help="Which conversation the client's calls belong to.")
    ] = "",
    scope: Annotated[str, typer.Option(metavar="user|project", help="Whose file.")] = "user",
    as_json: AsJson = False,
) -> int:
    """Show the entry that points a client at Toolcrib; write it, or take it out again.

    With --agent and nothing to write, a file for runs of that agent is made in its private folder: it holds the agent's
    token, and goes with the agent. An agent that --write made ends when --remove takes its entry out.
    """
    if write and remove:
        raise UsageError("--write and --remove are opposites.", remedy="Choose one.")
    if not (conversation.isascii() and conversation.isprintable() and len(conversation) <= 200):
        raise UsageError("A conversation's label is plain text.", remedy="Use up to 200 ASCII characters.")
    request = _ConnectRequest(
        client=client_named(client), scope=_scope(scope), http=http, agent=agent, conversation=conversation.strip()
    )
    entry = _entry(request)
    entry_file = ClientEntry(client=request.client, scope=request.scope, entry=entry, environ=os.environ, root=root())
    result = _written(request, entry_file) if write else _removed(entry_file) if remove else _shown(request)
    if as_json:
        say_json(_described(request, entry_file, result))
    else:
        _say_result(request, entry_file, result)
    return 0


def _scope(word: str) -> ClientScope:
    try:
        return ClientScope(word)
    except ValueError as error:
        raise UsageError(f"--scope is user or project, not {word!r}.") from error


def _entry(request: _ConnectRequest) -> dict[str, Any]:
    if request.http:
        return request.client.http(url=_endpoint(), labels=labels(request.name, request.conversation))
    bridge = _bridge(request.scope is ClientScope.PROJECT)
    args = [*bridge["args"], *(["--agent", request.name] if request.name else [])]
    env = {**bridge["env"], **({"TOOLCRIB_CONVERSATION": request.conversation} if request.conversation else {})}
    return request.client.stdio(command=bridge["command"], args=args, env=env)


def _shown(request: _ConnectRequest) -> _ConnectResult:
    if not request.agent:
        return _ConnectResult(outcome=EntryOutcome.SHOWN)
    who = known_agent(request.agent)
    url = _endpoint()
    file = write_private_file(agent_folders(), who.name, request.client, url=url, conversation=request.conversation)
    return _ConnectResult(outcome=EntryOutcome.SHOWN, who=who, generated=file)


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
            f"This goes into {file} (--write puts it there):"
            if file
            else "This goes into the client's file of servers:"
        )
        say(entry_file.text)
    else:
        said = {
            EntryOutcome.WRITTEN: f"Written to {file}.",
            EntryOutcome.UNCHANGED: f"{file} holds it already.",
            EntryOutcome.REMOVED: f"Taken out of {file}.",
            EntryOutcome.ABSENT: f"{file} has no such entry.",
        }
        say(said[outcome])
    if backup := _backup(entry_file, result):
        hint(f"The file as it was: {backup}.")
    for line in _about_agents(request, result):
        hint(line)
    if outcome in (EntryOutcome.SHOWN, EntryOutcome.WRITTEN):
        for note in _notes(request):
            hint(note)


def _about_agents(request: _ConnectRequest, result: _ConnectResult) -> list[str]:
    lines = []
    if result.who is not None:
        what = "was made for it, with the profile" if result.who.new else "has the profile"
        lines.append(f"{request.client.title} is the agent {result.who.name} there, which {what} {result.who.profile}.")
    elif result.outcome is EntryOutcome.SHOWN and request.holder:
        lines.append(
            f"--write makes the agent {request.holder} with the profile developer, unless there is one already."
        )
    lines += [f"The agent {name} is ended: it was made for this entry." for name in result.ended]
    if result.generated is not None:
        use = request.client.private_use.format(file=result.generated)
        lines.append(f"For runs as {request.agent}: {use}")
        lines.append("That file holds the agent's token, is yours alone (0600), and goes with the agent.")
    return lines


def _notes(request: _ConnectRequest) -> tuple[str, ...]:
    client = request.client
    notes = (*client.http_notes, _token_note(request)) if request.http else client.stdio_notes
    if request.scope is not ClientScope.PROJECT:
        return notes
    if request.name:
        notes = (*notes, f"Whoever else uses this file needs an agent {request.name} of their own.")
    return (*notes, *client.project_notes)


def _token_note(request: _ConnectRequest) -> str:
    if not request.holder:
        return "The client needs the token of an agent: `toolcrib agent add NAME`, then connect with --agent NAME."
    file = paths().agents / request.holder / "token"
    return f"The client needs TOOLCRIB_TOKEN in its environment: export TOOLCRIB_TOKEN=\"$(cat '{file}')\""


def _endpoint() -> str:
    if daemon_runs():
        return str(from_daemon("system:status")["endpoint"])
    hint("No daemon runs; this is its default endpoint.")
    return DEFAULT_ENDPOINT


def _bridge(shared: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller, beside it
    """The command that starts the bridge, and what it must know of where our files are.

    A project's file is shared with other machines, so it names the command alone. A user's file gets the absolute path:
    clients start with another PATH than a shell does.
    """
    if shared:
        if shutil.which("toolcrib") is None:
            hint("`toolcrib` is not on your PATH, and a project's file names it so: add it there.")
        return {"command": "toolcrib", "args": ["stdio"], "env": {}}
    env = {"TOOLCRIB_HOME": str(paths().config_dir)} if os.environ.get("TOOLCRIB_HOME") else {}
    script = Path(sys.executable).with_name("toolcrib")
    if script.is_file() and os.access(script, os.X_OK):
        return {"command": str(script), "args": ["stdio"], "env": env}
    # -P: without it a file in the client's project could stand in for one of ours.
    return {"command": sys.executable, "args": ["-P", "-m", "toolcrib", "stdio"], "env": env}
