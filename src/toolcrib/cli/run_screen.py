"""Lines of a run on a terminal, with colours and a sign of life, or in a pipe, as plain text.

In: lines of `run_lines` and `run_account`. Out: a stream. Control characters are made visible wherever they go. `rich`
is imported only for a terminal.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from toolcrib.cli.output import styles, visible
from toolcrib.cli.run_account import Row
from toolcrib.cli.run_lines import Line, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text


class Screen:
    """What is said beside the output does not end a run when it cannot be said any more: a terminal was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console: Console | None = None
        self._sign: Status | None = None
        self._broken = False
        if stream.isatty():
            from rich.console import Console  # noqa: PLC0415

            self._console = Console(file=stream, **styles())

    def write(self, line: Line = ()) -> None:
        if self._broken:
            return
        try:
            if self._console is None:
                self._stream.write("".join(visible(text) for text, _ in line).rstrip() + "\n")
                self._stream.flush()
            else:
                for drawn in _drawn(line, self._console):
                    # A path that is longer than the line is not broken: it stays one that can be copied.
                    self._console.print(drawn, soft_wrap=True)
        except OSError:
            if self._stream is not sys.stderr:
                raise
            self._broken = True

    def wait(self, text: str) -> None:
        """Shows on a terminal that something goes on, and what."""
        if self._console is None or self._broken:
            return
        from rich.text import Text  # noqa: PLC0415

        shown = Text(visible(one_line(text)))
        if self._sign is None:
            self._sign = self._console.status(shown)
            self._sign.start()
        else:
            self._sign.update(shown)

    def still(self) -> None:
        """Ends the sign of life; the terminal is as it was."""
        if self._sign is not None:
            sign, self._sign = self._sign, None
            try:
                sign.stop()
            except OSError:
                self._broken = True


def _drawn(line: Line, console: Console) -> Iterator[Text]:
    """As many as it takes; only rows are broken by us, between words."""
    from rich.text import Text  # noqa: PLC0415

    pieces = [(visible(text), style) for text, style in line]
    if not isinstance(line, Row):
        yield Text.assemble(*pieces)
        return
    label, (text, style) = pieces
    room = max(1, console.width - len(label[0]))
    for part in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]:
        yield Text.assemble(label, (part, style))
        label = (" " * len(label[0]), "")
