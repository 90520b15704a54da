"""`approvals`, `approve`, `refuse`: calls that wait for the person's word.

In: words of the command line. Out: an exit code. What waits is in the daemon alone. Arguments are shown as the agent
sent them, so nothing in them may pass for something else on a screen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.reach import from_daemon
from toolcrib.config.redact import printable
from toolcrib.errors import DaemonNotRunning

_ASK_AGAIN = 25.0
"""Seconds that one question to the daemon waits."""
_MARGIN = 15.0

Id = Annotated[str, typer.Argument(metavar="ID", help="The call, as `toolcrib approvals` names it.")]
Always = Annotated[
    bool, typer.Option("--always", help="From now on, for this agent and this very tool: make a rule of it.")
]


def approvals(
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there is one.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the calls that wait for your word."""
    found = _asked("approval:list", {})
    while wait and not found["approvals"]:
        found = _asked("approval:list", {"wait": _ASK_AGAIN})
    if as_json:
        say_json(found)
        return 0
    for row in found["approvals"]:
        _tell(row)
    if not found["approvals"]:
        say("Nothing waits for an answer.")
    else:
        hint("Answer with `toolcrib approve ID` or `toolcrib refuse ID`; --always makes a rule of it.")
    return 0


def _tell(row: Mapping[str, Any]) -> None:
    conversation = "" if row["conversation"] == "default" else f" (conversation {row['conversation']})"
    say(printable(f"{row['id']}  {row['agent']}{conversation} wants {row['tool']}; {row['left']:.0f} s left"))
    say(printable(f"      asked because of {row['rule']}"))
    said = row["arguments"]
    if isinstance(said, dict):
        for name, value in said.items():
            say(printable(f"      {name} = {json.dumps(value, ensure_ascii=False)}"))
    else:
        say(printable(f"      {said}"))


def approve(id: Id, *, always: Always = False, as_json: AsJson = False) -> int:
    """Let a waiting call pass."""
    return _answer(id, approved=True, always=always, as_json=as_json)


def refuse(id: Id, *, always: Always = False, as_json: AsJson = False) -> int:
    """Refuse a waiting call."""
    return _answer(id, approved=False, always=always, as_json=as_json)


def _answer(id: str, *, approved: bool, always: bool, as_json: bool) -> int:
    found = _asked("approval:answer", {"id": id, "approved": approved, "always": always})
    if as_json:
        say_json(found)
        return 0
    call = found["approval"]
    what = printable(f"{call['tool']} for {call['agent']}")
    others = len(found["answered"]) - 1
    if found["answered"]:
        more = f", and {others} more that asked the same" if others > 0 else ""
        say(f"{'Approved' if approved else 'Refused'}: {what}{more}.")
    else:
        hint(f"The call waits no longer: {what}.")
    if found["rule"]:
        say(f"From now on: {printable(found['rule'].partition(': ')[2])}.")
    return 0


def _asked(name: str, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return from_daemon(name, params, timeout=params.get("wait", 0.0) + _MARGIN)
    except DaemonNotRunning as gone:
        if isinstance(gone.__cause__, FileNotFoundError | ConnectionRefusedError):
            raise DaemonNotRunning(
                "No daemon runs, so no call can wait for an answer.", remedy=gone.remedy
            ) from gone.__cause__
        raise
