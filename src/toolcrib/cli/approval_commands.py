"""`approvals`, `approve`, `refuse`: calls that wait for an approval.

In: words of the command line. Out: an exit code. What waits is in the daemon alone. Arguments are shown exactly as the
agent sent them, so that nothing in them passes for something else on a screen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say
from toolcrib.cli.perform import from_daemon
from toolcrib.config.show import visible
from toolcrib.errors import DaemonNotRunning, UsageError

commands = typer.Typer(rich_markup_mode=None)

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


@commands.command()
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
    for row in printed(found, as_json=as_json)["approvals"]:
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


@commands.command()
def approve(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Let a waiting call pass."""
    return _answer(id, approved=True, always=always, as_json=as_json)


@commands.command()
def refuse(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Refuse a waiting call."""
    return _answer(id, approved=False, always=always, as_json=as_json)


def _answer(id: str, *, approved: bool, always: bool, as_json: bool) -> int:
    found = printed(_ask_daemon("approval:answer", {"id": id, "approved": approved, "always": always}), as_json=as_json)
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
