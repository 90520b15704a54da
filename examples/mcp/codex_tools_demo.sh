#!/bin/sh
# Demo: Codex uses Toolcrib's tools to read, write and test, and gets one call denied.
#
#   codex_tools_demo.sh              with your own login
#   codex_tools_demo.sh --scripted   offline, with a scripted model
#
# Note: Codex's sandbox limits its built-in tools. It follows the profile of each run: Codex may write in the second run,
# but not in the other two. See the lines `governed` and `not governed`.
. "$(dirname "$0")/common.sh"
demo codex "$@"
