"""Which of OpenAI's two interfaces is meant.

In: a word of a program. Out: the same word, or `UsageError`. `formats` and `crib.messages` ask; both write other things
for each of the two, and would write the wrong one for a slip of the pen.
"""

from __future__ import annotations

from typing import Literal, get_args

from toolcrib.errors import UsageError

Api = Literal["chat", "responses"]


def refuse_unknown_api(api: str) -> None:
    if api not in get_args(Api):
        raise UsageError(
            f"OpenAI has no interface {api!r}.", remedy='There are "chat" (Chat Completions) and "responses".'
        )
