"""The lines that a program prints → events; a line that nobody understands is kept as it is.

In: lines of its two streams. Out: events, of which the first of each line holds it whole. A `Reader` knows the
program's own words.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolcrib.agent_events import AgentEvent, Kind
from toolcrib.coding_agents.headless import Reader
from toolcrib.runs.process import Line, Stream

_decode = msgspec.json.Decoder(dict[str, object]).decode


class Printed:
    def __init__(self, provider: str, reader: Reader) -> None:
        self._provider = provider
        self._reader = reader

    def events(self, line: Line) -> Iterable[AgentEvent]:
        if line.stream is Stream.ERR:
            return self._reader.said(line.text)
        try:
            told = _decode(line.text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return (AgentEvent(kind=Kind.RAW, provider=self._provider, text=line.text, raw=line.text),)
        return self._reader.read(told)
