"""Toolcrib: one room for the tools of all your agents.

The names of the library; each is imported when it is first used, so that `import toolcrib` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.agent.options import AgentOptions, CodingTools, ToolRequest
    from toolcrib.agent.run import run_agent
    from toolcrib.agent_events import AgentEvent
    from toolcrib.catalog.filters import destructive, idempotent, open_world, read_only
    from toolcrib.catalog.offer import Offer
    from toolcrib.catalog.toolbox import Tools
    from toolcrib.catalog.transforms import (
        Change,
        Default,
        Describe,
        Drop,
        Fix,
        Keep,
        Only,
        Options,
        Prefix,
        Rename,
        RenameArgument,
    )
    from toolcrib.config.given import HttpServer, SseServer, StdioServer, WebSocketServer
    from toolcrib.config.model import ServerConfig
    from toolcrib.config.one import server_config
    from toolcrib.crib.client import Client
    from toolcrib.crib.connection import Connection
    from toolcrib.crib.counter import Counter
    from toolcrib.crib.crib import Crib
    from toolcrib.crib.kit import Kit
    from toolcrib.crib.results import Result
    from toolcrib.errors import ToolcribError
    from toolcrib.runs.agent import CodeAgent
    from toolcrib.runs.result import ExecutionResult

__version__ = "0.1.0"

__all__ = [
    "AgentEvent",
    "AgentOptions",
    "Change",
    "Client",
    "CodeAgent",
    "CodingTools",
    "Connection",
    "Counter",
    "Crib",
    "Default",
    "Describe",
    "Drop",
    "ExecutionResult",
    "Fix",
    "HttpServer",
    "Keep",
    "Kit",
    "Offer",
    "Only",
    "Options",
    "Prefix",
    "Rename",
    "RenameArgument",
    "Result",
    "ServerConfig",
    "SseServer",
    "StdioServer",
    "ToolRequest",
    "ToolcribError",
    "Tools",
    "WebSocketServer",
    "__version__",
    "destructive",
    "idempotent",
    "open_world",
    "read_only",
    "run_agent",
    "server_config",
]

_HOMES = {
    "AgentEvent": "toolcrib.agent_events",
    "AgentOptions": "toolcrib.agent.options",
    "Change": "toolcrib.catalog.transforms",
    "Client": "toolcrib.crib.client",
    "CodeAgent": "toolcrib.runs.agent",
    "CodingTools": "toolcrib.agent.options",
    "Connection": "toolcrib.crib.connection",
    "Counter": "toolcrib.crib.counter",
    "Crib": "toolcrib.crib.crib",
    "Default": "toolcrib.catalog.transforms",
    "Describe": "toolcrib.catalog.transforms",
    "Drop": "toolcrib.catalog.transforms",
    "ExecutionResult": "toolcrib.runs.result",
    "Fix": "toolcrib.catalog.transforms",
    "HttpServer": "toolcrib.config.given",
    "Keep": "toolcrib.catalog.transforms",
    "Kit": "toolcrib.crib.kit",
    "Offer": "toolcrib.catalog.offer",
    "Only": "toolcrib.catalog.transforms",
    "Options": "toolcrib.catalog.transforms",
    "Prefix": "toolcrib.catalog.transforms",
    "Rename": "toolcrib.catalog.transforms",
    "RenameArgument": "toolcrib.catalog.transforms",
    "Result": "toolcrib.crib.results",
    "ServerConfig": "toolcrib.config.model",
    "SseServer": "toolcrib.config.given",
    "StdioServer": "toolcrib.config.given",
    "ToolRequest": "toolcrib.agent.options",
    "ToolcribError": "toolcrib.errors",
    "Tools": "toolcrib.catalog.toolbox",
    "WebSocketServer": "toolcrib.config.given",
    "destructive": "toolcrib.catalog.filters",
    "idempotent": "toolcrib.catalog.filters",
    "open_world": "toolcrib.catalog.filters",
    "read_only": "toolcrib.catalog.filters",
    "run_agent": "toolcrib.agent.run",
    "server_config": "toolcrib.config.one",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    return getattr(import_module(home), name)
