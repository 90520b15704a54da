"""`approvals`, `approve`, `refuse`: calls and servers' questions that wait for the owner.

In: command-line arguments, or what the owner types at the terminal. Out: an exit code. Only the daemon holds what
waits, and it checks the answers. Texts of agents and servers are shown as JSON, so that they can't imitate other output
on the screen.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import at_the_prompt, confirmed, hint, printed, say
from toolcrib.cli.perform import from_daemon
from toolcrib.config.show import visible
from toolcrib.errors import DaemonNotRunning, UsageError
from toolcrib.servers.form import FieldKind, FormField, form_fields

commands = typer.Typer(rich_markup_mode=None)

_WAIT_SECONDS = 25.0
"""Seconds that one request to the daemon waits."""
_MARGIN = 15.0
_MAX_ARGUMENT_LENGTH = 1000
"""Characters of an argument in the list; `approvals ID` shows it whole."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:-]+")

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The ID that `toolcrib approvals` shows.")]
Always = Annotated[
    bool,
    typer.Option("--always", help="For a call: remember the answer as a rule for this agent and exactly this tool."),
]


@commands.command()
def approvals(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Show only this call or question, complete.")] = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there is something to answer.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the calls and servers' questions that wait for you."""
    if id is not None and wait:
        raise UsageError("ID and --wait can't be used together.", remedy="Use one of them.")
    found = _ask_daemon("approval:list", {} if id is None else {"id": id})
    while wait and not found["approvals"]:
        found = _ask_daemon("approval:list", {"wait": _WAIT_SECONDS})
    for row in printed(found, as_json=as_json)["approvals"]:
        _say_approval(row, None if id else _MAX_ARGUMENT_LENGTH)
    if not found["approvals"]:
        say("No calls or questions are waiting for you.")
    else:
        hint(_how_to_answer(found["approvals"]))
    return 0


def _how_to_answer(rows: Sequence[Mapping[str, Any]]) -> str:
    modes = {row["question"] and row["question"]["mode"] for row in rows}
    values = "; a form also takes NAME=VALUE …" if "form" in modes else ""
    rule = "; for a call, --always remembers the answer as a rule" if None in modes else ""
    return f"Answer with `toolcrib approve ID` or `toolcrib refuse ID`{values}{rule}."


def _say_approval(row: Mapping[str, Any], limit: int | None) -> None:
    say(visible(f"{row['id']}  {_headline(row)}; {row['left']:.0f} s left"))
    if row["rule"]:
        say(visible(f"      asked because of {row['rule']}"))
    if row["conversation"] != "default":
        say(visible(f"      in the conversation {_json(row['conversation'])}"))
    whole = row["whole"]
    lines = _call_lines(row) if row["question"] is None else _question_lines(row)
    for line in map(visible, lines):
        say(f"      {line[:limit]}{'' if line[:limit] == line else '…'}")
        whole = whole and line[:limit] == line
    if not whole:
        hint(f"      Shortened: `toolcrib approvals {row['id']}` shows everything.")


def _headline(row: Mapping[str, Any]) -> str:
    agent, tool, asked = row["agent"], _quoted_name(row["tool"]), row["question"]
    match asked and asked["mode"]:
        case None:
            return f"{agent} wants to call {tool}"
        case "form":
            return f"server {asked['server']} asks {agent} to fill in a form, in {tool}"
        case "url":
            return f"server {asked['server']} asks {agent} to open a page on {asked['host']}, in {tool}"
        case _:
            return f"server {asked['server']} wants an answer from {agent}'s model, in {tool}"


def _call_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield from _value_lines(row["arguments"])
    yield from (f"also sent: {line}" for line in _value_lines(row["besides"]))


def _question_lines(row: Mapping[str, Any]) -> Iterator[str]:
    asked = row["question"]
    params = asked["params"]
    if asked["mode"] == "sampling" or not isinstance(params, dict):
        yield from _value_lines(params)
        return
    yield _json(params.get("message"))
    if asked["mode"] == "url":
        yield f"page: {_json(params['url'])}"
        yield "Toolcrib does not open it. Open it yourself if you trust it, then approve."
    else:
        yield from map(_field_line, _fields(row))


def _fields(row: Mapping[str, Any]) -> tuple[FormField, ...]:
    params = {} if row["question"] is None else row["question"]["params"]
    schema = params.get("requestedSchema") if isinstance(params, dict) else None
    return form_fields(schema if isinstance(schema, dict) else {})


def _field_line(field: FormField) -> str:
    texts = [_json(text) for text in (field.title, field.description) if text]
    default = [] if field.default is None else [f"default {_json(field.default)}"]
    parts = [field.expected, *default, *(["required"] if field.required and not default else [])]
    return f"{_quoted_name(field.name)}: {'; '.join(parts)}{'  ' if texts else ''}{'  '.join(texts)}"


def _value_lines(sent: Any) -> list[str]:
    return (
        [f"{_quoted_name(name)} = {_json(value)}" for name, value in sent.items()] if isinstance(sent, dict) else [sent]
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _json(name)


@commands.command()
def approve(
    id: ApprovalId,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE", help="A value of the form; repeat it for each, and for each choice of several."
        ),
    ] = None,
    *,
    content: Annotated[
        str | None, typer.Option("--content", metavar="JSON", help="The form's values, as a JSON object.")
    ] = None,
    always: Always = False,
    as_json: AsJson = False,
) -> int:
    """Approve a waiting call, or accept a server's question.

    At a terminal, a form's fields are asked one by one if you give no values."""
    if values and content is not None:
        raise UsageError("NAME=VALUE and --content can't be used together.", remedy="Use one of them.")
    given: dict[str, Any] = {"id": id, "approved": True, "always": always}
    if content is not None:
        return _answer({**given, "content": _object(content)}, as_json=as_json)
    row = _ask_daemon("approval:list", {"id": id})["approvals"][0]
    asked = row["question"]
    if values or (asked is not None and asked["mode"] == "form"):
        fields = _fields(row)
        if not values and sys.stdin.isatty():
            _say_approval(row, None)
            given["content"] = _typed(fields, at_end="It keeps waiting; run the command again.")
        else:
            given["content"] = _read(values or (), fields)
    return _answer(given, as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--content is not JSON: {error}.", remedy="Pass a JSON object, in quotes.") from None
    if not isinstance(value, dict):
        raise UsageError("--content is not a JSON object.", remedy='Pass an object such as {"name": "value"}.')
    return value


def _read(values: Sequence[str], fields: Sequence[FormField]) -> dict[str, Any]:
    by_name = {field.name: field for field in fields}
    content: dict[str, Any] = {}
    for one in values:
        name, equals, text = one.partition("=")
        if not equals:
            raise UsageError(f"{one!r} is not NAME=VALUE.", remedy="Write name=value for each field.")
        field = by_name.get(name)
        value = text if field is None else _value(field, text)
        chosen = [*content.get(name, ()), *value] if field is not None and field.kind is FieldKind.CHOICES else value
        content[name] = chosen
    return content


def _value(field: FormField, text: str) -> Any:
    """The typed text as the field's kind. One that does not fit stays text, and is refused with the reason."""
    match field.kind:
        case FieldKind.BOOLEAN:
            return _WORDS.get(text.strip().lower(), text)
        case FieldKind.CHOICE:
            return _choice(field, text)
        case FieldKind.CHOICES if text.startswith("["):
            return _parsed(text)
        case FieldKind.CHOICES:
            return [_choice(field, text)]
        case FieldKind.TEXT:
            return text
        case _:
            return _parsed(text)


_WORDS = {**dict.fromkeys(("true", "yes", "y"), True), **dict.fromkeys(("false", "no", "n"), False)}


def _choice(field: FormField, text: str) -> str:
    """A value of the field, for its value or its title."""
    titled = [value for value, title in field.choices.items() if title == text]
    return titled[0] if text not in field.choices and len(titled) == 1 else text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _typed(fields: Sequence[FormField], *, at_end: str) -> dict[str, Any]:
    """What the owner types at the terminal. `at_end` is the remedy if the input ends too early."""
    return {field.name: value for field in fields if (value := _typed_value(field, at_end)) is not None}


def _typed_value(field: FormField, at_end: str) -> Any:
    """None if the field is left out, or has its default."""
    several = field.kind is FieldKind.CHOICES
    while True:
        sys.stderr.write(visible(f"{_quoted_name(field.name)}{' (separated by commas)' if several else ''}: "))
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise UsageError("The form was not filled in.", remedy=at_end)
        text = line.rstrip("\r\n")
        if not text and (field.default is not None or not field.required):
            return None
        if not text:
            # An empty text could fit, but whoever only presses Enter hardly means it.
            hint(f"It is required: {visible(field.expected)}.")
            continue
        value = _value(field, text)
        if several and not text.startswith("["):
            value = [_choice(field, one.strip()) for one in text.split(",")]
        if field.accepts(value):
            return value
        hint(f"It must be {visible(field.expected)}.")


def answer_at_terminal(event: dict[str, Any]) -> None:
    """A server asks in the middle of the command that runs here. What the person types is for this question alone."""
    id = event.get("question")
    if not isinstance(id, str):
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint(f"A server asks something. `toolcrib approvals {id}` shows it; answer with `toolcrib approve {id}`.")
        return
    row = _ask_daemon("approval:list", {"id": id})["approvals"][0]
    with at_the_prompt():
        with contextlib.redirect_stdout(sys.stderr):
            _say_approval(row, None)
        given: dict[str, Any] = {"id": id, "approved": confirmed("Answer it?", instead="")}
        if given["approved"] and (fields := _fields(row)):
            given["content"] = _typed(fields, at_end="This also cancels the call.")
        _ask_daemon("approval:answer", given)


@commands.command()
def refuse(id: ApprovalId, *, always: Always = False, as_json: AsJson = False) -> int:
    """Refuse a waiting call, or decline a server's question."""
    return _answer({"id": id, "approved": False, "always": always}, as_json=as_json)


def _answer(given: dict[str, Any], *, as_json: bool) -> int:
    found = printed(_ask_daemon("approval:answer", given), as_json=as_json)
    waited = found["approval"]
    asked = waited["question"]
    what = visible(f"{'' if asked is None else 'the question in '}{waited['tool']} for {waited['agent']}")
    others = len(found["answered"]) - 1
    if found["answered"]:
        more = f", and {others} more waiting for the same tool" if others > 0 and asked is None else ""
        say(f"{'Approved' if given['approved'] else 'Refused'}: {what}{more}.")
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
