"""From exec to the first answered call, one stdio server behind.

In: settings. Out: seconds for the forwarder, for Toolcrib's first start ever (an empty home) and for a later
start (catalog and token on disk). A caller knocks every 5 ms until a tools/call comes back right.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from messages import MODERN
from report import Figure, median, rounded
from rounds import FORWARDER, Settings, Side, interleave, opened, progress, sides_of
from targets import (
    SERVER,
    START_LIMIT,
    NotMeasured,
    Target,
    Upstream,
    answers,
    forwarder_argv,
    free_port,
    process,
    toolcrib,
    toolcrib_home,
    wait_for_answer,
)

FIRST, AGAIN = "toolcrib, first start", "toolcrib, later start"
KNOCK = 0.005


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="start",
        title="exec → first answered tools/call, one stdio server",
        keys=("what",),
        values=("seconds",),
        notes=(
            "toolcrib: `toolcrib up` in the foreground; first start: empty home; later start: the same home again.",
        ),
    )
    progress("start")
    upstream = Upstream(era=MODERN)
    token_file = _where_the_token_is(settings, upstream)
    here = Target()
    sides = sides_of({FORWARDER: here, FIRST: here if isinstance(token_file, Path) else token_file})
    sides.append(Side(name=AGAIN, target=sides[1].target, reason=sides[1].reason))

    def one(side: Side, _: Target) -> dict[str, float]:
        if side.name == FORWARDER:
            port = free_port()
            return {"s": _time(forwarder_argv(port, upstream), Target(url=f"http://127.0.0.1:{port}/mcp"))}
        assert isinstance(token_file, Path)
        with toolcrib_home({SERVER: upstream.entry}) as home:
            first = _time_toolcrib(settings, home, token_file)
            return {"s": first if side.name == FIRST else _time_toolcrib(settings, home, token_file)}

    interleave(sides, settings.rounds, one)
    for side in sides:
        if side.reason:
            figure.add_not_measured((side.name,), side.reason)
        else:
            figure.add((side.name,), {"seconds": rounded(median(side.values("s")))})
    return figure


def _where_the_token_is(settings: Settings, upstream: Upstream) -> Path | str:
    """The token's file, relative to a home: a first start makes it, so it must be known before."""
    with opened({"toolcrib": lambda: toolcrib(settings.command, {SERVER: upstream.entry})}) as up:
        target = up["toolcrib"]
        if isinstance(target, str):
            return target
        assert target.home
        return Path(settings.command.status(target.home)["token_file"]).relative_to(target.home)


def _time(argv: list[str], target: Target) -> float:
    begun = time.perf_counter()
    with process(argv) as child:
        wait_for_answer(target, child, pause=KNOCK)
        return time.perf_counter() - begun


def _time_toolcrib(settings: Settings, home: Path, token_file: Path) -> float:
    port = free_port()
    argv = [settings.command.executable, "up", "--port", str(port)]
    begun = time.perf_counter()
    with process(
        argv, env=settings.command.environment(home), cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        while time.perf_counter() < begun + START_LIMIT and child.poll() is None:
            file = home / token_file
            token = file.read_text().strip() if file.exists() else ""
            if token and answers(Target(url=f"http://127.0.0.1:{port}/mcp", token=token, prefix=f"{SERVER}_")):
                return time.perf_counter() - begun
            time.sleep(KNOCK)
        if child.poll() is not None:
            raise NotMeasured(f"`toolcrib up` ended with code {child.returncode}")
    raise NotMeasured(f"no answered call within {START_LIMIT:.0f} s")
