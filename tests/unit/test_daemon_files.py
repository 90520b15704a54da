"""The daemon's own files: a lock for one, a token for the owner, a word about itself that is whole or not there."""

from __future__ import annotations

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

import pytest

from toolcrib.config.masking import Masker
from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.daemon.log import log_to
from toolcrib.daemon.process import owner_token
from toolcrib.daemon_client.lifetime import daemon_lock, read_info, write_info
from toolcrib.errors import AlreadyRunning, ConfigError, StoreError

pytestmark = pytest.mark.req("KSI-1")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of_user({"TOOLCRIB_HOME": str(tmp_path / "home")})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def answering(paths: Paths) -> Iterator[None]:
    """A daemon's socket that takes connections."""
    paths.run_dir.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.socket))
        listener.listen()
        yield


@pytest.mark.usefixtures("answering")
def test_the_lock_is_held_by_one(paths: Paths) -> None:
    with daemon_lock(paths):
        assert mode(paths.lock) == 0o600
        assert mode(paths.run_dir) == 0o700
        with pytest.raises(AlreadyRunning) as caught, daemon_lock(paths):
            pass
        assert "toolcrib down" in caught.value.remedy
        assert caught.value.exit_code == 8
    with daemon_lock(paths):
        pass


def test_a_command_that_holds_the_lock_is_waited_for(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over in a moment; what a killed daemon left behind must not be taken for one that runs."""
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


def test_a_command_that_takes_long_is_not_taken_for_a_daemon(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.daemon_client.lifetime._PATIENCE", 0.0)
    with (
        daemon_lock(paths),
        pytest.raises(AlreadyRunning, match="Another command is making changes"),
        daemon_lock(paths),
    ):
        pass


@pytest.mark.usefixtures("answering")
def test_who_holds_the_lock_is_named(paths: Paths) -> None:
    with daemon_lock(paths):
        write_info(paths, {"pid": 42, "endpoint": "http://127.0.0.1:1/mcp"})
        with pytest.raises(AlreadyRunning, match=r"\(pid 42, http://127.0.0.1:1/mcp\)"), daemon_lock(paths):
            pass


@pytest.mark.usefixtures("answering")
@pytest.mark.parametrize("info", ["", "{", "[]", "{}", '{"pid":1}', "null", "\x00"])
def test_an_info_file_that_says_nothing_does_not_hide_the_reason(paths: Paths, info: str) -> None:
    with daemon_lock(paths):
        paths.daemon_info.write_text(info)
        with pytest.raises(AlreadyRunning), daemon_lock(paths):
            pass


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
        with pytest.raises(AlreadyRunning), daemon_lock(paths):
            pass
        other.kill()
        other.wait(60)
    with daemon_lock(paths):
        assert paths.lock.exists()


def test_the_info_is_replaced_whole_and_private(paths: Paths) -> None:
    private_folder(paths.run_dir)
    write_info(paths, {"pid": 1})
    write_info(paths, {"pid": 2})
    assert read_info(paths) == {"pid": 2}
    assert mode(paths.daemon_info) == 0o600
    assert [path.name for path in paths.run_dir.iterdir()] == ["daemon.json"]


def test_no_info_is_no_daemon(paths: Paths) -> None:
    assert read_info(paths) is None


def test_the_token_is_made_once_and_only_the_owner_can_read_it(paths: Paths) -> None:
    first = owner_token(paths.owner_token)
    assert len(first) >= 43
    assert mode(paths.owner_token) == 0o600
    assert mode(paths.state_dir) == 0o700
    assert owner_token(paths.owner_token) == first


def test_two_users_have_two_tokens(tmp_path: Path) -> None:
    assert owner_token(tmp_path / "a" / "t") != owner_token(tmp_path / "b" / "t")


def test_a_lax_umask_does_not_open_the_token(paths: Paths) -> None:
    before = os.umask(0)
    try:
        owner_token(paths.owner_token)
    finally:
        os.umask(before)
    assert mode(paths.owner_token) == 0o600
    assert mode(paths.state_dir) == 0o700


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o620, 0o601])
def test_a_token_that_others_could_read_or_change_is_refused(paths: Paths, bits: int) -> None:
    owner_token(paths.owner_token)
    paths.owner_token.chmod(bits)
    with pytest.raises(ConfigError) as caught:
        owner_token(paths.owner_token)
    assert f"{bits:o}" in caught.value.message
    assert "chmod 600" in caught.value.remedy


@pytest.mark.parametrize("content", ["", "\n", "short", " " * 50])
def test_a_file_without_a_token_is_refused(paths: Paths, content: str) -> None:
    private_folder(paths.state_dir)
    paths.owner_token.write_text(content)
    paths.owner_token.chmod(0o600)
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


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        private_folder(tmp_path / "file" / "run")
    assert str(tmp_path / "file") in caught.value.message
    assert "TOOLCRIB_HOME" in caught.value.remedy


def test_a_folder_of_ones_own_is_closed_to_others_also_behind_a_link_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o755)
    (tmp_path / "run").symlink_to("own")
    private_folder(tmp_path / "run")
    assert mode(tmp_path / "own") == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("given_away", ["folder", "folder behind a link", "link"])
def test_a_folder_that_another_user_owns_or_leads_to_is_not_taken(tmp_path: Path, given_away: str) -> None:
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


def test_an_error_without_a_file_names_the_place_it_happened_at(tmp_path: Path) -> None:
    assert unusable_path(OSError("odd"), tmp_path).message == f"{tmp_path} cannot be used: odd."


def test_the_log_is_private_and_only_our_own_words_are_in_it_at_info(tmp_path: Path) -> None:
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


def test_an_info_file_is_json(paths: Paths) -> None:
    private_folder(paths.run_dir)
    write_info(paths, {"endpoint": "x"})
    assert json.loads(paths.daemon_info.read_text()) == {"endpoint": "x"}
