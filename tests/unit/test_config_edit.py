"""Adding and removing a server in a configuration file, and `config show`."""

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.edit import IfExists, ProjectEdit, ServerSwitch, add_server, remove_server, switch_server
from toolcrib.config.layers import load
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths
from toolcrib.config.show import mask
from toolcrib.config.trust import trust_digest
from toolcrib.errors import ConfigError, UnknownServer

ENTRY: dict[str, Any] = {
    "name": "new",
    "command": "npx",
    "args": ["-y", "@scope/server", "yes", "007", "a: b # c", "", "ü\u2028\x07\U0001f600", "${KEY}"],
    "env": {"KEY": "${KEY}", "on": "1e5"},
}
BODY = {key: value for key, value in ENTRY.items() if key != "name"}


def read(path: Path) -> Any:
    from toolcrib.config.read import FileFormat, parse_text

    return parse_text(path.read_bytes(), FileFormat.of(path.name)).data


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize("name", ["config.yml", "config.json"])
def test_the_first_server_creates_a_file_for_its_owner_only(tmp_path, name):
    path = tmp_path / "deep" / "folder" / name
    add_server(path, ENTRY)
    assert read(path) == {"servers": {"new": BODY}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert left_in(path.parent) == [name]


COMMENTED = """\
# mine
port: 9000  # fixed

servers:   # all of them
    # the files
    files:
        command: npx   # node
        args:
            - one

    # the last
    last: {command: x}
# the end
names: plain
"""


def test_comments_and_layout_of_a_yaml_file_are_kept(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(COMMENTED)
    add_server(path, {"name": "new", "command": "npx", "args": ["-y", "x"], "env": {"K": "${K}"}})
    lines = ["new:", "  command: npx", '  args: ["-y", x]', "  env:", '    K: "${K}"']
    added = "".join(f"    {line}\n" for line in lines)
    assert path.read_text() == COMMENTED.replace("# the end\n", added + "# the end\n")
    remove_server(path, "new")
    assert path.read_text() == COMMENTED
    remove_server(path, "files")
    gone = "    files:\n        command: npx   # node\n        args:\n            - one\n"
    assert path.read_text() == COMMENTED.replace(gone, "")
    remove_server(path, "last")
    assert read(path) == {"port": 9000, "servers": {}, "names": "plain"}
    assert "# all of them" in path.read_text()


# fmt: off
LAYOUTS = [
    "", "# only a comment\n", "port: 1", "port: 1\n# end", "servers:\n", "servers:", "servers: # none\nport: 1\n",
    "servers: {}\n", "servers: {} # none\nport: 1\n", "servers: {a: {command: x}}\n",
    "servers: {a: {command: x}} # flow\nport: 1\n", "{servers: {a: {command: x},}}",
    "servers:\n  a:\n    command: |\n      x\n\nport: 1\n", "servers:\n- name: a\n  command: x\n",
    "servers:\n  - {name: a, command: x} # list\nport: 1\n", "servers: [{name: a, command: x}]\n", "servers: []\n",
    "mcpServers:\n  a: {command: x}\n", '"servers" : \n  a: {command: x}\n',
    "base: &b {command: x}\nservers:\n  a: *b\n", "servers:\r\n  a:\r\n    command: x\r\n",
    "---\nservers:\n  a: {command: x}\n...\n", "servers: {a: {command: x},\n  # why\n  }\n",
    "servers:\n  a:\n    command: x\n    args:\n    - b   ",
]
# fmt: on


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_server_is_added_to_any_layout_and_removed_again(tmp_path, text):
    path = tmp_path / "config.yml"
    path.write_bytes(text.encode())
    before = read(path) or {}
    add_server(path, ENTRY)
    after = read(path)
    section = after.pop("servers" if "mcpServers" not in after else "mcpServers")
    held = before.get("servers", before.get("mcpServers")) or type(section)()
    if isinstance(section, list):
        assert section == [*held, ENTRY]
    else:
        assert section == {**held, "new": BODY}
    assert after == {key: value for key, value in before.items() if key not in ("servers", "mcpServers")}
    assert all(comment in path.read_text() for comment in ("# none", "# flow", "# list", "# end") if comment in text)
    remove_server(path, "new")
    again = read(path)
    assert (again.pop("servers", None) or again.pop("mcpServers", None) or type(held)()) == held


def test_a_layout_that_cannot_be_changed_without_loss_is_refused(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(text := "servers: {a: {command: x}, # why\n  b: {command: y}}\n")
    with pytest.raises(ConfigError) as caught:
        remove_server(path, "a")
    assert "by hand" in caught.value.remedy
    assert (path.read_text(), left_in(tmp_path)) == (text, ["config.yml"])


@pytest.mark.parametrize("text", ["servers: [\n", "a: 1\na: 2\n", "servers: 3\n", "{", "[]"])
def test_an_invalid_file_is_not_changed(tmp_path, text):
    path = tmp_path / ("config.json" if text in ("{", "[]") else "config.yml")
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        add_server(path, ENTRY)
    assert str(path) in caught.value.message
    assert path.read_text() == text


@pytest.mark.parametrize("indent", [2, 4, "\t", None])
def test_a_json_file_keeps_its_indentation_and_everything_else(tmp_path, indent):
    path = tmp_path / "config.json"
    data = {"$schema": "ü", "mcpServers": {"b": {"command": "x"}, "a": {"command": "y", "alwaysAllow": ["z"]}}}
    path.write_text(json.dumps(data, indent=indent, ensure_ascii=False) + "\n")
    before = path.read_text()
    add_server(path, ENTRY)
    wanted = {**data, "mcpServers": {**data["mcpServers"], "new": BODY}}  # type: ignore[dict-item]
    assert path.read_text() == json.dumps(wanted, indent=indent, ensure_ascii=False) + "\n"
    remove_server(path, "new")
    assert path.read_text() == before


@pytest.mark.parametrize("name", ["config.yml", "config.json"])
def test_an_existing_name_is_refused_without_replace(tmp_path, name):
    path = tmp_path / name
    add_server(path, {"name": "Files", "command": "old"})
    before = path.read_text()
    with pytest.raises(ConfigError, match="already has a server 'Files'"):
        add_server(path, {"name": "files", "command": "new"})
    assert path.read_text() == before
    add_server(path, {"name": "files", "command": "new"}, if_exists=IfExists.REPLACE)
    assert read(path) == {"servers": {"files": {"command": "new"}}}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "x"}, "a name"),
        ({"name": "crib", "command": "x"}, "another name"),
        ({"name": "a"}, "neither command nor url"),
        ({"name": "a", "url": "http://u:hunter2@h/"}, "header"),
        ({"name": "a", "url": "ftp://h/"}, "http://"),
        ({"name": "a", "comand": "x", "env": {"K": "${UNSET}"}}, "command"),
        ({"name": "a", "command": "x", "cwd": "here"}, "absolute"),
    ],
)
def test_an_invalid_entry_is_not_written(tmp_path, entry, message):
    with pytest.raises(ConfigError) as caught:
        add_server(tmp_path / "config.yml", entry)
    assert message in caught.value.text()
    assert "hunter2" not in caught.value.text()
    assert left_in(tmp_path) == []


def test_removing_an_unknown_server_suggests_a_similar_name(tmp_path):
    path = tmp_path / "config.yml"
    add_server(path, {"name": "Files", "command": "x"})
    with pytest.raises(UnknownServer) as caught:
        remove_server(path, "files")
    assert "'Files'" in caught.value.remedy
    with pytest.raises(UnknownServer):
        remove_server(tmp_path / "config.json", "files")


def test_the_mode_and_the_link_of_a_file_are_kept(tmp_path):
    real = tmp_path / "dotfiles" / "crib.yaml"
    real.parent.mkdir()
    real.write_text("port: 1\n")
    real.chmod(0o640)
    link = tmp_path / "config.yml"
    link.symlink_to(real)
    add_server(link, ENTRY)
    assert link.is_symlink()
    assert read(real) == {"port": 1, "servers": {"new": BODY}}
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert left_in(real.parent) == ["crib.yaml"]


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_in_a_project_never_redirects_a_change(tmp_path, linked):
    project, outside = ProjectEdit(root=tmp_path / "project", trusted=()), tmp_path / "outside"
    project.root.mkdir()
    outside.mkdir()
    (outside / "config.yml").write_text("port: 1\n")
    path = project.root / ".toolcrib" / "config.yml"
    if linked == "file":
        path.parent.mkdir()
        path.symlink_to(outside / "config.yml")
    else:
        path.parent.symlink_to(outside)
    with pytest.raises(ConfigError, match="behind a symbolic link"):
        add_server(path, ENTRY, project=project)
    with pytest.raises(ConfigError, match="behind a symbolic link"):
        remove_server(path, "new", project=project)
    assert (outside / "config.yml").read_text() == "port: 1\n"


@pytest.mark.req("BNS-10")
def test_a_projects_file_is_changed_only_while_all_of_it_is_trusted(tmp_path):
    path = tmp_path / ".toolcrib" / "config.yml"
    new = ProjectEdit(root=tmp_path, trusted=())
    digest = add_server(path, {"name": "a", "command": "x", "cwd": "sub"}, project=new).digest
    assert digest == trust_digest(path)
    assert read(path) == {"servers": {"a": {"command": "x", "cwd": "sub"}}}
    project = ProjectEdit(root=tmp_path, trusted={digest})
    path.write_text((before := path.read_text()) + "  evil: {command: touch, args: [x]}\n")
    with pytest.raises(ConfigError, match="not trusted"):
        add_server(path, {"name": "b", "command": "y"}, project=project)
    with pytest.raises(ConfigError, match="not trusted"):
        remove_server(path, "a", project=project)
    assert path.read_text().startswith(before)
    assert "evil" in path.read_text()
    path.write_text(before)
    assert remove_server(path, "a", project=project).digest == trust_digest(path)
    assert read(path) == {"servers": {}}


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    path = tmp_path / "config.yml"
    path.write_text("port: 1\n")

    def full(_descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        add_server(path, ENTRY)
    assert path.read_text() == "port: 1\n"
    assert left_in(tmp_path) == ["config.yml"]


def _add_some(path: Path, first: int) -> None:
    for number in range(first, first + 5):
        add_server(path, {"name": f"s{number}", "command": "x"})


def test_concurrent_changes_are_all_kept(tmp_path):
    path = tmp_path / "config.yml"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_some, args=(path, first)) for first in (0, 5, 10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(read(path)["servers"]) == 15


SHOWN = """
servers:
  a:
    command: npx
    args: [-y, server, --token=#, --api-key, #, "${KEY}", sk-#, ghp_#, -e, API_KEY=#, "${NONE:-#}",
      "Authorization: Bearer #", apiKey=#, "postgres://u:#@h/db", /plain/path, --keyboard=us]
    env: {A: "${KEY}", B: #, C: "x#${KEY}"}
  b: {url: "https://h/${KEY}?api_key=#&page=2", headers: {Authorization: "Bearer ${KEY}", X-Other: #}}
  c: {url: "https://h/", auth: {type: bearer, token: "${KEY}"}}
"""


@pytest.mark.req("BNS-3")
def test_the_configuration_is_shown_without_secrets_but_with_variables(tmp_path):
    secret = "hunter2hunter2"
    (tmp_path / "config.yml").write_text(SHOWN.replace("#", secret))
    flags = Flags(mcp_servers=(f"d=x --password {secret}",))
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    shown = mask(load(paths=paths, root=None, environ={"KEY": secret}, flags=flags))
    assert secret not in json.dumps(shown)
    assert list(shown["servers"]) == ["a", "b", "c", "d"]
    a, b, c, d = shown["servers"].values()
    assert a["args"] == [
        *("-y", "server", "--token=****", "--api-key", "****", "${KEY}", "****", "****", "-e", "API_KEY=****"),
        *("${NONE:-****}", "Authorization: Bearer ****", "apiKey=****", "postgres://****@h/db", "/plain/path"),
        "--keyboard=us",
    ]
    assert a["env"] == {"A": "${KEY}", "B": "****", "C": "****${KEY}"}
    assert b["url"] == "https://h/${KEY}?api_key=****&page=2"
    assert b["headers"] == {"Authorization": "Bearer ${KEY}", "X-Other": "****"}
    assert c["headers"] == {"Authorization": "Bearer ${KEY}"}
    assert d["args"] == ["--password", "****"]


SWITCHED = """\
servers:  # mine
  one:
    command: x   # runs
    # about it
    args: [a]
  two: {command: y, enabled: false}  # off
  three:
    enabled: true   # why
    command: z
    disabled_tools:
      - a
      - b
"""


def test_switching_servers_and_tools_changes_only_their_keys(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(SWITCHED)

    def switched(name: str, switch: ServerSwitch, tool: str = "") -> str:
        assert switch_server(path, name, switch, tool=tool).changed
        return path.read_text()

    off = SWITCHED.replace("    args: [a]\n", "    args: [a]\n    enabled: false\n")
    assert switched("one", ServerSwitch.OFF) == off
    assert not switch_server(path, "one", ServerSwitch.OFF).changed
    off = off.replace("    args: [a]\n    enabled: false\n", "    args: [a]\n    enabled: true\n")
    assert switched("one", ServerSwitch.ON) == off
    off = off.replace("enabled: false}  # off", "enabled: true}  # off")
    assert switched("two", ServerSwitch.ON) == off
    off = off.replace("enabled: true}", "enabled: true, disabled_tools: [t]}")
    assert switched("two", ServerSwitch.OFF, "t") == off
    off = off.replace("enabled: true   # why", "enabled: false   # why")
    assert switched("three", ServerSwitch.OFF) == off
    off = off.replace("disabled_tools:\n      - a\n      - b", "disabled_tools: [b]")
    assert switched("three", ServerSwitch.ON, "a") == off
    off = off.replace("    disabled_tools: [b]\n", "")
    assert switched("three", ServerSwitch.ON, "b") == off
    assert switched("two", ServerSwitch.ON, "t") == off.replace(", disabled_tools: [t]", "")
    with pytest.raises(UnknownServer, match="four"):
        switch_server(path, "four", ServerSwitch.OFF)


@pytest.mark.parametrize("before", [{"servers": {}}, {"servers": []}, {"mcpServers": {}}])
def test_an_entry_that_only_switches_off_is_added_and_removed_again(tmp_path, before):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(before))
    switch_server(path, "far", ServerSwitch.OFF, below=True)
    switch_server(path, "far", ServerSwitch.OFF, tool="t", below=True)
    (section,) = read(path).values()
    entry = section["far"] if isinstance(section, dict) else section[0]
    assert {key: entry[key] for key in ("enabled", "disabled_tools")} == {"enabled": False, "disabled_tools": ["t"]}
    switch_server(path, "far", ServerSwitch.ON, below=True)
    switch_server(path, "far", ServerSwitch.ON, tool="t", below=True)
    assert read(path) == before
    assert not switch_server(path, "far", ServerSwitch.ON, below=True).changed
    path.unlink()
    assert not switch_server(path, "far", ServerSwitch.ON, below=True).changed
    assert not path.exists()
