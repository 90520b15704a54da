"""A legacy stdio server that is odd as the tool's name or `ODD` says. Standard library only, so that it starts fast."""

# ruff: noqa: PLW0603, PLR0912, PTH109

import json
import os
import subprocess
import sys
import time

TOOLS = [
    '{"name":"echo", "inputSchema":{"type":"object","x-unknown":[1.0,null]} , "_meta":{"a":null},"title":null}',
    '{"name":"fail","inputSchema":{"type":"object"}}',
]
MALFORMED = (
    '{"tools":[{"name":"good","inputSchema":{}},{"inputSchema":{}},7,null,{"name":""},'
    '{"name":"good","other":1},{"name":"last"}]}'
)
EXACT = (
    b'{"content":[{"type":"text","text":"h\\u00e9 \\ud83d\\ude00"} ], "structuredContent":{"n":1.0,"z":null},'
    b'"_meta":{"x":[ ]},"unknown":{"a":1e2}}'
)
ODD = os.environ.get("ODD", "")
LIST_CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
FLOODS = {
    "garbage": (1, b"hello\n" * 5000),
    "newlines": (1, b"\n" * 50000),
    "stderr": (2, b"oh dear\n" * 5000),
    "stderr newlines": (2, b"\n" * 50000),
    "messages": (1, b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}\n' * 500),
    "changes": (1, LIST_CHANGED * 500),
    "requests": (1, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 500),
    "answers": (1, b'{"jsonrpc":"2.0","id":"tc-99999","result":{}}\n' * 500),
    "batches": (1, b"[" + b",".join([b'{"jsonrpc":"2.0","method":"x"}'] * 2000) + b"]\n"),
    "endless": (1, b"x" * 50000),
}
SLEEP = "import time; time.sleep(600)"
RAW_ANSWERS = {
    "echo": b'{"jsonrpc":"2.0","id":@ID@,"result":' + EXACT + b"}",
    "truncated": b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[',
    "latin": b'{"jsonrpc":"2.0","id":@ID@,"result":{"t":"\xe9"}}',
    "deep": b'{"jsonrpc":"2.0","id":@ID@,"result":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "neither": b'{"jsonrpc":"2.0","id":@ID@}',
    "batch": b'[{"jsonrpc":"2.0","id":@ID@,"result":{"in":"a batch"}}]',
}
GARBAGE = b'hello\n\xff\xfe\n[1,2\n{}\n42\nnull\n{"jsonrpc":"2.0","id":\n' + b"[" * 20000

lists = 0
extra = 0
cancelled = []


def put(line):
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def reply(ident, result):
    put(f'{{"jsonrpc":"2.0","id":{json.dumps(ident)},"result":{result}}}'.encode())


def refuse(ident, code, message):
    put(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": message}}).encode())


def tell(ident, words):
    reply(ident, json.dumps({"content": [{"type": "text", "text": words}]}))


def call(ident, params):
    global extra
    name, arguments = params["name"], params.get("arguments") or {}
    if name in RAW_ANSWERS:
        put(RAW_ANSWERS[name].replace(b"@ID@", json.dumps(ident).encode()))
    elif name == "params":
        tell(ident, json.dumps(params))
    elif name == "cancelled":
        tell(ident, json.dumps(cancelled))
    elif name == "die":
        sys.stderr.write(f"I am dying of {os.environ.get('SECRET', 'thirst')}\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "big":
        tell(ident, "x" * arguments["size"])
    elif name == "garbage":
        put(GARBAGE)
        tell(ident, "still here")
    elif name == "storm":
        extra += 1
        put(LIST_CHANGED * arguments["times"])
        tell(ident, "stormed")
    elif name == "flood":
        flood(arguments["what"], params.get("_meta", {}).get("progressToken"))
    elif name == "lists":
        tell(ident, str(lists))
    elif name == "ask":
        put(json.dumps({"jsonrpc": "2.0", "id": "q1", **arguments}).encode())
        tell(ident, sys.stdin.readline())
    elif name == "surroundings":
        tell(ident, json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}))
    elif name == "escape":
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        words = [sys.executable, "-c", SLEEP]
        tell(
            ident, json.dumps([subprocess.Popen(words, start_new_session=gone, **quiet).pid for gone in (True, False)])
        )
    elif name != "hang":
        refuse(ident, -32602, "unknown tool")


def flood(what, token):
    if what == "progress":
        params = {"progressToken": token, "progress": 1}
        notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        pipe, chunk = 1, f"{notice}\n".encode() * 500
    else:
        pipe, chunk = FLOODS[what]
    while True:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(pipe, rest) :]


def listing(ident, params):
    global lists
    lists += 1
    if ODD == "malformed":
        reply(ident, MALFORMED)
    elif ODD == "pages":
        page = int(params.get("cursor") or 0)
        more = f',"nextCursor":"{page + 1}"' if page < 3 else ""
        reply(ident, f'{{"tools":[{{"name":"t{page}"}}]{more}}}')
    elif ODD == "circle":
        reply(ident, f'{{"tools":[{{"name":"t{len(params)}"}}],"nextCursor":"again"}}')
    elif ODD in {"many", "endless pages"}:
        names = [f"p{lists}t{number}" for number in range(6000 if ODD == "many" else 1000)]
        more = {} if ODD == "many" else {"nextCursor": str(lists)}
        reply(ident, json.dumps({"tools": [{"name": name} for name in names], **more}))
    elif ODD == "large":
        reply(ident, f'{{"tools":[{{"name":"t","description":"{"x" * 20_000_000}"}}]}}')
    elif ODD == "ones":
        reply(ident, f'{{"tools":[{"1," * 600_000}1]}}')
    else:
        grown = [f'{{"name":"extra{extra}"}}'] if extra else []
        reply(ident, f'{{"tools":[{",".join(TOOLS + grown)}]}}')


def begin():
    if ODD == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif ODD == "exits":
        sys.stderr.write(f"cannot use the key {os.environ.get('SECRET')}\n")
        sys.exit(7)
    elif ODD == "mute":
        time.sleep(600)
    elif ODD == "chatty":
        put(b"Welcome to the server!\nlistening on stdio")


def main():
    begin()
    begun = False
    for line in sys.stdin:
        message = json.loads(line)
        method, ident = message.get("method"), message.get("id")
        if not begun and method != "initialize" and ODD in {"strict", "deaf"}:
            if ODD == "strict":
                sys.exit(9)
            continue
        if method == "initialize":
            begun = True
            about = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "odd", "version": "1"},
                "instructions": "be odd" * (100_000 if ODD == "verbose" else 1),
            }
            reply(ident, json.dumps(about))
        elif method == "tools/list":
            listing(ident, message.get("params") or {})
        elif method == "tools/call":
            call(ident, message["params"])
        elif method == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        elif ident is not None:
            refuse(ident, -32601, "unknown method")
    if ODD == "stubborn":
        time.sleep(600)


main()
