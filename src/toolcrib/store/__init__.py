"""Rows that must outlive a process.

In: a file or a database URL. Out: `database.Store`, which never blocks the event loop, and `database.Database`, the
same for a command that waits. Each family of rows has a file with functions over a connection:
`await store.read(servers.load_tools, identity, root)`. Above: `identity`, `audit`, `core`, `daemon`, `cli`.
"""
