"""What lists cost in real coding agents: a task of six calls on twelve servers, in each mode.

In: nothing; the programs and servers are those that the tests install, and the models are scripted. Out: for each
program, way of offering tools and mode: tokens (o200k) of the MCP tools in the first request to the model, of all
requests together, and how many requests and calls the task took.
"""

from __future__ import annotations

import json
from pathlib import Path

from figures.run_tokens import OFFERED_AS, request_tokens
from parts import fleet
from parts.listing_scene import SAVED, SERVERS, FinishedTask, expected_mode, listing_scene
from parts.runs import ALL
from report import Cell, Figure
from rounds import progress
from targets import NotMeasured
from toolcrib.audit.row import count_all_tokens
from toolcrib.config.model import ListingMode

MODES = (ListingMode.FULL, ListingMode.THIN, ListingMode.SEARCH, ListingMode.HANDSHAKE, ListingMode.AUTO)


def measure(saved: Path = SAVED) -> Figure:
    figure = Figure(
        name="clients",
        title=f"a task of six calls on {len(SERVERS)} servers, done by real clients, o200k",
        keys=("client", "offered", "mode"),
        values=("first request", "later", "whole task", "requests", "calls"),
        notes=(
            "first request: what MCP tools take in it: definitions, names of deferred tools, and tools to find them.",
            "later: the same in the first request of the second completion of a handshake.",
            "whole task: all requests to the model together, with the client's own prompt. The models are scripted.",
        ),
    )
    try:
        with listing_scene(saved) as scene:
            for client, setup in ALL.items():
                for offering in setup.offerings:
                    for mode in MODES:
                        progress(f"clients: {client}, {offering}, {mode}")
                        done = scene.do(client, offering, mode)
                        listed = f" ({expected_mode(client, mode)})" if mode is ListingMode.AUTO else ""
                        figure.add((client, OFFERED_AS[client, offering], f"{mode}{listed}"), _measured(done))
    except fleet.NotRun as reason:
        raise NotMeasured(reason) from None
    return figure


def _measured(done: FinishedTask) -> dict[str, Cell]:
    if done.model.faults:
        return {"not measured": str(done.model.faults[0]).partition(";")[0]}
    failed = [run for run in done.runs if run.exit_code]
    if failed or done.model.left:
        return {"not measured": failed[0].err[-300:] if failed else f"the client left out {done.model.left}"}
    last = done.model.conversations[-1]
    first, *later = (request_tokens(one.body, last)["MCP in all"] for one in done.first_requests)
    return {
        "first request": first,
        "later": later[0] if later else None,
        "whole task": sum(count_all_tokens(json.dumps(body).encode()).tokens for body in done.model.bodies),
        "requests": len(done.model.requests),
        "calls": len(done.model.results),
    }
