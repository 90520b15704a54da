#!/bin/sh
# Shows the log of a run, event by event.
#
#   view_last_run_events.sh            the last run of the demos
#   view_last_run_events.sh FOLDER     the last run of your project
#
# A log is a file of JSON lines: the first has the agent, program and folder, then come the events, and the last is the
# summary. Nothing that the coding agent prints is lost: other lines than messages, tool calls and notes are `raw`.
. "$(dirname "$0")/common.sh"
project=${1:-$logs}
[ $# -gt 0 ] || [ -d "$logs" ] || {
    echo "No demo has run yet. Run one, for example $here/codex_tools_demo.sh --scripted." >&2
    exit 4
}
say 'The recorded runs, newest first:'
show runs --workdir "$project" --lines 3

say 'The last one, with every event (time, kind, role, text):'
show runs show last --events --workdir "$project"

say 'As JSON: toolcrib runs show last --events --json. Live: toolcrib runs tail.'
