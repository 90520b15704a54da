"""What a profile says of a coding agent's own tools: read, kept, shown, and told when it becomes less."""

from __future__ import annotations

import asyncio
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
    assert {name: profile.own_tools for name, profile in BUILTIN.items()} == {
        "owner": OwnTools.ALL,
        "trusted": OwnTools.ALL,
        "developer": OwnTools.EDIT,
        "read-only": OwnTools.READ,
        "nothing": OwnTools.NONE,
    }


def test_a_profile_without_a_level_allows_nothing_and_is_stored_unchanged() -> None:
    profile = profile_from("mine", MINE)
    assert profile.own_tools is OwnTools.NONE
    assert stored_profile(profile) == '{"description": "Looks.", "rules": [{"allow": "files:*"}]}'
    assert stored_profile(profile_from("mine", {**MINE, "own_tools": "none"})) == stored_profile(profile)


@pytest.mark.parametrize("level", [level for level in OwnTools if level is not OwnTools.NONE])
def test_a_profile_survives_being_kept(level: OwnTools) -> None:
    profile = profile_from("mine", {**MINE, "own_tools": level.value})
    assert profile.own_tools is level
    assert profile_from("mine", profile_data(profile)) == profile


@pytest.mark.parametrize("given", ["everything", "ALL", "", None, True, 1, ["read"], {"read": True}])
def test_a_level_that_there_is_not_is_refused_with_those_that_there_are(given: Any) -> None:
    with pytest.raises(ConfigError, match="own_tools") as caught:
        profile_from("mine", {**MINE, "own_tools": given})
    assert caught.value.remedy == "It is one of none, read, edit, all."


@pytest.mark.parametrize("before", OwnTools)
@pytest.mark.parametrize("after", OwnTools)
def test_only_less_or_the_same_is_narrower(before: OwnTools, after: OwnTools) -> None:
    levels = [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT, OwnTools.ALL]
    old, new = (profile_from("mine", {**MINE, "own_tools": one}) for one in (before, after))
    assert narrows_profile(old, new) is (levels.index(after) <= levels.index(before))


def test_fewer_rules_do_not_make_up_for_more_own_tools() -> None:
    wider = profile_from("mine", {"rules": [], "own_tools": "read"})
    assert not narrows_profile(profile_from("mine", MINE), wider)


class ChangeNotes:
    """Takes changes until it is told to fail."""

    def __init__(self) -> None:
        self.changes: list[AuditedChange] = []
        self.fails = False

    async def note(self, change: AuditedChange) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise StoreError("full")
        self.changes.append(change)


async def test_only_own_tools_changed_is_a_change_and_less_holds_at_once(tmp_path: Path) -> None:
    notes = ChangeNotes()
    store = await Store.open(tmp_path / "crib.db")
    agents = await AgentRegistry.open(store, bus=Bus(), note=notes.note, folder=tmp_path / "agents")
    try:
        assert await agents.put_profile(profile_from("mine", {**MINE, "own_tools": "edit"}))
        assert not await agents.put_profile(profile_from("mine", {**MINE, "own_tools": "edit"}))
        assert await agents.put_profile(profile_from("mine", {**MINE, "own_tools": "all"}))
        assert [(change.what, change.detail["own_tools"]) for change in notes.changes] == [
            ("profile added", "edit"),
            ("profile changed", "all"),
        ]
        notes.fails = True
        with pytest.raises(StoreError, match="The profile mine is narrower, now"):
            await agents.put_profile(profile_from("mine", {**MINE, "own_tools": "read"}))
        assert agents.profile("mine").own_tools is OwnTools.READ, "what takes away holds whatever the audit log does"
        with pytest.raises(StoreError, match="Nothing was changed"):
            await agents.put_profile(profile_from("mine", {**MINE, "own_tools": "all"}))
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
def test_workspace_yml_limits_built_in_tools(
    tmp_path: Path, settings: str, ci: str, tools: OwnTools, *, shell: bool
) -> None:
    (tmp_path / ".toolcrib").mkdir()
    (tmp_path / ".toolcrib" / "workspace.yml").write_text(settings)
    limit = own_tools_limit(load_settings(tmp_path, environ={"HOME": str(tmp_path / "h")}).settings, ci=ci)
    assert (limit.tools, limit.shell) == (tools, shell)
    assert bool(limit.why) is (limit.tools is not OwnTools.ALL), "what limits is named"
