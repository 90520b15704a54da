"""The errors of calls that a server cannot take now, with the reason and the remedy.

In: the server's state. Out: the error for the caller. `server` raises them; none of these calls ran.
"""

from __future__ import annotations

import math

from toolcrib.errors import ServerUnavailable
from toolcrib.servers.account import asks_for_sign_in
from toolcrib.servers.model import ServerState
from toolcrib.servers.tool_listing import definition_of

_STATES = {
    ServerState.CONNECTING: "is still connecting",
    ServerState.STOPPED: "is stopped",
    ServerState.IDLE: "is not running and starts with its next call",
    ServerState.FAILED: "could not be reached; Toolcrib stopped trying",
}


def unavailable(
    name: str, state: ServerState, *, error: str, installing: float | None, next_attempt: float
) -> ServerUnavailable:
    """`installing` is for how many seconds it has been installed; `next_attempt` is in how many it is tried again."""
    if asks_for_sign_in(name, error):
        return ServerUnavailable(f"{error} The call did not run.", data={"server": name})
    text = _STATES.get(state, "is unavailable")
    if installing is not None:
        text = f"is still installing ({installing:.0f} s)"
    remedy = ""
    if state is ServerState.FAILED:
        remedy = f"Restart it with: toolcrib restart {name}"
    elif state is ServerState.UNAVAILABLE and (seconds := math.ceil(next_attempt)) > 1:
        remedy = f"Toolcrib tries again in {seconds} s."
    reason = f": {error}" if error else "."
    return ServerUnavailable(
        f"Server '{name}' {text}{reason} The call did not run.", remedy=remedy, data={"server": name}
    )


def overloaded(name: str, calls: int) -> ServerUnavailable:
    return ServerUnavailable(
        f"Server '{name}' is at its limit of {calls} running or waiting calls. The call did not run.",
        remedy="Try again later, or raise max_waiting_calls in the server's entry.",
        data={"server": name},
    )


def refuse_changed(name: str, tool: str, before: tuple[bytes, ...] | None, now: tuple[bytes, ...] | None) -> None:
    """Raises if this tool's definition changed: the permission and the arguments were checked against the old one."""
    if definition_of(before, tool) != definition_of(now, tool):
        raise ServerUnavailable(
            f"Server '{name}' connected for this call, and its tool {tool!r} had changed. The call did not run.",
            remedy="List the tools again, then repeat the call.",
            data={"server": name},
        )
