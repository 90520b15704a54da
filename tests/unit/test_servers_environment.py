"""A server's environment variables, its masked log, its address and proxy, explained failures, and the reaper."""

from __future__ import annotations

import asyncio
import email.utils
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from toolcrib.config.masking import Masker, secrets_of_server
from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import web
from toolcrib.servers.environment import child_environment
from toolcrib.servers.post_client import ConnectionBroken
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.stdio import MAX_LINE_LENGTH, StderrLog
from toolcrib.servers.web import explain, explain_network, explain_status, root_cause

pytestmark = pytest.mark.req("BNS-10")


def masker(layer: Layer = Layer.USER, **settings: Any) -> Masker:
    config = ServerConfig(name="s", transport=Transport.STDIO, source=ConfigSource(layer=layer), **settings)
    return Masker(secrets_of_server(config))


def test_a_child_inherits_an_allow_list_and_its_configured_variables_win() -> None:
    allowed = {"HOME": "/home/me", "LC_ALL": "C", "XDG_CACHE_HOME": "/c", "http_proxy": "http://proxy:3128"}
    allowed["NO_PROXY"] = "localhost,10.0.0.0/8"
    others = {"PATH": "/bin", "OPENAI_API_KEY": "k", "TOOLCRIB_CHILD": "an outer one", "LD_PRELOAD": "x.so"}
    others["HTTPS_PROXY"] = "http://me:word@proxy:3128"
    configured = {"PATH": "/opt/bin", "KEY": "v"}
    seen = child_environment(configured, {**allowed, **others}, "mark")
    assert seen == {**allowed, **configured, "TOOLCRIB_CHILD": "mark"}


@pytest.mark.parametrize(
    ("ours", "seen"), [(":/bin", "/bin"), ("node_modules/.bin:/opt/bin::/bin:", "/opt/bin:/bin"), (".", os.defpath)]
)
def test_a_child_does_not_inherit_relative_folders_of_path(ours: str, seen: str) -> None:
    assert child_environment({}, {"PATH": ours}, "mark")["PATH"] == seen


def test_common_values_that_a_project_supplies_are_not_masked() -> None:
    mask = masker(Layer.PROJECT, supplied={"SHELL": "/bin/bash", "MY_KEY": "/bin/secret"}).named
    assert mask("/bin/bash /bin/secret") == "/bin/bash [secret MY_KEY of server s]"


@pytest.mark.parametrize(
    ("settings", "text", "shown"),
    [
        (
            {
                "env": {"KEY": "abcdef-secret", "MODE": "prod"},
                "headers": {"Authorization": "Bearer tok-12345", "X-Key": "xkey-value"},
                "url": "https://u:passw0rd@h/mcp?key=querysecret&a=1",
            },
            "abcdef-secret prod tok-12345 Bearer tok-12345 xkey-value passw0rd querysecret",
            "**** prod **** **** **** **** ****",
        ),
        (
            {
                "args": (
                    *("--api-key", "plain-words", "postgresql://u:s%40cret@h/db", "--token=abc-def"),
                    *("sk-12345678", "--mode"),
                ),
                "env": {"DATABASE_URL": "mysql://root:other@word@h/db"},
            },
            "plain-words s%40cret s@cret u:s%40cret@h abc-def sk-12345678 other@word --mode postgresql",
            "**** **** **** ****@h **** **** **** --mode postgresql",
        ),
    ],
)
def test_configured_secrets_are_masked_everywhere(settings: dict[str, Any], text: str, shown: str) -> None:
    assert masker(**settings).line(text) == shown


def test_a_log_is_bounded_in_memory_and_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.servers.stdio.MAX_FILE_SIZE", 1000)
    file = tmp_path / "deep" / "s.log"
    log = StderrLog(file, lambda text: text.replace("secret", "***"))
    log.feed(b"a secr")
    log.feed(b"et\n\xff\n" + b"y" * (MAX_LINE_LENGTH + 50) + b"\nno end")
    log.end()
    assert log.tail(4) == ["a ***", "\ufffd", "y" * MAX_LINE_LENGTH + " …", "no end"]
    assert log.tail(0) == []
    for number in range(2000):
        log.feed(f"line {number}\n".encode())
    assert log.tail(1) == ["line 1999"]
    assert len(log.tail(10_000)) == 500
    sizes = {path.name: path.stat().st_size for path in file.parent.iterdir()}
    assert set(sizes) == {"s.log", "s.log.1"}
    assert max(sizes.values()) < 1100
    log.end()


def test_a_log_is_opened_once_and_two_writers_keep_it_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    open_file = StderrLog._open
    monkeypatch.setattr(StderrLog, "_open", lambda log, file: opened.append(file) or open_file(log, file))
    file = tmp_path / "s.log"
    logs = [StderrLog(file, str) for _ in range(2)]

    def feed(lines: int) -> None:
        for number in range(lines):
            for log in logs:
                log.feed(f"one {number}\n".encode())

    feed(20)
    assert len(opened) == 2
    assert len(file.read_text().splitlines()) == 40
    monkeypatch.setattr("toolcrib.servers.stdio.MAX_FILE_SIZE", 1000)
    feed(500)
    assert {path.name for path in tmp_path.iterdir()} == {"s.log", "s.log.1"}
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1100
    for log in logs:
        log.end()


def test_lines_of_the_previous_process_stay_readable_but_are_not_the_new_ones_last_words() -> None:
    log = StderrLog(None, str)
    log.begin()
    log.feed(b"one\ntwo\n")
    assert log.last_words() == ["one", "two"]
    log.begin()
    assert (log.tail(5), log.last_words()) == (["one", "two"], [])
    log.feed(b"three\n")
    assert (log.tail(5), log.last_words()) == (["one", "two", "three"], ["three"])


def test_a_servers_output_cannot_forge_lines_or_move_the_cursor() -> None:
    log = StderrLog(None, Masker().line)
    log.feed(b"fine\r\n\tindented\n\x1b[2Jgone\x0bnext\n")
    assert log.tail(3) == ["fine", "        indented", "\\x1b[2Jgone\\x0bnext"]
    assert Masker().line("one\ntwo") == "one\\ntwo"


def test_a_log_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    log = StderrLog(tmp_path / "file" / "s.log", str)
    log.feed(b"one\n")
    log.feed(b"two\n")
    assert log.tail(2) == ["one", "two"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("http://h/mcp", "/mcp/", "http://h/mcp/"),
        ("http://h/mcp", "http://H:80/x", "http://H:80/x"),
        ("http://h/mcp", "https://h/mcp", "https://h/mcp"),
        ("http://h:8080/mcp", "https://h/mcp", None),
        ("https://h/mcp", "http://h/mcp", None),
        ("https://h/mcp", "https://evil/mcp", None),
        ("https://h/mcp", "//evil/mcp", None),
    ],
)
def test_a_redirect_is_followed_within_its_origin_only(url: str, location: str, target: str | None) -> None:
    assert web.redirect_target(url, location) == target


def test_an_address_is_shown_without_possible_keys() -> None:
    assert web.shown_url("https://u:p@h:8443/mcp?key=1#x") == "https://h:8443/mcp"


def test_loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.example")
    urls = ("http://127.0.0.1:1/mcp", "http://inside.example/mcp", "ws://outside.example/mcp")
    assert [web.proxy_for(url) for url in urls] == [None, None, "http://proxy:1"]


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(), "connection refused"),
        (socket.gaierror(), "not be resolved"),
        (TimeoutError(), "in time"),
        (ConnectionResetError(), "closed the connection"),
        (ssl.SSLCertVerificationError(), "not trusted"),
        (certificate_error(10), "has expired"),
        (certificate_error(62), "for another host"),
        (certificate_error(20), "not trusted"),
        (ConnectionBroken("closed the connection in the middle of an answer."), "/mcp closed the connection in the"),
        (
            httpx2.RemoteProtocolError("with Bearer abc"),
            "/mcp broke off its answer, or sent one that is not valid HTTP",
        ),
        (ValueError("with Bearer abc"), "ValueError"),
    ],
)
def test_a_network_failure_is_explained_without_secrets(error: Exception, text: str) -> None:
    outer = OSError("outer")
    outer.__cause__ = error
    explained = explain_network(error, "https://u:p@h/mcp?key=1")
    assert text in explained
    assert "Bearer" not in explained
    assert "key=1" not in explained
    if not isinstance(error, ValueError | httpx2.RemoteProtocolError):
        assert text in explain_network(outer, "https://h/mcp")


def test_the_time_in_retry_after_is_shown_and_limited() -> None:
    def explained(value: str) -> str:
        return explain_status(429, "https://h/mcp", {"retry-after": value})

    assert "Try again in 7 s." in explained(" 7 ")
    assert re.search(r"Try again in (59|60) s\.", explained(email.utils.formatdate(time.time() + 60, usegmt=True)))
    assert "Try again in 0 s." in explained("Fri, 31 Dec 1999 23:59:59 GMT")
    assert "Try again in 3600 s." in explained("9" * 400)
    for invalid in ("", "soon", "-1", "Fri, 99 Dec 1999 23:59:59 GMT"):
        assert "Try again later." in explained(invalid), invalid


def test_a_refusal_has_its_status_and_a_group_the_error_that_explains_it() -> None:
    texts = {
        status: explain_status(status, "https://h/mcp") for status in (302, 401, 403, 404, 413, 429, 500, 502, 503)
    }
    assert all(f"HTTP {status}" in text for status, text in texts.items())
    assert len({text.replace(str(status), "") for status, text in texts.items()}) == len(texts)
    away = {"location": "https://u:p@other.example/mcp?key=1"}
    assert "redirects to https://other.example/mcp (HTTP 308)" in explain_status(308, "https://h/mcp", away)
    nonsense = {"location": "http://["}
    assert web.redirect_target("https://h/mcp", "http://[") is None
    assert "redirects to an invalid address (HTTP 308)" in explain_status(308, "https://h/mcp", nonsense)
    reason = ServerUnavailable("It is away.", remedy="Do this.")
    group = BaseExceptionGroup("", [asyncio.CancelledError(), ExceptionGroup("", [ValueError(), reason])])
    assert root_cause(group) is reason
    assert explain(group, 1) == "It is away. Do this."
    assert "1.5 s" in explain(TimeoutError(), 1.5)
    for ran in (" The call may have run.", " The call did not run."):
        assert explain(ServerUnavailable(f"It is away.{ran}", remedy="Do this."), 1) == "It is away. Do this."
    assert explain(ServerUnavailable("é" * 100_000), 1) == "é" * 4096
    assert "broke off its answer" in explain(ExceptionGroup("", [httpx2.RemoteProtocolError("Bearer abc")]), 1)


def test_the_reaper_removes_the_registered_files_unless_they_were_replaced(tmp_path: Path) -> None:
    reaper = Reaper()
    gone, socket_file, replaced, mine = (tmp_path / name for name in ("a\n\u00e9 b", "s.sock", "replaced", "mine"))
    for path in (gone, replaced, mine):
        path.write_text("")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_file))
    reaper.start()
    for path in (gone, socket_file, replaced, mine):
        reaper.unlink(path)
    mine.unlink()
    (tmp_path / "new").write_text("a successor's")
    (tmp_path / "new").replace(replaced)
    reaper.close()
    assert list(tmp_path.iterdir()) == [replaced]


def test_a_new_reaper_removes_the_files_of_a_killed_one(tmp_path: Path) -> None:
    reaper = Reaper()
    file = tmp_path / "file"
    file.write_text("")
    reaper.unlink(file)
    assert reaper._helper is not None
    reaper._helper.kill()
    reaper._helper.wait()
    reaper.start()
    reaper.close()
    assert not file.exists()


@pytest.mark.req("BNS-9")
def test_importing_servers_loads_neither_the_sdk_nor_websockets_nor_pydantic() -> None:
    code = "import sys, toolcrib.servers.pool; print({'mcp', 'websockets', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
