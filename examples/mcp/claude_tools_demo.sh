#!/bin/sh
# Demo: Claude Code uses Toolcrib's tools to read, write and test, and gets one call denied.
#
#   claude_tools_demo.sh              with your own login
#   claude_tools_demo.sh --scripted   offline, with a scripted model
#
# Note: Claude Code hides the tools of MCP servers until its model searches for them, so a `ToolSearch` comes before
# each new tool. It uses your login, model and CLAUDE.md. Below the profile `trusted`, hooks, plugins and other servers
# are off; see the lines `governed` and `not governed`.
. "$(dirname "$0")/common.sh"
demo claude "$@"
