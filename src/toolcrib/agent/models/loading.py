"""Modules that stand on the agent's dependencies, loaded when a run needs them.

In: a module's name. Out: the module, or a `UsageError` that says how to install what is missing. `course`, `plan` and
`settings` load by it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from toolcrib.errors import UsageError


def loaded(name: str) -> ModuleType:
    """Takes a second the first time: not for the event loop."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"The agent's dependencies are not installed: {error}.", remedy="Run pip install 'toolcrib[agent]'."
        ) from error
