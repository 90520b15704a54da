"""Claude Code: its entry, its `HeadlessSpec`, and the parser of its output (`--output-format stream-json`).

In: printed JSON objects: `system`, `assistant` (one block of a message each), `user` (tool results), `result` (the end
of a turn; background work may start another). Out: `AgentEvent`s and a `RunReport`. An unknown line becomes a raw
event. `claude_launch` starts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from toolcrib.coding_agents.client_spec import (
    ARGS,
    COMMAND,
    ENV,
    HEADERS,
    SERVER_NAME,
    URL,
    ClientFileFormat,
    ClientFilePlace,
    ClientScope,
    ClientSpec,
    HeadlessSpec,
    RunReport,
    TokenUsage,
)
from toolcrib.coding_agents.known.claude_launch import is_session, launch
from toolcrib.coding_agents.known.printed_values import (
    LastErrorLines,
    PrintedCall,
    as_count,
    as_list,
    as_map,
    as_text,
    failure_text,
)
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

_PROVIDER = "claude"
_USABLE_STATES = ("connected", "pending")
"""States of a server that is connected or may still connect."""
_NOISE = ("thinking_tokens", "background_tasks_changed")
"""Subtypes of `system` lines that a user doesn't need to see."""
_TEXT_KEYS = ("message", "content", "summary", "description", "error", "status", "hook_name", "stderr")
"""Keys of a `system` line that may hold a text for the user, the best first."""
_BLOCKED = "MCP server blocked by enterprise policy"
_NOT_LOGGED_IN = "authentication_failed"
_LOG_IN = "Run `claude` on its own once and log in, or set ANTHROPIC_API_KEY."
_FIGURES = {
    "input": ("input_tokens", "inputTokens"),
    "output": ("output_tokens", "outputTokens"),
    "cached": ("cache_read_input_tokens", "cacheReadInputTokens"),
    "cache_write": ("cache_creation_input_tokens", "cacheCreationInputTokens"),
}
"""By `TokenUsage` field: the key in `usage`, and the key in the figures of each model."""

_KINDS = {"interrupted": ToolStatus.CANCELLED, "cancelled": ToolStatus.CANCELLED}
"""By the reason why a call was not executed; all others are denials."""
_WORDINGS = (
    ("is disabled for this session", ToolStatus.DENIED),
    ("denied by your permission settings", ToolStatus.DENIED),
    ("No such tool available", ToolStatus.UNKNOWN),
    ("InputValidationError", ToolStatus.INVALID),
    ("sent no response or progress", ToolStatus.TIMEOUT),
    ("is not connected", ToolStatus.UNAVAILABLE),
    ("ECONNREFUSED", ToolStatus.UNAVAILABLE),
)
"""Claude Code's texts in an error result: nothing else distinguishes these errors."""


class ClaudeParser:
    def __init__(self) -> None:
        self.report = RunReport()
        self._open: dict[str, PrintedCall] = {}
        self._last_lines = LastErrorLines(self.report)

    def parse(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        kind = line.get("type")
        readers = {"system": self._system, "assistant": self._message, "user": self._message, "result": self._result}
        found = list(readers[kind](line)) if isinstance(kind, str) and kind in readers else []
        first, *more = found or [_event(AgentEventKind.RAW)]
        return [replace(first, raw=line), *more]

    def parse_stderr(self, line: str) -> Iterable[AgentEvent]:
        if _BLOCKED in line and SERVER_NAME in line:
            self.report.mcp_failure = line
        self._last_lines.add(line)
        return [_event(AgentEventKind.LOG, role="system", text=line, raw=line)]

    def _system(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        what = as_text(line.get("subtype"))
        if what == "init":
            self._begun(line)
            yield _event(
                AgentEventKind.LOG,
                role="system",
                text=f"Claude Code {as_text(line.get('claude_code_version'))}".strip(),
            )
        elif what == "api_retry":
            yield _event(AgentEventKind.LOG, role="system", text=self._retry_text(line))
        elif what and what not in _NOISE:
            detail = next((text for text in (as_text(line.get(name)) for name in _TEXT_KEYS) if text), "")
            yield _event(AgentEventKind.LOG, role="system", text=f"{what}: {detail}" if detail else what)

    def _retry_text(self, line: Mapping[str, Any]) -> str:
        self._check_login(line)
        times = f"{as_count(line.get('attempt'))} of {as_count(line.get('max_retries'))}"
        why = " ".join(str(why) for why in (line.get("error_status"), line.get("error")) if why is not None)
        self.report.last_trouble = f"The model did not answer, attempt {times}: {why or 'unknown'}"
        return self.report.last_trouble

    def _check_login(self, line: Mapping[str, Any]) -> None:
        if line.get("error") == _NOT_LOGGED_IN:
            self.report.remedy = _LOG_IN

    def _begun(self, line: Mapping[str, Any]) -> None:
        self.report.session = as_text(line.get("session_id")) or self.report.session
        self.report.model = as_text(line.get("model")) or self.report.model
        for server in map(as_map, as_list(line.get("mcp_servers"))):
            status = as_text(server.get("status"))
            if server.get("name") == SERVER_NAME and status not in _USABLE_STATES:
                self.report.mcp_failure = f"Claude Code reports its MCP server {SERVER_NAME} as {status or 'unknown'}."

    def _message(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        role = as_text(line.get("type"))
        if not line.get("is_api_error_message"):
            self.report.last_trouble = ""
        content = as_map(line.get("message")).get("content")
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else map(as_map, as_list(content)):
            match block.get("type"):
                case "text":
                    yield self._text(as_text(block.get("text")), role, line)
                case "thinking":
                    yield _event(AgentEventKind.REASONING, role=role, text=as_text(block.get("thinking")))
                case "tool_use":
                    yield from self._started(block, line)
                case "tool_result":
                    yield from self._over(block, line)

    def _text(self, text: str, role: str, line: Mapping[str, Any]) -> AgentEvent:
        if line.get("is_api_error_message"):
            self._check_login(line)
            return _event(AgentEventKind.LOG, role="system", text=text)
        if role == "assistant" and not line.get("parent_tool_use_id"):
            # The run's text if the program ends without a `result` line.
            self.report.text, self.report.ended = text, False
        return _event(AgentEventKind.MESSAGE, role=role, text=text)

    def _started(self, block: Mapping[str, Any], line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call, full_name, given = as_text(block.get("id")), as_text(block.get("name")), block.get("input")
        if not call or call in self._open:
            return
        server, name = _named(full_name)
        self._open[call] = PrintedCall(
            provider=_PROVIDER,
            id=call,
            name=name,
            server=server,
            arguments=given if isinstance(given, dict) else None,
            of_subagent=bool(line.get("parent_tool_use_id")),
        )
        yield self._open[call].event(ToolStatus.STARTED)

    def _over(self, block: Mapping[str, Any], line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call = as_text(block.get("tool_use_id"))
        known = self._open.pop(call, None)
        if known is None:
            return
        text = _texts(block.get("content"))
        metas = [meta for meta in map(as_map, as_list(line.get("tool_result_meta"))) if meta.get("id") == call]
        failed = block.get("is_error") is True
        status = _failure(text, metas[0] if metas else {}) if failed else ToolStatus.OK
        yield known.event(status, text=text)

    def _result(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        self.report.session = as_text(line.get("session_id")) or self.report.session
        self.report.usage = _added(self.report.usage, line)
        answer = as_text(line.get("result"))
        errors = "; ".join(filter(None, map(as_text, as_list(line.get("errors")))))
        what = as_text(line.get("terminal_reason")) or as_text(line.get("subtype"))
        failed = line.get("is_error") is True
        self.report.text = answer if answer and not failed else self.report.text
        self.report.ended = True
        self.report.failure = failure_text(answer or errors or what or "No reason was reported.") if failed else ""
        self.report.remedy = self.report.remedy if failed else ""
        yield _event(AgentEventKind.LOG, role="system", text=f"{what}: {self.report.failure}" if failed else what)
        for call in [call for call, known in self._open.items() if not known.of_subagent]:
            yield self._open.pop(call).event(ToolStatus.CANCELLED)


def _event(kind: AgentEventKind, **more: Any) -> AgentEvent:
    return AgentEvent(kind=kind, provider=_PROVIDER, **more)


def _named(full: str) -> tuple[str, str]:
    """The server, empty for a built-in tool, and the tool's name."""
    if full.startswith(ours := f"mcp__{SERVER_NAME}__"):
        return SERVER_NAME, full.removeprefix(ours)
    before, mark, rest = full.partition("mcp__")
    server, between, name = rest.partition("__")
    return (server, name) if mark and not before and between else ("", full)


def _failure(text: str, meta: Mapping[str, Any]) -> ToolStatus:
    reason = as_text(meta.get("non_execution_kind"))
    if reason or as_map(meta.get("permission_decision")).get("decision") == "reject":
        return _KINDS.get(reason, ToolStatus.DENIED)
    return next((status for wording, status in _WORDINGS if wording in text), ToolStatus.ERROR)


def _added(so_far: TokenUsage, line: Mapping[str, Any]) -> TokenUsage:
    """Adds the tokens of one more result.

    `usage` omits subagents and `modelUsage` counts from the session's first run, so this adds each model's tokens since
    the last result, or `usage` if these are missing.
    """
    models = [as_map(model) for model in as_map(line.get("model_usage_since_last_result")).values()]
    usage = as_map(line.get("usage"))
    counted: dict[str, int | None] = {}
    for ours, (main, each) in _FIGURES.items():
        figures = [as_count(model.get(each)) for model in models] or [as_count(usage.get(main))]
        figures_known = [figure for figure in (getattr(so_far, ours), *figures) if figure is not None]
        counted[ours] = sum(figures_known) if figures_known else None
    reported = {name: line[name] for name in ("usage", "modelUsage", "total_cost_usd", "num_turns") if name in line}
    return TokenUsage(reported=reported, **counted)


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, (as_text(part.get("text")) for part in map(as_map, as_list(content)))))


CLAUDE = ClientSpec(
    name="claude",
    title="Claude Code",
    format=ClientFileFormat.JSON,
    keys=("mcpServers",),
    places={
        ClientScope.USER: ClientFilePlace(file=".claude.json", variable="CLAUDE_CONFIG_DIR"),
        ClientScope.PROJECT: ClientFilePlace(file=".mcp.json"),
    },
    stdio_template={"type": "stdio", "command": COMMAND, "args": ARGS, "env": ENV},
    http_template={"type": "http", "url": URL, "headers": HEADERS},
    private_template={"type": "http", "url": URL, "headers": HEADERS},
    private_use="claude --mcp-config {file} --strict-mcp-config --allowedTools mcp__toolcrib",
    headless=HeadlessSpec(
        program="claude",
        oldest=(2, 1, 259),
        install="npm install -g @anthropic-ai/claude-code",
        keeps=("ANTHROPIC_", "CLAUDE_"),
        launch=launch,
        parser=ClaudeParser,
        call_mark="claudecode/toolUseId",
        is_session=is_session,
    ),
    project_notes=("Claude Code asks you once before it uses a server from a project's file.",),
)
