"""The entry: chooses between the bridge and the commands before anything is imported for the commands.

In: `sys.argv`. Out: an exit code. `bridge` is the thin way, `app` everything else.
"""

from __future__ import annotations

import sys

from toolcrib.cli.bridge import run_bridge
from toolcrib.signals import reset_signals


def main() -> int:
    reset_signals()
    words = sys.argv[1:]
    match words:
        case ["stdio"] | ["stdio", "--agent", _]:
            return run_bridge(*words[2:])
    # A bridge starts in the time of a bare interpreter, without the command line's imports.
    from toolcrib.cli.app import run  # noqa: PLC0415

    return run(words)
