"""Every error that Toolcrib raises, with its JSON-RPC code, HTTP status and exit code.

Below everybody: this module imports nothing of ours. `gateway`, `commands` and `cli` are the
only rooms that turn an error into bytes, a status or an exit code; they read the attributes here.

    ToolcribError
    ├── ConfigError            a file, variable or flag that cannot be used
    ├── UsageError             a command given wrong words
    ├── NotFound               a name that is not known here
    │   ├── UnknownServer
    │   ├── UnknownTool
    │   └── UnknownCommand
    ├── InvalidArguments       arguments that do not fit the tool's schema
    ├── Denied                 the policy said no
    ├── ServerFailure          the far side could not answer
    │   ├── ServerAway         not connected now
    │   ├── CallTimeout        no answer in time (it may have run)
    │   └── ProtocolViolation  it answered with something that is not MCP
    ├── ToolError              the server answered a call with a JSON-RPC error
    ├── TooManySessions        no room for one more legacy client
    ├── DaemonNotRunning
    ├── AlreadyRunning
    ├── PortTaken
    └── StoreError             the database cannot be read or written

Codes of our own lie outside -32768..-32000, which JSON-RPC and MCP keep for themselves.
"""

from __future__ import annotations

from typing import Any, ClassVar

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

NOT_PERMITTED = -31403
NOT_KNOWN = -31404
TIMED_OUT = -31504
SERVER_AWAY = -31503
BAD_CONFIG = -31400
STORE_FAILED = -31507


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
    code = SERVER_AWAY
    http_status = 503
    exit_code = 6


class ServerAway(ServerFailure):
    pass


class CallTimeout(ServerFailure):
    code = TIMED_OUT
    http_status = 504


class ProtocolViolation(ServerFailure):
    http_status = 502


class ToolError(ToolcribError):
    exit_code = 6


class TooManySessions(ToolcribError):
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
