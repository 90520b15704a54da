"""Tables, coloured lines and a spinner, drawn by `rich`.

In: styled texts whose control characters are already escaped. Out: a terminal or a pipe. Only `output.terminal` imports
this module, when something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text


class Terminal:
    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        # NO_COLOR means no bold either.
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = (
            Console(file=stream, width=width, color_system=None, highlight=False)
            if plain
            else Console(file=stream, width=width)
        )
        self._spinner: Status | None = None

    @property
    def width(self) -> int:
        return self._console.width

    def write(self, pieces: Iterable[tuple[str, str]]) -> None:
        """Writes one line. A long line isn't broken, so that you can copy a path from it."""
        self._console.print(Text.assemble(*pieces), soft_wrap=True)

    def spin(self, text: str) -> None:
        if self._spinner is None:
            self._spinner = self._console.status(Text(text))
            self._spinner.start()
        else:
            self._spinner.update(Text(text))

    def stop(self) -> None:
        """Stops the spinner and restores the terminal."""
        if self._spinner is not None:
            spinner, self._spinner = self._spinner, None
            spinner.stop()

    def table(
        self, widths: Mapping[str, int], rows: Iterable[Sequence[tuple[str, str]]], *, one_line_each: bool
    ) -> list[str]:
        """Returns the table's lines; each cell is a text with its style."""
        drawn = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for column, width in widths.items():
            if one_line_each:
                drawn.add_column(column, overflow="ellipsis", no_wrap=True, max_width=width)
            else:
                drawn.add_column(column, overflow="fold")
        for row in rows:
            drawn.add_row(*(Text(text, style=style) for text, style in row))
        with self._console.capture() as captured:
            self._console.print(drawn)
        return captured.get().splitlines()
