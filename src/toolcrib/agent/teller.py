"""Who tells what happens in a run.

In: facts. Out: events in the run's `Feed`, each with the run's id and its model's provider. What a provider says may
hold the key it was asked with; that is taken out here. `course`, `supply`, `loop` and `tally` tell by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.agent.events import AnyRunEvent, Ended, Retrying, RunFailed, RunFinished, Usage
from toolcrib.agent.feed import Feed
from toolcrib.config.masking import Masker

MOST = 2000
"""Characters that are told of a provider's words."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a run came."""

    text: str = ""
    """What the model said last."""
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    messages: Sequence[Mapping[str, Any]] = ()


class Teller:
    def __init__(self, *, run_id: str, provider: str, key: str, feed: Feed) -> None:
        self.run_id = run_id
        self._provider = provider
        self._feed = feed
        self.without_key = Masker([key]).known

    def tell(self, kind: type[AnyRunEvent], **fields: Any) -> None:
        self._feed.put(kind(provider=self._provider, run_id=self.run_id, **fields))

    def retrying(self, reason: str, delay: float, attempt: int) -> None:
        self.tell(Retrying, reason=self._words(reason), delay=delay, attempt=attempt)

    def finished(self, ended: Ended, far: Standing) -> None:
        self.tell(RunFinished, ended=ended, text=far.text, usage=far.usage, steps=far.steps, messages=far.messages)

    def failed(self, error: str, remedy: str, far: Standing) -> None:
        self.tell(
            RunFailed,
            error=self._words(error),
            remedy=self._words(remedy),
            text=far.text,
            usage=far.usage,
            steps=far.steps,
            messages=far.messages,
        )

    def _words(self, text: str) -> str:
        text = self.without_key(text)
        return text if len(text) <= MOST else f"{text[:MOST]}…"
