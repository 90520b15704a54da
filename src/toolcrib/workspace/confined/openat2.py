"""The system call openat2, which Python does not have.

In: a folder's descriptor, a path and flags. Out: a descriptor of something beneath that folder, or the system's error.
`beneath` decides what to do where the kernel lacks it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

_NUMBER = 437
"""The same on every architecture that we can run on."""
_NO_MAGICLINKS = 0x02
_BENEATH = 0x08


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _syscall() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)
    call.restype = ctypes.c_long
    return call


def openat2(folder: int, path: bytes, flags: int) -> int:
    """Opens what lies beneath the folder, whatever links, `..` and renames do meanwhile."""
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS)
    opened = _syscall()(_NUMBER, folder, path, ctypes.byref(how), ctypes.sizeof(how))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return opened
