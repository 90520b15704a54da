"""Writes what `bench/tokens.py --record` measured into the documentation: tables, and a picture.

In: `bench/figures/tokens.json`. Out: the tables of docs/listing.md, between two comments, and docs/pictures/tokens.svg.
A test checks that both agree with the figures.

    make pictures
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "bench" / "figures" / "tokens.json"
PAGE = ROOT / "docs" / "listing.md"
PICTURE = ROOT / "docs" / "pictures" / "tokens.svg"
PLACE = re.compile(r"(<!-- (\w+): written by tools/token_tables\.py -->\n).*?(<!-- end -->\n)", re.DOTALL)
MODES = {"full": "#8b949e", "thin": "#2f81f7", "search": "#3fb950", "handshake": "#d29922"}
Row = Mapping[str, Any]
Figures = Mapping[str, Sequence[Row]]


def main() -> None:
    figures = read()
    PAGE.write_text(with_tables(PAGE.read_text(), figures))
    PICTURE.write_text(picture(figures["prices"]))


def read() -> Figures:
    return {figure["name"]: figure["rows"] for figure in json.loads(FIGURES.read_text())["figures"]}


def with_tables(page: str, figures: Figures) -> str:
    return PLACE.sub(lambda place: f"{place[1]}{table(figures[place[2]])}\n{place[3]}", page)


def table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "not measured"))
    lines = [columns, ["---" if isinstance(rows[0].get(column), str) else "---:" for column in columns]]
    lines += [[shown(row.get(column), column) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: Any, column: str) -> str:
    if value is None:
        return "-"
    percent = " %" if isinstance(value, float) and "%" not in column else ""
    return value if isinstance(value, str) else f"{value:,}{percent}"


# -- the picture: a panel for each list and provider, a bar for each mode ----------------------------------------------

PANEL, BAR, LEFT, TOP, FULL = 272, 15, 74, 62, 88
"""Width of a panel, height of a bar, width of its label, height of the title, length of a bar of 100 %."""
HEIGHT = 30 + len(MODES) * (BAR + 4) + 14


def picture(rows: Sequence[Row]) -> str:
    lists = [(name, list(several)) for name, several in groupby(rows, key=lambda row: row["lists"])]
    width, height = 20 + PANEL * max(len(several) for _, several in lists), TOP + HEIGHT * len(lists)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        '  font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        _text(20, 26, "What a task of 20 calls costs in each mode, in percent of full lists", "#e6edf3", "bold"),
        _text(
            20,
            46,
            "Bold: the mode that `auto` chooses for clients that put every definition into the prompt.",
            "#8b949e",
        ),
    ]
    for line, (name, several) in enumerate(lists):
        for column, row in enumerate(several):
            drawn += _panel(20 + column * PANEL, TOP + line * HEIGHT, f"{name}; {row['prices']}", row)
    return "\n".join([*drawn, "</svg>", ""])


def _panel(x: int, y: int, title: str, row: Row) -> Iterator[str]:
    yield _text(x, y + 16, title, "#e6edf3")
    for number, (mode, color) in enumerate(MODES.items()):
        top, share = y + 26 + number * (BAR + 4), float(row[mode])
        weight = "bold" if share == row["auto"] else "normal"
        length = round(share * FULL / 100, 1)
        yield _text(x, top + 12, mode, "#e6edf3", weight)
        yield f'<rect x="{x + LEFT}" y="{top}" width="{length}" height="{BAR}" fill="{color}"/>'
        yield _text(round(x + LEFT + length + 5, 1), top + 12, f"{share:.0f} %", "#e6edf3", weight)


def _text(x: float, y: float, text: str, color: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="{color}" font-weight="{weight}">{escape(text)}</text>'


if __name__ == "__main__":
    main()
