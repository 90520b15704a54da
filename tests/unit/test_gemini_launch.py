"""How Gemini CLI is launched: arguments, variables, `.env` files, the merged settings, links."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parts.launch_requests import BELOW_ALL, LABELS, NEW_SESSION, PROMPT, TOKEN, URL, launch_request
from parts.sizes import sized
from toolcrib.coding_agents.client_spec import Launch
from toolcrib.coding_agents.known import gemini_launch, gemini_policy
from toolcrib.coding_agents.known.gemini import GEMINI
from toolcrib.coding_agents.known.gemini_launch import env_file_variables
from toolcrib.coding_agents.known.gemini_policy import LinkAliases, aliases_of
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-5")

OLD = "99999999-2222-3333-4444-555555555555"
NONE, READ, EDIT, ALL = OwnTools


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    for name in ("home/.gemini", "project/.gemini"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "project"


@pytest.fixture
def gemini(tmp_path: Path) -> Path:
    """The user's folder."""
    return tmp_path / "home" / ".gemini"


def launch(folder: Path, own_tools: OwnTools = READ, **given: Any) -> Launch:
    return gemini_launch.launch(launch_request(folder, own_tools, **{"extra": ("-m", "a-model"), **given}))


def settings_of(made: Launch) -> Any:
    return json.loads(made.files["settings.json"])


@pytest.mark.req("KSI-2")
@pytest.mark.parametrize(
    ("own_tools", "mode"), [(NONE, "default"), (READ, "default"), (EDIT, "auto_edit"), (ALL, "yolo")]
)
def test_the_level_is_an_approval_mode_and_no_argument_is_secret(
    tmp_path: Path, own_tools: OwnTools, mode: str
) -> None:
    made = launch(tmp_path, own_tools)
    assert made.stdin == PROMPT
    assert not [word for word in made.args if TOKEN in word or "help" in word]
    assert TOKEN not in "".join(made.environ.values())
    headers = {"Authorization": f"Bearer {TOKEN}", **LABELS}
    entry = {"httpUrl": URL, "headers": headers, "trust": True, "timeout": 3_600_000}
    assert settings_of(made)["mcpServers"]["toolcrib"] == entry
    assert settings_of(launch(tmp_path, own_tools, url=""))["mcpServers"] == {}
    assert made.args[made.args.index("--approval-mode") + 1] == mode
    reported = made.ungoverned if own_tools is ALL else made.governed
    assert reported[0].startswith("Its own tools")
    assert made.ungoverned
    if own_tools is not READ:
        assert [line for line in made.governed if "it refuses to change build files" in line]
        assert not [line for line in made.ungoverned if "refuses" in line]


def test_a_session_starts_with_a_given_id_or_continues(tmp_path: Path) -> None:
    assert launch(tmp_path).args[-4:] == ("--session-id", NEW_SESSION, "-m", "a-model")
    assert launch(tmp_path, session=OLD).args[-4:] == ("--resume", OLD, "-m", "a-model")
    assert GEMINI.headless is not None
    known = {text: GEMINI.headless.is_session(text) for text in (NEW_SESSION, "latest", "5", "--yolo")}
    assert known == {NEW_SESSION: True, "latest": False, "5": False, "--yolo": False}


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_below_all_only_toolcrib_and_the_levels_tools_are_allowed(tmp_path: Path, own_tools: OwnTools) -> None:
    made = launch(tmp_path, own_tools)
    toolcrib, *_, own, rest = tomllib.loads(made.files["own-tools.toml"])["rule"]
    assert (toolcrib["mcpName"], toolcrib["decision"]) == ("toolcrib", "allow")
    assert own["toolName"] == settings_of(made)["tools"]["core"]
    assert ("write_file" in own["toolName"]) == (own_tools is EDIT)
    assert (rest["toolName"], rest["decision"]) == ("*", "deny")
    assert toolcrib["priority"] > own["priority"] > rest["priority"]
    assert str(tmp_path / "private" / "own-tools.toml") in made.args


def may_write(folder: Path, path: str) -> bool:
    """Whether no rule that Gemini CLI would apply denies it."""
    _, *rules, own, _ = tomllib.loads(launch(folder, EDIT).files["own-tools.toml"])["rule"]
    arguments = {"content": '"file_path":".toolcrib/x"', "file_path": path}
    printed = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    for rule in rules:
        assert (rule["toolName"], rule["decision"]) == (["replace", "write_file"], "deny")
        assert rule["priority"] > own["priority"]
        assert len(rule["argsPattern"]) <= 2048, "a longer one is ignored"
    return not any(re.search(rule["argsPattern"], printed) for rule in rules)


PROTECTED = [f"{before}.toolcrib{after}" for before in ("", "./", "/p/", "a/../", "@") for after in ("", "/x")]
PROTECTED += [".gemini/settings.json", "a/.GEMINI/x", ".Toolcrib/x", ".toolcr%69b/x", "%2Etoolcrib/x"]
PROTECTED += [".tool\0crib", 'a"', "a\\b"]


def test_files_in_protected_folders_cannot_be_written(tmp_path: Path) -> None:
    assert [path for path in PROTECTED if may_write(tmp_path, path)] == []
    others = ["GEMINI.md", "toolcrib/x", ".toolcrib.md", "xtoolcrib", "100%/x", "\N{EURO SIGN}"]
    assert [path for path in others if not may_write(tmp_path, path)] == []


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
def test_protected_files_cannot_be_written_through_a_link_in_the_project(
    tmp_path: Path, project: Path, link: str, to: str, path: str, *, denied: bool
) -> None:
    (project / ".gemini").rmdir()
    (project / ".toolcrib").mkdir()
    (project / ".toolcrib" / "workspace.yml").write_text("{}")
    place = project / link
    place.parent.mkdir(exist_ok=True)
    if to.startswith("="):
        place.hardlink_to(project / to[1:])
    else:
        place.symlink_to(to)
    assert may_write(tmp_path, path) is not denied
    assert may_write(tmp_path, "elsewhere/x")


def test_unchecked_links_and_own_arguments_are_not_governed(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(words: str, own_tools: OwnTools = EDIT, **given: Any) -> bool:
        return any(words in line for line in launch(tmp_path, own_tools, **given).ungoverned)

    assert listed("created during the run")
    assert not listed("too many files")
    monkeypatch.setattr(gemini_policy, "MAX_ENTRIES", 1)
    for name in ("one", "two"):
        (project / name).touch()
    assert listed("too many files")
    assert not listed("link", READ)
    assert listed("Your own arguments for Gemini CLI may permit more.", READ)
    assert not listed("Your own arguments", READ, extra=())


def test_the_users_settings_apply_except_those_that_run_commands(tmp_path: Path, gemini: Path) -> None:
    theirs = {
        "security": {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": False}},
        "model": {"name": "gemini-pro"},
        "ui": {"theme": "GitHub"},
        "tools": {"useRipgrep": False, "discoveryCommand": "x", "callCommand": "x", "allowed": ["*"], "sandbox": "lxc"},
        "hooks": {"SessionStart": [{"hooks": []}]},
        "mcpServers": {"mine": {"command": "x"}},
        "mcp": {"serverCommand": "x"},
        "url": "https://a//b",
    }
    (gemini / "settings.json").write_text(f"// mine\n/* {{ */{json.dumps(theirs)}")
    made = settings_of(launch(tmp_path))
    assert made["security"] == {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": True}}
    assert {name: made[name] for name in ("model", "ui", "url")} == {
        name: theirs[name] for name in ("model", "ui", "url")
    }
    assert made["tools"] == {"useRipgrep": False, "sandbox": False, "core": made["tools"]["core"]}
    assert (made["hooks"], made["hooksConfig"]) == ({}, {"enabled": False})
    assert list(made["mcpServers"]) == ["toolcrib"]
    assert made["mcp"] == {"allowed": ["toolcrib"]}


def test_with_all_tools_the_users_servers_and_hooks_stay(tmp_path: Path, gemini: Path) -> None:
    servers = {"mine": {"command": "x"}, "toolcrib": {"command": "the bridge"}}
    theirs = {"mcpServers": servers, "mcp": {"allowed": ["mine"]}, "hooks": {"SessionStart": []}}
    (gemini / "settings.json").write_text(json.dumps(theirs))
    made = launch(tmp_path, ALL)
    merged = settings_of(made)
    assert merged["mcpServers"]["mine"] == {"command": "x"}
    assert merged["mcpServers"]["toolcrib"]["httpUrl"] == URL
    assert merged["mcp"] == {"allowed": ["mine", "toolcrib"]}
    assert merged["hooks"] == theirs["hooks"]
    assert list(made.files) == ["settings.json"]
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in made.environ


def test_unreadable_settings_are_an_error_with_a_remedy(tmp_path: Path, gemini: Path) -> None:
    (gemini / "settings.json").write_text("{,}")
    with pytest.raises(ConfigError, match=r"settings\.json cannot be read") as caught:
        launch(tmp_path)
    assert caught.value.remedy


def test_its_home_is_the_private_folder_with_links_to_the_users_login(tmp_path: Path, gemini: Path) -> None:
    for name in ("oauth_creds.json", "GEMINI.md", "projects.json", "settings.json", "trustedFolders.json"):
        (gemini / name).write_text("{}")
    (gemini / "extensions").mkdir()
    (gemini / "dangling").symlink_to("nowhere")
    made = launch(tmp_path)
    assert made.environ["GEMINI_CLI_HOME"] == str(tmp_path / "private")
    always = {name: gemini / name for name in ("tmp", "history", "oauth_creds.json", "GEMINI.md")}
    always[".gemini"] = tmp_path / "private"
    assert made.links == always
    more = {name: gemini / name for name in ("extensions", "trustedFolders.json")}
    assert launch(tmp_path, ALL).links == {**always, **more}
    moved = {"HOME": str(tmp_path / "home"), "GEMINI_CLI_HOME": str(tmp_path / "moved")}
    assert launch(tmp_path, environ=moved).links["tmp"] == tmp_path / "moved" / ".gemini" / "tmp"


NAME = "GOOGLE_GEMINI_BASE_URL"


@pytest.mark.parametrize("place", [".gemini/.env", ".env", "../.gemini/.env"])
@pytest.mark.parametrize("line", [f"{NAME}=x", f"export {NAME} = 'x'", f"\t{NAME}: `x`", "a.b=1"])
def test_variables_of_env_files_are_emptied_below_all(tmp_path: Path, project: Path, place: str, line: str) -> None:
    (project / place).parent.mkdir(exist_ok=True)
    (project / place).write_text(f"# first\n{line}\n")
    name = "a.b" if "a.b" in line else NAME
    assert launch(tmp_path).environ[name] == ""
    assert name not in launch(tmp_path, ALL).environ
    # A variable that is already set wins over the file.
    assert name not in launch(tmp_path, environ={"HOME": str(tmp_path / "home"), name: "theirs"}).environ


def test_the_users_env_file_overrides_emptied_variables(tmp_path: Path, project: Path, gemini: Path) -> None:
    lines = ('export GEMINI_API_KEY="a#key" # mine', "EMPTY=", "PLAIN= b c # no", "TWO='x\ny'", 'NL="a\\nb"')
    (gemini / ".env").write_text("\n".join(lines) + "\n")
    (project / ".env").write_text("GEMINI_API_KEY=other\nGOOGLE_API_KEY=other\n")
    environ = launch(tmp_path).environ
    wanted = {"GEMINI_API_KEY": "a#key", "EMPTY": "", "PLAIN": "b c", "TWO": "x\ny", "NL": "a\nb", "GOOGLE_API_KEY": ""}
    assert {name: environ.get(name) for name in wanted} == wanted


def variables(folder: Path, project: bytes = b"", user: bytes = b"") -> dict[str, str]:
    (folder / "project" / ".gemini" / ".env").write_bytes(project)
    (folder / "home" / ".gemini" / ".env").write_bytes(user)
    environ = {"HOME": str(folder / "home"), "PATH": "/bin"}
    return env_file_variables(launch_request(folder, environ=environ), folder / "home")


NEVER_BLANK = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-=:")
"""Parts of a name, or the characters that follow it."""


def test_a_name_is_found_whichever_characters_count_as_blanks() -> None:
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, sys.maxunicode + 1, sized(101, 1))]
    blanks = [chr(code) for code in codes]
    for line in ("{0}{1}=x", "X=1{1}{0}: x", "export{1}{0}{1}{1}= 'x'"):
        lines = [line.format(NAME, blank) for blank in blanks if blank not in NEVER_BLANK]
        assert gemini_launch._NAMED.findall("\n".join(lines)).count(NAME) == len(lines), line


@pytest.mark.parametrize("start", ["", "\ufeff", "# c\r", "A='\n", "\u2029", "\xff"])
def test_odd_blanks_around_a_name_do_not_hide_it(tmp_path: Path, start: str) -> None:
    for blank in ("\ufeff", "\u180e", "\x1c", "\u00a0", "\u2028", "\r", "\r\n", "\v", "\n\n", ""):
        line = f"{start}{blank}{NAME}{blank}=x"
        for encoded in (line.encode("latin-1", "ignore"), line.encode()):
            assert variables(tmp_path, encoded)[NAME] == "", blank


AS_GEMINI_READS = re.compile(
    # dotenv's pattern, with JavaScript's blanks, line ends and letters.
    r"""(?:^|(?<=[\n\r\u2028\u2029]))B*(?:export B+)?([A-Za-z0-9_.-]+)(?:B*=B*?|:B+?)
    (B*'(?:\\'|[^'])*'|B*"(?:\\"|[^"])*"|B*`(?:\\`|[^`])*`|[^\#\r\n]+)?B*(?:\#[^\n\r\u2028\u2029]*)?
    (?:\Z|(?=[\n\r\u2028\u2029]))""".replace(
        "B", r"[\t\n\v\f\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
    ),
    re.VERBOSE,
)
PIECES = st.sampled_from(
    [*"AB.-_=:#'\"`\\ \t\n\r\v\f\x1c\x85\xa0", "export ", "\u1680\u2003\u2028\u2029", "\u3000", "\ufeff", "\u200b", "é"]
)


@settings(max_examples=sized(100, 2000), deadline=None)
@given(text=st.lists(PIECES, max_size=24).map("".join))
@example(text="A\ufeff=x")
@example(text="A='\nB=x'")
def test_every_name_that_gemini_finds_is_emptied(tmp_path: Path, text: str) -> None:
    names = {match[1] for match in AS_GEMINI_READS.finditer(re.sub("\r\n?", "\n", text))}
    assert names <= variables(tmp_path, text.encode()).keys()


def test_only_names_are_found_fast_and_up_to_a_limit(tmp_path: Path, project: Path) -> None:
    assert variables(tmp_path, b"KEY=sk-0123\nOTHER='a secret'\n").keys() == {"KEY", "OTHER"}
    assert variables(tmp_path, b"x" * 1_000_000) == {}
    assert variables(tmp_path, b" \n" * 500_000 + b"A=1")["A"] == ""
    assert variables(tmp_path, b"A \n" + b"\n" * 500_000 + b"=1")["A"] == ""
    with pytest.raises(ConfigError, match="too many variables"):
        variables(tmp_path, "".join(f"NAME_{number}=\n" for number in range(10_000)).encode())
    (project / ".gemini" / ".env").unlink()
    (project / ".env").write_text("A=" + "x" * 1024 * 1024)
    with pytest.raises(ConfigError, match="too large"):
        launch(tmp_path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\ufeffKEY=x", "x"),
        ("KEY\ufeff=\u00a0x\u3000", "x"),
        ("KEY='a\nb' # c", "a\nb"),
        ('KEY="a\\nb"', "a\nb"),
        ("KEY=a\\nb", "a\\nb"),
        ("KEY='a\\nb'", "a\\nb"),
        ('KEY="open\\n', '"open\n'),
        ("KEY=\x1cx", "\x1cx"),
        ("KEY=a\rOTHER=b", "a"),
        ("KEY=\nOTHER=b", ""),
        ("KEY: `x`", "x"),
        ("KEY=it's", "it's"),
    ],
)
def test_the_users_env_file_is_parsed_as_gemini_does(tmp_path: Path, text: str, wanted: str) -> None:
    assert variables(tmp_path, b"KEY=other\n", text.encode())["KEY"] == wanted


@pytest.mark.parametrize(
    "name", [".gemini/.env", ".gemini/settings.json", ".geminiignore", ".gitignore", "GEMINI.md", "../GEMINI.md"]
)
def test_a_pipe_that_gemini_would_read_for_ever_is_refused_below_all(tmp_path: Path, project: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (project / name).symlink_to(tmp_path / "pipe")
    with pytest.raises(UsageError, match=re.escape(f"{Path(name).name} is not a regular file")):
        launch(tmp_path)
    launch(tmp_path, ALL)


def test_only_pipes_that_gemini_would_read_are_refused(tmp_path: Path, project: Path, gemini: Path) -> None:
    (project / ".env").mkdir()
    (project / "GEMINI.md").mkdir()
    os.mkfifo(project / "AGENTS.md")
    os.mkfifo(gemini / ".env")
    launch(tmp_path, workdir=gemini.parent)
    launch(tmp_path)
    (gemini / "settings.json").write_text(json.dumps({"context": {"fileName": ["AGENTS.md"]}}))
    with pytest.raises(UsageError, match=r"AGENTS\.md is not a regular file"):
        launch(tmp_path)


@pytest.mark.parametrize("own_tools", BELOW_ALL)
def test_instructions_outside_the_project_are_refused_below_all(
    tmp_path: Path, project: Path, own_tools: OwnTools
) -> None:
    (project / "AGENTS.md").write_text("Be kind.")
    (project / "GEMINI.md").symlink_to("AGENTS.md")
    launch(tmp_path, own_tools)
    (tmp_path / "other.md").write_text("secret")
    (project / ".env").write_text("secret")
    for place in (tmp_path / "other.md", Path(".env")):
        (project / "GEMINI.md").unlink()
        (project / "GEMINI.md").symlink_to(place)
        with pytest.raises(UsageError, match=r"GEMINI\.md is a link out of the project"):
            launch(tmp_path, own_tools)
    launch(tmp_path, ALL)


@pytest.mark.parametrize("text", ["@.env", "see\t@./.env", "a\n@.env\n", "`x` @more.md"])
def test_instructions_that_import_files_are_refused_at_none(tmp_path: Path, project: Path, text: str) -> None:
    for name, words in ((".env", "secret"), ("more.md", "more"), ("GEMINI.md", text)):
        (project / name).write_text(words)
    launch(tmp_path)
    with pytest.raises(UsageError, match=r"GEMINI\.md imports .*(\.env|more\.md)\. "):
        launch(tmp_path, NONE)
    (project / "GEMINI.md").write_text("Ask me@.env, use @dataclass and @" + "x" * 5000)
    launch(tmp_path, NONE)


@pytest.mark.parametrize("own_tools", OwnTools)
def test_a_prompt_names_no_file_and_below_all_no_command(tmp_path: Path, own_tools: OwnTools) -> None:
    made = launch(tmp_path, own_tools, prompt="/x @.env \\@a @@b me@c.org")
    blank = "" if own_tools is ALL else " "
    text = "/x \\@.env \\@a \\@\\@b me\\@c.org\n\n(In this message, \\@ stands for an at sign.)"
    assert made.stdin == blank + text


def test_a_project_with_its_own_toolcrib_entry_is_ignored_even_with_all_tools(tmp_path: Path, project: Path) -> None:
    file = project / ".gemini" / "settings.json"
    file.write_text(json.dumps({"mcpServers": {"toolcrib": {"command": "x"}}}))
    made = launch(tmp_path, ALL)
    assert made.environ["GEMINI_CLI_TRUST_WORKSPACE"] == "false"
    assert "are ignored" in made.governed[0]
    for text in ("[" * 100_000, "/*" * 100_000, "{,}"):
        file.write_text(text)
        assert "GEMINI_CLI_TRUST_WORKSPACE" not in launch(tmp_path, ALL).environ


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / ".kept" / "inner").mkdir(parents=True)
    (made / ".kept" / "file").write_text("x")
    (made / "a" / "b").mkdir(parents=True)
    return made


def aliases(folder: Path) -> LinkAliases:
    return aliases_of((".kept",), folder, not_into=(".git", "node_modules"))


def test_only_links_into_the_protected_folders_are_found(folder: Path, tmp_path: Path) -> None:
    (folder / "node_modules").mkdir()
    for name, to in (
        ("one", ".kept"),
        ("a/two", str(folder / ".kept" / "inner")),
        ("a/b/three", "../two"),
        ("four", ".kept/not-there-yet"),
        ("plain", "a"),
        ("up", "."),
        ("out", str(tmp_path)),
        ("loop", "loop"),
        ("node_modules/six", "../.kept"),
        ("../way", "folder"),
    ):
        (folder / name).symlink_to(to)
    (folder / "five").hardlink_to(folder / ".kept" / "file")
    wanted = LinkAliases(names=frozenset({"one", "two", "three", "four", "five"}))
    assert aliases(folder) == aliases(tmp_path / "way") == wanted


def test_of_a_protected_folder_that_is_a_link_the_target_is_protected(folder: Path) -> None:
    (folder / "a" / ".KEPT").symlink_to("b")
    (folder / "other").symlink_to("a/b")
    assert aliases(folder).names == {"b", "other"}
    (folder / "a" / ".kept").symlink_to("..")
    with pytest.raises(UsageError, match="a link to the folder itself"):
        aliases(folder)


def test_too_many_links_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemini_policy, "MAX_ALIASES", 2)
    for name in ("one", "two", "three"):
        (folder / name).symlink_to(".kept")
    with pytest.raises(UsageError, match=r"3 links lead into \.kept"):
        aliases(folder)


@pytest.mark.parametrize(("limit", "value"), [("MAX_ENTRIES", 3), ("MAX_SECONDS", -1.0)])
def test_a_search_for_links_that_reached_its_limit_is_not_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    assert aliases(folder).are_all
    monkeypatch.setattr(gemini_policy, limit, value)
    assert not aliases(folder).are_all
