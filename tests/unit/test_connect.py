"""Clients' files before and after: only the entry for Toolcrib differs, and removing it restores the file."""

import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli.app import run
from toolcrib.coding_agents import json_entry, toml_entry
from toolcrib.coding_agents.client_files import (
    BACKUP_SUFFIX,
    ClientEntry,
    EntryOutcome,
    renew_private_files,
    write_private_file,
)
from toolcrib.coding_agents.client_spec import ClientScope, labels
from toolcrib.coding_agents.clients import CLIENTS, client_named
from toolcrib.errors import ConfigError, NotFound, UsageError
from toolcrib.identity.agent_folders import AgentFolders

pytestmark = pytest.mark.req("KSI-2")

CLAUDE_BEFORE = """{
    "numStartups": 3,
    "tipsHistory": {"a": 1,   "b": [1,2]},
    "mcpServers": {
        "other": {"type": "http", "url": "https://x/\\u00e9"}
    },
    "oauthAccount": {"x": 1e3}
}"""

CLAUDE_AFTER = """{
    "numStartups": 3,
    "tipsHistory": {"a": 1,   "b": [1,2]},
    "mcpServers": {
        "other": {"type": "http", "url": "https://x/\\u00e9"},
        "toolcrib": {
            "type": "stdio",
            "command": "/opt/toolcrib",
            "args": [
                "stdio"
            ]
        }
    },
    "oauthAccount": {"x": 1e3}
}"""

CODEX_BEFORE = """# mine
model = "gpt-5"   # keep

[mcp_servers.other]
command = "x"
args = [
  "a", # why
]

[mcp_servers.other.env]
KEY = 'v'
"""

CODEX_TABLE = """[mcp_servers.toolcrib]
command = "/opt/toolcrib"
args = ["stdio"]
env_vars = ["CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"]
required = true
startup_timeout_sec = 20
"""


def connection(name: str, home: Path, *, scope: ClientScope = ClientScope.USER, **environ: str) -> ClientEntry:
    client = client_named(name)
    entry = client.stdio(command="/opt/toolcrib", args=["stdio"], env={})
    return ClientEntry(
        client=client, scope=scope, entry=entry, environ={"HOME": str(home), **environ}, root=home / "project"
    )


def test_an_entry_is_added_and_removed_and_all_other_bytes_stay(tmp_path):
    file = tmp_path / ".claude.json"
    file.write_text(CLAUDE_BEFORE)
    file.chmod(0o640)
    claude = connection("claude", tmp_path)
    assert claude.write() is EntryOutcome.WRITTEN
    assert file.read_text() == CLAUDE_AFTER
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.with_name(file.name + BACKUP_SUFFIX).read_text() == CLAUDE_BEFORE
    assert (claude.write(), claude.remove()) == (EntryOutcome.UNCHANGED, EntryOutcome.REMOVED)
    assert file.read_text() == CLAUDE_BEFORE
    assert list(tmp_path.iterdir()) == [file], "neither the backup nor a temporary file is left"
    assert claude.remove() is EntryOutcome.ABSENT
    file = tmp_path / "codex" / "config.toml"
    file.parent.mkdir()
    file.write_text(CODEX_BEFORE)
    codex = connection("codex", tmp_path, CODEX_HOME=str(file.parent))
    assert codex.write() is EntryOutcome.WRITTEN
    assert file.read_text() == f"{CODEX_BEFORE}\n{CODEX_TABLE}"
    assert (codex.write(), codex.remove()) == (EntryOutcome.UNCHANGED, EntryOutcome.REMOVED)
    assert file.read_text() == CODEX_BEFORE


def test_a_new_file_for_gemini_is_private_and_removed_with_the_entry(tmp_path):
    gemini = connection("gemini", tmp_path)
    file = tmp_path / ".gemini" / "settings.json"
    assert gemini.write() is EntryOutcome.WRITTEN
    assert json.loads(file.read_text()) == {"mcpServers": {"toolcrib": {"command": "/opt/toolcrib", "args": ["stdio"]}}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert gemini.remove() is EntryOutcome.REMOVED
    assert not file.exists()


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
@pytest.mark.parametrize("scope", list(ClientScope))
def test_later_changes_are_kept_when_the_entry_is_removed(tmp_path, name, scope):
    made = connection(name, tmp_path, scope=scope)
    file = made.file
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    toml = file.suffix == ".toml"
    file.write_text('a = 1\n[mcp_servers.x]\ncommand = "y"\n' if toml else '{"a": 1, "mcpServers": {"x": {}}}')
    made.write()
    grown = file.read_text().replace("a = 1", "a = 2").replace('"a": 1', '"a": 2') + ("[z]\nb = 3\n" if toml else "\n")
    file.write_text(grown)
    assert made.remove() is EntryOutcome.REMOVED
    left = tomllib.loads(file.read_text()) if toml else json.loads(file.read_text())
    servers = {"mcp_servers": {"x": {"command": "y"}}, "z": {"b": 3}} if toml else {"mcpServers": {"x": {}}}
    assert left == {"a": 2, **servers}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("claude", text) for text in ("{}", "", ' { "mcpServers" : { } } ', '{"a":1}', '\ufeff{\n "a": 1\n}')),
        ("claude", '{"a": 1,\r\n"mcpServers": {\r\n}}'),
        *(("codex", text) for text in ("", "\n\n", "a = 1", "a = 1\r\n\r\n\r\n", "[mcp_servers]", "# nothing here")),
    ],
)
def test_a_file_with_any_layout_gets_its_old_bytes_back(tmp_path, name, text):
    made = connection(name, tmp_path)
    file = made.file
    assert file is not None
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode())
    outcomes = [made.write(), made.write(), made.remove()]
    assert outcomes == [EntryOutcome.WRITTEN, EntryOutcome.UNCHANGED, EntryOutcome.REMOVED]
    assert file.read_bytes() == text.encode()


def test_an_older_entry_is_replaced_in_place(tmp_path):
    file = tmp_path / ".codex" / "config.toml"
    file.parent.mkdir()
    before = '[mcp_servers."toolcrib"]\ncommand = "old"\n[mcp_servers.toolcrib.env]\nA = "b"\n\n# about z\n[z]\nb = 3\n'
    file.write_text(before)
    codex = connection("codex", tmp_path)
    assert codex.write() is EntryOutcome.WRITTEN
    quoted = CODEX_TABLE.replace("toolcrib]", '"toolcrib"]', 1)
    assert file.read_text() == f"{quoted}\n# about z\n[z]\nb = 3\n"
    assert codex.remove() is EntryOutcome.REMOVED
    assert tomllib.loads(file.read_text()) == {"z": {"b": 3}}


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("gemini", ".gemini/settings.json", '{\n  // my theme\n  "theme": "x",\n}'),
        ("claude", ".claude.json", '{"mcpServers": []}'),
        ("claude", ".claude.json", "[1]"),
        ("claude", ".claude.json", '{"a": '),
        ("codex", ".codex/config.toml", "broken ="),
        ("codex", ".codex/config.toml", "mcp_servers = 3\n"),
        ("codex", ".codex/config.toml", "[[mcp_servers]]\na = 1\n"),
    ],
)
def test_a_file_that_cannot_be_edited_safely_is_not_changed_and_the_text_to_paste_is_shown(tmp_path, name, file, text):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    made = connection(name, tmp_path)
    with pytest.raises(ConfigError) as caught:
        made.write()
    assert made.text in caught.value.text()
    assert path.read_text() == text
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_the_backup_is_deleted_even_if_the_entry_was_removed_by_hand(tmp_path):
    file = tmp_path / ".claude.json"
    file.write_text('{"secret": 1}')
    claude = connection("claude", tmp_path)
    claude.write()
    file.write_text('{"secret": 2}')
    assert claude.remove() is EntryOutcome.ABSENT
    assert file.read_text() == '{"secret": 2}'
    assert list(tmp_path.iterdir()) == [file]


def test_a_concurrent_change_by_the_client_is_not_lost(tmp_path, monkeypatch):
    file = tmp_path / ".claude.json"
    file.write_text('{"n": 1}')
    real = os.fsync

    def fsync(handle):
        real(handle)
        file.write_text('{"n": 2}')

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigError, match="has just changed"):
        connection("claude", tmp_path).write()
    assert file.read_text() == '{"n": 2}'


def test_a_linked_file_stays_a_link(tmp_path):
    real, link = tmp_path / "claude.json", tmp_path / ".claude.json"
    real.write_text("{}\n")
    link.symlink_to(real)
    connection("claude", tmp_path).write()
    assert link.is_symlink()
    assert "toolcrib" in json.loads(real.read_text())["mcpServers"]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", '{\n  "s": {\n    "t": 1\n  }\n}\n'),
        ("{}", '{\n  "s": {\n    "t": 1\n  }\n}'),
        ('{"a": 1}', '{"a": 1, "s": {"t": 1}}'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"s": {\n\t\t"t": 1\n\t}\n}\n'),
        ('{\r\n  "s": {}\r\n}\r\n', '{\r\n  "s": {\r\n    "t": 1\r\n  }\r\n}\r\n'),
        ('{"s": {"t": 0, "u": 2}}', '{"s": {"t": 1, "u": 2}}'),
        ('{"a\\"{": "}", "s": {"\\u0074": 0}}', '{"a\\"{": "}", "s": {"\\u0074": 1}}'),
    ],
)
def test_json_is_written_in_the_style_of_the_file(text, after):
    assert json_entry.put_entry(text, ("s",), "t", 1) == after


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    data=st.dictionaries(st.text(max_size=4), _VALUES, max_size=4),
    servers=st.none() | st.dictionaries(st.sampled_from(["a", "b", "toolcrib"]), _VALUES, max_size=3),
    indent=st.sampled_from([None, 2, 4, "\t"]),
)
def test_only_the_entry_differs_in_any_json_file(data, servers, indent):
    if servers is not None:
        data = {**data, "mcpServers": servers}
    value = {"command": "x"}
    after = json_entry.put_entry(json.dumps(data, indent=indent), ("mcpServers",), "toolcrib", value)
    if servers is not None:
        assert json.loads(after) == {**data, "mcpServers": {**servers, "toolcrib": value}}
    else:
        assert json_entry.get_entry(after, ("mcpServers",), "toolcrib") == value
    gone = json.loads(json_entry.drop_entry(after, ("mcpServers",), "toolcrib"))
    assert gone.get("mcpServers", {}) == {k: v for k, v in (servers or {}).items() if k != "toolcrib"}


NEW = 'v = "new"\nl = [1, "a"]\n'
INLINE = '{v = "new", l = [1, "a"]}'
ABOUT_Z = "\n# about z\n[z]\nb = 3 # three\n"
LIST_Z = "[s.a]\nx=1\n\n# about z\n[z]\ny = [\n  1, # one\n]\n"
TOML = {
    "a table is updated in its place, with its comments": (
        '[s."t"] # mine\n# first\nv = "old" # why\nw = 2\n[s.t.env]\nA = "b"\n' + ABOUT_Z,
        '[s."t"] # mine\n# first\nv = "new" # why\nl = [1, "a"]\n' + ABOUT_Z,
        ABOUT_Z,
    ),
    "a new table comes last": (LIST_Z, f"{LIST_Z}\n[s.t]\n{NEW}", LIST_Z),
    "servers on one line": (
        "s = { a = { x = 1 } } # all\n[z]\n",
        f"s = {{ a = {{ x = 1 }}, t = {INLINE}}} # all\n[z]\n",
        "s = { a = { x = 1 } } # all\n[z]\n",
    ),
    "an entry on one line": (
        '[s]\n# ours\nt = { v = "old" } # why\nu = 1\n',
        f"[s]\n# ours\nt = {INLINE} # why\nu = 1\n",
        "[s]\n# ours\nu = 1\n",
    ),
    "dotted keys": ('s.t.v = "old" # why\nb = 2\n', 's.t.v = "new" # why\ns.t.l = [1, "a"]\nb = 2\n', "b = 2\n"),
    "dotted keys of another": ("s.a.x = 1\nb = 2\n", f"s.a.x = 1\nb = 2\n\n[s.t]\n{NEW}", "s.a.x = 1\nb = 2\n"),
    "a text like the table": ('a = """\n[s.t]\n"""\n', f'a = """\n[s.t]\n"""\n\n[s.t]\n{NEW}', 'a = """\n[s.t]\n"""\n'),
    "Windows line ends": (
        "a = 1\r\n[s.t]\r\nv = 1\r\n\r\n# z\r\n[z]\r\n",
        'a = 1\r\n[s.t]\r\nv = "new"\r\nl = [1, "a"]\r\n\r\n# z\r\n[z]\r\n',
        "a = 1\r\n\r\n# z\r\n[z]\r\n",
    ),
}


@pytest.mark.parametrize(("before", "after", "gone"), TOML.values(), ids=TOML)
def test_comments_and_formatting_in_toml_are_kept(before, after, gone):
    assert toml_entry.put_entry(before, ("s",), "t", {"v": "new", "l": [1, "a"]}) == after
    assert toml_entry.drop_entry(after, ("s",), "t") == gone


@given(
    value=st.dictionaries(
        st.text(min_size=1, max_size=6),
        st.text(max_size=6) | st.booleans() | st.integers(-9, 9) | st.lists(st.text(max_size=4), max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_any_table_reads_back_unchanged(value):
    text = toml_entry.put_entry("", ("a",), "b", value)
    assert tomllib.loads(text) == {"a": {"b": value}}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_an_http_entry_names_a_variable_instead_of_the_token(client):
    entry = json.dumps(client.http(url="http://127.0.0.1:8765/mcp", labels=labels("reviewer", "nightly")))
    for output in ("TOOLCRIB_TOKEN", "http://127.0.0.1:8765/mcp", '"X-Toolcrib-Agent": "reviewer"', '"nightly"'):
        assert output in entry
    assert "X-Toolcrib" not in json.dumps(client.http(url="http://127.0.0.1:8765/mcp", labels=labels("")))


def test_a_client_whose_file_is_unknown_is_only_shown(tmp_path):
    generic = connection("generic", tmp_path)
    assert json.loads(generic.text)["mcpServers"]["toolcrib"]["args"] == ["stdio"]
    with pytest.raises(UsageError, match="does not know"):
        generic.write()
    with pytest.raises(NotFound, match="claud"):
        client_named("claud")


@pytest.fixture
def person(tmp_path, monkeypatch):
    """A home with a project in it, where the command line is used without a daemon."""
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path / "crib"))
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def agents(say: Callable[..., Any]) -> dict[str, str]:
    return {agent["name"]: agent["profile"] for agent in say("agent", "list")["agents"]}


@pytest.fixture
def say(person, capsys):
    """Runs a command with --json: `say("agent", "list")["agents"]`."""

    def run_it(*words, code=0):
        capsys.readouterr()
        assert run([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run_it


def test_the_command_writes_and_removes(person, say, capsys):
    reported = say("connect", "claude", "--write")
    assert (reported["outcome"], reported["file"]) == ("written", str(person / ".claude.json"))
    assert reported["backup"] is None, "there was no file to keep"
    entry = json.loads((person / ".claude.json").read_text())["mcpServers"]["toolcrib"]
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-5:] == ["stdio", "--client", "claude", "--agent", "claude"]
    assert entry["env"] == {"TOOLCRIB_HOME": str(person / "crib")}, "a client may start the bridge without it"
    assert run(["connect", "claude", "--remove"]) == 0
    assert not (person / ".claude.json").exists()
    (person / ".claude.json").write_text('{"theme": "dark"}')
    capsys.readouterr()
    assert run(["connect", "claude", "--write"]) == 0
    assert f"The previous version is in {person / '.claude.json.before-toolcrib'}.\n" in capsys.readouterr().err
    assert (person / ".claude.json.before-toolcrib").read_text() == '{"theme": "dark"}'


def test_writing_creates_an_agent_for_the_client_and_removing_ends_it(person, say):
    reported = say("connect", "claude", "--write")
    assert (reported["agent"], reported["made"]) == ("claude", True)
    assert agents(say) == {"claude": "developer"}
    again = say("connect", "claude", "--write")
    assert (again["outcome"], again["made"]) == ("unchanged", False)
    token = (person / "crib" / "state" / "agents" / "claude" / "token").read_text().strip()
    assert token not in (person / ".claude.json").read_text()
    gone = say("connect", "claude", "--remove")
    assert (gone["outcome"], gone["ended"]) == ("removed", ["claude"])
    assert agents(say) == {}
    assert not (person / "crib" / "state" / "agents" / "claude").exists()


def test_only_an_agent_that_was_created_for_an_entry_ends_with_it(person, say):
    say("agent", "add", "claude", "--profile", "read-only")
    say("agent", "add", "reviewer", "--profile", "read-only")
    assert say("connect", "claude", "--write")["made"] is False
    assert say("connect", "claude", "--write", "--agent", "reviewer")["ended"] == []
    assert say("connect", "claude", "--remove")["ended"] == []
    say("connect", "codex", "--write")
    assert say("connect", "codex", "--write", "--agent", "reviewer")["ended"] == ["codex"]
    entry = tomllib.loads((person / ".codex" / "config.toml").read_text())["mcp_servers"]["toolcrib"]
    assert entry["args"][-2:] == ["--agent", "reviewer"]
    assert agents(say) == {"claude": "read-only", "reviewer": "read-only"}


def test_an_agent_that_two_files_use_ends_with_the_last(person, say, monkeypatch):
    say("connect", "codex", "--write")
    monkeypatch.setenv("CODEX_HOME", str(person / "other"))
    assert say("connect", "codex", "--write")["made"] is False
    assert say("connect", "codex", "--remove")["ended"] == []
    monkeypatch.delenv("CODEX_HOME")
    assert say("connect", "codex", "--remove")["ended"] == ["codex"]


def test_removing_an_agent_lists_the_entries_that_still_name_it(person, say, capsys):
    say("agent", "add", "reviewer", "--profile", "read-only")
    say("agent", "add", "kid", "--parent", "reviewer")
    say("connect", "claude", "--write", "--agent", "reviewer")
    say("connect", "codex", "--write", "--agent", "reviewer")
    say("connect", "gemini", "--write", "--agent", "kid")
    say("connect", "codex", "--remove")
    claude, gemini = (str(person / name) for name in (".claude.json", ".gemini/settings.json"))
    assert run(["agent", "remove", "reviewer"]) == 0
    output = capsys.readouterr().err
    assert f"{claude} still has an entry for reviewer: `toolcrib connect CLIENT --remove` removes it." in output
    assert f"{gemini} still has an entry for kid: " in output
    assert "config.toml" not in output, "that entry was taken out"
    say("connect", "claude", "--write")
    assert say("agent", "remove", "claude")["named_in"] == {"claude": [claude]}
    say("agent", "add", "plain")
    assert say("agent", "remove", "plain")["named_in"] == {}


def test_no_agent_is_created_for_an_entry_that_is_only_shown_or_cannot_be_written(person, say):
    assert say("connect", "claude")["outcome"] == "shown"
    assert say("connect", "generic")["entry"]["args"][-1] == "stdio", "without an agent"
    (person / ".claude.json").write_text("{ // mine\n}")
    say("connect", "claude", "--write", code=3)
    say("connect", "claude", "--write", "--agent", "nobody", code=4)
    say("connect", "generic", "--write", code=2)
    assert agents(say) == {}


def test_an_agent_with_an_invalid_note_can_be_removed(person, say):
    say("agent", "add", "reviewer")
    (person / "crib" / "state" / "agents" / "reviewer" / "connected.json").write_text("[1")
    assert say("agent", "remove", "reviewer")["named_in"] == {}


def test_a_projects_file_has_no_agent_by_default(person, say):
    file = person / "project" / ".gemini" / "settings.json"
    assert say("connect", "gemini", "--scope", "project", "--write")["agent"] is None
    entry = {"command": "toolcrib", "args": ["stdio", "--client", "gemini"]}
    assert json.loads(file.read_text())["mcpServers"]["toolcrib"] == entry
    assert agents(say) == {}
    reported = say("connect", "gemini", "--scope", "project", "--write", "--http")
    assert (reported["agent"], reported["made"]) == ("gemini", True)
    entry = json.loads(file.read_text())["mcpServers"]["toolcrib"]
    assert entry["headers"] == {"Authorization": "Bearer ${TOOLCRIB_TOKEN}"}
    say("agent", "add", "reviewer", "--profile", "read-only")
    reported = say("connect", "gemini", "--scope", "project", "--write", "--agent", "reviewer")
    assert reported["ended"] == ["gemini"]
    assert any("need their own agent named reviewer" in note for note in reported["notes"])
    assert json.loads(file.read_text())["mcpServers"]["toolcrib"]["args"][3:] == ["--agent", "reviewer"]


def test_entries_and_notes_never_contain_a_token(person, say):
    token = say("agent", "add", "reviewer", "--profile", "read-only")["token"]
    for client in CLIENTS:
        for http in ([], ["--http"]):
            reported = say("connect", client.name, "--agent", "reviewer", "--conversation", "nightly", *http)
            assert token not in json.dumps(reported)
            assert "nightly" in json.dumps(reported["entry"])
            assert "owner.token" not in json.dumps(reported)
            if http:
                assert f"{person / 'crib' / 'state' / 'agents' / 'reviewer' / 'token'}" in reported["notes"][-1]


def test_an_entry_with_a_url_names_the_tools_that_the_clients_own_tools_replace(person, say):
    def headers(*words: str) -> dict[str, str]:
        entry: dict[str, Any] = say("connect", "claude", "--http", *words)["entry"]
        usual = ("Authorization", "X-Toolcrib-Agent")
        return {name: value for name, value in entry["headers"].items() if name not in usual}

    settings = person / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"deny": ["Bash"]}}')
    assert headers() == {"X-Toolcrib-Without": "edit_file,read_file,write_file"}
    # A project's file is shared with clients that have other settings.
    assert headers("--all-tools") == headers("--scope", "project") == {}
    assert headers("--all-tools", "--listing", "thin") == {"X-Toolcrib-Listing": "thin"}
    say("connect", "claude", "--http", "--listing", "handshake", code=2)


def test_the_bridge_of_an_entry_gets_its_options(person, say):
    def options(*words: str) -> list[str]:
        args: list[str] = say("connect", *words)["entry"]["args"]
        return args[args.index("stdio") + 1 :]

    assert options("claude") == ["--client", "claude", "--agent", "claude"]
    assert options("claude", "--all-tools", "--listing", "handshake") == ["--agent", "claude", "--listing", "handshake"]
    assert options("generic", "--listing", "search") == ["--listing", "search"]


def test_a_generated_file_says_which_list_the_next_completion_gets(person, say):
    say("agent", "add", "reviewer")
    words = ("connect", "claude", "--agent", "reviewer", "--conversation", "nightly")

    def said(*more: str) -> str | None:
        text = Path(say(*words, *more)["generated"]).read_text()
        listing: str | None = json.loads(text)["mcpServers"]["toolcrib"]["headers"].get("X-Toolcrib-Listing")
        return listing

    assert said() is None
    assert said("--listing", "search") == "search"
    assert said("--listing", "handshake") == "full", "the conversation has had no list yet"


HEADERS = {"Authorization": "Bearer @TOKEN@", "X-Toolcrib-Agent": "reviewer", "X-Toolcrib-Conversation": "nightly"}
URL = "http://127.0.0.1:8665/mcp"
CODEX = {"default_tools_approval_mode": "approve", "required": True, "startup_timeout_sec": 20}
RETRY = {"maxAttempts": 3, "backoffMs": 1000}
GENERATED: dict[str, Any] = {
    "claude": {"type": "http", "url": URL, "headers": HEADERS},
    "codex": {"url": URL, "http_headers": HEADERS, **CODEX},
    "gemini": {"httpUrl": URL, "headers": HEADERS, "trust": True},
    "generic": {"type": "streamable-http", "url": URL, "headers": HEADERS, "verifySsl": True, "retry": RETRY},
}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_private_file_is_generated_for_an_agent_and_removed_with_it(person, say, client):
    token = say("agent", "add", "reviewer", "--profile", "read-only")["token"]
    reported = say("connect", client.name, "--agent", "reviewer", "--conversation", "nightly")
    file = Path(reported["generated"])
    assert file == person / "crib" / "state" / "agents" / "reviewer" / client.private_file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    text = file.read_text()
    holding = tomllib.loads(text)["mcp_servers"] if file.suffix == ".toml" else json.loads(text)["mcpServers"]
    assert holding == {"toolcrib": json.loads(json.dumps(GENERATED[client.name]).replace("@TOKEN@", token))}
    assert not (person / ".claude.json").exists(), "only --write changes the user's own files"
    say("agent", "remove", "reviewer")
    assert not file.parent.exists()


def test_generated_files_follow_the_endpoint_and_the_token_and_keep_their_labels(tmp_path):
    folders = AgentFolders(tmp_path)
    folders.make("reviewer", "tcb_one")
    for client in CLIENTS[:2]:
        write_private_file(
            folders, "reviewer", client, url="http://127.0.0.1:1/mcp", conversation="nightly", listing="thin"
        )
    folders.stage("reviewer", "tcb_two")
    folders.settle("reviewer", lambda token: token == "tcb_two")
    renew_private_files(folders, ["nobody", "reviewer"], url="http://127.0.0.1:2/mcp")
    made = {file.name: file.read_text() for file in folders.of("reviewer").iterdir()}
    assert made.keys() == {"store", "token", "claude.json", "codex.toml"}, "what was not there is not made"
    for text in (made["claude.json"], made["codex.toml"]):
        for output in ("http://127.0.0.1:2/mcp", "Bearer tcb_two", "nightly", "thin"):
            assert output in text
        assert "tcb_one" not in text
