"""Favorite tools on the command line, with and without a daemon: clients hear of changes, and a restart keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from parts.agent_clients import AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.daemon import Cli, Home, StartDaemon
from parts.recording_server import Notes


@pytest.mark.usual(engine="sqlite")
def test_favorites_are_announced_counted_and_kept(
    daemon: StartDaemon, store_env: dict[str, str], toolcrib_home: Home, cli: Cli
) -> None:
    first = daemon({"servers": {"w": Notes(toolcrib_home.path / "seen").server("t")}}, env=store_env)
    first.wait_until_ready()
    token = Owner(first).add("a", "w:*")
    mcp = AgentEndpoint(first, token)
    session = mcp.begin()
    with mcp.connect() as stream:
        stream.send(mcp.stream_bytes(session))
        assert stream.head()[0] == 200
        assert "w:t   chosen, 0 calls in 30 days" in cli("favorites", "add", "w_t").ok().out
        assert stream.event()["method"] == "notifications/tools/list_changed"
    with AgentClient(first, "a", token, "modern") as client:
        for number in range(5):
            assert nonce_of(client.call("w_t", nonce=str(number))) == str(number)
            assert "nonce" in refusal(client.call("w_t", nonce=number))
    unknown = cli("favorites", "add", "w:nothing")
    assert (unknown.exit_code, "w:nothing" in unknown.err) == (4, True)
    cli("favorites", "refresh").ok()
    favorites: dict[str, Any] = cli("favorites", "--json").ok().json
    assert favorites["favorites"] == [{"tool": "w:t", "origin": "chosen", "calls": 10}]
    assert favorites["levels"] == {"w:t": 1}, "half of the calls had invalid arguments"
    first.stop()
    assert cli("favorites", "--json", env=store_env).ok().json == favorites, "without a daemon"
    second = daemon(env=store_env)
    second.wait_until_ready()
    assert cli("favorites", "--json").ok().json == favorites
    assert "w:t" not in cli("favorites", "remove", "w:t").ok().out
    assert cli("favorites", "remove", "w:t").exit_code == 4
