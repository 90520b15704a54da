"""The process: one per user, found by its lock, socket and port.

In: flags and a project root. Out: a running daemon that hosts the crib, the gateway and the commands.
"""
