"""Models that follow a script, behind the real HTTP interfaces of their providers, on loopback.

In: a list of steps. Out: what a provider's service would stream, and a record of what the model was given. `script`
says what comes next in a `conversation`, `server` speaks HTTP; `anthropic`, `google`, `openai_chat` (with
OpenRouter) and `openai_responses` are the wire formats, and `wire` what they share. `scripted` puts them together;
`python -m toolcrib.testing PROVIDER SCRIPT.json` runs one by itself. Nothing here needs more than the standard library.
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
