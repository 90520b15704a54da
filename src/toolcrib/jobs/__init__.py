"""Jobs: runs that the daemon executes in the background, each in a separate process.

In the daemon: `submission` checks an order, `queue` stores and schedules it, `worker` starts `python -m toolcrib.jobs`.
In that process (`__main__`): an order on stdin; lines of JSON on stdout with its agent, its events and its result.
`agent` runs a model with the daemon's tools; `coding_agents` runs a coding agent. Both use a leased agent.
"""
