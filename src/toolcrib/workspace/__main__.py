"""`python -m toolcrib.workspace --root .`: the stand-alone workspace server, for any MCP client.

In: the command line. Out: a server on stdin and stdout, a loopback port or a unix socket that runs until its client,
a signal or its last user ends it; an exit code.
"""

import os
import sys

# `-m` puts the current folder first on sys.path, so a file of the project would run unasked. `python -P` does not.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109
    del sys.path[0]

from toolcrib.workspace.serving.main import main

if __name__ == "__main__":
    sys.exit(main())
