"""The entry: tells the bridge from the commands before anything is imported for either.

In: `sys.argv`. Out: an exit code. `bridge` is the thin way, `app` everything else.
"""

from __future__ import annotations

import sys

from toolcrib.signals import reset_signals


def main() -> int:
    reset_signals()
    words = sys.argv[1:]
    match words:
        case ["stdio"] | ["stdio", "--agent", _]:
            # A bridge starts without the command line's imports.
            from toolcrib.cli.bridge import run_bridge  # noqa: PLC0415

            return run_bridge(*words[2:])
    from toolcrib.cli.app import run  # noqa: PLC0415

    return run(words)
