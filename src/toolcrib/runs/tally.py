"""What a run came to: which tools, how often, how many denials and failures, how large a list.

In: its events and the lease's notes, as they come. Out: the figures of the log's last line.
"""

from __future__ import annotations

from collections import Counter

from toolcrib.agent_events import AgentEvent, Kind, ToolStatus
from toolcrib.reach.notes import Listed
from toolcrib.runs.result import Listing


class Tally:
    def __init__(self) -> None:
        self.tools: Counter[str] = Counter()
        self.denials = 0
        self.failures = 0
        self.succeeded = 0
        """Calls of servers' tools."""
        self.listing = Listing()

    def count(self, event: AgentEvent) -> None:
        if event.kind is not Kind.TOOL or event.tool_status is ToolStatus.STARTED:
            return
        self.tools[f"{event.server}:{event.tool_name}" if event.server else event.tool_name] += 1
        if event.tool_status is ToolStatus.DENIED:
            self.denials += 1
        elif event.tool_status is not ToolStatus.OK:
            self.failures += 1
        self.succeeded += event.tool_status is ToolStatus.OK and bool(event.server)

    def listed(self, note: Listed) -> None:
        if note.bytes > self.listing.bytes:
            self.listing = Listing(tools=note.tools, bytes=note.bytes, tokens=note.tokens)
