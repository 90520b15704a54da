"""The built-in tools of Claude Code 2.1.325 and their parameters; a test compares them with the real program."""

from __future__ import annotations

CLAUDE_CODE: dict[str, set[str]] = {
    "Bash": {"command", "timeout", "description", "run_in_background", "dangerouslyDisableSandbox"},
    "Edit": {"file_path", "old_string", "new_string", "replace_all"},
    "Glob": {"pattern", "path"},
    "Grep": {
        *("pattern", "path", "glob", "type", "output_mode", "head_limit", "offset", "multiline"),
        *("-A", "-B", "-C", "context", "-n", "-i", "-o"),
    },
    "Read": {"file_path", "offset", "limit", "pages", "allow_large"},
    "Write": {"file_path", "content"},
}
