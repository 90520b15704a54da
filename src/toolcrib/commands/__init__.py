"""Named actions of the daemon, declared once.

One declaration serves both the CLI, over the socket, and the catalog, as the in-process server `crib`.
"""
