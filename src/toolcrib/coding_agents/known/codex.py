"""Codex: its entry, its `HeadlessSpec`, and the parser of its output (`codex exec --json`).

In: printed JSON objects (the start of a thread, its turns, the start, change and completion of items) and lines on
standard error. Out: `AgentEvent`s and a `RunReport`. Codex prints neither times nor the ids that a server sees.
`codex_launch` starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from toolcrib.coding_agents.client_spec import (
    ARGS,
    COMMAND,
    ENV,
    HEADERS,
    SERVER_NAME,
    TOKEN_VARIABLE,
    URL,
    ClientFileFormat,
    ClientFilePlace,
    ClientScope,
    ClientSpec,
    HeadlessSpec,
    RunReport,
    TokenUsage,
)
from toolcrib.coding_agents.known.codex_launch import OTHER_NAME, is_session, launch
from toolcrib.coding_agents.known.printed_values import LastErrorLines, as_count, as_list, as_map, as_text, failure_text
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

PROVIDER = "codex"
_OURS = (SERVER_NAME, OTHER_NAME)

_MCP_FAILED = re.compile(rf"required MCP servers failed to initialize:.*?\b(?:{'|'.join(_OURS)}): (.*)")
_INNARDS = re.compile(r" ?\[[\w:<>, ]+\]|, when send initialize request.*")
"""Names of types, and repetitions."""
_FATAL = re.compile(r"^error\b", re.IGNORECASE)
_NOT_LOGGED_IN = re.compile(r"401 Unauthorized|not logged in|(?:log|sign) in again", re.IGNORECASE)
_LOG_IN = "Run `codex login`, or check the key that your Codex settings name."
_LOG_PREFIX = re.compile(r"\S+Z +[A-Z]+ [\w:]+: ")
"""The time, level and module before a log line."""

_ROUTED = re.compile(r"\S+Z +ERROR codex_core::tools::router: error=(.*)", re.DOTALL)
"""A failed call. If it never started, this is the only report of it, without its id."""
_NO_SUCH = re.compile(r"unsupported (?:custom tool )?call: (\S+)")
_OUR_TOOL = re.compile(rf"mcp__(?:{OTHER_NAME}|{SERVER_NAME})(?:__)?(.+)")
"""The names of the group and the tool, without a separator."""
_COMMAND = re.compile(r'exec_command failed: CreateProcess \{ message: ("Rejected\(.*\)") \}', re.DOTALL)
_REFUSED = {"patch rejected": "apply_patch", "approval policy is Never; reject command": "shell"}

_STATUS = {"completed": ToolStatus.OK, "failed": ToolStatus.ERROR, "declined": ToolStatus.DENIED}
_WHY_FAILED = (
    (ToolStatus.DENIED, ("requires approval", "user rejected", "user cancelled")),
    (ToolStatus.TIMEOUT, ("timed out", "deadline has elapsed")),
    (ToolStatus.UNAVAILABLE, ("Transport send error", "error sending request", "Transport closed")),
)
"""Codex's texts for a failed call of a server's tool."""


class CodexParser:
    def __init__(self) -> None:
        self.report = RunReport()
        self._calls: dict[str, bool] = {}
        """By a call's id: whether it has ended."""
        self._refusals = 0
        self._last_lines = LastErrorLines(self.report)

    def parse(self, line: Mapping[str, Any]) -> list[AgentEvent]:
        kind, item = as_text(line.get("type")), line.get("item")
        if kind.startswith("item.") and isinstance(item, Mapping):
            self.report.last_trouble = self.report.last_trouble if item.get("type") == "error" else ""
            return list(self._item(kind, item, line))
        match kind:
            case "thread.started":
                self.report.session = as_text(line.get("thread_id"))
                text = f"Session {self.report.session}"
            case "turn.started":
                self.report.ended = False
                return [_event(AgentEventKind.RAW, line)]
            case "turn.completed":
                text = self._completed(line)
            case "turn.failed" | "error":
                self.report.ended = kind == "turn.failed"
                text = self._failed(line)
            case _:
                return [_event(AgentEventKind.RAW, line)]
        return [_event(AgentEventKind.LOG, line, role="system", text=text)]

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        routed = _ROUTED.match(line)
        refused = _refused(routed[1]) if routed else None
        if refused is not None:
            return self._refusal(refused, line)
        failed = _MCP_FAILED.search(line)
        if failed is not None:
            self.report.mcp_failure = _INNARDS.sub("", failed[1]).strip() or line
        if _FATAL.match(line):
            self.report.failure = _INNARDS.sub("", line).strip()
        self._last_lines.add(_LOG_PREFIX.sub("", line))
        return [AgentEvent(kind=AgentEventKind.LOG, provider=PROVIDER, role="system", text=line, raw=line)]

    def _refusal(self, refused: Mapping[str, Any], line: str) -> list[AgentEvent]:
        self._refusals += 1
        over = AgentEvent(
            kind=AgentEventKind.TOOL, provider=PROVIDER, role="tool", call=f"refused_{self._refusals}", **refused
        )
        return [replace(over, tool_status=ToolStatus.STARTED, text="", raw=line), over]

    def _completed(self, line: Mapping[str, Any]) -> str:
        # A retry succeeded after an earlier failure.
        self.report.failure = self.report.remedy = self.report.last_trouble = ""
        self.report.ended = True
        usage = line.get("usage")
        if isinstance(usage, Mapping):
            self.report.usage = TokenUsage(
                input=as_count(usage.get("input_tokens")),
                output=as_count(usage.get("output_tokens")),
                cached=as_count(usage.get("cached_input_tokens")),
                reported=dict(usage),
            )
        return "The turn has ended."

    def _failed(self, line: Mapping[str, Any]) -> str:
        error = line.get("error")
        why = as_text((error if isinstance(error, Mapping) else line).get("message"))
        self.report.failure = self.report.last_trouble = failure_text(why) or "The turn failed."
        self.report.remedy = _LOG_IN if _NOT_LOGGED_IN.search(why) else ""
        return self.report.failure

    def _item(self, kind: str, item: Mapping[str, Any], line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        what = as_text(item.get("type"))
        over = kind == "item.completed"
        if what in _CALLS:
            yield from self._call(kind, item, line)
        elif what == "todo_list":
            yield _event(AgentEventKind.LOG, line, role="assistant", text=_plan(item))
        elif over and what == "agent_message":
            self.report.text = as_text(item.get("text"))
            yield _event(AgentEventKind.MESSAGE, line, role="assistant", text=self.report.text)
        elif over and what == "reasoning":
            yield _event(AgentEventKind.REASONING, line, role="assistant", text=as_text(item.get("text")))
        elif over and what == "error":
            yield _event(AgentEventKind.LOG, line, role="system", text=as_text(item.get("message")))
        else:
            yield _event(AgentEventKind.RAW, line)

    def _call(self, kind: str, item: Mapping[str, Any], line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        """One event when a call starts, one when it ends; Codex prints some calls only when they have ended."""
        call = as_text(item.get("id"))
        begun, over = call in self._calls, self._calls.get(call, False)
        shared: dict[str, Any] = {"kind": AgentEventKind.TOOL, "provider": PROVIDER, "role": "tool", "call": call}
        shared |= _called(item)
        started = AgentEvent(**shared, raw=line, tool_status=ToolStatus.STARTED)
        if kind == "item.started" and not begun:
            self._note(call, over=False)
            yield started
        elif kind == "item.completed" and not over:
            self._note(call, over=True)
            if not begun:
                yield started
            yield AgentEvent(**shared, raw=line if begun else None, text=_outcome(item), tool_status=_status(item))
        else:
            yield _event(AgentEventKind.RAW, line)

    def _note(self, call: str, *, over: bool) -> None:
        if call:
            self._calls[call] = over


def _event(kind: AgentEventKind, line: Mapping[str, Any], *, role: str = "", text: str = "") -> AgentEvent:
    return AgentEvent(kind=kind, provider=PROVIDER, role=role, text=text, raw=line)


_OF_A_SERVER = "mcp_tool_call"
_CALLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "command_execution": ("shell", ("command",)),
    "file_change": ("apply_patch", ("changes",)),
    "web_search": ("web_search", ("query", "action")),
    "collab_tool_call": ("", ("prompt", "receiver_thread_ids")),
    _OF_A_SERVER: ("", ()),
}
"""By an item's type: the tool's name (empty if the item has it) and the keys of its arguments."""


def _called(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = as_text(item.get("type"))
    name, keys = _CALLS[kind]
    tool = name or as_text(item.get("tool"))
    if kind != _OF_A_SERVER:
        return {"tool_name": tool, "tool_args": {key: item[key] for key in keys if item.get(key) is not None}}
    server, given = as_text(item.get("server")), item.get("arguments")
    arguments = given if isinstance(given, Mapping) else None
    return {"tool_name": tool, "tool_args": arguments, "server": SERVER_NAME if server in _OURS else server}


def _refused(text: str) -> dict[str, Any] | None:
    """The fields of a call that Codex did not execute; None if the text doesn't say which tool."""
    if (found := _NO_SUCH.match(text)) is not None:
        ours = _OUR_TOOL.fullmatch(found[1])
        named = {"tool_name": ours[1], "server": SERVER_NAME} if ours else {"tool_name": found[1]}
        return {**named, "tool_status": ToolStatus.UNKNOWN, "text": text}
    if (found := _COMMAND.match(text)) is not None:
        command, mark, why = _twice_quoted(found[1]).partition("` rejected: ")
        known = {"tool_args": {"command": command.removeprefix("`")}, "text": why} if mark else {"text": text}
        return {**known, "tool_name": "shell", "tool_status": ToolStatus.DENIED}
    tool = next((tool for start, tool in _REFUSED.items() if text.startswith(start)), None)
    return None if tool is None else {"tool_name": tool, "tool_status": ToolStatus.DENIED, "text": text}


def _twice_quoted(text: str) -> str:
    """`"Rejected(\\"…\\")"` → the quoted text; empty if it is not valid JSON."""
    try:
        return as_text(json.loads(as_text(json.loads(text)).removeprefix("Rejected(").removesuffix(")")))
    except (ValueError, RecursionError):
        return ""


def _status(item: Mapping[str, Any]) -> ToolStatus:
    # A web search has no status.
    status = _STATUS.get(as_text(item.get("status")) or "completed", ToolStatus.ERROR)
    why = _why(item)
    if status is ToolStatus.ERROR and why:
        return next((better for better, signs in _WHY_FAILED if any(sign in why for sign in signs)), status)
    return status


def _why(item: Mapping[str, Any]) -> str:
    return as_text(as_map(item.get("error")).get("message"))


def _outcome(item: Mapping[str, Any]) -> str:
    parts = as_list(as_map(item.get("result")).get("content"))
    texts = [as_text(part.get("text")) for part in map(as_map, parts)]
    if code := as_count(item.get("exit_code")):
        texts = [f"Exit code {code}", as_text(item.get("aggregated_output"))]
    return _why(item) or "\n".join(filter(None, texts)) or as_text(item.get("aggregated_output"))


def _plan(item: Mapping[str, Any]) -> str:
    known = [step for step in as_list(item.get("items")) if isinstance(step, Mapping)]
    return "\n".join(f"[{'x' if step.get('completed') is True else ' '}] {as_text(step.get('text'))}" for step in known)


CODEX = ClientSpec(
    name="codex",
    title="Codex",
    format=ClientFileFormat.TOML,
    keys=("mcp_servers",),
    places={
        ClientScope.USER: ClientFilePlace(folder=".codex", file="config.toml", variable="CODEX_HOME"),
        ClientScope.PROJECT: ClientFilePlace(folder=".codex", file="config.toml"),
    },
    # Without `required`, Codex waits one second and then continues without the tools. A cold start of the daemon may
    # take longer, hence the timeout. Codex passes few variables to a server; these say where both keep files.
    stdio_template={
        "command": COMMAND,
        "args": ARGS,
        "env": ENV,
        "env_vars": ["CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"],
        "required": True,
        "startup_timeout_sec": 20,
    },
    http_template={
        "url": URL,
        "bearer_token_env_var": TOKEN_VARIABLE,
        "http_headers": HEADERS,
        "required": True,
        "startup_timeout_sec": 20,
    },
    authorization="",
    private_template={
        "url": URL,
        "http_headers": HEADERS,
        "default_tools_approval_mode": "approve",
        "required": True,
        "startup_timeout_sec": 20,
    },
    private_use="ln -s {file} ~/.codex/toolcrib.config.toml, then codex --profile toolcrib",
    headless=HeadlessSpec(
        program="codex",
        # The names of its features, and that arguments can disable them, were verified with this version.
        oldest=(0, 166, 0),
        install="npm install -g @openai/codex",
        keeps=("OPENAI_", "CODEX_"),
        launch=launch,
        parser=CodexParser,
        counts_session=True,
        is_session=is_session,
    ),
    stdio_notes=(
        "`required`: without it, Codex waits one second for a server and then works without its tools.",
        'For unattended runs (`codex exec`), add default_tools_approval_mode = "approve" yourself.',
    ),
    http_notes=('For unattended runs, add default_tools_approval_mode = "approve" yourself.',),
    project_notes=("Codex reads a project's file only if it trusts the project.",),
)
