"""Scripted models for tests. They answer over their providers' real HTTP interfaces, on loopback.

In: a list of steps. Out: the stream that the provider would send, and a record of every request. `script` chooses the
next turn of a `conversation`, `server` handles HTTP; `anthropic`, `google`, `openai_chat` (with OpenRouter) and
`openai_responses` are the wire formats, and `wire` is what they share. `scripted` starts a model;
`python -m toolcrib.testing PROVIDER SCRIPT.json` runs one as a program. Only the standard library is needed.
"""

from __future__ import annotations

from toolcrib.testing.conversation import AnswerEnding, Hold
from toolcrib.testing.script import Break, Call, CallByName, Garble, Refuse, Say, Step, Together
from toolcrib.testing.server import PROVIDERS, RecordedRequest, ScriptedModel, ScriptMismatch, scripted

__all__ = [
    "PROVIDERS",
    "AnswerEnding",
    "Break",
    "Call",
    "CallByName",
    "Garble",
    "Hold",
    "RecordedRequest",
    "Refuse",
    "Say",
    "ScriptMismatch",
    "ScriptedModel",
    "Step",
    "Together",
    "scripted",
]
