"""Toolcrib: one room for the tools of all your agents.

The few names of the library; each is imported when it is first used, so that `import toolcrib` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.coding_agents.events import AgentEvent
    from toolcrib.config.model import ServerConfig
    from toolcrib.config.one import server_config
    from toolcrib.crib.client import Client
    from toolcrib.crib.crib import Crib
    from toolcrib.crib.results import Result
    from toolcrib.errors import ToolcribError
    from toolcrib.runs.agent import CodeAgent
    from toolcrib.runs.result import ExecutionResult

__version__ = "0.1.0"

__all__ = [
    "AgentEvent",
    "Client",
    "CodeAgent",
    "Crib",
    "ExecutionResult",
    "Result",
    "ServerConfig",
    "ToolcribError",
    "__version__",
    "server_config",
]

_HOMES = {
    "AgentEvent": "toolcrib.coding_agents.events",
    "Client": "toolcrib.crib.client",
    "CodeAgent": "toolcrib.runs.agent",
    "Crib": "toolcrib.crib.crib",
    "ExecutionResult": "toolcrib.runs.result",
    "Result": "toolcrib.crib.results",
    "ServerConfig": "toolcrib.config.model",
    "ToolcribError": "toolcrib.errors",
    "server_config": "toolcrib.config.one",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    return getattr(import_module(home), name)
