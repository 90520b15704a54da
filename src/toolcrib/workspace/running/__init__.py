"""The tools that run commands in the sandbox."""
