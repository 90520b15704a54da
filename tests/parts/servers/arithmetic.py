"""A small stdio server for runs of agents, which records every call in the file `NOTES`. Standard library only."""

import json
import os
import sys
import threading
from pathlib import Path

NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ANY = {"type": "object"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TOOLS = [
    {"name": "add", "description": "Adds two numbers.", "inputSchema": NUMBERS},
    {"name": "whole", "description": "Fails.", "inputSchema": ANY},
    {"name": "picture", "description": "Shows a picture.", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
    {"name": "hang", "description": "Never ends.", "inputSchema": ANY},
    {"name": "die", "description": "Ends the server.", "inputSchema": ANY},
    {"name": "meet", "description": "Ends when two are there.", "inputSchema": ANY},
]
meeting = []


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def call(ident, name, arguments):
    if name == "add":
        send(id=ident, result=text(str(arguments["a"] + arguments["b"])))
    elif name == "whole":
        send(id=ident, result=text("I could not.", isError=True))
    elif name == "picture":
        send(id=ident, result={"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]})
    elif name == "die":
        os._exit(3)
    elif name == "meet":
        meeting.append(ident)
        if len(meeting) == 2:
            for one in meeting:
                send(id=one, result=text("met"))
            meeting.clear()


def note(what):
    if place := os.environ.get("NOTES"):
        with Path(place).open("a") as notes:
            notes.write(json.dumps(what) + "\n")


def main():
    if os.environ.get("MUTE"):
        threading.Event().wait(600)
    note({"pid": os.getpid()})
    for line in sys.stdin:
        message = json.loads(line)
        method, ident, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "desk", "version": "1"}}
            send(id=ident, result={"protocolVersion": params["protocolVersion"], **about})
        elif method == "tools/list":
            send(id=ident, result={"tools": TOOLS})
        elif method == "tools/call":
            note({"call": params["name"], "arguments": params.get("arguments")})
            call(ident, params["name"], params.get("arguments") or {})
        elif ident is not None:
            send(id=ident, error={"code": -32601, "message": "unknown method"})


main()
