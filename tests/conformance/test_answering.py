"""The official suite's client scenarios about calls and questions: clients of the daemon at the suite's servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from conformance import suite
from conformance.signing_client import SigningClient
from conformance.suite import Leg
from parts.asked_clients import AskedClient
from parts.daemon import StartDaemon
from parts.fleet import NotRun
from parts.report import not_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEFAULTS = "elicitation-sep1034-client-defaults"
WANTED = {
    Leg.LEGACY_SUITE: {DEFAULTS, "initialize", "tools_call"},
    Leg.LEGACY: {DEFAULTS, "initialize", "tools_call"},
    Leg.MODERN: {"tools_call", "sep-2322-client-request-state", "request-metadata"},
}


class AnsweringClient(SigningClient):
    """Calls each tool of the scenario's server once, and accepts forms without filling them in."""

    def work(self, scenario: str, url: str, context: Mapping[str, str]) -> str:
        self._add(scenario, {"url": url, "roots": "client", "sampling": "allow"})
        tools = self._daemon.command("tool:list", server=scenario)["tools"]
        with AskedClient.at_endpoint(self._daemon, "legacy") as client:
            for tool in tools:
                arguments = {"a": 2, "b": 3} if "add" in tool["name"] else {}
                turn = client.finish(
                    client.call(tool["name"], arguments), lambda _: {"action": "accept", "content": {}}
                )
                if "error" in turn.message:
                    return str(turn.error["message"])
        return "" if tools else str(self._daemon.command("server:show", name=scenario)["last_error"])


@pytest.mark.req("KSI-5", "KSI-9")
@pytest.mark.parametrize("leg", list(Leg), ids=lambda leg: leg.name.lower())
def test_the_daemon_passes_the_scenarios_for_clients(leg: Leg, daemon: StartDaemon, tmp_path: Path) -> None:
    try:
        suite.fleet.ensure("node")
        suite.fleet.ensure(leg.part)
    except NotRun as reason:
        not_run("conformance suite", str(reason))
    running = daemon({"servers": {}})
    with AnsweringClient.listening(running, tmp_path, WANTED[leg]) as (client, command):
        words = leg.words or ("--suite", "all", "--spec-version", leg.revision)
        verdict = suite.run_client(leg, tmp_path, command, *words)
    failed = [str(failure) for failure in verdict.failures if failure.scenario in WANTED[leg]]
    print(client.outcomes, verdict.scenarios)
    assert WANTED[leg] <= verdict.scenarios, verdict.output[-4000:]
    assert not failed, "\n".join(failed) + f"\n{client.outcomes}"
