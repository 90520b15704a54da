"""The stand-alone workspace server with real MCP clients: all transports, both protocol generations, hostile peers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from parts import traps
from parts import workspace as workspaces
from parts.daemon import Home
from parts.sandboxes import NO_PLUGINS, empty, pids_with
from parts.waiting import wait_for
from parts.workspace import TRANSPORTS, StartWorkspace, WorkspaceServer, end
from toolcrib.workspace.serving.transports import MAX_MESSAGE_SIZE
from toolcrib.workspace.settings.model import DEFAULTS
from toolcrib.workspace.tools import TOOLS, tool_definition

pytestmark = pytest.mark.slow

LIMIT = 60.0
ERAS = ("modern", "legacy")
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
FILES = {
    "pyproject.toml": '[tool.ruff]\nline-length = 100\n[tool.pytest.ini_options]\naddopts = "-q"\n',
    "app.py": "import os\n\n\ndef double(n):\n    return n * 2\n",
    "test_app.py": "from app import double\n\n\ndef test_two():\n    assert double(2) == 4\n\n\n"
    "def test_wrong():\n    assert double(2) == 5\n",
}


@pytest.fixture
def start_workspace(home_folder: Home, bwrap: Path) -> Iterator[StartWorkspace]:
    with workspaces.starting(home_folder) as start:
        yield start


@pytest.fixture(scope="module")
def started(shared_home: Home, bwrap: Path) -> Iterator[tuple[StartWorkspace, dict[str, WorkspaceServer]]]:
    (shared_home.toolcrib / "workspace.yml").write_text(f"environment: [{NO_PLUGINS}]\n")
    with workspaces.starting(shared_home) as start:
        yield start, {}


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(
    request: pytest.FixtureRequest, started: tuple[StartWorkspace, dict[str, WorkspaceServer]]
) -> WorkspaceServer:
    """A server for each transport, started once."""
    start, servers = started
    if request.param not in servers:
        servers[request.param] = start(request.param, env={NO_PLUGINS: "1"})
    return servers[request.param]


over_http = pytest.mark.parametrize("server", ["http"], indirect=True)
over_http_or_socket = pytest.mark.parametrize("server", ["http", "socket"], indirect=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project under git: one test passes, one fails, and the linter has a finding."""
    root = tmp_path_factory.mktemp("template")
    for name, content in FILES.items():
        (root / name).write_text(content)
    traps.git(root, "init", "--quiet", "--initial-branch=main")
    traps.git(root, "add", ".")
    traps.git(root, "commit", "--quiet", "--message=first")
    return root


@pytest.fixture
def project(shared_home: Home, template: Path) -> Iterator[Path]:
    shutil.copytree(template, shared_home.project, dirs_exist_ok=True)
    yield shared_home.project
    empty(shared_home.project)


def new_mark(prefix: int) -> str:
    """A number of seconds to sleep, by which processes can be found."""
    return f"{prefix}{os.getpid()}.{time.monotonic_ns() % 10**9}"


def text(result: Any) -> str:
    return str(result.content[0].text)


async def in_thread(condition: Callable[[], Any], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, what)


# ---- clients

EVERY_TOOL: dict[str, dict[str, Any]] = {
    "read_file": {"path": "app.py"},
    "write_file": {"path": "new/notes.txt", "content": "one\n"},
    "edit_file": {"path": "app.py", "old": "n * 2", "new": "2 * n"},
    "list_dir": {"path": "."},
    "stat_file": {"path": "app.py"},
    "find_files": {"glob": ["*.py"]},
    "search_text": {"pattern": "def double"},
    "run_tests": {},
    "run_lint": {},
    "run_shell_safe": {"command": "echo hello > made; cat made"},
    "project_diff": {},
    "project_structure": {},
}
ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("read_file", {"path": "ap.py"}, "app.py"),
    ("read_file", {"pth": "app.py"}, "Did you mean 'path'?"),
    ("read_file", {"path": "../outside"}, "outside the workspace"),
    ("write_file", {"path": ".git/hooks/x", "content": ""}, ".git"),
    ("edit_file", {"path": "app.py", "old": "absent", "new": ""}, "not found"),
]


@pytest.mark.req("FRG-1", "FRG-2", "FRG-10")
@pytest.mark.parametrize("era", ERAS)
async def test_clients_of_each_transport_and_protocol_generation(
    server: WorkspaceServer, project: Path, era: str
) -> None:
    async with asyncio.timeout(2 * LIMIT), server.client(era) as client, server.client(era) as other:
        await check_every_tool(client, project)
        await check_errors(client)
        await check_progress(client, project)
        await check_cancelling(client)
        await check_parallel_calls(client, other)


async def check_every_tool(client: Client, project: Path) -> None:
    tools = (await client.list_tools()).tools
    listed = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
    assert listed == [json.loads(tool_definition(tool, DEFAULTS)) for tool in TOOLS]
    assert [tool.name for tool in tools] == list(EVERY_TOOL)
    for tool, arguments in zip(tools, EVERY_TOOL.values(), strict=True):
        jsonschema_rs.validate(tool.input_schema, arguments)
        result = await client.call_tool(tool.name, arguments)
        assert not result.is_error, text(result)
        assert text(result)
        found: Any = result.structured_content
        jsonschema_rs.validate(tool.output_schema or {}, found)
        if tool.name == "run_tests":
            assert (found["passed"], found["failed"]) == (1, 1), text(result)
        if tool.name == "run_lint":
            assert "F401" in text(result)
    assert (project / "new" / "notes.txt").read_text() == "one\n"
    assert "2 * n" in (project / "app.py").read_text()
    assert (project / "made").read_text() == "hello\n"


async def check_errors(client: Client) -> None:
    for name, arguments, message in ERRORS:
        result = await client.call_tool(name, arguments)
        assert result.is_error, (name, arguments)
        assert message in text(result)
    with pytest.raises(MCPError) as error:
        await client.call_tool("no_such_tool", {})
    assert error.value.error.code == -32602


async def check_progress(client: Client, project: Path) -> None:
    received: list[tuple[float, str]] = []

    async def progress(done: float, _total: float | None, message: str | None) -> None:
        received.append((done, message or ""))
        # The command waits for this, so it ends only if its first line arrives before.
        (project / "go").touch()

    command = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second"
    result = await client.call_tool("run_shell_safe", {"command": command}, progress_callback=progress)
    assert not result.is_error, text(result)
    assert any("first" in message for _, message in received)
    numbers = [number for number, _ in received]
    assert numbers == sorted(set(numbers))


async def check_cancelling(client: Client) -> None:
    mark = new_mark(98)
    command = f"sleep {mark} & setsid sleep {mark} & sleep {mark}"
    calling = asyncio.ensure_future(client.call_tool("run_shell_safe", {"command": command}))
    await in_thread(lambda: len(pids_with(f"sleep\0{mark}")) >= 3, "the command to run")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await in_thread(lambda: not pids_with(mark), "its processes to end")
    assert not (await client.call_tool("list_dir", {})).is_error


async def check_parallel_calls(one: Client, two: Client) -> None:
    async def meet(client: Client, mine: str, other: str) -> Any:
        command = f"touch {mine}; while [ ! -e {other} ]; do sleep 0.02; done; echo met"
        return await client.call_tool("run_shell_safe", {"command": command})

    for result in await asyncio.gather(meet(one, "a", "b"), meet(two, "b", "a")):
        assert "met" in text(result)


@pytest.mark.req("FRG-1", "FRG-9")
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_the_instructions_name_the_folder_and_the_tools_that_are_off(
    start_workspace: StartWorkspace, home_folder: Home, era: str
) -> None:
    server = start_workspace("stdio", "--read-only", "--unsafe-no-sandbox")
    async with asyncio.timeout(LIMIT), server.client(era) as client:
        folder, off, unsafe = (client.instructions or "").splitlines()
    assert str(home_folder.project) in folder
    assert off == "Off here: edit_file, project_diff, run_lint, run_shell_safe, run_tests, write_file."
    assert "NOT SANDBOXED" in unsafe


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_read_only_mode_changes_nothing(
    start_workspace: StartWorkspace, home_folder: Home, template: Path, transport: str
) -> None:
    root = home_folder.project
    shutil.copytree(template, root, dirs_exist_ok=True)
    before = sorted(str(path) for path in root.rglob("*") if ".git" not in path.parts)
    async with asyncio.timeout(LIMIT), start_workspace(transport, "--read-only").client("modern") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert not {"write_file", "edit_file", "run_shell_safe"} & names
        for name, arguments in EVERY_TOOL.items():
            result = await client.call_tool(name, arguments)
            assert bool(result.is_error) == (name not in names), text(result)
    assert sorted(str(path) for path in root.rglob("*") if ".git" not in path.parts) == before
    assert "n * 2" in (root / "app.py").read_text()


@pytest.mark.req("FRG-9", "FRG-10", "FRG-12")
async def test_a_named_settings_file_applies_and_each_session_has_its_own_limits(
    start_workspace: StartWorkspace, home_folder: Home
) -> None:
    settings = home_folder.path / "mine.yml"
    settings.write_text("tools:\n  list_dir: off\nlimits:\n  session_calls: 2\n")
    server = start_workspace("http", "--config", str(settings))
    async with asyncio.timeout(LIMIT):
        for era in (*ERAS, *ERAS):
            async with server.client(era) as client:
                assert "list_dir" not in {tool.name for tool in (await client.list_tools()).tools}
                assert "switched off" in text(await client.call_tool("list_dir", {}))
                results = [await client.call_tool("stat_file", {"path": "."}) for _ in range(3)]
                assert [bool(result.is_error) for result in results] == [False, False, True]


# ---- the process


def lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": META}}


def send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


@pytest.mark.req("FRG-2", "FRG-9")
@pytest.mark.parametrize("way", ["stdin closed", "SIGTERM", "SIGINT", "SIGKILL"])
def test_commands_end_with_the_server(start_workspace: StartWorkspace, way: str) -> None:
    mark = new_mark(97)
    with start_workspace("stdio").popen() as process:
        send(process, lines(call("run_shell_safe", command=f"setsid sleep {mark} & sleep {mark}")))
        wait_for(lambda: len(pids_with(f"sleep\0{mark}")) >= 2, "the command to run")
        if way == "stdin closed":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[way])
        assert process.wait(workspaces.END_LIMIT) == (-signal.SIGKILL if way == "SIGKILL" else 0)
        wait_for(lambda: not pids_with(mark), "its processes to end")


@pytest.mark.req("FRG-2")
def test_a_client_that_never_reads_does_not_delay_the_end(start_workspace: StartWorkspace, home_folder: Home) -> None:
    (home_folder.project / "big").write_text("x" * 100_000)
    with start_workspace("stdio").popen() as process:
        send(process, lines(*(call("read_file", number, path="big") for number in range(20))))
        assert process.stdout is not None
        assert process.stdout.read(1000)
        assert end(process) == 0


@pytest.mark.req("FRG-2", "FRG-9")
def test_stdout_carries_only_the_protocol(start_workspace: StartWorkspace) -> None:
    with start_workspace("stdio", "--unsafe-no-sandbox").popen() as process:
        shell = call("run_shell_safe", command="echo loud >&2; echo words")
        send(process, b"\n  \nno json\n" + lines(shell, {"not": "a message"}))
        assert process.stdout is not None
        line = process.stdout.readline()
        rest, log = process.communicate(timeout=LIMIT)
    result = json.loads(line)["result"]
    assert result["structuredContent"]["stdout"] == "words\n"
    assert "NOT SANDBOXED" in result["content"][0]["text"]
    assert rest == b""
    assert b"WITHOUT A SANDBOX" in log
    assert b'unsandboxed: run_shell_safe {"command":"echo loud >&2; echo words"' in log


def test_an_endless_line_is_skipped(start_workspace: StartWorkspace) -> None:
    with start_workspace("stdio").popen() as process:
        send(process, b'{"x":"' + b"y" * (MAX_MESSAGE_SIZE + 1) + b'"}\n' + lines(call("stat_file", path=".")))
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == 1
        process.communicate(timeout=LIMIT)
    assert process.returncode == 0


@pytest.mark.req("FRG-2", "FRG-12")
def test_a_server_that_cannot_start_gives_the_reason(home_folder: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases: list[tuple[list[str], int, str]] = [
            (["--root", "/"], 1, "cannot be a workspace"),
            (["--root", "/no/such/folder"], 1, "cannot be a workspace"),
            (["--config", "/no/such/file.yml"], 3, "no file"),
            (["--token-file", "x"], 2, "--http"),
            (["--http", "70000"], 2, "65535"),
            (["--http", "x"], 2, "invalid int"),
            (["--http", str(taken.getsockname()[1])], 8, "0 picks a free one"),
            (["--socket", "/tmp/others-can-write-here.sock"], 3, "Other users can write"),
            (["--socket", "/" + "x" * 120], 3, "too long"),
        ]
        options = {**workspaces.PIPES, "stdin": subprocess.DEVNULL, "text": True}
        root = ("--root", str(home_folder.project))
        processes = [workspaces.popen(home_folder, *root, *flags, **options) for flags, _, _ in cases]
        for process, (flags, code, reason) in zip(processes, cases, strict=True):
            out, err = process.communicate(timeout=LIMIT)
            assert (process.returncode, out) == (code, ""), (flags, err)
            assert reason in err
            assert "Traceback" not in err


@pytest.mark.req("FRG-2")
async def test_a_socket_is_private_and_replaced_only_when_its_server_is_gone(start_workspace: StartWorkspace) -> None:
    first = start_workspace("socket")
    async with asyncio.timeout(LIMIT), first.client("modern") as client:
        # Its self-test is over, and its files are gone, when a command has run.
        assert not (await client.call_tool("run_shell_safe", {"command": "true"})).is_error
    assert stat.S_IMODE(first.socket.stat().st_mode) == 0o600
    second = start_workspace("socket")
    assert second.process.wait(LIMIT) == 8
    assert "already listening" in second.output
    first.process.kill()
    first.process.wait()
    assert first.socket.exists()
    third = start_workspace("socket")
    async with asyncio.timeout(LIMIT), third.client("modern") as client:
        await client.list_tools()
    assert end(third.process) == 0
    assert not first.socket.exists()


@pytest.mark.req("FRG-2")
async def test_a_token_from_a_file_or_the_environment_stays_secret(
    start_workspace: StartWorkspace, home_folder: Home
) -> None:
    secret = "s" * 40
    file = home_folder.path / "key"
    file.write_text(secret + "\n")
    file.chmod(0o600)
    by_variable = start_workspace("http", env={"TOOLCRIB_WORKSPACE_TOKEN": secret})
    by_file = start_workspace("http", "--token-file", str(file))
    async with asyncio.timeout(LIMIT):
        for server in (by_variable, by_file):
            server.known_token = secret
            async with server.client("modern") as client:
                command = "env; cat /proc/*/environ | tr '\\0' '\\n'; true"
                result = await client.call_tool("run_shell_safe", {"command": command})
                assert (secret in text(result), "PATH=" in text(result)) == (False, True)
            assert secret not in server.output


# ---- hostile peers


@pytest.mark.req("FRG-2", "FRG-9")
@over_http
async def test_http_needs_the_token_and_a_local_host_and_origin(server: WorkspaceServer) -> None:
    body = lines(call("list_dir"))
    usual = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    usual |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "list_dir"}
    url = f"http://127.0.0.1:{server.port}/mcp"
    cases: list[tuple[int, dict[str, str]]] = [
        (200, {}),
        (401, {"authorization": ""}),
        (401, {"authorization": "Bearer " + "x" * 43}),
        (401, {"authorization": "Basic " + server.token}),
        (421, {"host": "evil.example"}),
        (421, {"host": "127.0.0.1"}),
        (421, {"host": f"127.0.0.1.evil.example:{server.port}"}),
        (403, {"origin": "https://evil.example"}),
        (403, {"origin": "null"}),
        (200, {"origin": f"http://localhost:{server.port}"}),
        (415, {"content-type": "text/plain"}),
    ]
    async with asyncio.timeout(LIMIT), server.http() as http:
        for status, headers in cases:
            answer = await http.post(url, headers={**usual, **headers}, content=body)
            assert answer.status_code == status, (headers, answer.text[:300])
            assert status != 401 or answer.headers["www-authenticate"] == "Bearer"
        for other in (f"{url}x", url.removesuffix("mcp")):
            assert (await http.post(other, headers=usual, content=body)).status_code == 404


def connect(server: WorkspaceServer, data: bytes) -> socket.socket:
    """A connection on which the data was sent."""
    if server.transport == "http":
        connection = socket.create_connection(("127.0.0.1", server.port), LIMIT)
    else:
        server.wait_until_serving()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(server.socket))
    connection.settimeout(LIMIT)
    connection.sendall(data)
    return connection


def half_a_request(server: WorkspaceServer, length: int = 1000) -> bytes:
    is_http = server.transport == "http"
    host = f"127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}" if is_http else "localhost"
    headers = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"POST /mcp HTTP/1.1\r\n{headers}\r\n\r\n{{".encode()


@pytest.mark.req("FRG-2")
@over_http_or_socket
def test_a_huge_body_is_refused_by_its_length(server: WorkspaceServer) -> None:
    with connect(server, half_a_request(server, 17 * 1024 * 1024)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.req("FRG-2")
@over_http
def test_a_request_that_does_not_arrive_is_dropped(server: WorkspaceServer) -> None:
    began = time.monotonic()
    with connect(server, half_a_request(server)) as body, connect(server, b"POST /mcp HTTP/1.1\r\nHost: ") as head:
        for connection in (body, head):
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) == b""
            assert time.monotonic() - began > 5
    # Endless headers are cut off at once.
    with connect(server, b"POST /mcp HTTP/1.1\r\n") as connection:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < LIMIT:
                connection.sendall(b"X-Long: " + b"x" * 8000 + b"\r\n")


@pytest.mark.req("FRG-2", "FRG-10")
@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_a_signal_ends_running_calls_and_half_sent_requests(
    start_workspace: StartWorkspace, transport: str
) -> None:
    mark = new_mark(96)
    server = start_workspace(transport)
    async with asyncio.timeout(LIMIT):
        with connect(server, half_a_request(server)), connect(server, b"POST /mcp HT"):
            with contextlib.suppress(Exception):
                # The client's own reaction does not matter.
                async with server.client("modern") as client:
                    calling = asyncio.ensure_future(client.call_tool("run_shell_safe", {"command": f"sleep {mark}"}))
                    await in_thread(lambda: pids_with(f"sleep\0{mark}"), "the command to run")
                    # Not awaited here, because the client may end first.
                    ending = asyncio.ensure_future(asyncio.to_thread(end, server.process))
                    await calling
            code = await ending
    assert calling.cancelled() or isinstance(calling.exception(), MCPError)
    assert (code, pids_with(mark)) == (0, [])
    assert "Traceback" not in server.output
