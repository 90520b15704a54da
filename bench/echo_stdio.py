"""A lean echo server over stdio: JSON lines in, JSON lines out, until stdin ends.

Started by the forwarder, by Toolcrib, or by the load client itself (direct). Standard library only.

    python bench/echo_stdio.py modern|legacy NUMBER_OF_TOOLS
"""

from __future__ import annotations

import json
import sys

from echo import Echo


def main() -> None:
    echo = Echo(sys.argv[1], int(sys.argv[2]))
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        answer = echo.answer(json.loads(line))
        if answer is not None:
            out.write(answer[1] + b"\n")
            out.flush()


if __name__ == "__main__":
    main()
