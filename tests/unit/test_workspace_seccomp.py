"""The seccomp filters of every machine, run by a small interpreter."""

from __future__ import annotations

import errno
import struct

import hypothesis.strategies as st
import pytest
from hypothesis import given

from toolcrib.workspace.sandbox import kernel_rules
from toolcrib.workspace.sandbox.kernel_rules import ALLOW, CALL_NUMBERS, FORK_CALLS, MACHINES, NEWEST_CALL, NO_CALL

pytestmark = pytest.mark.req("FRG-9")

every_machine = pytest.mark.parametrize("machine", MACHINES)
HIGH = 0xFFFFFFFF << 32
numbers = st.integers(0, 0xFFFFFFFF)


def verdict(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """The kernel's verdict; interprets the five instructions that the filters use."""
    signed = number if number < 1 << 31 else number - (1 << 32)
    data = struct.pack("=iIQ6Q", signed, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: bool(accumulator & value)}[code]
            at += if_true if holds else if_false


def refused(number: int) -> int:
    return 0x00050000 | number


def program_of(machine: str, counts_memory: bool = True) -> bytes:
    return kernel_rules.seccomp_program(machine, counts_memory=counts_memory)


def number_of(machine: str, name: str) -> int:
    return CALL_NUMBERS[name][MACHINES[machine].column]


def check(machine: str, name: str, *arguments: int, counts_memory: bool = True) -> int:
    program = program_of(machine, counts_memory)
    return verdict(program, MACHINES[machine].audit, number_of(machine, name), *arguments)


@every_machine
def test_named_calls_are_refused_and_others_allowed(machine: str):
    program, audit = program_of(machine), MACHINES[machine].audit
    named = {number_of(machine, name): refused(errno.EPERM) for name in kernel_rules.FORBIDDEN_CALLS}
    named |= {number_of(machine, name): refused(errno.ENOSYS) for name in kernel_rules.ABSENT_CALLS}
    checked = {number_of(machine, name) for name in kernel_rules._checks(counts_memory=True)}
    for number in set(range(NEWEST_CALL + 1)) - checked:
        assert verdict(program, audit, number) == named.get(number, ALLOW), number


@every_machine
@given(audit=numbers, number=numbers, newer=st.integers(NEWEST_CALL + 1, 0xFFFFFFFF))
def test_calls_newer_than_the_list_are_missing_and_calls_of_another_machine_end_the_process(
    machine: str, audit: int, number: int, newer: int
):
    program = program_of(machine)
    assert verdict(program, MACHINES[machine].audit, newer) == refused(errno.ENOSYS)
    if audit != MACHINES[machine].audit:
        assert verdict(program, audit, number) == kernel_rules.KILL


@every_machine
def test_every_name_has_its_own_number_and_the_program_fits_the_kernel(machine: str):
    found = [number_of(machine, name) for name in CALL_NUMBERS if number_of(machine, name) != NO_CALL]
    assert len(found) == len(set(found))
    lists = (kernel_rules.FORBIDDEN_CALLS, kernel_rules.ABSENT_CALLS, kernel_rules.UNCOUNTED_CALLS, FORK_CALLS)
    assert set(CALL_NUMBERS) == {*kernel_rules._checks(counts_memory=False)}.union(*lists)
    assert len(program_of(machine, counts_memory=False)) // 8 < 4096
    with pytest.raises(KeyError):
        program_of("mips")


@every_machine
@given(high=numbers)
def test_a_program_without_children_creates_threads_but_no_process(machine: str, high: int):
    program, audit = kernel_rules.no_children_program(machine), MACHINES[machine].audit

    def call(name: str, *arguments: int) -> int:
        return verdict(program, audit, number_of(machine, name), *arguments)

    assert call("clone", 0x003D0F00 | high << 32) == ALLOW
    # The flags of `fork`, `vfork` and `posix_spawn` in the C library.
    for flags in (0x01200011, 0x4111, 0x4100):
        assert call("clone", flags | high << 32) == refused(errno.EPERM)
    assert call("clone3") == refused(errno.ENOSYS)
    assert {call(name) for name in FORK_CALLS if number_of(machine, name) != NO_CALL} <= {refused(errno.EPERM)}
    assert call("openat") == ALLOW


@every_machine
@given(high=numbers)
def test_namespaces_are_refused_with_any_upper_half(machine: str, high: int):
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        for name in ("clone", "unshare"):
            assert check(machine, name, flag | 17 | high << 32) == refused(errno.EPERM)
    # Threads and ordinary child processes.
    assert check(machine, "clone", 0x003D0F00) == check(machine, "clone", 0x01200011) == ALLOW
    assert check(machine, "unshare", 0x400) == ALLOW
    assert check(machine, "unshare", 0x80) == refused(errno.EPERM)


@every_machine
@given(
    family=st.integers(0, 60),
    style=st.integers(0, 10),
    flags=st.sampled_from([0, 0o2000000, 0o4000]),
    protocol=st.integers(0, 30),
)
def test_only_local_and_internet_sockets_are_allowed(machine: str, family: int, style: int, flags: int, protocol: int):
    expected = refused(errno.EAFNOSUPPORT)
    if family == 1:
        expected = ALLOW
    elif family in {2, 10}:
        expected = ALLOW if style in {1, 2} else refused(errno.EPERM)
    elif family == 16:
        expected = ALLOW if protocol == 0 else refused(errno.EPROTONOSUPPORT)
    assert check(machine, "socket", family | HIGH, style | flags, protocol) == expected
    assert check(machine, "socketpair", family) == (ALLOW if family == 1 else refused(errno.EAFNOSUPPORT))


@every_machine
@given(mode=st.integers(0, 0o7777))
def test_no_file_becomes_setuid(machine: str, mode: int):
    expected = refused(errno.EPERM) if mode & 0o6000 else ALLOW
    for name, *arguments in (
        ("fchmod", 3, mode),
        ("fchmodat", 3, 0, mode),
        ("fchmodat2", 3, 0, mode, 0),
        ("mknodat", 3, 0, 0o100000 | mode),
        ("openat", 3, 0, 0o101, mode),
        ("openat", 3, 0, 0o20200001, mode),
    ):
        assert check(machine, name, *arguments) == expected
    # Without O_CREAT the argument is not a mode.
    assert check(machine, "openat", 3, 0, 0o2, mode) == ALLOW


@every_machine
@given(code=numbers, high=numbers)
def test_no_input_is_pushed_into_a_terminal(machine: str, code: int, high: int):
    bad = {0x5412, 0x541C, 0x541D}
    for value in (code, *bad):
        expected = refused(errno.EPERM) if value in bad else ALLOW
        assert check(machine, "ioctl", 0, value | high << 32) == expected


@every_machine
@given(more=numbers)
def test_shared_memory_without_a_process_or_file_is_refused_if_nothing_counts_it(machine: str, more: int):
    for name in kernel_rules.UNCOUNTED_CALLS:
        assert check(machine, name) == ALLOW
        assert check(machine, name, counts_memory=False) == refused(errno.ENOSYS)
    private, file, shared = 0x22, 0x01, 0x21
    assert check(machine, "mmap", 0, 1, 3, shared | more << 32) == ALLOW
    for flags, expected in (
        (shared | (more & ~shared) | HIGH, refused(errno.ENOMEM)),
        (private | (more & ~shared), ALLOW),
        (file | (more & ~shared), ALLOW),
    ):
        assert check(machine, "mmap", 0, 1, 3, flags, counts_memory=False) == expected
