"""The last step inside: checks what was mounted, takes the right to write elsewhere, becomes the command.

Runs alone, by `python -I -S` as the first program of a sandbox, before any code that is not ours; `command` sends it in
as compiled code. It imports nothing of Toolcrib and as little as possible of Python, for its time is part of every
command's. Whatever does not hold is reported through CONTROL, and nothing is run.

CONTROL is a socket: one byte goes out when we wait, one comes in when the limits of the whole tree are set, words go
out when something is wrong, and it closes when the command takes over.
"""
# pathlib takes longer to load than all of this to run.
# ruff: noqa: PTH208

import _ctypes
import _signal  # type: ignore[import-not-found]
import os

PLAN, CONTROL = globals()["GIVEN"]
REPORT = 3
SYSCALL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
READ_ONLY = 1
CREATE, ADD_RULE, RESTRICT = 444, 445, 446
BENEATH = 1
NOT_RUN, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


def give_up(words: str) -> None:
    os.write(CONTROL, words.encode(errors="replace")[:2000])
    os._exit(NOT_RUN)


def system_call(*arguments: int | bytes) -> int:
    """Without the package ctypes, which takes longer to load than all of this to run."""
    return int(_ctypes.call_function(SYSCALL, arguments))


def wait_for_the_word() -> None:
    os.write(CONTROL, b"r")
    if os.read(CONTROL, 1) != b"g":
        os._exit(NOT_RUN)
    os.set_blocking(CONTROL, False)
    try:
        os.read(CONTROL, 1)
    except BlockingIOError:
        return
    # The server is gone; nobody would end us.
    os._exit(NOT_RUN)


def close_the_rest() -> None:
    kept = {0, 1, 2, CONTROL, PLAN["report"]}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue
    if PLAN["report"] >= 0:
        # A shell can name no descriptor of two digits.
        os.dup2(PLAN["report"], REPORT)
        os.close(PLAN["report"])


def check_places() -> None:
    for path, device, inode, is_read_only in PLAN["places"]:
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) != (device, inode):
            give_up(f"{os.fsdecode(path)} was exchanged for something else while the sandbox was made")
        if is_read_only and not os.statvfs(path).f_flag & READ_ONLY:
            give_up(f"{os.fsdecode(path)} is not read-only")
    for path, device in PLAN["masks"]:
        if os.lstat(path).st_dev == device:
            give_up(f"{os.fsdecode(path)} is not hidden")


def forbid_writing() -> None:
    """Landlock: from here on files are written only beneath the places named, by whatever this becomes."""
    attributes = PLAN["landlock"]
    rules = system_call(CREATE, attributes, len(attributes), 0)
    if rules < 0:
        give_up("Landlock takes no rules")
    for path, rights in PLAN["writable"]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
        if system_call(ADD_RULE, rules, BENEATH, rule, 0) != 0:
            give_up(f"Landlock does not take the rule for {os.fsdecode(path)}")
        os.close(place)
    if system_call(RESTRICT, rules, 0) != 0:
        give_up("Landlock is not in force")
    os.close(rules)


def set_limits() -> None:
    for kind, limit in PLAN["limits"]:
        if system_call(PLAN["prlimit"], 0, kind, limit.to_bytes(8, "little") * 2, 0) != 0:
            give_up(f"limit {kind} cannot be set")


def default_signals() -> None:
    """Also for those that whoever started the server ignores or blocks."""
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def become_the_command() -> None:
    argv = PLAN["argv"]
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except (OSError, ValueError) as error:
        name = os.fsdecode(argv[0])
        os.write(2, f"toolcrib: {name}: {getattr(error, 'strerror', error)}\n".encode(errors="replace"))
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def main() -> None:
    try:
        wait_for_the_word()
        close_the_rest()
        check_places()
        if PLAN["landlock"]:
            forbid_writing()
        set_limits()
        default_signals()
        os.set_inheritable(CONTROL, False)
    except Exception as error:
        give_up(f"{type(error).__name__}: {error}")
    become_the_command()


main()
