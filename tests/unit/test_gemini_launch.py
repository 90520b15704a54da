"""How Gemini CLI is started for a run: words, variables, a settings file made of the person's and ours, links."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolcrib.coding_agents.client_spec import Launch, LaunchRequest
from toolcrib.coding_agents.known import gemini_policy
from toolcrib.coding_agents.known.gemini import GEMINI
from toolcrib.coding_agents.known.gemini_launch import launch
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-5")

NEW = "11111111-2222-3333-4444-555555555555"
OLD = "99999999-2222-3333-4444-555555555555"
TOKEN = "tcb_secret"
BELOW_ALL = [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT]


@pytest.fixture
def order(tmp_path: Path) -> LaunchRequest:
    for name in ("home/.gemini", "project", "private"):
        (tmp_path / name).mkdir(parents=True)
    return LaunchRequest(
        prompt="--help me",
        new_session=NEW,
        own_tools=OwnTools.READ,
        url="http://127.0.0.1:5/mcp",
        token=TOKEN,
        headers={"X-Toolcrib-Agent": "gemini-1"},
        folder=tmp_path / "private",
        workdir=tmp_path / "project",
        environ={"HOME": str(tmp_path / "home")},
        extra=("-m", "a-model"),
    )


@pytest.fixture
def gemini(tmp_path: Path) -> Path:
    """What the person has."""
    return tmp_path / "home" / ".gemini"


def settings(made: Launch) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(made.files["settings.json"])
    return told


@pytest.mark.req("KSI-2")
@pytest.mark.parametrize("own_tools", OwnTools)
def test_neither_prompt_nor_token_is_a_word_and_the_token_is_in_the_private_file(
    order: LaunchRequest, own_tools: OwnTools
) -> None:
    made = launch(replace(order, own_tools=own_tools))
    assert made.stdin == "--help me"
    assert not [word for word in made.words if TOKEN in word or "help" in word]
    assert TOKEN not in "".join(made.environ.values())
    assert settings(made)["mcpServers"]["toolcrib"] == {
        "httpUrl": "http://127.0.0.1:5/mcp",
        "headers": {"Authorization": f"Bearer {TOKEN}", "X-Toolcrib-Agent": "gemini-1"},
        "trust": True,
        "timeout": 3_600_000,
    }


@pytest.mark.parametrize("own_tools", OwnTools)
def test_without_an_endpoint_there_is_no_entry(order: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(order, own_tools=own_tools, url=""))
    assert settings(made)["mcpServers"] == {}


def test_a_new_session_gets_its_number_and_an_old_one_is_gone_on_in(order: LaunchRequest) -> None:
    assert launch(order).words[-4:] == ("--session-id", NEW, "-m", "a-model")
    assert launch(replace(order, session=OLD)).words[-4:] == ("--resume", OLD, "-m", "a-model")


@pytest.mark.parametrize(
    ("own_tools", "mode"),
    [(OwnTools.NONE, "default"), (OwnTools.READ, "default"), (OwnTools.EDIT, "auto_edit"), (OwnTools.ALL, "yolo")],
)
def test_the_level_is_an_approval_mode(order: LaunchRequest, own_tools: OwnTools, mode: str) -> None:
    words = launch(replace(order, own_tools=own_tools)).words
    assert words[words.index("--approval-mode") + 1] == mode


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_below_all_the_rules_allow_our_server_and_the_levels_tools_and_deny_the_rest(
    order: LaunchRequest, own_tools: OwnTools
) -> None:
    made = launch(replace(order, own_tools=own_tools))
    ours, *_, own, rest = tomllib.loads(made.files["own-tools.toml"])["rule"]
    assert (ours["mcpName"], ours["decision"]) == ("toolcrib", "allow")
    assert own["toolName"] == settings(made)["tools"]["core"]
    assert ("write_file" in own["toolName"]) == (own_tools is OwnTools.EDIT)
    assert (rest["toolName"], rest["decision"]) == ("*", "deny")
    assert ours["priority"] > own["priority"] > rest["priority"]
    assert str(order.folder / "own-tools.toml") in made.words


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
def test_files_in_our_folder_and_its_own_are_not_for_its_hands(
    order: LaunchRequest, path: str, *, denied: bool
) -> None:
    assert may_write(order, path) is not denied


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
    order: LaunchRequest, link: str, to: str, path: str, *, denied: bool
) -> None:
    ours = order.workdir / ".toolcrib"
    ours.mkdir()
    (ours / "workspace.yml").write_text("{}")
    place = order.workdir / link
    place.parent.mkdir(exist_ok=True)
    if to.startswith("="):
        place.hardlink_to(order.workdir / to[1:])
    else:
        place.symlink_to(to)
    assert may_write(order, path) is not denied
    assert may_write(order, "elsewhere/x")


def may_write(order: LaunchRequest, path: str) -> bool:
    """Whether no rule denies it, of those that Gemini CLI would take."""
    _, *rules, own, _ = tomllib.loads(launch(replace(order, own_tools=OwnTools.EDIT)).files["own-tools.toml"])["rule"]
    arguments = {"content": '"file_path":".toolcrib/x"', "file_path": path}
    as_it_writes_them = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    for rule in rules:
        assert (rule["toolName"], rule["decision"]) == (["replace", "write_file"], "deny")
        assert rule["priority"] > own["priority"]
        assert len(rule["argsPattern"]) <= 2048, "a longer one is passed over"
    return not any(re.search(rule["argsPattern"], as_it_writes_them) for rule in rules)


def test_the_person_is_told_of_links_that_are_made_later_or_were_not_looked_for(
    order: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = replace(order, own_tools=OwnTools.EDIT)
    assert [line for line in launch(edits).ungoverned if "made during the run" in line]
    assert not [line for line in launch(edits).ungoverned if "too many files" in line]
    monkeypatch.setattr(gemini_policy, "MOST_ENTRIES", 1)
    for name in ("one", "two"):
        (order.workdir / name).touch()
    assert [line for line in launch(edits).ungoverned if "too many files" in line]
    assert not [line for line in launch(order).ungoverned if "link" in line]


def test_the_persons_settings_stay_but_for_what_runs_things_by_itself(order: LaunchRequest, gemini: Path) -> None:
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
    told = settings(launch(order))
    assert told["security"] == {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": True}}
    assert (told["model"], told["ui"], told["url"]) == (theirs["model"], theirs["ui"], "https://a//b")
    assert told["tools"] == {"useRipgrep": False, "sandbox": False, "core": told["tools"]["core"]}
    assert (told["hooks"], told["hooksConfig"]) == ({}, {"enabled": False})
    assert list(told["mcpServers"]) == ["toolcrib"]
    assert told["mcp"] == {"allowed": ["toolcrib"]}


def test_with_all_tools_the_persons_servers_stay_beside_ours(order: LaunchRequest, gemini: Path) -> None:
    theirs = {
        "mcpServers": {"mine": {"command": "x"}, "toolcrib": {"command": "the bridge"}},
        "mcp": {"allowed": ["mine"]},
        "hooks": {"SessionStart": []},
    }
    (gemini / "settings.json").write_text(json.dumps(theirs))
    made = launch(replace(order, own_tools=OwnTools.ALL))
    told = settings(made)
    assert told["mcpServers"]["mine"] == {"command": "x"}
    assert told["mcpServers"]["toolcrib"]["httpUrl"] == order.url
    assert told["mcp"] == {"allowed": ["mine", "toolcrib"]}
    assert told["hooks"] == theirs["hooks"]
    assert list(made.files) == ["settings.json"]
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in made.environ


def test_settings_that_cannot_be_read_are_told_with_a_remedy(order: LaunchRequest, gemini: Path) -> None:
    (gemini / "settings.json").write_text("{,}")
    with pytest.raises(ConfigError, match=r"settings\.json cannot be read") as caught:
        launch(order)
    assert caught.value.remedy


def test_its_home_for_the_run_is_the_private_folder_with_links_to_the_persons_login(
    order: LaunchRequest, gemini: Path
) -> None:
    for name in ("oauth_creds.json", "GEMINI.md", "projects.json", "settings.json", "trustedFolders.json"):
        (gemini / name).write_text("{}")
    (gemini / "extensions").mkdir()
    (gemini / "dangling").symlink_to("nowhere")
    made = launch(order)
    assert made.environ["GEMINI_CLI_HOME"] == str(order.folder)
    always = {".gemini": order.folder, **{n: gemini / n for n in ("tmp", "history", "oauth_creds.json", "GEMINI.md")}}
    assert made.links == always
    more = {name: gemini / name for name in ("extensions", "trustedFolders.json")}
    assert launch(replace(order, own_tools=OwnTools.ALL)).links == {**always, **more}


def test_a_home_that_the_person_moved_is_theirs(order: LaunchRequest, tmp_path: Path) -> None:
    moved = {**order.environ, "GEMINI_CLI_HOME": str(tmp_path / "moved")}
    assert launch(replace(order, environ=moved)).links["tmp"] == tmp_path / "moved" / ".gemini" / "tmp"


def _in_the_project(order: LaunchRequest) -> Path:
    return order.workdir / ".gemini" / ".env"


def _plain(order: LaunchRequest) -> Path:
    return order.workdir / ".env"


def _above(order: LaunchRequest) -> Path:
    return order.workdir.parent / ".gemini" / ".env"


@pytest.mark.parametrize("place", [_in_the_project, _plain, _above])
@pytest.mark.parametrize(
    "line",
    ["GOOGLE_GEMINI_BASE_URL=x", "export GOOGLE_GEMINI_BASE_URL = 'x'", "\tGOOGLE_GEMINI_BASE_URL: `x`", "a.b=1"],
)
def test_what_a_projects_env_files_name_is_emptied_below_all(
    order: LaunchRequest, place: Callable[[LaunchRequest], Path], line: str
) -> None:
    file = place(order)
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"# first\n{line}\n")
    name = "a.b" if "a.b" in line else "GOOGLE_GEMINI_BASE_URL"
    assert launch(order).environ[name] == ""
    assert name not in launch(replace(order, own_tools=OwnTools.ALL)).environ
    # What the person has set counts already.
    assert name not in launch(replace(order, environ={**order.environ, name: "theirs"})).environ


def test_what_the_persons_own_env_file_says_counts_before_what_a_project_empties(
    order: LaunchRequest, gemini: Path
) -> None:
    (gemini / ".env").write_text(
        'export GEMINI_API_KEY="a#key" # mine\nEMPTY=\nPLAIN= b c # no\nTWO=\'x\ny\'\nNL="a\\nb"\n'
    )
    (order.workdir / ".env").write_text("GEMINI_API_KEY=other\nGOOGLE_API_KEY=other\n")
    environ = launch(order).environ
    wanted = {"GEMINI_API_KEY": "a#key", "EMPTY": "", "PLAIN": "b c", "TWO": "x\ny", "NL": "a\nb", "GOOGLE_API_KEY": ""}
    assert {name: environ.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    "name", [".gemini/.env", ".gemini/settings.json", ".geminiignore", ".gitignore", "GEMINI.md", "../GEMINI.md"]
)
def test_a_pipe_where_it_reads_first_is_refused_below_all_for_it_would_wait_without_end(
    order: LaunchRequest, name: str, tmp_path: Path
) -> None:
    place = order.workdir / name
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "pipe")
    place.symlink_to(tmp_path / "pipe")
    with pytest.raises(UsageError, match=re.escape(f"{place.name} is no file")):
        launch(order)
    launch(replace(order, own_tools=OwnTools.ALL))


def test_a_pipe_is_refused_under_the_name_that_the_person_has_given_its_instructions(
    order: LaunchRequest, gemini: Path
) -> None:
    launch(order)
    (gemini / "settings.json").write_text(json.dumps({"context": {"fileName": ["AGENTS.md"]}}))
    os.mkfifo(order.workdir / "AGENTS.md")
    with pytest.raises(UsageError, match=r"AGENTS\.md is no file"):
        launch(order)


def test_folders_of_such_names_and_pipes_at_home_are_no_hindrance(order: LaunchRequest, gemini: Path) -> None:
    (order.workdir / ".env").mkdir()
    (order.workdir / "GEMINI.md").mkdir()
    os.mkfifo(gemini / ".env")
    launch(replace(order, workdir=gemini.parent))
    launch(order)


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_instructions_that_lead_elsewhere_are_refused_below_all(
    order: LaunchRequest, tmp_path: Path, own_tools: OwnTools
) -> None:
    order = replace(order, own_tools=own_tools)
    (order.workdir / "AGENTS.md").write_text("Be kind.")
    (order.workdir / "GEMINI.md").symlink_to("AGENTS.md")
    launch(order)
    (tmp_path / "other.md").write_text("secret")
    (order.workdir / ".env").write_text("secret")
    for place in (tmp_path / "other.md", Path(".env")):
        (order.workdir / "GEMINI.md").unlink()
        (order.workdir / "GEMINI.md").symlink_to(place)
        with pytest.raises(UsageError, match=r"GEMINI\.md leads out of the project"):
            launch(order)
    launch(replace(order, own_tools=OwnTools.ALL))


@pytest.mark.parametrize("text", ["@.env", "see\t@./.env", "a\n@.env\n", "`x` @more.md"])
def test_instructions_that_import_what_is_there_are_refused_where_it_may_not_read(
    order: LaunchRequest, text: str
) -> None:
    for name, words in ((".env", "secret"), ("more.md", "more"), ("GEMINI.md", text)):
        (order.workdir / name).write_text(words)
    launch(order)
    with pytest.raises(UsageError, match=r"GEMINI\.md imports .*(\.env|more\.md), and"):
        launch(replace(order, own_tools=OwnTools.NONE))
    (order.workdir / "GEMINI.md").write_text("Ask me@.env, use @dataclass and @" + "x" * 5000)
    launch(replace(order, own_tools=OwnTools.NONE))


@pytest.mark.parametrize("own_tools", OwnTools)
def test_a_prompt_names_no_file_and_below_all_no_command(order: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(order, own_tools=own_tools, prompt="/x @.env \\@a @@b me@c.org"))
    blank = "" if own_tools is OwnTools.ALL else " "
    text = "/x \\@.env \\@a \\@\\@b me\\@c.org\n\n(In this message, \\@ stands for an at sign.)"
    assert made.stdin == blank + text
    assert launch(order).stdin == "--help me"


def test_an_env_file_that_is_too_large_to_be_read_is_refused(order: LaunchRequest) -> None:
    (order.workdir / ".env").write_text("A=" + "x" * 1024 * 1024)
    with pytest.raises(ConfigError, match="too large"):
        launch(order)


def test_a_project_with_an_entry_of_our_name_does_not_count_even_with_all_tools(order: LaunchRequest) -> None:
    file = order.workdir / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"toolcrib": {"command": "x"}}}))
    made = launch(replace(order, own_tools=OwnTools.ALL))
    assert made.environ["GEMINI_CLI_TRUST_WORKSPACE"] == "false"
    assert "do not count" in made.governed[0]


@pytest.mark.parametrize("text", ["[" * 100_000, "/*" * 100_000, "{,}"])
def test_a_project_file_that_makes_no_sense_changes_nothing(order: LaunchRequest, text: str) -> None:
    file = order.workdir / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(text)
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in launch(replace(order, own_tools=OwnTools.ALL)).environ


@pytest.mark.parametrize("own_tools", OwnTools)
def test_the_person_is_told_what_is_governed_and_what_is_not(order: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(order, own_tools=own_tools))
    said = made.ungoverned if own_tools is OwnTools.ALL else made.governed
    assert said[0].startswith("Its own tools:")
    assert made.ungoverned


@pytest.mark.parametrize("own_tools", [OwnTools.NONE, OwnTools.EDIT, OwnTools.ALL])
def test_what_it_refuses_by_itself_is_told_as_governed(order: LaunchRequest, own_tools: OwnTools) -> None:
    made = launch(replace(order, own_tools=own_tools))
    assert [line for line in made.governed if line.startswith("It refuses to change build files")]
    assert not [line for line in made.ungoverned if "refuses" in line]


def test_a_person_who_adds_words_of_their_own_is_told_that_these_are_not_governed(order: LaunchRequest) -> None:
    line = "What your own words for Gemini CLI permit."
    assert line in launch(order).ungoverned
    assert line not in launch(replace(order, extra=())).ungoverned


@pytest.mark.parametrize(("text", "wanted"), [(NEW, True), ("latest", False), ("5", False), ("--yolo", False)])
def test_only_a_number_of_its_own_kind_is_a_session(text: str, wanted: bool) -> None:
    assert GEMINI.headless is not None
    assert GEMINI.headless.is_session(text) is wanted
