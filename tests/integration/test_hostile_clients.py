"""Clients that send what no client should: each gets an error, and the daemon and the connection continue."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.raw_client import INITIALIZE, META, Endpoint, RawConnection, SocketClient, legacy_request, notice, request
from parts.server_process import stdio_entry

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {"raw": stdio_entry("raw_server")}
    with shared_daemon({"servers": servers, "result_tokens": "off"}, ready=["raw"]) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mcp(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def call(arguments: str, *, id: str = "1", name: str = '"raw_ok"', more: str = "") -> bytes:
    """A handwritten call, whose parts can be anything."""
    meta = json.dumps(META)
    return (
        f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call",'
        f'"params":{{"name":{name},"arguments":{arguments},"_meta":{meta}{more}}}}}'
    ).encode()


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def listing(params: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}'.encode()


VALID = request("tools/list")
HOSTILE: dict[int, dict[str, tuple[bytes, str]]] = {
    PARSE_ERROR: {
        "nothing": (b"", "Parse error"),
        "white space": (b" \r\n\t ", "Parse error"),
        "half a message": (b'{"jsonrpc":"2.0","id":1,', "Parse error"),
        "two messages": (VALID * 2, "Extra data"),
        "a comment": (b"/* x */" + VALID, "Parse error"),
        "a zero byte": (call('{"path":"\0"}'), "control character"),
        "a byte order mark": (b"\xef\xbb\xbf" + VALID, "Parse error"),
        "UTF-16": (VALID.decode().encode("utf-16"), "UTF-8"),
        "bytes that are no text": (call('{"path":"x"}').replace(b'"x"', b'"\xff\xc3"'), "UTF-8"),
        "an overlong encoding": (call('{"path":"x"}').replace(b'"x"', b'"\xc0\xaf"'), "UTF-8"),
        "a surrogate in UTF-8": (call('{"path":"x"}').replace(b'"x"', b'"\xed\xa0\xbd"'), "UTF-8"),
        "a lone surrogate in an argument": (call(r'{"path":"\ud83d"}'), "surrogate"),
        "a lone low surrogate": (call(r'{"path":"a\ude00b"}'), "surrogate"),
        "a lone surrogate in the name": (call("{}", name=r'"\ud83d"'), "surrogate"),
        "a lone surrogate in the id": (call("{}", id=r'"\ud83d"'), "surrogate"),
        "a lone surrogate in a key": (call(r'{"\ud83d":1}'), "surrogate"),
        "NaN": (call('{"path":NaN}'), "NaN"),
        "Infinity": (call('{"path":-Infinity}'), "Infinity"),
        "a number of a million digits": (call('{"path":' + "9" * 1_000_000 + "}"), "Parse error"),
        "deep objects": (call(nested(200)), "deeper"),
        "very deep lists": (b"[" * 1_000_000, "deeper"),
        "very deep and closed": (b"[" * 500_000 + b"]" * 500_000, "deeper"),
        "a key twice in the envelope": (b'{"method":"a","method":"tools/list","id":1}', "twice"),
        "a key twice in the params": (call("{}", more=',"name":"raw_die"'), "'name' appears twice"),
        "a key twice in the arguments": (call('{"path":"a","path":"b"}'), "'path' appears twice"),
        "a key twice, once escaped": (call(r'{"path":"a","p\u0061th":"b"}'), "'path' appears twice"),
        "a key twice, far down": (call('{"path":[{"x":[{"k":1,"k":1}]}]}'), "'k' appears twice"),
    },
    INVALID_REQUEST: {
        "a batch": (b"[" + VALID + b"]", "single"),
        "an empty batch": (b"[]", "single"),
        "a string": (b'"tools/list"', "single"),
        "null": (b"null", "single"),
        "an answer to nothing": (b'{"jsonrpc":"2.0","result":{}}', "no method"),
        "no version": (b'{"id":1,"method":"tools/list"}', "jsonrpc"),
        "a method that is no text": (b'{"jsonrpc":"2.0","id":1,"method":5}', "single"),
        **{f"the id {id}": (call("{}", id=id), "id") for id in ("null", "1.5", "true", '{"a":1}')},
    },
    INVALID_PARAMS: {
        "arguments twice, once in capitals": (call("{}", more=',"Arguments":{"path":"/etc/passwd"}'), "lower case"),
        "a name twice, once in capitals": (call("{}", more=',"NAME":"raw_die"'), "lower case"),
        "meta twice, once in capitals": (call("{}", more=',"_META":{}'), "lower case"),
        "params that are a list": (listing("[1]"), "params"),
        "params that are text": (listing('"x"'), "params"),
        "meta that is a list": (request("tools/list", meta=[]), "params"),
        "meta with a number beyond all": (VALID.replace(b'"_meta": {', b'"_meta": {"x": 1e999,'), "params"),
    },
}
ODD_CALLS = {
    "no name": (request("tools/call", {"arguments": {}}), "name"),
    "a name that is a number": (call("{}", name="5"), "name"),
    "a name beyond all numbers": (call("{}", name="1e999"), "name"),
    "a name that is null": (call("{}", name="null"), "name"),
    "a name with a line end": (call("{}", name='"raw_ok\\r\\nx: y"'), "no tool"),
    "an empty name": (call("{}", name='""'), "no tool"),
}
ODD_ARGUMENTS = {
    "a list": ("[1]", "must be an object"),
    "text": ('"x"', "must be an object"),
    "false": ("false", "must be an object"),
    "a number where text belongs": ('{"result": 5}', "arguments.result must be of type string"),
    "a number beyond all": ('{"x": 1e999}', "out of range"),
}


def still_works(mcp: Endpoint, connection: RawConnection) -> None:
    """A normal call works on the same connection, and on a new one."""
    connection.send(mcp.modern_bytes("tools/call", {"name": "raw_ok", "arguments": {"path": "x"}}))
    assert connection.answer().result["structuredContent"] == {"ok": True, "arguments": {"path": "x"}}
    assert mcp.call("raw_ok").status == 200


@pytest.mark.parametrize(("code", "name"), [(code, name) for code, cases in HOSTILE.items() for name in cases])
def test_an_invalid_body_or_line_gets_an_error_and_the_connection_continues(
    mcp: Endpoint, shared: Daemon, code: int, name: str
) -> None:
    body, text = HOSTILE[code][name]
    with mcp.connect() as connection:
        connection.send(mcp.raw(mcp.usual(body, *mcp.modern_headers("tools/call", "raw_ok")), body))
        answer = connection.answer()
        assert (answer.status, answer.error["code"]) == (400, code)
        assert text in answer.error["message"]
        assert len(answer.body) < 1000
        still_works(mcp, connection)
    if b"\n" not in body and body.strip():
        with SocketClient(shared) as bridge:
            assert "result" in bridge.ask(request("tools/list", id="before"))
            bridge.send(body)
            error = bridge.message()["error"]
            assert (error["code"], text in error["message"]) == (code, True), error
            assert "result" in bridge.ask(request("tools/call", {"name": "raw_ok", "arguments": {}}, id="after"))


@pytest.mark.parametrize("name", ODD_CALLS)
def test_a_call_without_a_valid_name_is_refused(mcp: Endpoint, shared: Daemon, name: str) -> None:
    body, text = ODD_CALLS[name]
    with mcp.connect() as connection:
        connection.send(mcp.raw(mcp.usual(body, *mcp.modern_headers("tools/call", "=?base64??=")), body))
        answer = connection.answer()
        assert answer.status == 400
        assert answer.error["code"] in (INVALID_PARAMS, -32020)
        still_works(mcp, connection)
    with SocketClient(shared) as bridge:
        error = bridge.ask(body)["error"]
        assert (error["code"], text in error["message"]) == (INVALID_PARAMS, True), error


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
@pytest.mark.req("BNS-5")
def test_invalid_arguments_are_an_error_for_the_model(mcp: Endpoint, name: str) -> None:
    arguments, text = ODD_ARGUMENTS[name]
    body = call(arguments, name='"raw_echo_raw"')
    with mcp.connect() as connection:
        connection.send(mcp.raw(mcp.usual(body, *mcp.modern_headers("tools/call", "raw_echo_raw")), body))
        result = connection.answer().result
        assert result["isError"] is True
        assert text in result["content"][0]["text"]
        still_works(mcp, connection)


@pytest.mark.parametrize(
    "id", ["0", "-1", str(2**53), str(2**64), "9" * 512, '""', '"' + "x" * 100_000 + '"', r'"\u00e9\n"']
)
def test_any_valid_id_returns_byte_for_byte(mcp: Endpoint, shared: Daemon, id: str) -> None:
    body = call("{}", id=id)
    answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("tools/call", "raw_ok")), body)
    assert answer.status == 200
    assert answer.body.startswith(b'{"jsonrpc":"2.0","id":' + id.encode() + b",")
    with SocketClient(shared) as bridge:
        bridge.send(body)
        assert bridge.line().startswith(b'{"jsonrpc":"2.0","id":' + id.encode() + b",")


LARGE: dict[str, dict[str, Any]] = {
    "8 MB": {"path": "x" * 8_000_000},
    "100,000 keys": {f"k{number}": number for number in range(100_000)},
    "depth 50": json.loads(nested(50)),
    "depth 120": json.loads(nested(120)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_and_deep_arguments_arrive(mcp: Endpoint, name: str) -> None:
    assert mcp.call("raw_ok", LARGE[name]).result["structuredContent"]["arguments"] == LARGE[name]


def test_notifications_never_cause_an_error(mcp: Endpoint, shared: Daemon) -> None:
    methods = ("notifications/cancelled", "notifications/unheard/of", "")
    ids = ({}, *({"requestId": value} for value in (None, "unknown", True, {"a": []})))
    bodies = [notice(method, params) for method in methods for params in ids]
    session = mcp.begin()
    with mcp.connect() as connection:
        for body in bodies:
            connection.send(mcp.legacy_bytes(session, body))
            assert connection.answer().status == 202, body
            connection.send(mcp.legacy_bytes(session, legacy_request("ping")))
            assert connection.answer().result == {}
    infinite = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e999}}'
    with SocketClient(shared) as bridge:
        bridge.ask(INITIALIZE)
        for body in (*bodies, infinite):
            bridge.send(body)
            assert bridge.ask(legacy_request("ping"))["result"] == {}


def test_ten_thousand_invalid_lines_each_get_an_error(shared: Daemon, mcp: Endpoint) -> None:
    with SocketClient(shared) as bridge:
        bridge.ask(INITIALIZE)
        block = b"\n".join([b"garbage", b"{}", b"[1,2", b"\xff\xfe", b'{"id":1}'] * 100)
        for _ in range(20):
            bridge.send(block)
            for _ in range(500):
                assert bridge.message()["error"]["code"] in (PARSE_ERROR, INVALID_REQUEST)
        assert bridge.ask(legacy_request("ping"))["result"] == {}
    assert mcp.call("raw_ok").status == 200


def test_a_line_that_is_too_long_gets_an_error(shared: Daemon, mcp: Endpoint) -> None:
    block = b"x" * 1_000_000
    with SocketClient(shared) as bridge:
        bridge.ask(INITIALIZE)
        # The error comes before all of it is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(70):
                bridge._socket.sendall(block)
        error = bridge.message()["error"]
        assert (error["code"], "too large" in error["message"]) == (PARSE_ERROR, True)
    with SocketClient(shared, bridge=False) as commands:
        with contextlib.suppress(BrokenPipeError):
            commands.send(block * 18)
        line = b""
        with contextlib.suppress(ConnectionResetError):
            line = commands._socket.recv(1 << 16)
        assert b"is longer than" in line
    assert mcp.call("raw_ok").status == 200


def test_a_client_that_never_reads_or_disconnects_within_a_line_harms_no_other(shared: Daemon, mcp: Endpoint) -> None:
    with SocketClient(shared) as bridge:
        bridge.send(INITIALIZE)
        bridge._socket.settimeout(0.5)
        big = legacy_request("tools/call", {"name": "raw_huge", "arguments": {"bytes": 2_000_000}})
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                bridge.send(big)
        assert mcp.call("raw_ok").status == 200
    with SocketClient(shared) as bridge:
        bridge.ask(INITIALIZE)
        bridge._socket.sendall(b'{"jsonrpc":"2.0","id":5,"meth')
    for part in (b"POST /mcp HTTP/1.1\r\nHost", mcp.modern_bytes("tools/list")[:-5]):
        with mcp.connect() as connection:
            connection.send(part)
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert mcp.call("raw_ok").status == 200


DEEP = b"[" * 5000 + b"]" * 5000
COMMANDS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"hello", "Invalid command"),
    "invalid UTF-8": (b'{"method":"\xff"}', "Invalid command"),
    "a list": (b"[1,2]", "Invalid command"),
    "no method": (b'{"id":1}', "Invalid command"),
    "params that are a list": (b'{"id":1,"method":"server:list","params":[1]}', "Invalid command"),
    "deep params": (b'{"id":1,"method":"server:list","params":{"a":' + DEEP + b"}}", "Invalid command"),
    "a lone surrogate": (rb'{"id":1,"method":"server:list","params":{"a":"\ud83d"}}', "Invalid command"),
    "an unknown command": (b'{"id":1,"method":"server:lst","params":{}}', "no command 'server:lst'"),
    "an unknown parameter": (b'{"id":1,"method":"server:list","params":{"colour":"red"}}', "colour"),
    "a wrong type": (b'{"id":1,"method":"log:tail","params":{"lines":"many"}}', "lines"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.req("KSI-6")
def test_an_invalid_command_gets_an_error_and_the_next_one_an_answer(shared: Daemon, name: str) -> None:
    line, text = COMMANDS[name]
    with SocketClient(shared, bridge=False) as commands:
        commands.send(line)
        assert text in commands.message()["error"]["message"]
        commands.send(b'{"jsonrpc":"2.0","id":2,"method":"system:health","params":{}}')
        assert commands.message()["result"]["healthy"] is True


@pytest.mark.parametrize("root", ["relative", "/nowhere/at/all", "/dev/null", "\0", "x" * 5000, 5, None, []])
def test_a_bridge_with_an_invalid_root_gets_an_answer_or_an_error(shared: Daemon, root: Any) -> None:
    with SocketClient(shared, bridge=False) as bridge:
        bridge.send(notice("toolcrib/bridge", {"root": root}) + b"\n" + legacy_request("ping"))
        while "method" in (message := bridge.message()):
            pass
        assert "result" in message or message["error"]["message"]


@pytest.mark.parametrize("block", ["[],", '{"a":1},', "[[[[[[[[]]]]]]]],"])
def test_megabytes_of_brackets_are_refused(mcp: Endpoint, shared: Daemon, block: str) -> None:
    arguments = '{"path":[' + (block * (10_000_000 // len(block)))[:-1] + "]}"
    body = call(arguments, name='"raw_nothing"')
    answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("tools/call", "raw_nothing")), body)
    assert (answer.status, answer.error["code"]) == (413, INVALID_REQUEST)
    assert "131072 values" in answer.error["message"]
    with SocketClient(shared) as bridge, SocketClient(shared, bridge=False) as commands:
        for line in (bridge, commands):
            line.send(body)
            assert "131072 values" in line.message()["error"]["message"]
    assert mcp.call("raw_ok").status == 200


def rejected(mcp: Endpoint) -> bytes:
    return b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 0\r\n\r\n" % mcp.port


REJECTED = {
    "no token": (b"", b""),
    "another host": (b"127.0.0.1", b"evil.example"),
    "another path": (b"/mcp", b"/other"),
    "a wrong token": (b"Content", b"Authorization: Bearer wrong\r\nContent"),
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_rejected_request_closes_the_connection(mcp: Endpoint, reason: str) -> None:
    with mcp.connect() as connection:
        connection.send(rejected(mcp).replace(*REJECTED[reason], 1))
        answer = connection.answer()
        assert answer.status in {401, 404, 421}
        assert answer.headers["connection"] == "close"
        assert connection.is_closed()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the test lowers the daemon's limit")
def test_no_number_of_connections_locks_others_out() -> None:
    with shared_daemon({"servers": {"raw": stdio_entry("raw_server")}}, ready=["raw"]) as daemon:
        mcp = Endpoint(daemon)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (200, 200))
        requests: dict[str, tuple[bytes, int | None]] = {
            "silent": (b"", None),
            "partial": (b"POST /mcp HTTP/1.1\r\n", None),
            "rejected": (rejected(mcp), 401),
            "accepted": (mcp.modern_bytes("tools/call", {"name": "raw_ok", "arguments": {}}), 200),
        }
        for sent, status in requests.values():
            with contextlib.ExitStack() as held:
                for _ in range(250):
                    connection = held.enter_context(mcp.connect())
                    # The daemon may have closed this one already.
                    with contextlib.suppress(ConnectionError):
                        connection.send(sent)
                        assert status is None or connection.answer().status == status
                assert mcp.call("raw_ok").result["structuredContent"]["ok"] is True
                assert daemon.status()["pid"] == daemon.pid
                assert daemon.command("server:restart", name="raw")["state"] == "ready"
