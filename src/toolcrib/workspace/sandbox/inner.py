"""The last step inside the sandbox: checks the mounts, drops write access elsewhere, and executes the command.

Runs standalone with `python -I -S` as the first program in a sandbox, before any untrusted code; `command` sends it in
as compiled code. It imports nothing from Toolcrib and as little Python as possible, because its time adds to every
command. If a check fails, it reports the reason through CONTROL and runs nothing.

CONTROL is a socket. We send one byte when we are ready and read one when the limits of the process tree are set; we
send an error message if something is wrong. It closes when the command starts.
"""
# Loading pathlib takes longer than running this whole program.
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


def give_up(message: str) -> None:
    os.write(CONTROL, message.encode(errors="replace")[:2000])
    os._exit(NOT_RUN)


def system_call(*arguments: int | bytes) -> int:
    """Avoids the ctypes package, which takes longer to load than this whole program."""
    return int(_ctypes.call_function(SYSCALL, arguments))


def wait_for_start() -> None:
    os.write(CONTROL, b"r")
    if os.read(CONTROL, 1) != b"g":
        os._exit(NOT_RUN)
    os.set_blocking(CONTROL, False)
    try:
        os.read(CONTROL, 1)
    except BlockingIOError:
        return
    # The server is gone, so nothing would stop us.
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
        # Shells cannot redirect to descriptors with two digits.
        os.dup2(PLAN["report"], REPORT)
        os.close(PLAN["report"])


def check_places() -> None:
    for path, device, inode, is_read_only in PLAN["places"]:
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) != (device, inode):
            give_up(f"{os.fsdecode(path)} was replaced while the sandbox was being set up")
        if is_read_only and not os.statvfs(path).f_flag & READ_ONLY:
            give_up(f"{os.fsdecode(path)} is not read-only")
    for path, device in PLAN["masks"]:
        if os.lstat(path).st_dev == device:
            give_up(f"{os.fsdecode(path)} is not hidden")


def forbid_writing() -> None:
    """Landlock: from now on, this process and its descendants can write only beneath the listed paths."""
    attributes = PLAN["landlock"]
    rules = system_call(CREATE, attributes, len(attributes), 0)
    if rules < 0:
        give_up("Landlock cannot be used")
    for path, rights in PLAN["writable"]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
        if system_call(ADD_RULE, rules, BENEATH, rule, 0) != 0:
            give_up(f"Landlock rejects the rule for {os.fsdecode(path)}")
        os.close(place)
    if system_call(RESTRICT, rules, 0) != 0:
        give_up("Landlock could not be enabled")
    os.close(rules)


def set_limits() -> None:
    for kind, limit in PLAN["limits"]:
        if system_call(PLAN["prlimit"], 0, kind, limit.to_bytes(8, "little") * 2, 0) != 0:
            give_up(f"limit {kind} cannot be set")


def default_signals() -> None:
    """Includes signals that the server inherited as ignored or blocked."""
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
        wait_for_start()
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
