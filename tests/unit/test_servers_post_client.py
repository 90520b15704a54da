"""HTTP requests over reused connections, to servers that answer correctly, oddly, or not at all."""

import asyncio
import base64
import contextlib
import ssl

import pytest

from toolcrib.servers.address import Address
from toolcrib.servers.http import _forgot_session
from toolcrib.servers.post_client import ConnectFailed, ConnectionBroken, PostClient, _Connection
from toolcrib.servers.wire import TooLarge

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class ScriptedServer:
    """Answers each request with the next of its scripts, chunk by chunk; None closes the connection."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []
        self.tasks = []
        self.received = asyncio.Event()
        self.connections = 0

    async def __call__(self, reader, writer):
        self.connections += 1
        self.tasks.append(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) if b"ontent-" in head else 0
                self.requests.append(head + await reader.readexactly(length))
                self.received.set()
                script = self.scripts.pop(0)
                if script is None:
                    break
                for chunk in script:
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(0)


@pytest.fixture
async def far():
    servers = []

    async def start(*scripts):
        script = ScriptedServer(*scripts)
        server = await asyncio.start_server(script, "127.0.0.1", 0)
        servers.append((server, script))
        script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp?x=1"
        script.address = Address.of(script.url, None)
        return script

    yield start
    for server, script in servers:
        server.close()
        for task in script.tasks:
            task.cancel()
        await asyncio.gather(*script.tasks, return_exceptions=True)


@pytest.fixture
async def client():
    client = PostClient(ssl.create_default_context())
    yield client
    client.close()
    await asyncio.sleep(0)


def pieces(data):
    return [data[i : i + 1] for i in range(len(data))]


async def post(client, server, body=b"{}", **limits):
    response = await client.request(b"POST", server.address, b"X-A: b\r\n", body, **limits)
    try:
        return response.status, await response.read()
    finally:
        response.release()


@pytest.mark.req("ENG-1")
async def test_a_request_arrives_unchanged_and_its_connection_is_reused(client, far):
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    server = await far([OK], pieces(OK), [interim, OK])
    for _ in range(3):
        assert await post(client, server, b'{"a":1}') == (200, b"{}")
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /mcp?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b'\r\nX-A: b\r\nContent-Length: 7\r\n\r\n{"a":1}')


async def test_simultaneous_requests_have_a_connection_each(client, far):
    server = await far(*[[OK]] * 8)
    assert await asyncio.gather(*(post(client, server) for _ in range(8))) == [(200, b"{}")] * 8
    assert 1 < server.connections <= 8


async def test_every_way_to_authenticate_is_kept(client, far):
    ways = b'WWW-Authenticate: Bearer scope="a"\r\nWWW-Authenticate: Negotiate\r\n'
    server = await far([b"HTTP/1.1 401 No\r\n" + ways + b"Content-Length: 0\r\n\r\n"])
    with await client.request(b"GET", server.address, b"X-A: b\r\n") as response:
        assert response.headers["www-authenticate"] == 'Bearer scope="a", Negotiate'


async def test_chunks_are_returned_as_they_arrive(client, far):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    server = await far([head, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"], [OK])
    response = await client.request(b"POST", server.address, b"", b"")
    assert response.content_type == "text/event-stream"
    assert b"".join([chunk async for chunk in response.chunks()]) == b"abcde"
    response.release()
    assert await post(client, server) == (200, b"{}")
    assert server.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection(client, far):
    server = await far([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[1,", b"2]"], None)
    response = await client.request(b"POST", server.address, b"", b"")
    reading = asyncio.create_task(response.read())
    # The next request on the same connection makes the server close it.
    response._connection._transport.write(b"X\r\n\r\n")
    assert await asyncio.wait_for(reading, 60) == b"[1,2]"
    response.release()


@pytest.mark.parametrize(
    "script",
    [
        None,
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"],
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"],
    ],
)
async def test_an_invalid_answer_is_an_error_and_the_next_request_succeeds(client, far, script, caplog):
    server = await far(script, [OK])
    request = asyncio.create_task(post(client, server))
    if script and b"Content-Length: 9" in script[0]:
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, lambda: [c._transport.abort() for c in tuple(client._all)])
    with pytest.raises(ConnectionBroken):
        await asyncio.wait_for(request, 60)
    assert not caplog.records
    assert await post(client, server) == (200, b"{}")


async def test_an_unreachable_server_is_another_error_than_a_broken_answer(client, unused_tcp_port):
    with pytest.raises(ConnectFailed):
        await client.request(b"POST", Address.of(f"http://127.0.0.1:{unused_tcp_port}/", None), b"", b"")


async def test_a_cancelled_request_ends_its_connection(client, far):
    server = await far([], [OK])
    request = asyncio.create_task(post(client, server))
    await asyncio.wait_for(server.received.wait(), 60)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert await post(client, server) == (200, b"{}")
    assert server.connections == 2


async def test_a_large_answer_is_read_and_a_closed_client_has_no_connections(far):
    client = PostClient(ssl.create_default_context())
    body = b"x" * 20_000_000
    server = await far([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
    assert await post(client, server, limit=len(body)) == (200, body)
    client.close()
    await asyncio.sleep(0)
    assert not client._all


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = JSON + b"Transfer-Encoding: chunked\r\n\r\n"
MEGABYTE = b"x" * 1_000_000
LARGE_HEADER = b"X-A: " + MEGABYTE + b"\r\n"


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ([JSON + b"Content-Length: 300001\r\n\r\n"], "0.286 MB"),
        ([JSON + b"Content-Length: 9" + b"0" * 4000 + b"\r\n\r\n"], None),
        ([JSON + b"\r\n", MEGABYTE], "0.286 MB"),
        ([CHUNKED, *[b"f4240\r\n" + MEGABYTE + b"\r\n"] * 3], "0.286 MB"),
        ([CHUNKED, *[b"32\r\n" + b"x" * 50 + b"\r\n"] * 8000], "0.286 MB"),
        ([CHUNKED, *[b"1\r\nx\r\n" * 100_000] * 4], "tiny chunks"),
        ([JSON, b"".join(b"X-%d: a\r\n" % number for number in range(300)), b"\r\n"], "256 headers"),
        ([JSON + LARGE_HEADER + b"\r\n"], "64 KB of headers"),
        ([JSON, *[b"X-A: " + b"x" * 1000 + b"\r\n"] * 100], "64 KB of headers"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, OK], "64 KB of headers"),
        ([b"HTTP/1.1 200 " + MEGABYTE + b"\r\n\r\n"], "64 KB of headers"),
        ([CHUNKED + b"2\r\n{}\r\n0\r\n", LARGE_HEADER, b"\r\n"], "64 KB of headers"),
        ([CHUNKED + b"2;" + MEGABYTE + b"\r\n{}\r\n0\r\n\r\n"], "64 KB of headers"),
    ],
    ids=lambda script: b"".join(script)[15:70] if isinstance(script, list) else "",
)
@pytest.mark.req("BNS-10")
async def test_an_answer_that_is_too_large_in_any_part_is_refused(client, far, script, what):
    server = await far(script, [OK])
    with pytest.raises(TooLarge if what else ConnectionBroken, match=what):
        await asyncio.wait_for(post(client, server, limit=300_000), 30)
    assert await post(client, server) == (200, b"{}")


@pytest.mark.req("BNS-10")
async def test_an_answer_that_announces_too_large_a_size_is_not_read(client, far):
    server = await far([JSON + b"Content-Length: 99999999999\r\n\r\n", *[MEGABYTE] * 200])
    with pytest.raises(TooLarge):
        await asyncio.wait_for(post(client, server), 30)
    assert not client._all or not next(iter(client._all)).usable


@pytest.mark.req("BNS-10")
async def test_a_stream_without_a_reader_stops_the_server_from_writing(client):
    written = 0
    total = 400 * 65_536

    async def flood(reader, writer):
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for _ in range(400):
            writer.write(b"x" * 65_536)
            await writer.drain()
            written += 65_536
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    address = Address.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", None)
    response = await client.request(b"GET", address, b"")
    (connection,) = client._all
    async with asyncio.timeout(30):
        while not response.full:  # noqa: ASYNC110 - the server writes
            await asyncio.sleep(0.01)
        before = -1
        while before != (before := written):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.3)
        assert written < total
        assert connection._paused
        assert sum([len(chunk) async for chunk in response.chunks()]) == total
    response.close()
    server.close()


@pytest.mark.req("BNS-10")
async def test_a_connection_with_a_slow_reader_serves_the_next_request(client, far):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 700000\r\n\r\n"
    server = await far([head, b"x" * 700_000], [OK])
    response = await client.request(b"POST", server.address, b"", limit=1_000_000)
    assert len(await response.read()) == 700_000
    response.release()
    assert await asyncio.wait_for(post(client, server), 10) == (200, b"{}")
    assert server.connections == 1


async def test_a_forwarding_proxy_gets_the_whole_address_and_the_credentials(client, far):
    server = await far([OK])
    proxy = server.url.replace("http://", "http://me:p%40ss@")
    (await client.request(b"POST", Address.of("http://far.example:81/mcp", proxy), b"", b"")).release()
    assert server.requests[0].startswith(b"POST http://far.example:81/mcp HTTP/1.1\r\nHost: far.example:81\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in server.requests[0]


@pytest.mark.parametrize("host", [b"far.example", b"[2001:db8::1]"])
async def test_a_tunnelling_proxy_that_refuses_is_named_in_the_error(client, far, host):
    server = await far([b"HTTP/1.1 403 Forbidden\r\n\r\n"])
    with pytest.raises(ConnectFailed, match=r"proxy 127\.0\.0\.1"):
        await client.request(b"POST", Address.of(f"https://{host.decode()}/mcp", server.url), b"", b"")
    assert server.requests[0].startswith(b"CONNECT %b:443 HTTP/1.1\r\nHost: %b:443\r\n" % (host, host))


async def test_a_failure_of_tls_inside_a_tunnel_is_an_immediate_error(client):
    async def proxy(reader, writer):
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await reader.read(10)
            writer.write(b"this is no TLS\r\n")
            await writer.drain()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    async with server:
        proxy_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ssl.SSLError):
            async with asyncio.timeout(60):
                await client.request(b"POST", Address.of("https://far.example/mcp", proxy_url), b"", b"")


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_second_answer_to_one_request_closes_the_connection(client, far, pieces):
    other = OK.replace(b"{}", b"[]")
    server = await far([OK + other] if pieces == 1 else [OK, other], [OK], [OK])
    assert await post(client, server) == (200, b"{}")
    async with asyncio.timeout(60):
        while client._all:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    assert await post(client, server) == (200, b"{}")
    assert server.connections == 2


async def test_a_connection_with_an_unread_answer_is_closed(client, far):
    server = await far([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
    with await client.request(b"POST", server.address, b"", b""):
        assert len(client._all) == 1
    await asyncio.sleep(0)
    assert not client._all


async def test_closing_a_released_response_does_not_affect_the_next_request(client, far):
    server = await far([OK], [OK])
    first = await client.request(b"POST", server.address, b"", b"")
    await first.read()
    first.release()
    with await client.request(b"POST", server.address, b"", b"") as second:
        first.close()
        assert await second.read() == b"{}"
    assert server.connections == 1


async def test_a_connection_lost_while_connecting_has_sent_nothing(client):
    connection = _Connection(client, Address.of("http://far.example/", None))
    connection.connection_made(asyncio.Transport())
    connection.connection_lost(None)
    assert not client._all
    with pytest.raises(ConnectFailed):
        await connection.ask(b"", 0)


def test_an_address_is_encoded_as_ascii_without_blanks():
    address = Address.of("http://h\u00e9.example:81/a b/\u00e9%20?q=\u00fc x&r=[1]#f", None)
    assert address.target == b"/a%20b/%C3%A9%20?q=%C3%BC%20x&r=%5B1%5D"
    assert address.authority == b"xn--h-bga.example:81"
    assert Address.of("http://h/a:b@c;d=1,2/%41?x=%5B&y=/?", None).target == b"/a:b@c;d=1,2/%41?x=%5B&y=/?"


@pytest.mark.parametrize(
    ("status", "error", "forgot"),
    [
        (404, None, True),
        (400, None, False),
        (404, b'{"code":-32001,"message":"Session not found"}', True),
        (404, b'{"code":-32601,"message":"Method not found"}', False),
        (404, b'{"code":-32002,"message":"Resource not found"}', False),
        (400, b'{"code":-32000,"message":"Bad Request: No valid session ID provided"}', True),
        (400, b'{"code":-32000,"message":"Bad Request: Server not initialized"}', True),
        (400, b'{"code":-32000,"message":"Bad Request: Mcp-Session-Id header is required"}', True),
        (400, b'{"code":-32600,"message":"Bad Request: Missing session ID"}', True),
        (400, b'{"code":-32600,"message":"INVALID SESSION ID."}', True),
        (400, b'{"code":-32602,"message":"Session not found"}', False),
        (400, b'{"code":-32000,"message":"the login session not found in the shop"}', False),
        (400, b'{"code":-32000,"message":"Failed","data":"session not found"}', False),
        (400, b'{"code":"x","message":["session not found"]}', False),
        (500, b'{"code":-32000,"message":"Session not found"}', False),
    ],
)
@pytest.mark.req("BNS-4")
def test_only_the_sdks_messages_mean_that_the_session_is_gone(status, error, forgot):
    assert _forgot_session(status, error) is forgot
