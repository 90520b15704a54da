"""Coding agents of others, described as data: where their files are, and what an entry for Toolcrib looks like there.

In: a client's name, and the command or endpoint that its entry shall name. Out: that entry as text, or a client's file
with it. Starting a daemon, or running a client, is not its business. `cli` is the neighbour above.
"""
