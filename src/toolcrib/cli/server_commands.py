"""`servers`, `remove`, `restart`: the servers behind Toolcrib.

In: command-line arguments. Out: an exit code. Each calls a command of the daemon and prints its result.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import (
    ColumnPriorities,
    TableCut,
    counted,
    duration,
    hint,
    moment,
    printed,
    say,
    size_of,
    table,
)
from toolcrib.cli.perform import from_daemon, perform
from toolcrib.config.show import visible
from toolcrib.errors import ConfigError, ServerUnavailable
from toolcrib.events import ConfigReloaded

COLUMNS = ("name", "state", "protocol", "transport", "tools", "trusted", "pid", "uptime", "last error")
MAX_PROBLEMS = 10
"""Problems shown along with other output; `config check` shows all."""
MAX_TOOL_NAMES = 5
"""Tool names shown for a server; `servers --json` shows all."""

PIN_STATUSES = ("changed", "new", "removed", "kept_out")

_PRIORITIES = ColumnPriorities(text="name", optional=("uptime", "pid", "protocol"), below="last error")

commands = typer.Typer(rich_markup_mode=None)

ServerName = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]


def server_table(servers: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            row.get("name"),
            ", ".join(filter(None, (_state(row), _retry(row)))),
            row.get("protocol_version"),
            row.get("transport"),
            row.get("tools"),
            "yes" if row.get("trusted") else "no",
            row.get("pid"),
            duration(row.get("uptime")),
            row.get("last_error"),
        )
        for row in servers
    ]
    cut = table(COLUMNS, rows, yielding=_PRIORITIES)
    if cut is TableCut.SOME:
        hint("`toolcrib servers show NAME` shows everything about a server.")
    for row in servers:
        _hint_details(row)


def _hint_details(row: Mapping[str, Any]) -> None:
    if row.get("waits_for_installation"):
        hint(f"{row['name']} waits until another server has installed the same package.")
    hint_pins(row)
    if running := [f"{agent} (pid {one['pid']})" for agent, one in row.get("agents", {}).items() if one["pid"]]:
        hint(f"{row['name']}: each agent has its own process: {', '.join(running)}.")
    if row.get("last_error") and has_stderr(row):
        hint(logs_hint(row["name"]))


def _state(row: Mapping[str, Any]) -> str:
    if row.get("waits_for_installation"):
        return "waiting"
    if row.get("installing") is not None:
        return f"installing… {row['installing']:.0f} s"
    return str(row.get("state", ""))


def _retry(row: Mapping[str, Any]) -> str:
    again = row.get("next_attempt") or 0.0
    return f"retry in {again:.0f} s" if again >= 1 else ""


def hint_pins(row: Mapping[str, Any]) -> None:
    """Names a server's tools that await review."""
    name, pins = row["name"], row.get("pins") or {}
    statuses = {why.replace("_", " "): pins.get(why) for why in PIN_STATUSES}
    found = [f"{len(tools)} {why}: {_named(tools)}" for why, tools in statuses.items() if tools]
    if found:
        hint(
            f"{name}: tools that differ from the accepted ones ({'; '.join(found)}). "
            f"`toolcrib pins {shlex.quote(name)}` shows the difference."
        )
    if other := pins.get("looks_like"):
        hint(visible(f"{name}: the name of this server looks like {other}."))
    for tool, reasons in list(pins.get("flagged", {}).items())[:MAX_TOOL_NAMES]:
        look = f"`toolcrib pins {shlex.quote(name)}` shows it."
        hint(visible(f"{name}: the definition of {tool} is suspicious: it {'; it '.join(reasons)}. {look}"))


def _named(tools: Sequence[str]) -> str:
    return ", ".join(map(visible, tools[:MAX_TOOL_NAMES])) + (" …" if len(tools) > MAX_TOOL_NAMES else "")


def has_stderr(row: Mapping[str, Any]) -> bool:
    """Whether a server's program was started and wrote to stderr."""
    return row.get("transport") == "stdio" and bool(row.get("stderr"))


def logs_hint(name: str) -> str:
    return f"`toolcrib logs {shlex.quote(name)}` shows its stderr."


def hint_problems(found: Mapping[str, Any]) -> None:
    """Shows a result's configuration problems, including files that wait for trust."""
    problems = found.get("problems", [])
    for problem in problems[:MAX_PROBLEMS]:
        hint(f"Problem: {problem}")
    if len(problems) > MAX_PROBLEMS:
        hint(f"`toolcrib config check` shows {len(problems) - MAX_PROBLEMS} more.")


_listing = typer.Typer(help="List the servers, or show one.")
commands.add_typer(_listing, name="servers")


@_listing.callback(invoke_without_command=True)
def servers(context: typer.Context, *, mcp_server: McpServers = None, as_json: AsJson = False) -> int:
    """List the servers with their state, protocol, transport, tools and last error; `servers show` shows one."""
    if context.invoked_subcommand is not None:
        return 0
    found = printed(perform("server:list", servers=mcp_server or ()), as_json=as_json)
    if found["servers"]:
        server_table(found["servers"])
    elif problems := found.get("problems"):
        count = counted(len(problems), "problem")
        say(f"No servers are in use, and the configuration has {count}: `toolcrib config check`.")
    elif found.get("untrusted"):
        say("No servers are in use.")
    else:
        say("No servers yet.")
        hint("Next: `toolcrib add NAME -- COMMAND ARGS...` or `toolcrib add NAME --url URL`.")
    hint_problems(found)
    return 0


@_listing.command()
def show(name: ServerName, *, as_json: AsJson = False) -> int:
    """Show a server's health, past errors, restarts, limits, users, memory, and what its tools cost in tokens."""
    found = printed(perform("server:show", {"name": name}), as_json=as_json)
    for title, text in _details(found):
        if text:
            say(f"{title + ':':<12} {text}")
    for past in found.get("errors", []):
        times = (
            f"(\N{MULTIPLICATION SIGN} {past['times']} since {moment(past['first_at'])})" if past["times"] > 1 else ""
        )
        say("  ".join(filter(None, (f"  {moment(past['at'])}", times, past["error"]))))
    _hint_details(found)
    hint_problems(found)
    return 0


def _details(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    limits, users, entry = found["limits"], found.get("used_by", {}), found["entry"]
    state = " ".join(filter(None, (_state(found), found.get("since") and f"since {moment(found['since'])}")))
    most = [f"{limits['connect_timeout']:g} s to connect", f"{limits['call_timeout']:g} s for a call"]
    most += [f"{tool} {seconds:g} s" for tool, seconds in limits["call_timeouts"].items()]
    tools, disabled = counted(found["tools"], "tool"), entry["disabled_tools"]
    if disabled:
        tools += f" ({len(disabled)} disabled: {', '.join(disabled)})"
    about = "~" if found["tokens_estimated"] else ""
    processes = found.get("processes")
    return [
        ("name", str(found["name"])),
        ("state", ", ".join(filter(None, (state, _retry(found))))),
        ("transport", str(found["transport"])),
        ("command", shlex.join([entry["command"], *entry["args"]]) if "command" in entry else ""),
        ("url", entry.get("url", "")),
        ("account", _account(found["account"]) if found.get("account") else ""),
        ("source", str(found["source"])),
        ("trusted", "yes" if found["trusted"] else "no"),
        ("last seen", moment(found["last_seen"]) if found.get("last_seen") else ""),
        ("restarts", str(found["restarts"]) if "restarts" in found else ""),
        ("calls", f"{found['calls']} in progress, at most {limits['max_waiting_calls']}" if "calls" in found else ""),
        ("time limit", ", ".join(most)),
        ("may ask", f"sampling: {entry['sampling']}, roots: {entry['roots']}"),
        ("processes", "one for each agent" if found.get("per_agent") else ""),
        ("projects", ", ".join(users.get("projects", ()))),
        ("agents", ", ".join(users.get("agents", ()))),
        ("memory", f"{size_of(found['memory'])} in {processes} process{'es' * (processes > 1)}" if processes else ""),
        ("tools", f"{tools}, {about}{counted(found['tokens'], 'token')}"),
        ("resources", _counts(found, resources="resource", templates="template")),
        ("prompts", _counts(found, prompts="prompt")),
        ("last error", str(found["last_error"])),
        ("errors", "the newest last" if found.get("errors") else ""),
    ]


def _counts(found: Mapping[str, Any], **nouns: str) -> str:
    return ", ".join(counted(found[key], noun) for key, noun in nouns.items() if found.get(key))


def account_state(row: Mapping[str, Any]) -> str:
    return f"{row['state']} ({row['reason']})" if row["reason"] else str(row["state"])


def account_end(row: Mapping[str, Any]) -> str:
    """When its token ends."""
    if row["expires_at"] is None:
        return "unknown"
    left = row["expires_at"] - time.time()
    when = f"in {duration(left)}" if left > 0 else "expired"
    return f"{when}, renewed by itself" if row["renewed"] else when


def _account(row: Mapping[str, Any]) -> str:
    since = f"signed in since {moment(row['signed_in_at'])}"
    state = account_state(row) if row["reason"] else ""
    return ", ".join(filter(None, (state, since, " ".join(row["scopes"]), f"expires: {account_end(row)}")))


@commands.command()
def remove(name: ServerName, *, as_json: AsJson = False) -> int:
    """Remove a server and its tools from the configuration."""
    found = printed(perform("server:remove", {"name": name}), as_json=as_json)
    say(f"Removed {name} from {found['file']}.")
    return 0


Target = Annotated[str, typer.Argument(metavar="NAME[:TOOL]", help="The server's name, or one of its tools.")]
InProject = Annotated[bool, typer.Option("--project", help="Only in this project, in its own file.")]


@commands.command()
def enable(target: Target, *, project: InProject = False, as_json: AsJson = False) -> int:
    """Enable a server, or one of its tools, that was disabled."""
    return _switch("server:enable", target, project=project, as_json=as_json)


@commands.command()
def disable(target: Target, *, project: InProject = False, as_json: AsJson = False) -> int:
    """Disable a server, or one of its tools: it is neither listed nor called."""
    return _switch("server:disable", target, project=project, as_json=as_json)


def _switch(command: str, target: str, *, project: bool, as_json: bool) -> int:
    params = {"name": target, "scope": "project" if project else "user"}
    found = printed(perform(command, params), as_json=as_json)
    word = command.partition(":")[2]
    if found["changed"]:
        say(f"{word.capitalize()}d {target} in {found['file']}.")
    else:
        say(f"{target} was already {word}d in {found['file']}.")
    if found["enabled"] is not (word == "enable"):
        other = "Leave out" if project else "Use"
        hint(f"It is still {'disabled' if word == 'enable' else 'enabled'} by another file. {other} --project.")
    return 0


@commands.command()
def refresh(name: ServerName, *, as_json: AsJson = False) -> int:
    """List a server's tools again in the running daemon, if it does not announce changes."""
    found = printed(from_daemon("server:refresh", {"name": name}), as_json=as_json)
    server_table([found])
    hint_problems(found)
    return 0


@commands.command()
def reload(*, as_json: AsJson = False) -> int:
    """Read the configuration again in the running daemon and show what changed. Exit code 3: there is an error.

    The daemon notices changed files by itself, within two seconds; this then shows what it has applied. SIGHUP does the
    same as this command.
    """
    found = from_daemon("config:reload")
    code = 0 if found["ok"] else ConfigError.exit_code
    printed(found, as_json=as_json, exit_code=code)
    change, last = _difference(found), found["last_change"]
    if last and not change.changes:
        say(f"Nothing has changed since {moment(last['at'])}, when this was applied:")
        change = replace(_difference(last), restart=change.restart)
    for line in change.lines():
        say(f"{line[0].upper()}{line[1:]}.")
    hint_problems(found)
    return code


def _difference(found: Mapping[str, Any]) -> ConfigReloaded:
    names: dict[str, Any] = {key: found[key] for key in ("added", "removed", "changed", "settings", "restart")}
    return ConfigReloaded(**names)


@commands.command()
def restart(name: ServerName, *, as_json: AsJson = False) -> int:
    """Reconnect a server in the running daemon. Exit code 6: it isn't responding."""
    found = from_daemon("server:restart", {"name": name})
    # One that each agent has for itself is idle when its tools are listed.
    code = 0 if found["state"] in ("ready", "idle") else ServerUnavailable.exit_code
    server_table([printed(found, as_json=as_json, exit_code=code)])
    hint_problems(found)
    return code
