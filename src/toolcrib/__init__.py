"""Toolcrib: one room for the tools of all your agents.

The names of the library; each is imported when it is first used, so that `import toolcrib` costs nothing.
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

_HOMES = {
    "AgentEvent": "toolcrib.run_events",
    "AgentOptions": "toolcrib.agent_loop.options",
    "ChangeSchema": "toolcrib.catalog.transforms",
    "Client": "toolcrib.core.kit",
    "CodeAgent": "toolcrib.coding_agents.code_agent",
    "CodingTools": "toolcrib.agent_loop.options",
    "Connection": "toolcrib.core.connection",
    "ToolProvider": "toolcrib.core.provider",
    "Crib": "toolcrib.core.crib",
    "DefaultArguments": "toolcrib.catalog.transforms",
    "DescribeTools": "toolcrib.catalog.transforms",
    "DropTools": "toolcrib.catalog.transforms",
    "ExecutionResult": "toolcrib.coding_agents.run_result",
    "FixArguments": "toolcrib.catalog.transforms",
    "HttpServer": "toolcrib.config.from_code",
    "KeepTools": "toolcrib.catalog.transforms",
    "Kit": "toolcrib.core.kit",
    "OfferedTool": "toolcrib.catalog.offered_tool",
    "ForTools": "toolcrib.catalog.transforms",
    "ProviderOptions": "toolcrib.catalog.transforms",
    "PrefixTools": "toolcrib.catalog.transforms",
    "RenameTools": "toolcrib.catalog.transforms",
    "RenameArguments": "toolcrib.catalog.transforms",
    "Result": "toolcrib.core.results",
    "ServerConfig": "toolcrib.config.model",
    "SseServer": "toolcrib.config.from_code",
    "StdioServer": "toolcrib.config.from_code",
    "ToolRequest": "toolcrib.agent_loop.options",
    "ToolcribError": "toolcrib.errors",
    "Tools": "toolcrib.core.toolbox",
    "WebSocketServer": "toolcrib.config.from_code",
    "destructive": "toolcrib.catalog.offered_tool",
    "idempotent": "toolcrib.catalog.offered_tool",
    "open_world": "toolcrib.catalog.offered_tool",
    "read_only": "toolcrib.catalog.offered_tool",
    "run_agent": "toolcrib.agent_loop.run",
    "server_config": "toolcrib.config.from_code",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    return getattr(import_module(home), name)
