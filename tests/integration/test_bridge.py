"""`toolcrib stdio` as a client sees it: a real process between a client and a stand-in for the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from parts.daemon import Cli, Home
from parts.raw_client import META
from parts.server_process import stdio_entry
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-1")

LIMIT = 60.0
NO_OPTIONS: Mapping[str, str] = {}
HEALTHY = b'{"jsonrpc":"2.0","id":0,"result":{}}\n'

STAND_IN = """
import json, os, socket, sys, threading
home = sys.argv[1]
run = os.path.join(home, "run")
os.makedirs(run, exist_ok=True)
path = os.path.join(run, "daemon.sock")
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(64)
with open(os.path.join(home, "pids"), "a") as pids:
    pids.write(f"{os.getpid()}\\n")

def serve(sock):
    seen = []
    for line in sock.makefile("rb"):
        message = json.loads(line)
        method, given = message.get("method"), message.get("params", {})
        if method == "system:health":
            sock.sendall(b'{"jsonrpc":"2.0","id":0,"result":{}}\\n')
            continue
        seen.append(method or "answer")
        if method == "toolcrib/bridge":
            hello = given
        elif method == "die":
            os._exit(9)
        elif method == "hang":
            continue
        elif method == "ask":
            sock.sendall(b'{"jsonrpc":"2.0","id":0,"method":"elicitation/create"}\\n')
        elif "id" in message and method:
            body = {"result": {"pid": os.getpid(), "hello": hello, "seen": list(seen), "echo": given.get("echo")}}
            sock.sendall(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}).encode() + b"\\n")
    sock.close()

while True:
    connection, _ = server.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"""

START = """
import subprocess, sys, time
time.sleep(float(sys.argv[1]))
subprocess.Popen([sys.executable, *sys.argv[2:]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL, start_new_session=True)
"""

BRIDGE = """
import json, sys
from toolcrib.cli.bridge import run_bridge
sys.exit(run_bridge(start=sys.argv[2:], **json.loads(sys.argv[1])))
"""


class BridgeClient:
    """A client and the bridge that it started."""

    def __init__(self, start: list[str], environ: Mapping[str, str], cwd: Path, **options: str) -> None:
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words = [sys.executable, "-c", BRIDGE, json.dumps(options), *start]
        self.process: Any = subprocess.Popen(words, cwd=cwd, env={"PATH": os.environ["PATH"], **environ}, **pipes)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send_raw(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, method: str, request_id: int | str | None = None, **params: Any) -> None:
        numbered = {} if request_id is None else {"id": request_id}
        self.send_raw(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **numbered}).encode() + b"\n")

    def line(self) -> bytes:
        return self._lines.get(timeout=LIMIT)

    def message(self) -> Any:
        return json.loads(self.line())

    def ask(self, method: str, request_id: int | str, **params: Any) -> Any:
        """The answer to this request; other messages before it are skipped."""
        self.send(method, request_id, **params)
        return self.answer_to(request_id)

    def answer_to(self, request_id: int | str) -> Any:
        while True:
            message = self.message()
            if message.get("id") == request_id:
                return message

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        for stream in (self.process.stdin, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        self._reader.join(LIMIT)
        self.process.stdout.close()

    def stderr(self) -> str:
        return str(self.process.stderr.read().decode())


class StandIns:
    """A user's directory with stand-ins for the daemon; they and the bridges end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "daemon.sock"
        self.project = folder / "project"
        (self.project / ".git" / "HEAD").mkdir(parents=True)
        (self.project / "src").mkdir()
        (folder / "daemon.py").write_text(STAND_IN)
        (folder / "start.py").write_text(START)
        self.environ = {"HOME": str(folder), "TOOLCRIB_HOME": str(folder)}
        self.bridges: list[BridgeClient] = []

    def start_command(self, *, takes: float = 0.0) -> list[str]:
        return [sys.executable, *map(str, (self.folder / "start.py", takes, self.folder / "daemon.py", self.folder))]

    def bridge(
        self, *, start: list[str] | None = None, options: Mapping[str, str] = NO_OPTIONS, **environ: str
    ) -> BridgeClient:
        command, whole = start or self.start_command(), {**self.environ, **environ}
        client = BridgeClient(command, whole, self.project / "src", **options)
        self.bridges.append(client)
        return client

    def give_token(self, agent: str, token: str) -> None:
        folder = self.folder / "state" / "agents" / agent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(f"{token}\n")

    def daemons(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def kill_daemon(self) -> None:
        os.kill(self.daemons()[-1], signal.SIGKILL)
        wait_for(self._refuses, "the socket to be refused")

    def _refuses(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(str(self.socket)) != 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """A daemon whose side the test plays itself."""
        self.socket.parent.mkdir(exist_ok=True)
        self.socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(LIMIT)
            server.bind(str(self.socket))
            server.listen()
            yield server

    def close(self) -> None:
        for bridge in self.bridges:
            bridge.close()
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StandIns]:
    with contextlib.closing(StandIns(tmp_path)) as made:
        yield made


def test_the_bridge_starts_a_daemon_and_passes_the_project_and_the_conversation(home: StandIns) -> None:
    client = home.bridge(TOOLCRIB_CONVERSATION="talk-7")
    result = client.ask("tools/list", 1)["result"]
    assert result["hello"] == {"root": str(home.project), "conversation": "talk-7"}
    assert home.daemons() == [result["pid"]]
    text = "x" * 20_000_000
    assert client.ask("tools/call", 2, echo=text)["result"]["echo"] == text
    # A client may name its project, and each bridge is a conversation of its own.
    hellos = [home.bridge(CLAUDE_PROJECT_DIR=str(home.folder)).ask("tools/list", 1)["result"]["hello"] for _ in "ab"]
    assert [hello["root"] for hello in hellos] == [str(home.folder)] * 2
    assert hellos[0]["conversation"] != hellos[1]["conversation"]


@pytest.mark.req("BNS-4")
def test_the_bridge_says_which_tools_its_client_has_and_how_to_list_the_others(home: StandIns) -> None:
    """It decides once: a list does not change in the middle of a conversation, even after a reconnection."""
    settings = home.project / ".codex" / "config.toml"
    settings.parent.mkdir()
    client = home.bridge(options={"client": "codex", "listing": "thin"}, CODEX_HOME=str(home.folder / "codex"))
    expected = {"listing": "thin", "without": "find_files,list_dir,read_file,search_text"}
    hello = client.ask("tools/list", 1)["result"]["hello"]
    assert {name: hello[name] for name in expected} == expected
    settings.write_text("features.shell_tool = false")
    home.kill_daemon()
    assert client.ask("tools/list", 2)["result"]["hello"] == hello
    later = home.bridge(options={"client": "codex"}, CODEX_HOME=str(home.folder / "codex"))
    assert later.ask("tools/list", 1)["result"]["hello"].keys() == {"root", "conversation"}


def test_ten_bridges_at_once_start_one_daemon(home: StandIns) -> None:
    # All ten look for a daemon before the first one has started.
    clients = [home.bridge(start=home.start_command(takes=1.0)) for _ in range(10)]
    pids = {client.ask("tools/list", "a")["result"]["pid"] for client in clients}
    assert home.daemons() == list(pids)


def test_bytes_pass_unchanged(home: StandIns) -> None:
    sent = b'{ "id" : 1 ,\t"result":{"n":1.0,"\xc3\xa9":"\\u00e9","x":null}, "jsonrpc":"2.0"}\r\n'
    with home.listening() as server:
        client = home.bridge()
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            assert json.loads(stream.readline())["method"] == "system:health"
            connection.sendall(HEALTHY)
            assert json.loads(stream.readline())["method"] == "toolcrib/bridge"
            for line in (b'{"method":"a",  "params":{"a":1e2,"a":2},"id":1,"jsonrpc":"2.0"}\r\n', b"{not json \xff\n"):
                client.send_raw(line)
                assert stream.readline() == line
            connection.sendall(sent[:20])
            connection.sendall(sent[20:])
            assert client.line() == sent


def test_the_bridge_ends_with_its_client_and_pending_answers_still_arrive(home: StandIns) -> None:
    client = home.bridge()
    client.ask("tools/list", 1)
    client.ask("subscriptions/listen", 2)
    client.send_raw(b'{"jsonrpc":"2.0","id":3,"method":"tools/list"}')
    client.process.stdin.close()
    last = client.message()
    assert (last["id"], "result" in last) == (3, True)
    assert client.process.wait(LIMIT) == 0
    assert client.stderr() == ""


def test_requests_in_flight_when_the_daemon_dies_get_an_error_and_the_next_one_a_new_daemon(home: StandIns) -> None:
    client = home.bridge()
    first = client.ask("tools/list", 1)["result"]["pid"]
    client.send("hang", "two")
    client.send("die", 3)
    refused = [client.message(), client.message()]
    assert {message["id"] for message in refused} == {"two", 3}
    assert all("may have run" in message["error"]["message"] for message in refused)
    again = client.ask("tools/list", 4)
    assert again.get("result", {}).get("pid") not in (None, first), again


def test_a_legacy_conversation_continues_with_a_new_daemon_and_the_current_token(home: StandIns) -> None:
    home.give_token("reviewer", "tcb_one")
    client = home.bridge(options={"agent": "reviewer"})
    assert client.ask("initialize", 1, protocolVersion="2025-06-18")["result"]["hello"]["token"] == "tcb_one"
    client.send("notifications/initialized")
    client.ask("tools/list", 2)
    home.give_token("reviewer", "tcb_two")
    home.kill_daemon()
    client.send("tools/list", 3)
    answer = client.message()
    assert answer["id"] == 3, "the client must not get the answer to the second initialize"
    assert answer["result"]["hello"]["token"] == "tcb_two", "the token was rotated meanwhile"
    assert answer["result"]["seen"] == ["toolcrib/bridge", "initialize", "notifications/initialized", "tools/list"]
    shutil.rmtree(home.folder / "state" / "agents" / "reviewer")
    home.kill_daemon()
    assert "There is no agent 'reviewer'" in client.ask("tools/list", 4)["error"]["message"]


def test_an_answer_to_the_old_daemon_is_not_sent_to_the_new_one(home: StandIns) -> None:
    answer = b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}\n'
    client = home.bridge()
    client.send("ask", 1)
    assert client.message()["method"] == "elicitation/create"
    home.kill_daemon()
    assert client.message()["id"] == 1
    for number in (2, 3):
        client.send_raw(answer)
        seen = client.ask("tools/list", number)["result"]["seen"]
        assert seen == ["toolcrib/bridge", *["tools/list"] * (number - 1)]
    client.send("ask", 4)
    client.message()
    client.send_raw(answer)
    assert client.ask("tools/list", 5)["result"]["seen"][-3:] == ["ask", "answer", "tools/list"]


def test_a_daemon_that_does_not_start_is_an_error_with_its_reason_and_the_client_can_retry(home: StandIns) -> None:
    switch = home.folder / "broken"
    script = f"import os, runpy, sys\nif os.path.exists({str(switch)!r}): sys.exit('out of order')\n"
    script += "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0])"
    start = [sys.executable, "-c", script, *home.start_command()[1:]]
    client = home.bridge(start=start)
    client.ask("tools/list", 1)
    switch.touch()
    home.kill_daemon()
    assert "out of order" in client.ask("tools/list", 2)["error"]["message"]
    late = home.bridge(start=start)
    assert "out of order" in late.ask("initialize", 1)["error"]["message"]
    assert late.process.wait(LIMIT) == 7
    assert "out of order" in late.stderr()
    switch.unlink()
    assert "result" in client.ask("tools/list", 3)


@pytest.mark.req("KSI-2", "KSI-7")
@pytest.mark.parametrize("agent", ["nobody", "..", "../agents/reviewer", "reviewer/.."])
def test_a_missing_agent_is_an_error_and_an_exit_code(home: StandIns, agent: str) -> None:
    home.give_token("reviewer", "tcb_one")
    (home.folder / "state" / "token").write_text("not an agent's")
    client = home.bridge(options={"agent": agent})
    client.send_raw(b'{"jsonrpc":"2.0","method":"notifications/early"}\n')
    client.send("initialize", "first")
    refused = client.message()
    assert refused["id"] == "first"
    assert "There is no agent" in refused["error"]["message"]
    assert "toolcrib agent list" in refused["error"]["message"]
    assert client.process.wait(LIMIT) == 4
    assert "There is no agent" in client.stderr()
    assert home.daemons() == [], "no daemon was started"


@pytest.mark.req("KSI-2", "KSI-7")
@pytest.mark.parametrize("legacy", [False, True])
def test_a_token_that_the_daemon_does_not_know_is_an_error_in_the_answer(home: StandIns, legacy: bool) -> None:
    home.give_token("reviewer", "tcb_old")
    client = home.bridge(options={"agent": "reviewer"})
    client.ask("initialize" if legacy else "tools/list", 1)
    home.kill_daemon()
    with home.listening() as server:
        client.send("tools/list", 2)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            stream.readline()
            connection.sendall(HEALTHY)
            assert json.loads(stream.readline())["params"]["token"] == "tcb_old"
            stream.readline()
            connection.sendall(b'{"jsonrpc":"2.0","id":null,"error":{"code":-31401,"message":"It ended."}}\n')
        answers = [client.message() for _ in range(1 if legacy else 2)]
    assert (answers[-1]["id"], answers[-1]["error"]["message"]) == (2, "It ended.")


def test_a_client_that_stops_reading_ends_the_bridge(home: StandIns) -> None:
    read_end, write_end = os.pipe()
    words = [sys.executable, "-c", BRIDGE, "{}", *home.start_command()]
    environ = {"PATH": os.environ["PATH"], **home.environ}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=write_end, cwd=home.project, env=environ) as bridge:
        os.close(write_end)
        os.close(read_end)
        assert bridge.stdin is not None
        bridge.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        bridge.stdin.flush()
        try:
            assert bridge.wait(LIMIT) == 0, "its stdin is open: only the closed stdout can have ended it"
        finally:
            bridge.kill()


HEAVY = {"typer", "rich", "asyncio", "mcp", "pydantic", "yaml", "sqlalchemy", "websockets", "msgspec", "subprocess"}
MAIN = ["-c", "import sys; from toolcrib.cli.main import main; sys.exit(main())", "stdio"]


def test_the_bridge_imports_no_heavy_package(home: StandIns) -> None:
    environ = {"PATH": "/nonexistent", "HOME": "/nonexistent/home", "TOOLCRIB_HOME": "/dev/null/nowhere"}
    for command in (["-m", "toolcrib", "stdio"], ["-m", "toolcrib", "stdio", "--agent", "reviewer"], MAIN):
        words = [sys.executable, "-X", "importtime", *command]
        done = subprocess.run(
            words, check=False, cwd=home.project, env=environ, input=b"", capture_output=True, timeout=LIMIT
        )
        assert done.returncode == (4 if "--agent" in command else 7), done.stderr
        imported = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
        assert "toolcrib.cli.bridge" in imported
        assert not imported & HEAVY


@pytest.mark.slow
@pytest.mark.req("BNS-9")
def test_bridges_share_one_real_daemon_and_survive_its_end(toolcrib_home: Home, cli: Cli) -> None:
    folder, seen = toolcrib_home.toolcrib, toolcrib_home.path / "seen"
    toolcrib_home.write_config({"servers": {"own": stdio_entry("raw_server", "--seen", str(seen))}})
    start = [sys.executable, "-P", "-m", "toolcrib", "up", "--detach", "--json"]
    environ = {**toolcrib_home.environ(), "TOOLCRIB_PORT": "0"}

    def pid() -> int:
        return json.loads((folder / "run" / "daemon.json").read_text())["pid"]

    def calls(client: BridgeClient, request_id: int, **more: Any) -> None:
        answer = client.ask("tools/call", request_id, name="own_ok", arguments={"a": request_id}, **more)
        assert answer["result"]["structuredContent"] == {"ok": True, "arguments": {"a": request_id}}

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: cli("down").ok())
        clients = [BridgeClient(start, environ, toolcrib_home.project) for _ in range(5)]
        for client in clients:
            stack.callback(client.close)
        modern, *legacy = clients
        calls(modern, 1, _meta=META)
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        for client in legacy:
            assert client.ask("initialize", 1, **hello)["result"]["protocolVersion"] == "2025-06-18"
            client.send("notifications/initialized")
            calls(client, 2)
        assert (folder / "state" / "toolcrib.log").read_text().count("serving http://") == 1
        first, status = pid(), cli("status", "--json").ok().json
        assert status["pid"] == first
        child = status["servers"][0]["pid"]

        client = legacy[0]
        client.send("tools/call", 3, name="own_never", arguments={})
        wait_for(lambda: b"never" in seen.read_bytes(), "the call to arrive")
        os.kill(first, signal.SIGKILL)
        assert "may have run" in client.answer_to(3)["error"]["message"]
        calls(client, 4)
        calls(modern, 2, _meta=META)
        assert pid() != first
        assert cli("status", "--json").ok().json["servers"][0]["pid"] != child
        wait_for(lambda: leftovers.read(child) is None, "the killed daemon's server to end")
        modern.process.stdin.close()
        assert modern.process.wait(LIMIT) == 0

        cli("down").ok()
        for request_id in (5, 6):
            held = client.ask("tools/list", request_id)["error"]["message"]
            assert held.startswith("The daemon was stopped with `toolcrib down`. Start it with `toolcrib up")
        assert not toolcrib_home.socket.exists(), "an open bridge does not start it again"
        client = BridgeClient(start, environ, toolcrib_home.project)
        stack.callback(client.close)
        calls(client, 1, _meta=META)
        calls(legacy[0], 7)
        cli("down").ok()
        assert "stopped with" in client.ask("tools/list", 2)["error"]["message"]
        cli("up", "--detach", "--port", "0").ok()
        calls(client, 3, _meta=META)
        os.kill(pid(), signal.SIGKILL)
        wait_for(lambda: "result" in client.ask("tools/list", 4, _meta=META), "the bridge to start it after a crash")
