#!/bin/sh
# Codex at work with Toolcrib's tools: it reads, writes, tests, and is refused.
#
#   codex_tools_demo.sh              with your own login
#   codex_tools_demo.sh --scripted   offline, with a scripted model
#
# Worth a look: what Codex may do with its own tools is set by its sandbox, which follows the profile of each run: it may
# write in the second run, and in the other two it may not. The lines `governed` and `not governed` say so.
. "$(dirname "$0")/common.sh"
demo codex "$@"
