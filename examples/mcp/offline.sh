#!/bin/sh
# Runs a command with a coding agent and a scripted model: offline, without a login.
#
#   offline.sh claude|codex|gemini COMMAND [ARG …]
#
# The coding agent is the real one. It gets a temporary home with a dummy key and the address of a local program that
# implements its provider's API and follows scripted.json. Your home, settings and variables are neither read nor
# changed, and everything is removed at the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
client=$1
shift
case $client in
    claude) provider=anthropic ;;
    codex) provider=openai-responses ;;
    gemini) provider=google ;;
    *) echo "Unknown coding agent: $client." >&2; exit 2 ;;
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

# The model exits when its input ends. Only this script holds it open, so the model also exits if the script is killed.
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
