"""Servers that a program declares."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.from_code import HttpServer, SseServer, StdioServer, WebSocketServer, config_of, server_config
from toolcrib.config.model import Transport
from toolcrib.errors import ConfigError


def test_each_class_results_in_the_server_of_an_equal_entry():
    assert HttpServer("a", url="http://h/mcp").config().transport is Transport.HTTP
    assert SseServer("a", url="http://h/sse").config().transport is Transport.SSE
    assert WebSocketServer("a", url="ws://h/ws").config().transport is Transport.WEBSOCKET
    more = {"env": {"KEY": "v"}, "cwd": "/srv", "connect_timeout": 3, "call_timeout": 4}
    server = StdioServer("files", command=Path("/usr/bin/python3"), args=["-m", Path("/srv/files")], **more)
    config = config_of(server)
    assert config == dataclasses.replace(
        server_config("files", {"command": "/usr/bin/python3", "args": ["-m", "/srv/files"], **more}),
        source=config.source,
    )
    assert (config.transport, config.args, dict(config.env)) == (Transport.STDIO, ("-m", "/srv/files"), {"KEY": "v"})
    assert (config.cwd, config.connect_timeout, config.call_timeout) == ("/srv", 3, 4)
    assert config_of(config) is config
    far = HttpServer("a", url="https://h/mcp", headers={"X": "1"}, verify_tls=False).config()
    assert (far.url, dict(far.headers), far.verify_tls) == ("https://h/mcp", {"X": "1"}, False)


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.lists(_TEXT | st.sampled_from(["${HOME}", "$${x}", "$", "${", "${a:-b}", "$HOME"]), max_size=4))
def test_values_are_not_expanded(args):
    config = StdioServer("s", command="x", args=args, env={"V": "${HOME}"}).config()
    assert list(config.args) == args
    assert config.env["V"] == "${HOME}"
    assert not config.spelled


def test_a_relative_folder_starts_at_the_working_directory(monkeypatch, tmp_path):
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
def test_a_mistake_is_an_immediate_error_that_names_the_field(make, field):
    with pytest.raises(ConfigError) as caught:
        make()
    assert field in caught.value.message


def test_secrets_are_neither_in_the_repr_nor_in_errors():
    secret = "s3cret-value-12"
    stdio = StdioServer("a", command="x", args=["--token", secret], env={"KEY": secret})
    http = HttpServer("a", url=f"http://h/mcp?api_key={secret}", headers={"Authorization": f"Bearer {secret}"})
    assert secret not in repr([stdio, stdio.config(), http])
    assert "--token" in repr(stdio)
    with pytest.raises(ConfigError) as caught:
        HttpServer("a", url="http://h", headers={"Authorization": f"{secret}\n"})
    assert secret not in caught.value.text()
    with pytest.raises(ConfigError) as caught:
        StdioServer("s", command=f"npx foo --token {secret}")
    assert secret not in caught.value.text()


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"command": "npx -y foo"}, "command='npx', args=['-y', 'foo']"),
        ({"command": "npx -y 'a b'", "args": ["c"]}, "command='npx', args=['-y', 'a b', 'c']"),
        ({"command": "npx 'a"}, """command='npx', args=["'a"]"""),
    ],
)
def test_a_command_line_as_command_is_an_error(given, remedy):
    with pytest.raises(ConfigError, match=r"s\.command: found a command line") as caught:
        StdioServer("s", **given)
    assert remedy in caught.value.remedy


def test_a_program_whose_name_has_a_space_is_a_command(tmp_path):
    program = tmp_path / "my server"
    program.touch(mode=0o755)
    assert StdioServer("s", command=program).config().command == str(program)
    assert StdioServer("s", command="./my server", cwd=tmp_path).config().command == "./my server"


def test_a_problem_with_its_own_remedy_needs_no_other():
    for entry, remedy in (
        ({"url": "https://docs.example/mcp", "headers": {"K": "${NO_KEY}"}}, ""),
        ({"url": "https://docs.example/mcp", "headers": "K"}, "Correct the entry."),
    ):
        with pytest.raises(ConfigError) as caught:
            server_config("docs", entry, environ={})
        assert caught.value.remedy == remedy
