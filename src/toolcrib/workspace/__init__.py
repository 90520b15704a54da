"""Tools confined to one folder: files, tests, linters, a shell. Served over MCP.

These are the public names for programs. Each is imported on first use.
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
