#!/bin/sh
# Claude Code with Toolcrib's tools
. "$(dirname "$0")/common.sh"
demo claude "$@"
