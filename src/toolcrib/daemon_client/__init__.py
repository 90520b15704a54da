"""Finds and starts the daemon and talks to it, from another process of the same person.

In: a user's paths. Out: answers of commands (`connection`, `command_client`), and an `AgentLease` with the events of
its agent (`lease`). `coding_agents`, `jobs`, `cli` and `Crib.connect` use it; `commands/run.py` is the other end.
`lifetime` has the daemon's lock; `starting` connects to a daemon or starts one.
"""
