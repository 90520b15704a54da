"""A profile's limit on a coding agent's own tools: parsed, stored, audited, narrowed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import ConfigError, StoreError
from toolcrib.events import AuditedChange, Bus
from toolcrib.identity.registry import AgentRegistry
from toolcrib.identity.state import narrows_profile, stored_profile
from toolcrib.policy import BUILTIN, OwnTools, profile_data, profile_from
from toolcrib.policy.profile import own_tools_limit
from toolcrib.store.database import Store
from toolcrib.workspace.settings.load import load_settings

pytestmark = pytest.mark.req("KSI-5")

MINE = {"description": "Looks.", "rules": [{"allow": "files:*"}]}


def test_built_in_profiles_have_a_level_of_own_tools() -> None:
    levels = {"owner": "all", "trusted": "all", "developer": "edit", "read-only": "read", "nothing": "none"}
    assert {name: profile.own_tools.value for name, profile in BUILTIN.items()} == levels


def test_a_profile_without_a_level_allows_nothing_and_is_stored_unchanged() -> None:
    profile = profile_from("mine", MINE)
    assert profile.own_tools is OwnTools.NONE
    assert stored_profile(profile) == '{"description": "Looks.", "rules": [{"allow": "files:*"}]}'
    assert stored_profile(profile_from("mine", {**MINE, "own_tools": "none"})) == stored_profile(profile)


@pytest.mark.parametrize("level", [level for level in OwnTools if level is not OwnTools.NONE])
def test_a_stored_profile_is_read_unchanged(level: OwnTools) -> None:
    profile = profile_from("mine", {**MINE, "own_tools": level.value})
    assert profile.own_tools is level
    assert profile_from("mine", profile_data(profile)) == profile


@pytest.mark.parametrize("given", ["everything", "ALL", "", None, True, 1, ["read"], {"read": True}])
def test_an_unknown_level_is_refused_with_the_known_ones(given: Any) -> None:
    with pytest.raises(ConfigError, match="own_tools") as caught:
        profile_from("mine", {**MINE, "own_tools": given})
    assert caught.value.remedy == "It is one of none, read, edit, all."


def test_a_profile_with_the_same_or_fewer_own_tools_is_narrower() -> None:
    levels = [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT, OwnTools.ALL]
    for before, after in itertools.product(levels, repeat=2):
        old, new = (profile_from("mine", {**MINE, "own_tools": one}) for one in (before, after))
        assert narrows_profile(old, new) is (levels.index(after) <= levels.index(before)), (before, after)
    fewer_rules = profile_from("mine", {"rules": [], "own_tools": "read"})
    assert not narrows_profile(profile_from("mine", MINE), fewer_rules)


async def test_a_changed_level_is_audited_and_a_narrower_one_applies_even_if_that_fails(tmp_path: Path) -> None:
    changes: list[AuditedChange] = []
    full = False

    async def note(change: AuditedChange) -> None:
        await asyncio.sleep(0)
        if full:
            raise StoreError("full")
        changes.append(change)

    store = await Store.open(tmp_path / "crib.db")
    agents = await AgentRegistry.open(store, bus=Bus(), note=note, folder=tmp_path / "agents")
    try:
        for level, changed in (("edit", True), ("edit", False), ("all", True)):
            assert await agents.put_profile(profile_from("mine", {**MINE, "own_tools": level})) is changed
        noted = [(change.what, change.detail["own_tools"]) for change in changes]
        assert noted == [("profile added", "edit"), ("profile changed", "all")]
        full = True
        for level, message in (("read", "The profile mine allows less, now"), ("all", "Nothing was changed")):
            with pytest.raises(StoreError, match=message):
                await agents.put_profile(profile_from("mine", {**MINE, "own_tools": level}))
            assert agents.profile("mine").own_tools is OwnTools.READ
    finally:
        await agents.close()
        await store.close()


@pytest.mark.parametrize(
    ("settings", "ci", "tools", "shell"),
    [
        ("network: false\n", "", OwnTools.ALL, True),
        ("tools: {run_tests: off, run_lint: off, project_diff: off}\n", "", OwnTools.ALL, True),
        ("read_only: true\n", "", OwnTools.READ, False),
        ("tools: {write_file: off}\n", "", OwnTools.READ, True),
        ("tools: {edit_file: off}\n", "", OwnTools.READ, True),
        ("tools: {run_shell_safe: off}\n", "", OwnTools.EDIT, False),
        ("{}\n", "CI", OwnTools.EDIT, False),
        ("forbid_shell_in_ci: true\n", "", OwnTools.ALL, True),
        ("read_only: true\n", "CI", OwnTools.READ, False),
        ("tools: {read_file: off}\n", "", OwnTools.NONE, False),
        ("tools: {search_text: off}\n", "", OwnTools.NONE, False),
        ('hidden: [".env*"]\n', "", OwnTools.NONE, False),
        ("guarded: {.vscode: on}\n", "", OwnTools.ALL, True),
        ("guarded: {deploy/**: on}\n", "", OwnTools.READ, False),
        ("read_only: [\n", "", OwnTools.NONE, False),
    ],
)
def test_workspace_yml_limits_own_tools(
    tmp_path: Path, settings: str, ci: str, tools: OwnTools, *, shell: bool
) -> None:
    (tmp_path / ".toolcrib").mkdir()
    (tmp_path / ".toolcrib" / "workspace.yml").write_text(settings)
    limit = own_tools_limit(load_settings(tmp_path, environ={"HOME": str(tmp_path / "h")}).settings, ci=ci)
    assert (limit.tools, limit.shell) == (tools, shell)
    assert bool(limit.why) is (limit.tools is not OwnTools.ALL), "a limit has a reason"
