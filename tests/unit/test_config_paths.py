"""The locations of a user's files."""

import dataclasses
from pathlib import Path

import pytest

from toolcrib.config.paths import Paths


def test_one_variable_moves_everything(tmp_path, monkeypatch):
    environ = {"TOOLCRIB_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1", "HOME": "/home/u"}
    paths = Paths.of_user(environ)
    files = {
        paths.user_config: "config.yml",
        paths.cache_dir: "cache",
        paths.server_log("files", None): "servers/files.log",
    }
    files |= {paths.database: "mcp_sessions.db", paths.owner_token: "owner.token", paths.log: "toolcrib.log"}
    files |= {paths.lock: "run/daemon.lock", paths.socket: "run/daemon.sock", paths.daemon_info: "run/daemon.json"}
    in_state = {paths.database, paths.owner_token, paths.log, paths.server_log("files", None)}
    for path, name in files.items():
        assert path == (tmp_path / "state" if path in in_state else tmp_path) / name
    for home, base in {"~/crib": "/home/u/crib", "/opt/crib": "/opt/crib"}.items():
        assert Paths.of_user({"HOME": "/home/u", "TOOLCRIB_HOME": home}).state_dir == Path(base) / "state"
    monkeypatch.chdir(tmp_path)
    assert Paths.of_user({"TOOLCRIB_HOME": "here"}).config_dir == tmp_path / "here"


def test_the_default_folders_follow_the_xdg_specification():
    state = Path("/home/u/.local/state/toolcrib")
    config, cache = Path("/home/u/.config/toolcrib"), Path("/home/u/.cache/toolcrib")
    expected = Paths(config_dir=config, state_dir=state, cache_dir=cache, run_dir=state)
    assert Paths.of_user({"HOME": "/home/u"}) == expected
    xdg = {"XDG_CONFIG_HOME": "/c", "XDG_RUNTIME_DIR": "/run/user/1", "XDG_CACHE_HOME": "relative"}
    changed = {"config_dir": Path("/c/toolcrib"), "run_dir": Path("/run/user/1/toolcrib")}
    assert Paths.of_user({"HOME": "/home/u", **xdg}) == dataclasses.replace(expected, **changed)


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "x" * 500, "\ud800", "a\nb", ""])
def test_a_servers_log_never_leaves_its_folder(tmp_path, name):
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    log = paths.server_log(name, None)
    assert log.parent == tmp_path / "state" / "servers"
    assert len(log.name) < 100
    assert log.name.isprintable()


def test_similar_names_and_each_projects_instance_have_separate_logs(tmp_path):
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    assert len({paths.server_log(name, None) for name in ("a/b", "a.b", "a_b")}) == 3
    assert len({paths.server_log("a", root) for root in (None, Path("/one"), Path("/two"))}) == 3
    assert paths.server_log("a", None).name == "a.log"
