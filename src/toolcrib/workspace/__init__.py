"""Tools for one folder that cannot leave it: files, tests, linters, a shell. An MCP server like any other.

The few names for programs; each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.workspace.serving.ensure import Running, ensure_workspace
    from toolcrib.workspace.workspace import Workspace

__all__ = ["Running", "Workspace", "ensure_workspace"]

_HOMES = {
    "Running": "toolcrib.workspace.serving.ensure",
    "Workspace": "toolcrib.workspace.workspace",
    "ensure_workspace": "toolcrib.workspace.serving.ensure",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib.workspace' has no attribute {name!r}")
    return getattr(import_module(home), name)
