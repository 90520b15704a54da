# What the demos share: read with `.`, then call `demo CLIENT "$@"`.
#
# Everything happens in a temporary folder with a Toolcrib of its own, and is gone at the end, also after Ctrl-C. Only
# the logs of the runs stay, in $logs. Of yours, the coding agent's login is used; with --scripted not even that.
# shellcheck shell=sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# offline.sh says where they go, since it makes up a home.
logs=${TOOLCRIB_DEMO_LOGS:-${XDG_STATE_HOME:-$HOME/.local/state}/toolcrib-demos}
PATH=$PATH:$(cd "$here/../.." && pwd)/.venv/bin
command -v toolcrib >/dev/null || {
    echo "toolcrib is not installed: put it on PATH, or run 'make up' in the checkout once." >&2
    exit 4
}

say() { printf '\n'; printf '%s\n' "$@"; }

# Prints a command of Toolcrib's, and runs it.
show() {
    printf '\n$ toolcrib'
    for word do
        case $word in *[!a-zA-Z0-9_./-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
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

    say '1. It reads tetris.py and says what it thinks of it. As read-only it can change nothing.'
    show run "$client" 'Read tetris.py by the tool read_file of toolcrib. What do you think of it? Be short.' \
        --profile read-only

    say '2. The conversation goes on, now as developer: it writes a module and its test, and runs the tests.'
    show run "$client" 'Write score.py with points(lines, level), and test_score.py; run the tests. Use toolcrib.' \
        --conversation last --profile developer
    say 'On the disk there is now:' "$(ls -- *.py)"

    say '3. A review, under a profile of our own: it reads everything, and writes in reviews/ alone.'
    show profile edit reviewer --file "$here/reviewer.yml"
    before=$(cat ./*.py)
    show run "$client" 'Review score.py in reviews/score.md by write_file of toolcrib, then mend score.py likewise.' \
        --conversation last --profile reviewer
    [ "$before" = "$(cat ./*.py)" ] || {
        say 'A file was changed that was not to be: this is a fault of Toolcrib.'
        exit 1
    }
    say 'What it may do is said for each run, whatever the conversation could do before: score.py is as it was.'

    say 'The audit log has every call, with the decision:'
    show audit
    say "The logs of these runs are in $logs/.toolcrib/runs." 'view_last_run_events.sh shows what is in the last.'
}
