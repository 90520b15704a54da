"""The commands for secrets in a real crib: for the owner only, undone if they can't be audited, and masked at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from toolcrib.commands.all import registry
from toolcrib.commands.registry import Availability, CommandContext, CommandHost, Via
from toolcrib.core.crib import Crib
from toolcrib.credentials.vault import CredentialKind
from toolcrib.errors import Denied, StoreError
from toolcrib.events import AuditedChange
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext

pytestmark = pytest.mark.req("BNS-6")

NAMES = ("secret:set", "secret:list", "secret:remove", "secret:migrate")
SECRET = "very-secret-value"
CONFIG = {"jobs": {"api_keys": {"openai": "${JOBS_KEY}"}}, "servers": {"it": {"command": "x", "env": {"K": "${A}"}}}}


@pytest.fixture
async def crib(tmp_path: Path) -> AsyncIterator[Crib]:
    """With nothing connected, as for commands without a daemon."""
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.json").write_text(json.dumps(CONFIG))
    async with Crib(root=tmp_path, environ=environ, paths=None, only=frozenset()) as opened:
        yield opened


async def unexpected(event: dict[str, Any]) -> None:
    raise AssertionError(f"unexpected event: {event}")


async def run(crib: Crib, command: str, /, caller: Principal = OWNER, **params: Any) -> Any:
    request, host = RequestContext(caller, crib.projects.home), cast(CommandHost, None)
    return await registry.run(
        command, params, CommandContext(crib=crib, request=request, host=host, via=Via.SOCKET, emit=unexpected)
    )


def value_of(crib: Crib, name: str) -> bytes | None:
    return crib.environment.vault.get(CredentialKind.SECRET, name)


@pytest.mark.parametrize("name", NAMES)
async def test_the_commands_are_for_the_owner_on_the_command_line_only(crib: Crib, name: str) -> None:
    assert registry.find(name).availability is Availability.SOCKET
    with pytest.raises(Denied):
        await run(crib, name, CLIENT, name="A", value=SECRET, to="file")


async def test_what_is_stored_is_masked_at_once_even_if_nothing_uses_it(crib: Crib) -> None:
    await run(crib, "secret:set", name="UNUSED", value=SECRET)
    assert crib.environment.mask(f"it is {SECRET}.") == "it is ****."


@pytest.mark.req("BNS-3")
async def test_a_secret_of_the_settings_counts_as_used(crib: Crib) -> None:
    missing = {row["name"]: row["servers"] for row in (await run(crib, "secret:list"))["missing"]}
    assert missing == {"A": ["it"], "JOBS_KEY": []}
    used = await run(crib, "secret:set", name="JOBS_KEY", value=SECRET)
    assert (used["servers"], used["elsewhere"]) == ([], True)
    used = await run(crib, "secret:set", name="A", value=SECRET)
    assert (used["servers"], used["elsewhere"]) == (["it"], False)
    assert crib.projects.home.config.servers["it"].env["K"] == SECRET
    assert not (await run(crib, "secret:list"))["missing"]


@pytest.mark.req("KSI-8")
async def test_a_change_that_cannot_be_audited_is_undone(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(change: AuditedChange) -> None:
        raise StoreError("The disk is full.")

    await run(crib, "secret:set", name="A", value=SECRET)
    monkeypatch.setattr(crib, "_services", dataclasses.replace(crib.services, record=full))
    for name, params in (
        ("secret:set", {"name": "A", "value": "another-value"}),
        ("secret:set", {"name": "NEW", "value": "another-value"}),
        ("secret:remove", {"name": "A"}),
    ):
        with pytest.raises(StoreError, match=r"Nothing was changed.*The disk is full"):
            await run(crib, name, **params)
        assert (value_of(crib, "A"), value_of(crib, "NEW")) == (SECRET.encode(), None)


async def test_an_unreadable_key_is_reported_with_the_secrets(crib: Crib) -> None:
    await run(crib, "secret:set", name="A", value=SECRET)
    (crib.environment.paths.credentials / "key").chmod(0o640)
    found = await run(crib, "secret:list")
    assert (found["secrets"], found["key_store"]) == ([], None)
    assert "can be read by others" in found["damaged"][0]["reason"]
