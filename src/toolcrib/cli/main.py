"""The entry point: chooses between the bridge and the other commands before importing anything for the latter.

In: `sys.argv`. Out: an exit code. `bridge` handles `toolcrib stdio`, `app` everything else.
"""

from __future__ import annotations

import sys

from toolcrib.cli.bridge import run_bridge
from toolcrib.signals import reset_signals


def main() -> int:
    reset_signals()
    argv = sys.argv[1:]
    match argv:
        case ["stdio"] | ["stdio", "--agent", _]:
            return run_bridge(*argv[2:])
    # Imported late, so that a bridge starts as fast as a bare interpreter.
    from toolcrib.cli.app import run  # noqa: PLC0415

    return run(argv)
