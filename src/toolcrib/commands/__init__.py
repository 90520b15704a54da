"""Named actions of the daemon, declared once.

The same declaration serves the CLI over the socket, and the catalog as the in-process server `crib`.
"""
