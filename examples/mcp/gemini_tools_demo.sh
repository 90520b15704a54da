#!/bin/sh
# Gemini CLI with Toolcrib's tools
. "$(dirname "$0")/common.sh"
demo gemini "$@"
