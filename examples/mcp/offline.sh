#!/bin/sh
# Runs a command with a scripted model in the place of a coding agent's own: offline, without a login.
#
#   offline.sh claude|codex|gemini COMMAND [WORD …]
#
# The coding agent is the real one. It finds a home that was made for it, with a dummy key and the address of a program
# on this machine that speaks as its provider's service does, and follows scripted.json. Of your own home, settings and
# variables nothing is read or changed, and nothing of all this is left at the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
client=$1
shift
case $client in
    claude) provider=anthropic ;;
    codex) provider=openai-responses ;;
    gemini) provider=google ;;
    *) echo "There is no script for $client." >&2; exit 2 ;;
esac
python=$checkout/.venv/bin/python
[ -x "$python" ] || { echo "Run 'make up' in the checkout once: the scripted model needs its Python." >&2; exit 4; }

away=$(mktemp -d "${TMPDIR:-/tmp}/toolcrib-offline.XXXXXX")
model=
clean() {
    status=$?
    trap '' INT TERM HUP
    exec 3>&-
    [ -z "$model" ] || wait "$model" || status=1
    rm -rf "$away"
    exit $status
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# The model ends when its input does, which this script alone holds open: so also when the script is killed.
mkdir -p "$away/home" "$away/tmp"
mkfifo "$away/in" "$away/out"
"$python" -m toolcrib.testing "$provider" "$here/scripted.json" <"$away/in" >"$away/out" &
model=$!
exec 3>"$away/in"
read -r url <"$away/out"

home=$away/home
case $client in
    claude)
        set -- ANTHROPIC_BASE_URL="$url" ANTHROPIC_API_KEY=dummy CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 "$@"
        ;;
    codex)
        mkdir "$home/.codex"
        cat >"$home/.codex/config.toml" <<END
model = "gpt-4.1"
model_provider = "scripted"
analytics.enabled = false
feedback.enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "$url"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
supports_websockets = false
END
        set -- SCRIPTED_KEY=dummy "$@"
        ;;
    gemini)
        mkdir "$home/.gemini"
        cat >"$home/.gemini/settings.json" <<END
{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false},
 "model": {"name": "gemini-2.5-flash"}}
END
        set -- GEMINI_API_KEY=dummy GOOGLE_GEMINI_BASE_URL="$url" "$@"
        ;;
esac
env -i PATH="$PATH" LANG="${LANG-C.UTF-8}" TERM="${TERM-dumb}" HOME="$home" TMPDIR="$away/tmp" \
    TOOLCRIB_DEMO_LOGS="${XDG_STATE_HOME:-$HOME/.local/state}/toolcrib-demos" "$@" 3>&-
