"""What a person types: the `toolcrib` command and the bridge that a client starts.

In: words on a command line. Out: text or JSON on stdout, errors on stderr, an exit code. The work itself is done by
`commands`, in the daemon over its socket or in this process. `main` is the entry; nothing is imported here, because
`toolcrib stdio` must start in the time of a bare interpreter.
"""
