"""`docs/cli.md`, made of the real help pages.

In: the command line as `app` has it. Out: Markdown on stdout: `python -m toolcrib.cli.manual > docs/cli.md`.
A test holds the file against it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from toolcrib.cli.app import PROGRAM, LazyCommand, app

WIDTH = 100

INTRODUCTION = """\
# The command line

Made from the help pages by `python -m toolcrib.cli.manual > docs/cli.md`; a test keeps it so.

Every command takes `--json`, but for `stdio`, whose output is the client's: the result goes to stdout as JSON. An error
is a text on stderr that says what to do; with `--json` there is also
`{"error": {"code", "message", "remedy", "exit_code"}}` on stdout.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | another error |
| 2 | wrong words, or arguments that do not fit |
| 3 | the configuration |
| 4 | an unknown server, tool, client or file |
| 5 | denied |
| 6 | a server failed, or did not answer in time; from `add`: it was added, but does not answer |
| 7 | no daemon runs |
| 8 | a daemon runs already, or the port is taken |
| 9 | the database |
| 10 | the tool answered that it failed (`isError`); from `run`: the program failed; from `job`: the job did |
| 11 | from `workspace check`: the folder, or running code in it, is refused |
| 12 | from `run`: Toolcrib ended it, for it took too long, was revoked or had no tools |
| 130 | Ctrl-C |

Where a daemon runs, commands go to it over its socket. Where none runs, `servers`, `tools`, `call`, `add`, `remove`,
`config`, `trust`, `untrust`, `workspace` and `logs` work for themselves; `servers`, `tools` and `call` do so always
with `--mcp-server`. `run` starts a daemon that ends with the last run; `runs` reads what runs have written down;
`job` needs a daemon that runs.

The project is `CLAUDE_PROJECT_DIR` where it is set, else the nearest folder upwards with `.toolcrib` or `.git`, else
the working folder. `TOOLCRIB_HOME` moves all of a user's files into one folder. A daemon that `toolcrib stdio` starts
has the environment of the client that started it: where the configuration needs variables that only your shell has, run
`toolcrib up --detach` there first.

Ctrl-C (SIGINT), SIGHUP or SIGTERM ends `run`, `up` and `workspace` in order. SIGINT or SIGHUP that is ignored when they
start stays ignored, as `nohup` and a script's `&` want it; SIGTERM always ends them. A detached daemon ends with each
of the three. Every program that Toolcrib starts begins with default signals.
"""


def manual() -> str:
    parts = [INTRODUCTION]
    for name, page in _pages(get_command(app), PROGRAM, None):
        parts.append(f"## `{name}`\n\n```\n{page}\n```\n")
    return "\n".join(parts)


def _pages(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    word = name.rpartition(" ")[2]
    context = command.make_context(word, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    with context:
        yield name, "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
        for inner, below in getattr(command, "commands", {}).items():
            real = below.load() if isinstance(below, LazyCommand) else below
            yield from _pages(real, f"{name} {inner}", context)


if __name__ == "__main__":
    sys.stdout.write(manual())
