"""Every error that Toolcrib raises, with its JSON-RPC code, HTTP status and exit code.

Below everybody: this module imports nothing of ours. Only `gateway`, `commands` and `cli` turn an error into bytes, a
status or an exit code; they read the attributes here.

    ToolcribError
    ├── ConfigError            a file, variable or flag that cannot be used
    ├── UsageError             a command given wrong words
    ├── NotFound               a name that is not known here
    │   ├── UnknownServer
    │   ├── UnknownTool
    │   └── UnknownCommand
    ├── InvalidArguments       arguments that do not fit the tool's schema
    ├── Denied                 the policy, or a person who was asked, said no
    ├── ServerFailure          the far side could not answer
    │   ├── ServerUnavailable  not connected now
    │   ├── CallTimeout        no answer in time (it may have run)
    │   └── ProtocolViolation  it answered with something that is not MCP
    ├── WorkspaceError         a workspace tool cannot do what was asked
    ├── AuditUnwritable        a call that may change something cannot be recorded
    ├── ToolError              the server answered a call with a JSON-RPC error
    ├── TooManySessions        no room for one more conversation
    ├── FolderGone             the folder that an agent works in is not there
    ├── DaemonNotRunning
    ├── AlreadyRunning
    ├── PortTaken
    └── StoreError             the database cannot be read or written

Codes of our own lie outside -32768..-32000, which JSON-RPC and MCP keep for themselves. `ANSWERS` at
the end has the answer that a client gets in each case.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

NOT_AUTHENTICATED = -31401
NOT_PERMITTED = -31403
NOT_KNOWN = -31404
TIMED_OUT = -31504
SERVER_UNAVAILABLE = -31503
BAD_CONFIG = -31400
STORE_FAILED = -31507
REQUEST_CANCELLED = -31499


class ToolcribError(Exception):
    """An error with a text for a person, a remedy, and data for a program."""

    code: ClassVar[int] = INTERNAL_ERROR
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.data = data or {}

    def __str__(self) -> str:
        # An error that nobody caught shall say what to do, too.
        return self.text()

    def text(self) -> str:
        """The message and, after it, what to do next."""
        return f"{self.message} {self.remedy}".rstrip()


class ConfigError(ToolcribError):
    code = BAD_CONFIG
    http_status = 400
    exit_code = 3


class UsageError(ToolcribError):
    code = INVALID_PARAMS
    http_status = 400
    exit_code = 2


class NotFound(ToolcribError):
    code = NOT_KNOWN
    http_status = 404
    exit_code = 4


class UnknownServer(NotFound):
    pass


class UnknownTool(NotFound):
    code = INVALID_PARAMS
    http_status = 400


class UnknownCommand(NotFound):
    code = METHOD_NOT_FOUND


class InvalidArguments(ToolcribError):
    code = INVALID_PARAMS
    http_status = 400
    exit_code = 2


class Denied(ToolcribError):
    code = NOT_PERMITTED
    http_status = 403
    exit_code = 5


class ServerFailure(ToolcribError):
    code = SERVER_UNAVAILABLE
    http_status = 503
    exit_code = 6


class ServerUnavailable(ServerFailure):
    pass


class CallTimeout(ServerFailure):
    code = TIMED_OUT
    http_status = 504


class ProtocolViolation(ServerFailure):
    http_status = 502


class WorkspaceError(ToolcribError):
    """Told to a model, which shall act on it: what, where, and what would work.

    `data["argument"]` names the argument of a tool that the remedy speaks of: a tool that is offered with other
    arguments puts its own words there.
    """

    code = INVALID_PARAMS
    http_status = 400


class AuditUnwritable(ToolcribError):
    code = STORE_FAILED
    http_status = 503
    exit_code = 9


class ToolError(ToolcribError):
    exit_code = 6


class TooManySessions(ToolcribError):
    code = SERVER_UNAVAILABLE
    http_status = 503


class FolderGone(ToolcribError):
    code = SERVER_UNAVAILABLE
    http_status = 503


class DaemonNotRunning(ToolcribError):
    http_status = 503
    exit_code = 7


class AlreadyRunning(ToolcribError):
    http_status = 409
    exit_code = 8


class PortTaken(ToolcribError):
    http_status = 409
    exit_code = 8


class StoreError(ToolcribError):
    code = STORE_FAILED
    exit_code = 9


class ErrorCase(enum.StrEnum):
    """Why a request at the gateway does not get what it asked for."""

    HOST = "the Host header names another endpoint"
    ORIGIN = "a web page of another origin asks"
    PATH = "a path that is not /mcp"
    NO_TOKEN = "no token"  # noqa: S105
    BAD_TOKEN = "a token that is unknown, expired or revoked"  # noqa: S105
    STOPPING = "Toolcrib is stopping"
    LABEL = "X-Toolcrib-Agent contradicts the token"
    CONVERSATION = "X-Toolcrib-Conversation is not printable or too long"
    HTTP_METHOD = "an HTTP method that is not served"
    HEADER_TWICE = "a header that must be single is there twice"
    CONTENT_TYPE = "a body that is not said to be JSON"
    ACCEPT = "a client that does not accept both kinds of answer"
    TOO_LARGE = "a body that is too large"
    INCOMPLETE = "a body that does not arrive whole"
    MALFORMED = "a body that is not JSON, or ambiguous"
    ENVELOPE = "JSON that is no single JSON-RPC request or notification"
    PARAMS = "params that are no object"
    META = "_meta lacks the version or the client's capabilities"
    MISMATCH = "a header is missing or says something else than the body"
    VERSION = "a protocol version that is not spoken"
    SESSION_MISSING = "no session id"
    SESSION_UNKNOWN = "a session id that is unknown, ended or another agent's"
    TOO_MANY_SESSIONS = "no room for one more conversation"
    FOLDER_GONE = "the agent's folder is gone"
    METHOD = "a JSON-RPC method that is not known"
    ARGUMENT = "a method's params do not fit it"
    UNKNOWN_TOOL = "a tool that does not exist"
    DENIED = "a tool that the agent may not use"
    NOT_APPROVED = "a call that no person approved in time"
    INVALID_ARGUMENTS = "arguments that do not fit the tool's schema"
    SERVER_DOWN = "the tool's server is down"
    TIMED_OUT = "the tool's server does not answer in time"
    AUDIT_UNWRITABLE = "the audit log cannot be written, and the tool may change something"
    CANCELLED = "the client cancelled the request"
    ENDED = "the session was ended while the request was under way"
    FAILED = "Toolcrib itself failed"


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """The answer that a client gets in one case."""

    code: int | None
    """The JSON-RPC error's; None: not an error but a result with `isError`, which clients hand to the model."""
    modern: int | None
    """The HTTP status; None: the case does not occur with these protocol versions."""
    legacy: int | None
    text: str
    """What stands in braces is filled in."""


def _before(status: int, text: str, code: int = INVALID_REQUEST) -> ErrorAnswer:
    """Before a call is understood, so the same for all protocol versions."""
    return ErrorAnswer(code=code, modern=status, legacy=status, text=text)


def _modern(status: int, text: str, code: int) -> ErrorAnswer:
    return ErrorAnswer(code=code, modern=status, legacy=None, text=text)


def _legacy(status: int, text: str) -> ErrorAnswer:
    return ErrorAnswer(code=INVALID_REQUEST, modern=None, legacy=status, text=text)


def _within(code: int, text: str, *, modern: int = 200) -> ErrorAnswer:
    """An error of JSON-RPC. Legacy clients take any other status for a failure of the connection."""
    return ErrorAnswer(code=code, modern=modern, legacy=200, text=text)


def _to_the_model(text: str) -> ErrorAnswer:
    return ErrorAnswer(code=None, modern=200, legacy=200, text=text)


ANSWERS: Mapping[ErrorCase, ErrorAnswer] = MappingProxyType(
    {
        ErrorCase.HOST: _before(421, "The Host header does not name this endpoint."),
        ErrorCase.ORIGIN: _before(403, "Requests from this origin are not served.", NOT_PERMITTED),
        ErrorCase.PATH: _before(404, "There is nothing here; the endpoint is /mcp."),
        ErrorCase.NO_TOKEN: _before(
            401,
            "A token is needed: Authorization: Bearer <token>. `toolcrib agent add` makes one; the file of the owner's "
            "own is named by `toolcrib status`.",
            NOT_AUTHENTICATED,
        ),
        ErrorCase.BAD_TOKEN: _before(
            401,
            "This token is not known here, or no longer: it was replaced, revoked or has expired. `toolcrib agent "
            "list` shows the agents, `toolcrib agent rotate` makes a new token.",
            NOT_AUTHENTICATED,
        ),
        ErrorCase.STOPPING: _before(503, "Toolcrib is stopping.", SERVER_UNAVAILABLE),
        ErrorCase.LABEL: _before(
            403, "The token is {agent}'s, but X-Toolcrib-Agent names another. Leave the header out.", NOT_PERMITTED
        ),
        ErrorCase.CONVERSATION: _before(
            400, "X-Toolcrib-Conversation must be printable and of 128 characters at most."
        ),
        ErrorCase.HTTP_METHOD: _before(405, "Use {verbs}."),
        ErrorCase.HEADER_TWICE: _before(400, "The header {name} is there twice."),
        ErrorCase.CONTENT_TYPE: _before(415, "The Content-Type must be application/json."),
        ErrorCase.ACCEPT: _before(406, "Accept must name {kinds}."),
        ErrorCase.TOO_LARGE: _before(413, "The body has more than {most}."),
        ErrorCase.INCOMPLETE: _before(400, "The request did not arrive whole.", PARSE_ERROR),
        ErrorCase.MALFORMED: _before(400, "Parse error: {why}.", PARSE_ERROR),
        ErrorCase.ENVELOPE: _before(400, "{why}."),
        ErrorCase.PARAMS: _before(400, "params: {why}.", INVALID_PARAMS),
        ErrorCase.META: _modern(400, "params._meta must hold {what}.", INVALID_PARAMS),
        ErrorCase.MISMATCH: _modern(400, "The header {header} does not match {what}.", HEADER_MISMATCH),
        ErrorCase.VERSION: _modern(400, "Unsupported protocol version", UNSUPPORTED_VERSION),
        ErrorCase.SESSION_MISSING: _legacy(400, "Bad Request: Missing session ID. Begin with initialize."),
        ErrorCase.SESSION_UNKNOWN: _legacy(404, "Session not found. Begin again with initialize."),
        ErrorCase.TOO_MANY_SESSIONS: _before(
            TooManySessions.http_status,
            "{what} sessions at work. Wait for some to end, or end some: `toolcrib sessions`.",
            TooManySessions.code,
        ),
        ErrorCase.FOLDER_GONE: _before(
            FolderGone.http_status,
            "The folder {folder}, which {agent} works in, is not there. Make it again, or add the agent anew.",
            FolderGone.code,
        ),
        ErrorCase.METHOD: _within(METHOD_NOT_FOUND, "Method not found: {method}", modern=404),
        ErrorCase.ARGUMENT: _within(INVALID_PARAMS, "{why}.", modern=400),
        ErrorCase.UNKNOWN_TOOL: _within(UnknownTool.code, 'There is no tool "{name}". {suggestion}', modern=400),
        ErrorCase.DENIED: _to_the_model(
            "{agent} may not use {tool}: {rule}. Ask the owner of this machine to allow it."
        ),
        ErrorCase.NOT_APPROVED: _to_the_model("{agent} may not use {tool}: {rule}; {why}."),
        ErrorCase.INVALID_ARGUMENTS: _to_the_model(
            "The arguments do not fit {tool}: {why}. Correct these and call again.\nThe tool's schema: {schema}"
        ),
        ErrorCase.SERVER_DOWN: _to_the_model("Server '{server}' {why}"),
        ErrorCase.TIMED_OUT: _to_the_model(
            "Server '{server}' gave no answer within {limit} s. The call was cancelled; it may have run. Raise the "
            "server's call_timeout if it needs longer."
        ),
        ErrorCase.AUDIT_UNWRITABLE: _to_the_model(
            "{tool} did not run: it may change something, and the audit log cannot be written. {why}"
        ),
        # A modern client cancels by going away.
        ErrorCase.CANCELLED: ErrorAnswer(
            code=REQUEST_CANCELLED, modern=None, legacy=200, text="The request was cancelled by its caller."
        ),
        ErrorCase.ENDED: _within(NOT_PERMITTED, "The session was ended while the request was under way."),
        ErrorCase.FAILED: _within(INTERNAL_ERROR, "Toolcrib failed; `toolcrib logs` says why."),
    }
)
"""Every case of the gateway. `docs/errors.md` is made of it, and a test walks it against a running daemon."""
