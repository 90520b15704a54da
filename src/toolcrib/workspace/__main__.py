"""`python -m toolcrib.workspace --root .`: the workspace server alone, for any MCP client.

In: the command line. Out: a server on stdin and stdout, on a port of loopback or on a unix socket, until its client, a
signal or its last user ends it; an exit code.
"""

import os
import sys

# `-m` puts the folder it is started in first on the path: a project's own file would run unasked. With `python -P` it
# is not there to begin with.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109
    del sys.path[0]

from toolcrib.workspace.serving.main import main

if __name__ == "__main__":
    sys.exit(main())
