"""Draws `docs/pictures/terminal.svg`, the picture in the README, from a real run.

In: nothing. A daemon runs in a temporary home, the commands below run in a pseudo-terminal, and `rich` turns their
output into SVG. Out: the picture. The home folder becomes `~` and all times become `MOMENT`, so that the picture shows
nothing of the machine that drew it.

    make pictures
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
COLUMNS = 96
TYPED = (
    'toolcrib add time -- python3 "$PWD/examples/clock_server.py"',
    "toolcrib call time:now zone=Europe/Lisbon",
    "toolcrib connect claude --write",
    "toolcrib why reviewer workspace:write_file",
    "toolcrib audit --agent reviewer -n 3",
)
CALLS = (
    ("time_now", {"zone": "UTC"}),
    ("workspace_read_file", {"path": "README.md"}),
    ("workspace_write_file", {"path": "README.md", "content": ""}),
)
"""The calls that the agent `reviewer` makes before the last command."""
VERSION = "2026-07-28"
MOMENT = ("2026-11-18", "09:41:00")
ERASED = re.compile(r"[^\n]*(?:\n\r\x1b\[1A|\r)\x1b\[2K")
"""A progress line, and the codes that remove it from the terminal."""
PALETTE = "484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tcp-") as folder:
        home, project = Path(folder, "home"), Path(folder, "home", "clock")
        shutil.copytree(ROOT / "examples", project / "examples")
        shutil.copy(ROOT / "README.md", project)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
        environ = {"HOME": str(home), "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        try:
            shown = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
            endpoint = json.loads(run("toolcrib up --detach --port 0 --json", project, environ))["endpoint"]
            token = json.loads(run("toolcrib agent add reviewer --profile read-only --json", project, environ))["token"]
            for line in TYPED:
                if line == TYPED[-1]:
                    run("toolcrib trust --server time", project, environ)
                    for name, arguments in CALLS:
                        call(endpoint, token, name, arguments)
                output = run(line, project, environ)
                shown.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
                shown.print(Text.from_ansi(without_machine(output, home)), soft_wrap=True)
                shown.print()
        finally:
            run("toolcrib down", project, environ)
    PICTURE.parent.mkdir(exist_ok=True)
    theme = TerminalTheme(*map(rgb, ("0d1117", "e6edf3")), [rgb(color) for color in PALETTE.split()])
    picture = shown.export_svg(title="Toolcrib", theme=theme, unique_id="toolcrib")
    # Without fonts from other sites: the viewer's own monospaced font does.
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL))


def rgb(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color)
    return red, green, blue


def run(line: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Returns the text that stays on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    with subprocess.Popen(["/bin/sh", "-c", line], cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            output = b"".join(iter(lambda: read(terminal), b""))
    return ERASED.sub("", re.sub(r"\x1b\[\?25[lh]", "", output.decode()).replace("\r\n", "\n"))


def read(terminal: io.RawIOBase) -> bytes:
    try:
        return terminal.read(65536) or b""
    except OSError:  # Linux reports a closed pseudo-terminal as an error.
        return b""


def call(endpoint: str, token: str, name: str, arguments: Mapping[str, str]) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": name, "arguments": arguments, "_meta": meta}
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    urllib.request.urlopen(urllib.request.Request(endpoint, body, headers)).close()  # noqa: S310 - our own daemon


def without_machine(output: str, home: Path) -> str:
    day, time = MOMENT
    output = re.sub(r"\d{4}-\d\d-\d\dT", f"{day}T", output.replace(str(home), "~"))
    return re.sub(r"\d\d:\d\d:\d\d", time, output).rstrip("\n")


if __name__ == "__main__":
    main()
