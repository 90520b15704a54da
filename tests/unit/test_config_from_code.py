"""Servers as a program writes them down."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.from_code import HttpServer, SseServer, StdioServer, WebSocketServer, config_of, server_config
from toolcrib.config.model import Transport
from toolcrib.errors import ConfigError


def test_each_class_is_one_transport():
    assert StdioServer("a", command="x").config().transport is Transport.STDIO
    assert HttpServer("a", url="http://h/mcp").config().transport is Transport.HTTP
    assert SseServer("a", url="http://h/sse").config().transport is Transport.SSE
    assert WebSocketServer("a", url="ws://h/ws").config().transport is Transport.WEBSOCKET


def test_all_that_was_given_arrives():
    config = StdioServer(
        "files",
        command=Path("/usr/bin/python3"),
        args=["-m", Path("/srv/files")],
        env={"KEY": "v"},
        cwd="/srv",
        connect_timeout=3,
        call_timeout=4,
    ).config()
    assert (config.name, config.command, config.args, dict(config.env)) == (
        "files",
        "/usr/bin/python3",
        ("-m", "/srv/files"),
        {"KEY": "v"},
    )
    assert (config.cwd, config.connect_timeout, config.call_timeout) == ("/srv", 3, 4)
    far = HttpServer("a", url="https://h/mcp", headers={"X": "1"}, verify_tls=False).config()
    assert (far.url, dict(far.headers), far.verify_tls) == ("https://h/mcp", {"X": "1"}, False)


def test_it_is_the_server_that_a_file_would_describe():
    entry = {"command": "npx", "args": ["-y", "x"], "env": {"A": "b"}}
    given_server = StdioServer("s", command="npx", args=("-y", "x"), env={"A": "b"})
    assert given_server.config().identity == server_config("s", entry).identity


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.lists(_TEXT | st.sampled_from(["${HOME}", "$${x}", "$", "${", "${a:-b}", "$HOME"]), max_size=4))
def test_values_are_taken_as_they_are(args):
    config = StdioServer("s", command="x", args=args, env={"V": "${HOME}"}).config()
    assert list(config.args) == args
    assert config.env["V"] == "${HOME}"
    assert not config.spelled


def test_a_relative_folder_starts_where_the_program_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert StdioServer("s", command="x", cwd="sub").config().cwd == str(tmp_path / "sub")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: HttpServer("a", url="ftp://h"), "a.url"),
        (lambda: HttpServer("a", url=""), "a.url"),
        (lambda: HttpServer("a", url=None), "url"),
        (lambda: HttpServer("a", url="http://user:pw@h"), "a.url"),
        (lambda: HttpServer("a", url="ws://h"), "a.url"),
        (lambda: WebSocketServer("a", url="http://h"), "a.url"),
        (lambda: HttpServer("a", url="http://h", headers={"b c": "v"}), "a.headers"),
        (lambda: HttpServer("a", url="http://h", headers={"b": "v\r\nX: y"}), "a.headers.b"),
        (lambda: HttpServer("a", url="http://h", headers=["b"]), "a.headers"),
        (lambda: HttpServer("a", url="http://h", verify_tls="no"), "a.verify_tls"),
        (lambda: HttpServer("a", url="http://h", connect_timeout=0), "a.connect_timeout"),
        (lambda: HttpServer("a", url="http://h", call_timeout="9"), "a.call_timeout"),
        (lambda: StdioServer("a", command=""), "a.command"),
        (lambda: StdioServer("a", command=None), "command"),
        (lambda: StdioServer("a", command="x", args="-y"), "a.args"),
        (lambda: StdioServer("a", command="x", args=[None]), "a.args[0]"),
        (lambda: StdioServer("a", command="x", env={"A=": "v"}), "a.env"),
        (lambda: StdioServer("a", command="x", env={1: "v"}), "a.env"),
        (lambda: StdioServer(7, command="x"), "name"),
        (lambda: StdioServer("crib", command="x"), "crib"),
        (lambda: StdioServer("a", command="toolcrib", args=["stdio"]), "starts Toolcrib itself"),
    ],
)
def test_a_mistake_is_told_at_once_and_names_its_field(make, field):
    with pytest.raises(ConfigError) as told:
        make()
    assert field in told.value.message


def test_no_secret_is_shown():
    secret = "s3cret-value-12"
    servers = [
        StdioServer("a", command="x", args=["--token", secret], env={"KEY": secret}),
        HttpServer("a", url=f"http://h/mcp?api_key={secret}", headers={"Authorization": f"Bearer {secret}"}),
    ]
    assert secret not in repr(servers)
    assert "--token" in repr(servers)
    with pytest.raises(ConfigError) as told:
        HttpServer("a", url="http://h", headers={"Authorization": f"{secret}\n"})
    assert secret not in told.value.text()


def test_a_config_is_taken_as_it_is():
    config = server_config("a", {"command": "x"})
    assert config_of(config) is config
    assert config_of(StdioServer("a", command="x")).identity == config.identity


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"command": "npx -y foo"}, "command='npx', args=['-y', 'foo']"),
        ({"command": "npx -y 'a b'", "args": ["c"]}, "command='npx', args=['-y', 'a b', 'c']"),
        ({"command": "npx 'a"}, """command='npx', args=["'a"]"""),
    ],
)
def test_a_command_line_is_no_command(given: dict, remedy: str):
    with pytest.raises(ConfigError, match=r"s\.command: found a command line") as told:
        StdioServer("s", **given)
    assert remedy in told.value.remedy


def test_a_secret_in_a_command_line_is_not_told():
    with pytest.raises(ConfigError) as told:
        StdioServer("s", command="npx foo --token sup3r-secret-value")
    assert "sup3r" not in str(told.value)


def test_a_program_whose_name_has_a_space_is_a_command(tmp_path: Path):
    program = tmp_path / "my server"
    program.touch(mode=0o755)
    assert StdioServer("s", command=program).config().command == str(program)
    assert StdioServer("s", command="./my server", cwd=tmp_path).config().command == "./my server"


def test_a_secret_among_the_arguments_is_in_no_repr():
    server = StdioServer("s", command="npx", args=["foo", "--token", "sup3r-secret-value"])
    assert "sup3r" not in repr(server) + repr(server.config())
