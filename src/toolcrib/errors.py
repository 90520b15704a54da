"""Every error that Toolcrib raises, with its JSON-RPC code, HTTP status and exit code.

This module imports nothing from Toolcrib. Only `gateway`, `commands` and `cli` turn an error into bytes, a status or
an exit code, using the attributes here.

    ToolcribError
    ├── ConfigError            a file, variable or flag that cannot be used
    ├── UsageError             invalid usage of a command or of the library
    ├── NotFound               an unknown name
    │   ├── UnknownServer
    │   ├── UnknownTool
    │   └── UnknownCommand
    ├── InvalidArguments       arguments that do not fit the tool's schema
    ├── InvalidHandle          a handle that Toolcrib did not make, or not for this agent
    │   └── HandleExpired
    ├── Denied                 refused by the policy, or by a person
    ├── ServerFailure          the server could not answer
    │   ├── ServerUnavailable  not connected now
    │   ├── CallTimeout        no answer in time (it may have run)
    │   ├── ProtocolViolation  the answer was not valid MCP
    │   └── SignInFailed       signing in or out at its authorization server failed
    ├── WorkspaceError         a workspace tool cannot do its task
    ├── AuditUnwritable        a call that may change something cannot be recorded
    ├── ToolError              the server answered a call with a JSON-RPC error
    ├── TooManySessions        the limit of concurrent conversations is reached
    ├── FolderGone             an agent's working folder does not exist
    ├── DaemonNotRunning
    ├── AlreadyRunning
    ├── PortTaken
    └── StoreError             the database cannot be read or written

Toolcrib's own codes are outside -32768..-32000, the range reserved by JSON-RPC and MCP. `ANSWERS` at the end has the
answer that a client gets in each case.
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
    """An error with a message and a remedy for people, and data for programs."""

    code: ClassVar[int] = INTERNAL_ERROR
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.data = data or {}

    def __str__(self) -> str:
        # An uncaught error shows the remedy too.
        return self.text()

    def text(self) -> str:
        """The message, followed by the remedy."""
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


class UnknownOffer(NotFound):
    """There is no such resource or prompt."""

    code = INVALID_PARAMS
    http_status = 400


class UnknownCommand(NotFound):
    code = METHOD_NOT_FOUND


class InvalidArguments(ToolcribError):
    code = INVALID_PARAMS
    http_status = 400
    exit_code = 2


class InvalidHandle(ToolcribError):
    code = INVALID_PARAMS
    http_status = 400


class HandleExpired(InvalidHandle):
    pass


class Denied(ToolcribError):
    code = NOT_PERMITTED
    http_status = 403
    exit_code = 5


class ServerFailure(ToolcribError):
    code = SERVER_UNAVAILABLE
    http_status = 503
    exit_code = 6


class ServerUnavailable(ServerFailure):
    repeat_after: float | None = None
    """Seconds after which a call that cannot do harm may be sent again; None if that is useless or not necessary."""
    retry_after: float | None = None
    """Seconds that the server wants to be left alone, if it has said so."""
    may_have_run = False
    """Whether the server may have got the call."""


class CallTimeout(ServerFailure):
    code = TIMED_OUT
    http_status = 504


class ProtocolViolation(ServerFailure):
    http_status = 502


class SignInFailed(ServerFailure):
    may_have_run = False
    """Whether the authorization server may have processed the request."""


class WorkspaceError(ToolcribError):
    """Written for a model, which is expected to act on it: what failed, where, and what would work.

    `data["argument"]` names the tool argument that the remedy mentions. A tool that is offered with other argument
    names replaces it.
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
    """Why the gateway refuses a request."""

    HOST = "the Host header names another endpoint"
    ORIGIN = "the request comes from a web page of another origin"
    PATH = "the path is not /mcp"
    NO_TOKEN = "no token"  # noqa: S105
    BAD_TOKEN = "the token is unknown, expired or revoked"  # noqa: S105
    STOPPING = "Toolcrib is stopping"
    LABEL = "X-Toolcrib-Agent contradicts the token"
    CONVERSATION = "X-Toolcrib-Conversation is not printable or too long"
    LISTING = "X-Toolcrib-Listing is not a mode of listing"
    WITHOUT = "X-Toolcrib-Without is not printable or too long"
    HTTP_METHOD = "the HTTP method is not supported"
    HEADER_TWICE = "a single-value header appears twice"
    CONTENT_TYPE = "the Content-Type is not JSON"
    ACCEPT = "the client does not accept both kinds of answer"
    TOO_LARGE = "the body is too large"
    INCOMPLETE = "the body is incomplete"
    MALFORMED = "the body is not JSON, or is ambiguous"
    ENVELOPE = "the JSON is not a single JSON-RPC request or notification"
    PARAMS = "params is not an object"
    META = "_meta lacks the version or the client's capabilities"
    MISMATCH = "a header is missing or does not match the body"
    VERSION = "the protocol version is not supported"
    SESSION_MISSING = "no session id"
    SESSION_UNKNOWN = "the session id is unknown, ended or another agent's"
    TOO_MANY_SESSIONS = "too many active sessions"
    FOLDER_GONE = "the agent's working folder does not exist"
    METHOD = "the JSON-RPC method is unknown"
    ARGUMENT = "the params are invalid for the method"
    TASKS = "the client does not declare the extension for tasks"
    UNKNOWN_TOOL = "the tool does not exist"
    DENIED = "the agent may not use the tool"
    NOT_APPROVED = "the call was not approved in time"
    INVALID_ARGUMENTS = "the arguments do not match the tool's schema"
    SERVER_DOWN = "the tool's server is down"
    TIMED_OUT = "the tool's server does not answer in time"
    AUDIT_UNWRITABLE = "the audit log cannot be written, and the tool may change something"
    CANCELLED = "the client cancelled the request"
    ENDED = "the session ended during the request"
    FAILED = "Toolcrib itself failed"


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """The answer that a client gets in one case."""

    code: int | None
    """The JSON-RPC error code. None: a result with `isError`, which clients pass to the model."""
    modern: int | None
    """The HTTP status. None: the case does not occur with these protocol versions."""
    legacy: int | None
    text: str
    """Names in braces are filled in."""


def _before(status: int, text: str, code: int = INVALID_REQUEST) -> ErrorAnswer:
    """Refused before the request is parsed, so the same for all protocol versions."""
    return ErrorAnswer(code=code, modern=status, legacy=status, text=text)


def _modern(status: int, text: str, code: int) -> ErrorAnswer:
    return ErrorAnswer(code=code, modern=status, legacy=None, text=text)


def _legacy(status: int, text: str) -> ErrorAnswer:
    return ErrorAnswer(code=INVALID_REQUEST, modern=None, legacy=status, text=text)


def _within(code: int, text: str, *, modern: int = 200) -> ErrorAnswer:
    """A JSON-RPC error. Legacy clients read a status other than 200 as a connection failure."""
    return ErrorAnswer(code=code, modern=modern, legacy=200, text=text)


def _to_the_model(text: str) -> ErrorAnswer:
    return ErrorAnswer(code=None, modern=200, legacy=200, text=text)


ANSWERS: Mapping[ErrorCase, ErrorAnswer] = MappingProxyType(
    {
        ErrorCase.HOST: _before(421, "The Host header does not name this endpoint."),
        ErrorCase.ORIGIN: _before(403, "Requests from this origin are not allowed.", NOT_PERMITTED),
        ErrorCase.PATH: _before(404, "Not found. The endpoint is /mcp."),
        ErrorCase.NO_TOKEN: _before(
            401,
            "A token is required: Authorization: Bearer <token>. `toolcrib agent add` creates one; `toolcrib status` "
            "shows the file with the owner's token.",
            NOT_AUTHENTICATED,
        ),
        ErrorCase.BAD_TOKEN: _before(
            401,
            "This token is unknown, or it was replaced, revoked or has expired. `toolcrib agent list` shows the "
            "agents, `toolcrib agent rotate` creates a new token.",
            NOT_AUTHENTICATED,
        ),
        ErrorCase.STOPPING: _before(503, "Toolcrib is stopping.", SERVER_UNAVAILABLE),
        ErrorCase.LABEL: _before(
            403,
            "The token belongs to {agent}, but X-Toolcrib-Agent names another agent. Omit the header.",
            NOT_PERMITTED,
        ),
        ErrorCase.CONVERSATION: _before(
            400, "X-Toolcrib-Conversation must be printable and at most 128 characters long."
        ),
        ErrorCase.LISTING: _before(400, "X-Toolcrib-Listing must be auto, full, thin or search, or be omitted."),
        ErrorCase.WITHOUT: _before(
            400,
            "X-Toolcrib-Without must be printable names of tools, separated by commas; at most 2,048 characters.",
        ),
        ErrorCase.HTTP_METHOD: _before(405, "Use {verbs}."),
        ErrorCase.HEADER_TWICE: _before(400, "The header {name} appears twice."),
        ErrorCase.CONTENT_TYPE: _before(415, "The Content-Type must be application/json."),
        ErrorCase.ACCEPT: _before(406, "Accept must name {kinds}."),
        ErrorCase.TOO_LARGE: _before(413, "The body has more than {most}."),
        ErrorCase.INCOMPLETE: _before(400, "The request is incomplete.", PARSE_ERROR),
        ErrorCase.MALFORMED: _before(400, "Parse error: {why}.", PARSE_ERROR),
        ErrorCase.ENVELOPE: _before(400, "{why}."),
        ErrorCase.PARAMS: _before(400, "params: {why}.", INVALID_PARAMS),
        ErrorCase.META: _modern(400, "params._meta must contain {what}.", INVALID_PARAMS),
        ErrorCase.MISMATCH: _modern(400, "The header {header} does not match {what}.", HEADER_MISMATCH),
        ErrorCase.VERSION: _modern(400, "Unsupported protocol version", UNSUPPORTED_VERSION),
        ErrorCase.SESSION_MISSING: _legacy(400, "Bad Request: Missing session ID. Start with initialize."),
        ErrorCase.SESSION_UNKNOWN: _legacy(404, "Session not found. Start again with initialize."),
        ErrorCase.TOO_MANY_SESSIONS: _before(
            TooManySessions.http_status,
            "{what} active sessions. Wait for some to end, or end some with `toolcrib sessions end`.",
            TooManySessions.code,
        ),
        ErrorCase.FOLDER_GONE: _before(
            FolderGone.http_status,
            "The working folder of {agent}, {folder}, does not exist. Create it again, or remove the agent and add it "
            "with another folder.",
            FolderGone.code,
        ),
        ErrorCase.METHOD: _within(METHOD_NOT_FOUND, "Method not found: {method}", modern=404),
        ErrorCase.ARGUMENT: _within(INVALID_PARAMS, "{why}.", modern=400),
        ErrorCase.TASKS: _modern(400, "Missing required client capability", MISSING_CAPABILITY),
        ErrorCase.UNKNOWN_TOOL: _within(UnknownTool.code, 'There is no tool "{name}". {suggestion}', modern=400),
        ErrorCase.DENIED: _to_the_model(
            "{agent} may not use {tool}: {rule}. Ask the owner of this machine to allow it."
        ),
        ErrorCase.NOT_APPROVED: _to_the_model("{agent} may not use {tool}: {rule}; {why}."),
        ErrorCase.INVALID_ARGUMENTS: _to_the_model(
            "The arguments do not match {tool}: {why}. Correct these and call again.\nThe tool's schema: {schema}"
        ),
        ErrorCase.SERVER_DOWN: _to_the_model("Server '{server}' {why}"),
        ErrorCase.TIMED_OUT: _to_the_model(
            "Server '{server}' did not answer within {limit} s. The call was cancelled; it may have run. Raise "
            "{setting} if it needs longer."
        ),
        ErrorCase.AUDIT_UNWRITABLE: _to_the_model(
            "{tool} did not run: it may change something, and the audit log cannot be written. {why}"
        ),
        # A modern client cancels by disconnecting.
        ErrorCase.CANCELLED: ErrorAnswer(
            code=REQUEST_CANCELLED, modern=None, legacy=200, text="The caller cancelled the request."
        ),
        ErrorCase.ENDED: _within(NOT_PERMITTED, "The session ended during the request."),
        ErrorCase.FAILED: _within(INTERNAL_ERROR, "Toolcrib failed. See `toolcrib logs`."),
    }
)
"""Every case of the gateway. `docs/errors.md` is generated from it, and a test checks each row on a running daemon."""
