#!/bin/sh
# What happened in a run, event by event, out of its log.
#
#   view_last_run_events.sh            the last run of the demos
#   view_last_run_events.sh FOLDER     the last run of a project of yours
#
# A log is a file of JSON lines: the first says who ran what and where, each event follows as it came, and the last says
# what it came to. Nothing that the coding agent prints is lost: what is no message, tool call or note is kept as `raw`.
. "$(dirname "$0")/common.sh"
project=${1:-$logs}
[ $# -gt 0 ] || [ -d "$logs" ] || {
    echo "No demo has left a log yet: run one, for instance $here/codex_tools_demo.sh --scripted." >&2
    exit 4
}
say 'The runs on record, the newest first:'
show runs --workdir "$project" --lines 3

say 'The last of them, with every event (time, kind, role, what):'
show runs show last --events --workdir "$project"

say 'The same for a program: toolcrib runs show last --events --json; as it happens: toolcrib runs tail.'
