"""Tools for one folder that cannot leave it: files, tests, linters, a shell. An MCP server like any other.

The few names for programs; each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.daemon_client.shared_workspace import RunningWorkspace, ensure_workspace
    from toolcrib.workspace.workspace import Workspace

__all__ = ["RunningWorkspace", "Workspace", "ensure_workspace"]

_HOMES = {
    "RunningWorkspace": "toolcrib.daemon_client.shared_workspace",
    "Workspace": "toolcrib.workspace.workspace",
    "ensure_workspace": "toolcrib.daemon_client.shared_workspace",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib.workspace' has no attribute {name!r}")
    return getattr(import_module(home), name)
