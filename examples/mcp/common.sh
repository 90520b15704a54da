# Shared by the demos: source it with `.`, then call `demo CLIENT "$@"`.
#
# Everything happens in a temporary folder with a separate Toolcrib, and is removed at the end, even after Ctrl-C. Only
# the logs of the runs stay, in $logs. The coding agent uses your login, except with --scripted.
# shellcheck shell=sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# offline.sh sets this, because it replaces HOME.
logs=${TOOLCRIB_DEMO_LOGS:-${XDG_STATE_HOME:-$HOME/.local/state}/toolcrib-demos}
PATH=$PATH:$(cd "$here/../.." && pwd)/.venv/bin
command -v toolcrib >/dev/null || {
    echo "toolcrib is not installed: put it on PATH, or run 'make up' in the checkout once." >&2
    exit 4
}

say() { printf '\n'; printf '%s\n' "$@"; }

# Prints a toolcrib command and runs it.
show() {
    printf '\n$ toolcrib'
    for arg do
        case $arg in *[!a-zA-Z0-9_./-]*) printf " '%s'" "$arg" ;; *) printf ' %s' "$arg" ;; esac
    done
    printf '\n'
    toolcrib "$@" 2>&1
}

enter() {
    folder=$(mktemp -d "${TMPDIR:-/tmp}/toolcrib-demo.XXXXXX")
    trap leave EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    export TOOLCRIB_HOME="$folder/t"
    cp -R "$here/project" "$folder/project"
    cd "$folder/project"
}

leave() {
    status=$?
    trap '' INT TERM HUP
    cd "$here"
    if [ -d "$folder/project/.toolcrib/runs" ]; then
        (umask 077 && mkdir -p "$logs/.toolcrib/runs")
        cp project/.toolcrib/workspace.yml "$logs/.toolcrib/"
        mv "$folder"/project/.toolcrib/runs/*.jsonl "$logs/.toolcrib/runs/"
    fi
    rm -rf "$folder"
    exit "$status"
}

demo() {
    client=$1
    case ${2-} in
        '') ;;
        --scripted) exec "$here/offline.sh" "$client" "$0" ;;
        *)
            echo "usage: ${0##*/} [--scripted]" >&2
            exit 2
            ;;
    esac
    enter

    say '1. It reads tetris.py and comments on it. With the profile read-only it cannot change anything.'
    show run "$client" 'Read tetris.py with the read_file tool of toolcrib. What do you think of it? Be brief.' \
        --profile read-only

    say '2. The conversation continues as developer: it writes a module and its test, and runs the tests.'
    show run "$client" 'Write score.py with points(lines, level), and test_score.py; run the tests. Use toolcrib.' \
        --conversation last --profile developer
    say 'Files now on disk:' "$(ls -- *.py)"

    say '3. A review with a custom profile: it may read everything, but write only in reviews/.'
    show profile edit reviewer --file "$here/reviewer.yml"
    before=$(cat ./*.py)
    show run "$client" 'Write a review of score.py to reviews/score.md, then fix score.py. Use toolcrib.' \
        --conversation last --profile reviewer
    [ "$before" = "$(cat ./*.py)" ] || {
        say 'A file was changed that should not have been: this is a bug in Toolcrib.'
        exit 1
    }
    say 'Permissions are set per run, whatever the conversation could do before: score.py is unchanged.'

    say 'The audit log has every call with its decision:'
    show audit
    say "The logs of these runs are in $logs/.toolcrib/runs." 'view_last_run_events.sh shows the last one.'
}
