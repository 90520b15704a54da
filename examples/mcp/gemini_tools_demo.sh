#!/bin/sh
# Demo: Gemini CLI uses Toolcrib's tools to read, write and test, and gets one call denied.
#
#   gemini_tools_demo.sh              with your own login
#   gemini_tools_demo.sh --scripted   offline, with a scripted model
#
# Note: Gemini CLI sends all tools to its model in every request, so the line `tool list` shows what the tools cost each
# time. A narrower profile also shortens that list: compare the first run with the second.
. "$(dirname "$0")/common.sh"
demo gemini "$@"
