"""The `toolcrib` command, and the bridge that a client starts.

In: command-line arguments. Out: text or JSON on stdout, errors on stderr, an exit code. `commands` does the work, in
the daemon over its socket or in this process. `main` is the entry point. Nothing is imported here, because
`toolcrib stdio` must start as fast as a bare interpreter.
"""
