"""The command line as a whole, before a stand-in for the daemon's socket."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import toolcrib
from toolcrib.cli.app import app, run
from toolcrib.cli.manual import manual
from toolcrib.cli.output import say_json, say_line, visible

Answer = Callable[[dict[str, Any]], list[dict[str, Any]]]

TOOL = {
    "name": "files_read_file",
    "names": ["files_read_file", "mcp_files_read_file", "read_file"],
    "display": "files:read_file",
    "server": "files",
    "tool": "read_file",
    "description": "Read a file.\nAll of it.",
    "input_schema": {"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}},
    "annotations": None,
}
SERVER = {
    "name": "files",
    "state": "ready",
    "protocol_version": "2026-07-28",
    "transport": "stdio",
    "tools": 3,
    "pid": 77,
    "uptime": 3725.0,
    "last_error": "",
}


class Daemon:
    """Answers commands from a table; keeps what was asked."""

    def __init__(self, path: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                line = stream.readline()
                if not line:
                    continue
                request = json.loads(line)
                self.asked.append(request)
                answer = self.answers.get(request["method"])
                for message in answer if isinstance(answer, list) else [answer]:
                    if message is not None:
                        connection.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(60)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def daemon(home: Path) -> Iterator[Daemon]:
    (home / "run").mkdir()
    made = Daemon(home / "run" / "daemon.sock")
    try:
        yield made
    finally:
        made.close()


def result(value: dict[str, Any]) -> dict[str, Any]:
    return {"id": 1, "result": value}


@pytest.mark.req("KSI-6")
def test_servers_are_a_table_for_people_and_json_for_programs(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {
        **SERVER,
        "name": "docs",
        "state": "unavailable",
        "last_error": "\x1b[2J[red]refused[/red]",
        "uptime": None,
    }
    daemon.answers["server:list"] = result({"servers": [SERVER, hostile]})
    assert run(["servers"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == [
        "name",
        "state",
        "protocol",
        "transport",
        "tools",
        "trusted",
        "pid",
        "uptime",
        "last",
        "error",
    ]
    assert shown.splitlines()[1].split() == ["files", "ready", "2026-07-28", "stdio", "3", "no", "77", "1h", "2m", "-"]
    assert "\\x1b[2J[red]refused[/red]" in shown, "what a server says is text, never a command to the terminal"
    assert run(["servers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"servers": [SERVER, hostile]}
    assert daemon.asked[0]["root"] == str(Path.cwd())


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("name", ["files:read_file", "files_read_file", "mcp_files_read_file", "read_file"])
def test_call_reads_its_words_by_the_schema_whatever_the_tool_is_called(daemon: Daemon, name: str) -> None:
    daemon.answers["tool:list"] = result({"tools": [TOOL]})
    daemon.answers["tool:call"] = result({"result": {"content": []}})
    assert run(["call", name, "path=5", "lines=5", "--timeout", "3"]) == 0
    assert daemon.asked[-1]["params"] == {"tool": name, "arguments": {"path": "5", "lines": 5}, "timeout": 3.0}


@pytest.mark.req("BNS-5")
def test_call_prints_text_for_people_and_the_raw_result_for_programs(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"content": [{"type": "text", "text": "é\tx", "_meta": {"a": None}}], "unknown": 1.0}
    daemon.answers["tool:call"] = result({"result": raw})
    assert run(["call", "files:read_file", "--args", '{"path": "x"}']) == 0
    assert capsys.readouterr().out == "é\tx\n"
    assert run(["call", "files:read_file", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == raw


@pytest.mark.req("BNS-5")
def test_a_tool_that_says_it_failed_has_an_exit_code_of_its_own(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answers["tool:call"] = result({"result": {"isError": True, "content": [{"type": "text", "text": "no"}]}})
    assert run(["call", "files:read_file"]) == 10
    assert capsys.readouterr().out == "no\n"


@pytest.mark.req("BNS-5")
def test_an_error_of_the_daemon_keeps_its_code_its_remedy_and_its_exit_code(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"remedy": "Servers: files.", "exit_code": 4, "kind": "UnknownServer"}
    daemon.answers["tool:list"] = {
        "id": 1,
        "error": {"code": -31404, "message": "There is no server 'x'.", "data": data},
    }
    assert run(["tools", "x"]) == 4
    said = capsys.readouterr()
    assert said.err == "Error: There is no server 'x'. Servers: files.\n"
    assert said.out == ""
    assert run(["tools", "x", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": -31404,
        "message": "There is no server 'x'.",
        "remedy": "Servers: files.",
        "exit_code": 4,
        "data": {"kind": "UnknownServer"},
    }


@pytest.mark.req("KSI-6")
def test_a_daemon_that_leaves_before_it_answers_is_not_asked_again(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["call", "files:write_file"]) == 7
    assert "may have run" in capsys.readouterr().err
    assert len(daemon.asked) == 1


@pytest.mark.req("KSI-6")
def test_without_a_daemon_status_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--json"]) == 7
    said = capsys.readouterr()
    assert "toolcrib up" in said.err
    assert json.loads(said.out)["error"]["exit_code"] == 7
    assert run(["restart", "files"]) == 7
    assert run(["logs", "-f"]) == 7
    capsys.readouterr()
    assert run(["down", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": False, "pid": None, "killed": False}


HANG_UPS = {
    "nothing": b"",
    "half an answer": b'{"jsonrpc":"2.0","id":1,"resu',
    "no JSON": b"hello\n",
    "no message": b"[1]\n",
    "an answer to something else": b'{"jsonrpc":"2.0","id":7,"result":{}}\n',
    "an error without words": b'{"jsonrpc":"2.0","id":1,"error":5}\n',
}


@pytest.mark.parametrize("words", [["status"], ["servers"], ["logs", "-f"]])
@pytest.mark.parametrize("how", HANG_UPS)
def test_a_daemon_that_does_not_answer_properly_is_told_in_a_sentence(
    how: str, words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "run" / "daemon.sock"))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        # Closed without having read anything, where nothing is said.
                        if HANG_UPS[how] and connection.recv(1 << 16):
                            connection.sendall(HANG_UPS[how])

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            code = run(words)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join(60)
    said = capsys.readouterr()
    assert code in {1, 6, 7}
    assert "daemon" in said.err.lower()
    assert "Traceback" not in said.err


def test_without_a_descriptor_left_it_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("toolcrib.daemon_client.command_client.socket.socket", none_left)
    for words in (["status"], ["down"], ["servers"]):
        assert run(words) == 7
        assert "Too many open files" in capsys.readouterr().err


@pytest.mark.req("KSI-6")
def test_logs_follow_until_the_daemon_ends_them(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answers["log:tail"] = [
        {"method": "event", "params": {"id": 1, "event": {"line": "one"}}},
        {"method": "event", "params": {"id": 1, "event": {"line": "two"}}},
        result({}),
    ]
    assert run(["logs", "-f", "files", "-n", "2"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert daemon.asked[-1]["params"] == {"lines": 2, "follow": True, "server": "files"}


@pytest.mark.req("BNS-3")
def test_add_sends_the_entry_as_it_was_typed(daemon: Daemon) -> None:
    daemon.answers["server:add"] = result({"server": "x", "file": "f", "state": "ready", "tools": 2})
    words = ["add", "files", "--env", "A=b=c", "--cwd", "/tmp", "--project", "--", "npx", "-y", "server", "--json", "."]
    assert run(words) == 0
    assert daemon.asked[-1]["params"] == {
        "name": "files",
        "entry": {"command": "npx", "args": ["-y", "server", "--json", "."], "env": {"A": "b=c"}, "cwd": "/tmp"},
        "scope": "project",
    }
    assert run(["add", "docs", "--url", "https://x/mcp", "--header", "K: ${KEY}", "--transport", "sse"]) == 0
    assert daemon.asked[-1]["params"] == {
        "name": "docs",
        "entry": {"url": "https://x/mcp", "transport": "sse", "headers": {"K": "${KEY}"}},
        "scope": "user",
    }


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "x"], "either a command or --url"),
        (["add", "x", "--url", "http://y", "--", "z"], "either a command or --url"),
        (["add", "x", "npx", "-y"], "Put `--` before"),
        (["add", "x", "--header", "A: b", "--", "z"], "--header requires --url"),
        (["add", "x", "--url", "http://y", "--env", "A=b"], "require a command"),
        (["add", "x", "--url", "http://y", "--header", "sec-ret"], "--header 'K: V'"),
        (["nonsense"], "No such command"),
        (["call"], "Missing argument"),
        (["tools", "--nonsense"], "No such option"),
        (["connect", "claude", "--write", "--remove"], "can't be used together"),
        (["connect", "claude", "--scope", "galaxy"], "user or project"),
        (["tools", "--nonsense"], "No such option: --nonsense. See `toolcrib tools --help`"),
        (["up", "--mcp-server", "sec-ret"], "NAME=URL or NAME=COMMAND"),
        (["up", "--mcp-server", "x="], "NAME=URL or NAME=COMMAND"),
        (["up", "--mcp-server", "x= "], "NAME=URL or NAME=COMMAND"),
        (["up", "--mcp-server", "=sec-ret"], "NAME=URL or NAME=COMMAND"),
        (["up", "-d", "--mcp-server", "x=cat 'sec-ret"], "no closing quotation"),
        (["servers", "--mcp-server", "x=''"], "is empty"),
        (["call", "x:y", "--mcp-server", "x"], "NAME=URL or NAME=COMMAND"),
    ],
)
def test_wrong_words_are_told_with_a_remedy(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "sec-ret" not in told, "what was typed may be a secret"


def test_without_words_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: toolcrib" in capsys.readouterr().out
    assert run(["config"]) == 0
    assert "check" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"toolcrib {toolcrib.__version__}\n"


@pytest.mark.req("BNS-10")
def test_trust_shows_what_would_run_and_needs_a_yes(
    home: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolcrib.config.trust import trust_digest

    file = home / "project" / ".toolcrib" / "config.yml"
    file.parent.mkdir()
    file.write_text("servers:\n  evil:\n    command: curl\n    args: [evil.example]\n")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    shown = {"file": str(file), "digest": trust_digest(file), "effects": ["evil: starts curl evil.example"]}
    daemon.answers["config:check"] = result({"waiting": [shown]})
    assert run(["trust"]) == 2
    said = capsys.readouterr().err
    assert "starts curl evil.example" in said
    assert "--yes" in said
    assert [request["method"] for request in daemon.asked] == ["config:check"]
    daemon.asked.clear()
    daemon.answers["trust:add"] = result({"file": str(file), "sha256": trust_digest(file)})
    assert run(["trust", "--yes"]) == 0
    assert [(request["method"], request["params"]) for request in daemon.asked] == [
        ("config:check", {}),
        ("trust:add", {"file": str(file), "digest": trust_digest(file)}),
    ], "what was shown is what is trusted: the daemon is told the digest of just that"
    capsys.readouterr()
    daemon.asked.clear()
    daemon.answers["config:check"] = result({"waiting": []})
    assert run(["trust"]) == 0, "nothing is asked where nothing waits"
    assert capsys.readouterr().out == f"Already trusted: {file}.\n"
    assert [request["method"] for request in daemon.asked] == ["config:check"]


@pytest.mark.req("BNS-10")
def test_untrust_of_what_was_never_trusted_says_so(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answers["trust:remove"] = result({"file": "/p/.mcp.json", "was_trusted": False})
    assert run(["untrust", "/p/.mcp.json"]) == 4
    assert "Not trusted: /p/.mcp.json." in capsys.readouterr().err
    daemon.answers["trust:remove"] = result({"file": "/p/.mcp.json", "was_trusted": True})
    assert run(["untrust", "/p/.mcp.json"]) == 0


@pytest.mark.req("BNS-9")
def test_help_imports_nothing_heavy(home: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "toolcrib", "--help"], check=True, capture_output=True, timeout=60
    )
    imported = {line.rpartition(b"|")[2].strip().decode() for line in listed.stderr.splitlines()}
    assert not imported & {
        "rich",
        "asyncio",
        "mcp",
        "pydantic",
        "yaml",
        "sqlalchemy",
        "websockets",
        "msgspec",
        "uvloop",
    }
    assert not [name for name in imported if name.startswith("toolcrib.cli.") and "_command" in name]


def test_every_summary_is_the_one_of_the_command_itself() -> None:
    for command in get_command(app).commands.values():
        assert command.get_short_help_str(1000) == command.load().get_short_help_str(1000)


def test_the_manual_is_made_of_the_help_pages_as_they_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == manual(), "make it again: python -m toolcrib.cli.manual > docs/cli.md"


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("\n", 1), ("no\n", 1), ("", 1)])
def test_on_a_terminal_trust_asks_and_only_yes_is_yes(
    home: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    from toolcrib.config.trust import trust_digest

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    file = home / "project" / ".toolcrib" / "config.yml"
    file.parent.mkdir()
    file.write_text("servers:\n  x:\n    command: x\n")
    daemon.answers["trust:add"] = result({"file": str(file), "sha256": trust_digest(file)})
    shown = {"file": str(file), "digest": trust_digest(file), "effects": ["x: starts x"]}
    daemon.answers["config:check"] = result({"waiting": [shown]})
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert run(["trust"]) == code
    assert ["trust:add" in request["method"] for request in daemon.asked] == ([False, True] if code == 0 else [False])


@pytest.mark.req("BNS-3")
def test_config_check_fails_where_something_is_wrong(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {
        "severity": "error",
        "text": "/c.yml: servers.x.comand: found 'comand', expected a known key. Did you mean command?",
    }
    daemon.answers["config:check"] = result({"ok": False, "servers": [], "problems": [problem], "untrusted": []})
    assert run(["config", "check"]) == 3
    assert (
        capsys.readouterr().out
        == "error: /c.yml: servers.x.comand: found 'comand', expected a known key. Did you mean command?\n"
    )
    daemon.answers["config:check"] = result({"ok": True, "servers": ["a"], "problems": [], "untrusted": []})
    assert run(["config", "check"]) == 0


@pytest.mark.req("KSI-6")
def test_with_servers_of_its_own_a_command_does_not_ask_the_daemon(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    @contextlib.asynccontextmanager
    async def opened(name: str, params: Any, *, flags: Any, root: Path, emit: Any) -> AsyncIterator[Any]:
        async def ask(name: str, params: Any) -> dict[str, Any]:
            asked.append((name, params, flags.mcp_servers, root))
            return {"tools": [TOOL]}

        yield ask

    monkeypatch.setattr("toolcrib.cli.in_process.local_commands", opened)
    assert run(["tools", "--mcp-server", "files=cat", "--mcp-server", "b=http://x/it's"]) == 0
    assert asked == [("tool:list", {}, ("files=cat", "b=http://x/it's"), Path.cwd())]
    assert daemon.asked == []
    assert "files:read_file  files_read_file  Read a file." in capsys.readouterr().out


def test_a_working_folder_that_is_gone_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(home / "project")
    assert run(["servers"]) == 2
    assert "no longer exists" in capsys.readouterr().err


@pytest.mark.req("BNS-3")
def test_a_broken_configuration_is_told_beside_the_servers(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    faults = {"problems": ["/c.yml:3: x: found 1, expected text."], "untrusted": ["/p/.mcp.json"]}
    told = ["Problem: /c.yml:3: x: found 1, expected text."]
    daemon.answers["server:list"] = result({"servers": [SERVER], **faults})
    assert run(["servers"]) == 0
    assert capsys.readouterr().err.splitlines() == told
    daemon.answers["system:status"] = result({"root": str(Path.cwd()), "servers": [SERVER], **faults})
    assert run(["status"]) == 0
    assert capsys.readouterr().err.splitlines() == told
    daemon.answers["server:list"] = result({"servers": [], **faults})
    assert run(["servers"]) == 0
    said = capsys.readouterr()
    assert said.out == "No servers are in use, and the configuration has 1 problem: `toolcrib config check`.\n"
    assert said.err.splitlines() == told
    daemon.answers["server:list"] = result({"servers": [], "problems": ["x"] * 12, "untrusted": []})
    assert run(["servers"]) == 0
    assert capsys.readouterr().err.splitlines() == ["Problem: x"] * 10 + ["`toolcrib config check` shows 2 more."]
    daemon.answers["server:list"] = result({"servers": [], "problems": [], "untrusted": []})
    assert run(["servers"]) == 0
    assert capsys.readouterr().out == "No servers yet.\n"


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("how", [[], ["--detach"]])
def test_up_warns_of_a_broken_configuration(
    how: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import toolcrib.daemon.process

    ready = {"endpoint": "http://127.0.0.1:1/mcp", "pid": 7, "token_file": "/t", "problems": ["p"], "untrusted": ["u"]}

    def foreground(root: Path, flags: Any, *, ready: Callable[[dict[str, Any]], None]) -> int:
        ready(described)
        return 0

    described = ready
    monkeypatch.setattr(toolcrib.daemon.process, "run_foreground", foreground)
    monkeypatch.setattr("toolcrib.cli.up_command.start_detached", lambda root, flags: described)
    assert run(["up", *how]) == 0
    told = capsys.readouterr().err
    assert "Problem: p\n" in told
    assert "Stopped." not in told, "for a person at a terminal alone"
    described = {key: value for key, value in ready.items() if key not in ("problems", "untrusted")}
    assert run(["up", *how]) == 0
    assert "Problem" not in capsys.readouterr().err


@pytest.mark.req("KSI-6")
def test_status_names_the_project_that_its_table_is_for(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    here = str(Path.cwd())
    daemon.answers["system:status"] = result({"root": here, "project": here, "servers": [SERVER]})
    assert run(["status"]) == 0
    said = capsys.readouterr().out
    assert f"started in: {here}" in said
    assert "servers for" not in said
    daemon.answers["system:status"] = result({"root": "/elsewhere", "project": here, "servers": [SERVER]})
    assert run(["status"]) == 0
    assert f"servers for the project {here}:" in capsys.readouterr().out


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(
    ("row", "hints"),
    [
        ({"transport": "stdio", "stderr": ["boom"]}, ["`toolcrib logs 'odd name'` shows its stderr."]),
        ({"transport": "stdio", "stderr": []}, []),
        ({"transport": "http", "stderr": []}, []),
    ],
    ids=["spoke", "silent", "remote"],
)
def test_a_server_that_does_not_answer_is_added_and_has_an_exit_code(
    home: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str], row: dict[str, Any], hints: list[str]
) -> None:
    added = {"server": "odd name", "file": "/c.yml", "state": "unavailable", "last_error": "It ended.", **row}
    daemon.answers["server:add"] = result(added)
    assert run(["add", "odd name", "--", "cat"]) == 6
    said = capsys.readouterr()
    assert said.err.splitlines() == ["Added odd name to /c.yml, but it isn't responding: It ended.", *hints]
    assert run(["add", "odd name", "--json", "--", "cat"]) == 6
    assert json.loads(capsys.readouterr().out) == added
    (home / "run" / "daemon.json").write_text('{"pid": 4711}')
    assert run(["add", "odd name", "--", "cat"]) == 6
    assert capsys.readouterr().err.endswith("The daemon keeps retrying; `toolcrib servers` shows the server's state.\n")


@pytest.mark.req("BNS-3")
def test_a_path_of_this_folder_in_a_server_of_every_folder_is_made_to_hold_in_all(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path.cwd()
    written = f"server.py is written as {here}/server.py.\n"
    folder = ". is written as ${workspaceFolder}, the folder of each project.\n"
    project = "It starts in each project's folder, so files there can influence it.\n"
    needs = "This server needs the project's folder, so `cwd: project` was added.\n"
    Path("server.py").touch()
    daemon.answers["server:add"] = result({"server": "x", "file": "f", "state": "ready", "tools": 1})
    for words, said in [
        (["--", "python3", "server.py"], written),
        (["--", "./server.py"], "./" + written),
        (["--", "server.py"], ""),
        (["--", "python3", "other.py", "."], folder),
        (["--cwd", "project", "--", "mymcp", "server.py"], written + project),
        (["--", "uvx", "mcp-server-git"], needs + project),
        (["--", "python3", str(Path("server.py").absolute())], ""),
        (["--project", "--", "python3", "server.py"], ""),
        (["--cwd", "/src", "--", "python3", "server.py"], ""),
    ]:
        assert run(["add", "x", *words]) == 0
        assert capsys.readouterr().err == said, words


@pytest.mark.req("BNS-3")
def test_a_variable_that_only_this_shell_has_is_told_apart(
    home: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "run" / "daemon.json").write_text('{"pid": 4711}')
    message = "the entry: x.headers.K: found ${SOME_KEY}, which is not set, expected the environment variable SOME_KEY."
    error = {"code": -31400, "message": message, "data": {"remedy": "Correct the entry.", "exit_code": 3}}
    daemon.answers["server:add"] = {"id": 1, "error": error}
    words = ["add", "x", "--url", "https://x/mcp", "--header", "K: ${SOME_KEY}"]
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert run(words) == 3
    assert "Correct the entry." in capsys.readouterr().err
    monkeypatch.setenv("SOME_KEY", "sec-ret")
    assert run(words) == 3
    told = capsys.readouterr().err
    assert told.endswith(
        "The daemon (pid 4711) was started without it: run `toolcrib down`, then `toolcrib up` here.\n"
    )
    assert "sec-ret" not in told


def test_a_log_with_nothing_in_it_says_so(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answers["log:tail"] = result({"file": "/f", "lines": []})
    assert run(["logs"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "The log is empty.\n")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["1", ""])
def test_on_a_terminal_an_error_takes_one_line_and_colours_can_be_had_without(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_color: str
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    for name, value in {"COLUMNS": "100", "TERM": "xterm-256color", "NO_COLOR": no_color}.items():
        monkeypatch.setenv(name, value)
    away = {**SERVER, "name": "docs", "state": "unavailable", "last_error": "It is so long. " * 30, "stderr": ["x"]}
    daemon.answers["server:list"] = result({"servers": [away, SERVER]})
    assert run(["servers"]) == 0
    lines = screen.getvalue().splitlines()
    assert len(lines) == 3
    assert "…" in lines[1]
    assert ("\x1b[" in screen.getvalue()) == (not no_color), "neither colour nor bold"
    if no_color:
        assert all(len(line) <= 100 for line in lines)
    assert capsys.readouterr().err.splitlines() == [
        "`toolcrib servers --json` shows everything.",
        "`toolcrib logs docs` shows its stderr.",
    ]


def test_up_says_on_a_terminal_that_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    import toolcrib.daemon.process

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(toolcrib.daemon.process, "run_foreground", lambda *_, **__: 0)
    assert run(["up"]) == 0
    assert screen.getvalue() == "Stopped.\n"


SESSION: dict[str, Any] = {
    **dict.fromkeys(("open_requests", "listings", "calls", "denied", "failed", "result_bytes"), 1234),
    "id": "s_0123456789abcdef01",
    "agent": "an-agent-with-a-long-name",
    "idle": 7000.0,
    "conversation": "5b2f7c1e-" * 8,
}


def test_sessions_take_one_line_each_on_a_narrow_terminal_with_their_ids_whole(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answers["session:list"] = result({"sessions": [SESSION, SESSION]})
    assert run(["sessions"]) == 0
    assert SESSION["conversation"] in capsys.readouterr().out, "a pipe gets all of it"
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run(["sessions"]) == 0
    heading, *lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in (heading, *lines))
    assert all(str(SESSION["id"]) in line and "5b2f7c1e-5b" in line for line in lines)
    assert {"agent", "conversation", "idle", "calls"} <= set(heading.split())
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["80", None])
def test_who_follows_the_audit_log_gets_a_heading_and_lines_that_fit(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, width: str | None
) -> None:
    texts = dict.fromkeys(("call", "tool", "decision", "rule"), "t" * 50)
    entry = {**texts, "kind": "outcome", "seq": 1, "at": 0.0, "agent": "a", "conversation": "c", "outcome": "denied"}
    entry |= {"duration": 0.1, "size": 1, "tokens": 1, "tokens_estimated": True, "detail": None}
    shown: list[Any] = []

    def follow(name: str, params: Any, *, timeout: Any, on_event: Any) -> dict[str, Any]:
        on_event({"entry": entry})
        shown.append(name)
        return {}

    screen = Screen() if width else io.StringIO()
    monkeypatch.setattr("toolcrib.cli.audit_commands.perform", follow)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", width or "80")
    assert run(["audit", "-f"]) == 0
    heading, line = screen.getvalue().splitlines()
    assert shown == ["audit:follow"]
    assert heading.split()[:2] == ["time", "agent"]
    assert heading.index("outcome") == line.index("denied") or not width
    assert (max(len(heading), len(line)) <= 80) == bool(width)
    assert ("t" * 50 in line) == (not width)


@pytest.mark.parametrize("buffered", ["-u", "-B"])
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["runs", "--json"], ["run", "nobody", "x", "--json"]])
def test_output_that_cannot_be_written_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, words: list[str], buffered: str
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = [sys.executable, buffered, "-m", "toolcrib", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: stdout cannot be written: No space left on device.")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_who_closed_our_output_does_not_want_it() -> None:
    words = f"{sys.executable} -m toolcrib --version >&-"
    done = subprocess.run(["/bin/sh", "-c", words], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


HIDDEN = "\x1b\x7f\x9b\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
PLAIN = "tab\tline\n日本 👩\u200d🚀 é"


def test_what_turns_or_hides_text_is_spelled_out_for_people() -> None:
    shown = visible(HIDDEN)
    assert shown.isascii()
    assert shown.startswith(r"\x1b\x7f\x9b\u061c\u200e")
    assert r"\u202e" in shown
    assert visible(PLAIN) == PLAIN


@pytest.mark.parametrize("say", [say_json, say_line])
def test_json_on_a_terminal_has_the_same_values_and_nothing_that_turns_or_hides_text(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[Any], None]
) -> None:
    value = {"text": HIDDEN + PLAIN}
    for stream, kept in ((Screen(), False), (io.StringIO(), True)):
        monkeypatch.setattr("sys.stdout", stream)
        say(value)
        assert json.loads(stream.getvalue()) == value
        assert ("\u202e" in stream.getvalue()) == kept, "a program gets it as it is"
        assert ("\x9b" in stream.getvalue()) == kept
        assert "日本" in stream.getvalue()
