"""Coding agents (Claude Code, Codex, Gemini CLI) as data, and their runs.

In: a client's name, a prompt, a profile, a folder. Out: the entry for Toolcrib in a client's file; for a run,
`AgentEvent`s as they happen, an `ExecutionResult` and a log in `.toolcrib/runs/`. `known/` describes the programs. The
daemon (the running one, or one that lives as long as the runs do) leases the identity and reports which calls passed
its door. `cli` and `jobs` are above.
"""
