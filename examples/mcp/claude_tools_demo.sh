#!/bin/sh
# Claude Code at work with Toolcrib's tools: it reads, writes, tests, and is refused.
#
#   claude_tools_demo.sh              with your own login
#   claude_tools_demo.sh --scripted   offline, with a scripted model
#
# Worth a look: Claude Code keeps the tools of MCP servers back until its model searches for them, so a `ToolSearch`
# comes before each that is new. Its login, model and CLAUDE.md are yours; hooks, plugins and other servers are left out
# of a run below the profile `trusted`, and the lines `governed` and `not governed` say so.
. "$(dirname "$0")/common.sh"
demo claude "$@"
