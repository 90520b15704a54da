"""The health of a server is found by a real exchange with it, in both eras."""

from __future__ import annotations

import os
import signal

import pytest

from parts.live_servers import LiveServers, live
from toolcrib.errors import ServerUnavailable
from toolcrib.servers.health import ping

__all__ = ["live"]


@pytest.mark.parametrize(("era", "method"), [("modern", "server/discover"), ("legacy", "ping")])
async def test_a_ping_is_one_real_exchange_with_the_server(live: LiveServers, era: str, method: str) -> None:
    async with live.web(era) as (far, server):
        link = server._link
        assert link is not None
        before = len(far.requests)
        assert 0 < await ping(link, 10.0) < 10
        assert [seen.message["method"] for seen in far.requests[before:]] == [method]


async def test_a_stopped_process_does_not_answer_a_ping(live: LiveServers) -> None:
    server = await live.odd()
    link = server._link
    assert link is not None and link.pid is not None
    assert await ping(link, 10.0) > 0
    # The process is in the group of its guard, whose pid this is.
    os.killpg(link.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnavailable, match=r"did not answer ping within 0\.2 s"):
            await ping(link, 0.2)
    finally:
        os.killpg(link.pid, signal.SIGCONT)
