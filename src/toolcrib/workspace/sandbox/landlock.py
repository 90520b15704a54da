"""Landlock: the kernel's rules for which files a process and its children may change.

In: nothing, or what shall be writable. Out: which version the kernel has, and the rules as `inner` gives them to the
kernel. Only changing is ruled; what can be read is what is mounted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

_CREATE_RULESET = 444
_VERSION = 1

_WRITE_FILE = 1 << 1
_MAKE_DEVICES = (1 << 6) | (1 << 11)
_TREE = 0x1FFF & ~0xF & ~_MAKE_DEVICES
"""Removing and making whatever is no device."""
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_DEVICE_IOCTL = 1 << 15
_SCOPES = 0b11
"""Abstract sockets and signals stay among those that share the rules."""


def version() -> int:
    """0 where the kernel has no Landlock or has it switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _VERSION)))


def attributes(abi: int) -> bytes:
    """What is ruled at all: `struct landlock_ruleset_attr`, as long as this kernel knows it."""
    handled = _of_version(_WRITE_FILE | _TREE | _MAKE_DEVICES | _REFER | _TRUNCATE | _DEVICE_IOCTL, abi)
    words = [handled]
    if abi >= 4:
        words.append(0)
    if abi >= 6:
        words.append(_SCOPES)
    return b"".join(word.to_bytes(8, "little") for word in words)


def rules(trees: Sequence[bytes], devices: Sequence[bytes], abi: int) -> list[tuple[bytes, int]]:
    """Everything in `trees` may change; `devices` may be written to, not replaced."""
    tree = _of_version(_WRITE_FILE | _TREE | _REFER | _TRUNCATE | _DEVICE_IOCTL, abi)
    device = _of_version(_WRITE_FILE | _TRUNCATE | _DEVICE_IOCTL, abi)
    return [*((path, tree) for path in trees), *((path, device) for path in devices)]


def _of_version(rights: int, abi: int) -> int:
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE_IOCTL)):
        if abi < since:
            rights &= ~right
    return rights
