"""The official suite's client scenarios about authorization: a person with the real daemon and `toolcrib login`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import suite
from conformance.signing_client import SigningClient
from conformance.suite import Leg
from parts.daemon import StartDaemon
from parts.fleet import NotRun
from parts.report import not_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMON = {
    "auth/basic-cimd",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/pre-registration",
    "auth/scope-from-scopes-supported",
    "auth/scope-from-www-authenticate",
    "auth/scope-omitted-when-undefined",
    "auth/scope-retry-limit",
    "auth/scope-step-up",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-none",
    "auth/token-endpoint-auth-post",
}
"""Those of every revision."""
MODERN = {
    "auth/authorization-server-migration",
    "auth/iss-normalized",
    "auth/iss-not-advertised",
    "auth/iss-supported",
    "auth/iss-supported-missing",
    "auth/iss-unexpected",
    "auth/iss-wrong-issuer",
    "auth/metadata-issuer-mismatch",
    "auth/offline-access-not-supported",
    "auth/offline-access-scope",
    "auth/resource-mismatch",
}
EXTENSIONS = {"auth/client-credentials-basic", "auth/client-credentials-jwt"}
"""The others, which we don't offer: DPoP, workload identities, and permissions that an enterprise manages."""
WANTED = {
    Leg.LEGACY_SUITE: COMMON,
    Leg.LEGACY: COMMON | EXTENSIONS,
    Leg.MODERN: COMMON | MODERN | EXTENSIONS,
}
REFUSALS = {
    "auth/iss-normalized": "iss mismatch",
    "auth/iss-supported-missing": "missing iss parameter",
    "auth/iss-unexpected": "iss mismatch: https://evil.example.com",
    "auth/iss-wrong-issuer": "iss mismatch: https://evil.example.com",
    "auth/metadata-issuer-mismatch": "issuer mismatch: https://attacker.example.com",
    "auth/resource-mismatch": "https://evil.example.com/mcp does not match",
    "auth/scope-retry-limit": "HTTP 4|needs another permission .*: run `toolcrib login scope-retry-limit`",
}
"""Why the tool cannot be called in the scenarios of hostile servers. The last one ends after a few requests."""


@pytest.mark.req("BNS-6")
@pytest.mark.parametrize("leg", list(Leg), ids=lambda leg: leg.name.lower())
def test_a_person_with_the_daemon_passes_the_scenarios_about_authorization(
    leg: Leg, daemon: StartDaemon, tmp_path: Path
) -> None:
    try:
        suite.fleet.ensure("node")
        suite.fleet.ensure(leg.part)
    except NotRun as reason:
        not_run("conformance suite", str(reason))
    wanted = WANTED[leg]
    running = daemon({"servers": {}})
    with SigningClient.listening(running, tmp_path, wanted) as (client, command):
        words = leg.words or ("--suite", "auth", "--spec-version", leg.revision)
        verdict = suite.run_client(leg, tmp_path, command, *words)
    assert wanted <= verdict.scenarios, f"not run: {sorted(wanted - verdict.scenarios)}: {verdict.output[-4000:]}"
    failed = [str(failure) for failure in verdict.failures if failure.scenario in wanted]
    assert not failed, "\n".join(failed) + f"\n{client.outcomes}"
    assert {scenario for scenario, reason in client.outcomes.items() if reason} == wanted & set(REFUSALS)
    for scenario in wanted & set(REFUSALS):
        assert re.search(REFUSALS[scenario], client.outcomes[scenario])
