"""Where a user's files lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcrib.config.paths import Paths


def test_one_variable_moves_everything(tmp_path: Path) -> None:
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1", "HOME": "/home/u"})
    places = [
        paths.user_config,
        paths.database,
        paths.owner_token,
        paths.log,
        paths.server_log("files", None),
        paths.cache_dir,
        paths.lock,
        paths.socket,
        paths.daemon_info,
    ]
    assert [str(place.relative_to(tmp_path)) for place in places] == [
        "config.yml",
        "state/mcp_sessions.db",
        "state/owner.token",
        "state/toolcrib.log",
        "state/servers/files.log",
        "cache",
        "run/daemon.lock",
        "run/daemon.sock",
        "run/daemon.json",
    ]


def test_without_it_the_usual_folders_are_used() -> None:
    paths = Paths.of_user({"HOME": "/home/u"})
    assert paths == Paths(
        config_dir=Path("/home/u/.config/toolcrib"),
        state_dir=Path("/home/u/.local/state/toolcrib"),
        cache_dir=Path("/home/u/.cache/toolcrib"),
        run_dir=Path("/home/u/.local/state/toolcrib"),
    )


def test_xdg_variables_are_heeded_unless_relative() -> None:
    given = {"HOME": "/home/u", "XDG_CONFIG_HOME": "/c", "XDG_RUNTIME_DIR": "/run/user/1", "XDG_CACHE_HOME": "cache"}
    paths = Paths.of_user(given)
    assert paths.config_dir == Path("/c/toolcrib")
    assert paths.run_dir == Path("/run/user/1/toolcrib")
    assert paths.cache_dir == Path("/home/u/.cache/toolcrib")


@pytest.mark.parametrize(("given", "base"), [("~/crib", "/home/u/crib"), ("/opt/crib", "/opt/crib")])
def test_the_home_may_be_written_with_a_tilde(given: str, base: str) -> None:
    assert Paths.of_user({"HOME": "/home/u", "TOOLCRIB_HOME": given}).state_dir == Path(base) / "state"


def test_a_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Paths.of_user({"TOOLCRIB_HOME": "here"}).config_dir == tmp_path / "here"


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "x" * 500, "\ud800", "a\nb", ""])
def test_a_server_s_log_never_leaves_its_folder(tmp_path: Path, name: str) -> None:
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    log = paths.server_log(name, None)
    assert log.parent == tmp_path / "state" / "servers"
    assert len(log.name) < 100
    assert log.name.isprintable()


def test_names_that_look_alike_as_files_have_logs_of_their_own(tmp_path: Path) -> None:
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    assert len({paths.server_log(name, None) for name in ("a/b", "a.b", "a_b")}) == 3


def test_each_project_s_instance_of_a_server_has_a_log_of_its_own() -> None:
    paths = Paths.of_user({"TOOLCRIB_HOME": "/t", "HOME": "/h"})
    logs = {paths.server_log("a", root) for root in (None, Path("/one"), Path("/two"))}
    assert len(logs) == 3
    assert paths.server_log("a", None).name == "a.log"
