"""`toolcrib stdio` as a client sees it: a real process between a client and a stand-in daemon on a unix socket."""

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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT = 60.0

DAEMON = """
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

BRIDGE = "import sys; from toolcrib.cli.bridge import run_bridge; sys.exit(run_bridge(sys.argv[1], sys.argv[2:]))"


class Home:
    """A user's folder with stand-in daemons in it; the bridges and daemons of a test end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        (self.project / ".git" / "HEAD").mkdir(parents=True)
        (self.project / "src").mkdir()
        self.daemon_file = folder / "daemon.py"
        self.daemon_file.write_text(DAEMON)
        self.start_file = folder / "start.py"
        self.start_file.write_text(START)
        self.bridges: list[Client] = []

    def start_command(self, *, takes: float = 0.0) -> list[str]:
        return [sys.executable, str(self.start_file), str(takes), str(self.daemon_file), str(self.folder)]

    def bridge(self, *, start: list[str] | None = None, agent: str = "", **environ: str) -> Client:
        client = Client(self, start or self.start_command(), agent, environ)
        self.bridges.append(client)
        return client

    def give_token(self, agent: str, token: str) -> None:
        folder = self.folder / "state" / "agents" / agent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(f"{token}\n")

    def daemons(self) -> list[int]:
        try:
            return [int(line) for line in (self.folder / "pids").read_text().split()]
        except FileNotFoundError:
            return []

    def close(self) -> None:
        for bridge in self.bridges:
            bridge.close()
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Client:
    """What stands above a bridge."""

    def __init__(self, home: Home, start: list[str], agent: str, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BRIDGE, agent, *start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home.project / "src",
            env={"PATH": os.environ["PATH"], "HOME": str(home.folder), "TOOLCRIB_HOME": str(home.folder), **environ},
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, method: str, request_id: int | str | None = None, **params: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if request_id is not None:
            message["id"] = request_id
        self.send_raw(json.dumps(message).encode() + b"\n")

    def line(self) -> bytes:
        return self._lines.get(timeout=LIMIT)

    def message(self) -> Any:
        return json.loads(self.line())

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._reader.join(LIMIT)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def kill_daemon(home: Home) -> None:
    pid = home.daemons()[-1]
    os.kill(pid, signal.SIGKILL)
    until(lambda: _refuses(home.folder / "run" / "daemon.sock"))


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return True
    return False


@pytest.mark.req("KSI-1")
def test_the_bridge_starts_a_daemon_and_tells_it_the_project_and_the_conversation(home: Home) -> None:
    client = home.bridge(TOOLCRIB_CONVERSATION="talk-7")
    client.send("tools/list", 1)
    result = client.message()["result"]
    assert result["hello"] == {"root": str(home.project), "conversation": "talk-7"}
    assert home.daemons() == [result["pid"]]


@pytest.mark.req("KSI-1")
def test_a_client_that_names_its_project_is_believed_and_each_bridge_is_a_conversation(home: Home) -> None:
    first = home.bridge(CLAUDE_PROJECT_DIR=str(home.folder))
    first.send("tools/list", 1)
    one = first.message()["result"]["hello"]
    assert one["root"] == str(home.folder)
    second = home.bridge()
    second.send("tools/list", 1)
    two = second.message()["result"]["hello"]
    assert one["conversation"] != two["conversation"]


@pytest.mark.req("KSI-1")
def test_ten_bridges_at_once_start_one_daemon(home: Home) -> None:
    # A start slow enough that all ten have looked for a daemon before there is one.
    clients = [home.bridge(start=home.start_command(takes=1.0)) for _ in range(10)]
    for client in clients:
        client.send("tools/list", "a")
    pids = {client.message()["result"]["pid"] for client in clients}
    assert home.daemons() == list(pids)


@pytest.mark.req("KSI-1")
def test_a_line_of_fifty_megabytes_passes_both_ways_unchanged(home: Home) -> None:
    client = home.bridge()
    client.send("tools/list", 1)
    client.message()
    text = "x" * 50_000_000
    client.send("tools/call", 2, echo=text)
    answer = client.message()
    assert answer["id"] == 2
    assert answer["result"]["echo"] == text


@pytest.mark.req("KSI-1")
def test_bytes_pass_unchanged_whatever_their_form(home: Home) -> None:
    run = home.folder / "run"
    run.mkdir()
    sent = b'{ "id" : 1 ,\t"result":{"n":1.0,"\xc3\xa9":"\\u00e9","x":null}, "jsonrpc":"2.0"}\r\n'
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run / "daemon.sock"))
        server.listen()
        client = home.bridge()
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            assert json.loads(stream.readline())["method"] == "system:health"
            connection.sendall(b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
            assert json.loads(stream.readline())["method"] == "toolcrib/bridge"
            odd = b'{"method":"tools/call",  "params":{"a":1e2,"a":2},"id":1,"jsonrpc":"2.0"}\r\n'
            client.send_raw(odd)
            assert stream.readline() == odd
            broken = b"{not json \xff\n"
            client.send_raw(broken)
            assert stream.readline() == broken
            connection.sendall(sent[:20])
            connection.sendall(sent[20:])
            assert client.line() == sent


@pytest.mark.req("KSI-1")
def test_the_bridge_ends_when_its_client_does_and_pending_answers_still_arrive(home: Home) -> None:
    client = home.bridge()
    client.send("tools/list", 1)
    client.message()
    client.send("subscriptions/listen", 2)
    client.message()
    client.send_raw(b'{"jsonrpc":"2.0","id":3,"method":"tools/list"}')
    client.close_stdin()
    last = client.message()
    assert (last["id"], "result" in last) == (3, True)
    assert client.process.wait(LIMIT) == 0
    assert client.stderr() == ""


@pytest.mark.req("KSI-1")
def test_a_request_in_flight_when_the_daemon_dies_gets_an_error_and_the_next_one_a_new_daemon(home: Home) -> None:
    client = home.bridge()
    client.send("tools/list", 1)
    first = client.message()["result"]["pid"]
    client.send("hang", "two")
    client.send("die", 3)
    refused = [client.message(), client.message()]
    assert {message["id"] for message in refused} == {"two", 3}
    assert all("may have run" in message["error"]["message"] for message in refused)
    client.send("tools/list", 4)
    again = client.message()
    assert again["id"] == 4, again
    assert again.get("result", {}).get("pid") not in (None, first), again


@pytest.mark.req("KSI-1")
def test_a_legacy_conversation_goes_on_with_a_new_daemon(home: Home) -> None:
    client = home.bridge()
    client.send("initialize", 1, protocolVersion="2025-06-18")
    assert client.message()["id"] == 1
    client.send("notifications/initialized")
    client.send("tools/list", 2)
    client.message()
    kill_daemon(home)
    client.send("tools/list", 3)
    answer = client.message()
    assert answer["id"] == 3, "the second initialize's answer is not the client's"
    assert answer["result"]["seen"] == ["toolcrib/bridge", "initialize", "notifications/initialized", "tools/list"]


@pytest.mark.req("KSI-1")
def test_an_answer_to_the_old_daemon_is_not_given_to_the_new_one(home: Home) -> None:
    client = home.bridge()
    client.send("ask", 1)
    assert client.message()["method"] == "elicitation/create"
    kill_daemon(home)
    assert client.message()["id"] == 1
    client.send_raw(b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}\n')
    client.send("tools/list", 2)
    assert client.message()["result"]["seen"] == ["toolcrib/bridge", "tools/list"]
    client.send_raw(b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}\n')
    client.send("tools/list", 3)
    assert client.message()["result"]["seen"] == ["toolcrib/bridge", "tools/list", "tools/list"]
    client.send("ask", 4)
    client.message()
    client.send_raw(b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}\n')
    client.send("tools/list", 5)
    assert client.message()["result"]["seen"][-3:] == ["ask", "answer", "tools/list"]


@pytest.mark.req("KSI-1")
def test_a_daemon_that_cannot_be_started_is_an_error_with_its_reason(home: Home) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('port 8765 is taken')"]
    client = home.bridge(start=fails)
    client.send("initialize", 1)
    assert "port 8765 is taken" in client.message()["error"]["message"]
    assert client.process.wait(LIMIT) == 7
    assert "port 8765 is taken" in client.stderr()


@pytest.mark.req("KSI-1")
def test_a_daemon_that_cannot_be_restarted_is_told_to_the_client_which_may_try_again(home: Home) -> None:
    switch = home.folder / "broken"
    script = f"import os, runpy, sys\nif os.path.exists({str(switch)!r}): sys.exit('out of order')\n"
    script += "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0])"
    client = home.bridge(start=[sys.executable, "-c", script, *home.start_command()[1:]])
    client.send("tools/list", 1)
    client.message()
    switch.touch()
    kill_daemon(home)
    client.send("tools/list", 2)
    refused = client.message()
    assert refused["id"] == 2
    assert "out of order" in refused["error"]["message"]
    switch.unlink()
    client.send("tools/list", 3)
    assert client.message()["id"] == 3


@pytest.mark.req("KSI-2")
def test_the_bridge_of_an_agent_proves_who_it_is_also_to_the_next_daemon(home: Home) -> None:
    home.give_token("reviewer", "tcb_one")
    client = home.bridge(agent="reviewer")
    client.send("initialize", 1, protocolVersion="2025-06-18")
    assert client.message()["result"]["hello"]["token"] == "tcb_one"
    client.send("notifications/initialized")
    home.give_token("reviewer", "tcb_two")
    kill_daemon(home)
    client.send("tools/list", 2)
    result = client.message()["result"]
    assert result["hello"]["token"] == "tcb_two", "the token was rotated meanwhile"
    assert result["seen"] == ["toolcrib/bridge", "initialize", "notifications/initialized", "tools/list"]


@pytest.mark.req("KSI-2", "KSI-7")
@pytest.mark.parametrize("agent", ["nobody", "..", "../agents/reviewer", "reviewer/.."])
def test_an_agent_that_is_not_there_is_an_error_to_the_client_and_an_exit_code(home: Home, agent: str) -> None:
    home.give_token("reviewer", "tcb_one")
    (home.folder / "state" / "token").write_text("not an agent's")
    client = home.bridge(agent=agent)
    client.send_raw(b'{"jsonrpc":"2.0","method":"notifications/early"}\n')
    client.send("initialize", "first")
    refused = client.message()
    assert refused["id"] == "first"
    assert "There is no agent" in refused["error"]["message"]
    assert "toolcrib agent list" in refused["error"]["message"]
    assert client.process.wait(LIMIT) == 4
    assert "There is no agent" in client.stderr()
    assert home.daemons() == [], "nothing was started for nobody"


@pytest.mark.req("KSI-2")
def test_an_agent_that_went_meanwhile_is_told_to_the_client(home: Home) -> None:
    home.give_token("reviewer", "tcb_one")
    client = home.bridge(agent="reviewer")
    client.send("tools/list", 1)
    client.message()
    shutil.rmtree(home.folder / "state" / "agents" / "reviewer")
    kill_daemon(home)
    client.send("tools/list", 2)
    assert "There is no agent 'reviewer'" in client.message()["error"]["message"]


@pytest.mark.req("KSI-2", "KSI-7")
@pytest.mark.parametrize("legacy", [False, True])
def test_a_daemon_that_does_not_know_the_token_says_so_in_the_answers(home: Home, legacy: bool) -> None:
    home.give_token("reviewer", "tcb_old")
    client = home.bridge(agent="reviewer")
    client.send("initialize" if legacy else "tools/list", 1)
    client.message()
    kill_daemon(home)
    socket_file = home.folder / "run" / "daemon.sock"
    socket_file.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(LIMIT)
        server.bind(str(socket_file))
        server.listen()
        client.send("tools/list", 2)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            stream.readline()
            connection.sendall(b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
            assert json.loads(stream.readline())["params"]["token"] == "tcb_old"
            stream.readline()
            connection.sendall(b'{"jsonrpc":"2.0","id":null,"error":{"code":-31401,"message":"It ended."}}\n')
        answers = [client.message() for _ in range(1 if legacy else 2)]
    assert (answers[-1]["id"], answers[-1]["error"]["message"]) == (2, "It ended.")


@pytest.mark.req("KSI-1")
def test_a_client_that_no_longer_listens_ends_the_bridge(home: Home) -> None:
    read_end, write_end = os.pipe()
    bridge = subprocess.Popen(
        [sys.executable, "-c", BRIDGE, "", *home.start_command()],
        stdin=subprocess.PIPE,
        stdout=write_end,
        cwd=home.project,
        env={"PATH": os.environ["PATH"], "HOME": str(home.folder), "TOOLCRIB_HOME": str(home.folder)},
    )
    try:
        os.close(write_end)
        os.close(read_end)
        assert bridge.stdin is not None
        bridge.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        bridge.stdin.flush()
        assert bridge.wait(LIMIT) == 0, "its stdin is still open: only the closed stdout can have ended it"
        bridge.stdin.close()
    finally:
        bridge.kill()
        bridge.wait(LIMIT)


@pytest.mark.req("KSI-1")
def test_the_bridge_imports_nothing_heavy(home: Home) -> None:
    for command in (
        ["-m", "toolcrib", "stdio"],
        ["-m", "toolcrib", "stdio", "--agent", "reviewer"],
        ["-c", "import sys; from toolcrib.cli.main import main; sys.exit(main())", "stdio"],
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=LIMIT,
            cwd=home.project,
            env={"PATH": "/nonexistent", "HOME": "/nonexistent/home", "TOOLCRIB_HOME": "/dev/null/nowhere"},
        )
        assert done.returncode == (4 if "--agent" in command else 7), done.stderr
        imported = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
        assert "toolcrib.cli.bridge" in imported
        heavy = {
            "typer",
            "rich",
            "asyncio",
            "mcp",
            "pydantic",
            "yaml",
            "sqlalchemy",
            "websockets",
            "msgspec",
            "subprocess",
        }
        assert not imported & heavy


# -- the real daemon -------------------------------------------------------------------------------------------------

OWN_SERVER = Path(__file__).parents[1] / "parts" / "servers" / "sdk_v2.py"
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class RealHome(Home):
    """A user's folder with one configured server; daemons are real and started by the bridges alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = {
            "servers": {"own": {"command": sys.executable, "args": [str(OWN_SERVER), "--seen", str(folder / "s")]}}
        }
        (folder / "config.json").write_text(json.dumps(config))

    def bridge(self, *, start: list[str] | None = None, agent: str = "", **environ: str) -> Client:
        real = [sys.executable, "-P", "-m", "toolcrib", "up", "--detach", "--json"]
        return super().bridge(start=start or real, agent=agent, TOOLCRIB_PORT="0", **environ)

    def daemon_pid(self) -> int:
        pid = json.loads((self.folder / "run" / "daemon.json").read_text())["pid"]
        assert isinstance(pid, int)
        return pid

    def command(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "toolcrib", *words],
            cwd=self.project,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "TOOLCRIB_HOME": str(self.folder)},
            capture_output=True,
            check=False,
            timeout=LIMIT,
        )

    def processes(self) -> list[int]:
        """Everything alive that was started for this folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if os.fsencode(self.folder) in known and state != "Z":
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        for bridge in self.bridges:
            bridge.close()
        self.command("down")
        until(lambda: not self.processes())


@pytest.fixture
def real_home(tmp_path: Path) -> Iterator[RealHome]:
    made = RealHome(tmp_path)
    try:
        yield made
    finally:
        made.close()


def shake_hands(client: Client) -> None:
    client.send(
        "initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
    )
    assert answer_to(client, 1)["result"]["protocolVersion"] == "2025-06-18"
    client.send("notifications/initialized")


def answer_to(client: Client, request_id: int) -> Any:
    while True:
        message = client.message()
        if message.get("id") == request_id:
            return message


@pytest.mark.slow
@pytest.mark.req("KSI-1", "BNS-9")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_cold_bridge_brings_the_real_daemon_up_and_calls_a_tool(real_home: RealHome, era: str) -> None:
    client = real_home.bridge()
    meta: dict[str, Any] = {}
    if era == "legacy":
        shake_hands(client)
    else:
        meta = {"_meta": MODERN_META}
    client.send("tools/call", 2, name="own_add", arguments={"a": 2, "b": 3}, **meta)
    assert answer_to(client, 2)["result"]["structuredContent"] == {"sum": 5}
    client.close_stdin()
    assert client.process.wait(LIMIT) == 0
    assert json.loads(real_home.command("status", "--json").stdout)["pid"] == real_home.daemon_pid()


@pytest.mark.slow
@pytest.mark.req("KSI-1")
def test_five_cold_bridges_share_one_real_daemon(real_home: RealHome) -> None:
    clients = [real_home.bridge() for _ in range(5)]
    for client in clients:
        shake_hands(client)
    assert (real_home.folder / "state" / "toolcrib.log").read_text().count("serving http://") == 1


@pytest.mark.slow
@pytest.mark.req("KSI-1")
def test_a_conversation_outlives_kill_9_of_the_real_daemon(real_home: RealHome) -> None:
    client = real_home.bridge()
    shake_hands(client)
    client.send("tools/call", 2, name="own_slow", arguments={"seconds": 60})
    until((real_home.folder / "s").exists)
    first = real_home.daemon_pid()
    os.kill(first, signal.SIGKILL)
    assert "may have run" in answer_to(client, 2)["error"]["message"]
    client.send("tools/call", 3, name="own_add", arguments={"a": 1, "b": 1})
    assert answer_to(client, 3)["result"]["structuredContent"] == {"sum": 2}
    assert real_home.daemon_pid() != first


@pytest.mark.slow
@pytest.mark.req("KSI-1")
def test_after_down_a_bridge_that_still_lives_brings_the_daemon_back(real_home: RealHome) -> None:
    client = real_home.bridge()
    shake_hands(client)
    assert real_home.command("down").returncode == 0
    assert not (real_home.folder / "run" / "daemon.sock").exists()
    client.send("tools/list", 2)
    assert answer_to(client, 2)["result"]["tools"]
