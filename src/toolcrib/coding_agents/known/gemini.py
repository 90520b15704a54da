"""Gemini CLI: its entry, its `HeadlessSpec`, and the parser of its output (`--output-format stream-json`).

In: printed JSON objects: `init`, `message` (pieces of the model's text), `tool_use`, `tool_result`, `error`, `result`.
Out: `AgentEvent`s and a `RunReport`. Pieces become raw events, and one message when another line follows. Gemini CLI
does not print the model's thoughts. `gemini_launch` starts it.
"""

from __future__ import annotations

import json
import re
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
from toolcrib.coding_agents.known.gemini_launch import launch
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

_PROVIDER = "gemini"
_OF_A_SERVER = re.compile(rf"mcp_({SERVER_NAME}|[^_]+)_(.+)", re.DOTALL)
_MCP_FAILED = (f"discovery for MCP server '{SERVER_NAME}'", f"ensuring MCP server '{SERVER_NAME}'")
"""Texts that report a failure to list a server's tools. At startup it reports only that some server has issues, which
may be one of the user's, and nothing at all if a token is refused."""
_NOT_LOGGED_IN = re.compile(
    r"(?:\x1b\[\d+m)?(?:Error authenticating: |Please set an Auth method in your |Invalid auth method selected"
    r"|Manual authorization is required)"
)
_NOT_LOGGED_IN_TEXT = "Gemini CLI is not logged in."
"""Replaces its own message, which names a file that is removed with the run."""
_NO_KEY = "When using Gemini API, you must specify the GEMINI_API_KEY"
_KEY_REFUSED = re.compile(
    r"API[ _]key[ _](?:not[ _]valid|expired|invalid)|unregistered callers"
    r'|"code":\s*401\b|UNAUTHENTICATED',
    re.IGNORECASE,
)
_LOG_IN = "Run `gemini` on its own once and log in, or set GEMINI_API_KEY."
_RETRIES = re.compile(r"Attempt \d+ failed")
_HELP = "Usage: gemini "
"""Printed after the line that reports an invalid command line."""
_NOISE = re.compile(
    r"Warning: .*(?:color\b.* support|terminal detected|GNU screen detected|tmux|Windows 10 detected)"
    r"|\s+at \S|\s+(?:status|code|exitCode): \d+,?$|}$"
)
"""On standard error: warnings about the terminal, and stack traces."""
_REPORTED = re.compile(r"MCP tool '.*?' reported tool error for function call: ", re.DOTALL)
_STATUS = {
    "policy_violation": ToolStatus.DENIED,
    "path_not_in_workspace": ToolStatus.DENIED,
    "invalid_tool_params": ToolStatus.INVALID,
    "tool_not_registered": ToolStatus.UNKNOWN,
}
"""By Gemini CLI's error type; all others are errors of the tool."""
_WORDINGS = (
    ("Path not in workspace", ToolStatus.DENIED),
    ('"fetch failed"', ToolStatus.UNAVAILABLE),
    ("Request timed out", ToolStatus.TIMEOUT),
)
"""Gemini CLI's texts in an error; they take precedence over the error type."""

_SHELL = ("", "run_shell_command")
"""Its built-in tool, without a server."""
_COMMAND_WORDINGS = (
    ("Command exited with code: ", ToolStatus.ERROR),
    ("Command terminated by signal: ", ToolStatus.ERROR),
    ("Command failed: ", ToolStatus.ERROR),
    ("Command was automatically cancelled because it exceeded the timeout", ToolStatus.TIMEOUT),
    ("Command cancelled by user.", ToolStatus.CANCELLED),
)
"""How the result of a failed shell command begins; its status is success nevertheless. The first three are printed only
if the command itself printed nothing. Otherwise the result doesn't show how the command ended."""


class GeminiParser:
    def __init__(self) -> None:
        self.report = RunReport()
        self._pieces: list[str] = []
        """Pieces of the current message."""
        self._open: dict[str, PrintedCall] = {}
        self._error = ""
        self._last_lines = LastErrorLines(self.report)
        self._prints_help = False

    def parse(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        if _is_progress(line):
            self.report.last_trouble, self.report.ended = "", False
        if self._is_piece(line):
            self._pieces.append(as_text(line.get("content")))
            self.report.text = "".join(self._pieces)
            return [_event(AgentEventKind.RAW, raw=line)]
        kind = line.get("type")
        readers = {
            "init": self._begun,
            "message": self._message,
            "tool_use": self._started,
            "tool_result": self._over,
            "error": self._trouble,
            "result": self._result,
        }
        found = list(readers[kind](line)) if isinstance(kind, str) and kind in readers else []
        first, *more = (*self._whole_message(), *(found or [_event(AgentEventKind.RAW)]))
        return [replace(first, raw=line), *more]

    def parse_stderr(self, line: str) -> Iterable[AgentEvent]:
        if any(text in line for text in _MCP_FAILED):
            self.report.mcp_failure = line
        self._prints_help = self._prints_help or line.startswith(_HELP)
        if self._prints_help or _NOISE.match(line):
            return [_event(AgentEventKind.RAW, text=line, raw=line)]
        if _RETRIES.match(line):
            self.report.last_trouble = failure_text(line)
        return [_event(AgentEventKind.LOG, role="system", text=self._of_failure(line), raw=line)]

    def _of_failure(self, line: str) -> str:
        """The text of a line that may give the reason for a failure."""
        if self.report.ended or not _NOT_LOGGED_IN.match(line):
            self.report.remedy = _LOG_IN if line.startswith(_NO_KEY) else self.report.remedy
            self._last_lines.add(line)
            return line
        self.report.failure, self.report.remedy = _NOT_LOGGED_IN_TEXT, _LOG_IN
        return _NOT_LOGGED_IN_TEXT

    def _is_piece(self, line: Mapping[str, Any]) -> bool:
        return line.get("type") == "message" and line.get("role") == "assistant" and line.get("delta") is True

    def _whole_message(self) -> Iterator[AgentEvent]:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text.strip():
            yield _event(AgentEventKind.MESSAGE, role="assistant", text=text)

    def _begun(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        self.report.session = as_text(line.get("session_id")) or self.report.session
        self.report.model = as_text(line.get("model")) or self.report.model
        text = f"Session {self.report.session}, model {self.report.model}"
        yield _event(AgentEventKind.LOG, role="system", text=text)

    def _message(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        role, text = as_text(line.get("role")), as_text(line.get("content"))
        if role == "assistant":
            self.report.text = text
        yield _event(AgentEventKind.MESSAGE, role=role, text=text)

    def _started(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call, given = as_text(line.get("tool_id")), line.get("parameters")
        if not call or call in self._open:
            return
        server, name = _named(as_text(line.get("tool_name")))
        arguments = given if isinstance(given, dict) else None
        self._open[call] = PrintedCall(provider=_PROVIDER, id=call, name=name, server=server, arguments=arguments)
        yield self._open[call].event(ToolStatus.STARTED)

    def _over(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call = as_text(line.get("tool_id"))
        known = self._open.pop(call, None)
        if known is None:
            return
        error = as_map(line.get("error"))
        text = as_text(error.get("message")) or as_text(line.get("output"))
        failed = bool(error) or line.get("status") == "error"
        status = (
            _failure(error, text)
            if failed
            else _of_command(text)
            if (known.server, known.name) == _SHELL
            else ToolStatus.OK
        )
        yield known.event(status, text=_tool_error(text))

    def _trouble(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        text = as_text(line.get("message"))
        if line.get("severity") == "error":
            self._error = text
        yield _event(AgentEventKind.LOG, role="system", text=text)

    def _result(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        stats = as_map(line.get("stats"))
        if stats:
            self.report.usage = TokenUsage(
                input=as_count(stats.get("input_tokens")),
                output=as_count(stats.get("output_tokens")),
                cached=as_count(stats.get("cached")),
                reported=stats,
            )
        self.report.ended = True
        self.report.failure = self.report.remedy = ""
        status = as_text(line.get("status"))
        if status == "success":
            yield _event(AgentEventKind.LOG, role="system", text="The run has ended.")
            return
        why = as_text(as_map(line.get("error")).get("message")) or self._error
        self.report.remedy = _LOG_IN if _KEY_REFUSED.search(why) else ""
        self.report.failure = failure_text(why) or f"Gemini CLI ended its run with status {status or 'unknown'}."
        yield _event(AgentEventKind.LOG, role="system", text=self.report.failure)


def _is_progress(line: Mapping[str, Any]) -> bool:
    kind = line.get("type")
    return kind in ("tool_use", "tool_result") or (kind == "message" and line.get("role") != "user")


def _tool_error(text: str) -> str:
    """The tool's own error message, which Gemini CLI appends as JSON."""
    reported = _REPORTED.match(text)
    if reported is None:
        return text
    try:
        _, end = json.JSONDecoder().raw_decode(text, reported.end())
        answers, _ = json.JSONDecoder().raw_decode(text[end:].removeprefix(" with response: "))
    except (ValueError, RecursionError):
        return text
    responses = [as_map(as_map(as_map(answer).get("functionResponse")).get("response")) for answer in as_list(answers)]
    texts = [as_text(as_map(part).get("text")) for response in responses for part in as_list(response.get("content"))]
    return "\n".join(filter(None, texts)) or text


def _named(name: str) -> tuple[str, str]:
    """The server, empty for a built-in tool, and the name that the server uses."""
    found = _OF_A_SERVER.fullmatch(name)
    return (found[1], found[2]) if found else ("", name)


def _failure(error: Mapping[str, Any], text: str) -> ToolStatus:
    by_text = next((status for wording, status in _WORDINGS if wording in text), None)
    return by_text or _STATUS.get(as_text(error.get("type")), ToolStatus.ERROR)


def _of_command(text: str) -> ToolStatus:
    return next((status for wording, status in _COMMAND_WORDINGS if text.startswith(wording)), ToolStatus.OK)


def _event(kind: AgentEventKind, **more: Any) -> AgentEvent:
    return AgentEvent(kind=kind, provider=_PROVIDER, **more)


_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

GEMINI = ClientSpec(
    name="gemini",
    title="Gemini CLI",
    format=ClientFileFormat.JSON,
    keys=("mcpServers",),
    places={
        ClientScope.USER: ClientFilePlace(folder=".gemini", file="settings.json"),
        ClientScope.PROJECT: ClientFilePlace(folder=".gemini", file="settings.json"),
    },
    stdio_template={"command": COMMAND, "args": ARGS, "env": ENV},
    # `url` would mean the old SSE transport.
    http_template={"httpUrl": URL, "headers": HEADERS},
    private_template={"httpUrl": URL, "headers": HEADERS, "trust": True},
    private_use="copy {file} to FOLDER/.gemini/settings.json, then run GEMINI_CLI_HOME=FOLDER gemini",
    headless=HeadlessSpec(
        program="gemini",
        oldest=(0, 61, 0),
        install="npm install -g @google/gemini-cli",
        keeps=("GEMINI_", "GOOGLE_", "CODE_ASSIST_", "CLOUD_SHELL"),
        launch=launch,
        parser=GeminiParser,
        is_session=lambda text: _SESSION.fullmatch(text) is not None,
    ),
    stdio_notes=(
        'In unattended runs, Gemini CLI omits the tools unless the entry has "trust": true. '
        "With it, Gemini CLI no longer asks before each call: add it yourself if you want that.",
    ),
    http_notes=('For unattended runs, add "trust": true to the entry yourself.',),
)
