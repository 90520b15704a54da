"""Toolcrib: one local MCP endpoint for the tools of all your agents.

The library's public names. Each is imported on first use, so `import toolcrib` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.agent_loop.options import AgentOptions, CodingTools, ToolRequest
    from toolcrib.agent_loop.run import run_agent
    from toolcrib.catalog.offered_tool import OfferedTool, destructive, idempotent, open_world, read_only
    from toolcrib.catalog.transforms import (
        ChangeSchema,
        DefaultArguments,
        DescribeTools,
        DropTools,
        FixArguments,
        ForTools,
        KeepTools,
        PrefixTools,
        ProviderOptions,
        RenameArguments,
        RenameTools,
    )
    from toolcrib.coding_agents.code_agent import CodeAgent
    from toolcrib.coding_agents.run_result import ExecutionResult
    from toolcrib.config.from_code import HttpServer, SseServer, StdioServer, WebSocketServer, server_config
    from toolcrib.config.model import ServerConfig
    from toolcrib.core.answers import ServerQuestion
    from toolcrib.core.connection import Connection
    from toolcrib.core.crib import Crib
    from toolcrib.core.kit import Client, Kit
    from toolcrib.core.provider import ToolProvider
    from toolcrib.core.results import Result
    from toolcrib.core.toolbox import Tools
    from toolcrib.errors import ToolcribError
    from toolcrib.run_events import AgentEvent

__version__ = "0.1.0"

__all__ = [
    "AgentEvent",
    "AgentOptions",
    "ChangeSchema",
    "Client",
    "CodeAgent",
    "CodingTools",
    "Connection",
    "Crib",
    "DefaultArguments",
    "DescribeTools",
    "DropTools",
    "ExecutionResult",
    "FixArguments",
    "ForTools",
    "HttpServer",
    "KeepTools",
    "Kit",
    "OfferedTool",
    "PrefixTools",
    "ProviderOptions",
    "RenameArguments",
    "RenameTools",
    "Result",
    "ServerConfig",
    "ServerQuestion",
    "SseServer",
    "StdioServer",
    "ToolProvider",
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

_NAMES = {
    "agent_loop.options": "AgentOptions CodingTools ToolRequest",
    "agent_loop.run": "run_agent",
    "catalog.offered_tool": "OfferedTool destructive idempotent open_world read_only",
    "catalog.transforms": "ChangeSchema DefaultArguments DescribeTools DropTools FixArguments "
    "ForTools KeepTools PrefixTools ProviderOptions RenameArguments RenameTools",
    "coding_agents.code_agent": "CodeAgent",
    "coding_agents.run_result": "ExecutionResult",
    "config.from_code": "HttpServer SseServer StdioServer WebSocketServer server_config",
    "config.model": "ServerConfig",
    "core.answers": "ServerQuestion",
    "core.connection": "Connection",
    "core.crib": "Crib",
    "core.kit": "Client Kit",
    "core.provider": "ToolProvider",
    "core.results": "Result",
    "core.toolbox": "Tools",
    "errors": "ToolcribError",
    "run_events": "AgentEvent",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    return getattr(import_module(f"toolcrib.{_MODULES[name]}"), name)
