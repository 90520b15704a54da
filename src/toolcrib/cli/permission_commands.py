"""`allow`, `deny`, `why`: agents' permissions, explained.

In: command-line arguments. Out: an exit code; `why` returns 5 if the tool is denied. The daemon evaluates the rules;
this module only parses conditions.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say
from toolcrib.cli.perform import ANSWER_WITHIN, AskCommand, asking, perform
from toolcrib.cli.tool_commands import JsonArguments, arguments_from, schema_of
from toolcrib.config.model import RESERVED_SERVER_NAMES
from toolcrib.errors import ConfigError, Denied, ToolcribError, UsageError
from toolcrib.policy import Rule, Verdict, condition_from, rule_data

commands = typer.Typer(rich_markup_mode=None)

AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]
Tools = Annotated[
    str,
    typer.Argument(
        metavar="TOOLS",
        help="`server:tool`, `resource:server:uri` or `prompt:server:name`; * matches any text and ? any character. "
        "'git:*' covers everything that git offers.",
    ),
]
When = Annotated[
    list[str] | None,
    typer.Option(
        "--when",
        metavar="CONDITION",
        help="Only for matching arguments: 'path under src', 'mode one_of a, b', 'sql matches select .*'. Repeatable; "
        "all must hold.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CLAIM",
        help="Only for tools that are read_only, destructive, idempotent or open_world, or 'not read_only' etc.",
    ),
]
Remove = Annotated[bool, typer.Option("--remove", help="Remove exactly this rule instead of adding it.")]


@commands.command()
def allow(
    agent: AgentName,
    tools: Tools,
    *,
    when: When = None,
    where: Where = None,
    ask: Annotated[bool, typer.Option("--ask", help="Require your approval for each call.")] = False,
    remove: Remove = False,
    as_json: AsJson = False,
) -> int:
    """Allow an agent to use tools that its profile doesn't allow. A deny rule always takes precedence."""
    params = _rule(agent, tools, when, where, remove=remove) | ({"ask": True} if ask else {})
    return _say_changed(perform("permission:allow", params), as_json=as_json)


@commands.command()
def deny(
    agent: AgentName,
    tools: Tools,
    *,
    when: When = None,
    where: Where = None,
    remove: Remove = False,
    as_json: AsJson = False,
) -> int:
    """Deny tools to an agent, overriding anything that allows them."""
    params = _rule(agent, tools, when, where, remove=remove)
    return _say_changed(perform("permission:deny", params), as_json=as_json)


def _rule(
    agent: str, tools: str, when: Sequence[str] | None, where: Sequence[str] | None, *, remove: bool
) -> dict[str, Any]:
    params: dict[str, Any] = {"agent": agent, "tools": tools}
    if when:
        params["when"] = _conditions(when)
    if where:
        params["annotations"] = dict(map(_claim, where))
    if remove:
        params["remove"] = True
    return params


def _conditions(lines: Sequence[str]) -> dict[str, Any]:
    try:
        rule = Rule(effect=Verdict.ALLOW, tools="*", when=tuple(map(condition_from, lines)))
    except ConfigError as error:
        raise UsageError(f"--when: {error.message}", remedy=error.remedy) from None
    found: dict[str, Any] = rule_data(rule)["when"]
    return found


def _claim(text: str) -> tuple[str, bool]:
    parts = text.split()
    if not parts or len(parts) > 2 or (len(parts) == 2 and parts[0] != "not"):
        raise UsageError(
            f"--where {text!r} is not valid.", remedy="Write --where read_only or --where 'not destructive'."
        )
    return parts[-1], len(parts) == 1


def _say_changed(found: dict[str, Any], *, as_json: bool) -> int:
    printed(found, as_json=as_json)
    _, _, rule = str(found["rule"]).partition(": ")
    agent = found["agent"]
    if found["removed"]:
        say(f"Removed from {agent}: {rule}.")
        return 0
    say(f"{agent}: {rule}." if found["changed"] else f"{agent} already has this rule: {rule}.")
    for line in _coverage_lines(found):
        hint(line)
    return 0


_NO_MATCH = {
    "tool": "No known tool matches this rule; `toolcrib tools` lists all tools.",
    "resource": "No listed resource matches this rule, which also covers others; `toolcrib resources` lists them.",
    "prompt": "No known prompt matches this rule; `toolcrib prompts` lists all prompts.",
}


def _coverage_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["covers"]:
        unknown = ", ".join(found["unknown_servers"])
        yield (
            f"The {found['kind']}s of {unknown} are currently unknown, so it isn't clear which ones this rule covers."
            if unknown
            else _NO_MATCH[found["kind"]]
        )
        prefix = found["rule"].partition(": ")[2].split(" ")[1].partition(":")[0]
        if found["kind"] == "tool" and prefix in _NO_MATCH:
            yield f"It covers the tools of a server named {prefix}; `{prefix}:SERVER:*` covers a server's {prefix}s."
    for denied in found["still_denied"]:
        yield f"Still denied: {denied['tool']}: {denied['rule']}."
    more = found["still_denied_in_all"] - len(found["still_denied"])
    if more:
        yield f"And {more} more."
    if found["still_denied"]:
        example = shlex.quote(found["still_denied"][0]["tool"])
        yield f"`toolcrib why {found['agent']} {example}` shows how to change that."
    for rule in found["never_allowed"]:
        yield f"{rule['tools']} of them stay denied, and no rule can change that: {rule['rule']}."


@commands.command()
def why(
    agent: AgentName,
    tool: Annotated[
        str,
        typer.Argument(
            metavar="TOOL",
            help="The tool: `server:tool` or its full name; also `resource:server:uri`, `prompt:server:name`.",
        ),
    ],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The call's arguments: KEY=VALUE, KEY:=JSON or KEY=@FILE."),
    ] = None,
    *,
    args: JsonArguments = None,
    as_json: AsJson = False,
) -> int:
    """Explain whether an agent may use a tool, by which rule, and how to change that. Exit code 5: it may not."""
    params: dict[str, Any] = {"agent": agent, "tool": tool}
    with asking("permission:why", params, ()) as ask:
        if pairs or args is not None:
            params["arguments"] = arguments_from(pairs or [], args, _schema(tool, ask) if pairs else {})
        found = ask("permission:why", params, timeout=ANSWER_WITHIN)
    code = Denied.exit_code if found["verdict"] == "deny" else 0
    for line in _explained(printed(found, as_json=as_json, exit_code=code)):
        say(line)
    return code


def _schema(tool: str, ask: AskCommand) -> Mapping[str, Any]:
    """Empty if the tool or its server is unknown, which the command's result reports."""
    try:
        return schema_of(tool, ask)
    except ToolcribError:
        return {}


_VERDICTS = {"allow": "may use", "deny": "may not use", "ask": "needs your approval to use"}


def _explained(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['agent']} ({found['profile']}) {_VERDICTS[found['verdict']]} {found['tool']}: {found['rule']}."
    if not found["known"]:
        yield f"The {found['kind']} is currently unknown, so only its name was checked: {found['unknown']}"
    if found["arguments"] is None and any(" when " in row["rule"] for row in found["rules"]):
        yield "No arguments were given, so conditions are assumed to hold. Add KEY=VALUE to check a specific call."
    yield from found["unjudged"]
    if any(" under " in row["rule"] for row in found["rules"]):
        yield _folder_line(found)
    if found["rules"]:
        yield ""
        yield "Matching rules, strongest first:"
        for row in found["rules"]:
            applies = "" if row["applies"] else "  (does not apply to these arguments)"
            yield f"  {row['rule']}{applies}"
    yield ""
    yield _annotations_line(found)
    if found["remedies"]:
        yield ""
        yield "To allow it:"
        for remedy in found["remedies"]:
            yield f"  {remedy}"


def _folder_line(found: Mapping[str, Any]) -> str:
    server = found["server"]
    if found["folder"] is None:
        return f"The folder {server} runs in is unknown, so relative paths cannot be checked: use absolute paths."
    return f"Relative paths start at {found['folder']}, the folder {server} runs in."


def _annotations_line(found: Mapping[str, Any]) -> str:
    server = found["server"]
    counts = ", ".join(name if value else f"not {name}" for name, value in found["counts_as"].items())
    if found["kind"] != "tool":
        return f"Resources and prompts count as {counts}."
    if server in RESERVED_SERVER_NAMES:
        return f"This is one of Toolcrib's own tools: {counts}."
    quoted = shlex.quote(server)
    if found["trusted"]:
        return f"{server} is trusted (`toolcrib untrust --server {quoted}` ends that); the tool counts as {counts}."
    if found["pin"]:
        return (
            f"The tool is {found['pin']} since the definitions of {server} were accepted, so it counts as {counts}; "
            f"`toolcrib pins {quoted}` shows the difference."
        )
    return (
        f"{server} is not trusted, so the tool counts as {counts}; "
        f"`toolcrib trust --server {quoted}` makes its annotations count."
    )
