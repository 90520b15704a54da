"""The commented file that `toolcrib workspace init` writes: every key with its default.

In: nothing. Out: text. Lines with a space after the `#` are prose; the others are commented-out settings.
"""

EXAMPLE = """\
# What the workspace tools may do in this folder. Every setting is commented out and shows its default: remove the first
# `#` to change it. `toolcrib workspace check` shows the effective settings, docs/workspace.md explains them.
#
# Restrictions in this file apply immediately; permissions apply after you run `toolcrib trust`. Your own file for all
# folders is workspace.yml next to your config.yml. While a file has an error, all tools are refused.

# No write_file, edit_file or run_shell_safe; tests and linters run with the folder read-only.
#read_only: false

# Each tool on or off.
#tools:
#  read_file: on
#  write_file: on
#  edit_file: on
#  list_dir: on
#  stat_file: on
#  find_files: on
#  search_text: on
#  run_tests: on
#  run_lint: on
#  run_shell_safe: on
#  project_diff: on
#  project_structure: on

# `commit`: commands may write .git, except its hooks, its configuration and anything that runs later.
#git: read-only

# Whether commands can use the network. Without it, even this machine's own ports are unreachable.
#network: false

# No run_shell_safe if CI, GITHUB_ACTIONS, GITLAB_CI or a similar variable is set.
#forbid_shell_in_ci: true

# Environment variables that commands inherit from the server, such as [DATABASE_URL, GIT_AUTHOR_NAME].
#environment: []

# Outside folders that commands may read, such as [~/.cache/uv, /srv/data]. File tools never leave the workspace.
#readable: []

# Files that no tool reads, writes, lists or finds; patterns as in .gitignore, such as [".env*", "secrets/**"].
#hidden: []

# Files that configure other programs (.vscode, .envrc, .claude …, all in docs/workspace.md) cannot be written. `off`
# allows one of them, `on` adds a pattern, such as {.vscode: off, "deploy/**": on}.
#guarded: {}

# Whether tools and commands may create git repositories. If not, a repository that a command creates is renamed.
#repositories: false

# The Python for tests and linters: a path relative to this folder, or a name. Default: .venv, venv, env, python3.
#python: null

#limits:
# Seconds for one call; `default` applies to every tool that is not listed here.
#  seconds:
#    default: 30
#    run_tests: 600
#    run_lint: 300
#    run_shell_safe: 120
# For a command and everything it starts: memory, processes and threads, the largest file it may write.
#  memory_mb: 4096
#  processes: 512
#  file_mb: 1024
# The most output of a command, search or listing that a model receives, and the most command output saved to a file.
#  output_kb: 16
#  kept_mb: 16
# How much one read_file returns.
#  read_kb: 32
# Totals for one session: calls of all tools, seconds of commands, data written by write_file and edit_file.
#  session_calls: 10000
#  session_seconds: 21600
#  session_mb: 1024
"""
