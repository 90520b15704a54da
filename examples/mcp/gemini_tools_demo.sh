#!/bin/sh
# Gemini CLI at work with Toolcrib's tools: it reads, writes, tests, and is refused.
#
#   gemini_tools_demo.sh              with your own login
#   gemini_tools_demo.sh --scripted   offline, with a scripted model
#
# Worth a look: Gemini CLI puts every tool before its model in every request, so the line `tool list` is what the tools
# cost each time. A profile that permits less also makes that list shorter: compare the first run with the second.
. "$(dirname "$0")/common.sh"
demo gemini "$@"
