"""How another process of the same person reaches the daemon: a line over its socket, and an agent on lease.

In: the socket's path. Out: answers of commands, and a `Lease` with what is seen of its agent. `runs` and `Crib.connect`
use it; `commands/run.py` is at the other end.
"""
