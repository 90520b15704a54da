"""The entry point: chooses between the bridge and the other commands before importing anything for the latter.

In: `sys.argv`. Out: an exit code. `bridge` handles `toolcrib stdio`, `app` everything else.
"""

from __future__ import annotations

import sys

from toolcrib.cli.bridge import run_bridge
from toolcrib.signals import reset_signals

_BRIDGE_OPTIONS = frozenset({"--agent", "--client", "--listing"})


def main() -> int:
    reset_signals()
    argv = sys.argv[1:]
    if argv[:1] == ["stdio"]:
        names, values = argv[1::2], argv[2::2]
        if len(names) == len(values) and _BRIDGE_OPTIONS.issuperset(names):
            return run_bridge(**{name.removeprefix("--"): value for name, value in zip(names, values, strict=True)})
    # Imported late, so that a bridge starts as fast as a bare interpreter.
    from toolcrib.cli.app import run  # noqa: PLC0415

    return run(argv)
