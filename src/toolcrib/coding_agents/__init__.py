"""Coding agents (Claude Code, Codex, Gemini CLI) as data, and their runs.

In: a client's name, a prompt, a profile, a folder. Out: the entry for Toolcrib in a client's file; for a run,
`AgentEvent`s as they happen, an `ExecutionResult` and a log in `.toolcrib/runs/`. `known/` describes the programs. The
daemon, already running or started just for the runs, leases the identity and reports the calls that it handled.
Used by `cli` and `jobs`.
"""
