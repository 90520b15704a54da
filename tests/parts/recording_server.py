"""A stdio server that records every call in a file before it executes it, and a reader of that file.

In: newline-delimited JSON-RPC on stdin, modern or legacy (`--era`). Out: answers, and in the file `--notes` a line for
each call and each cancellation, with the machine's monotonic time. A call that is not in the file did not run; one that
is there twice ran twice. The file survives every kind of death of the process.

Every tool of `--tools a,b` accepts any arguments and returns them. Some arguments change its behaviour:

    hold      no answer until the tool `release` is called (or the call is cancelled)
    progress  this many progress notifications before the answer, with the call's `nonce` as their message
    fail      the result is an error with this text
    say       this text is part of the result
    mutter    this text is printed on stderr

`--reads a,b` are tools with `readOnlyHint`. `--catalog` is a file with the definitions of further tools. `--print-env`
prints the whole environment on stderr, as careless servers do. Standard library only, so that it starts in a few
milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"


class RecordingServer:
    """A message in, the messages to send out."""

    def __init__(
        self, *, era: str, tools: list[str], reads: list[str], notes: str, defined: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.modern = era == "modern"
        self._file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        schema = {"type": "object", "properties": {"nonce": {"type": "string"}}}
        plain = [{"name": name, "inputSchema": schema} for name in tools]
        reading = [{"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": True}} for name in reads]
        self.tools = [*plain, *reading, *defined, {"name": "release", "inputSchema": {"type": "object"}}]
        self._held: dict[Any, dict[str, Any]] = {}

    def _note(self, what: str, **more: Any) -> None:
        # One write to a file opened for appending is atomic, even if several processes write.
        line = {"what": what, "at": time.monotonic(), "pid": os.getpid(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def handle(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        method, request_id = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if method == "notifications/cancelled":
            held = self._held.pop(params.get("requestId"), {})
            self._note("cancelled", arguments=held.get("arguments"))
        if request_id is None:
            return
        if method == "tools/call":
            self._note("call", tool=params["name"], arguments=params.get("arguments") or {})
            yield from self._call(request_id, params)
        elif method == "tools/list":
            hints = {"ttlMs": 0, "cacheScope": "private"} if self.modern else {}
            yield self._answer(request_id, {"tools": self.tools, **hints})
        elif method == "initialize" and not self.modern:
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "recorder", "version": "1"}}
            yield self._answer(request_id, {"protocolVersion": LEGACY, **about})
        elif method == "server/discover" and self.modern:
            hints = {"ttlMs": 0, "cacheScope": "private"}
            yield self._answer(request_id, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **hints})
        else:
            yield {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "Method not found"}}

    def _call(self, request_id: Any, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        arguments = params.get("arguments") or {}
        if text := arguments.get("mutter"):
            print(text, file=sys.stderr, flush=True)
        if params["name"] == "release":
            held, self._held = self._held, {}
            for held_id, held_params in held.items():
                yield self._result(held_id, held_params)
        elif arguments.get("hold"):
            self._held[request_id] = params
            return
        token = (params.get("_meta") or {}).get("progressToken")
        for number in range(arguments.get("progress", 0)):
            report = {"progressToken": token, "progress": number, "message": arguments.get("nonce", "")}
            yield {"jsonrpc": "2.0", "method": "notifications/progress", "params": report}
        yield self._result(request_id, params)

    def _result(self, request_id: Any, params: dict[str, Any]) -> dict[str, Any]:
        arguments = params.get("arguments") or {}
        content = {"tool": params["name"], "nonce": arguments.get("nonce"), "say": arguments.get("say")}
        failed = arguments.get("fail")
        result: dict[str, Any] = {"content": [{"type": "text", "text": failed or "done"}], "structuredContent": content}
        return self._answer(request_id, {**result, **({"isError": True} if failed else {})})

    def _answer(self, request_id: Any, result: dict[str, Any]) -> dict[str, Any]:
        kind = {"resultType": "complete"} if self.modern else {}
        return {"jsonrpc": "2.0", "id": request_id, "result": {**kind, **result}}


class Notes:
    """The lines of one file, in order. Several servers may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    def all(self) -> list[dict[str, Any]]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines

    def calls(self) -> list[dict[str, Any]]:
        return [line for line in self.all() if line["what"] == "call"]

    def nonces(self) -> list[str]:
        """The nonces of the calls that ran, one per run."""
        return [line["arguments"]["nonce"] for line in self.calls() if "nonce" in line["arguments"]]

    def cancelled(self) -> list[str]:
        """The nonces of held calls that were cancelled."""
        return [line["arguments"]["nonce"] for line in self.all() if line["what"] == "cancelled" and line["arguments"]]

    def server(self, *tools: str, era: str = "modern", reads: str = "", **entry: Any) -> dict[str, Any]:
        """The configuration of a server that records here; `entry` has further settings."""
        words = ["--era", era, "--tools", ",".join(tools), "--reads", reads, "--notes", str(self.path)]
        flags = entry.pop("flags", [])
        return {"command": sys.executable, "args": ["-I", "-S", __file__, *words, *flags], **entry}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["modern", "legacy"], default="modern")
    parser.add_argument("--tools", default="")
    parser.add_argument("--reads", default="")
    parser.add_argument("--notes", required=True)
    parser.add_argument("--catalog", type=Path)
    parser.add_argument("--print-env", action="store_true")
    options = parser.parse_args()
    if options.print_env:
        for name, value in os.environ.items():
            print(f"{name}={value}", file=sys.stderr, flush=True)
    tools, reads = ([name for name in names.split(",") if name] for names in (options.tools, options.reads))
    defined = json.loads(options.catalog.read_text()) if options.catalog else []
    server = RecordingServer(era=options.era, tools=tools, reads=reads, notes=options.notes, defined=defined)
    while line := sys.stdin.buffer.readline():
        for message in server.handle(json.loads(line)):
            sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
