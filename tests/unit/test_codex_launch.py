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
NOTES = '[mcp_servers.notes]\ncommand = "notes"\n'
LaunchWith = Callable[..., Launch]
NONE, READ, EDIT, ALL = OwnTools

pytestmark = pytest.mark.req("FRG-3")


def headless() -> HeadlessSpec:
    assert CODEX.headless is not None
    return CODEX.headless


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchWith:
    """Launches with these settings of the user."""
    monkeypatch.setattr(codex_launch, "SYSTEM_FILE", tmp_path / "system.toml")
    monkeypatch.setattr(codex_launch, "MANAGED_FILE", tmp_path / "managed.toml")
    (tmp_path / "home" / ".codex").mkdir(parents=True)
    (tmp_path / "project").mkdir()

    def make(settings: str = "", own: OwnTools = READ, **given: Any) -> Launch:
        (tmp_path / "home" / ".codex" / "config.toml").write_text(settings)
        return headless().launch(launch_request(tmp_path, own, **given))

    return make


def settings_of(launched: Launch) -> dict[str, Any]:
    """The `-c` arguments, merged as Codex does it: a dotted key is split at its dots."""
    merged: dict[str, Any] = {}
    for before, word in zip(launched.args, launched.args[1:], strict=False):
        if before == "-c":
            key, _, value = word.partition("=")
            *steps, last = key.split(".")
            table = merged
            for step in steps:
                table = table.setdefault(step, {})
            table[last] = tomllib.loads(f"x = {value}")["x"]
    return merged


def test_prompt_and_token_are_not_arguments(launch: LaunchWith) -> None:
    launched = launch()
    assert launched.args[:3] == ("exec", "--json", "--skip-git-repo-check")
    assert launched.args[-2:] == ("--", "-")
    assert launched.stdin == PROMPT
    assert launched.environ == {TOKEN_VARIABLE: TOKEN}
    assert not any(TOKEN in word for word in launched.args)


def test_a_session_continues_with_the_same_arguments(launch: LaunchWith) -> None:
    new, again = launch(extra=("-m", "gpt-6.1-sol")), launch(extra=("-m", "gpt-6.1-sol"), session=THREAD)
    assert again.args == ("exec", "resume", *new.args[1:-1], THREAD, "-")
    assert new.args[-4:-2] == ("-m", "gpt-6.1-sol")
    texts = (THREAD, "--last", "", THREAD.upper(), f"{THREAD}\n", "name")
    assert [text for text in texts if headless().is_session(text)] == [THREAD]


@pytest.mark.req("FRG-10")
def test_toolcribs_server_is_required_and_its_tools_need_no_approval(launch: LaunchWith) -> None:
    [(name, entry)] = settings_of(launch())["mcp_servers"].items()
    expected = {"url": URL, "bearer_token_env_var": TOKEN_VARIABLE, "http_headers": LABELS, "required": True}
    assert (name, {**entry, **expected}) == (SERVER_NAME, entry)
    assert entry["default_tools_approval_mode"] == "approve"
    without = launch(url="")
    assert settings_of(without)["mcp_servers"] == without.environ == {}


@pytest.mark.parametrize("own", BELOW_ALL)
def test_other_servers_of_the_user_are_disabled_below_all(launch: LaunchWith, own: OwnTools, tmp_path: Path) -> None:
    (tmp_path / "system.toml").write_text('[mcp_servers.harness]\nurl = "http://harness"\n')
    servers = settings_of(launch('[mcp_servers."my.notes"]\ncommand = "notes"\n', own))["mcp_servers"]
    assert {name for name, entry in servers.items() if entry == {"enabled": False}} == {"my.notes", "harness"}
    assert settings_of(launch(NOTES, ALL))["mcp_servers"].keys() == {SERVER_NAME}


@pytest.mark.parametrize("own", OwnTools)
def test_the_entry_of_toolcrib_connect_is_replaced_by_the_runs(launch: LaunchWith, own: OwnTools) -> None:
    servers = settings_of(launch('[mcp_servers.toolcrib]\ncommand = "toolcrib"\n', own))["mcp_servers"]
    assert servers[SERVER_NAME] == {"enabled": False}
    assert servers[OTHER_NAME]["url"] == URL


def test_the_settings_folder_can_be_moved_by_a_variable(launch: LaunchWith, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "config.toml").write_text(NOTES)
    launched = launch(environ={"CODEX_HOME": str(tmp_path / "moved"), "HOME": "/nowhere"})
    assert settings_of(launched)["mcp_servers"]["notes"] == {"enabled": False}


def test_unreadable_settings_are_an_error(launch: LaunchWith) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read"):
        launch("mcp_servers = {")


@pytest.mark.parametrize("own", OwnTools)
def test_each_level_has_its_sandbox_and_never_asks(launch: LaunchWith, own: OwnTools, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    private = (tmp_path / "link", tmp_path / "state")
    made = settings_of(launch(own=own, private=() if own is EDIT else private))
    assert made["approval_policy"] == "never"
    if own is ALL:
        assert made["sandbox_mode"] == "danger-full-access"
        assert "default_permissions" not in made, "Codex would ignore one of them"
        return
    assert "sandbox_mode" not in made
    profile = made["permissions"][made["default_permissions"]]
    if own is EDIT:
        writable = {".": "write", ".toolcrib": "read", "HEAD": "read"}
        assert profile["filesystem"] == {":root": "read", ":workspace_roots": writable}
        assert profile["network"] == {"enabled": False}
    else:
        hidden = {str(tmp_path / name): "none" for name in ("link", "real", "state")}
        assert profile["filesystem"] == {":root": "read", **hidden}


@pytest.mark.parametrize("own", OwnTools)
def test_below_all_the_projects_instructions_precede_the_prompt(
    launch: LaunchWith, own: OwnTools, tmp_path: Path
) -> None:
    (tmp_path / "project" / "AGENTS.md").write_text("Use tabs.")
    stdin = launch(own=own).stdin
    assert stdin.endswith(PROMPT)
    assert ("Use tabs." in stdin) == (own is not ALL)
    assert launch(own=own, session=THREAD).stdin == PROMPT
    assert launch("project_doc_max_bytes = 0\n", own).stdin == PROMPT


@pytest.mark.parametrize("own", BELOW_ALL)
def test_below_all_risky_features_are_off_and_no_folder_is_trusted(
    launch: LaunchWith, own: OwnTools, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "project")
    launched = launch(own=own, workdir=tmp_path / "link")
    made = settings_of(launched)
    assert "--ignore-rules" in launched.args
    assert (made["web_search"], made["notify"], made["agents"]) == ("disabled", [], {"enabled": False})
    assert not any(made["features"].values())
    assert made["features"].keys() >= {"apps", "plugins", "hooks", "multi_agent_v2", "memories"}
    assert ("shell_tool" in made["features"]) == (own is NONE)
    folders = (tmp_path / "project", *(tmp_path / "project").parents)
    assert made["projects"] == {str(folder): {"trust_level": "untrusted"} for folder in folders}


def test_at_all_the_project_is_trusted_unless_the_user_decided_otherwise(launch: LaunchWith, tmp_path: Path) -> None:
    launched = launch(own=ALL)
    made = settings_of(launched)
    assert "--ignore-rules" not in launched.args
    assert not {"features", "web_search", "notify", "agents"} & made.keys()
    assert made["projects"] == {str(tmp_path / "project"): {"trust_level": "trusted"}}
    for folder in (tmp_path / "project", tmp_path):
        settings = f'[projects."{folder}"]\ntrust_level = "untrusted"\n'
        assert "projects" not in settings_of(launch(settings, ALL))


def test_the_legacy_sandbox_is_switched_off_only_if_it_is_configured(launch: LaunchWith) -> None:
    assert "use_legacy_landlock" not in settings_of(launch())["features"]
    assert "use_legacy_landlock" in settings_of(launch("[features]\nuse_legacy_landlock = true\n"))["features"]


def test_the_limits_of_the_launch_are_listed_as_not_governed(launch: LaunchWith, tmp_path: Path) -> None:
    assert launch(own=NONE).ungoverned == ()
    [everything] = launch(own=ALL).ungoverned
    assert "Codex's built-in tools" in everything
    assert launch(own=ALL).governed == ()
    (tmp_path / "managed.toml").touch()
    lines = launch(own=EDIT, extra=("-s", "danger-full-access")).ungoverned
    expected = ("can read all files that you can read", "hard link", "own arguments", str(tmp_path / "managed.toml"))
    assert [words in line for words, line in zip(expected, lines, strict=True)] == [True] * 4
