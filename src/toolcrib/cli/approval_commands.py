"""`approvals`, `approve`, `refuse`: calls waiting for approval.

In: command-line arguments. Out: an exit code. Only the daemon holds waiting calls. Arguments are shown as the JSON that
the agent sent, so that they can't imitate other output on the screen.
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
"""Seconds that one request to the daemon waits."""
_MARGIN = 15.0
_MAX_ARGUMENT_LENGTH = 1000
"""Characters of an argument in the list; `approvals ID` shows it whole."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:-]+")

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The call's ID, as shown by `toolcrib approvals`.")]
Always = Annotated[
    bool, typer.Option("--always", help="Remember the answer as a rule for this agent and exactly this tool.")
]


@commands.command()
def approvals(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show only this call, with complete arguments.")
    ] = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there is a call to answer.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the calls waiting for your approval."""
    if id is not None and wait:
        raise UsageError("ID and --wait can't be used together.", remedy="Use one of them.")
    found = _ask_daemon("approval:list", {} if id is None else {"id": id})
    while wait and not found["approvals"]:
        found = _ask_daemon("approval:list", {"wait": _WAIT_SECONDS})
    for row in printed(found, as_json=as_json)["approvals"]:
        _say_approval(row, None if id else _MAX_ARGUMENT_LENGTH)
    if not found["approvals"]:
        say("No calls are waiting for approval.")
    else:
        hint("Answer with `toolcrib approve ID` or `toolcrib refuse ID`; --always remembers the answer as a rule.")
    return 0


def _say_approval(row: Mapping[str, Any], limit: int | None) -> None:
    """The agent's text is shown as JSON, so that it can't imitate other output."""
    say(visible(f"{row['id']}  {row['agent']} wants to call {_quoted_name(row['tool'])}; {row['left']:.0f} s left"))
    say(visible(f"      asked because of {row['rule']}"))
    if row["conversation"] != "default":
        say(visible(f"      in the conversation {_json(row['conversation'])}"))
    whole = row["whole"]
    for line in map(
        visible, (*_value_lines(row["arguments"]), *(f"also sent: {line}" for line in _value_lines(row["besides"])))
    ):
        say(f"      {line[:limit]}{'' if line[:limit] == line else '…'}")
        whole = whole and line[:limit] == line
    if not whole:
        hint(f"      Shortened: `toolcrib approvals {row['id']}` shows the whole call.")


def _value_lines(sent: Any) -> list[str]:
    return (
        [f"{_quoted_name(name)} = {_json(value)}" for name, value in sent.items()] if isinstance(sent, dict) else [sent]
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _json(name)


@commands.command()
def approve(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Approve a waiting call."""
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
        more = f", and {others} more waiting for the same tool" if others > 0 else ""
        say(f"{'Approved' if approved else 'Refused'}: {what}{more}.")
    else:
        hint(f"The call is no longer waiting: {what}.")
    if found["rule"]:
        say(f"From now on: {visible(found['rule'].partition(': ')[2])}.")
    return 0


def _ask_daemon(name: str, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return from_daemon(name, params, timeout=params.get("wait", 0.0) + _MARGIN)
    except DaemonNotRunning as gone:
        if isinstance(gone.__cause__, FileNotFoundError | ConnectionRefusedError):
            raise DaemonNotRunning(
                "No daemon is running, so no calls are waiting.", remedy=gone.remedy
            ) from gone.__cause__
        raise
