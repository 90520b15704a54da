"""Generates `docs/cli.md` from the help pages.

In: the commands of `app`. Out: Markdown on stdout: `python -m toolcrib.cli.manual > docs/cli.md`. A test checks that
the file is up to date.
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

This page is generated from the help pages: `python -m toolcrib.cli.manual > docs/cli.md`. A test checks that it is up
to date.

## JSON output and errors

Every command except `stdio` takes `--json`, which prints the result to stdout as JSON. Errors are printed to stderr,
with a suggested fix. With `--json`, they are also printed to stdout, as
`{"error": {"code", "message", "remedy", "exit_code"}}`.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | any other error |
| 2 | invalid usage or arguments |
| 3 | configuration error |
| 4 | unknown server, tool, client or file |
| 5 | denied |
| 6 | a server failed or did not answer in time; from `add`: the server was added but isn't responding |
| 7 | no daemon is running |
| 8 | a daemon is already running, or the port is in use |
| 9 | database error |
| 10 | the tool reported an error (`isError`); from `run`: the program failed; from `job`: the job failed |
| 11 | from `workspace check`: Toolcrib refuses the folder, or refuses to run code in it |
| 12 | from `run`: Toolcrib stopped the run because it took too long, was revoked or had no tools |
| 130 | interrupted by Ctrl-C |

## The daemon

If a daemon is running, commands go to it over its socket. Without one, `servers`, `tools`, `call`, `add`, `remove`,
`login`, `logout`, `accounts`, `config`, `trust`, `untrust`, `pins`, `workspace` and `logs` run in their own process.
`servers`, `tools` and `call` with `--mcp-server` always run that way. `run` starts a daemon if necessary, which stops
after the last run. `runs` reads the logs of runs and needs no daemon. `job` requires a running daemon.

A daemon started by `toolcrib stdio` has the environment of the client that started it. If your configuration uses
variables that only your shell has, run `toolcrib up --detach` in that shell first.

## The project

The project is `CLAUDE_PROJECT_DIR` if set, else the nearest parent folder with `.toolcrib` or `.git`, else the current
folder. `TOOLCRIB_HOME` moves all of your Toolcrib files to one folder.

## Signals

Ctrl-C (SIGINT), SIGHUP and SIGTERM make `run`, `up` and `workspace` shut down cleanly. If SIGINT or SIGHUP is ignored
when they start, as with `nohup` or `&` in a script, it stays ignored. SIGTERM always ends them. SIGHUP stops a daemon
only if its terminal was closed; otherwise the daemon reads its configuration again, as with `toolcrib reload`. Toolcrib
starts other programs with default signal handling.
"""


def manual() -> str:
    parts = [INTRODUCTION]
    for name, page in _pages(get_command(app), PROGRAM, None):
        parts.append(f"## `{name}`\n\n```\n{page}\n```\n")
    return "\n".join(parts)


def _pages(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    own_name = name.rpartition(" ")[2]
    context = command.make_context(own_name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    with context:
        yield name, "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
        for inner, below in getattr(command, "commands", {}).items():
            real = below.load() if isinstance(below, LazyCommand) else below
            yield from _pages(real, f"{name} {inner}", context)


if __name__ == "__main__":
    sys.stdout.write(manual())
