#!/bin/sh
# Codex with Toolcrib's tools
. "$(dirname "$0")/common.sh"
demo codex "$@"
