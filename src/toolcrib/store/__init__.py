"""Persistent rows, in SQLite or PostgreSQL.

In: a file or a database URL. Out: `database.Store`, which never blocks the event loop, and `database.Database`, its
blocking counterpart for commands. Each group of tables has a module of functions that take a connection:
`await store.read(servers.load_tools, identity, root)`. Above: `identity`, `audit`, `core`, `daemon`, `cli`.
"""
