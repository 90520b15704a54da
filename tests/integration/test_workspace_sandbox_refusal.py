"""Where the sandbox does not hold, no code is run: the reason and the remedy are said, and file tools go on."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import opened, python, shell, usual
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import CommandEnding, Sandbox, SandboxCommand, kernel_rules, mount_namespace, system
from toolcrib.workspace.sandbox import sandbox as selftest
from toolcrib.workspace.settings.model import DEFAULTS, WorkspaceSettings

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "a.txt").write_text("here\n")
    return place


@asynccontextmanager
async def tried(
    root: Path, environ: Mapping[str, str] | None = None, settings: WorkspaceSettings = DEFAULTS
) -> AsyncIterator[Sandbox]:
    folder = Folder(root)
    sandbox = await Sandbox.open(folder, settings, environ=environ or usual())
    try:
        yield sandbox
    finally:
        await sandbox.close()
        folder.close()


async def check_refusal(sandbox: Sandbox, reason: str, remedy: str) -> None:
    assert sandbox.refusal is not None
    assert reason in sandbox.refusal.message
    assert remedy in sandbox.refusal.remedy
    assert "File tools still work" in sandbox.refusal.remedy
    assert sandbox.describe()["sandbox"] == "refused"
    mark = sandbox.folder.root / "ran"
    with pytest.raises(WorkspaceError) as raised:
        await sandbox.run(SandboxCommand(argv=("touch", str(mark)), seconds=5))
    assert raised.value is sandbox.refusal
    assert not mark.exists()
    # File tools need no sandbox.
    descriptor = sandbox.folder.open_file(sandbox.folder.path_of("a.txt"))
    assert os.read(descriptor, 10) == b"here\n"
    os.close(descriptor)


def program(place: Path, text: str) -> dict[str, str]:
    """A path on which this stands in for bubblewrap."""
    place.mkdir(exist_ok=True)
    (place / "bwrap").write_text(f"#!/bin/sh\n{text}\n")
    (place / "bwrap").chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


async def test_without_bubblewrap(root: Path, tmp_path: Path) -> None:
    async with tried(root, {"PATH": str(tmp_path)}) as sandbox:
        await check_refusal(sandbox, "bubblewrap is not installed", "apt install bubblewrap")


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("echo bubblewrap 0.6.1", "0.6.1", "0.8 or newer"),
        ("exit 1", "has version ''", "0.8 or newer"),
        (
            "[ $1 = --version ] && echo bubblewrap 0.9.0 && exit;"
            "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1",
            "setting up uid map: Permission denied",
            "namespaces",
        ),
        ("[ $1 = --version ] && echo bubblewrap 0.9.0 && exit; kill -9 $$", "could not be created", "workspace check"),
    ],
)
async def test_with_a_bubblewrap_that_does_not_work(
    root: Path, tmp_path: Path, text: str, reason: str, remedy: str
) -> None:
    async with tried(root, program(tmp_path / "bin", text)) as sandbox:
        await check_refusal(sandbox, reason, remedy)


async def test_with_a_bubblewrap_that_only_says_it_confines(root: Path, tmp_path: Path) -> None:
    """It runs what it is told and leaves out what would confine it."""
    real = shutil.which("bwrap")
    text = f'[ $1 = --version ] && exec {real} --version\nwhile [ $1 != -- ]; do shift; done; shift; exec "$@"'
    async with tried(root, program(tmp_path / "bin", text)) as sandbox:
        await check_refusal(sandbox, "is not a sandbox", "")


async def test_without_landlock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_rules, "landlock_version", lambda: 0)
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "no Landlock", "5.13")


async def test_with_landlock_that_is_not_in_force(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_rules, "landlock_attributes", lambda _abi: b"")
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "Landlock is not active", "")


async def test_with_a_filter_that_lets_calls_pass(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_all = bytes.fromhex("0600 00 00 0000ff7f".replace(" ", ""))
    monkeypatch.setattr(kernel_rules, "seccomp_program", lambda _machine, counts_memory: allow_all)
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "dangerous system calls are refused", "")


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("--unshare-net", "no network, no socket from outside"),
        ("--remount-ro /", "nothing outside can be changed"),
        ("--cap-drop ALL", "no capabilities"),
    ],
)
async def test_with_one_wall_missing(root: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, reason: str) -> None:
    """Each wall is tried by itself: without it the self-test says so."""
    wanted = left_out.split()
    words = system.BubblewrapArguments.to_list

    def fewer(shell: system.BubblewrapArguments) -> list[str]:
        return _without(words(shell), wanted)

    monkeypatch.setattr(system.BubblewrapArguments, "to_list", fewer)
    monkeypatch.setattr(system, "CLOSING_ARGUMENTS", tuple(_without(list(system.CLOSING_ARGUMENTS), wanted)))
    # Landlock would still forbid it; here it is the mounts that are tried.
    if wanted[0] == "--remount-ro":
        monkeypatch.setattr(kernel_rules, "landlock_attributes", lambda _abi: b"")
    async with tried(root) as sandbox:
        if wanted[0] == "--cap-drop" and os.geteuid() != 0:
            pytest.skip("bubblewrap drops them by itself unless root runs it")
        failed = {probe.name for probe in sandbox.probes if not probe.held}
        assert any(reason in name for name in failed), sandbox.probes
        assert sandbox.refusal is not None


def _without(words: list[str], wanted: list[str]) -> list[str]:
    for at in range(len(words) - len(wanted) + 1):
        if words[at : at + len(wanted)] == wanted:
            return words[:at] + words[at + len(wanted) :]
    return words


async def test_where_a_process_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_processes_with", lambda _canary: "4242")
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "process 4242 still runs", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="a matter of root")
async def test_as_root_without_a_way_to_leave_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = tmp_path / "only"
    only.mkdir()
    (only / "bwrap").symlink_to(str(shutil.which("bwrap")))
    async with tried(root, {"PATH": str(only)}) as sandbox:
        await check_refusal(sandbox, "nsenter is not installed", "util-linux")

    def fails(*_words: object) -> mount_namespace.MountNamespace:
        raise OSError("unshare: Operation not permitted")

    monkeypatch.setattr(mount_namespace, "build_mount_namespace", fails)
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "Operation not permitted", "container")


async def test_on_other_systems(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.sys, "platform", "darwin")
    async with tried(root) as sandbox:
        await check_refusal(sandbox, "no sandbox for darwin", "Use Linux")
    monkeypatch.setattr(system.sys, "platform", "linux")
    monkeypatch.setattr(system.platform, "machine", lambda: "riscv64")
    async with tried(root) as sandbox:
        assert sandbox.refusal is not None
        assert "riscv64" in sandbox.refusal.message


@pytest.mark.parametrize(
    ("content", "setting"),
    [("1", "apparmor_restrict_unprivileged_userns=0"), ("0", "unprivileged_userns_clone=1")],
)
def test_switched_off_namespaces_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, setting: str
) -> None:
    (tmp_path / "switch").write_text(f"{content}\n")
    monkeypatch.setattr(system, "_SWITCHES", ((str(tmp_path / "switch"), content, f"kernel.{setting}"),))
    assert f"sysctl -w kernel.{setting}" in system.sandbox_remedy("Permission denied")


async def test_a_sandbox_that_holds_says_what_holds_it(root: Path) -> None:
    async with opened(root) as sandbox:
        said = sandbox.describe()
    assert said["sandbox"] == "bubblewrap"
    assert said["landlock"] >= 1
    assert said["bubblewrap"].startswith("bubblewrap ")
    assert {probe["name"] for probe in said["probes"]} == set(selftest.PROBE_NAMES.values())
    assert all(probe["held"] for probe in said["probes"])


async def test_after_closing_nothing_is_run(root: Path) -> None:
    async with opened(root) as sandbox:
        pass
    with pytest.raises(WorkspaceError, match="closed"):
        await shell(sandbox, "touch ran")
    assert not (root / "ran").exists()


async def test_unsafe_is_loud_and_still_has_limits(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {**usual(), "SECRET": "canary", "HOME": str(root.parent)}
    with caplog.at_level(logging.WARNING):
        async with opened(root, environ=environ, unsafe=True) as sandbox:
            assert sandbox.unsafe
            assert sandbox.describe()["unsafe"] is True
            outside = await shell(sandbox, f"touch {root.parent}/outside; env; pwd")
            late = await shell(sandbox, "sleep 600 & sleep 600", seconds=0.5)
            big = await python(sandbox, "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE))")
    assert "WITHOUT A SANDBOX" in caplog.text
    assert (root.parent / "outside").exists()
    assert "canary" not in outside.stdout.text()
    assert outside.stdout.text().endswith(f"{root}\n")
    assert late.ending is CommandEnding.TIMEOUT
    limit = DEFAULTS.limits.file_size
    assert big.stdout.text() == f"({limit}, {limit})\n"


async def test_the_network_is_there_if_the_settings_say_so(root: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as door:
        async with opened(root, replace(DEFAULTS, network=True)) as sandbox:
            finished = await python(
                sandbox,
                "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('reached')",
                str(door.getsockname()[1]),
            )
            raw = await python(sandbox, "import socket; socket.socket(17, 3)")
    assert finished.stdout.text() == "reached\n", finished.stderr.text()
    assert raw.code != 0
