"""log:tail — the last lines of the daemon's log or of a server's own words, and what comes after them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import Field

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.errors import UnknownServer
from toolcrib.servers.pool import key_of

_LOOK_AGAIN = 0.25
_READ_AT_MOST = 1 << 20


class Tail(Parameters):
    server: str | None = None
    lines: int = Field(default=50, ge=0, le=10_000)
    follow: bool = False


@registry.command("log:tail", parameters=Tail, effect=Effect.READS, reach=Reach.SOCKET)
async def tail(context: Context, params: Tail) -> dict[str, Any]:
    """Show the end of the daemon's log, or of what a server wrote to its standard error."""
    paths = context.crib.paths
    if params.server is not None and params.server not in context.project.config.servers:
        raise UnknownServer(f"There is no server {params.server!r}.", remedy="`toolcrib servers` lists them.")
    if params.server is None:
        file = paths.log
    else:
        *_, root = key_of(context.project.config.servers[params.server], context.project.root)
        file = paths.server_log(params.server, root)
    lines, place = await asyncio.to_thread(_last_lines, file, params.lines)
    if not params.follow:
        return {"file": str(file), "lines": lines}
    for line in lines:
        await context.emit({"line": line})
    while True:
        await asyncio.sleep(_LOOK_AGAIN)
        lines, place = await asyncio.to_thread(_lines_after, file, place)
        for line in lines:
            await context.emit({"line": line})


def _last_lines(file: Path, count: int) -> tuple[list[str], int]:
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(0, end - _READ_AT_MOST))
            text = stream.read(_READ_AT_MOST).decode(errors="replace")
    except FileNotFoundError:
        return [], 0
    return (text.splitlines()[-count:] if count else []), end


def _lines_after(file: Path, place: int) -> tuple[list[str], int]:
    """What stands behind `place`, whole lines only; from the beginning if the file was begun anew."""
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(place if place <= end else 0)
            begin = stream.tell()
            data = stream.read(_READ_AT_MOST)
    except FileNotFoundError:
        return [], 0
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode(errors="replace").splitlines(), begin + whole
