"""The daemon's own state as resources: `crib://servers`, `crib://approvals`, `crib://jobs/ID`.

In: reads, and events. Out: what the command of the same subject returns to the same caller, as JSON; the addresses that
an event has changed. Used by `builtin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.events import ApprovalsChanged, CatalogChanged, Event, JobChanged, ServerStateChanged
from toolcrib.policy.permission import OWNER_MARK
from toolcrib.servers.model import Offers

SERVERS, APPROVALS, JOBS = "crib://servers", "crib://approvals", "crib://jobs/"
SHOWN_EVENTS = ApprovalsChanged, CatalogChanged, JobChanged, ServerStateChanged


def _defined(**fields: Any) -> bytes:
    return msgspec.json.encode({**fields, "mimeType": "application/json"})


_SERVERS = _defined(uri=SERVERS, name="servers", description="The servers that you may use, and their state.")
_APPROVALS = _defined(
    uri=APPROVALS,
    name="approvals",
    description="The calls and servers' questions that wait for you.",
    annotations={OWNER_MARK: True},
)
_JOB = _defined(uriTemplate=f"{JOBS}{{id}}", name="job", description="A job of yours: its state, then its result.")
_CAPABILITIES = frozenset({"resources", "subscribe"})


def own_offers(*, jobs: bool) -> Offers:
    return Offers(resources=(_SERVERS, _APPROVALS), templates=(_JOB,) if jobs else (), capabilities=_CAPABILITIES)


def command_for(uri: str) -> tuple[str, Mapping[str, Any]] | None:
    """The command whose result is the content of a resource, and its parameters."""
    if uri == SERVERS:
        return "server:list", {}
    if uri == APPROVALS:
        return "approval:list", {}
    if uri.startswith(JOBS):
        return "job:result", {"job": uri.removeprefix(JOBS), "wait": 0}
    return None


def contents(uri: str, found: Mapping[str, Any]) -> bytes:
    text = msgspec.json.encode(found).decode()
    return msgspec.json.encode({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})


def changed_by(event: Event) -> tuple[str, str | None]:
    """The address that an event has changed, and the only agent concerned; None for all."""
    match event:
        case JobChanged(job=job, submitter=submitter):
            return f"{JOBS}{job}", submitter
        case ApprovalsChanged():
            return APPROVALS, None
        case _:
            return SERVERS, None
