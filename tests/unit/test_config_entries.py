"""One server's entry: every spelling that is understood, every mistake that is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.auth import with_token
from toolcrib.config.layers import load
from toolcrib.config.model import Config, Problem, ServerConfig, Severity, Transport
from toolcrib.config.paths import Paths

SECRET = "very-secret-value"


def load_servers(folder: Path, servers: Any, environ: dict[str, str] | None = None, key: str = "servers") -> Config:
    (folder / "config.json").write_text(json.dumps({key: servers}))
    return load(paths=Paths.of_user({"TOOLCRIB_HOME": str(folder)}), root=None, environ=environ or {})


def load_entry(folder: Path, entry: Any, environ: dict[str, str] | None = None, key: str = "servers") -> Config:
    """The entry under test, between two good neighbours that must always come through."""
    good = {"command": "true"}
    config = load_servers(folder, {"before": good, "it": entry, "after": good}, environ, key)
    assert {"before", "after"} <= config.servers.keys()
    return config


def the_error(config: Config) -> Problem:
    (problem,) = [problem for problem in config.problems if problem.severity is Severity.ERROR]
    assert "it" not in config.servers
    return problem


def the_server(config: Config) -> ServerConfig:
    assert [str(p) for p in config.problems if p.severity is Severity.ERROR] == []
    return config.servers["it"]


URL = "https://h.example/mcp"


@pytest.mark.req("ENG-1", "BNS-3")
@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "x"}, Transport.STDIO),
        ({"type": "stdio", "command": "x"}, Transport.STDIO),
        ({"url": URL}, Transport.HTTP),
        ({"httpUrl": URL}, Transport.HTTP),
        ({"http_url": URL}, Transport.HTTP),
        ({"url": URL, "type": "http"}, Transport.HTTP),
        ({"url": URL, "transport": "streamable-http"}, Transport.HTTP),
        ({"url": URL, "transport": "streamable_http"}, Transport.HTTP),
        ({"url": URL, "transport": "streamableHttp"}, Transport.HTTP),
        ({"url": URL, "transport": "HTTP"}, Transport.HTTP),
        ({"url": URL, "transport": "sse"}, Transport.SSE),
        ({"url": URL, "transport": "websocket"}, Transport.HTTP),
        ({"url": URL, "transport": "ws"}, Transport.HTTP),
        ({"url": "ws://h/mcp"}, Transport.WEBSOCKET),
        ({"url": "wss://h/mcp", "transport": "websocket"}, Transport.WEBSOCKET),
        ({"url": "WSS://h/mcp"}, Transport.WEBSOCKET),
        ({"transport": {"type": "sse", "url": URL}}, Transport.SSE),
        ({"transport": "sse", "connection": {"url": URL}}, Transport.SSE),
        ({"type": "sse", "transport": "sse", "url": URL}, Transport.SSE),
    ],
)
def test_a_transport_is_understood_in_every_spelling(
    tmp_path: Path, entry: dict[str, Any], transport: Transport
) -> None:
    config = load_entry(tmp_path, entry)
    assert the_server(config).transport is transport
    assert config.problems == ()


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("entry", "key", "told"),
    [
        ({"comand": "x"}, "servers.it.comand", "Did you mean command?"),
        ({"ulr": URL}, "servers.it.ulr", "Did you mean url?"),
        ({"command": "x", "arg": []}, "servers.it.arg", "Did you mean args?"),
        ({"command": "x", "cmd": "y"}, "servers.it.cmd", "Did you mean command?"),
        ({"url": URL, "heders": {}}, "servers.it.heders", "Did you mean headers?"),
        ({"url": URL, "verifySSl": True, "verify_sl": True}, "servers.it.verify_sl", "Did you mean verify_ssl?"),
        ({"url": URL, "retry": {"maxAttempt": 3}}, "servers.it.retry.maxAttempt", "Did you mean max_attempts?"),
        ({"url": URL, "auth": {"type": "bearer", "token": "t", "tokn": 1}}, "servers.it.auth.tokn", "mean token?"),
        ({}, "servers.it", "neither command nor url"),
        ({"command": "x", "url": URL}, "servers.it", "both command and url"),
        ({"type": "stdio", "url": URL}, "servers.it", "without command"),
        ({"type": "http", "command": "x"}, "servers.it", "without url"),
        ({"type": "pigeon", "url": URL}, "servers.it.type", "stdio, http, streamable-http, sse or websocket"),
        ({"type": "sse", "transport": "http", "url": URL}, "servers.it.transport", "'type'"),
        ({"url": URL, "httpUrl": URL + "2"}, "servers.it.httpUrl", "'url'"),
        ("text", "servers.it", "a mapping"),
        (None, "servers.it", "a mapping"),
        ([], "servers.it", "a mapping"),
        ({"command": 3}, "servers.it.command", "the program to start"),
        ({"command": " "}, "servers.it.command", "the program to start"),
        ({"command": ["npx"]}, "servers.it.command", "the program to start"),
        ({"command": "x", "args": "a b"}, "servers.it.args", "a list of texts"),
        ({"command": "x", "args": ["a", {}]}, "servers.it.args[1]", "text"),
        ({"command": "x", "args": [1.5]}, "servers.it.args[0]", "Put it in quotes."),
        ({"command": "x", "args": ["a\0b"]}, "servers.it.args[0]", "NUL"),
        ({"command": "x", "args": ["\ud800"]}, "servers.it.args[0]", "surrogate"),
        ({"command": "x", "env": ["A=1"]}, "servers.it.env", "a mapping"),
        ({"command": "x", "env": {"A=B": "1"}}, 'servers.it.env["A=B"]', "a variable name"),
        ({"command": "x", "cwd": "here"}, "servers.it.cwd", "an absolute path"),
        ({"command": "x", "connection": "y"}, "servers.it.connection", "a mapping"),
        ({"command": "x", "transport": 5}, "servers.it.transport", "text or a mapping"),
        ({"url": 5}, "servers.it.url", "a URL"),
        ({"url": "h.example/mcp"}, "servers.it.url", "http://"),
        ({"url": "file:///etc/passwd"}, "servers.it.url", "http://"),
        ({"url": "javascript:alert(1)"}, "servers.it.url", "http://"),
        ({"url": "http:///mcp"}, "servers.it.url", "a host"),
        ({"url": "http://h:99999/"}, "servers.it.url", "a URL such as"),
        ({"url": "http://[::1/"}, "servers.it.url", "a URL such as"),
        ({"url": "http://h/a b"}, "servers.it.url", "spaces"),
        ({"url": "http://h/\r\nX: y"}, "servers.it.url", "spaces"),
        ({"url": f"https://u:{SECRET}@h/"}, "servers.it.url", "Use a header instead."),
        ({"url": URL, "headers": {"A b": "x"}}, 'servers.it.headers["A b"]', "a header name"),
        ({"url": URL, "headers": {"A": f"{SECRET}\r\nB: c"}}, "servers.it.headers.A", "one line"),
        ({"url": URL, "headers": {"A": f"{SECRET}\0"}}, "servers.it.headers.A", "NUL"),
        ({"url": URL, "headers": {"a": "1", "A": "2"}}, "servers.it.headers.A", "each header once"),
        ({"url": URL, "headers": [SECRET]}, "servers.it.headers", "a mapping"),
        ({"url": URL, "verify_tls": "yes"}, "servers.it.verify_tls", "true or false"),
        ({"url": URL, "timeout": "30"}, "servers.it.timeout", "a number"),
        ({"url": URL, "timeout": -1}, "servers.it.timeout", "a number"),
        ({"url": URL, "timeout": True}, "servers.it.timeout", "a number"),
        ({"url": URL, "timeout": 1, "call_timeout": 2}, "servers.it.timeout", "one of the two"),
        ({"url": URL, "retry": 3}, "servers.it.retry", "maxAttempts"),
        ({"url": URL, "retry": {"maxAttempts": 1.5}}, "servers.it.retry.maxAttempts", "a whole number"),
        ({"url": URL, "retry": {"backoff": 1, "backoffMs": 2}}, "servers.it.retry.backoff", "one of the two"),
        ({"url": URL, "enabled": True, "disabled": True}, "servers.it.disabled", "one of the two"),
        ({"url": URL, "enabled": "no"}, "servers.it.enabled", "true or false"),
        ({"url": URL, "auth": "bearer"}, "servers.it.auth", "a mapping"),
        ({"url": URL, "timeout": 10**400}, "servers.it.timeout", "a number"),
        ({"url": URL, "enabled": "${HOME:-maybe}"}, "servers.it.enabled", "true or false"),
        ({"url": URL, "auth": {}}, "servers.it.auth", "no type"),
        ({"url": URL, "auth": {"type": "magic"}}, "servers.it.auth.type", "bearer"),
        ({"url": URL, "auth": {"type": "bearer"}}, "servers.it.auth", "token"),
        ({"url": URL, "auth": {"type": "api_key"}}, "servers.it.auth", "api_key"),
        (
            {"url": URL, "headers": {"authorization": SECRET}, "auth": {"type": "bearer", "token": SECRET}},
            "servers.it.auth",
            "one of the two",
        ),
        (
            {"url": URL, "auth": {"type": "api_key", "headerName": "A\nB", "apiKey": SECRET}},
            'servers.it.auth["A\\nB"]',
            "a header name",
        ),
        ({"url": URL, "auth": {"type": "bearer", "token": f"{SECRET}\n"}}, "servers.it.auth.Authorization", "one line"),
        ({"command": "${input:token}"}, "servers.it.command", "$${"),
        ({"command": "${A"}, "servers.it.command", "${VAR}"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_leaves_only_that_server_out(
    tmp_path: Path, entry: Any, key: str, told: str
) -> None:
    problem = the_error(load_entry(tmp_path, entry))
    assert problem.key == key
    assert problem.line == 1
    assert told in str(problem)
    assert SECRET not in str(problem)


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    "key",
    [
        *("alwaysAllow", "autoApprove", "trust", "description", "$schema", "startup_timeout_sec", "alwaysLoad"),
        *("required", "gallery", "inputs", "version", "_comment", "x-own"),
    ],
)
def test_what_only_other_clients_know_is_kept_quiet_about(tmp_path: Path, key: str) -> None:
    assert load_entry(tmp_path, {"command": "x", key: ["anything"]}).problems == ()


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    "key",
    [
        *("disabledTools", "includeTools", "excludeTools", "oauth", "bearer_token_env_var", "http_headers", "envFile"),
        *("env_http_headers", "something_else_entirely"),
    ],
)
def test_what_a_person_would_miss_is_warned_of_and_never_fatal(tmp_path: Path, key: str) -> None:
    config = load_entry(tmp_path, {"url": URL, key: SECRET})
    (problem,) = config.problems
    assert (problem.severity, problem.key) == (Severity.WARNING, f"servers.it.{key}")
    assert "it" in config.servers
    assert SECRET not in str(problem)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx -y server"},
        {"command": "x", "headers": {"A": "b"}},
        {"command": "x", "auth": {"type": "bearer", "token": "t"}},
        {"url": URL, "args": ["x"]},
        {"url": URL, "env": {"A": "b"}},
        {"url": "ws://h/", "type": "http"},
        {"url": URL, "auth": {"type": "oauth", "authUrl": URL, "tokenUrl": URL, "clientId": "c"}},
        {"url": URL, "timeout": 5000},
        {"name": "other", "command": "x"},
    ],
)
def test_what_has_no_effect_is_warned_of(tmp_path: Path, entry: dict[str, Any]) -> None:
    config = load_entry(tmp_path, entry)
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]
    assert the_server(config).headers == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "x", "headers": {}, "auth": {"type": "none"}, "verifySsl": True},
        {"url": URL, "args": [], "env": {}, "cwd": None},
        {"command": "x", "env": None, "name": "it"},
    ],
)
def test_leftovers_that_say_nothing_are_no_problem(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert load_entry(tmp_path, entry).problems == ()


@pytest.mark.req("BNS-3")
def test_a_missing_variable_is_told_by_name_and_place_for_that_server_only(tmp_path: Path) -> None:
    entry = {"command": "x", "env": {"T": "${GITHUB_TOKEN}"}}
    problem = the_error(load_entry(tmp_path, entry))
    assert (problem.file, problem.key) == (str(tmp_path / "config.json"), "servers.it.env.T")
    assert "GITHUB_TOKEN" in problem.expected


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${A}", "one"),
        ("${env:A}", "one"),
        ("x${A}y${A}", "xoneyone"),
        ("${NONE:-two}", "two"),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${A:-two}", "one"),
        ("${env:NONE:-a:-b}", "a:-b"),
        ("$A $$ $(A) {A} 5$", "$A $$ $(A) {A} 5$"),
        ("$${A}", "${A}"),
        ("${NESTED}", "${A}"),
    ],
)
def test_variables_are_filled_in_everywhere(tmp_path: Path, written: str, expected: str) -> None:
    environ = {"A": "one", "EMPTY": "", "NESTED": "${A}"}
    entry = {"command": "x", "args": [written], "env": {"K": written}}
    server = the_server(load_entry(tmp_path, entry, environ))
    assert (server.args, server.env) == ((expected,), {"K": expected})


def test_numbers_and_switches_may_come_from_variables(tmp_path: Path) -> None:
    entry = {"url": "${BASE}/mcp", "call_timeout": "${T}", "enabled": "${ON}", "headers": {"K": "Bearer ${K}"}}
    environ = {"BASE": "http://h", "T": "12.5", "ON": "false", "K": "k"}
    server = the_server(load_entry(tmp_path, entry, environ))
    assert (server.url, server.call_timeout, server.enabled) == ("http://h/mcp", 12.5, False)
    assert server.headers == {"K": "Bearer k"}


@pytest.mark.req("BNS-10")
def test_a_variable_cannot_smuggle_a_header_in(tmp_path: Path) -> None:
    config = load_entry(tmp_path, {"url": URL, "headers": {"K": "${K}"}}, {"K": f"{SECRET}\r\nX: y"})
    assert SECRET not in str(the_error(config))


@pytest.mark.parametrize(
    ("key", "given", "seconds"), [("servers", 30, 30.0), ("mcpServers", 30_000, 30.0), ("mcpServers", 2500, 2.5)]
)
def test_a_bare_timeout_counts_seconds_in_ours_and_milliseconds_in_theirs(
    tmp_path: Path, key: str, given: int, seconds: float
) -> None:
    config = load_entry(tmp_path, {"url": URL, "timeout": given}, key=key)
    assert (the_server(config).call_timeout, config.problems) == (seconds, ())


def test_a_timeout_of_a_few_milliseconds_is_doubted(tmp_path: Path) -> None:
    (problem,) = load_entry(tmp_path, {"url": URL, "timeout": 30}, key="mcpServers").problems
    assert "milliseconds" in problem.found


@pytest.mark.parametrize(("entry", "enabled"), [({"disabled": True}, False), ({"enabled": False}, False), ({}, True)])
def test_a_server_can_be_switched_off(tmp_path: Path, entry: dict[str, Any], enabled: bool) -> None:
    assert the_server(load_entry(tmp_path, {"command": "x", **entry})).enabled is enabled


def test_a_home_folder_is_written_with_a_tilde(tmp_path: Path) -> None:
    server = the_server(load_entry(tmp_path, {"command": "~/bin/x", "cwd": "~/w"}, {"HOME": "/home/u"}))
    assert (server.command, server.cwd) == ("/home/u/bin/x", "/home/u/w")


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize("name", ["crib", "Crib", "", " a", "a\nb", "a\u202eb", "x" * 200])
def test_a_name_that_cannot_be_used_is_an_error(tmp_path: Path, name: str) -> None:
    config = load_servers(tmp_path, {name: {"command": "x"}, "good": {"command": "x"}})
    assert [problem.severity for problem in config.problems] == [Severity.ERROR]
    assert list(config.servers) == ["good"]
    assert str(config.problems[0]).isprintable()


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize("second", ["My.Server", "my-server", "my.server"])
def test_names_that_tools_could_not_tell_apart_are_an_error(tmp_path: Path, second: str) -> None:
    first = "MY-SERVER" if second == "my-server" else "my_server"
    config = load_servers(tmp_path, {first: {"command": "x"}, second: {"command": "y"}})
    (problem,) = config.problems
    assert (problem.severity, list(config.servers)) == (Severity.ERROR, [first])


def test_a_list_s_item_without_a_name_is_an_error_for_that_item(tmp_path: Path) -> None:
    config = load_servers(tmp_path, [{"command": "x"}, "text", {"name": "good", "command": "x"}])
    assert [problem.key for problem in config.problems] == ["servers[0]", "servers[1]"]
    assert list(config.servers) == ["good"]


@pytest.mark.req("BNS-3")
def test_a_token_file_becomes_a_header(tmp_path: Path) -> None:
    write_token(tmp_path / "token", f"{SECRET}\n".encode())
    auth = {"type": "token_file", "tokenPath": str(tmp_path / "token")}
    server = the_server(load_entry(tmp_path, {"url": URL, "auth": auth}))
    assert server.headers == {"Authorization": f"Bearer {SECRET}"}
    write_token(tmp_path / "token", b"another")
    assert with_token(server).headers == {"Authorization": "Bearer another"}
    assert with_token(server).identity == server.identity, "the same server, with what is known of it"
    auth["headerName"] = "X-Token"
    named = the_server(load_entry(tmp_path, {"url": URL, "auth": auth}))
    assert (named.headers, named.identity != server.identity) == ({"X-Token": "another"}, True)


def write_token(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.write_bytes(content)
    path.chmod(mode)


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_token_file_that_others_can_use_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    write_token(tmp_path / "token", b"token", mode)
    auth = {"type": "token_file", "tokenPath": str(tmp_path / "token")}
    problem = the_error(load_entry(tmp_path, {"url": URL, "auth": auth}))
    assert (problem.key, "chmod 600" in str(problem)) == ("servers.it.auth.tokenPath", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_token(tmp_path / "token", b"token")
    os.chown(tmp_path / "token", 12345, 12345)
    auth = {"type": "token_file", "tokenPath": str(tmp_path / "token")}
    assert "another user" in str(the_error(load_entry(tmp_path, {"url": URL, "auth": auth})))


@pytest.mark.parametrize("content", [None, b"", b"two words", b"line\nline", b"\xff\xfe", b"x" * 70_000])
def test_a_token_file_that_holds_no_token_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        write_token(tmp_path / "token", content)
    auth = {"type": "token_file", "tokenPath": str(tmp_path / "token")}
    assert the_error(load_entry(tmp_path, {"url": URL, "auth": auth})).key == "servers.it.auth.tokenPath"


def test_an_api_key_without_a_header_name_has_the_usual_one(tmp_path: Path) -> None:
    entry = {"url": URL, "auth": {"type": "apiKey", "api_key": "k"}}
    assert the_server(load_entry(tmp_path, entry)).headers == {"X-API-Key": "k"}


def test_a_server_s_repr_holds_no_secret(tmp_path: Path) -> None:
    server = the_server(load_entry(tmp_path, {"url": URL, "headers": {"K": SECRET}}))
    assert SECRET not in repr(server)


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/opt/venv/bin/toolcrib", "args": ["stdio"]},
        {"command": "toolcrib", "args": ["stdio"]},
        {"command": "python3", "args": ["-m", "toolcrib", "stdio"]},
    ],
)
def test_toolcrib_is_no_server_of_its_own(entry, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"mcpServers": {"toolcrib": entry, "other": {"command": "cat"}}}))
    environ = {"TOOLCRIB_HOME": str(tmp_path), "HOME": str(tmp_path)}
    config = load(paths=Paths.of_user(environ), root=None, environ=environ)
    assert set(config.servers) == {"other"}
    assert "Toolcrib itself" in str(config.problems[0])
