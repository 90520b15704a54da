"""How Claude Code is launched: arguments, files and variables for each level."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from parts.launch_requests import BELOW_ALL, LABELS, NEW_SESSION, PROMPT, TOKEN, URL, launch_request
from toolcrib.coding_agents.client_spec import Launch
from toolcrib.coding_agents.known.claude import CLAUDE
from toolcrib.coding_agents.known.claude_launch import is_session, launch
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-4")


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def value(made: Launch, flag: str) -> str:
    (found,) = [arg.removeprefix(f"{flag}=") for arg in made.args if arg.startswith(f"{flag}=")]
    return found


def settings_of(made: Launch) -> Any:
    """The settings that replace the user's file."""
    return json.loads(made.files[Path(value(made, "--settings")).name])


@pytest.mark.req("KSI-2")
@pytest.mark.parametrize("own_tools", list(OwnTools))
def test_prompt_and_token_are_not_arguments(tmp_path: Path, own_tools: OwnTools) -> None:
    made = launch(launch_request(tmp_path, own_tools))
    assert not any(TOKEN in arg or PROMPT in arg for arg in made.args)
    assert not any(TOKEN in value for value in made.environ.values())
    assert made.stdin == PROMPT
    file = Path(value(made, "--mcp-config"))
    assert file.parent == tmp_path / "private"
    headers = {"Authorization": f"Bearer {TOKEN}", **LABELS}
    entry = {"type": "http", "url": URL, "headers": headers, "timeout": 3_600_000}
    assert json.loads(made.files[file.name])["mcpServers"] == {"toolcrib": entry}
    without = launch(launch_request(tmp_path, own_tools, url="", token="", headers={}))
    assert not any(arg.startswith("--mcp-config") for arg in without.args)
    for one in (made, without):
        assert ("--strict-mcp-config" in one.args) is (own_tools is not OwnTools.ALL), "excludes other servers"


def test_a_level_is_a_list_of_tools(tmp_path: Path) -> None:
    tools = {level: set(value(launch(launch_request(tmp_path, level)), "--tools").split(",")) for level in BELOW_ALL}
    servers = {"ToolSearch", "ListMcpResourcesTool", "ReadMcpResourceTool"}
    assert tools[OwnTools.NONE] == servers
    assert tools[OwnTools.READ] == servers | {"Read", "Glob", "Grep"}
    assert tools[OwnTools.EDIT] == tools[OwnTools.READ] | {"Edit", "Write", "NotebookEdit"}


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_below_all_it_is_restricted_and_cannot_change_toolcribs_files(tmp_path: Path, own_tools: OwnTools) -> None:
    made = launch(launch_request(tmp_path, own_tools))
    assert "--restricted" in made.args
    assert value(made, "--allowedTools") == "mcp__toolcrib"
    assert value(made, "--disallowedTools") == "Edit(.toolcrib/**),Edit(HEAD),Read(.toolcrib/runs/**)"
    assert value(made, "--permission-prompts") == "none"
    assert value(made, "--permission-mode") == ("acceptEdits" if own_tools is OwnTools.EDIT else "dontAsk")
    assert made.governed
    assert made.ungoverned


def test_own_arguments_are_listed_as_not_governed(tmp_path: Path) -> None:
    line = "Your own arguments for Claude Code may permit more."
    assert line not in launch(launch_request(tmp_path, OwnTools.READ)).ungoverned
    assert line in launch(launch_request(tmp_path, OwnTools.READ, extra=("--add-dir", "/"))).ungoverned


def test_at_all_everything_is_allowed_and_for_root_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mode(user: int, **environ: str) -> tuple[str, bool]:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        made = launch(launch_request(tmp_path, OwnTools.ALL, environ={"HOME": str(tmp_path), **environ}))
        assert not any(arg.startswith(("--restricted", "--tools", "--settings")) for arg in made.args)
        assert made.ungoverned
        return value(made, "--permission-mode"), "Bash" in value(made, "--allowedTools").split(",")

    assert mode(1000) == ("bypassPermissions", False)
    assert mode(0) == ("acceptEdits", True)
    assert mode(0, IS_SANDBOX="1") == ("bypassPermissions", False)


def test_only_login_model_and_refusals_of_the_users_settings_apply(tmp_path: Path) -> None:
    kept = {"model": "opus", "env": {"ANTHROPIC_BASE_URL": "http://x"}, "apiKeyHelper": "key", "cleanupPeriodDays": 99}
    dropped = {"hooks": {"SessionStart": []}, "enabledPlugins": {"a@b": True}, "enableAllProjectMcpServers": True}
    dropped |= {"statusLine": {"type": "command", "command": "x"}, "a setting of next year": "x"}
    rules = {"allow": ["Bash(*)"], "deny": ["Read(./.env)"], "ask": ["Edit"], "additionalDirectories": ["/"]}
    put(tmp_path / "home/.claude/settings.json", json.dumps({**kept, **dropped, "permissions": rules}))
    made = launch(launch_request(tmp_path, OwnTools.EDIT))
    assert settings_of(made) == {**kept, "permissions": {"deny": ["Read(./.env)"], "ask": ["Edit"]}}
    assert any("apiKeyHelper" in line for line in made.ungoverned)


def test_the_users_folder_can_be_moved_by_a_variable(tmp_path: Path) -> None:
    put(tmp_path / "moved/settings.json", "\ufeff" + json.dumps({"model": "haiku"}))
    put(tmp_path / "moved/CLAUDE.md", "Be brief.")
    moved = {"HOME": str(tmp_path / "home"), "CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    made = launch(launch_request(tmp_path, OwnTools.READ, environ=moved))
    assert settings_of(made) == {"model": "haiku"}
    assert made.files[Path(value(made, "--append-system-prompt-file")).name] == "Be brief."


@pytest.mark.parametrize("text", ["{", "// none\n{}"])
def test_invalid_settings_are_an_error_unless_claude_reads_them(tmp_path: Path, text: str) -> None:
    put(tmp_path / "home/.claude/settings.json", text)
    with pytest.raises(ConfigError, match=r"settings\.json is not JSON"):
        launch(launch_request(tmp_path, OwnTools.READ))
    assert launch(launch_request(tmp_path, OwnTools.ALL)).args


@pytest.mark.parametrize("text", ["null", "[]", '{"permissions": 5, "model": null}'])
def test_settings_of_an_unexpected_type_are_ignored(tmp_path: Path, text: str) -> None:
    put(tmp_path / "home/.claude/settings.json", text)
    assert "permissions" not in settings_of(launch(launch_request(tmp_path, OwnTools.READ)))


@pytest.mark.parametrize("own_tools", list(OwnTools))
def test_a_session_starts_or_continues_and_own_arguments_come_last(tmp_path: Path, own_tools: OwnTools) -> None:
    extra = ("--model", "haiku")
    started = launch(launch_request(tmp_path, own_tools, extra=extra)).args
    assert started[started.index("--session-id") + 1] == NEW_SESSION
    assert started[-2:] == extra
    later = launch(launch_request(tmp_path, own_tools, session="11111111-2222-3333-4444-555555555555")).args
    assert later[later.index("--resume") + 1] == "11111111-2222-3333-4444-555555555555"
    assert "--session-id" not in later
    # A flag that takes several values would swallow the user's.
    assert all("=" in arg for arg in started if arg.startswith(("--tools", "--allowed", "--disallowed", "--add-dir")))


def test_a_session_is_a_uuid() -> None:
    assert is_session(str(uuid.uuid4()))
    assert not any(map(is_session, ("", "--help", "last", f"{uuid.uuid4()}\n", uuid.uuid4().hex)))


def test_the_spec_names_program_and_install_command() -> None:
    headless = CLAUDE.headless
    assert headless is not None
    assert (headless.program, headless.call_mark) == ("claude", "claudecode/toolUseId")
    assert headless.install == "npm install -g @anthropic-ai/claude-code"
