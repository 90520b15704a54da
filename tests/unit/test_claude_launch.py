"""How Claude Code is started: words, files and variables for each level, and what the person is told of them."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from toolcrib.coding_agents.client_spec import Launch, LaunchRequest
from toolcrib.coding_agents.known.claude import CLAUDE
from toolcrib.coding_agents.known.claude_launch import is_session, launch
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

TOKEN = "tc-a-secret-token"
PROMPT = "--resume is a word of the prompt"
BELOW_ALL = [level for level in OwnTools if level is not OwnTools.ALL]


def order(tmp_path: Path, own_tools: OwnTools, **more: Any) -> LaunchRequest:
    given: dict[str, Any] = {
        "prompt": PROMPT,
        "new_session": "0b5f3a2e-4f6d-4c3b-9a51-7f1f6d1c2b3a",
        "own_tools": own_tools,
        "url": "http://127.0.0.1:7000/mcp",
        "token": TOKEN,
        "headers": {"X-Toolcrib-Agent": "claude-1", "X-Toolcrib-Conversation": "c1"},
        "folder": tmp_path / "private",
        "workdir": tmp_path / "project",
        "environ": {"HOME": str(tmp_path / "home")},
    }
    return LaunchRequest(**{**given, **more})


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def value(made: Launch, flag: str) -> str:
    (found,) = [word.removeprefix(f"{flag}=") for word in made.words if word.startswith(f"{flag}=")]
    return found


def kept(made: Launch) -> Any:
    """The settings that it is given instead of the person's file."""
    return json.loads(made.files[Path(value(made, "--settings")).name])


@pytest.mark.req("FRG-4", "KSI-2")
@pytest.mark.parametrize("own_tools", list(OwnTools))
def test_token_and_prompt_are_no_words_of_the_command_line(tmp_path: Path, own_tools: OwnTools) -> None:
    made = launch(order(tmp_path, own_tools))
    assert not any(TOKEN in word or PROMPT in word for word in made.words)
    assert not any(TOKEN in value for value in made.environ.values())
    assert made.stdin == PROMPT
    file = Path(value(made, "--mcp-config"))
    assert file.parent == tmp_path / "private"
    entry = json.loads(made.files[file.name])["mcpServers"]
    labels = {"X-Toolcrib-Agent": "claude-1", "X-Toolcrib-Conversation": "c1"}
    assert entry == {
        "toolcrib": {
            "type": "http",
            "url": "http://127.0.0.1:7000/mcp",
            "headers": {"Authorization": f"Bearer {TOKEN}", **labels},
            "timeout": 3_600_000,
        }
    }


@pytest.mark.req("FRG-4")
@pytest.mark.parametrize("own_tools", list(OwnTools))
def test_other_servers_stay_out_below_all_with_or_without_toolcrib(tmp_path: Path, own_tools: OwnTools) -> None:
    without = launch(order(tmp_path, own_tools, url="", token="", headers={}))
    assert not any(word.startswith("--mcp-config") for word in without.words)
    for made in (without, launch(order(tmp_path, own_tools))):
        assert ("--strict-mcp-config" in made.words) is (own_tools is not OwnTools.ALL)


@pytest.mark.req("FRG-4")
def test_a_level_is_a_list_of_tools(tmp_path: Path) -> None:
    tools = {level: set(value(launch(order(tmp_path, level)), "--tools").split(",")) for level in BELOW_ALL}
    servers = {"ToolSearch", "ListMcpResourcesTool", "ReadMcpResourceTool"}
    assert tools[OwnTools.NONE] == servers
    assert tools[OwnTools.READ] == servers | {"Read", "Glob", "Grep"}
    assert tools[OwnTools.EDIT] == tools[OwnTools.READ] | {"Edit", "Write", "NotebookEdit"}


@pytest.mark.req("FRG-4")
@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_below_all_it_is_restricted_and_may_not_settle_what_the_workspace_may_do(
    tmp_path: Path, own_tools: OwnTools
) -> None:
    made = launch(order(tmp_path, own_tools))
    assert "--restricted" in made.words
    assert value(made, "--allowedTools") == "mcp__toolcrib"
    assert value(made, "--disallowedTools") == "Edit(.toolcrib/**),Edit(HEAD),Read(.toolcrib/runs/**)"
    assert value(made, "--permission-prompts") == "none"
    assert value(made, "--permission-mode") == ("acceptEdits" if own_tools is OwnTools.EDIT else "dontAsk")
    assert made.governed
    assert made.ungoverned


@pytest.mark.req("FRG-4")
def test_a_person_who_adds_words_of_their_own_is_told_that_these_are_not_governed(tmp_path: Path) -> None:
    line = "What your own words for Claude Code permit."
    assert line not in launch(order(tmp_path, OwnTools.READ)).ungoverned
    assert line in launch(order(tmp_path, OwnTools.READ, extra=("--add-dir", "/"))).ungoverned


@pytest.mark.req("FRG-4")
def test_with_all_it_may_do_everything_and_root_answers_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mode(user: int, **environ: str) -> tuple[str, bool]:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        made = launch(order(tmp_path, OwnTools.ALL, environ={"HOME": str(tmp_path), **environ}))
        assert not any(word.startswith(("--restricted", "--tools", "--settings")) for word in made.words)
        assert made.ungoverned
        return value(made, "--permission-mode"), "Bash" in value(made, "--allowedTools").split(",")

    assert mode(1000) == ("bypassPermissions", False)
    assert mode(0) == ("acceptEdits", True)
    assert mode(0, IS_SANDBOX="1") == ("bypassPermissions", False)


@pytest.mark.req("FRG-4")
def test_of_the_persons_settings_login_model_and_refusals_are_kept_and_what_runs_or_allows_is_not(
    tmp_path: Path,
) -> None:
    stays = {"model": "opus", "env": {"ANTHROPIC_BASE_URL": "http://x"}, "apiKeyHelper": "key", "cleanupPeriodDays": 99}
    goes = {
        "hooks": {"SessionStart": []},
        "enabledPlugins": {"a@b": True},
        "statusLine": {"type": "command", "command": "x"},
        "enableAllProjectMcpServers": True,
        "a setting of next year": "x",
    }
    rules = {"allow": ["Bash(*)"], "deny": ["Read(./.env)"], "ask": ["Edit"], "additionalDirectories": ["/"]}
    put(tmp_path / "home/.claude/settings.json", json.dumps({**stays, **goes, "permissions": rules}))
    made = launch(order(tmp_path, OwnTools.EDIT))
    assert kept(made) == {**stays, "permissions": {"deny": ["Read(./.env)"], "ask": ["Edit"]}}
    assert any("apiKeyHelper" in line for line in made.ungoverned)


@pytest.mark.req("FRG-4")
def test_the_persons_files_are_looked_for_where_their_environment_says(tmp_path: Path) -> None:
    put(tmp_path / "moved/settings.json", "\ufeff" + json.dumps({"model": "haiku"}))
    put(tmp_path / "moved/CLAUDE.md", "Be brief.")
    moved = {"HOME": str(tmp_path / "home"), "CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    made = launch(order(tmp_path, OwnTools.READ, environ=moved))
    assert kept(made) == {"model": "haiku"}
    assert made.files[Path(value(made, "--append-system-prompt-file")).name] == "Be brief."


@pytest.mark.parametrize("text", ["{", "// none\n{}"])
def test_settings_that_claude_code_would_pass_over_are_told(tmp_path: Path, text: str) -> None:
    put(tmp_path / "home/.claude/settings.json", text)
    with pytest.raises(ConfigError, match=r"settings\.json is not JSON"):
        launch(order(tmp_path, OwnTools.READ))
    assert launch(order(tmp_path, OwnTools.ALL)).words, "it reads them itself there"


@pytest.mark.parametrize("text", ["null", "[]", '{"permissions": 5, "model": null}'])
def test_settings_of_an_odd_shape_do_no_harm(tmp_path: Path, text: str) -> None:
    put(tmp_path / "home/.claude/settings.json", text)
    assert "permissions" not in kept(launch(order(tmp_path, OwnTools.READ)))


@pytest.mark.req("FRG-4")
@pytest.mark.parametrize("own_tools", list(OwnTools))
def test_a_session_is_begun_under_our_id_or_gone_on_in_and_the_persons_words_come_last(
    tmp_path: Path, own_tools: OwnTools
) -> None:
    extra = ("--model", "haiku")
    begun = launch(order(tmp_path, own_tools, extra=extra)).words
    assert begun[begun.index("--session-id") + 1] == "0b5f3a2e-4f6d-4c3b-9a51-7f1f6d1c2b3a"
    assert begun[-2:] == extra
    later = launch(order(tmp_path, own_tools, session="11111111-2222-3333-4444-555555555555")).words
    assert later[later.index("--resume") + 1] == "11111111-2222-3333-4444-555555555555"
    assert "--session-id" not in later
    # A flag that takes several words would swallow the person's.
    assert all("=" in word for word in begun if word.startswith(("--tools", "--allowed", "--disallowed", "--add-dir")))


def test_a_session_is_a_uuid() -> None:
    assert is_session(str(uuid.uuid4()))
    assert not any(map(is_session, ("", "--help", "last", f"{uuid.uuid4()}\n", uuid.uuid4().hex)))


def test_the_entry_says_how_it_is_run() -> None:
    headless = CLAUDE.headless
    assert headless is not None
    assert (headless.program, headless.call_mark) == ("claude", "claudecode/toolUseId")
    assert headless.install == "npm install -g @anthropic-ai/claude-code"
