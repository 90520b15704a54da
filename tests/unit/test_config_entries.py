"""One server's entry: every accepted spelling and every mistake."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.auth import with_token
from toolcrib.config.layers import load
from toolcrib.config.masking import Masker, secrets_of_server
from toolcrib.config.model import Config, Grant, OAuthSettings, Problem, SamplingMode, ServerConfig, Severity, Transport
from toolcrib.config.paths import Paths
from toolcrib.config.show import mask, mask_server

SECRET = "very-secret-value"


def load_servers(folder: Path, servers: Any, environ: dict[str, str] | None = None, key: str = "servers") -> Config:
    (folder / "config.json").write_text(json.dumps({key: servers}))
    return load(paths=Paths.of_user({"TOOLCRIB_HOME": str(folder)}), root=None, environ=environ or {})


def load_entry(folder: Path, entry: Any, environ: dict[str, str] | None = None, key: str = "servers") -> Config:
    """The entry under test, between two valid ones, which must not be affected."""
    good = {"command": "true"}
    config = load_servers(folder, {"before": good, "it": entry, "after": good}, environ, key)
    assert {"before", "after"} <= config.servers.keys()
    return config


def errors(config: Config) -> list[Problem]:
    return [problem for problem in config.problems if problem.severity is Severity.ERROR]


def the_error(config: Config) -> Problem:
    (problem,) = errors(config)
    assert "it" not in config.servers
    return problem


def the_server(config: Config) -> ServerConfig:
    assert errors(config) == []
    return config.servers["it"]


URL = "https://h.example/mcp"
BEARER = {"type": "bearer", "token": SECRET}
OAUTH = {"type": "oauth", "client_id": "c"}
API_KEY = {"type": "api_key", "apiKey": SECRET}


HTTP_NAMES = ("http", "HTTP", "streamable-http", "streamable_http", "streamableHttp", "websocket", "ws")


@pytest.mark.req("ENG-1", "BNS-3")
@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "x"}, Transport.STDIO),
        ({"type": "stdio", "command": "x"}, Transport.STDIO),
        *(({key: URL}, Transport.HTTP) for key in ("url", "httpUrl", "http_url")),
        *(({"url": URL, "transport": name}, Transport.HTTP) for name in HTTP_NAMES),
        ({"url": URL, "type": "http"}, Transport.HTTP),
        ({"url": URL, "transport": "sse"}, Transport.SSE),
        ({"url": "ws://h/mcp"}, Transport.WEBSOCKET),
        ({"url": "wss://h/mcp", "transport": "websocket"}, Transport.WEBSOCKET),
        ({"url": "WSS://h/mcp"}, Transport.WEBSOCKET),
        ({"transport": {"type": "sse", "url": URL}}, Transport.SSE),
        ({"transport": "sse", "connection": {"url": URL}}, Transport.SSE),
        ({"type": "sse", "transport": "sse", "url": URL}, Transport.SSE),
    ],
)
def test_a_transport_is_accepted_in_every_spelling(tmp_path, entry, transport):
    config = load_entry(tmp_path, entry)
    assert (the_server(config).transport, config.problems) == (transport, ())


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ({"comand": "x"}, ".comand", "Did you mean command?"),
        ({"ulr": URL}, ".ulr", "Did you mean url?"),
        ({"command": "x", "arg": []}, ".arg", "Did you mean args?"),
        ({"command": "x", "cmd": "y"}, ".cmd", "Did you mean command?"),
        ({"url": URL, "heders": {}}, ".heders", "Did you mean headers?"),
        ({"url": URL, "verifySSl": True, "verify_sl": True}, ".verify_sl", "Did you mean verify_ssl?"),
        ({"url": URL, "retry": {"maxAttempt": 3}}, ".retry.maxAttempt", "Did you mean max_attempts?"),
        ({"url": URL, "auth": {"type": "bearer", "token": "t", "tokn": 1}}, ".auth.tokn", "mean token?"),
        ({}, "", "neither command nor url"),
        ({"command": "x", "url": URL}, "", "both command and url"),
        ({"type": "stdio", "url": URL}, "", "without command"),
        ({"type": "http", "command": "x"}, "", "without url"),
        ({"type": "pigeon", "url": URL}, ".type", "stdio, http, streamable-http, sse or websocket"),
        ({"type": "sse", "transport": "http", "url": URL}, ".transport", "'type'"),
        ({"url": URL, "httpUrl": URL + "2"}, ".httpUrl", "'url'"),
        ("text", "", "a mapping"),
        (None, "", "a mapping"),
        ([], "", "a mapping"),
        ({"command": 3}, ".command", "the program to start"),
        ({"command": " "}, ".command", "the program to start"),
        ({"command": ["npx"]}, ".command", "the program to start"),
        ({"command": "x", "args": "a b"}, ".args", "a list of strings"),
        ({"command": "x", "args": ["a", {}]}, ".args[1]", "text"),
        ({"command": "x", "args": [1.5]}, ".args[0]", "Put it in quotes."),
        ({"command": "x", "args": ["a\0b"]}, ".args[0]", "NUL"),
        ({"command": "x", "args": ["\ud800"]}, ".args[0]", "surrogate"),
        ({"command": "x", "env": ["A=1"]}, ".env", "a mapping"),
        ({"command": "x", "env": {"A=B": "1"}}, '.env["A=B"]', "a variable name"),
        ({"command": "x", "cwd": "here"}, ".cwd", "an absolute path"),
        ({"command": "x", "connection": "y"}, ".connection", "a mapping"),
        ({"command": "x", "transport": 5}, ".transport", "text or a mapping"),
        ({"url": 5}, ".url", "a URL"),
        ({"url": "h.example/mcp"}, ".url", "http://"),
        ({"url": "file:///etc/passwd"}, ".url", "http://"),
        ({"url": "javascript:alert(1)"}, ".url", "http://"),
        ({"url": "http:///mcp"}, ".url", "a host"),
        ({"url": "http://h:99999/"}, ".url", "a URL such as"),
        ({"url": "http://[::1/"}, ".url", "a URL such as"),
        ({"url": "http://h/a b"}, ".url", "spaces"),
        ({"url": "http://h/\r\nX: y"}, ".url", "spaces"),
        ({"url": f"https://u:{SECRET}@h/"}, ".url", "Use a header instead."),
        ({"url": URL, "headers": {"A b": "x"}}, '.headers["A b"]', "a header name"),
        ({"url": URL, "headers": {"A": f"{SECRET}\r\nB: c"}}, ".headers.A", "one line"),
        ({"url": URL, "headers": {"A": f"{SECRET}\0"}}, ".headers.A", "NUL"),
        ({"url": URL, "headers": {"a": "1", "A": "2"}}, ".headers.A", "each header once"),
        ({"url": URL, "headers": [SECRET]}, ".headers", "a mapping"),
        ({"url": URL, "verify_tls": "yes"}, ".verify_tls", "true or false"),
        ({"url": URL, "timeout": "30"}, ".timeout", "a number"),
        ({"url": URL, "timeout": -1}, ".timeout", "a number"),
        ({"url": URL, "timeout": True}, ".timeout", "a number"),
        ({"url": URL, "timeout": 1, "call_timeout": 2}, ".timeout", "one of the two"),
        ({"url": URL, "call_timeouts": 3}, ".call_timeouts", "a mapping"),
        ({"url": URL, "cache": "soon"}, ".cache", "a number from 0 to 86400"),
        ({"url": URL, "cache": 86_401}, ".cache", "a number from 0 to 86400"),
        ({"url": URL, "cache": {"t": -1}}, ".cache.t", "a number from 0 to 86400"),
        ({"url": URL, "call_timeouts": {"t": "x"}}, ".call_timeouts.t", "a number"),
        ({"url": URL, "max_waiting_calls": 0}, ".max_waiting_calls", "a whole number"),
        ({"url": URL, "retry": 3}, ".retry", "maxAttempts"),
        ({"url": URL, "retry": {"maxAttempts": 1.5}}, ".retry.maxAttempts", "a whole number"),
        ({"url": URL, "retry": {"backoff": 1, "backoffMs": 2}}, ".retry.backoff", "one of the two"),
        ({"url": URL, "enabled": True, "disabled": True}, ".disabled", "only one of them"),
        ({"url": URL, "enabled": "no"}, ".enabled", "true or false"),
        ({"url": URL, "auth": "bearer"}, ".auth", "a mapping"),
        ({"url": URL, "timeout": 10**400}, ".timeout", "a number"),
        ({"url": URL, "enabled": "${HOME:-maybe}"}, ".enabled", "true or false"),
        ({"url": URL, "auth": {}}, ".auth", "no type"),
        ({"url": URL, "auth": {"type": "magic"}}, ".auth.type", "bearer"),
        ({"url": URL, "auth": {"type": "bearer"}}, ".auth", "token"),
        ({"url": URL, "auth": {"type": "api_key"}}, ".auth", "api_key"),
        ({"url": URL, "auth": {"type": "basic", "username": "u"}}, ".auth", "password"),
        ({"url": URL, "auth": {"type": "basic", "username": "u:v", "password": SECRET}}, ".auth.username", "a colon"),
        ({"url": URL, "headers": {"authorization": SECRET}, "auth": BEARER}, ".auth", "one of the two"),
        ({"url": URL, "headers": {"Authorization": SECRET}, "auth": {"type": "oauth"}}, ".auth", "one of the two"),
        ({"url": URL, "auth": {"type": "client_credentials", "client_secret": SECRET}}, ".auth", "client_id"),
        ({"url": URL, "auth": {"type": "client_credentials", "client_id": "c"}}, ".auth", "client_secret"),
        ({"url": URL, "auth": {**OAUTH, "auth_url": URL}}, ".auth", "token_url"),
        ({"url": URL, "auth": {**OAUTH, "token_url": "http://h.example/token"}}, ".auth.token_url", "https://"),
        ({"url": URL, "auth": {**OAUTH, "token_url": f"https://u:{SECRET}@h/"}}, ".auth.token_url", "without user"),
        ({"url": URL, "auth": {**OAUTH, "client_metadata_url": "file:///x"}}, ".auth.client_metadata_url", "https://"),
        ({"url": URL, "auth": {**OAUTH, "redirect_port": 70000}}, ".auth.redirect_port", "a whole number"),
        ({"url": URL, "auth": {**OAUTH, "scopes": {}}}, ".auth.scopes", "text"),
        ({"url": "http://h.example/mcp", "auth": OAUTH}, ".url", "https://"),
        ({"url": URL, "auth": {**API_KEY, "headerName": "A\nB"}}, '.auth["A\\nB"]', "a header name"),
        ({"url": URL, "auth": {"type": "bearer", "token": f"{SECRET}\n"}}, ".auth.Authorization", "one line"),
        ({"command": "${input:token}"}, ".command", "toolcrib secret set token"),
        ({"command": "${input:}"}, ".command", "$${"),
        ({"command": "${A"}, ".command", "${VAR}"),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_only_that_server_is_ignored(tmp_path, entry, key, message):
    problem = the_error(load_entry(tmp_path, entry))
    assert (problem.key, problem.line) == (f"servers.it{key}", 1)
    assert message in str(problem)
    assert SECRET not in str(problem)


QUIET = ("alwaysAllow", "autoApprove", "trust", "description", "$schema", "startup_timeout_sec", "alwaysLoad")
QUIET += ("required", "gallery", "inputs", "version", "_comment", "x-own")


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    "entry",
    [
        *({"command": "x", key: ["anything"]} for key in QUIET),
        {"command": "x", "headers": {}, "auth": {"type": "none"}, "verifySsl": True},
        {"url": URL, "args": [], "env": {}, "cwd": None},
        {"command": "x", "env": None, "name": "it"},
    ],
)
def test_keys_of_other_clients_and_empty_values_are_not_a_problem(tmp_path, entry):
    assert load_entry(tmp_path, entry).problems == ()


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    "key",
    [
        *("enabledTools", "includeTools", "excludeTools", "oauth", "bearer_token_env_var", "http_headers", "envFile"),
        *("env_http_headers", "something_else_entirely"),
    ],
)
def test_keys_of_other_clients_with_an_effect_lead_to_a_warning(tmp_path, key):
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
        {"url": URL, "timeout": 5000},
        {"name": "other", "command": "x"},
    ],
)
def test_values_without_an_effect_lead_to_a_warning(tmp_path, entry):
    config = load_entry(tmp_path, entry)
    assert [problem.severity for problem in config.problems] == [Severity.WARNING]
    assert the_server(config).headers == {}


@pytest.mark.req("BNS-3")
def test_a_missing_variable_is_reported_with_its_name_and_place(tmp_path):
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
def test_variables_are_expanded(tmp_path, written, expected):
    environ = {"A": "one", "EMPTY": "", "NESTED": "${A}"}
    entry = {"command": "x", "args": [written], "env": {"K": written}}
    server = the_server(load_entry(tmp_path, entry, environ))
    assert (server.args, server.env) == ((expected,), {"K": expected})


@pytest.mark.req("BNS-10")
def test_numbers_and_switches_may_come_from_variables_but_no_second_header(tmp_path):
    entry = {"url": "${BASE}/mcp", "call_timeout": "${T}", "enabled": "${ON}", "headers": {"K": "Bearer ${K}"}}
    environ = {"BASE": "http://h", "T": "12.5", "ON": "false", "K": "k"}
    server = the_server(load_entry(tmp_path, entry, environ))
    assert (server.url, server.call_timeout, server.enabled) == ("http://h/mcp", 12.5, False)
    assert server.headers == {"K": "Bearer k"}
    config = load_entry(tmp_path, {"url": URL, "headers": {"K": "${K}"}}, {"K": f"{SECRET}\r\nX: y"})
    assert SECRET not in str(the_error(config))


def test_timeout_is_in_seconds_or_in_milliseconds_under_mcp_servers(tmp_path):
    for key, timeout, seconds in (("servers", 30, 30.0), ("mcpServers", 30_000, 30.0), ("mcpServers", 2500, 2.5)):
        config = load_entry(tmp_path, {"url": URL, "timeout": timeout}, key=key)
        assert (the_server(config).call_timeout, config.problems) == (seconds, ())
    (problem,) = load_entry(tmp_path, {"url": URL, "timeout": 30}, key="mcpServers").problems
    assert "milliseconds" in problem.found


def test_a_server_can_be_switched_off_and_a_tilde_is_the_home_folder(tmp_path):
    for switch, enabled in (({"disabled": True}, False), ({"enabled": False}, False), ({}, True)):
        assert the_server(load_entry(tmp_path, {"command": "x", **switch})).enabled is enabled
    server = the_server(load_entry(tmp_path, {"command": "~/bin/x", "cwd": "~/w"}, {"HOME": "/home/u"}))
    assert (server.command, server.cwd) == ("/home/u/bin/x", "/home/u/w")


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize("name", ["crib", "Crib", "", " a", "a\nb", "a\u202eb", "x" * 200])
def test_an_invalid_name_is_an_error(tmp_path, name):
    config = load_servers(tmp_path, {name: {"command": "x"}, "good": {"command": "x"}})
    assert [problem.severity for problem in config.problems] == [Severity.ERROR]
    assert list(config.servers) == ["good"]
    assert str(config.problems[0]).isprintable()


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize("second", ["My.Server", "my-server", "my.server"])
def test_names_that_differ_only_in_case_or_special_characters_are_an_error(tmp_path, second):
    first = "MY-SERVER" if second == "my-server" else "my_server"
    config = load_servers(tmp_path, {first: {"command": "x"}, second: {"command": "y"}})
    (problem,) = config.problems
    assert (problem.severity, list(config.servers)) == (Severity.ERROR, [first])


def test_a_list_item_without_a_name_is_an_error(tmp_path):
    config = load_servers(tmp_path, [{"command": "x"}, "text", {"name": "good", "command": "x"}])
    assert [problem.key for problem in config.problems] == ["servers[0]", "servers[1]"]
    assert list(config.servers) == ["good"]


@pytest.fixture
def token(tmp_path):
    """Loads an entry with a token file of this content and mode."""

    def loaded(content, mode=0o600, owner=None, **auth):
        if content is not None:
            (tmp_path / "token").write_bytes(content)
            (tmp_path / "token").chmod(mode)
        if owner is not None:
            os.chown(tmp_path / "token", owner, owner)
        auth |= {"type": "token_file", "tokenPath": str(tmp_path / "token")}
        return load_entry(tmp_path, {"url": URL, "auth": auth})

    return loaded


@pytest.mark.req("BNS-3")
def test_a_token_file_becomes_a_header(token):
    server = the_server(token(f"{SECRET}\n".encode()))
    assert server.headers == {"Authorization": f"Bearer {SECRET}"}
    named = the_server(token(b"another", headerName="X-Token"))
    assert (named.headers, named.identity != server.identity) == ({"X-Token": "another"}, True)
    assert with_token(server).headers == {"Authorization": "Bearer another"}
    assert with_token(server).identity == server.identity, "a new token does not make it another server"


@pytest.mark.req("BNS-10")
def test_a_token_file_that_others_can_access_is_refused_with_the_remedy(token):
    for mode in (0o640, 0o604, 0o620, 0o602, 0o610):
        problem = the_error(token(b"token", mode))
        assert (problem.key, "chmod 600" in str(problem)) == ("servers.it.auth.tokenPath", True), oct(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_another_user_is_refused(token):
    assert "another user" in str(the_error(token(b"token", owner=12345)))


@pytest.mark.parametrize("content", [None, b"", b"two words", b"line\nline", b"\xff\xfe", b"x" * 70_000])
def test_a_token_file_without_exactly_one_token_is_an_error(token, content):
    assert the_error(token(content)).key == "servers.it.auth.tokenPath"


def test_an_api_key_has_a_default_header_and_is_not_in_the_repr(tmp_path):
    server = the_server(load_entry(tmp_path, {"url": URL, "auth": {"type": "apiKey", "api_key": SECRET}}))
    assert server.headers == {"X-API-Key": SECRET}
    assert SECRET not in repr(server)


def test_a_user_and_a_password_become_a_header_and_the_password_is_masked(tmp_path):
    auth = {"type": "basic", "username": "Aladdin", "password": "${LAMP}"}
    server = the_server(load_entry(tmp_path, {"url": URL, "auth": auth}, environ={"LAMP": "open sesame"}))
    assert server.headers == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}, "the example of RFC 7617"
    shown = Masker(secrets_of_server(server))("Aladdin, open sesame: QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    assert shown == "Aladdin, ****: ****"
    assert mask_server(server)["headers"] == {"Authorization": "Basic ****${LAMP}"}


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("words", ["/opt/venv/bin/toolcrib stdio", "toolcrib stdio", "python3 -m toolcrib stdio"])
def test_an_entry_that_starts_toolcrib_itself_is_ignored(words, tmp_path):
    command, *args = words.split()
    config = load_entry(tmp_path, {"command": command, "args": args}, key="mcpServers")
    assert set(config.servers) == {"before", "after"}
    assert "Toolcrib itself" in str(config.problems[0])


@pytest.mark.req("BNS-7")
@pytest.mark.parametrize(
    ("entry", "on_demand", "idle", "per_project"),
    [
        ({"command": "x"}, True, 600, False),
        ({"command": "x", "start": "eager"}, False, 0, False),
        ({"command": "x", "start": "eager", "idleMinutes": 1}, False, 60, False),
        ({"command": "x", "idle_minutes": 0}, True, 0, False),
        ({"command": "x", "share": "all"}, True, 600, False),
        ({"command": "x", "share": "project"}, True, 600, True),
        ({"command": "x", "share": "agent"}, True, 600, True),
        ({"command": "x", "cwd": "project"}, True, 600, True),
        ({"url": URL}, False, 0, False),
        ({"url": URL, "start": "on-demand", "share": "agent"}, True, 600, True),
    ],
)
def test_an_entry_says_when_its_server_runs_and_who_shares_it(tmp_path, entry, on_demand, idle, per_project):
    server = the_server(load_entry(tmp_path, entry))
    assert (server.starts_on_demand, server.idle_seconds, server.is_per_project) == (on_demand, idle, per_project)
    assert server.identity == the_server(load_entry(tmp_path, {**entry, "start": "eager"})).identity


@pytest.mark.req("BNS-7")
@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"share": "all", "cwd": "project"}, "starts in each project's folder"),
        ({"share": "all", "args": ["${workspaceFolder}"]}, "differs between projects"),
        ({"share": "everyone"}, "everyone"),
        ({"share": True}, "true"),
        ({"start": "lazy"}, "lazy"),
        ({"idle_minutes": -1}, "-1"),
        ({"idle_minutes": "soon"}, "soon"),
    ],
)
def test_a_server_that_cannot_run_as_its_entry_says_is_refused(tmp_path, entry, found):
    problem = the_error(load_entry(tmp_path, {"command": "x", **entry}))
    assert found in problem.found
    assert problem.key.startswith("servers.it.")


@pytest.mark.req("BNS-7", "BNS-10")
def test_a_projects_file_cannot_share_its_server_with_other_projects(tmp_path):
    file = tmp_path / "project" / ".toolcrib" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"servers": {"it": {"command": "x", "cwd": "/", "share": "all"}}}))
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    config = load(paths=paths, root=tmp_path / "project", environ={}, is_trusted=lambda *_: True)
    assert "share: all in a project's file" in str(the_error(config))


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(("sampling", "accepted"), [("deny", True), ("ask", True), ("allow", False)])
def test_a_projects_file_cannot_give_its_servers_the_clients_model(tmp_path, sampling, accepted):
    file = tmp_path / "project" / ".mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"it": {"command": "x", "sampling": sampling}}}))
    mine = {"servers": {"it": {"command": "x", "sampling": "deny"}}}
    (tmp_path / "config.json").write_text(json.dumps(mine))
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    config = load(paths=paths, root=file.parent, environ={}, is_trusted=lambda *_: True)
    if accepted:
        assert the_server(config).sampling == sampling
    else:
        assert "sampling: allow in a project's file" in str(the_error(config))
    untrusted = load(paths=paths, root=file.parent, environ={})
    assert the_server(untrusted).sampling is SamplingMode.DENY
    assert any(f'sampling: "{sampling}"' in effect for one in untrusted.waiting for effect in one.effects)


def test_tools_are_switched_off_in_a_servers_entry_and_in_a_file_with_higher_precedence(tmp_path):
    assert load_entry(tmp_path, {"url": URL, "disabledTools": ["a"]}).servers["it"].disabled_tools == ("a",)
    wrong = load_entry(tmp_path, {"url": URL, "disabled_tools": "a"})
    assert ("it" in wrong.servers, wrong.problems[0].expected) == (False, "a list of strings")
    ours = {"TOOLCRIB_SERVERS": json.dumps({"it": {"disabled_tools": ["b"]}})}
    merged = load_entry(tmp_path, {"url": URL, "disabled_tools": ["a"]}, environ=ours)
    assert (merged.servers["it"].disabled_tools, merged.servers["it"].enabled) == (("a", "b"), True)


@pytest.mark.req("BNS-6")
def test_a_remote_server_without_a_token_can_have_an_account(tmp_path):
    for url in (URL, "http://127.0.0.1:1/mcp", "wss://h.example/"):
        assert the_server(load_entry(tmp_path, {"url": url})).oauth == OAuthSettings()
    for entry in (
        {"command": "x"},
        {"url": "http://h.example/mcp"},
        {"url": URL, "auth": {"type": "none"}},
        {"url": URL, "auth": BEARER},
        {"url": URL, "headers": {"authorization": SECRET}},
    ):
        assert the_server(load_entry(tmp_path, entry)).oauth is None


@pytest.mark.req("BNS-6")
def test_the_details_of_a_sign_in_are_read_and_its_secret_is_hidden(tmp_path):
    auth = {"type": "oauth", "authUrl": URL, "tokenUrl": URL, "clientId": "c", "clientSecret": "${OAUTH_SECRET}"}
    auth |= {"scopes": "read write", "redirectPort": 8123, "clientMetadataUrl": "https://me.example/client.json"}
    config = load_entry(tmp_path, {"url": URL, "auth": auth}, {"OAUTH_SECRET": SECRET})
    server = the_server(config)
    assert server.oauth == OAuthSettings(
        client_id="c",
        client_secret=SECRET,
        client_metadata_url="https://me.example/client.json",
        scopes=("read", "write"),
        auth_url=URL,
        token_url=URL,
        redirect_port=8123,
    )
    assert (server.headers, config.problems) == ({}, ())
    shown = mask(config)["servers"]["it"]["auth"]
    assert (shown["client_secret"], shown["client_id"], shown["scopes"]) == ("${OAUTH_SECRET}", "c", ["read", "write"])
    assert SECRET not in f"{server!r}{mask(config)}"
    assert secrets_of_server(server) == {SECRET: "client_secret of server it"}


@pytest.mark.req("BNS-6")
def test_another_client_is_another_server(tmp_path):
    def server(**auth):
        return the_server(load_entry(tmp_path, {"url": URL, "auth": {"type": "oauth", **auth}}))

    default = the_server(load_entry(tmp_path, {"url": URL}))
    assert server().identity == default.identity
    assert len({default.identity, server(clientId="a").identity, server(clientId="b").identity}) == 3
    robot = {"type": "client_credentials", "clientId": "a", "clientSecret": SECRET, "scopes": ["read"]}
    found = the_server(load_entry(tmp_path, {"url": URL, "auth": robot}))
    assert found.oauth == OAuthSettings(
        grant=Grant.CLIENT_CREDENTIALS, client_id="a", client_secret=SECRET, scopes=("read",)
    )
    assert found.identity != server(clientId="a").identity


def test_a_server_may_not_ask_the_clients_model_by_default(tmp_path):
    assert the_server(load_entry(tmp_path, {"command": "true"})).sampling is SamplingMode.DENY
    assert the_server(load_entry(tmp_path, {"url": URL, "sampling": "ASK"})).sampling is SamplingMode.ASK
    shown = mask_server(the_server(load_entry(tmp_path, {"url": URL, "sampling": "allow", "roots": "client"})))
    assert (shown["sampling"], shown["roots"]) == ("allow", "client")


@pytest.mark.req("KSI-8")
@pytest.mark.parametrize(("key", "expected"), [("sampling", "deny, ask, allow"), ("roots", "none, project, client")])
@pytest.mark.parametrize("value", ["always", "", True, 1, ["allow"], {"allow": True}])
def test_what_a_server_may_ask_is_one_of_three_words(tmp_path, key, expected, value):
    problem = the_error(load_entry(tmp_path, {"command": "true", key: value}))
    assert (problem.key.rpartition(".")[2], problem.expected) == (key, f"one of {expected}")
