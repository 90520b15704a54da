"""Agents and their tokens, approvals, and sessions.

In: the owner's changes, and the callers' tokens. Out: agents with their current permissions. Above: `calls`, `core`.
Below: `policy`, which evaluates permissions, and `store`, which holds the rows.
"""
