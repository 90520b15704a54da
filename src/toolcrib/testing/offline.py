"""A scripted model by its provider's name, for the tests of one's own agent.

In: the name of a provider as in `AgentOptions.model`, and the steps. Out: the `Model`, as long as the block lasts; what
did not fit the script fails the test at its end. `serving` does the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from toolcrib.testing.anthropic import Anthropic
from toolcrib.testing.google import Google
from toolcrib.testing.openai_chat import OpenAIChat
from toolcrib.testing.openai_responses import OpenAI
from toolcrib.testing.openrouter import OpenRouter
from toolcrib.testing.provider import Provider
from toolcrib.testing.script import Step, Toolless
from toolcrib.testing.server import Model, serving

PROVIDERS: Mapping[str, Callable[[], Provider]] = {
    "anthropic": Anthropic,
    "google": Google,
    "openai": OpenAIChat,
    "openai-responses": OpenAI,
    "openrouter": OpenRouter,
}


@contextlib.contextmanager
def scripted(provider: str, steps: Sequence[Step], *, last_words: str = "Done.") -> Iterator[Model]:
    """A model that does the steps in turn, and then says its last words whenever it is asked."""
    if provider not in PROVIDERS:
        raise ValueError(f"There is no scripted model for {provider!r}. There are: {', '.join(PROVIDERS)}.")
    with serving(PROVIDERS[provider](), steps, last_words=last_words, toolless=Toolless.TURN) as model:
        try:
            yield model
        except Exception as error:
            if model.faults:
                error.add_note(f"What the scripted model was given did not fit: {model.faults[0]}")
            raise
        model.check()
