"""How another process of the same person finds, starts and talks to the daemon.

In: a user's paths. Out: answers of commands (`connection`, `command_client`), and an `AgentLease` with what the daemon
sees of its agent (`lease`). `coding_agents`, `jobs`, `cli` and `Crib.connect` use it; `commands/run.py` is at the other
end. `lifetime` holds the one lock per daemon, `starting` connects to a daemon or starts one.
"""
