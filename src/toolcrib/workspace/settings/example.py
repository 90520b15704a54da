"""The commented file of `toolcrib workspace init`: every key, with what holds without it.

In: nothing. Out: text. Lines with one blank after the `#` are prose; the others are settings, switched off.
"""

EXAMPLE = """\
# What the workspace tools may do in this folder. Every line is switched off and shows what holds without it: take the
# first `#` away to change something. `toolcrib workspace check` shows what is in force, docs/workspace.md explains it.
#
# What this file forbids holds at once. What it allows holds once a person has said `toolcrib trust`. Your own file for
# all folders is workspace.yml beside your config.yml. A file with a mistake in it stops every tool until it is mended.

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

# `commit`: commands may write .git, except its hooks, its configuration and whatever runs later.
#git: read-only

# Whether commands reach the network. Without it not even this machine's own ports are there.
#network: false

# No run_shell_safe where CI, GITHUB_ACTIONS, GITLAB_CI or the like is set.
#forbid_shell_in_ci: true

# Names of variables that commands get from the server, such as [DATABASE_URL, GIT_AUTHOR_NAME].
#environment: []

# Folders outside that commands may read, such as [~/.cache/uv, /srv/data]. File tools never leave the workspace.
#readable: []

# Files that no tool reads, writes, lists or finds; patterns as in .gitignore, such as [".env*", "secrets/**"].
#hidden: []

# What other programs obey when you open the folder (.vscode, .envrc, .claude …, all in docs/workspace.md) is not
# written. `off` allows one of them, `on` adds a pattern, such as {.vscode: off, "deploy/**": on}.
#guarded: {}

# Whether tools and commands may make git repositories. Without it, one that a command has made is renamed.
#repositories: false

# The interpreter for tests and linters: a path, seen from this folder, or a name. Nothing: .venv, venv, env, python3.
#python: null

#limits:
# Seconds for one call; `default` is for every tool that has no line of its own here.
#  seconds:
#    default: 30
#    run_tests: 600
#    run_lint: 300
#    run_shell_safe: 120
# For a command with all that it starts: memory, processes and threads, the largest file it may write.
#  memory_mb: 4096
#  processes: 512
#  file_mb: 1024
# What a model gets of a command's output, a search or a listing, and what of the output is kept as a file.
#  output_kb: 16
#  kept_mb: 16
# What one read_file gives.
#  read_kb: 32
# For one session, added up: calls of all tools, seconds of commands, what is written by write_file and edit_file.
#  session_calls: 10000
#  session_seconds: 21600
#  session_mb: 1024
"""
