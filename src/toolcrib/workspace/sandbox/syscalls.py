"""The numbers of the system calls that the sandbox's filter speaks about, for the machines that it knows.

In: nothing. Out: tables. `seccomp` makes a program of them. The numbers are the kernel's interface and never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Machine:
    audit: int
    """How the kernel names this machine's calls in a filter's data."""
    column: int
    """Which number of a pair in NUMBERS is this machine's."""
    prlimit: int
    """The number of the call that sets limits; `inner` makes it by hand."""


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "x86_64": Machine(audit=0xC000003E, column=0, prlimit=302),
        "aarch64": Machine(audit=0xC00000B7, column=1, prlimit=261),
    }
)

NEWEST = 469
"""The newest call that was looked at; what a later kernel adds is answered as if it were not there."""

NONE = -1

NUMBERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "open": (2, NONE),
        "mmap": (9, 222),
        "ioctl": (16, 29),
        "shmget": (29, 194),
        "socket": (41, 198),
        "socketpair": (53, 199),
        "clone": (56, 220),
        "fork": (57, NONE),
        "vfork": (58, NONE),
        "creat": (85, NONE),
        "chmod": (90, NONE),
        "fchmod": (91, 52),
        "ptrace": (101, 117),
        "syslog": (103, 116),
        "mknod": (133, NONE),
        "uselib": (134, NONE),
        "personality": (135, 92),
        "ustat": (136, NONE),
        "sysfs": (139, NONE),
        "vhangup": (153, 58),
        "modify_ldt": (154, NONE),
        "pivot_root": (155, 41),
        "_sysctl": (156, NONE),
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
        "iopl": (172, NONE),
        "ioperm": (173, NONE),
        "create_module": (174, NONE),
        "init_module": (175, 105),
        "delete_module": (176, 106),
        "get_kernel_syms": (177, NONE),
        "query_module": (178, NONE),
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

FORBIDDEN = (
    # other places: mounts, roots, namespaces, files by handle
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "setns", "open_by_handle_at", "name_to_handle_at"),
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # the kernel itself
    *("bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module"),
    *("delete_module", "create_module", "query_module", "get_kernel_syms", "iopl", "ioperm", "modify_ldt", "syslog"),
    *("lookup_dcookie", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl", "vhangup", "memfd_secret"),
    # keys of the user's session are kept by uid, whatever the namespace
    *("add_key", "request_key", "keyctl"),
    # the machine's state
    *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime"),
    *("clock_adjtime", "adjtimex", "sethostname", "setdomainname", "fanotify_init", "fanotify_mark"),
    *("move_pages", "migrate_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
)
"""Answered with EPERM."""

NOT_THERE = (
    # A filter cannot look behind a pointer; libraries fall back to the call whose arguments it can see.
    *("clone3", "openat2"),
    # io_uring does what other calls do without asking the filter.
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "statmount", "listmount"),
)
"""Answered with ENOSYS."""

UNCOUNTED = ("memfd_create", "shmget")
"""Memory that belongs to no process, so only a cgroup can count it; where there is none, answered with ENOSYS."""

FORKS = ("fork", "vfork")
"""The old ways to make a process, on machines that have them; `clone` makes threads, too."""
