"""The program that the conformance suite starts as a client: passes what it is given to the test, which does the work.

In: as arguments, the test's socket and the server's URL; the scenario and its context in the environment. Out: exit
code 1 if the server could not be used, with the reason.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    order = {"scenario": os.environ["MCP_CONFORMANCE_SCENARIO"], "url": sys.argv[2], "context": context}
    line.sendall(json.dumps(order).encode() + b"\n")
    with line.makefile() as answers:
        sys.exit(answers.readline().strip() or None)
