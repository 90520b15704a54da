"""Clients that send what no client should: each is told why, and the daemon and its connection go on as before."""

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
from parts.server_process import stdio_command

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

RAW = stdio_command("raw_server")
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with shared_daemon({"servers": {"raw": {"command": RAW[0], "args": RAW[1:]}}}, ready=["raw"]) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def door(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def call(arguments: str, *, id: str = "1", name: str = '"raw_ok"', more: str = "") -> bytes:
    """A call written by hand, so that its parts may be anything."""
    meta = json.dumps(META)
    return (
        f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call",'
        f'"params":{{"name":{name},"arguments":{arguments},"_meta":{meta}{more}}}}}'
    ).encode()


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


HOSTILE = {
    "nothing": (b"", PARSE_ERROR, "Parse error"),
    "white space": (b" \r\n\t ", PARSE_ERROR, "Parse error"),
    "half a message": (b'{"jsonrpc":"2.0","id":1,', PARSE_ERROR, "Parse error"),
    "two messages": (request("tools/list") * 2, PARSE_ERROR, "Extra data"),
    "a comment": (b"/* x */" + request("tools/list"), PARSE_ERROR, "Parse error"),
    "a zero byte": (call('{"path":"\0"}'), PARSE_ERROR, "control character"),
    "a byte order mark": (b"\xef\xbb\xbf" + request("tools/list"), PARSE_ERROR, "Parse error"),
    "UTF-16": (request("tools/list").decode().encode("utf-16"), PARSE_ERROR, "UTF-8"),
    "bytes that are no text": (call('{"path":"x"}').replace(b'"x"', b'"\xff\xc3"'), PARSE_ERROR, "UTF-8"),
    "an overlong encoding": (call('{"path":"x"}').replace(b'"x"', b'"\xc0\xaf"'), PARSE_ERROR, "UTF-8"),
    "a surrogate in UTF-8": (call('{"path":"x"}').replace(b'"x"', b'"\xed\xa0\xbd"'), PARSE_ERROR, "UTF-8"),
    "a lone surrogate in an argument": (call(r'{"path":"\ud83d"}'), PARSE_ERROR, "surrogate"),
    "a lone low surrogate": (call(r'{"path":"a\ude00b"}'), PARSE_ERROR, "surrogate"),
    "a lone surrogate in the name": (call("{}", name=r'"\ud83d"'), PARSE_ERROR, "surrogate"),
    "a lone surrogate in the id": (call("{}", id=r'"\ud83d"'), PARSE_ERROR, "surrogate"),
    "a lone surrogate in a key": (call(r'{"\ud83d":1}'), PARSE_ERROR, "surrogate"),
    "NaN": (call('{"path":NaN}'), PARSE_ERROR, "NaN"),
    "Infinity": (call('{"path":-Infinity}'), PARSE_ERROR, "Infinity"),
    "a number of a million digits": (call('{"path":' + "9" * 1_000_000 + "}"), PARSE_ERROR, "Parse error"),
    "deep objects": (call(nested(200)), PARSE_ERROR, "deeper"),
    "very deep lists": (b"[" * 1_000_000, PARSE_ERROR, "deeper"),
    "very deep and closed": (b"[" * 500_000 + b"]" * 500_000, PARSE_ERROR, "deeper"),
    "a key twice in the envelope": (b'{"method":"a","method":"tools/list","id":1}', PARSE_ERROR, "twice"),
    "a key twice in the params": (call("{}", more=',"name":"raw_die"'), PARSE_ERROR, "'name' appears twice"),
    "arguments twice, once in capitals": (
        call('{"path":"a"}', more=',"Arguments":{"path":"/etc/passwd"}'),
        INVALID_PARAMS,
        "lower case",
    ),
    "a name twice, once in capitals": (call("{}", more=',"NAME":"raw_die"'), INVALID_PARAMS, "lower case"),
    "meta twice, once in capitals": (call("{}", more=',"_META":{}'), INVALID_PARAMS, "lower case"),
    "a key twice in the arguments": (call('{"path":"a","path":"b"}'), PARSE_ERROR, "'path' appears twice"),
    "a key twice, once escaped": (call(r'{"path":"a","p\u0061th":"b"}'), PARSE_ERROR, "'path' appears twice"),
    "a key twice, far down": (call('{"path":[{"x":[{"k":1,"k":1}]}]}'), PARSE_ERROR, "'k' appears twice"),
    "a batch": (b"[" + request("tools/list") + b"]", INVALID_REQUEST, "single"),
    "an empty batch": (b"[]", INVALID_REQUEST, "single"),
    "a string": (b'"tools/list"', INVALID_REQUEST, "single"),
    "null": (b"null", INVALID_REQUEST, "single"),
    "an answer": (b'{"jsonrpc":"2.0","id":1,"result":{}}', INVALID_REQUEST, "no method"),
    "no version": (b'{"id":1,"method":"tools/list"}', INVALID_REQUEST, "jsonrpc"),
    "a method that is no text": (b'{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, "single"),
    "an id that is null": (call("{}", id="null"), INVALID_REQUEST, "id"),
    "an id with a fraction": (call("{}", id="1.5"), INVALID_REQUEST, "id"),
    "an id that is true": (call("{}", id="true"), INVALID_REQUEST, "id"),
    "an id that is an object": (call("{}", id='{"a":1}'), INVALID_REQUEST, "id"),
    "params that are a list": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}',
        INVALID_PARAMS,
        "params",
    ),
    "params that are text": (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"x"}', INVALID_PARAMS, "params"),
    "meta that is a list": (request("tools/list", meta=[]), INVALID_PARAMS, "params"),
    "meta with a number beyond all": (
        request("tools/list").replace(b'"_meta": {', b'"_meta": {"x": 1e999,'),
        INVALID_PARAMS,
        "params",
    ),
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


def still_fine(door: Endpoint, connection: RawConnection) -> None:
    """A normal call works on the same connection, and on a new one."""
    connection.send(door.modern_bytes("tools/call", {"name": "raw_ok", "arguments": {"path": "x"}}))
    assert connection.answer().result["structuredContent"] == {"ok": True, "arguments": {"path": "x"}}
    assert door.call("raw_ok").status == 200


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_told_why_and_the_connection_goes_on(door: Endpoint, name: str) -> None:
    body, code, says = HOSTILE[name]
    with door.connect() as connection:
        connection.send(door.raw(door.usual(body, *door.modern_headers("tools/call", "raw_ok")), body))
        answer = connection.answer()
        assert (answer.status, answer.error["code"]) == (400, code)
        assert says in answer.error["message"]
        assert len(answer.body) < 1000
        still_fine(door, connection)


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if b"\n" not in HOSTILE[name][0] and HOSTILE[name][0].strip()]
)
def test_a_hostile_line_is_told_why_and_the_bridge_goes_on(shared: Daemon, name: str) -> None:
    body, code, says = HOSTILE[name]
    with SocketClient(shared) as pipe:
        assert "result" in pipe.ask(request("tools/list", id="before"))
        pipe.send(body)
        error = pipe.message()["error"]
        assert error["code"] == code
        assert says in error["message"]
        assert "result" in pipe.ask(request("tools/call", {"name": "raw_ok", "arguments": {}}, id="after"))


@pytest.mark.parametrize("name", ODD_CALLS)
def test_a_call_of_nothing_is_refused(door: Endpoint, shared: Daemon, name: str) -> None:
    body, says = ODD_CALLS[name]
    with door.connect() as connection:
        connection.send(door.raw(door.usual(body, *door.modern_headers("tools/call", "=?base64??=")), body))
        answer = connection.answer()
        assert answer.status == 400
        assert answer.error["code"] in (INVALID_PARAMS, -32020)
        still_fine(door, connection)
    with SocketClient(shared) as pipe:
        error = pipe.ask(body)["error"]
        assert error["code"] == INVALID_PARAMS
        assert says in error["message"]


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
@pytest.mark.req("BNS-5")
def test_odd_arguments_are_told_to_the_model(door: Endpoint, name: str) -> None:
    arguments, says = ODD_ARGUMENTS[name]
    body = call(arguments, name='"raw_echo_raw"')
    with door.connect() as connection:
        connection.send(door.raw(door.usual(body, *door.modern_headers("tools/call", "raw_echo_raw")), body))
        result = connection.answer().result
        assert result["isError"] is True
        assert says in result["content"][0]["text"]
        still_fine(door, connection)


@pytest.mark.parametrize(
    "id", ["0", "-1", str(2**53), str(2**64), "9" * 512, '""', '"' + "x" * 100_000 + '"', r'"\u00e9\n"']
)
def test_any_lawful_id_comes_back_byte_for_byte(door: Endpoint, shared: Daemon, id: str) -> None:
    body = call("{}", id=id)
    answer = door.ask(door.usual(body, *door.modern_headers("tools/call", "raw_ok")), body)
    assert answer.status == 200
    assert answer.body.startswith(b'{"jsonrpc":"2.0","id":' + id.encode() + b",")
    with SocketClient(shared) as pipe:
        pipe.send(body)
        assert pipe.line().startswith(b'{"jsonrpc":"2.0","id":' + id.encode() + b",")


def test_arguments_of_eight_megabytes_arrive(door: Endpoint) -> None:
    answer = door.call("raw_ok", {"path": "x" * 8_000_000})
    assert answer.result["structuredContent"]["arguments"]["path"] == "x" * 8_000_000


def test_arguments_with_a_hundred_thousand_keys_arrive(door: Endpoint) -> None:
    many = {f"k{number}": number for number in range(100_000)}
    assert door.call("raw_ok", many).result["structuredContent"]["arguments"] == many


@pytest.mark.parametrize(
    "params", [{}, {"requestId": None}, {"requestId": "unknown"}, {"requestId": True}, {"requestId": {"a": []}}]
)
@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/unheard/of", ""])
def test_a_notification_never_harms(door: Endpoint, shared: Daemon, params: Any, method: str) -> None:
    session = door.begin()
    with door.connect() as connection:
        connection.send(door.legacy_bytes(session, notice(method, params)))
        assert connection.answer().status == 202
        connection.send(door.legacy_bytes(session, legacy_request("ping")))
        assert connection.answer().result == {}
    with SocketClient(shared) as pipe:
        pipe.ask(INITIALIZE)
        pipe.send(notice(method, params))
        assert pipe.ask(legacy_request("ping"))["result"] == {}


def test_a_cancellation_beyond_all_numbers_never_harms(shared: Daemon) -> None:
    with SocketClient(shared) as pipe:
        pipe.ask(INITIALIZE)
        pipe.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e999}}')
        assert pipe.ask(legacy_request("ping"))["result"] == {}


def test_ten_thousand_lines_of_garbage_are_each_answered(shared: Daemon, door: Endpoint) -> None:
    with SocketClient(shared) as pipe:
        pipe.ask(INITIALIZE)
        block = b"\n".join([b"garbage", b"{}", b"[1,2", b"\xff\xfe", b'{"id":1}'] * 100)
        for _ in range(20):
            pipe.send(block)
            for _ in range(500):
                assert pipe.message()["error"]["code"] in (PARSE_ERROR, INVALID_REQUEST)
        assert pipe.ask(legacy_request("ping"))["result"] == {}
    assert door.call("raw_ok").status == 200


def test_a_line_beyond_all_size_is_told_so(shared: Daemon, door: Endpoint) -> None:
    with SocketClient(shared) as pipe:
        pipe.ask(INITIALIZE)
        block = b"x" * 1_000_000
        try:
            for _ in range(70):
                pipe._socket.sendall(block)
        except (BrokenPipeError, ConnectionResetError):
            pass
        error = pipe.message()["error"]
        assert (error["code"], "too large" in error["message"]) == (PARSE_ERROR, True)
    assert door.call("raw_ok").status == 200


def test_a_client_that_sends_and_never_reads_harms_nobody_else(shared: Daemon, door: Endpoint) -> None:
    with SocketClient(shared) as pipe:
        pipe.send(INITIALIZE)
        pipe._socket.settimeout(0.5)
        big = legacy_request("tools/call", {"name": "raw_huge", "arguments": {"bytes": 2_000_000}})
        sent = 0
        try:
            while sent < 20:
                pipe.send(big)
                sent += 1
        except TimeoutError:
            assert sent > 0
        assert door.call("raw_ok").status == 200


def test_a_client_that_goes_away_in_the_middle_of_a_line_harms_nobody(shared: Daemon, door: Endpoint) -> None:
    pipe = SocketClient(shared)
    pipe.ask(INITIALIZE)
    pipe._socket.sendall(b'{"jsonrpc":"2.0","id":5,"meth')
    pipe.close()
    for verb in (b"POST /mcp HTTP/1.1\r\nHost", door.modern_bytes("tools/list")[:-5]):
        connection = door.connect()
        connection.send(verb)
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert door.call("raw_ok").status == 200


COMMANDS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"hello", "Not a command"),
    "bytes that are no text": (b'{"method":"\xff"}', "Not a command"),
    "a list": (b"[1,2]", "Not a command"),
    "no method": (b'{"id":1}', "Not a command"),
    "params that are a list": (b'{"id":1,"method":"server:list","params":[1]}', "Not a command"),
    "deep params": (
        b'{"id":1,"method":"server:list","params":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
        "Not a command",
    ),
    "a lone surrogate": (rb'{"id":1,"method":"server:list","params":{"a":"\ud83d"}}', "Not a command"),
    "an unknown command": (b'{"id":1,"method":"server:lst","params":{}}', "no command 'server:lst'"),
    "a word it does not take": (b'{"id":1,"method":"server:list","params":{"colour":"red"}}', "colour"),
    "a wrong type": (b'{"id":1,"method":"log:tail","params":{"lines":"many"}}', "lines"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.req("KSI-6")
def test_a_bad_command_is_told_why_and_the_next_one_is_answered(shared: Daemon, name: str) -> None:
    line, says = COMMANDS[name]
    with SocketClient(shared, bridge=False) as pipe:
        pipe.send(line)
        error = pipe.message()["error"]
        assert says in error["message"]
        pipe.send(b'{"jsonrpc":"2.0","id":2,"method":"system:health","params":{}}')
        assert pipe.message()["result"]["healthy"] is True


@pytest.mark.parametrize("root", ["relative", "/nowhere/at/all", "/dev/null", "\0", "x" * 5000, 5, None, []])
def test_a_bridge_from_an_odd_place_is_answered_or_told_why(shared: Daemon, root: Any) -> None:
    with SocketClient(shared, bridge=False) as pipe:
        pipe.send(notice("toolcrib/bridge", {"root": root}) + b"\n" + legacy_request("ping"))
        told = pipe.message()
        while "method" in told:
            told = pipe.message()
        assert "result" in told or told["error"]["message"]


@pytest.mark.parametrize("block", ["[],", '{"a":1},', "[[[[[[[[]]]]]]]],"])
def test_megabytes_of_brackets_are_refused_and_nobody_else_waits(door: Endpoint, shared: Daemon, block: str) -> None:
    arguments = '{"path":[' + (block * (10_000_000 // len(block)))[:-1] + "]}"
    body = call(arguments, name='"raw_nothing"')
    answer = door.ask(door.usual(body, *door.modern_headers("tools/call", "raw_nothing")), body)
    assert (answer.status, answer.error["code"]) == (413, INVALID_REQUEST)
    assert "131072 values" in answer.error["message"]
    with SocketClient(shared) as pipe, SocketClient(shared, bridge=False) as socket:
        for line in (pipe, socket):
            line.send(body)
            assert "131072 values" in line.message()["error"]["message"]
    assert door.call("raw_ok").status == 200


@pytest.mark.parametrize("depth", [50, 120])
def test_honest_depth_passes(door: Endpoint, depth: int) -> None:
    arguments = json.loads(nested(depth))
    assert door.call("raw_ok", arguments).result["structuredContent"]["arguments"] == arguments


def rejected(door: Endpoint) -> bytes:
    return b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 0\r\n\r\n" % door.port


@pytest.mark.parametrize("wrong", ["no token", "another host", "another path", "a wrong token"])
def test_whoever_is_rejected_cannot_keep_the_connection(door: Endpoint, wrong: str) -> None:
    asked = {
        "no token": rejected(door),
        "another host": rejected(door).replace(b"127.0.0.1", b"evil.example"),
        "another path": rejected(door).replace(b"/mcp", b"/other"),
        "a wrong token": rejected(door).replace(b"Content", b"Authorization: Bearer wrong\r\nContent"),
    }[wrong]
    with RawConnection(door.port) as connection:
        connection.send(asked)
        answer = connection.answer()
        assert answer.status in {401, 404, 421}
        assert answer.headers["connection"] == "close"
        assert connection.is_closed()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the daemon's limit is lowered from outside")
@pytest.mark.parametrize("who", ["nobody", "half a request", "rejected", "an agent"])
def test_no_number_of_connections_locks_others_out(who: str) -> None:
    with shared_daemon({"servers": {"raw": {"command": RAW[0], "args": RAW[1:]}}}, ready=["raw"]) as daemon:
        door = Endpoint(daemon)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (200, 200))
        with contextlib.ExitStack() as held:
            for _ in range(400):
                connection = held.enter_context(RawConnection(door.port))
                # One that was ended already does not take what is sent.
                with contextlib.suppress(ConnectionError):
                    if who == "half a request":
                        connection.send(b"POST /mcp HTTP/1.1\r\n")
                    elif who == "rejected":
                        connection.send(rejected(door))
                        assert connection.answer().status == 401
                    elif who == "an agent":
                        connection.send(door.modern_bytes("tools/call", {"name": "raw_ok", "arguments": {}}))
                        assert connection.answer().status == 200
            assert door.call("raw_ok").result["structuredContent"]["ok"] is True
            assert daemon.status()["pid"] == daemon.pid
            restarted = daemon.command("server:restart", name="raw")
            assert restarted["state"] == "ready"


def test_a_line_that_is_too_long_for_the_socket_is_told_so(shared: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(shared.home.socket))
        # It is refused before all of it is sent.
        with contextlib.suppress(BrokenPipeError):
            line.sendall(b"x" * (17 * 1024 * 1024) + b"\n")
        told = b""
        with contextlib.suppress(ConnectionResetError):
            told = line.recv(1 << 16)
    assert b"at most" in told
