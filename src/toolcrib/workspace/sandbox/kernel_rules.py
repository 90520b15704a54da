"""Kernel restrictions for a command: a system call filter (seccomp) and rules for writing files (Landlock).

In: the machine's architecture, whether a cgroup counts memory, the writable paths. Out: classic BPF for bubblewrap's
`--seccomp`, built here without a library, and Landlock rules that `inner` passes to the kernel. A call is allowed
unless a table names it or an argument is refused; calls of another architecture kill the process. Landlock restricts
only writing; the mounts decide what is readable. Call numbers are a stable kernel interface. `no_children_program` is a
separate filter for programs that must not start others, used by `coding_agents.program_environment`.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Machine:
    audit: int
    """The architecture's number in a filter's data."""
    column: int
    """The architecture's column in CALL_NUMBERS."""
    prlimit: int
    """The number of the prlimit64 call, which `inner` calls directly."""


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "x86_64": Machine(audit=0xC000003E, column=0, prlimit=302),
        "aarch64": Machine(audit=0xC00000B7, column=1, prlimit=261),
    }
)

NEWEST_CALL = 469
"""The newest call that was reviewed. Newer ones get ENOSYS."""

NO_CALL = -1

CALL_NUMBERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "open": (2, NO_CALL),
        "mmap": (9, 222),
        "ioctl": (16, 29),
        "shmget": (29, 194),
        "socket": (41, 198),
        "socketpair": (53, 199),
        "clone": (56, 220),
        "fork": (57, NO_CALL),
        "vfork": (58, NO_CALL),
        "creat": (85, NO_CALL),
        "chmod": (90, NO_CALL),
        "fchmod": (91, 52),
        "ptrace": (101, 117),
        "syslog": (103, 116),
        "mknod": (133, NO_CALL),
        "uselib": (134, NO_CALL),
        "personality": (135, 92),
        "ustat": (136, NO_CALL),
        "sysfs": (139, NO_CALL),
        "vhangup": (153, 58),
        "modify_ldt": (154, NO_CALL),
        "pivot_root": (155, 41),
        "_sysctl": (156, NO_CALL),
        "adjtimex": (159, 171),
        "chroot": (161, 51),
        "acct": (163, 89),
        "settimeofday": (164, 170),
        "mount": (165, 40),
        "umount2": (166, 39),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "reboot": (169, 142),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "iopl": (172, NO_CALL),
        "ioperm": (173, NO_CALL),
        "create_module": (174, NO_CALL),
        "init_module": (175, 105),
        "delete_module": (176, 106),
        "get_kernel_syms": (177, NO_CALL),
        "query_module": (178, NO_CALL),
        "quotactl": (179, 60),
        "nfsservctl": (180, 42),
        "lookup_dcookie": (212, 18),
        "clock_settime": (227, 112),
        "mbind": (237, 235),
        "set_mempolicy": (238, 237),
        "kexec_load": (246, 104),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
        "migrate_pages": (256, 238),
        "openat": (257, 56),
        "mknodat": (259, 33),
        "fchmodat": (268, 53),
        "unshare": (272, 97),
        "move_pages": (279, 239),
        "perf_event_open": (298, 241),
        "fanotify_init": (300, 262),
        "fanotify_mark": (301, 263),
        "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
        "clock_adjtime": (305, 266),
        "setns": (308, 268),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "kcmp": (312, 272),
        "finit_module": (313, 273),
        "memfd_create": (319, 279),
        "kexec_file_load": (320, 294),
        "bpf": (321, 280),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "open_tree": (428, 428),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "clone3": (435, 435),
        "openat2": (437, 437),
        "pidfd_getfd": (438, 438),
        "process_madvise": (440, 440),
        "mount_setattr": (442, 442),
        "quotactl_fd": (443, 443),
        "memfd_secret": (447, 447),
        "set_mempolicy_home_node": (450, 450),
        "fchmodat2": (452, 452),
        "statmount": (457, 457),
        "listmount": (458, 458),
        "open_tree_attr": (467, 467),
    }
)

FORBIDDEN_CALLS = (
    # other places: mounts, roots, namespaces, files by handle
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "setns", "open_by_handle_at", "name_to_handle_at"),
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # the kernel itself
    *("bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module"),
    *("delete_module", "create_module", "query_module", "get_kernel_syms", "iopl", "ioperm", "modify_ldt", "syslog"),
    *("lookup_dcookie", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl", "vhangup", "memfd_secret"),
    # keyrings belong to the uid, across namespaces
    *("add_key", "request_key", "keyctl"),
    # the machine's state
    *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime"),
    *("clock_adjtime", "adjtimex", "sethostname", "setdomainname", "fanotify_init", "fanotify_mark"),
    *("move_pages", "migrate_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
)
"""Answered with EPERM."""

ABSENT_CALLS = (
    # A filter cannot follow pointers; libraries fall back to calls with visible arguments.
    *("clone3", "openat2"),
    # io_uring bypasses the filter.
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "statmount", "listmount"),
)
"""Answered with ENOSYS."""

UNCOUNTED_CALLS = ("memfd_create", "shmget")
"""Memory that belongs to no process, so only a cgroup can count it. Without a cgroup, answered with ENOSYS."""

FORK_CALLS = ("fork", "vfork")
"""Older calls that create a process, where they exist; `clone` also creates threads."""


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
"""O_CREAT and O_TMPFILE; without them the mode is not used."""
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x0040000, 0xFFFFFFFF)
"""Plain Linux, 32 bits, old uname, no random addresses (debuggers), and the query for the current one."""
BAD_IOCTLS = (0x5412, 0x541C, 0x541D)
"""TIOCSTI, TIOCLINUX, TIOCCONS: typing into a terminal, and taking the console."""
SHARED_MEMORY = 0x21
"""MAP_SHARED and MAP_ANONYMOUS."""
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_TYPE, SOCK_STREAM, SOCK_DGRAM = 0xF, 1, 2

Code = list[tuple[int, int, int, int]]


def seccomp_program(machine: str, *, counts_memory: bool) -> bytes:
    """Raises KeyError for an unknown architecture."""
    no_call = [*ABSENT_CALLS, *(() if counts_memory else UNCOUNTED_CALLS)]
    return _program(MACHINES[machine], no_call, FORBIDDEN_CALLS, _checks(counts_memory=counts_memory))


def no_children_program(machine: str) -> bytes:
    """Allows threads but no new processes. Raises KeyError for an unknown architecture."""
    threads: Code = [_argument(0), (_ANY_BIT, 1, 0, NEW_THREAD), _refuse(errno.EPERM), _answer(ALLOW)]
    return _program(MACHINES[machine], ["clone3"], FORK_CALLS, {"clone": threads})


def _program(known: Machine, no_call: Sequence[str], forbidden: Sequence[str], checks: Mapping[str, Code]) -> bytes:
    code: Code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, known.audit),
        _answer(KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Includes x32, whose numbers are far above.
        (_GREATER, 0, 1, NEWEST_CALL),
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
    return [number for name in names if (number := CALL_NUMBERS[name][machine.column]) != NO_CALL]


def _checks(*, counts_memory: bool) -> dict[str, Code]:
    """Checks on arguments, by call. Each ends with an answer. Only the low half of an argument is compared: the kernel
    ignores the rest, so a filter that compared it could be bypassed."""
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
    """Refuses anonymous shared memory: processes could unmap all but a page of it, and no watcher would count it."""
    return [
        _argument(3),
        (_AND, 0, 0, SHARED_MEMORY),
        (_EQUAL, 0, 1, SHARED_MEMORY),
        _refuse(errno.ENOMEM),
        _answer(ALLOW),
    ]


def _sockets() -> Code:
    """Allows Unix sockets, TCP, UDP, and netlink queries for addresses and routes."""
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
    """Both architectures are little-endian, so the low half comes first."""
    return (_LOAD, 0, 0, 16 + 8 * number)


def _answer(action: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, action)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return _answer(_ERRNO | number)


_CREATE_RULESET = 444
_VERSION = 1

_WRITE_FILE = 1 << 1
_MAKE_DEVICES = (1 << 6) | (1 << 11)
_TREE = 0x1FFF & ~0xF & ~_MAKE_DEVICES
"""Creating and removing everything except devices."""
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_DEVICE_IOCTL = 1 << 15
_SCOPES = 0b11
"""Abstract sockets and signals reach only processes with the same rules."""


def landlock_version() -> int:
    """0 if the kernel has no Landlock or it is disabled."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _VERSION)))


def landlock_attributes(abi: int) -> bytes:
    """The handled rights: `struct landlock_ruleset_attr` in the size that this kernel supports."""
    handled = _of_version(_WRITE_FILE | _TREE | _MAKE_DEVICES | _REFER | _TRUNCATE | _DEVICE_IOCTL, abi)
    fields = [handled]
    if abi >= 4:
        fields.append(0)
    if abi >= 6:
        fields.append(_SCOPES)
    return b"".join(field.to_bytes(8, "little") for field in fields)


def landlock_rules(trees: Sequence[bytes], devices: Sequence[bytes], abi: int) -> list[tuple[bytes, int]]:
    """Everything in `trees` may change; `devices` may be written to, not replaced."""
    tree = _of_version(_WRITE_FILE | _TREE | _REFER | _TRUNCATE | _DEVICE_IOCTL, abi)
    device = _of_version(_WRITE_FILE | _TRUNCATE | _DEVICE_IOCTL, abi)
    return [*((path, tree) for path in trees), *((path, device) for path in devices)]


def _of_version(rights: int, abi: int) -> int:
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE_IOCTL)):
        if abi < since:
            rights &= ~right
    return rights
