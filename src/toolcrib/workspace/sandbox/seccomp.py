"""The filter of system calls: a program for the kernel (classic BPF), made here without any library.

In: the machine's name and whether a cgroup counts memory. Out: bytes that bubblewrap's `--seccomp` takes. Calls are
allowed unless named in `syscalls`, or refused for an argument below; calls of another machine end the process.
`without_children` is another filter, for a program that must not start others: `coding_agents.plain_git` uses it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

from toolcrib.workspace.sandbox.syscalls import (
    FORBIDDEN,
    FORKS,
    MACHINES,
    NEWEST,
    NONE,
    NOT_THERE,
    NUMBERS,
    UNCOUNTED,
    Machine,
)

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000

_LOAD = 0x20
_AND = 0x54
_EQUAL = 0x15
_GREATER = 0x25
_ANY_BIT = 0x45
_RETURN = 0x06

_NUMBER, _ARCH = 0, 4

NEW_NAMESPACES = 0x7E020000
NEW_TIME = 0x80
NEW_THREAD = 0x10000
SET_ID = 0o6000
CREATES = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE; without them the mode is no argument."""
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x0040000, 0xFFFFFFFF)
"""Plain Linux, 32 bits, old uname, no random addresses (debuggers), and the question what it is now."""
BAD_IOCTLS = (0x5412, 0x541C, 0x541D)
"""TIOCSTI, TIOCLINUX, TIOCCONS: typing into a terminal, and taking the console."""
SHARED_MEMORY = 0x21
"""MAP_SHARED and MAP_ANONYMOUS."""
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_TYPE, SOCK_STREAM, SOCK_DGRAM = 0xF, 1, 2

Code = list[tuple[int, int, int, int]]


def program(machine: str, *, counts_memory: bool) -> bytes:
    """KeyError for a machine that is not known."""
    no_call = [*NOT_THERE, *(() if counts_memory else UNCOUNTED)]
    return _program(MACHINES[machine], no_call, FORBIDDEN, _checks(counts_memory=counts_memory))


def without_children(machine: str) -> bytes:
    """Threads can be made, and no process: what runs under it starts no program. KeyError as above."""
    threads: Code = [_argument(0), (_ANY_BIT, 1, 0, NEW_THREAD), _refuse(errno.EPERM), _answer(ALLOW)]
    return _program(MACHINES[machine], ["clone3"], FORKS, {"clone": threads})


def _program(known: Machine, no_call: Sequence[str], forbidden: Sequence[str], checks: Mapping[str, Code]) -> bytes:
    code: Code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, known.audit),
        _answer(KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Also x32, whose numbers begin far above.
        (_GREATER, 0, 1, NEWEST),
        _refuse(errno.ENOSYS),
    ]
    for number in _numbers(no_call, known):
        code += [(_EQUAL, 0, 1, number), _refuse(errno.ENOSYS)]
    for number in _numbers(forbidden, known):
        code += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    for name, check in checks.items():
        for number in _numbers([name], known):
            code += [(_EQUAL, 0, len(check), number), *check]
    code.append(_answer(ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _numbers(names: Sequence[str], machine: Machine) -> list[int]:
    return [number for name in names if (number := NUMBERS[name][machine.column]) != NONE]


def _checks(*, counts_memory: bool) -> dict[str, Code]:
    """What is looked at behind a call's number. Each ends with an answer. Only the low half of an argument counts:
    the kernel looks at no more, and a filter that did could be passed with bits above."""
    return {
        "clone": _refuse_bits(0, NEW_NAMESPACES),
        "unshare": _refuse_bits(0, NEW_NAMESPACES | NEW_TIME),
        "chmod": _refuse_bits(1, SET_ID),
        "fchmod": _refuse_bits(1, SET_ID),
        "fchmodat": _refuse_bits(2, SET_ID),
        "fchmodat2": _refuse_bits(2, SET_ID),
        "creat": _refuse_bits(1, SET_ID),
        "mknod": _refuse_bits(1, SET_ID),
        "mknodat": _refuse_bits(2, SET_ID),
        "open": _creating(1, 2),
        "openat": _creating(2, 3),
        "ioctl": [_argument(1), *(line for value in BAD_IOCTLS for line in _refuse_equal(value)), _answer(ALLOW)],
        "personality": [
            _argument(0),
            *(line for value in PERSONALITIES for line in ((_EQUAL, 0, 1, value), _answer(ALLOW))),
            _refuse(errno.EPERM),
        ],
        "socket": _sockets(),
        **({} if counts_memory else {"mmap": _mapping()}),
        "socketpair": [_argument(0), (_EQUAL, 1, 0, AF_UNIX), _refuse(errno.EAFNOSUPPORT), _answer(ALLOW)],
    }


def _mapping() -> Code:
    """Shared memory without a file can be let go of by all who mapped it but for a page: no watcher would see it."""
    return [
        _argument(3),
        (_AND, 0, 0, SHARED_MEMORY),
        (_EQUAL, 0, 1, SHARED_MEMORY),
        _refuse(errno.ENOMEM),
        _answer(ALLOW),
    ]


def _sockets() -> Code:
    """Unix sockets, streams and datagrams of the internet, and the question for addresses and routes."""
    inet: Code = [
        _argument(1),
        (_AND, 0, 0, SOCK_TYPE),
        (_EQUAL, 2, 0, SOCK_STREAM),
        (_EQUAL, 1, 0, SOCK_DGRAM),
        _refuse(errno.EPERM),
        _answer(ALLOW),
    ]
    netlink: Code = [_argument(2), (_EQUAL, 1, 0, 0), _refuse(errno.EPROTONOSUPPORT), _answer(ALLOW)]
    return [
        _argument(0),
        (_EQUAL, 0, 1, AF_UNIX),
        _answer(ALLOW),
        (_EQUAL, 0, len(netlink), AF_NETLINK),
        *netlink,
        (_EQUAL, 2, 0, AF_INET),
        (_EQUAL, 1, 0, AF_INET6),
        _refuse(errno.EAFNOSUPPORT),
        *inet,
    ]


def _creating(flags: int, mode: int) -> Code:
    return [_argument(flags), (_ANY_BIT, 1, 0, CREATES), _answer(ALLOW), *_refuse_bits(mode, SET_ID)]


def _refuse_bits(argument: int, bits: int) -> Code:
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM), _answer(ALLOW)]


def _refuse_equal(value: int) -> Code:
    return [(_EQUAL, 0, 1, value), _refuse(errno.EPERM)]


def _argument(number: int) -> tuple[int, int, int, int]:
    """Both machines are little-endian: the low half comes first."""
    return (_LOAD, 0, 0, 16 + 8 * number)


def _answer(action: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, action)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return _answer(_ERRNO | number)
