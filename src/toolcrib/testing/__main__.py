"""A scripted model as a program: `python -m toolcrib.testing PROVIDER SCRIPT.json`.

In: a file with the steps, `{"steps": [{"call": "workspace_read_file", "arguments": {…}}, …], "last_words": "…"}`. Out:
the model's base URL on stdout; it answers until stdin is closed. A step is one of `call`, `call_by_name` (with
`namespace`), `garble` (with `text`), `together` (a list of these), `say`, `refuse` (an HTTP status, with `retry_after`)
and `break` (a text, with `status`). All may have `thinking`, `ending`, `stop_reason` and `cut_after`, and calls `says`.
For coding agents, which also send requests without tools for titles and the like, set `"toolless": "aside"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.testing.conversation import AnswerEnding
from toolcrib.testing.script import Break, Call, CallByName, Garble, Refuse, Say, Step, Together, Toolless
from toolcrib.testing.server import PROVIDERS, serving

_STEPS: Mapping[str, tuple[Callable[..., Step], tuple[str, ...]]] = {
    "call": (Call, ("arguments",)),
    "call_by_name": (CallByName, ("arguments", "namespace")),
    "garble": (Garble, ("text",)),
    "say": (Say, ()),
    "refuse": (Refuse, ("retry_after",)),
    "break": (Break, ("status",)),
}
"""The key that names a step, its class, and its optional keys."""


def step_from(data: Mapping[str, Any]) -> Step:
    spoken = {key: data[key] for key in ("thinking", "says", "stop_reason", "cut_after") if key in data}
    if "ending" in data:
        spoken["ending"] = AnswerEnding(data["ending"])
    if "together" in data:
        calls = [step_from(one) for one in data["together"]]
        return Together([call for call in calls if isinstance(call, Call | CallByName | Garble)], **spoken)
    [kind] = data.keys() & _STEPS.keys()
    make, beside = _STEPS[kind]
    return make(data[kind], **{key: data[key] for key in beside if key in data}, **spoken)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m toolcrib.testing")
    parser.add_argument("provider", choices=sorted(PROVIDERS))
    parser.add_argument("script", type=Path)
    arguments = parser.parse_args()
    script = json.loads(arguments.script.read_text())
    steps = [step_from(data) for data in script["steps"]]
    toolless = Toolless(script.get("toolless", Toolless.TURN))
    with serving(
        PROVIDERS[arguments.provider](), steps, last_words=script.get("last_words", "Done."), toolless=toolless
    ) as model:
        sys.stdout.write(f"{model.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
    if model.faults:
        sys.exit(f"The requests did not match the script: {model.faults[0]}")


if __name__ == "__main__":
    main()
