"""`allow`, `deny`, `why`, `profile`, and `approvals`, `approve`, `refuse`: what agents may use, and why.

In: words of the command line. Out: an exit code; `why` returns 5 where the answer is no. The daemon reads the rules;
calls that wait for an approval are in the daemon alone. Arguments are shown exactly as the agent sent them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json, table
from toolcrib.cli.perform import ANSWER_WITHIN, AskCommand, asking, from_daemon, perform
from toolcrib.cli.tool_commands import arguments_from, schema_of
from toolcrib.config.model import RESERVED_SERVER_NAMES
from toolcrib.config.show import visible
from toolcrib.errors import ConfigError, DaemonNotRunning, Denied, ToolcribError, UsageError

_WAIT_SECONDS = 25.0
"""Seconds that one question to the daemon waits."""
_MARGIN = 15.0
_LONGEST = 1000
"""Characters of an argument in the list; a call that is named is shown whole."""
_WORD = re.compile(r"[A-Za-z0-9_.:-]+")

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The call, as `toolcrib approvals` names it.")]
Always = Annotated[
    bool, typer.Option("--always", help="From now on, for this agent and this very tool: make a rule of it.")
]


def approvals(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One call, with its arguments whole, however long.")
    ] = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there is one.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the calls that wait for your word."""
    if id is not None and wait:
        raise UsageError("ID and --wait exclude each other.", remedy="Give one of them.")
    found = _ask_daemon("approval:list", {} if id is None else {"id": id})
    while wait and not found["approvals"]:
        found = _ask_daemon("approval:list", {"wait": _WAIT_SECONDS})
    if as_json:
        say_json(found)
        return 0
    for row in found["approvals"]:
        _say_approval(row, None if id else _LONGEST)
    if not found["approvals"]:
        say("Nothing waits for an answer.")
    else:
        hint("Answer with `toolcrib approve ID` or `toolcrib refuse ID`; --always makes a rule of it.")
    return 0


def _say_approval(row: Mapping[str, Any], longest: int | None) -> None:
    """What the agent wrote stands as JSON: in it nothing passes for something else."""
    say(visible(f"{row['id']}  {row['agent']} wants {_quoted_name(row['tool'])}; {row['left']:.0f} s left"))
    say(visible(f"      asked because of {row['rule']}"))
    if row["conversation"] != "default":
        say(visible(f"      in the conversation {_json(row['conversation'])}"))
    whole = row["whole"]
    for line in map(
        visible, (*_value_lines(row["arguments"]), *(f"sent besides: {one}" for one in _value_lines(row["besides"])))
    ):
        say(f"      {line[:longest]}{'' if line[:longest] == line else '…'}")
        whole = whole and line[:longest] == line
    if not whole:
        hint(f"      That is not all of it: `toolcrib approvals {row['id']}` shows the whole call.")


def _value_lines(said: Any) -> list[str]:
    return (
        [f"{_quoted_name(name)} = {_json(value)}" for name, value in said.items()] if isinstance(said, dict) else [said]
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted_name(name: str) -> str:
    return name if _WORD.fullmatch(name) else _json(name)


def approve(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Let a waiting call pass."""
    return _answer(id, approved=True, always=always, as_json=as_json)


def refuse(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Refuse a waiting call."""
    return _answer(id, approved=False, always=always, as_json=as_json)


def _answer(id: str, *, approved: bool, always: bool, as_json: bool) -> int:
    found = _ask_daemon("approval:answer", {"id": id, "approved": approved, "always": always})
    if as_json:
        say_json(found)
        return 0
    call = found["approval"]
    what = visible(f"{call['tool']} for {call['agent']}")
    others = len(found["answered"]) - 1
    if found["answered"]:
        more = f", and {others} more that asked the same" if others > 0 else ""
        say(f"{'Approved' if approved else 'Refused'}: {what}{more}.")
    else:
        hint(f"The call waits no longer: {what}.")
    if found["rule"]:
        say(f"From now on: {visible(found['rule'].partition(': ')[2])}.")
    return 0


def _ask_daemon(name: str, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return from_daemon(name, params, timeout=params.get("wait", 0.0) + _MARGIN)
    except DaemonNotRunning as gone:
        if isinstance(gone.__cause__, FileNotFoundError | ConnectionRefusedError):
            raise DaemonNotRunning(
                "No daemon runs, so no call can wait for an answer.", remedy=gone.remedy
            ) from gone.__cause__
        raise


profile = typer.Typer(rich_markup_mode=None, help="Profiles: sets of rules that agents share.")

AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]
Tools = Annotated[
    str, typer.Argument(metavar="TOOLS", help="`server:tool`; * is any text and ? any character, as in 'git:*'.")
]
When = Annotated[
    list[str] | None,
    typer.Option(
        "--when",
        metavar="CONDITION",
        help="On arguments: 'path under src', 'mode one_of a, b', 'sql matches select .*'. All must hold.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CLAIM",
        help="Only tools that are read_only, destructive, idempotent or open_world, or 'not read_only' and so on.",
    ),
]
Remove = Annotated[bool, typer.Option("--remove", help="Take this very rule away.")]


def allow(
    agent: AgentName,
    tools: Tools,
    *,
    when: When = None,
    where: Where = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask you at each call, instead of allowing it.")] = False,
    remove: Remove = False,
    as_json: AsJson = False,
) -> int:
    """Allow an agent tools that its profile does not. A deny wins over it, wherever it stands."""
    params = _rule(agent, tools, when, where, remove=remove) | ({"ask": True} if ask else {})
    return _say_changed(perform("permission:allow", params), as_json=as_json)


def deny(
    agent: AgentName,
    tools: Tools,
    *,
    when: When = None,
    where: Where = None,
    remove: Remove = False,
    as_json: AsJson = False,
) -> int:
    """Deny an agent tools, whatever else allows them."""
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
    from toolcrib.policy import Rule, RuleEffect, condition_from, rule_data  # noqa: PLC0415 - heavy

    try:
        rule = Rule(effect=RuleEffect.ALLOW, tools="*", when=tuple(map(condition_from, lines)))
    except ConfigError as error:
        raise UsageError(f"--when: {error.message}", remedy=error.remedy) from None
    found: dict[str, Any] = rule_data(rule)["when"]
    return found


def _claim(text: str) -> tuple[str, bool]:
    words = text.split()
    if not words or len(words) > 2 or (len(words) == 2 and words[0] != "not"):
        raise UsageError(f"{text!r} is no claim.", remedy="Write --where read_only or --where 'not destructive'.")
    return words[-1], len(words) == 1


def _say_changed(found: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        say_json(found)
        return 0
    _, _, rule = str(found["rule"]).partition(": ")
    agent = found["agent"]
    if found["removed"]:
        say(f"Removed from {agent}: {rule}.")
        return 0
    say(f"{agent}: {rule}." if found["changed"] else f"{agent} has it already: {rule}.")
    for line in _coverage_lines(found):
        hint(line)
    return 0


def _coverage_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["covers"]:
        away = ", ".join(found["unknown_servers"])
        yield (
            f"Which tools that covers cannot be said: those of {away} are not known now."
            if away
            else "No tool that is known now has such a name: `toolcrib tools` lists them."
        )
    for denied in found["still_denied"]:
        yield f"Still denied: {denied['tool']}: {denied['rule']}."
    more = found["still_denied_in_all"] - len(found["still_denied"])
    if more:
        yield f"And {more} more."
    if found["still_denied"]:
        example = shlex.quote(found["still_denied"][0]["tool"])
        yield f"`toolcrib why {found['agent']} {example}` says what would change that."
    for floor in found["never_allowed"]:
        yield f"{floor['tools']} of them stay denied, which no rule changes: {floor['rule']}."


def why(
    agent: AgentName,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="`server:tool`, or any full name of it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Arguments of the call: KEY=VALUE, KEY:=JSON, KEY=@FILE."),
    ] = None,
    *,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="All arguments as one object; @FILE reads it.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say whether an agent may use a tool, by which rule, and what would change that. Exit code 5: it may not."""
    params: dict[str, Any] = {"agent": agent, "tool": tool}
    with asking("permission:why", params, ()) as ask:
        if words or args is not None:
            params["arguments"] = arguments_from(words or [], args, _schema(tool, ask) if words else {})
        found = ask("permission:why", params, timeout=ANSWER_WITHIN)
    if as_json:
        say_json(found)
    else:
        for line in _explained(found):
            say(line)
    return Denied.exit_code if found["verdict"] == "deny" else 0


def _schema(tool: str, ask: AskCommand) -> Mapping[str, Any]:
    """Nothing where the tool or its server is not known: the answer will say so."""
    try:
        return schema_of(tool, ask)
    except ToolcribError:
        return {}


_VERDICTS = {"allow": "may use", "deny": "may not use", "ask": "may use, if you approve,"}


def _explained(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['agent']} ({found['profile']}) {_VERDICTS[found['verdict']]} {found['tool']}: {found['rule']}."
    if not found["known"]:
        yield f"It is not known here now, so this is about its name alone: {found['unknown']}"
    if found["arguments"] is None and any(" when " in row["rule"] for row in found["rules"]):
        yield "Arguments were not given, so what allows under a condition counts: add KEY=VALUE for a call's answer."
    yield from found["unjudged"]
    if any(" under " in row["rule"] for row in found["rules"]):
        yield _folder_line(found)
    if found["rules"]:
        yield ""
        yield "Rules that speak of it, the strongest first:"
        for row in found["rules"]:
            applies = "" if row["applies"] else "  (does not apply to these arguments)"
            yield f"  {row['rule']}{applies}"
    yield ""
    yield _annotations_line(found)
    if found["remedies"]:
        yield ""
        yield "What would allow it:"
        for remedy in found["remedies"]:
            yield f"  {remedy}"


def _folder_line(found: Mapping[str, Any]) -> str:
    server = found["tool"].partition(":")[0]
    if found["folder"] is None:
        return f"Which folder {server} runs in is not known, so a relative path cannot be judged: give whole paths."
    return f"A relative path is read as {server} reads it: from {found['folder']}, the folder it runs in."


def _annotations_line(found: Mapping[str, Any]) -> str:
    server = found["tool"].partition(":")[0]
    counts = ", ".join(name if value else f"not {name}" for name, value in found["counts_as"].items())
    if server in RESERVED_SERVER_NAMES:
        return f"It is a tool of Toolcrib itself: {counts}."
    quoted = shlex.quote(server)
    if found["believed"]:
        return f"{server} is believed (`toolcrib untrust --server {quoted}` ends that); the tool counts as {counts}."
    if found["new_or_changed"]:
        return (
            f"The tool is new or changed since {server} was trusted, so it counts as {counts}; "
            f"`toolcrib trust --server {quoted}` accepts it."
        )
    return (
        f"{server} is not believed, so the tool counts as {counts}; "
        f"`toolcrib trust --server {quoted}` lets its server's word count."
    )


@profile.command("list")
def list_profiles(*, as_json: AsJson = False) -> int:
    """List the profiles, and which agents have them."""
    found = perform("profile:list")
    if as_json:
        say_json(found)
        return 0
    rows = [
        (
            row["name"],
            "built in" if row["builtin"] else "yours",
            row["rules"],
            row["own_tools"],
            ", ".join(row["agents"]),
            row["description"],
        )
        for row in found["profiles"]
    ]
    table(("profile", "whose", "rules", "own tools", "agents", "description"), rows)
    return 0


ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="The profile.")]


@profile.command()
def show(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Show a profile's rules, as `profile edit --file` takes them."""
    found = perform("profile:show", {"name": name})
    if as_json:
        say_json(found)
        return 0
    from toolcrib.cli.profile_commands import profile_yaml  # noqa: PLC0415 - YAML

    whose = "built in" if found["builtin"] else "yours"
    say(f"# {name}, {whose}; agents: {', '.join(found['agents']) or 'none'}")
    say(profile_yaml(found).rstrip())
    return 0


@profile.command()
def edit(
    name: ProfileName,
    *,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Take the content from there instead of an editor; - is stdin.")
    ] = None,
    copy: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Begin a new profile with the rules of this one.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Change a profile, or make one, in your editor ($VISUAL or $EDITOR). Its agents have the new rules at once."""
    from toolcrib.cli.profile_commands import edit_profile, profile_from_file  # noqa: PLC0415 - YAML

    if file is not None and copy is not None:
        raise UsageError("--file and --copy exclude each other.", remedy="Give one of them.")
    found = edit_profile(name, copy, perform) if file is None else profile_from_file(name, file, perform)
    if as_json:
        say_json(found)
    elif found["changed"]:
        count = f"{found['rules']} {'rule' if found['rules'] == 1 else 'rules'}"
        say(f"{name}: {count}; agents: {', '.join(found['agents']) or 'none yet'}.")
        if not found["agents"]:
            hint(f"Next: `toolcrib agent add AGENT --profile {name}`.")
    else:
        say("Nothing was changed.")
    return 0


@profile.command()
def remove(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Remove a profile of yours that no agent has."""
    found = perform("profile:remove", {"name": name})
    if as_json:
        say_json(found)
    else:
        say(f"Removed {name}.")
    return 0
