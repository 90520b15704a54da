"""The filter of system calls, run here by a small machine of our own: for every machine, also those we are not on."""

from __future__ import annotations

import errno
import struct

import hypothesis.strategies as some
import pytest
from hypothesis import given

from toolcrib.workspace.sandbox import kernel_rules
from toolcrib.workspace.sandbox.kernel_rules import (
    ABSENT_CALLS,
    CALL_NUMBERS,
    FORBIDDEN_CALLS,
    FORK_CALLS,
    MACHINES,
    NEWEST_CALL,
    NO_CALL,
    UNCOUNTED_CALLS,
)

pytestmark = pytest.mark.req("FRG-9")

EVERY = pytest.mark.parametrize("machine", MACHINES)
HIGH = 0xFFFFFFFF << 32


def answer(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel would do: a machine for the five instructions that are used."""
    data = struct.pack(
        "=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), audit, 0, *arguments, *[0] * (6 - len(arguments))
    )
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


def ask(machine: str, name: str, *arguments: int, counts_memory: bool = True) -> int:
    program = kernel_rules.seccomp_program(machine, counts_memory=counts_memory)
    known = MACHINES[machine]
    return answer(program, known.audit, CALL_NUMBERS[name][known.column], *arguments)


@EVERY
def test_named_calls_are_refused_and_others_pass(machine: str) -> None:
    program = kernel_rules.seccomp_program(machine, counts_memory=True)
    known = MACHINES[machine]
    named = {CALL_NUMBERS[name][known.column]: refused(errno.EPERM) for name in FORBIDDEN_CALLS}
    named |= {CALL_NUMBERS[name][known.column]: refused(errno.ENOSYS) for name in ABSENT_CALLS}
    checked = {CALL_NUMBERS[name][known.column] for name in kernel_rules._checks(counts_memory=True)}
    for number in range(NEWEST_CALL + 1):
        if number not in checked:
            assert answer(program, known.audit, number) == named.get(number, kernel_rules.ALLOW), number


@EVERY
@given(number=some.integers(NEWEST_CALL + 1, 0xFFFFFFFF))
def test_calls_that_nobody_looked_at_are_not_there(machine: str, number: int) -> None:
    program = kernel_rules.seccomp_program(machine, counts_memory=True)
    assert answer(program, MACHINES[machine].audit, number) == refused(errno.ENOSYS)


@EVERY
@given(audit=some.integers(0, 0xFFFFFFFF), number=some.integers(0, 0xFFFFFFFF))
def test_calls_of_another_machine_end_the_process(machine: str, audit: int, number: int) -> None:
    if audit != MACHINES[machine].audit:
        assert answer(kernel_rules.seccomp_program(machine, counts_memory=True), audit, number) == kernel_rules.KILL


@EVERY
def test_every_name_has_a_number_once(machine: str) -> None:
    column = MACHINES[machine].column
    numbers = [pair[column] for pair in CALL_NUMBERS.values() if pair[column] != NO_CALL]
    assert len(numbers) == len(set(numbers))
    assert {
        *FORBIDDEN_CALLS,
        *ABSENT_CALLS,
        *UNCOUNTED_CALLS,
        *FORK_CALLS,
        *kernel_rules._checks(counts_memory=False),
    } == set(CALL_NUMBERS)


@EVERY
@given(high=some.integers(0, 0xFFFFFFFF))
def test_a_program_without_children_makes_threads_and_no_process(machine: str, high: int) -> None:
    program, known = kernel_rules.no_children_program(machine), MACHINES[machine]

    def asked(name: str, *arguments: int) -> int:
        return answer(program, known.audit, CALL_NUMBERS[name][known.column], *arguments)

    assert asked("clone", 0x003D0F00 | high << 32) == kernel_rules.ALLOW
    # As `fork`, `vfork` and `posix_spawn` of the C library ask for it.
    for flags in (0x01200011, 0x4111, 0x4100):
        assert asked("clone", flags | high << 32) == refused(errno.EPERM)
    assert asked("clone3") == refused(errno.ENOSYS)
    assert {asked(name) for name in FORK_CALLS if CALL_NUMBERS[name][known.column] != NO_CALL} <= {refused(errno.EPERM)}
    assert asked("openat") == kernel_rules.ALLOW


@EVERY
@given(high=some.integers(0, 0xFFFFFFFF))
def test_namespaces_are_refused_whatever_stands_above(machine: str, high: int) -> None:
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        for name in ("clone", "unshare"):
            assert ask(machine, name, flag | 17 | high << 32) == refused(errno.EPERM)
    # Threads and children as every program makes them.
    assert ask(machine, "clone", 0x003D0F00) == ask(machine, "clone", 0x01200011) == kernel_rules.ALLOW
    assert ask(machine, "unshare", 0x400) == kernel_rules.ALLOW
    assert ask(machine, "unshare", 0x80) == refused(errno.EPERM)


@EVERY
@given(
    family=some.integers(0, 60),
    style=some.integers(0, 10),
    flags=some.sampled_from([0, 0o2000000, 0o4000]),
    protocol=some.integers(0, 30),
)
def test_sockets(machine: str, family: int, style: int, flags: int, protocol: int) -> None:
    got = ask(machine, "socket", family | HIGH, style | flags, protocol)
    if family == 1:
        expected = kernel_rules.ALLOW
    elif family in {2, 10}:
        expected = kernel_rules.ALLOW if style in {1, 2} else refused(errno.EPERM)
    elif family == 16:
        expected = kernel_rules.ALLOW if protocol == 0 else refused(errno.EPROTONOSUPPORT)
    else:
        expected = refused(errno.EAFNOSUPPORT)
    assert got == expected
    assert ask(machine, "socketpair", family) == (kernel_rules.ALLOW if family == 1 else refused(errno.EAFNOSUPPORT))


@EVERY
@given(mode=some.integers(0, 0o7777))
def test_no_file_gets_the_right_to_be_somebody_else(machine: str, mode: int) -> None:
    expected = refused(errno.EPERM) if mode & 0o6000 else kernel_rules.ALLOW
    assert ask(machine, "fchmod", 3, mode) == expected
    assert ask(machine, "fchmodat", 3, 0, mode) == expected
    assert ask(machine, "fchmodat2", 3, 0, mode, 0) == expected
    assert ask(machine, "mknodat", 3, 0, 0o100000 | mode) == expected
    assert ask(machine, "openat", 3, 0, 0o101, mode) == expected
    assert ask(machine, "openat", 3, 0, 0o20200001, mode) == expected
    # Without O_CREAT it is no mode but whatever the register held.
    assert ask(machine, "openat", 3, 0, 0o2, mode) == kernel_rules.ALLOW


@EVERY
@given(code=some.integers(0, 0xFFFFFFFF), high=some.integers(0, 0xFFFFFFFF))
def test_terminals_cannot_be_typed_into(machine: str, code: int, high: int) -> None:
    bad = {0x5412, 0x541C, 0x541D}
    for value in (code, *bad):
        expected = refused(errno.EPERM) if value in bad else kernel_rules.ALLOW
        assert ask(machine, "ioctl", 0, value | high << 32) == expected


@EVERY
def test_memory_that_no_process_has_is_only_there_where_it_is_counted(machine: str) -> None:
    for name in UNCOUNTED_CALLS:
        assert ask(machine, name) == kernel_rules.ALLOW
        assert ask(machine, name, counts_memory=False) == refused(errno.ENOSYS)


def test_an_unknown_machine_is_no_machine() -> None:
    with pytest.raises(KeyError):
        kernel_rules.seccomp_program("mips", counts_memory=True)


@EVERY
def test_the_program_is_short_enough_for_the_kernel(machine: str) -> None:
    assert len(kernel_rules.seccomp_program(machine, counts_memory=False)) // 8 < 4096


@EVERY
@given(more=some.integers(0, 0xFFFFFFFF))
def test_shared_memory_without_a_file_is_refused_where_nothing_counts_it(machine: str, more: int) -> None:
    private, file, shared = 0x22, 0x01, 0x21
    assert ask(machine, "mmap", 0, 1, 3, shared | more << 32) == kernel_rules.ALLOW
    for flags, expected in (
        (shared | (more & ~shared) | HIGH, refused(errno.ENOMEM)),
        (private | (more & ~shared), kernel_rules.ALLOW),
        (file | (more & ~shared), kernel_rules.ALLOW),
    ):
        assert ask(machine, "mmap", 0, 1, 3, flags, counts_memory=False) == expected
