"""The daemon's process: one per user, with a lock, a socket and a port.

In: flags and a project root. Out: a running daemon that hosts the crib, the gateway and the commands.
"""
