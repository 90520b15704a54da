"""How Gemini CLI is launched: arguments, variables, a settings file with the user's and Toolcrib's entries, links."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts.launch_requests import BELOW_ALL, LABELS, NEW_SESSION, PROMPT, TOKEN, URL, launch_request
from toolcrib.coding_agents.client_spec import Launch, LaunchRequest
from toolcrib.coding_agents.known import gemini_policy
from toolcrib.coding_agents.known.gemini import GEMINI
from toolcrib.coding_agents.known.gemini_launch import launch
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-5")

OLD = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def request_(tmp_path: Path) -> LaunchRequest:
    (tmp_path / "home" / ".gemini").mkdir(parents=True)
    return launch_request(tmp_path, extra=("-m", "a-model"))


@pytest.fixture
def gemini(tmp_path: Path) -> Path:
    """The user's folder."""
    return tmp_path / "home" / ".gemini"


def settings(made: Launch) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads(made.files["settings.json"])
    return reported


@pytest.mark.req("KSI-2")
@pytest.mark.parametrize("own_tools", OwnTools)
def test_neither_prompt_nor_token_is_a_word_and_the_token_is_in_the_private_file(
    request_: LaunchRequest, own_tools: OwnTools
) -> None:
    made = launch(replace(request_, own_tools=own_tools))
    assert made.stdin == PROMPT
    assert not [word for word in made.args if TOKEN in word or "help" in word]
    assert TOKEN not in "".join(made.environ.values())
    assert settings(made)["mcpServers"]["toolcrib"] == {
        "httpUrl": URL,
        "headers": {"Authorization": f"Bearer {TOKEN}", **LABELS},
        "trust": True,
        "timeout": 3_600_000,
    }


@pytest.mark.parametrize("own_tools", OwnTools)
def test_without_an_endpoint_there_is_no_entry(request_: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(request_, own_tools=own_tools, url=""))
    assert settings(made)["mcpServers"] == {}


def test_a_session_starts_with_a_given_id_or_continues(request_: LaunchRequest) -> None:
    assert launch(request_).args[-4:] == ("--session-id", NEW_SESSION, "-m", "a-model")
    assert launch(replace(request_, session=OLD)).args[-4:] == ("--resume", OLD, "-m", "a-model")


@pytest.mark.parametrize(
    ("own_tools", "mode"),
    [(OwnTools.NONE, "default"), (OwnTools.READ, "default"), (OwnTools.EDIT, "auto_edit"), (OwnTools.ALL, "yolo")],
)
def test_the_level_is_an_approval_mode(request_: LaunchRequest, own_tools: OwnTools, mode: str) -> None:
    words = launch(replace(request_, own_tools=own_tools)).args
    assert words[words.index("--approval-mode") + 1] == mode


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_below_all_the_rules_allow_our_server_and_the_levels_tools_and_deny_the_rest(
    request_: LaunchRequest, own_tools: OwnTools
) -> None:
    made = launch(replace(request_, own_tools=own_tools))
    ours, *_, own, rest = tomllib.loads(made.files["own-tools.toml"])["rule"]
    assert (ours["mcpName"], ours["decision"]) == ("toolcrib", "allow")
    assert own["toolName"] == settings(made)["tools"]["core"]
    assert ("write_file" in own["toolName"]) == (own_tools is OwnTools.EDIT)
    assert (rest["toolName"], rest["decision"]) == ("*", "deny")
    assert ours["priority"] > own["priority"] > rest["priority"]
    assert str(request_.folder / "own-tools.toml") in made.args


@pytest.mark.parametrize(
    ("path", "denied"),
    [
        *((f"{before}.toolcrib{after}", True) for before in ("", "./", "/p/", "a/../", "@") for after in ("", "/x")),
        *(
            (path, True)
            for path in (
                ".gemini/settings.json",
                "a/.GEMINI/x",
                ".Toolcrib/x",
                ".toolcr%69b/x",
                "%2Etoolcrib/x",
                ".tool\0crib",
                'a"',
                "a\\b",
            )
        ),
        *(
            (path, False)
            for path in ("GEMINI.md", "toolcrib/x", ".toolcrib.md", "xtoolcrib", "100%/x", "\N{EURO SIGN}")
        ),
    ],
)
def test_files_in_protected_folders_cannot_be_written(request_: LaunchRequest, path: str, *, denied: bool) -> None:
    assert may_write(request_, path) is not denied


@pytest.mark.parametrize(
    ("link", "to", "path", "denied"),
    [
        ("t", ".toolcrib", "t/x", True),
        ("t", ".toolcrib", "./a/../T/x", True),
        ("t", ".toolcrib", "@t", True),
        ("t", ".toolcrib", "target/x", False),
        ("t", ".toolcrib", "at/x", False),
        ("conf.json", ".toolcrib/not-there-yet.json", "conf.json", True),
        ("a/deep", "../.gemini", "a/deep/settings.json", True),
        ("it's \u00e4'\n[x]", ".toolcrib", "it's \u00e4'\n[x]/y", True),
        ("\u00c4.b", ".toolcrib", "A\u0308.B/y", True),
        ("\N{GRINNING FACE}", ".toolcrib", "x/y", False),
        ("l" * 255, ".toolcrib", "L" * 255, True),
        ("plain", "a", "plain/x", False),
        (".gemini", "conf", "conf/settings.json", True),
        ("hard.yml", "=.toolcrib/workspace.yml", "hard.yml", True),
        ("node_modules/t", "../.toolcrib", "node_modules/t/x", True),
        (".git/t", "../.toolcrib", ".git/t/x", True),
    ],
)
def test_through_a_link_that_a_project_comes_with_it_does_not_write_there_either(
    request_: LaunchRequest, link: str, to: str, path: str, *, denied: bool
) -> None:
    ours = request_.workdir / ".toolcrib"
    ours.mkdir()
    (ours / "workspace.yml").write_text("{}")
    place = request_.workdir / link
    place.parent.mkdir(exist_ok=True)
    if to.startswith("="):
        place.hardlink_to(request_.workdir / to[1:])
    else:
        place.symlink_to(to)
    assert may_write(request_, path) is not denied
    assert may_write(request_, "elsewhere/x")


def may_write(request_: LaunchRequest, path: str) -> bool:
    """Whether no rule denies it, of those that Gemini CLI would take."""
    _, *rules, own, _ = tomllib.loads(launch(replace(request_, own_tools=OwnTools.EDIT)).files["own-tools.toml"])[
        "rule"
    ]
    arguments = {"content": '"file_path":".toolcrib/x"', "file_path": path}
    as_it_writes_them = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    for rule in rules:
        assert (rule["toolName"], rule["decision"]) == (["replace", "write_file"], "deny")
        assert rule["priority"] > own["priority"]
        assert len(rule["argsPattern"]) <= 2048, "a longer one is passed over"
    return not any(re.search(rule["argsPattern"], as_it_writes_them) for rule in rules)


def test_links_created_later_or_not_checked_are_listed_as_not_governed(
    request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = replace(request_, own_tools=OwnTools.EDIT)
    assert [line for line in launch(edits).ungoverned if "created during the run" in line]
    assert not [line for line in launch(edits).ungoverned if "too many files" in line]
    monkeypatch.setattr(gemini_policy, "MAX_ENTRIES", 1)
    for name in ("one", "two"):
        (request_.workdir / name).touch()
    assert [line for line in launch(edits).ungoverned if "too many files" in line]
    assert not [line for line in launch(request_).ungoverned if "link" in line]


def test_the_users_settings_apply_except_those_that_run_commands(request_: LaunchRequest, gemini: Path) -> None:
    theirs = {
        "security": {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": False}},
        "model": {"name": "gemini-pro"},
        "ui": {"theme": "GitHub"},
        "tools": {"useRipgrep": False, "discoveryCommand": "x", "callCommand": "x", "allowed": ["*"], "sandbox": "lxc"},
        "hooks": {"SessionStart": [{"hooks": []}]},
        "mcpServers": {"mine": {"command": "x"}},
        "mcp": {"serverCommand": "x"},
    }
    comment = "// mine\n/* { */"
    (gemini / "settings.json").write_text(f"{comment}{json.dumps({**theirs, 'url': 'https://a//b'})}")
    made = settings(launch(request_))
    assert made["security"] == {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": True}}
    assert (made["model"], made["ui"], made["url"]) == (theirs["model"], theirs["ui"], "https://a//b")
    assert made["tools"] == {"useRipgrep": False, "sandbox": False, "core": made["tools"]["core"]}
    assert (made["hooks"], made["hooksConfig"]) == ({}, {"enabled": False})
    assert list(made["mcpServers"]) == ["toolcrib"]
    assert made["mcp"] == {"allowed": ["toolcrib"]}


def test_with_all_tools_the_users_servers_stay(request_: LaunchRequest, gemini: Path) -> None:
    theirs = {
        "mcpServers": {"mine": {"command": "x"}, "toolcrib": {"command": "the bridge"}},
        "mcp": {"allowed": ["mine"]},
        "hooks": {"SessionStart": []},
    }
    (gemini / "settings.json").write_text(json.dumps(theirs))
    made = launch(replace(request_, own_tools=OwnTools.ALL))
    reported = settings(made)
    assert reported["mcpServers"]["mine"] == {"command": "x"}
    assert reported["mcpServers"]["toolcrib"]["httpUrl"] == request_.url
    assert reported["mcp"] == {"allowed": ["mine", "toolcrib"]}
    assert reported["hooks"] == theirs["hooks"]
    assert list(made.files) == ["settings.json"]
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in made.environ


def test_unreadable_settings_are_an_error_with_a_remedy(request_: LaunchRequest, gemini: Path) -> None:
    (gemini / "settings.json").write_text("{,}")
    with pytest.raises(ConfigError, match=r"settings\.json cannot be read") as caught:
        launch(request_)
    assert caught.value.remedy


def test_its_home_is_the_private_folder_with_links_to_the_users_login(request_: LaunchRequest, gemini: Path) -> None:
    for name in ("oauth_creds.json", "GEMINI.md", "projects.json", "settings.json", "trustedFolders.json"):
        (gemini / name).write_text("{}")
    (gemini / "extensions").mkdir()
    (gemini / "dangling").symlink_to("nowhere")
    made = launch(request_)
    assert made.environ["GEMINI_CLI_HOME"] == str(request_.folder)
    always = {
        ".gemini": request_.folder,
        **{n: gemini / n for n in ("tmp", "history", "oauth_creds.json", "GEMINI.md")},
    }
    assert made.links == always
    more = {name: gemini / name for name in ("extensions", "trustedFolders.json")}
    assert launch(replace(request_, own_tools=OwnTools.ALL)).links == {**always, **more}


def test_a_home_that_the_person_moved_is_theirs(request_: LaunchRequest, tmp_path: Path) -> None:
    moved = {**request_.environ, "GEMINI_CLI_HOME": str(tmp_path / "moved")}
    assert launch(replace(request_, environ=moved)).links["tmp"] == tmp_path / "moved" / ".gemini" / "tmp"


@pytest.mark.parametrize("place", [".gemini/.env", ".env", "../.gemini/.env"])
@pytest.mark.parametrize(
    "line",
    ["GOOGLE_GEMINI_BASE_URL=x", "export GOOGLE_GEMINI_BASE_URL = 'x'", "\tGOOGLE_GEMINI_BASE_URL: `x`", "a.b=1"],
)
def test_what_a_projects_env_files_name_is_emptied_below_all(request_: LaunchRequest, place: str, line: str) -> None:
    file = request_.workdir / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"# first\n{line}\n")
    name = "a.b" if "a.b" in line else "GOOGLE_GEMINI_BASE_URL"
    assert launch(request_).environ[name] == ""
    assert name not in launch(replace(request_, own_tools=OwnTools.ALL)).environ
    # What the person has set counts already.
    assert name not in launch(replace(request_, environ={**request_.environ, name: "theirs"})).environ


def test_the_users_env_file_overrides_emptied_variables(request_: LaunchRequest, gemini: Path) -> None:
    (gemini / ".env").write_text(
        'export GEMINI_API_KEY="a#key" # mine\nEMPTY=\nPLAIN= b c # no\nTWO=\'x\ny\'\nNL="a\\nb"\n'
    )
    (request_.workdir / ".env").write_text("GEMINI_API_KEY=other\nGOOGLE_API_KEY=other\n")
    environ = launch(request_).environ
    wanted = {"GEMINI_API_KEY": "a#key", "EMPTY": "", "PLAIN": "b c", "TWO": "x\ny", "NL": "a\nb", "GOOGLE_API_KEY": ""}
    assert {name: environ.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    "name", [".gemini/.env", ".gemini/settings.json", ".geminiignore", ".gitignore", "GEMINI.md", "../GEMINI.md"]
)
def test_a_pipe_where_it_reads_first_is_refused_below_all_for_it_would_wait_without_end(
    request_: LaunchRequest, name: str, tmp_path: Path
) -> None:
    place = request_.workdir / name
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "pipe")
    place.symlink_to(tmp_path / "pipe")
    with pytest.raises(UsageError, match=re.escape(f"{place.name} is not a regular file")):
        launch(request_)
    launch(replace(request_, own_tools=OwnTools.ALL))


def test_a_pipe_is_refused_under_the_name_that_the_person_has_given_its_instructions(
    request_: LaunchRequest, gemini: Path
) -> None:
    launch(request_)
    (gemini / "settings.json").write_text(json.dumps({"context": {"fileName": ["AGENTS.md"]}}))
    os.mkfifo(request_.workdir / "AGENTS.md")
    with pytest.raises(UsageError, match=r"AGENTS\.md is not a regular file"):
        launch(request_)


def test_folders_of_such_names_and_pipes_at_home_are_no_hindrance(request_: LaunchRequest, gemini: Path) -> None:
    (request_.workdir / ".env").mkdir()
    (request_.workdir / "GEMINI.md").mkdir()
    os.mkfifo(gemini / ".env")
    launch(replace(request_, workdir=gemini.parent))
    launch(request_)


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_instructions_that_lead_elsewhere_are_refused_below_all(
    request_: LaunchRequest, tmp_path: Path, own_tools: OwnTools
) -> None:
    request_ = replace(request_, own_tools=own_tools)
    (request_.workdir / "AGENTS.md").write_text("Be kind.")
    (request_.workdir / "GEMINI.md").symlink_to("AGENTS.md")
    launch(request_)
    (tmp_path / "other.md").write_text("secret")
    (request_.workdir / ".env").write_text("secret")
    for place in (tmp_path / "other.md", Path(".env")):
        (request_.workdir / "GEMINI.md").unlink()
        (request_.workdir / "GEMINI.md").symlink_to(place)
        with pytest.raises(UsageError, match=r"GEMINI\.md is a link out of the project"):
            launch(request_)
    launch(replace(request_, own_tools=OwnTools.ALL))


@pytest.mark.parametrize("text", ["@.env", "see\t@./.env", "a\n@.env\n", "`x` @more.md"])
def test_instructions_that_import_existing_files_are_refused_without_read_access(
    request_: LaunchRequest, text: str
) -> None:
    for name, words in ((".env", "secret"), ("more.md", "more"), ("GEMINI.md", text)):
        (request_.workdir / name).write_text(words)
    launch(request_)
    with pytest.raises(UsageError, match=r"GEMINI\.md imports .*(\.env|more\.md), and"):
        launch(replace(request_, own_tools=OwnTools.NONE))
    (request_.workdir / "GEMINI.md").write_text("Ask me@.env, use @dataclass and @" + "x" * 5000)
    launch(replace(request_, own_tools=OwnTools.NONE))


@pytest.mark.parametrize("own_tools", OwnTools)
def test_a_prompt_names_no_file_and_below_all_no_command(request_: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(request_, own_tools=own_tools, prompt="/x @.env \\@a @@b me@c.org"))
    blank = "" if own_tools is OwnTools.ALL else " "
    text = "/x \\@.env \\@a \\@\\@b me\\@c.org\n\n(In this message, \\@ stands for an at sign.)"
    assert made.stdin == blank + text
    assert launch(request_).stdin == PROMPT


def test_an_env_file_that_is_too_large_to_be_read_is_refused(request_: LaunchRequest) -> None:
    (request_.workdir / ".env").write_text("A=" + "x" * 1024 * 1024)
    with pytest.raises(ConfigError, match="too large"):
        launch(request_)


def test_a_project_with_an_entry_of_our_name_does_not_count_even_with_all_tools(request_: LaunchRequest) -> None:
    file = request_.workdir / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"toolcrib": {"command": "x"}}}))
    made = launch(replace(request_, own_tools=OwnTools.ALL))
    assert made.environ["GEMINI_CLI_TRUST_WORKSPACE"] == "false"
    assert "are ignored" in made.governed[0]


@pytest.mark.parametrize("text", ["[" * 100_000, "/*" * 100_000, "{,}"])
def test_a_project_file_that_makes_no_sense_changes_nothing(request_: LaunchRequest, text: str) -> None:
    file = request_.workdir / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(text)
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in launch(replace(request_, own_tools=OwnTools.ALL)).environ


@pytest.mark.parametrize("own_tools", OwnTools)
def test_what_is_governed_and_what_is_not_is_listed(request_: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(request_, own_tools=own_tools))
    output = made.ungoverned if own_tools is OwnTools.ALL else made.governed
    assert output[0].startswith("Its own tools:")
    assert made.ungoverned


@pytest.mark.parametrize("own_tools", [OwnTools.NONE, OwnTools.EDIT, OwnTools.ALL])
def test_its_own_refusals_are_listed_as_governed(request_: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(request_, own_tools=own_tools))
    assert [line for line in made.governed if "it refuses to change build files" in line]
    assert not [line for line in made.ungoverned if "refuses" in line]


def test_own_arguments_are_listed_as_not_governed(request_: LaunchRequest) -> None:
    line = "Your own arguments for Gemini CLI may permit more."
    assert line in launch(request_).ungoverned
    assert line not in launch(replace(request_, extra=())).ungoverned


@pytest.mark.parametrize(("text", "wanted"), [(NEW_SESSION, True), ("latest", False), ("5", False), ("--yolo", False)])
def test_only_a_number_of_its_own_kind_is_a_session(text: str, wanted: bool) -> None:
    assert GEMINI.headless is not None
    assert GEMINI.headless.is_session(text) is wanted
