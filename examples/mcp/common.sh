# What the demos share; they read it with `.` and call `demo CLIENT "$@"`.
#
# All happens in a temporary folder, which is gone at the end, also after Ctrl-C. Only the logs of the runs stay, in
# $logs. With --scripted the same is done offline: see offline.sh.
# shellcheck shell=sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# With offline.sh a home is made up: the logs go to the real one's.
logs=${TOOLCRIB_DEMO_LOGS:-${XDG_STATE_HOME:-$HOME/.local/state}/toolcrib-demos}
PATH=$PATH:$(cd "$here/../.." && pwd)/.venv/bin
command -v toolcrib >/dev/null || {
    echo "toolcrib is not installed: run 'make up' in the checkout once, or put it on PATH." >&2
    exit 4
}

say() { printf '\n%s\n' "$@"; }

show() {
    printf '\n$ toolcrib'
    for word do
        case $word in *[!a-z-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    toolcrib "$@" 2>&1
}

# A folder with settings of Toolcrib's is a project of its own, wherever it lies.
make_project() {
    mkdir -p -m 700 "$1/.toolcrib" "$1/.toolcrib/runs"
    echo "$2" >"$1/.toolcrib/workspace.yml"
}

keep_logs() {
    make_project "$logs" 'read_only: true'
    for log in "$folder"/project/.toolcrib/runs/*.jsonl; do
        [ ! -e "$log" ] || mv "$log" "$logs/.toolcrib/runs/"
    done
}

clean() {
    status=$?
    trap '' INT TERM HUP
    cd "$here"
    keep_logs
    rm -rf "$folder"
    exit $status
}

# Makes a copy of the small project in project/, and goes there.
enter() {
    folder=$(mktemp -d "${TMPDIR:-/tmp}/toolcrib-demo.XXXXXX")
    trap clean EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    cp -R "$here/project" "$folder/project"
    make_project "$folder/project" 'network: false'
    cd "$folder/project"
}

demo() {
    client=$1
    case ${2-} in
        '') ;;
        --scripted) exec "$here/offline.sh" "$client" "$0" ;;
        *) echo "usage: ${0##*/} [--scripted]" >&2; exit 2 ;;
    esac
    enter

    say '1. It reads tetris.py and says what it thinks of it. As `read-only` it can change nothing.'
    show run "$client" 'Read tetris.py with the tool read_file of toolcrib. What do you think of it? Be short.' \
        --profile read-only

    say '2. The same conversation goes on, now as `developer`: it writes a module with a test, and runs the tests.'
    show run "$client" 'Write score.py with points(lines, level), and test_score.py. Use the tools of toolcrib.' \
        --conversation last --profile developer
    say 'On the disk there is now:' "$(ls)"

    say '3. A review, as `read-only` again. What the conversation could do before does not count: a write is refused.'
    before=$(cat score.py)
    show run "$client" 'Review score.py, and mend what is wrong by write_file of toolcrib, if you may.' \
        --conversation last --profile read-only
    [ "$before" = "$(cat score.py)" ] || { say 'score.py was changed: that must not be!'; exit 1; }
    say 'score.py is as it was.'

    say 'The book has every call, whoever made it:'
    show audit --since 10m
    say "The logs of the three runs are in $logs/.toolcrib/runs." "view_last_run_events.sh shows the last one."
}
