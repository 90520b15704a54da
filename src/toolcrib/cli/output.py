"""Prints results: JSON for programs, text and tables for people, errors for both.

In: results as plain JSON values, tool results of either protocol version. Out: stdout and stderr. Tables fit the
terminal's width; `terminal` imports `rich` when a table or a spinner is drawn. On a terminal, control characters in
text from servers are escaped.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
import shutil
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import typer

from toolcrib.daemon_client.command_client import RemoteError
from toolcrib.errors import ToolcribError, UsageError

if TYPE_CHECKING:
    from toolcrib.cli.terminal import Terminal


GAP = 2
"""Spaces between two columns."""

_NARROWEST = 20
"""The text column keeps at least this many characters."""
_MOST_BELOW = 3
"""Lines below a row."""


class TableCut(enum.Enum):
    """Whether a table shows all of its text."""

    NOTHING = enum.auto()
    SOME = enum.auto()


@dataclass(frozen=True, kw_only=True)
class ColumnPriorities:
    """Which columns of a table shrink when the terminal is narrow. Other columns keep their width."""

    text: str
    """The column that gets the remaining space."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Columns that may be shortened, the last one first, and their minimum widths."""
    optional: Sequence[str] = ()
    """Columns that may be omitted, the first one first."""
    below: str = ""
    """A column whose texts are on lines of their own, each below its row. In a pipe, it is a column like the others."""


def fit_columns(natural: Mapping[str, int], room: int, yielding: ColumnPriorities) -> dict[str, int]:
    """The widths of the columns that are shown, in order."""
    widths = {name: min(width, _least(name, width, yielding)) for name, width in natural.items()}
    for name in yielding.optional:
        if _needed(widths) <= room:
            break
        del widths[name]
    spare = room - _needed(widths)
    for name in (*yielding.cut, yielding.text):
        if name in widths:
            more = max(0, min(natural[name] - widths[name], spare))
            widths[name] += more
            spare -= more
    return widths


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _least(name: str, width: int, yielding: ColumnPriorities) -> int:
    if name == yielding.text:
        return _NARROWEST
    return yielding.cut.get(name, width)


def _needed(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def result_text(result: Mapping[str, Any]) -> str:
    """The whole result as text."""
    content = result.get("content")
    blocks = [_block(block) for block in content] if isinstance(content, list) else []
    has_text = isinstance(content, list) and any(_is_text(block) for block in content)
    if not has_text and "structuredContent" in result:
        blocks.append(_pretty(result["structuredContent"]))
    return "\n".join(blocks)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(at: float) -> str:
    """A time, given in seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size_of(count: float) -> str:
    """A number of bytes with a unit."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and bool(block.get("text"))


def _block(block: Any) -> str:
    if not isinstance(block, Mapping):
        return _pretty(block)
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind}: {block.get('mimeType', 'unknown type')}, {size_of(_decoded_size(data))}]"
        case {"type": "resource_link", "uri": str(uri)}:
            return " ".join(filter(None, ["[link:", str(block.get("name", "")), uri])) + "]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            kind = resource.get("mimeType", "unknown type")
            return f"[resource: {uri}, {kind}, {size_of(_decoded_size(blob))}]"
        case _:
            return _pretty(block)


def _decoded_size(base64: str) -> int:
    text = base64.rstrip("=\r\n")
    return len(text) * 3 // 4


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


TOOL_ERROR = 10
"""The exit code of `call` if the tool, or the program it ran, failed."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Includes characters that change the text direction, which can make a line read differently."""
_SLOW = 1.0
_SELDOM = 15.0
"""Seconds between two lines about the progress of a command."""
_UNBOUNDED = 100_000
"""A width at which nothing is cut or wrapped, for output to a pipe."""
_YELLOW = (
    *("connecting", "waiting", "unavailable", "running", "queued", "cancelled", "interrupted"),
    *("working", "input_required"),
)
_STATE_COLOURS = {
    **dict.fromkeys(("ready", "idle", "finished", "done", "completed"), "green"),
    **dict.fromkeys(_YELLOW, "yellow"),
    **dict.fromkeys(("failed", "timeout", "revoked", "no tools", "killed"), "red"),
}


def say(text: str) -> None:
    """Prints a line. Control characters are escaped on a terminal, but not in a pipe."""
    sys.stdout.write((visible(text) if sys.stdout.isatty() else text) + "\n")


def hint(text: str) -> None:
    """Prints a line to stderr: next steps, warnings."""
    sys.stderr.write(visible(text) + "\n")


def confirmed(question: str, *, instead: str) -> bool:
    """Asks a yes-or-no question at the terminal. Without one, the error says what to do `instead`."""
    if not sys.stdin.isatty():
        raise UsageError("This needs your confirmation, but there is no terminal.", remedy=instead)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def say_json(value: Any) -> None:
    sys.stdout.write(_escape_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def printed(result: dict[str, Any], *, as_json: bool, exit_code: int = 0) -> dict[str, Any]:
    """With --json, prints the result and ends the command. Otherwise returns it for the command to show as text."""
    if as_json:
        say_json(result)
        raise typer.Exit(exit_code)
    return result


def say_line(value: Any) -> None:
    """Prints JSON on one line and flushes it."""
    sys.stdout.write(_escape_json(json.dumps(value, ensure_ascii=False, default=str)) + "\n")
    sys.stdout.flush()


def visible(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        number = ord(match[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _CONTROL.sub(escaped, text)


def _escape_json(text: str) -> str:
    """On a terminal, escapes control characters; the JSON keeps its meaning."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text) if sys.stdout.isatty() else text


def report(error: ToolcribError, *, as_json: bool) -> int:
    """Prints the error and returns the exit code."""
    data = error_data(error)
    hint(f"Error: {error.text()}")
    if as_json:
        say_json({"error": data})
    return int(data["exit_code"])


def error_data(error: ToolcribError) -> dict[str, Any]:
    data: dict[str, Any] = {
        "code": error.remote_code if isinstance(error, RemoteError) else error.code,
        "message": error.message,
        "remedy": error.remedy,
        "exit_code": error.remote_exit_code if isinstance(error, RemoteError) else error.exit_code,
    }
    return data | ({"data": error.data} if error.data else {})


def screen_width() -> int | None:
    """None if stdout is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    state_column: str = "state",
    yielding: ColumnPriorities | None = None,
) -> TableCut:
    """Prints the rows. With `yielding`, each row is cut to one line on a terminal; a pipe gets everything."""
    below: list[list[str]] = [[] for _ in rows]
    if yielding is not None and yielding.below and (width := screen_width()) is not None:
        place = columns.index(yielding.below)
        below = [_wrapped(row[place] or "", width) for row in rows]
        columns, *rows = ([*row[:place], *row[place + 1 :]] for row in (columns, *rows))
    texts = [[visible("-" if value in (None, "") else str(value)).replace("\n", " ") for value in row] for row in rows]
    drawn = terminal(sys.stdout, width=screen_width() or _UNBOUNDED)
    natural = {
        column: max(len(text) for text in (column, *(row[place] for row in texts)))
        for place, column in enumerate(columns)
    }
    widths = fit_columns(natural, drawn.width, yielding) if yielding else natural
    cells = [
        [
            (text, _STATE_COLOURS.get(text, "") if column == state_column else "")
            for column, text in zip(columns, row, strict=True)
            if column in widths
        ]
        for row in texts
    ]
    # Cells are padded to their column's width; trailing spaces are removed.
    lines = drawn.table(widths, cells, one_line_each=yielding is not None)
    if any(below):
        lines = [line for whole in zip(lines, ["", *below], strict=True) for line in (whole[0], *whole[1])]
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    cut = widths != natural or any(one and one[-1].endswith(_CUT) for one in below)
    return TableCut.SOME if cut else TableCut.NOTHING


_CUT = " …"


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * GAP
    return textwrap.wrap(
        visible(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        max_lines=_MOST_BELOW,
        placeholder=_CUT,
    )


def terminal(stream: TextIO, width: int | None = None) -> Terminal:
    # Importing `rich` takes as long as all other imports of a command, and most output doesn't need it.
    from toolcrib.cli.terminal import Terminal  # noqa: PLC0415

    return Terminal(stream, width)


_spinning: set[Terminal] = set()
"""The terminals with a spinner."""
_person_types = threading.Event()


@contextlib.contextmanager
def at_the_prompt() -> Iterator[None]:
    """No spinner runs while the person types. What was typed before is forgotten: it is not an answer."""
    _person_types.set()
    for screen in tuple(_spinning):
        screen.stop()
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        yield
    finally:
        _person_types.clear()


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner on a terminal if the block takes longer than a second. The block may replace its text; without a
    terminal, that prints a line now and then."""
    if not sys.stderr.isatty():
        yield _said_now_and_then()
        return
    now_shown = text
    shown: list[Terminal] = []
    lock = threading.Lock()
    over = threading.Event()

    def show() -> None:
        screen = terminal(sys.stderr)
        with lock:
            if not (over.is_set() or _person_types.is_set()):
                screen.spin(now_shown)
                shown.append(screen)
                _spinning.add(screen)

    def replace(text: str) -> None:
        nonlocal now_shown
        with lock:
            now_shown = text
            for screen in shown if not _person_types.is_set() else ():
                screen.spin(text)

    timer = threading.Timer(_SLOW, show)
    timer.daemon = True
    timer.start()
    try:
        yield replace
    finally:
        timer.cancel()
        with lock:
            over.set()
        for screen in shown:
            screen.stop()
            _spinning.discard(screen)


def _said_now_and_then() -> Callable[[str], None]:
    last = -_SELDOM

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SELDOM:
            last = time.monotonic()
            hint(text)

    return tell


def duration(seconds: float | None) -> str:
    """A duration in at most two units."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"
