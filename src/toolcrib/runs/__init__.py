"""Runs of coding agents: the program, the identity it works as, what it did, and the end of all three.

In: a prompt, a client's name, a profile, a folder. Out: `AgentEvent`s as they happen, an `ExecutionResult`, a log in
`.toolcrib/runs/`. `coding_agents` knows the programs, the daemon (the running one, or one that lives as long as the
runs do) gives the identity and tells what passed its door. `cli` is above.
"""
