"""A legacy stdio server that misbehaves. Standard library only, so that it starts fast.

The tool's name or the variable `ODD` chooses the oddity.
"""

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
EXACT = (
    '{"content":[{"type":"text","text":"h\\u00e9 \\ud83d\\ude00"} ], "structuredContent":{"n":1.0,"z":null},'
    '"_meta":{"x":[ ]},"unknown":{"a":1e2}}'
)
ODD = os.environ.get("ODD", "")
LIST_CHANGED = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
FLOODS = {
    "garbage": (1, b"hello\n" * 5000),
    "newlines": (1, b"\n" * 50000),
    "stderr": (2, b"oh dear\n" * 5000),
    "stderr newlines": (2, b"\n" * 50000),
    "messages": (1, b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}\n' * 500),
    "changes": (1, (LIST_CHANGED + "\n").encode() * 500),
    "requests": (1, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 500),
    "answers": (1, b'{"jsonrpc":"2.0","id":"tc-99999","result":{}}\n' * 500),
    "batches": (1, b"[" + b",".join([b'{"jsonrpc":"2.0","method":"x"}'] * 2000) + b"]\n"),
    "endless": (1, b"x" * 50000),
}
SLEEP = "import time; time.sleep(600)"

lists = 0
extra = 0
cancelled = []


def put(line):
    put_bytes(line.encode())


def put_bytes(line):
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def reply(ident, result):
    put(f'{{"jsonrpc":"2.0","id":{json.dumps(ident)},"result":{result}}}')


def refuse(ident, error):
    put(f'{{"jsonrpc":"2.0","id":{json.dumps(ident)},"error":{error}}}')


def text(words):
    return json.dumps({"content": [{"type": "text", "text": words}]})


def call(ident, params):
    global extra
    name = params["name"]
    arguments = params.get("arguments") or {}
    raw_id = json.dumps(ident).encode()
    if name == "echo":
        reply(ident, EXACT)
    elif name == "params":
        reply(ident, text(json.dumps(params)))
    elif name == "hang":
        pass
    elif name == "cancelled":
        reply(ident, text(json.dumps(cancelled)))
    elif name == "die":
        sys.stderr.write(f"I am dying of {os.environ.get('SECRET', 'thirst')}\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "big":
        reply(ident, text("x" * arguments["size"]))
    elif name == "garbage":
        put_bytes(b'hello\n\xff\xfe\n[1,2\n{}\n42\nnull\n{"jsonrpc":"2.0","id":\n' + b"[" * 20000)
        reply(ident, text("still here"))
    elif name == "truncated":
        put_bytes(b'{"jsonrpc":"2.0","id":' + raw_id + b',"result":{"content":[')
    elif name == "latin":
        put_bytes(b'{"jsonrpc":"2.0","id":' + raw_id + b',"result":{"t":"\xe9"}}')
    elif name == "deep":
        put_bytes(b'{"jsonrpc":"2.0","id":' + raw_id + b',"result":' + b"[" * 5000 + b"]" * 5000 + b"}")
    elif name == "neither":
        put_bytes(b'{"jsonrpc":"2.0","id":' + raw_id + b"}")
    elif name == "batch":
        put_bytes(b'[{"jsonrpc":"2.0","id":' + raw_id + b',"result":{"in":"a batch"}}]')
    elif name == "storm":
        extra += 1
        put("\n".join([LIST_CHANGED] * arguments["times"]))
        reply(ident, text("stormed"))
    elif name == "flood":
        flood(arguments["what"], params.get("_meta", {}).get("progressToken"))
    elif name == "lists":
        reply(ident, text(str(lists)))
    elif name == "ask":
        put(json.dumps({"jsonrpc": "2.0", "id": "q1", "method": arguments["method"], "params": arguments["params"]}))
        reply(ident, text(sys.stdin.readline()))
    elif name == "surroundings":
        reply(ident, text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()})))
    elif name == "escape":
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        gone = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True, **quiet)
        stayed = subprocess.Popen([sys.executable, "-c", SLEEP], **quiet)
        reply(ident, text(json.dumps([gone.pid, stayed.pid])))
    else:
        refuse(ident, '{"code":-32602,"message":"unknown tool"}')


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
        reply(
            ident,
            '{"tools":[{"name":"good","inputSchema":{}},{"inputSchema":{}},7,null,{"name":""},'
            '{"name":"good","other":1},{"name":"last"}]}',
        )
    elif ODD == "pages":
        page = int(params.get("cursor") or 0)
        more = f',"nextCursor":"{page + 1}"' if page < 3 else ""
        reply(ident, f'{{"tools":[{{"name":"t{page}"}}]{more}}}')
    elif ODD == "circle":
        reply(ident, f'{{"tools":[{{"name":"t{len(params)}"}}],"nextCursor":"again"}}')
    elif ODD == "many":
        tools = ",".join(f'{{"name":"t{number}"}}' for number in range(6000))
        reply(ident, f'{{"tools":[{tools}]}}')
    elif ODD == "endless pages":
        tools = ",".join(f'{{"name":"p{lists}t{number}"}}' for number in range(1000))
        reply(ident, f'{{"tools":[{tools}],"nextCursor":"{lists}"}}')
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
        put("Welcome to the server!\nlistening on stdio")


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
            reply(
                ident,
                json.dumps(
                    {
                        "protocolVersion": message["params"]["protocolVersion"],
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": {"name": "odd", "version": "1"},
                        "instructions": "be odd" * (100_000 if ODD == "verbose" else 1),
                    }
                ),
            )
        elif method == "tools/list":
            listing(ident, message.get("params") or {})
        elif method == "tools/call":
            call(ident, message["params"])
        elif method == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        elif ident is not None:
            refuse(ident, '{"code":-32601,"message":"unknown method"}')
    if ODD == "stubborn":
        time.sleep(600)


main()
