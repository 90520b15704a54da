"""A job's own process: `python -m toolcrib.jobs`, started by the daemon.

In: an order on stdin. Out: lines of JSON on stdout: whose agent it is, what happens, how it ended. `agent` runs a model
with the daemon's tools, `program` a coding agent's program; both under an agent that the daemon lends for the job.
"""
