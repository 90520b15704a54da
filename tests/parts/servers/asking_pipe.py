"""A legacy server over stdio that answers many calls at once, and asks on the one stream that they share.

In: tools/call of `ask` (`method`, `params`), `hold`, `late` and `whoami`. `ask` asks and returns the client's answer,
`hold` is finished by the next answer to a question, `late` asks when it is cancelled. Each result has the
process's id.
All that it receives is appended to the file `seen` beside the copy that runs. It needs the standard library only, so
that it starts fast.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

SEEN = Path(sys.argv[1])
FORM: dict[str, Any] = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
numbers = itertools.count(1)
asked: dict[int, Any] = {}
"""Our questions, and the calls that they are about."""
held: list[Any] = []
late: set[Any] = set()


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def finish(call: Any, value: Any = None) -> None:
    send(id=call, result={"content": [], "structuredContent": {"pid": os.getpid(), "value": value}})


def ask(call: Any, method: str, params: dict[str, Any]) -> None:
    asked[question := next(numbers)] = call
    send(id=question, method=method, params=params)


def call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "ask":
        ask(number, arguments.get("method", "elicitation/create"), arguments.get("params", FORM))
    elif name == "hold":
        held.append(number)
    elif name == "late":
        late.add(number)
    else:
        finish(number)


def hear(message: dict[str, Any]) -> None:
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "asking", "version": "1"}}
        send(id=number, result={"protocolVersion": "2025-11-25", **about})
    elif method == "tools/list":
        names = ("ask", "hold", "late", "whoami")
        send(id=number, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "tools/call":
        call(number, params["name"], params.get("arguments") or {})
    elif method == "notifications/cancelled" and params.get("requestId") in late:
        ask(params["requestId"], "elicitation/create", FORM)
    elif method is None and number in asked:
        finish(asked.pop(number), message.get("result") or {"error": message.get("error")})
        while held:
            finish(held.pop(), "released")
    elif method == "ping":
        send(id=number, result={})
    elif method is not None and number is not None:
        send(id=number, error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    with SEEN.open("a") as file:
        file.write(line)
    hear(json.loads(line))
