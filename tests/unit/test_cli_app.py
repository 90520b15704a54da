"""The command line with a stand-in for the daemon's socket; the arguments and results of `toolcrib call`."""

import contextlib
import errno
import io
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

import toolcrib
import toolcrib.daemon.process
from toolcrib.cli.app import app, run
from toolcrib.cli.manual import manual
from toolcrib.cli.output import moment, result_text, say_json, say_line, visible
from toolcrib.cli.tool_commands import arguments_from
from toolcrib.config.trust import trust_digest
from toolcrib.errors import InvalidArguments

TOOL: dict[str, Any] = {
    "name": "files_read_file",
    "names": ["files_read_file", "mcp_files_read_file", "read_file"],
    "description": "Read a file.\nAll of it.",
    "input_schema": {"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}},
} | {"display": "files:read_file", "server": "files", "tool": "read_file", "annotations": None}
SERVER: dict[str, Any] = {"name": "files", "state": "ready", "protocol_version": "2026-07-28", "transport": "stdio"}
SERVER |= {"tools": 3, "pid": 77, "uptime": 3725.0, "last_error": ""}


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeDaemon:
    """Answers each method with a result, an error, a list of messages, or (without an entry) by hanging up."""

    def __init__(self, path: Path) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, connection.makefile("rb") as stream:
                    if line := stream.readline():
                        self.requests.append(json.loads(line))
                        connection.sendall(self._answer(self.requests[-1]["method"]))

    def _answer(self, method: str) -> bytes:
        answer = self.answers.get(method, [])
        if isinstance(answer, dict):
            answer = [{"id": 1, "error" if "code" in answer else "result": answer}]
        return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in answer)

    def methods(self) -> list[str]:
        """The methods since the last call."""
        methods = [request["method"] for request in self.requests]
        self.requests.clear()
        return methods

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(60)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def daemon(home):
    (home / "run").mkdir()
    daemon = FakeDaemon(home / "run" / "daemon.sock")
    yield daemon
    daemon.close()


@pytest.fixture
def cli(capsys):
    def typed(*words, code=0):
        assert run([*words]) == code
        return capsys.readouterr()

    return typed


@pytest.mark.req("KSI-6")
def test_servers_are_a_table_for_people_and_json_for_programs(daemon, cli):
    error = "\x1b[2J[red]refused[/red]"
    hostile = {**SERVER, "name": "docs", "state": "unavailable", "last_error": error, "uptime": None}
    daemon.answers["server:list"] = {"servers": [SERVER, hostile]}
    heading, first, second = cli("servers").out.splitlines()
    assert " ".join(heading.split()) == "name state protocol transport tools trusted pid uptime last error"
    assert first.split() == ["files", "ready", "2026-07-28", "stdio", "3", "no", "77", "1h", "2m", "-"]
    assert "\\x1b[2J[red]refused[/red]" in second, "a server's text never controls the terminal"
    assert json.loads(cli("servers", "--json").out) == {"servers": [SERVER, hostile]}
    assert daemon.requests[0]["root"] == str(Path.cwd())


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("name", ["files:read_file", "files_read_file", "mcp_files_read_file", "read_file"])
def test_call_reads_its_arguments_by_the_schema_for_every_name_of_the_tool(daemon, cli, name):
    daemon.answers |= {"tool:list": {"tools": [TOOL]}, "tool:call": {"result": {"content": []}}}
    cli("call", name, "path=5", "lines=5", "--timeout", "3")
    assert daemon.requests[-1]["params"] == {"tool": name, "arguments": {"path": "5", "lines": 5}, "timeout": 3.0}


@pytest.mark.req("BNS-5")
def test_call_prints_text_for_people_and_the_raw_result_for_programs(daemon, cli):
    raw = {"content": [{"type": "text", "text": "é\tx", "_meta": {"a": None}}], "unknown": 1.0}
    daemon.answers["tool:call"] = {"result": raw}
    assert cli("call", "files:read_file", "--args", '{"path": "x"}').out == "é\tx\n"
    assert json.loads(cli("call", "files:read_file", "--json").out) == raw
    daemon.answers["tool:call"] = {"result": {"isError": True, "content": [{"type": "text", "text": "no"}]}}
    assert cli("call", "files:read_file", code=10).out == "no\n"


@pytest.mark.req("BNS-5")
def test_an_error_of_the_daemon_keeps_its_code_its_remedy_and_its_exit_code(daemon, cli):
    error = {"code": -31404, "message": "There is no server 'x'."}
    data = {"remedy": "Servers: files.", "exit_code": 4, "kind": "UnknownServer"}
    daemon.answers["tool:list"] = {**error, "data": data}
    assert cli("tools", "x", code=4) == ("", "Error: There is no server 'x'. Servers: files.\n")
    shown = json.loads(cli("tools", "x", "--json", code=4).out)["error"]
    assert shown == {**error, "remedy": "Servers: files.", "exit_code": 4, "data": {"kind": "UnknownServer"}}


def test_a_cut_description_ends_in_an_ellipsis_and_a_server_without_tools_may_be_installing(daemon, cli):
    daemon.answers["tool:list"] = {"tools": [{**TOOL, "description": "d" * 101}]}
    assert cli("tools").out.endswith("  " + "d" * 99 + "…\n")
    daemon.answers["tool:list"] = {"tools": [], "installing": [{"server": "files", "since": 0.0}]}
    shown = cli("tools", "files")
    assert shown.out == "No tools yet.\n"
    assert f"files is being installed, since {moment(0.0)}.\n" in shown.err


NOTHING: dict[str, Any] = {key: [] for key in ("added", "removed", "changed", "settings", "restart")}


@pytest.mark.req("FRG-10")
def test_reload_shows_what_the_daemon_has_applied_already_and_fails_for_a_broken_file(daemon, cli):
    daemon.answers["config:reload"] = {**NOTHING, "ok": True, "last_change": None, "problems": []}
    assert cli("reload").out == "Nothing changed.\n"
    daemon.answers["config:reload"]["last_change"] = {**NOTHING, "at": 0.0, "added": ["a"], "restart": ["old"]}
    applied = f"Nothing has changed since {moment(0.0)}, when this was applied:\nAdded: a.\n"
    assert cli("reload").out == applied
    daemon.answers["config:reload"] |= {"removed": ["b"], "ok": False, "problems": ["p"]}
    assert cli("reload", code=3) == ("Removed: b.\n", "Problem: p\n")
    assert json.loads(cli("reload", "--json", code=3).out)["ok"] is False


@pytest.mark.req("KSI-6")
def test_a_call_is_not_repeated_if_the_daemon_hangs_up_before_it_answers(daemon, cli):
    error = cli("call", "files:write_file", code=7).err
    assert ("may have run" in error, "tool:call" in error) == (True, False)
    assert len(daemon.requests) == 1


@pytest.mark.req("KSI-6")
def test_without_a_daemon_status_shows_how_to_start_one(cli):
    shown = cli("status", "--json", code=7)
    assert "toolcrib up" in shown.err
    assert json.loads(shown.out)["error"]["exit_code"] == 7
    cli("restart", "files", code=7)
    cli("logs", "-f", code=7)
    assert json.loads(cli("down", "--json").out) == {"stopped": False, "pid": None, "killed": False}


HANG_UPS = {
    "nothing": b"",
    "half an answer": b'{"jsonrpc":"2.0","id":1,"resu',
    "not JSON": b"hello\n",
    "not a message": b"[1]\n",
    "an answer to something else": b'{"jsonrpc":"2.0","id":7,"result":{}}\n',
    "an error without a message": b'{"jsonrpc":"2.0","id":1,"error":5}\n',
}


@pytest.mark.parametrize("words", [["status"], ["servers"], ["logs", "-f"]])
@pytest.mark.parametrize("how", HANG_UPS)
def test_an_invalid_answer_of_the_daemon_is_an_error_without_a_traceback(how, words, home, capsys):
    (home / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "run" / "daemon.sock"))
        server.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        # "nothing" closes without reading.
                        if HANG_UPS[how] and connection.recv(1 << 16):
                            connection.sendall(HANG_UPS[how])

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            code = run(words)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join(60)
    error = capsys.readouterr().err
    assert code in {1, 6, 7}
    assert "daemon" in error.lower()
    assert "Traceback" not in error


def test_a_lack_of_file_descriptors_and_of_a_working_folder_are_plain_errors(home, monkeypatch, cli):
    shutil.rmtree(home / "project")
    assert "no longer exists" in cli("servers", code=2).err
    monkeypatch.chdir(home)

    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("toolcrib.daemon_client.command_client.socket.socket", fail)
    for word in ("status", "down", "servers"):
        assert "Too many open files" in cli(word, code=7).err


@pytest.mark.req("KSI-6")
def test_logs_follow_until_the_daemon_ends_them(daemon, cli):
    events = [{"method": "event", "params": {"id": 1, "event": {"line": line}}} for line in ("one", "two")]
    daemon.answers["log:tail"] = [*events, {"id": 1, "result": {}}]
    assert cli("logs", "-f", "files", "-n", "2").out == "one\ntwo\n"
    assert daemon.requests[-1]["params"] == {"lines": 2, "follow": True, "server": "files"}
    daemon.answers["log:tail"] = {"file": "/f", "lines": []}
    assert cli("logs") == ("", "The log is empty.\n")


@pytest.mark.req("BNS-3")
def test_add_sends_the_entry_as_typed(daemon, cli):
    daemon.answers["server:add"] = {"server": "x", "file": "f", "state": "ready", "tools": 2}
    options = ["--env", "A=b=c", "--cwd", "/tmp", "--project"]
    cli("add", "files", *options, "--", "npx", "-y", "server", "--json", ".")
    entry = {"command": "npx", "args": ["-y", "server", "--json", "."], "env": {"A": "b=c"}, "cwd": "/tmp"}
    assert daemon.requests[-1]["params"] == {"name": "files", "entry": entry, "scope": "project"}
    daemon.answers["server:add"]["tools"] = 1
    assert cli("add", "x", "--", "cat").out.endswith("It is ready: 1 tool. `toolcrib tools x` lists it.\n")
    cli("add", "docs", "--url", "https://x/mcp", "--header", "K: ${KEY}", "--transport", "sse")
    entry = {"url": "https://x/mcp", "transport": "sse", "headers": {"K": "${KEY}"}}
    assert daemon.requests[-1]["params"] == {"name": "docs", "entry": entry, "scope": "user"}


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "x"], "either a command or --url"),
        (["add", "x", "--url", "http://y", "--", "z"], "either a command or --url"),
        (["add", "x", "npx", "-y"], "Put `--` before"),
        (["add", "x", "--header", "A: b", "--", "z"], "--header requires --url"),
        (["add", "x", "--url", "http://y", "--env", "A=b"], "require a command"),
        (["add", "x", "--url", "http://y", "--header", "sec-ret"], "--header 'K: V'"),
        (["nonsense"], "No such command"),
        (["call"], "Missing argument"),
        (["connect", "claude", "--write", "--remove"], "can't be used together"),
        (["connect", "claude", "--scope", "galaxy"], "user or project"),
        (["secret", "migrate"], "Missing option '--to'. Choose from: file, keyring."),
        (["tools", "--nonsense"], "No such option: --nonsense. See `toolcrib tools --help`"),
        *((["up", "--mcp-server", word], "NAME=URL or NAME=COMMAND") for word in ("sec-ret", "x=", "x= ", "=sec-ret")),
        (["up", "-d", "--mcp-server", "x=cat 'sec-ret"], "no closing quotation"),
        (["servers", "--mcp-server", "x=''"], "is empty"),
        (["call", "x:y", "--mcp-server", "x"], "NAME=URL or NAME=COMMAND"),
    ],
)
def test_a_usage_error_has_a_remedy_and_does_not_repeat_what_may_be_a_secret(words, message, cli):
    error = cli(*words, code=2).err
    assert message in error
    assert "sec-ret" not in error


def test_without_a_command_the_help_is_shown(cli):
    assert "Usage: toolcrib" in cli().out
    assert "check" in cli("config").out
    assert cli("--version").out == f"toolcrib {toolcrib.__version__}\n"


@pytest.fixture
def untrusted(home, daemon):
    """A project's file, and its row in `config:check`."""
    file = home / "project" / ".toolcrib" / "config.yml"
    file.parent.mkdir()
    file.write_text("servers:\n  evil:\n    command: curl\n    args: [evil.example]\n")
    row = {"file": str(file), "digest": trust_digest(file), "effects": ["evil: starts curl evil.example"]}
    daemon.answers["config:check"] = {"waiting": [row]}
    daemon.answers["trust:add"] = {"file": str(file), "sha256": row["digest"]}
    daemon.answers["secret:list"] = {"missing": []}
    return row


@pytest.mark.req("BNS-10")
def test_trust_shows_what_would_run_and_needs_a_yes(untrusted, daemon, cli, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    error = cli("trust", code=2).err
    assert "starts curl evil.example" in error
    assert "--yes" in error
    assert daemon.methods() == ["config:check"]
    cli("trust", "--yes")
    digest = {"file": untrusted["file"], "digest": untrusted["digest"]}
    assert [(request["method"], request["params"]) for request in daemon.requests] == [
        ("config:check", {}),
        ("trust:add", digest),
        ("secret:list", {}),
    ], "the daemon gets the digest of the content that was shown"
    daemon.methods()
    daemon.answers["config:check"] = {"waiting": []}
    assert cli("trust").out == f"Already trusted: {untrusted['file']}.\n"
    assert daemon.methods() == ["config:check"]


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("\n", 1), ("no\n", 1), ("", 1)])
def test_on_a_terminal_trust_asks_and_only_yes_is_yes(untrusted, daemon, cli, monkeypatch, typed, code):
    monkeypatch.setattr("sys.stdin", Screen(typed))
    cli("trust", code=code)
    assert daemon.methods() == ["config:check", *(["trust:add", "secret:list"] if code == 0 else [])]


@pytest.mark.req("BNS-10")
def test_untrust_reports_files_that_were_never_trusted(daemon, cli):
    daemon.answers["trust:remove"] = {"file": "/p/.mcp.json", "was_trusted": False}
    assert "Not trusted: /p/.mcp.json." in cli("untrust", "/p/.mcp.json", code=4).err
    daemon.answers["trust:remove"] = {"file": "/p/.mcp.json", "was_trusted": True}
    cli("untrust", "/p/.mcp.json")


@pytest.mark.req("BNS-9")
def test_help_imports_nothing_heavy():
    words = [sys.executable, "-X", "importtime", "-m", "toolcrib", "--help"]
    listed = subprocess.run(words, check=True, capture_output=True, timeout=60)
    imported = {line.rpartition(b"|")[2].strip().decode() for line in listed.stderr.splitlines()}
    heavy = {"rich", "asyncio", "mcp", "pydantic", "yaml", "sqlalchemy", "websockets", "msgspec", "uvloop"}
    assert not imported & heavy
    assert not [name for name in imported if name.startswith("toolcrib.cli.") and "_command" in name]


def test_summaries_and_the_manual_match_the_commands():
    for command in get_command(app).commands.values():
        assert command.get_short_help_str(1000) == command.load().get_short_help_str(1000)
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == manual(), "generate it: python -m toolcrib.cli.manual > docs/cli.md"


@pytest.mark.req("BNS-3")
def test_config_check_fails_if_there_is_an_error(daemon, cli):
    text = "/c.yml: servers.x.comand: found 'comand', expected a known key. Did you mean command?"
    problems = [{"severity": "error", "text": text}]
    daemon.answers["config:check"] = {"ok": False, "servers": [], "problems": problems, "untrusted": []}
    assert cli("config", "check", code=3).out == f"error: {text}\n"
    daemon.answers["config:check"] = {"ok": True, "servers": ["a"], "problems": [], "untrusted": []}
    cli("config", "check")


@pytest.mark.req("KSI-6")
def test_a_command_with_servers_of_its_own_does_not_use_the_daemon(daemon, monkeypatch, cli):
    requests = []

    @contextlib.asynccontextmanager
    async def opened(name, params, *, flags, root, emit):
        async def answer(name, params):
            requests.append((name, params, flags.mcp_servers, root))
            return {"tools": [TOOL]}

        yield answer

    monkeypatch.setattr("toolcrib.cli.in_process.local_commands", opened)
    shown = cli("tools", "--mcp-server", "files=cat", "--mcp-server", "b=http://x/it's").out
    assert requests == [("tool:list", {}, ("files=cat", "b=http://x/it's"), Path.cwd())]
    assert daemon.requests == []
    assert "files:read_file  files_read_file  Read a file." in shown


@pytest.mark.req("BNS-3")
def test_configuration_problems_are_shown_with_the_servers(daemon, cli):
    faults = {"problems": ["/c.yml:3: x: found 1, expected text."], "untrusted": ["/p/.mcp.json"]}
    lines = "Problem: /c.yml:3: x: found 1, expected text.\n"
    daemon.answers["server:list"] = {"servers": [SERVER], **faults}
    assert cli("servers").err == lines
    daemon.answers["system:status"] = {"root": str(Path.cwd()), "servers": [SERVER], **faults}
    assert cli("status").err == lines
    daemon.answers["server:list"] = {"servers": [], **faults}
    out = "No servers are in use, and the configuration has 1 problem: `toolcrib config check`.\n"
    assert cli("servers") == (out, lines)
    daemon.answers["server:list"] = {"servers": [], "problems": ["x"] * 12, "untrusted": []}
    assert cli("servers").err == "Problem: x\n" * 10 + "`toolcrib config check` shows 2 more.\n"
    daemon.answers["server:list"] = {"servers": [], "problems": [], "untrusted": []}
    assert cli("servers").out == "No servers yet.\n"


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("how", [[], ["--detach"]])
def test_up_shows_configuration_problems_and_on_a_terminal_its_end(how, monkeypatch, cli):
    described = {"endpoint": "http://127.0.0.1:1/mcp", "pid": 7, "token_file": "/t"}

    def foreground(root, flags, *, ready):
        ready(described)
        return 0

    monkeypatch.setattr(toolcrib.daemon.process, "run_foreground", foreground)
    monkeypatch.setattr("toolcrib.cli.up_command.start_detached", lambda root, flags: described)
    assert "Problem" not in cli("up", *how).err
    described |= {"problems": ["p"], "untrusted": ["u"]}
    error = cli("up", *how).err
    assert "Problem: p\n" in error
    assert "Stopped." not in error
    if not how:
        monkeypatch.setattr(toolcrib.daemon.process, "run_foreground", lambda *_, **__: 0)
        monkeypatch.setattr("sys.stderr", screen := Screen())
        cli("up")
        assert screen.getvalue() == "Stopped.\n"


@pytest.mark.req("KSI-6")
def test_status_names_the_project_of_its_table(daemon, cli):
    here = str(Path.cwd())
    daemon.answers["system:status"] = {"root": here, "project": here, "servers": [SERVER]}
    shown = cli("status").out
    assert f"started in: {here}" in shown
    assert "servers for" not in shown
    daemon.answers["system:status"] = {"root": "/elsewhere", "project": here, "servers": [SERVER]}
    assert f"servers for the project {here}:" in cli("status").out


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(
    ("row", "hints"),
    [
        ({"transport": "stdio", "stderr": ["boom"]}, ["`toolcrib logs 'odd name'` shows its stderr."]),
        ({"transport": "stdio", "stderr": []}, []),
        ({"transport": "http", "stderr": []}, []),
    ],
)
def test_a_server_that_does_not_respond_is_added_with_an_exit_code(home, daemon, cli, row, hints):
    added = {"server": "odd name", "file": "/c.yml", "state": "unavailable", "last_error": "It ended.", **row}
    daemon.answers["server:add"] = added
    lines = cli("add", "odd name", "--", "cat", code=6).err.splitlines()
    assert lines == ["Added odd name to /c.yml, but it isn't responding: It ended.", *hints]
    assert json.loads(cli("add", "odd name", "--json", "--", "cat", code=6).out) == added
    (home / "run" / "daemon.json").write_text('{"pid": 4711}')
    hint = "The daemon keeps retrying; `toolcrib servers` shows the server's state.\n"
    assert cli("add", "odd name", "--", "cat", code=6).err.endswith(hint)


@pytest.mark.req("BNS-3")
def test_add_makes_relative_paths_work_in_every_folder(daemon, cli):
    written = f"server.py is written as {Path.cwd()}/server.py.\n"
    folder = ". is written as ${workspaceFolder}, the folder of each project.\n"
    project = "It starts in each project's folder, so files there can influence it.\n"
    needs = "This server needs the project's folder, so `cwd: project` was added.\n"
    Path("server.py").touch()
    daemon.answers["server:add"] = {"server": "x", "file": "f", "state": "ready", "tools": 1}
    for words, notes in [
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
        assert cli("add", "x", *words).err == notes, words


@pytest.mark.req("BNS-3")
def test_a_variable_that_only_this_shell_has_leads_to_another_remedy(home, daemon, cli, monkeypatch):
    (home / "run" / "daemon.json").write_text('{"pid": 4711}')
    message = "the entry: x.headers.K: found ${SOME_KEY}, which is not set, expected the environment variable SOME_KEY."
    remedy = {"remedy": "Correct the entry.", "exit_code": 3, "missing": ["SOME_KEY"]}
    daemon.answers["server:add"] = {"code": -31400, "message": message, "data": remedy}
    words = ["add", "x", "--url", "https://x/mcp", "--header", "K: ${SOME_KEY}"]
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert "Correct the entry." in cli(*words, code=3).err
    monkeypatch.setenv("SOME_KEY", "sec-ret")
    error = cli(*words, code=3).err
    assert error.endswith(
        "The daemon (pid 4711) was started without it: run `toolcrib secret set SOME_KEY`, or `toolcrib down` and "
        "`toolcrib up` here.\n"
    )
    assert "sec-ret" not in error


def terminal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Screen:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    return screen


@pytest.mark.parametrize("no_color", ["1", ""])
def test_on_a_terminal_an_error_is_below_its_server_and_no_color_is_respected(daemon, monkeypatch, cli, no_color):
    screen = terminal(monkeypatch, COLUMNS="80", TERM="xterm-256color", NO_COLOR=no_color)
    away = {**SERVER, "name": "docs", "state": "unavailable", "last_error": "It is so long. " * 30, "stderr": ["x"]}
    daemon.answers["server:list"] = {"servers": [away, {**SERVER, "last_error": "Delete /a/b, then restart it. " * 5}]}
    hints = "`toolcrib servers show NAME` shows everything about a server.\n`toolcrib logs docs` shows its stderr.\n"
    assert cli("servers").err == hints
    heading, row, *error, other, first, second = screen.getvalue().splitlines()
    assert "last error" not in heading
    assert ("docs" in row, "files" in other) == (True, True)
    assert (len(error), error[0][:16], error[-1][-2:]) == (3, "  It is so long.", " …")
    assert first.split() + second.split() == ("Delete /a/b, then restart it. " * 5).split(), "it fits, so all is shown"
    assert ("\x1b[" in screen.getvalue()) == (not no_color), "neither color nor bold"
    assert not no_color or all(len(line) <= 80 for line in screen.getvalue().splitlines())


SESSION: dict[str, Any] = {
    **dict.fromkeys(("open_requests", "listings", "calls", "denied", "failed", "result_bytes"), 1234),
    "conversation": "5b2f7c1e-" * 8,
} | {"id": "s_0123456789abcdef01", "agent": "an-agent-with-a-long-name", "idle": 7000.0}


def test_on_a_narrow_terminal_each_session_takes_one_line_with_its_full_id(daemon, monkeypatch, cli):
    daemon.answers["session:list"] = {"sessions": [SESSION, SESSION]}
    assert SESSION["conversation"] in cli("sessions").out, "a pipe gets all of it"
    screen = terminal(monkeypatch, COLUMNS="80", NO_COLOR="1")
    assert "--json" in cli("sessions").err
    heading, *lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in (heading, *lines))
    assert all(str(SESSION["id"]) in line and "5b2f7c1e-5b" in line for line in lines)
    assert {"agent", "conversation", "idle", "calls"} <= set(heading.split())


def test_a_session_is_shown_with_its_tokens_as_bars(daemon, cli):
    tokens = {"lists": 2400, "searches": 100, "descriptions": 0, "repairs": 0, "arguments": 300, "results": 1200}
    found = {**SESSION, "mode": "full", "searches": 2, "descriptions": 0, "repairs": 1}
    found |= {"tokens_by_kind": tokens, "tokens": 4000, "tokens_estimated": True}
    daemon.answers["session:show"] = {**found, "ranks": {"1": 3, "4": 1}, "mean_rank": 1.75}
    shown = cli("sessions", "show", "s_1").out
    assert "called hits   3 of rank 1, 1 of rank 4; the mean is 1.8" in shown
    bars = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if "~" in line}
    assert "repairs" not in bars, "nothing is not an estimate"
    assert bars["lists"] == ["~2,400", "█" * 24]
    assert bars["results"] == ["~1,200", "█" * 12]
    assert (bars["searches"], bars["in"]) == (["~100", "█"], ["all", "~4,000", "-"])
    nothing = {**found, "tokens_by_kind": dict.fromkeys(tokens, 0), "tokens": 0, "ranks": {}, "mean_rank": None}
    daemon.answers["session:show"] = nothing
    assert "tokens of" not in cli("sessions", "show", "s_1").out


def test_favorites_are_shown_with_the_reason(daemon, cli):
    rows = [("w:mine", "chosen", 1), *((f"w:used{number}", "used", 1200) for number in range(8))]
    favorites = [{"tool": tool, "origin": origin, "calls": calls} for tool, origin, calls in rows]
    found = {"favorites": favorites, "listed": 8, "days": 30, "counted_at": 0.0, "levels": {"w:bad": 2}}
    daemon.answers["favorites:list"] = found
    shown = cli("favorites")
    assert "w:mine   chosen, 1 call in 30 days" in shown.out
    assert "w:used7  1,200 calls in 30 days" in shown.out
    assert "gets the first 8" in shown.err
    assert "w:bad" in shown.err
    daemon.answers["favorites:list"] = {**found, "favorites": [], "counted_at": None, "levels": {}}
    assert "No favorite tools yet" in cli("favorites").out
    daemon.answers["favorites:add"] = found
    cli("favorites", "add", "w:mine", "w:b")
    assert daemon.requests[-1]["params"] == {"tools": ["w:mine", "w:b"]}


@pytest.mark.parametrize("width", ["80", None])
def test_following_the_audit_log_prints_a_heading_and_lines_that_fit(daemon, monkeypatch, cli, width):
    texts = dict.fromkeys(("call", "tool", "decision", "rule"), "t" * 50)
    entry = {**texts, "kind": "outcome", "seq": 1, "at": 0.0, "agent": "a", "conversation": "c", "outcome": "denied"}
    entry |= {"duration": 0.1, "size": 1, "tokens": 1, "tokens_estimated": True, "detail": None}
    requests = []

    def follow(name, params, *, timeout, on_event):
        on_event({"entry": entry})
        requests.append(name)
        return {}

    monkeypatch.setattr("toolcrib.cli.audit_commands.perform", follow)
    screen = terminal(monkeypatch, COLUMNS="80") if width else io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    cli("audit", "-f")
    heading, line = screen.getvalue().splitlines()
    assert requests == ["audit:follow"]
    assert heading.split()[:2] == ["time", "agent"]
    assert heading.index("outcome") == line.index("denied") or not width
    assert (max(len(heading), len(line)) <= 80) == bool(width)
    assert ("t" * 50 in line) == (not width)


@pytest.mark.parametrize("buffered", ["-u", "-B"])
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["runs", "--json"], ["run", "nobody", "x", "--json"]])
def test_output_that_cannot_be_written_is_a_plain_error(monkeypatch, words, buffered):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = [sys.executable, buffered, "-m", "toolcrib", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: Cannot write to stdout: No space left on device.")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_closed_standard_output_is_not_an_error():
    words = f"{sys.executable} -m toolcrib --version >&-"
    done = subprocess.run(["/bin/sh", "-c", words], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


HIDDEN = "\x1b\x7f\x9b\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
PLAIN = "tab\tline\n日本 👩\u200d🚀 é"


def test_control_and_direction_characters_are_escaped_for_people():
    assert visible(HIDDEN) == HIDDEN.encode("unicode_escape").decode()
    assert visible(PLAIN) == PLAIN


@pytest.mark.parametrize("say", [say_json, say_line])
def test_json_has_the_same_values_and_on_a_terminal_no_control_or_direction_characters(monkeypatch, say):
    value = {"text": HIDDEN + PLAIN}
    for stream, kept in ((Screen(), False), (io.StringIO(), True)):
        monkeypatch.setattr("sys.stdout", stream)
        say(value)
        assert json.loads(stream.getvalue()) == value
        assert [character in stream.getvalue() for character in ("\u202e", "\x9b", "日本")] == [kept, kept, True]


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a\n  b"}, {"type": "text", "text": "c"}], "a\n  b\nc"),
        ([{"type": "image", "mimeType": "image/png", "data": "A" * 4000}], "[image: image/png, 3.0 kB]"),
        ([{"type": "audio", "mimeType": "audio/wav", "data": "AAA="}], "[audio: audio/wav, 2 B]"),
        ([{"type": "resource_link", "name": "x", "uri": "file:///x"}], "[link: x file:///x]"),
        ([{"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}], "inside"),
        ([{"type": "resource", "resource": {"uri": "a:b", "blob": "AAAA"}}], "[resource: a:b, unknown type, 3 B]"),
        ([{"type": "new", "x": 1}], '{\n  "type": "new",\n  "x": 1\n}'),
        ([], ""),
        ("odd", ""),
        ([None], "null"),
    ],
)
def test_each_kind_of_content_is_shown(content, text):
    assert result_text({"content": content}) == text


def test_structured_content_is_shown_if_there_is_no_text():
    assert result_text({"content": [], "structuredContent": {"n": 1}}) == '{\n  "n": 1\n}'
    assert result_text({"content": [{"type": "text", "text": "1"}], "structuredContent": {"n": 1}}) == "1"
    assert result_text({}) == ""


SIMPLE = {"text": "string", "count": "integer", "ratio": "number", "deep": "boolean", "options": "object"}
SCHEMA: dict[str, Any] = {
    "properties": {name: {"type": kind} for name, kind in SIMPLE.items()}
    | {name: {"$ref": f"#/$defs/{name}"} for name in ("size", "circle")}
    | {"level": {"enum": [1, 2, 3]}, "colour": {"enum": ["red", "green"]}, "maybe_text": {"type": ["string", "null"]}}
    | {"maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    | {"paths": {"type": "array", "items": {"type": "string"}}}
    | {"sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}}},
    "$defs": {"size": {"type": "integer"}, "circle": {"$ref": "#/$defs/circle"}},
}
# fmt: off
VALUES = [
    ("text=5", "5"), ("text=a=b", "a=b"), ("text=", ""), ("text=@@handle", "@handle"), ("count=5", 5), ("count=-5", -5),
    ("ratio=5", 5), ("ratio=0.5", 0.5), ("ratio=1e3", 1000.0), ("deep=true", True), ("deep=False", False),
    ("paths=a.txt", ["a.txt"]), ('paths=["a", "b"]', ["a", "b"]), ("sizes=4", [4]), ("maybe=3", 3),
    ('options={"a": null}', {"a": None}), ("maybe=null", None), ("maybe_text=null", "null"), ("level=2", 2),
    ("colour=red", "red"), ("size=7", 7), ("circle=x", "x"), ("unknown=7", "7"), ("text:=7", 7),
    ('unknown:={"a": [1]}', {"a": [1]}),
]
MISTAKES = [
    ("count=five", "count: found 'five', expected integer"), ("count=1.5", "expected integer"),
    ("ratio=nan", "expected number"), ("deep=maybe", "expected boolean"), ("options={a}", "expected JSON"),
    ("text:=NaN", "expected JSON"), ("text", "is not key=value"), ("=5", "is not key=value"),
    (":=5", "is not key=value"), ("text=@/no/such/file", "cannot be read"), ("paths=[1", "expected JSON"),
]
# fmt: on


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize(("word", "value"), VALUES)
def test_a_word_becomes_a_value_of_the_type_in_the_schema(word, value):
    (found,) = arguments_from([word], None, SCHEMA).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize(("word", "message"), MISTAKES)
def test_an_invalid_word_is_an_error_that_names_it(word, message):
    with pytest.raises(InvalidArguments) as caught:
        arguments_from([word], None, SCHEMA)
    assert message in caught.value.text()


@pytest.mark.req("BNS-5")
def test_files_are_read_words_override_args_and_lists_can_be_repeated(tmp_path):
    (tmp_path / "a.txt").write_text("line\nline\n")
    (tmp_path / "b.json").write_text("[1, 2]")
    found = arguments_from([f"text=@{tmp_path}/a.txt", f"sizes=@{tmp_path}/b.json"], None, SCHEMA)
    assert found == {"text": "line\nline\n", "sizes": [1, 2]}
    found = arguments_from(["count=2", "paths=a", "paths=b"], '{"count": 1, "paths": ["z"], "deep": true}', SCHEMA)
    assert found == {"count": 2, "paths": ["a", "b"], "deep": True}
    with pytest.raises(InvalidArguments, match="twice"):
        arguments_from(["count=1", "count=2"], None, SCHEMA)
    for args in ("[1]", "nonsense", "", '{"a": Infinity}'):
        with pytest.raises(InvalidArguments):
            arguments_from([], args, SCHEMA)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@given(value=JSON, text=st.text().filter(lambda text: not text.startswith("@")))
def test_json_and_strings_are_sent_unchanged(value, text):
    assert arguments_from([f"x:={json.dumps(value)}", f"text={text}"], None, SCHEMA) == {"x": value, "text": text}


@given(
    word=st.text(),
    schema=st.dictionaries(
        st.sampled_from(["properties", "$defs", "type"]),
        st.recursive(st.text() | st.none(), lambda x: st.dictionaries(st.text(), x) | st.lists(x), max_leaves=6),
    ),
)
def test_any_word_and_any_schema_lead_to_arguments_or_an_error(word, schema):
    try:
        arguments_from([word.replace("@", "")], None, schema)
    except InvalidArguments as error:
        assert error.text()
