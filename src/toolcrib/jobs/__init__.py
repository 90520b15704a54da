"""Jobs: runs that the daemon executes in the background, each in a process of its own.

In the daemon: `submission` checks an order, `queue` stores and schedules it, `worker` starts `python -m toolcrib.jobs`.
In that process (`__main__`): an order on stdin; lines of JSON on stdout with its agent, its events and its result.
`agent` runs a model with the daemon's tools; a coding agent's run is `coding_agents`. Both use an agent on lease.
"""
