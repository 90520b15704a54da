"""A scripted model by itself: `python -m parts.models anthropic|openai|google SCRIPT.json`.

In: a file with the steps, `{"steps": [{"call": "workspace_read_file", "arguments": {…}}, …], "last_words": "…"}`. Out:
the model's base URL on stdout; it answers until stdin is closed. A step is one of `call`, `anyway` (with `namespace`),
`together` (a list of both), `say` and `refuse` (an HTTP status); all but the last may have `thinking`, and calls
`says`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parts.models.anthropic import Anthropic
from parts.models.google import Google
from parts.models.openai import OpenAI
from parts.models.script import Anyway, Call, Refuse, Say, Step, Together
from parts.models.server import Provider, serving

PROVIDERS: Mapping[str, Callable[[], Provider]] = {"anthropic": Anthropic, "openai": OpenAI, "google": Google}


def step_from(data: Mapping[str, Any]) -> Step:
    spoken = {key: data[key] for key in ("thinking", "says") if key in data}
    if "together" in data:
        calls = [step_from(one) for one in data["together"]]
        return Together(tuple(call for call in calls if isinstance(call, Call | Anyway)), **spoken)
    if "call" in data:
        return Call(data["call"], data.get("arguments", {}), **spoken)
    if "anyway" in data:
        return Anyway(data["anyway"], data.get("arguments", {}), data.get("namespace", ""), **spoken)
    return Refuse(data["refuse"]) if "refuse" in data else Say(data["say"], **spoken)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m parts.models")
    parser.add_argument("provider", choices=sorted(PROVIDERS))
    parser.add_argument("script", type=Path)
    words = parser.parse_args()
    script = json.loads(words.script.read_text())
    steps = [step_from(data) for data in script["steps"]]
    with serving(PROVIDERS[words.provider](), steps, last_words=script.get("last_words", "Done.")) as model:
        print(model.url, flush=True)
        sys.stdin.read()
    if model.faults:
        sys.exit(f"The script did not fit what came: {model.faults[0]}")


if __name__ == "__main__":
    main()
