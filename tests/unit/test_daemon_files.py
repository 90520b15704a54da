"""The daemon's own files: its lock, the owner's token, its info file and its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parts.waiting import until
from toolcrib.config.masking import Masker
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.daemon.log import log_to
from toolcrib.daemon.process import Daemon, owner_token
from toolcrib.daemon_client.lifetime import DaemonLifetime, daemon_lock, read_info, write_info
from toolcrib.errors import AlreadyRunning, ConfigError, StoreError

pytestmark = pytest.mark.req("KSI-1")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of_user({"TOOLCRIB_HOME": str(tmp_path / "home")})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def answering(paths: Paths) -> Iterator[None]:
    """A daemon's socket that accepts connections."""
    paths.run_dir.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.socket))
        listener.listen()
        yield


def refused(paths: Paths, message: str | None = None) -> AlreadyRunning:
    with pytest.raises(AlreadyRunning, match=message) as caught, daemon_lock(paths):
        pass
    return caught.value


@pytest.mark.usefixtures("answering")
def test_only_one_process_holds_the_lock_and_the_others_get_its_pid(paths: Paths) -> None:
    with daemon_lock(paths):
        assert (mode(paths.lock), mode(paths.run_dir)) == (0o600, 0o700)
        error = refused(paths)
        assert ("toolcrib down" in error.remedy, error.exit_code) == (True, 8)
        write_info(paths, {"pid": 42, "endpoint": "http://127.0.0.1:1/mcp"})
        refused(paths, r"\(pid 42, http://127.0.0.1:1/mcp\)")
        for info in ("", "{", "[]", "{}", '{"pid":1}', "null", "\x00"):
            paths.daemon_info.write_text(info)
            refused(paths)
    with daemon_lock(paths):
        pass


def test_a_daemon_waits_for_a_command_that_holds_the_lock(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """The info file that a killed daemon left must not be mistaken for a running one."""
    let_go = contextlib.ExitStack()
    let_go.enter_context(daemon_lock(paths))
    write_info(paths, {"pid": 42, "endpoint": "http://127.0.0.1:1/mcp"})
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        let_go.close()

    monkeypatch.setattr("toolcrib.daemon_client.lifetime.time.sleep", wait)
    with daemon_lock(paths):
        assert len(waits) == 1


def test_the_lock_of_a_killed_process_is_free_at_once(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.daemon_client.lifetime._PATIENCE", 0.0)
    code = (
        "import os, sys, time; from pathlib import Path; from toolcrib.config.paths import Paths;"
        "from toolcrib.daemon_client.lifetime import daemon_lock\n"
        "with daemon_lock(Paths.of_user(os.environ)): print('held', flush=True); time.sleep(600)"
    )
    environ = {**os.environ, "TOOLCRIB_HOME": str(paths.config_dir)}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        refused(paths, "Another command is making changes")
        other.kill()
        other.wait(60)
    with daemon_lock(paths):
        assert paths.lock.exists()


def test_the_info_file_is_private_and_replaced_atomically(paths: Paths) -> None:
    assert read_info(paths) is None
    private_folder(paths.run_dir)
    write_info(paths, {"pid": 1})
    write_info(paths, {"pid": 2})
    assert read_info(paths) == json.loads(paths.daemon_info.read_text()) == {"pid": 2}
    assert mode(paths.daemon_info) == 0o600
    assert [path.name for path in paths.run_dir.iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("umask", [0o022, 0])
def test_the_owners_token_is_created_once_and_private(paths: Paths, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        first = owner_token(paths.owner_token)
    finally:
        os.umask(before)
    assert len(first) >= 43
    assert (mode(paths.owner_token), mode(paths.state_dir)) == (0o600, 0o700)
    assert owner_token(paths.owner_token) == first != owner_token(tmp_path / "other" / "t")


def test_a_token_file_that_others_can_access_or_without_a_token_is_refused(paths: Paths) -> None:
    owner_token(paths.owner_token)
    for bits in (0o644, 0o640, 0o620, 0o601):
        paths.owner_token.chmod(bits)
        with pytest.raises(ConfigError, match=f"{bits:o}") as caught:
            owner_token(paths.owner_token)
        assert "chmod 600" in caught.value.remedy
    paths.owner_token.chmod(0o600)
    for content in ("", "\n", "short", " " * 50):
        paths.owner_token.write_text(content)
        with pytest.raises(ConfigError, match="contains no token"):
            owner_token(paths.owner_token)


def test_a_token_that_could_not_be_written_leaves_no_file(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        owner_token(paths.owner_token)
    monkeypatch.undo()
    assert not paths.owner_token.exists()
    assert owner_token(paths.owner_token)


def test_a_private_folder_is_closed_to_others_also_behind_an_own_link(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o755)
    (tmp_path / "run").symlink_to("own")
    private_folder(tmp_path / "run")
    assert mode(tmp_path / "own") == 0o700


def test_a_folder_that_cannot_be_created_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=str(tmp_path / "file")) as caught:
        private_folder(tmp_path / "file" / "run")
    assert "TOOLCRIB_HOME" in caught.value.remedy
    assert unusable_path(OSError("odd"), tmp_path).message == f"{tmp_path} cannot be used: odd."


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("given_away", ["folder", "folder behind a link", "link"])
def test_a_folder_or_link_of_another_user_is_not_used(tmp_path: Path, given_away: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o777)
    run = there if given_away == "folder" else tmp_path / "run"
    if run is not there:
        run.symlink_to("there")
    os.chown(run if given_away == "link" else there, 12345, 12345, follow_symlinks=False)
    with pytest.raises(StoreError, match="belongs to another user") as caught:
        private_folder(run)
    assert str(run) in caught.value.message
    assert mode(there) == 0o777


def test_the_log_is_private_and_masked_and_has_others_lines_only_from_warning_on(tmp_path: Path) -> None:
    file = tmp_path / "state" / "toolcrib.log"
    root = logging.getLogger()
    levels = root.level, logging.getLogger("toolcrib").level
    handler = log_to(file, "info", Masker(["hunter2hunter2"]))
    try:
        logging.getLogger("toolcrib.test").info("ours")
        logging.getLogger("somebody").info("theirs")
        logging.getLogger("somebody").warning("a warning, aHVudGVyMmh1bnRlcjI")
        try:
            raise ValueError("hunter2hunter2")
        except ValueError:
            logging.getLogger("toolcrib.test").exception("failed")
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(levels[0])
        logging.getLogger("toolcrib").setLevel(levels[1])
    text = file.read_text()
    assert "ours" in text
    assert "a warning" in text
    assert "theirs" not in text
    assert "ValueError: ****" in text
    assert "hunter2" not in text
    assert "aHVudGVyMmh1bnRlcjI" not in text
    assert mode(file) == 0o600


async def test_a_stopping_daemon_does_not_reload(paths: Paths, tmp_path: Path) -> None:
    reloads: list[str] = []

    async def reload() -> None:
        reloads.append("reload")

    crib: Any = SimpleNamespace(projects=SimpleNamespace(editing=asyncio.Lock(), reload=reload))
    daemon = Daemon(paths, tmp_path, Flags(), DaemonLifetime.UNTIL_STOPPED)
    daemon._in_terminal = False
    daemon._hang_up(crib)
    await until(lambda: reloads, "the reload of a running daemon")
    daemon.stop()
    daemon._hang_up(crib)
    for _ in range(10):
        await asyncio.sleep(0)
    assert reloads == ["reload"]
