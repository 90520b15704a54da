"""Rows of figures, as an aligned table for people and as JSON for programs.

In: `Figure`s from `figures/`. Out: text and plain values. A row either has values or says why not.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None
GAP = "  "


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    title: str
    keys: tuple[str, ...]
    """The columns that say what a row is about."""
    values: tuple[str, ...]
    """The columns that were measured."""
    notes: tuple[str, ...] = ()
    rows: list[dict[str, Cell]] = field(default_factory=list)

    def add(self, keys: Sequence[Cell], values: dict[str, Cell]) -> None:
        self.rows.append({**dict(zip(self.keys, keys, strict=True)), **values})

    def add_not_measured(self, keys: Sequence[Cell], reason: object) -> None:
        self.add(keys, {"not measured": " ".join(str(reason).split())})

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "notes": list(self.notes), "rows": self.rows}

    def as_text(self) -> str:
        columns = (*self.keys, *self.values)
        table = [[shown(row.get(column)) for column in columns] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
        key_width = sum(widths[: len(self.keys)]) + len(GAP) * len(self.keys)
        lines = [
            f"{self.name}: {self.title}",
            self._line(columns, widths),
            self._line(["-" * w for w in widths], widths),
        ]
        for row, cells in zip(self.rows, table, strict=True):
            line = self._line(cells, widths)
            if "not measured" in row:
                line = f"{line[:key_width]}not measured: {row['not measured']}"
            lines.append(line.rstrip())
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _line(self, cells: Iterable[str], widths: Sequence[int]) -> str:
        padded = [
            cell.ljust(width) if number < len(self.keys) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return GAP.join(padded)


def shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 20 else f"{cell:.2f}"


def median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
