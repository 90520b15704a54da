"""A legacy server over stdio, written by hand: json and sys only, so that it starts fast and can misbehave.

Tools say by their names what the server does. `ODD` in the environment changes how it begins.
"""

import json
import os
import subprocess
import sys
import time

SCHEMA = '{"type":"object"}'
TOOLS = [
    '{"name":"echo", "inputSchema":{"type":"object","x-unknown":[1.0,null]} , "_meta":{"a":null},"title":null}',
    '{"name":"fail","inputSchema":{"type":"object"}}',
    '{"name":"error","inputSchema":{"type":"object"}}',
]
EXACT = '{"content":[{"type":"text","text":"h\\u00e9 \\ud83d\\ude00"} ], "structuredContent":{"n":1.0,"z":null},"_meta":{"x":[ ]},"unknown":{"a":1e2}}'
lists = 0
cancelled = []
extra = 0


def put(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def reply(ident, result):
    put('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(ident), result))


def text(words):
    return json.dumps({"content": [{"type": "text", "text": words}]})


def call(ident, params):
    global extra
    name = params["name"]
    arguments = params.get("arguments") or {}
    meta = params.get("_meta") or {}
    if name == "echo":
        reply(ident, EXACT)
    elif name == "params":
        reply(ident, text(json.dumps(params)))
    elif name == "fail":
        reply(ident, '{"content":[{"type":"text","text":"no"}],"isError":true}')
    elif name == "error":
        put('{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad","data":{"k": null}}}' % json.dumps(ident))
    elif name == "progress":
        token = meta.get("progressToken")
        for step in (1, 2):
            put(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": step, "total": 2}}))
        reply(ident, text("done"))
    elif name == "hang":
        pass
    elif name == "cancelled":
        reply(ident, text(json.dumps(cancelled)))
    elif name == "die":
        sys.stderr.write("I am dying of " + os.environ.get("SECRET", "thirst") + "\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "big":
        reply(ident, '{"content":[{"type":"text","text":"%s"}]}' % ("x" * arguments["size"]))
    elif name == "garbage":
        sys.stdout.buffer.write(b"hello\n\xff\xfe\n[1,2\n" + b"[" * 20000 + b"\n{}\n42\nnull\n{\"jsonrpc\":\"2.0\",\"id\":\n")
        sys.stdout.buffer.flush()
        reply(ident, text("still here"))
    elif name == "truncated":
        put('{"jsonrpc":"2.0","id":%s,"result":{"content":[' % json.dumps(ident))
    elif name == "latin":
        sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":' + json.dumps(ident).encode() + b',"result":{"t":"\xe9"}}\n')
        sys.stdout.buffer.flush()
    elif name == "deep":
        put('{"jsonrpc":"2.0","id":%s,"result":%s%s}' % (json.dumps(ident), "[" * 5000, "]" * 5000))
    elif name == "empty":
        put('{"jsonrpc":"2.0","id":%s}' % json.dumps(ident))
    elif name == "storm":
        extra += 1
        for _ in range(arguments.get("times", 1)):
            put('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        reply(ident, text("stormed"))
    elif name == "lists":
        reply(ident, text(str(lists)))
    elif name == "ask":
        put(json.dumps({"jsonrpc": "2.0", "id": "q1", "method": arguments["method"], "params": {}}))
        answer = json.loads(sys.stdin.readline())
        reply(ident, text(json.dumps(answer)))
    elif name == "environ":
        reply(ident, text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()})))
    elif name == "escape":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        reply(ident, text(str(child.pid)))
    else:
        put('{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"unknown tool"}}' % json.dumps(ident))


def listing(ident, params):
    global lists
    lists += 1
    odd = os.environ.get("ODD")
    if odd == "malformed":
        reply(ident, '{"tools":[{"name":"good","inputSchema":{}},{"inputSchema":{}},7,null,{"name":""},{"name":"good","other":1},{"name":"last"}]}')
    elif odd == "pages":
        cursor = params.get("cursor")
        page = int(cursor or 0)
        more = ',"nextCursor":"%d"' % (page + 1) if page < 3 else ""
        reply(ident, '{"tools":[{"name":"t%d"}]%s}' % (page, more))
    elif odd == "circle":
        reply(ident, '{"tools":[{"name":"t%s"}],"nextCursor":"again"}' % len(params))
    else:
        more = [] if not extra else ['{"name":"extra%d"}' % extra]
        reply(ident, '{"tools":[%s]}' % ",".join(TOOLS + more))


def main():
    odd = os.environ.get("ODD")
    if odd == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if odd == "exits":
        sys.stderr.write("cannot find my key %s\n" % os.environ.get("SECRET"))
        sys.exit(7)
    if odd == "mute":
        time.sleep(600)
    if odd == "chatty":
        print("Welcome to the server!\nlistening on stdio")
    begun = False
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        ident = message.get("id")
        if odd == "strict" and not begun and method != "initialize":
            sys.exit(9)
        if odd == "deaf" and not begun and method != "initialize":
            continue
        if method == "initialize":
            begun = True
            version = message["params"]["protocolVersion"]
            reply(ident, '{"protocolVersion":"%s","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"odd","version":"1"},"instructions":"be odd"}' % version)
        elif method == "tools/list":
            listing(ident, message.get("params") or {})
        elif method == "tools/call":
            call(ident, message["params"])
        elif method == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        elif ident is not None:
            put('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}' % json.dumps(ident))
    if odd == "stubborn":
        time.sleep(600)


main()
