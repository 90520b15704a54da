"""The workspace server alone, at real MCP clients: three transports, both eras, and those who mean it ill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from parts import workspace as workspaces
from parts.daemon import Home
from parts.waiting import wait_for
from parts.workspace import TRANSPORTS, Server, StartWorkspace, end, running_with

pytestmark = pytest.mark.slow

LIMIT = 60.0
ERAS = ("modern", "legacy")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture
def start_workspace(home_folder: Home, bwrap: Path) -> Iterator[StartWorkspace]:
    with workspaces.starting(home_folder) as start:
        yield start


@pytest.fixture
def project(home_folder: Home) -> Path:
    """A small project under git, with one test that passes, one that fails, and something for the linter."""
    root = home_folder.project
    (root / "pyproject.toml").write_text('[tool.ruff]\nline-length = 100\n[tool.pytest.ini_options]\naddopts = "-q"\n')
    (root / "app.py").write_text("import os\n\n\ndef double(n):\n    return n * 2\n")
    (root / "test_app.py").write_text(
        "from app import double\n\n\ndef test_two():\n    assert double(2) == 4\n\n\n"
        "def test_wrong():\n    assert double(2) == 5\n"
    )
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=root, check=True, capture_output=True, timeout=LIMIT)
    return root


def text(result: Any) -> str:
    said: str = result.content[0].text
    return said


EVERY_TOOL: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "app.py"}),
    ("write_file", {"path": "new/notes.txt", "content": "one\n"}),
    ("edit_file", {"path": "app.py", "old": "n * 2", "new": "2 * n"}),
    ("list_dir", {"path": "."}),
    ("stat_file", {"path": "app.py"}),
    ("find_files", {"glob": ["*.py"]}),
    ("search_text", {"pattern": "def double"}),
    ("run_tests", {}),
    ("run_lint", {}),
    ("run_shell_safe", {"command": "echo hello > made; cat made"}),
    ("project_diff", {}),
    ("project_structure", {}),
]


@pytest.mark.req("FRG-1", "FRG-2")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_uses_every_tool_over_every_transport(
    start_workspace: StartWorkspace, project: Path, transport: str, era: str
) -> None:
    async with asyncio.timeout(LIMIT), start_workspace(transport).client(era) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == [name for name, _ in EVERY_TOOL]
        for name, arguments in EVERY_TOOL:
            jsonschema_rs.validate(listed[name].input_schema, arguments)
            result = await client.call_tool(name, arguments)
            assert not result.is_error, text(result)
            assert text(result)
            jsonschema_rs.validate(listed[name].output_schema or {}, result.structured_content)
            if name == "run_tests":
                assert result.structured_content is not None
                found = result.structured_content
                assert (found["passed"], found["failed"]) == (1, 1), text(result)
            if name == "run_lint":
                assert "F401" in text(result)
    assert (project / "new" / "notes.txt").read_text() == "one\n"
    assert "2 * n" in (project / "app.py").read_text()
    assert (project / "made").read_text() == "hello\n"


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_definitions_arrive_as_they_were_made(
    start_workspace: StartWorkspace, home_folder: Home, transport: str, era: str
) -> None:
    from toolcrib.workspace.settings.model import DEFAULTS
    from toolcrib.workspace.tools import TOOLS, tool_definition

    async with asyncio.timeout(LIMIT), start_workspace(transport).client(era) as client:
        listed = [
            tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in (await client.list_tools()).tools
        ]
    assert listed == [json.loads(tool_definition(tool, DEFAULTS)) for tool in TOOLS]


@pytest.mark.req("FRG-1", "FRG-9")
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_client_is_told_where_it_is_and_what_is_off(
    start_workspace: StartWorkspace, home_folder: Home, era: str
) -> None:
    server = start_workspace("stdio", "--read-only", "--unsafe-no-sandbox")
    async with asyncio.timeout(LIMIT), server.client(era) as client:
        where, off, unsafe = (client.instructions or "").splitlines()
    assert str(home_folder.project) in where
    assert off == "Off here: edit_file, project_diff, run_lint, run_shell_safe, run_tests, write_file."
    assert "NOT SANDBOXED" in unsafe


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_goes_wrong_is_told_to_the_model(
    start_workspace: StartWorkspace, home_folder: Home, transport: str, era: str
) -> None:
    (home_folder.project / "settings.py").touch()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("read_file", {"path": "setings.py"}, "settings.py"),
        ("read_file", {"pth": "settings.py"}, "Did you mean 'path'?"),
        ("read_file", {"path": "../outside"}, "outside the workspace"),
        ("write_file", {"path": ".git/hooks/x", "content": ""}, ".git"),
        ("edit_file", {"path": "settings.py", "old": "absent", "new": ""}, "not found"),
    ]
    async with asyncio.timeout(LIMIT), start_workspace(transport).client(era) as client:
        for name, arguments, told in wrong:
            result = await client.call_tool(name, arguments)
            assert result.is_error, (name, arguments)
            assert told in text(result)
        with pytest.raises(MCPError) as caught:
            await client.call_tool("no_such_tool", {})
        assert caught.value.error.code == -32602
        # The connection survives all of it.
        assert not (await client.call_tool("list_dir", {})).is_error


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_output_is_streamed_while_a_command_runs(
    start_workspace: StartWorkspace, home_folder: Home, transport: str, era: str
) -> None:
    told: list[tuple[float, str | None]] = []

    async def progress(done: float, _total: float | None, message: str | None) -> None:
        told.append((done, message))
        # The command waits for this, so it can only end if its first line came before its end.
        (home_folder.project / "go").touch()

    command = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second"
    async with asyncio.timeout(LIMIT), start_workspace(transport).client(era) as client:
        result = await client.call_tool("run_shell_safe", {"command": command}, progress_callback=progress)
        assert not result.is_error, text(result)
    assert any("first" in (message or "") for _, message in told)
    numbers = [number for number, _ in told]
    assert numbers == sorted(set(numbers))


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_call_that_is_cancelled_leaves_no_process(
    start_workspace: StartWorkspace, home_folder: Home, transport: str, era: str
) -> None:
    mark = f"98{os.getpid()}.{time.monotonic_ns() % 10**9}"
    async with asyncio.timeout(LIMIT), start_workspace(transport).client(era) as client:
        call = asyncio.ensure_future(
            client.call_tool("run_shell_safe", {"command": f"sleep {mark} & setsid sleep {mark} & sleep {mark}"})
        )
        await asyncio.to_thread(wait_for, lambda: len(running_with(f"sleep\0{mark}")) >= 3, "the command to run")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(wait_for, lambda: not running_with(mark), "its processes to end")
        assert not (await client.call_tool("list_dir", {})).is_error


@pytest.mark.req("FRG-2")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_two_clients_work_at_once(
    start_workspace: StartWorkspace, home_folder: Home, transport: str, era: str
) -> None:
    server = start_workspace(transport)

    async def meet(client: Client, mine: str, other: str) -> Any:
        command = f"touch {mine}; while [ ! -e {other} ]; do sleep 0.02; done; echo met"
        return await client.call_tool("run_shell_safe", {"command": command})

    async with asyncio.timeout(LIMIT), server.client(era) as one, server.client(era) as two:
        for result in await asyncio.gather(meet(one, "a", "b"), meet(two, "b", "a")):
            assert "met" in text(result)


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_read_only_means_that_nothing_changes(
    start_workspace: StartWorkspace, project: Path, transport: str
) -> None:
    before = sorted(str(path) for path in project.rglob("*") if ".git" not in path.parts)
    async with asyncio.timeout(LIMIT), start_workspace(transport, "--read-only").client("modern") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert not {"write_file", "edit_file", "run_shell_safe"} & names
        for name, arguments in EVERY_TOOL:
            result = await client.call_tool(name, arguments)
            assert bool(result.is_error) == (name not in names), text(result)
    assert sorted(str(path) for path in project.rglob("*") if ".git" not in path.parts) == before
    assert "n * 2" in (project / "app.py").read_text()


@pytest.mark.req("FRG-9", "FRG-12")
async def test_a_named_file_of_settings_is_believed(start_workspace: StartWorkspace, home_folder: Home) -> None:
    settings = home_folder.path / "mine.yml"
    settings.write_text("tools:\n  list_dir: off\nlimits:\n  session_calls: 2\n")
    async with asyncio.timeout(LIMIT), start_workspace("stdio", "--config", str(settings)).client("modern") as client:
        assert "list_dir" not in {tool.name for tool in (await client.list_tools()).tools}
        assert "switched off" in text(await client.call_tool("list_dir", {}))
        results = [await client.call_tool("stat_file", {"path": "."}) for _ in range(3)]
        assert [bool(result.is_error) for result in results] == [False, False, True]


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("era", ERAS)
async def test_each_session_over_http_has_its_own_count(
    start_workspace: StartWorkspace, home_folder: Home, era: str
) -> None:
    settings = home_folder.path / "mine.yml"
    settings.write_text("limits:\n  session_calls: 1\n")
    server = start_workspace("http", "--config", str(settings))
    async with asyncio.timeout(LIMIT):
        for _ in range(2):
            async with server.client(era) as client:
                results = [await client.call_tool("stat_file", {"path": "."}) for _ in range(2)]
                assert [bool(result.is_error) for result in results] == [False, True]


# ---- the process


def speak(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": META}}


def popen(server: Server, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        server.words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=server.environ,
        cwd=more.pop("cwd", server.home.project),
        **more,
    )


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


ENDS: dict[str, Any] = {
    "stdin closed": close_stdin,
    "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
    "SIGINT": lambda process: process.send_signal(signal.SIGINT),
    "SIGKILL": lambda process: process.kill(),
}


@pytest.mark.req("FRG-2", "FRG-9")
@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_the_server_is_the_end_of_what_it_runs(
    start_workspace: StartWorkspace, home_folder: Home, how: str
) -> None:
    mark = f"97{os.getpid()}.{time.monotonic_ns() % 10**9}"
    with popen(start_workspace("stdio")) as process:
        assert process.stdin is not None
        process.stdin.write(speak(call("run_shell_safe", command=f"setsid sleep {mark} & sleep {mark}")))
        process.stdin.flush()
        wait_for(lambda: len(running_with(f"sleep\0{mark}")) >= 2, "the command to run")
        ENDS[how](process)
        assert process.wait(workspaces.END_LIMIT) == (-signal.SIGKILL if how == "SIGKILL" else 0)
        wait_for(lambda: not running_with(mark), "its processes to end")


@pytest.mark.req("FRG-2")
def test_a_client_that_never_reads_does_not_hold_up_the_end(start_workspace: StartWorkspace, home_folder: Home) -> None:
    (home_folder.project / "big").write_text("x" * 100_000)
    with popen(start_workspace("stdio")) as process:
        assert process.stdin is not None
        process.stdin.write(speak(*(call("read_file", number, path="big") for number in range(20))))
        process.stdin.flush()
        assert process.stdout is not None
        assert process.stdout.read(1000)
        assert end(process) == 0


@pytest.mark.req("FRG-2", "FRG-9")
def test_stdout_carries_nothing_but_the_protocol(start_workspace: StartWorkspace, home_folder: Home) -> None:
    server = start_workspace("stdio", "--unsafe-no-sandbox")
    with popen(server) as process:
        said = speak(call("run_shell_safe", command="echo loud >&2; echo words"), {"not": "a message"})
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n  \nno json\n" + said)
        process.stdin.flush()
        line = process.stdout.readline()
        rest, told = process.communicate(timeout=LIMIT)
    result = json.loads(line)["result"]
    assert result["structuredContent"]["stdout"] == "words\n"
    assert "NOT SANDBOXED" in result["content"][0]["text"]
    assert rest == b""
    assert b"WITHOUT A SANDBOX" in told
    assert b'unsandboxed: run_shell_safe {"command":"echo loud >&2; echo words"' in told


def test_a_line_that_never_ends_is_passed_over(start_workspace: StartWorkspace, home_folder: Home) -> None:
    from toolcrib.workspace.serving.transports import MAX_MESSAGE_SIZE

    with popen(start_workspace("stdio")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"x":"' + b"y" * (MAX_MESSAGE_SIZE + 1) + b'"}\n' + speak(call("stat_file", path=".")))
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        close_stdin(process)
        assert process.wait(LIMIT) == 0


@pytest.mark.req("FRG-9")
def test_a_file_of_the_project_is_not_imported(start_workspace: StartWorkspace, home_folder: Home) -> None:
    for name in ("msgspec", "yaml", "mcp", "argparse", "logging"):
        (home_folder.project / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit(99)\n")
    server = start_workspace("stdio")
    server.words.remove("-P")
    with popen(server) as process:
        out, _ = process.communicate(speak(call("stat_file", path=".")), timeout=LIMIT)
    assert process.returncode == 0
    assert not (home_folder.project / "imported").exists()
    assert out is not None


@pytest.mark.req("FRG-2", "FRG-12")
@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--root", "/"], 1, "cannot be a workspace"),
        (["--root", "/no/such/folder"], 1, "cannot be a workspace"),
        (["--config", "/no/such/file.yml"], 3, "no file"),
        (["--token-file", "x"], 2, "--http"),
        (["--http", "70000"], 2, "65535"),
        (["--http", "x"], 2, "invalid int"),
        (["--socket", "/tmp/others-can-write-here.sock"], 3, "Other users can write"),
        (["--socket", "/" + "x" * 120], 3, "too long"),
    ],
)
def test_what_cannot_be_started_says_why(home_folder: Home, flags: list[str], code: int, told: str) -> None:
    words = [sys.executable, "-P", "-m", "toolcrib.workspace", "--root", str(home_folder.project), *flags]
    done = subprocess.run(
        words,
        env=home_folder.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.req("FRG-2")
def test_a_port_that_is_taken_is_an_error_with_a_remedy(home_folder: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [sys.executable, "-P", "-m", "toolcrib.workspace", "--root", str(home_folder.project)]
        done = subprocess.run(
            [*words, "--http", str(taken.getsockname()[1])],
            env=home_folder.environ(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 8
    assert "0 picks a free one" in done.stderr


@pytest.mark.req("FRG-2")
async def test_a_socket_is_private_replaced_when_stale_refused_when_live_and_removed(
    start_workspace: StartWorkspace, home_folder: Home
) -> None:
    first = start_workspace("socket")
    async with asyncio.timeout(LIMIT), first.client("modern") as client:
        await client.list_tools()
    assert stat.S_IMODE(first.socket.stat().st_mode) == 0o600
    second = start_workspace("socket")
    assert second.process is not None
    assert second.process.wait(LIMIT) == 8
    assert "already listens" in second.said
    assert first.process is not None
    first.process.kill()
    first.process.wait()
    assert first.socket.exists()
    third = start_workspace("socket")
    async with asyncio.timeout(LIMIT), third.client("modern") as client:
        await client.list_tools()
    assert third.process is not None
    assert end(third.process) == 0
    assert not first.socket.exists()


@pytest.mark.req("FRG-2")
async def test_a_token_comes_from_a_file_or_the_environment_and_never_reaches_commands(
    start_workspace: StartWorkspace, home_folder: Home
) -> None:
    secret = "s" * 40
    file = home_folder.path / "key"
    file.write_text(secret + "\n")
    file.chmod(0o600)
    async with asyncio.timeout(LIMIT):
        for server in (
            start_workspace("http", env={"TOOLCRIB_WORKSPACE_TOKEN": secret}),
            start_workspace("http", "--token-file", str(file)),
        ):
            server.known = secret
            async with server.client("modern") as client:
                result = await client.call_tool(
                    "run_shell_safe", {"command": "env; cat /proc/*/environ | tr '\\0' '\\n'; true"}
                )
                assert secret not in text(result)
                assert "PATH=" in text(result)
            assert secret not in server.said


# ---- those who mean it ill


@pytest.mark.req("FRG-2", "FRG-9")
async def test_http_is_for_those_who_know_the_token_and_come_from_here(
    start_workspace: StartWorkspace, home_folder: Home
) -> None:
    server = start_workspace("http")
    body = {"jsonrpc": "2.0", **call("list_dir")}
    usual = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "list_dir",
    }
    url = f"http://127.0.0.1:{server.port}/mcp"
    cases: list[tuple[int, dict[str, str], dict[str, Any]]] = [
        (200, {}, {}),
        (401, {"authorization": ""}, {}),
        (401, {"authorization": "Bearer " + "x" * 43}, {}),
        (401, {"authorization": "Basic " + server.token}, {}),
        (421, {"host": "evil.example"}, {}),
        (421, {"host": "127.0.0.1"}, {}),
        (421, {"host": f"127.0.0.1.evil.example:{server.port}"}, {}),
        (403, {"origin": "https://evil.example"}, {}),
        (403, {"origin": "null"}, {}),
        (200, {"origin": f"http://localhost:{server.port}"}, {}),
        (415, {"content-type": "text/plain"}, {}),
        (404, {}, {"url": url + "x"}),
        (404, {}, {"url": url.replace("/mcp", "/")}),
    ]
    async with asyncio.timeout(LIMIT), server.http() as http:
        for status, headers, more in cases:
            sent = {"content": json.dumps(body).encode(), **more}
            answer = await http.post(
                sent.pop("url", url), headers={**usual, "content-type": "application/json", **headers}, **sent
            )
            assert answer.status_code == status, (headers, answer.text[:300])
            if status == 401:
                assert answer.headers["www-authenticate"] == "Bearer"


def raw(server: Server, data: bytes) -> socket.socket:
    """A connection on which something was sent."""
    if server.transport == "http":
        connection = socket.create_connection(("127.0.0.1", server.port), LIMIT)
    else:
        wait_for(lambda: "serving" in server.said, "the server")
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(server.socket))
    connection.settimeout(LIMIT)
    connection.sendall(data)
    return connection


def half_a_request(server: Server, length: int = 1000) -> bytes:
    host = (
        f"127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}"
        if server.transport == "http"
        else "localhost"
    )
    return (
        f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{{"
    ).encode()


@pytest.mark.req("FRG-2")
@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_huge_body_is_refused_before_it_comes(
    start_workspace: StartWorkspace, home_folder: Home, transport: str
) -> None:
    server = start_workspace(transport)
    with raw(server, half_a_request(server, 17 * 1024 * 1024)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.req("FRG-2")
@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_half_sent_request_does_not_hold_up_the_end(
    start_workspace: StartWorkspace, home_folder: Home, transport: str
) -> None:
    server = start_workspace(transport)
    with raw(server, half_a_request(server)), raw(server, b"POST /mcp HT"):
        assert server.process is not None
        assert end(server.process) == 0
        assert "Traceback" not in server.said


@pytest.mark.req("FRG-2")
def test_a_request_that_does_not_arrive_is_given_up(start_workspace: StartWorkspace, home_folder: Home) -> None:
    server = start_workspace("http")
    begun = time.monotonic()
    with raw(server, half_a_request(server)) as body, raw(server, b"POST /mcp HTTP/1.1\r\nHost: ") as head:
        for connection in (body, head):
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) == b""
            assert time.monotonic() - begun > 5
    # A head without end is cut at once.
    with raw(server, b"POST /mcp HTTP/1.1\r\n") as connection:
        begun = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - begun < LIMIT:
                connection.sendall(b"X-Long: " + b"x" * 8000 + b"\r\n")


@pytest.mark.req("FRG-2", "FRG-10")
@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_a_signal_ends_a_call_under_way(
    start_workspace: StartWorkspace, home_folder: Home, transport: str
) -> None:
    mark = f"96{os.getpid()}.{time.monotonic_ns() % 10**9}"
    server = start_workspace(transport)
    assert server.process is not None
    async with asyncio.timeout(LIMIT):
        with contextlib.suppress(Exception):
            # What the client makes of it is its own affair.
            async with server.client("modern") as client:
                calling = asyncio.ensure_future(client.call_tool("run_shell_safe", {"command": f"sleep {mark}"}))
                await asyncio.to_thread(wait_for, lambda: running_with(f"sleep\0{mark}"), "the command to run")
                # Not awaited here: the client's own end may come first.
                ending = asyncio.ensure_future(asyncio.to_thread(end, server.process))
                await calling
        code = await ending
    assert calling.cancelled() or isinstance(calling.exception(), MCPError)
    assert (code, running_with(mark)) == (0, [])
    assert "Traceback" not in server.said
