"""How Codex is launched: arguments, the token's variable, and the user's settings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.launch_requests import BELOW_ALL, LABELS, PROMPT, TOKEN, URL, launch_request
from toolcrib.coding_agents.client_spec import SERVER_NAME, TOKEN_VARIABLE, HeadlessSpec, Launch
from toolcrib.coding_agents.known import codex_launch
from toolcrib.coding_agents.known.codex import CODEX
from toolcrib.coding_agents.known.codex_launch import OTHER_NAME
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

THREAD = "01a1e325-90c4-78c2-82fd-3ea33050b230"
LaunchWith = Callable[..., Launch]

pytestmark = pytest.mark.req("FRG-3")


def headless() -> HeadlessSpec:
    assert CODEX.headless is not None
    return CODEX.headless


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchWith:
    """For a person whose settings are given as text, in a folder of theirs."""
    monkeypatch.setattr(codex_launch, "SYSTEM_FILE", tmp_path / "system.toml")
    monkeypatch.setattr(codex_launch, "MANAGED_FILE", tmp_path / "managed.toml")
    home = tmp_path / "home"
    (tmp_path / "project").mkdir()
    (home / ".codex").mkdir(parents=True)

    def make(settings: str = "", own: OwnTools = OwnTools.READ, **given: Any) -> Launch:
        (home / ".codex" / "config.toml").write_text(settings)
        return headless().launch(launch_request(tmp_path, own, **given))

    return make


def settings_of(launched: Launch) -> dict[str, Any]:
    """What the words say, merged as Codex does it: a dotted way is split at its dots."""
    merged: dict[str, Any] = {}
    for before, word in zip(launched.args, launched.args[1:], strict=False):
        if before == "-c":
            way, _, value = word.partition("=")
            *steps, last = way.split(".")
            table = merged
            for step in steps:
                table = table.setdefault(step, {})
            table[last] = tomllib.loads(f"x = {value}")["x"]
    return merged


def test_a_new_run_has_its_prompt_and_token_off_the_command_line(launch: LaunchWith) -> None:
    launched = launch()
    assert launched.args[:3] == ("exec", "--json", "--skip-git-repo-check")
    assert launched.args[-2:] == ("--", "-")
    assert launched.stdin == PROMPT
    assert launched.environ == {TOKEN_VARIABLE: TOKEN}
    assert not any(TOKEN in word for word in launched.args)


def test_a_session_continues_with_the_same_arguments(launch: LaunchWith) -> None:
    anew, again = launch(extra=("-m", "gpt-6.1-sol")), launch(extra=("-m", "gpt-6.1-sol"), session=THREAD)
    assert again.args == ("exec", "resume", *anew.args[1:-1], THREAD, "-")
    assert anew.args[-4:-2] == ("-m", "gpt-6.1-sol")


def test_toolcribs_server_is_required_and_its_tools_need_no_approval(launch: LaunchWith) -> None:
    [(name, entry)] = settings_of(launch())["mcp_servers"].items()
    assert name == SERVER_NAME
    assert entry["url"] == URL
    assert entry["bearer_token_env_var"] == TOKEN_VARIABLE
    assert entry["http_headers"] == LABELS
    assert entry["required"] is True
    assert entry["default_tools_approval_mode"] == "approve"


@pytest.mark.req("FRG-10")
def test_a_run_without_our_tools_names_no_server_and_holds_no_token(launch: LaunchWith) -> None:
    launched = launch(url="")
    assert settings_of(launched)["mcp_servers"] == {}
    assert launched.environ == {}


@pytest.mark.parametrize("own", BELOW_ALL)
def test_every_other_server_of_the_person_is_off_below_all(launch: LaunchWith, own: OwnTools, tmp_path: Path) -> None:
    (tmp_path / "system.toml").write_text('[mcp_servers.harness]\nurl = "http://harness"\n')
    servers = settings_of(launch('[mcp_servers."my.notes"]\ncommand = "notes"\n', own))["mcp_servers"]
    assert {name for name, entry in servers.items() if entry == {"enabled": False}} == {"my.notes", "harness"}
    assert settings_of(launch('[mcp_servers.notes]\ncommand = "notes"\n', OwnTools.ALL))["mcp_servers"].keys() == {
        SERVER_NAME
    }


@pytest.mark.parametrize("own", OwnTools)
def test_the_entry_that_connect_made_gives_way_to_that_of_the_run(launch: LaunchWith, own: OwnTools) -> None:
    servers = settings_of(launch('[mcp_servers.toolcrib]\ncommand = "toolcrib"\n', own))["mcp_servers"]
    assert servers[SERVER_NAME] == {"enabled": False}
    assert servers[OTHER_NAME]["url"] == URL


def test_the_settings_folder_can_be_moved_by_a_variable(launch: LaunchWith, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.toml").write_text('[mcp_servers.notes]\ncommand = "notes"\n')
    servers = settings_of(launch(environ={"CODEX_HOME": str(moved), "HOME": "/nowhere"}))["mcp_servers"]
    assert servers["notes"] == {"enabled": False}


def test_settings_that_cannot_be_read_are_an_error_and_not_an_empty_list(launch: LaunchWith) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read"):
        launch("mcp_servers = {")


@pytest.mark.parametrize(
    ("own", "sandbox"),
    [(OwnTools.NONE, None), (OwnTools.READ, None), (OwnTools.EDIT, None), (OwnTools.ALL, "danger-full-access")],
)
def test_each_level_has_its_sandbox_and_never_asks(launch: LaunchWith, own: OwnTools, sandbox: str | None) -> None:
    output = settings_of(launch(own=own))
    assert output.get("sandbox_mode") == sandbox
    assert ("default_permissions" in output) == (sandbox is None), "Codex would not look at both"
    assert output["approval_policy"] == "never"


@pytest.mark.parametrize("own", [OwnTools.NONE, OwnTools.READ])
def test_below_edit_nothing_is_writable_and_toolcribs_own_folders_are_no_ones_to_read(
    launch: LaunchWith, own: OwnTools, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    output = settings_of(launch(own=own, private=(tmp_path / "link", tmp_path / "state")))
    none = {str(tmp_path / name): "none" for name in ("link", "real", "state")}
    assert output["permissions"][output["default_permissions"]]["filesystem"] == {":root": "read", **none}


def test_at_edit_the_folder_is_writable_but_for_ours_and_nothing_else_is(launch: LaunchWith) -> None:
    output = settings_of(launch(own=OwnTools.EDIT))
    profile = output["permissions"][output["default_permissions"]]
    kept = {".toolcrib": "read", "HEAD": "read"}
    assert profile["filesystem"] == {":root": "read", ":workspace_roots": {".": "write", **kept}}
    assert profile["network"] == {"enabled": False}


@pytest.mark.parametrize("own", OwnTools)
def test_below_all_a_new_session_gets_the_projects_instructions_before_the_prompt(
    launch: LaunchWith, own: OwnTools, tmp_path: Path
) -> None:
    (tmp_path / "project" / "AGENTS.md").write_text("Use tabs.")
    stdin = launch(own=own).stdin
    assert stdin.endswith(PROMPT)
    assert ("Use tabs." in stdin) == (own is not OwnTools.ALL)
    assert launch(own=own, session=THREAD).stdin == PROMPT
    assert launch("project_doc_max_bytes = 0\n", own).stdin == PROMPT


@pytest.mark.parametrize("own", BELOW_ALL)
def test_what_acts_past_the_sandbox_is_off_below_all(launch: LaunchWith, own: OwnTools) -> None:
    launched = launch(own=own)
    output = settings_of(launched)
    assert "--ignore-rules" in launched.args
    assert output["web_search"] == "disabled"
    assert output["notify"] == []
    assert output["agents"] == {"enabled": False}
    assert not any(output["features"].values())
    assert output["features"].keys() >= {"apps", "plugins", "hooks", "multi_agent_v2", "memories"}
    assert ("shell_tool" in output["features"]) == (own is OwnTools.NONE)


def test_at_all_only_the_sandbox_is_said(launch: LaunchWith, tmp_path: Path) -> None:
    launched = launch(own=OwnTools.ALL)
    output = settings_of(launched)
    assert "--ignore-rules" not in launched.args
    assert not {"features", "web_search", "notify", "agents"} & output.keys()
    assert output["projects"] == {str(tmp_path / "project"): {"trust_level": "trusted"}}


def test_the_users_trust_setting_for_a_project_applies_at_all(launch: LaunchWith, tmp_path: Path) -> None:
    for folder in (tmp_path / "project", tmp_path):
        settings = f'[projects."{folder}"]\ntrust_level = "untrusted"\n'
        assert "projects" not in settings_of(launch(settings, OwnTools.ALL))


@pytest.mark.parametrize("own", BELOW_ALL)
def test_neither_the_folder_nor_one_above_it_is_trusted_below_all(
    launch: LaunchWith, own: OwnTools, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "project")
    output = settings_of(launch(own=own, workdir=link))["projects"]
    assert output.keys() == {str(folder) for folder in (tmp_path / "project", *(tmp_path / "project").parents)}
    assert all(project == {"trust_level": "untrusted"} for project in output.values())


def test_an_older_sandbox_is_switched_off_only_where_it_is_named(launch: LaunchWith) -> None:
    assert "use_legacy_landlock" not in settings_of(launch())["features"]
    assert "use_legacy_landlock" in settings_of(launch("[features]\nuse_legacy_landlock = true\n"))["features"]


def test_what_is_not_governed_is_listed(launch: LaunchWith, tmp_path: Path) -> None:
    assert launch(own=OwnTools.NONE).ungoverned == ()
    [everything] = launch(own=OwnTools.ALL).ungoverned
    assert "Codex's built-in tools" in everything
    assert launch(own=OwnTools.ALL).governed == ()
    (tmp_path / "managed.toml").touch()
    reads, linked, arguments, managed = launch(own=OwnTools.EDIT, extra=("-s", "danger-full-access")).ungoverned
    assert "can read all files that you can read" in reads
    assert "hard link" in linked
    assert "own arguments" in arguments
    assert str(tmp_path / "managed.toml") in managed


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(THREAD, True), ("--last", False), ("", False), (THREAD.upper(), False), (f"{THREAD}\n", False), ("name", False)],
)
def test_only_a_thread_id_is_a_session(text: str, *, is_one: bool) -> None:
    assert headless().is_session(text) is is_one
