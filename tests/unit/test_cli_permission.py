"""`allow`, `deny`, `why`, `profile` and `trust --server` on the command line, without a daemon."""

import io
import json
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parts import fleet
from toolcrib.cli.app import run
from toolcrib.cli.permission_commands import _coverage_lines
from toolcrib.cli.profile_commands import GUIDE, profile_yaml, read_profile
from toolcrib.cli.server_commands import server_table
from toolcrib.errors import ConfigError
from toolcrib.policy import profile_from

pytestmark = pytest.mark.req("KSI-5")

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("CLAUDE_PROJECT_DIR", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "home").mkdir()
    servers = {"files": {"command": str(tmp_path / "no-such-program"), "cwd": "project"}}
    (tmp_path / "home" / "config.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def cli(capsys):
    def typed(*words):
        capsys.readouterr()
        code = run(words)
        return code, *capsys.readouterr()

    return typed


@pytest.fixture
def reviewer(cli):
    assert cli("agent", "add", "reviewer", "--profile", "nothing", "--workdir", ".")[0] == 0
    return "reviewer"


def test_allow_and_deny_change_the_answer_of_why(cli, reviewer):
    def why(*words):
        return cli("why", reviewer, "files:write", *words)[0]

    assert why("path=src/a") == 5
    code, out, err = cli("allow", reviewer, "files:*", "--when", "path under src", "--when", "mode one_of a, 1")
    assert (code, out) == (0, "reviewer: allow files:* when mode one_of a, 1 and path under src.\n")
    assert "The tools of files are currently unknown" in err
    assert why("path=src/a", "mode:=1") == 0
    assert why("path=src/a", "mode=1") == 5
    assert why("--args", '{"path": "/etc", "mode": "a"}') == 5
    rule = ["deny", reviewer, "*:write", "--where", "not read_only"]
    assert cli(*rule)[1] == "reviewer: deny *:write where not read_only.\n"
    assert why("path=src/a", "mode=a") == 5
    assert cli(*rule, "--remove")[1] == "Removed from reviewer: deny *:write where not read_only.\n"
    again = cli("allow", reviewer, "files:*", "--when", "mode one_of a, 1", "--when", "path under src")[1]
    assert again.startswith("reviewer already has this rule: ")
    assert cli("allow", reviewer, "files:*", "--ask")[1] == "reviewer: ask files:*.\n"
    code, out, _ = cli("why", reviewer, "files:write")
    assert code == 0
    assert out.startswith("reviewer (nothing) needs your approval to use files:write: agent reviewer: ask files:*.\n")


def test_why_explains_the_decision(cli, reviewer):
    cli("allow", reviewer, "files:*", "--when", "path under src")
    cli("deny", reviewer, "files:write")
    code, out, _ = cli("why", reviewer, "files:write")
    assert code == 5
    assert out.splitlines() == [
        "reviewer (nothing) may not use files:write: agent reviewer: deny files:write.",
        out.splitlines()[1],
        "No arguments were given, so conditions are assumed to hold. Add KEY=VALUE to check a specific call.",
        f"Relative paths start at {Path.cwd()}, the folder files runs in.",
        "",
        "Matching rules, strongest first:",
        "  agent reviewer: deny files:write",
        "  agent reviewer: allow files:* when path under src",
        "",
        "files is not trusted, so the tool counts as not read_only, destructive, not idempotent, open_world; "
        "`toolcrib trust --server files` makes its annotations count.",
        "",
        "To allow it:",
        "  `toolcrib deny reviewer files:write --remove`",
    ]
    assert out.splitlines()[1].startswith("The tool is currently unknown, so only its name was checked: ")
    _, out, _ = cli("why", reviewer, "files:read", "path=lib")
    assert "  agent reviewer: allow files:* when path under src  (does not apply to these arguments)" in out


def test_why_reports_that_relative_paths_of_a_remote_server_cannot_be_checked(cli, reviewer, home):
    # A port without a listener.
    (home / "home" / "config.json").write_text('{"mcpServers": {"far": {"url": "http://127.0.0.1:9/mcp"}}}')
    cli("allow", reviewer, "far:*", "--when", "path under src")
    code, out, _ = cli("why", reviewer, "far:write", "path=src/a")
    assert code == 5
    assert "The folder far runs in is unknown, so relative paths cannot be checked: use absolute paths." in out
    assert cli("why", reviewer, "far:write", f"path={Path.cwd()}/src/a")[0] == 0


@pytest.mark.parametrize("rule", [["deny"], ["allow", "--ask"]])
def test_the_commands_that_why_suggests_lead_to_an_allow(cli, reviewer, rule):
    def why():
        return json.loads(
            cli("why", reviewer, "files:write", "--args", '{"x": "it\'s", "sql": "DROP \'x"}', "--json")[1]
        )

    effect, *flags = rule
    conditions = ["--when", 'x one_of a b, "1", 1, "it\'s"', "--when", "sql matches (?i)drop '.*"]
    conditions += ["--where", "open_world"]
    assert cli(effect, reviewer, "files:w?i*", *conditions, *flags)[0] == 0
    (way,) = why()["remedies"]
    for line in way.split(", then "):
        assert cli(*shlex.split(line.strip("`"))[1:])[0] == 0
    found = why()
    assert (found["verdict"], found["rule"]) == ("allow", "agent reviewer: allow files:write")
    assert len(found["rules"]) == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["allow", "nobody", "files:*"], 4, "There is no agent 'nobody'."),
        (["allow", "reviewer", "files"], 2, 'Write "files:*" or "*:files".'),
        (["deny", "reviewer", ""], 2, 'The rule names no tools. Write `server:tool`, for instance "git:*"'),
        (["allow", "reviewer", "files:*", "--when", "path inside src"], 2, "Write `path under src`"),
        (["allow", "reviewer", "files:*", "--when", "a under b", "--when", "a under c"], 2, "Write two rules instead."),
        (["allow", "reviewer", "files:*", "--when", "a matches ("], 2, "not a valid pattern"),
        (["allow", "reviewer", "files:*", "--where", "never read_only"], 2, "--where 'not destructive'"),
        (["allow", "reviewer", "files:*", "--where", "readonly"], 2, "Did you mean read_only?"),
        (["deny", "reviewer", "files:*", "--ask"], 2, "--ask"),
        (["deny", "reviewer", "files:*", "--remove"], 4, "Its rules: none."),
        (["why", "reviewer", "nothing_like_it"], 4, "There is no tool"),
        (["trust", "--server", "flies"], 4, "Servers: files."),
        (["trust", "x.yml", "--server", "files"], 2, "can't be used together"),
    ],
)
def test_a_mistake_is_an_error_with_a_remedy(cli, reviewer, words, code, message):
    found, _, err = cli(*words)
    assert (found, message in err) == (code, True), err


def test_tools_that_stay_denied_are_listed_apart_from_those_that_no_rule_can_allow(cli, reviewer):
    cli("deny", reviewer, "crib:s*")
    _, _, err = cli("allow", reviewer, "crib:*")
    assert err.count("Still denied: crib:s") == err.count("agent reviewer: deny crib:s*") > 0
    assert "stay denied, and no rule can change that: built-in: only the owner may manage Toolcrib." in err
    (example,) = [line for line in err.splitlines() if "shows how to change that" in line]
    words = shlex.split(example.split("`")[1])[1:]
    assert "`toolcrib deny reviewer 'crib:s*' --remove`" in cli(*words)[1]


def test_a_long_list_of_denied_tools_is_shortened():
    denied = [{"tool": f"files:{name}", "rule": "no rule allows it"} for name in "ab"]
    found = {"agent": "reviewer", "covers": 9, "unknown_servers": ["far"], "still_denied": denied}
    found |= {"still_denied_in_all": 6, "never_allowed": [{"rule": "built-in: x", "tools": 3}]}
    assert list(_coverage_lines(found)) == [
        "Still denied: files:a: no rule allows it.",
        "Still denied: files:b: no rule allows it.",
        "And 4 more.",
        "`toolcrib why reviewer files:a` shows how to change that.",
        "3 of them stay denied, and no rule can change that: built-in: x.",
    ]


def test_a_new_rule_that_matches_no_known_tool_is_pointed_out(cli, reviewer):
    assert "No known tool matches this rule" in cli("deny", reviewer, "flies:*")[2]
    assert cli("deny", reviewer, "flies:*", "--remove")[2] == ""


def test_the_parent_that_limits_an_agent_is_shown_by_add_show_and_why(cli, reviewer):
    expected = "It is limited by reviewer (nothing): it can use only the tools that reviewer can use."
    assert expected in cli("agent", "add", "kid", "--parent", reviewer, "--profile", "trusted")[2]
    assert expected in cli("agent", "show", "kid")[2]
    cli("allow", reviewer, "files:read")
    out = cli("why", "kid", "files:read")[1]
    assert "\n  profile trusted: allow *:*\n  its parent reviewer: agent reviewer: allow files:read\n" in out


def test_rules_that_need_a_folder_are_reported_for_an_agent_without_one(cli, tmp_path):
    (tmp_path / "docs.yml").write_text("rules:\n- allow: files:*\n  when: {path: {under: docs}}\n")
    cli("profile", "edit", "docs", "--file", str(tmp_path / "docs.yml"))
    expected = "drifter has no folder, so `path under docs` can't be checked"
    assert expected in cli("agent", "add", "drifter", "--profile", "docs")[2]
    assert expected in cli("why", "drifter", "files:write", "path=docs/a")[1]
    code, _, err = cli("deny", "drifter", "files:*", "--when", "path under docs")
    assert (code, expected in err) == (2, True), err


def test_only_a_servers_command_gets_the_hint_about_dashes(cli):
    code, _, err = cli("agent", "add", "reviewer", "--profil", "x")
    assert (code, "--help" in err, "Put `--`" in err) == (2, True, False), err
    assert "Put `--` before the server's command." in cli("add", "files", "server", "--port", "1")[2]


def test_servers_lists_changed_tools(capsys):
    for pins, named in (
        ({"new": ["wipe"]}, "1 new: wipe"),
        ({"new": [*"abcdef"], "changed": ["g"]}, "1 changed: g; 6 new: a, b, c, d, e …"),
        ({"new": ["r\u0435ad"]}, r"1 new: r\u0435ad"),
    ):
        server_table([{"name": "my files", "trusted": True, "pins": pins}])
        assert capsys.readouterr().err == (
            f"my files: tools that differ from the accepted ones ({named}). "
            "`toolcrib pins 'my files'` shows the difference.\n"
        )
    server_table([{"name": "my files", "pins": {"flagged": {"re\u200bad": ["hides this", "and that"]}}}])
    assert capsys.readouterr().err == (
        "my files: the definition of re\\u200bad is suspicious: it hides this; it and that. "
        "`toolcrib pins 'my files'` shows it.\n"
    )


def test_trust_and_untrust_of_a_server_report_what_changed(cli, home):
    code, _, err = cli("trust", "--server", "files")
    assert (code, "lists no tools" in err) == (2, True)
    listing = home / "listing.json"
    listing.write_text(json.dumps({"tools": [{"name": "read", "inputSchema": {}}]}))
    entry = {"command": sys.executable, "args": [str(fleet.SERVERS / "scripted_server.py"), "--listing", str(listing)]}
    (home / "home" / "config.json").write_text(json.dumps({"mcpServers": {"files": entry}}))
    marked = "Tools marked read-only: 0 of 1.\n"
    assert cli("trust", "--server", "files")[:2] == (0, f"files is now trusted.\n{marked}")
    assert cli("trust", "--server", "files")[:2] == (0, f"files is already trusted.\n{marked}")
    assert cli("servers")[1].splitlines()[1].split()[5] == "yes"
    assert json.loads(cli("servers", "--json")[1])["servers"][0]["trusted"] is True
    assert cli("untrust", "--server", "files")[:2] == (0, "files is no longer trusted.\n")
    assert cli("untrust", "--server", "files")[:2] == (0, "files was not trusted.\n")


MINE = 'description: Looks.\nown_tools: none\nrules:\n- allow: files:read_*\n- deny: "*:secret"\n'


def rules_of(cli: Cli, *names: str) -> list[list[dict[str, object]]]:
    return [json.loads(cli("profile", "show", name, "--json")[1])["rules"] for name in names]


def test_a_profile_comes_from_a_file_or_a_pipe(cli, tmp_path, monkeypatch):
    file = tmp_path / "mine.yml"
    file.write_text(MINE)
    code, out, err = cli("profile", "edit", "mine", "--file", str(file))
    assert (code, out) == (0, "mine: 2 rules; agents: none yet.\n")
    assert "toolcrib agent add AGENT --profile mine" in err
    shown = "# mine, yours; agents: none\n" + MINE.replace('"*:secret"', "'*:secret'")
    assert cli("profile", "show", "mine")[1] == shown
    monkeypatch.setattr(sys, "stdin", io.StringIO("rules:\n  - allow: files:*\n"))
    assert cli("profile", "edit", "mine", "--file", "-")[1] == "mine: 1 rule; agents: none yet.\n"
    rows = [line.split()[0] for line in cli("profile", "list")[1].splitlines()]
    assert rows == ["profile", "owner", "trusted", "developer", "read-only", "nothing", "mine"]
    file.write_text(cli("profile", "show", "developer")[1])
    assert cli("profile", "edit", "mine", "--file", str(file))[0] == 0
    developer, mine = rules_of(cli, "developer", "mine")
    assert developer == mine
    assert cli("profile", "remove", "mine")[:2] == (0, "Removed mine.\n")
    assert cli("profile", "show", "mine")[0] == 4


def editor(tmp_path: Path, body: str) -> str:
    """A program that is given the file's path as `place`."""
    script = tmp_path / "editor.py"
    script.write_text(f"import sys, pathlib\nplace = pathlib.Path(sys.argv[-1])\n{body}\n")
    return shlex.join([sys.executable, str(script), "--wait"])


def drafts(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("toolcrib-profile-*"))


def test_an_editor_shows_the_profile_and_its_text_is_used(cli, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    add = "text = place.read_text()\nplace.write_text(text.replace('rules: []', 'rules:\\n- allow: files:*'))"
    monkeypatch.setenv("EDITOR", "false")
    monkeypatch.setenv("VISUAL", editor(tmp_path, f"{add}\npathlib.Path({str(seen)!r}).write_text(text)"))
    start = GUIDE.format(name="mine") + "description: ''\nown_tools: none\nrules:"
    assert cli("profile", "edit", "mine")[:2] == (0, "mine: 1 rule; agents: none yet.\n")
    assert seen.read_text() == start + " []\n"
    assert cli("profile", "edit", "mine")[:2] == (0, "Nothing was changed.\n")
    assert seen.read_text() == start + "\n- allow: files:*\n"
    monkeypatch.setenv("VISUAL", editor(tmp_path, ""))
    assert cli("profile", "edit", "copy", "--copy", "developer")[0] == 0
    developer, copy = rules_of(cli, "developer", "copy")
    assert developer == copy != []
    assert cli("profile", "edit", "copy", "--copy", "developer")[0] == 2
    assert drafts(tmp_path) == []


def test_an_edited_text_with_a_mistake_is_kept_for_correction(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("EDITOR", editor(tmp_path, "place.write_text('rules:\\n- allow: files\\n')"))
    code, _, err = cli("profile", "edit", "mine")
    assert code == 3
    assert "profile mine, rule 1: 'files' names no server." in err
    (draft,) = drafts(tmp_path)
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert draft.read_text() == "rules:\n- allow: files\n"
    again = err.rpartition("then run `")[2].rpartition("`")[0]
    draft.write_text("rules:\n- allow: files:*\n")
    assert cli(*shlex.split(again)[1:])[0] == 0


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("developer", "true", "`toolcrib profile edit NAME --copy developer`"),
        ("mine", None, "Set EDITOR, or pass the content with --file"),
        ("mine", "'", "Set EDITOR, or pass the content with --file"),
        ("mine", "/nowhere/editor", "cannot be started"),
        ("mine", "false", "exited with code 1, so nothing was changed"),
        ("../mine", "true", "cannot be a profile's name"),
    ],
)
def test_an_edit_that_fails_changes_nothing(cli, tmp_path, monkeypatch, name, chosen, message):
    if chosen is not None:
        monkeypatch.setenv("EDITOR", chosen)
    code, _, err = cli("profile", "edit", name)
    assert code in (2, 3)
    assert message in err
    assert drafts(tmp_path) == []
    assert cli("profile", "show", "mine")[0] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules:\n- allow: *\n", "Quote values that begin with *."),
        ("rules: []\nrules: []\n", "line 2: rules appears twice"),
        ("rules:\n- deny: a:*\n  deny: b:*\n", "line 3: deny appears twice"),
        ("- allow: a:*\n", "only description, rules, own_tools and listing are allowed"),
        ("rule: []\n", "only description, rules, own_tools and listing are allowed"),
        ("rules: [\n", "expected YAML"),
        ("!!python/object:os.system {}", "a tag for something other"),
    ],
)
def test_an_invalid_profile_is_refused_with_the_line(text, message):
    with pytest.raises(ConfigError) as caught:
        read_profile("mine", text)
    assert message in caught.value.text()


def test_a_file_that_cannot_be_used_is_an_error(cli, tmp_path):
    (tmp_path / "latin.yml").write_bytes(b"description: \xe9\n")
    (tmp_path / "list.yml").write_text("rules: {}\n")
    for file, code in {"list.yml": 2, "latin.yml": 3, "none.yml": 4}.items():
        assert cli("profile", "edit", "mine", "--file", str(tmp_path / file))[0] == code
    assert cli("profile", "edit", "mine", "--file", "-", "--copy", "developer")[0] == 2


@pytest.mark.parametrize("text", ["", "rules:\n", "description:\n", "# nothing\n"])
def test_an_empty_text_is_an_empty_profile(text):
    profile = read_profile("mine", text)
    assert profile_from(profile.pop("name"), profile).rules == ()


def test_the_example_in_the_editor_is_valid():
    guide = GUIDE.format(name="mine")
    lines = [line[2:] for line in guide.splitlines() if line.startswith("# ")][1:]
    profile = profile_from("mine", {"rules": read_profile("mine", "\n".join(lines))["rules"]})
    assert [str(rule).partition(": ")[2] for rule in profile.rules] == [
        "allow git:*",
        "deny *:delete_*",
        "ask git:push",
        "allow *:* where read_only",
        "allow files:* when mode one_of read, list and options.sql matches select .* and path under src",
    ]


def test_a_profile_that_is_shown_reads_back_unchanged():
    choices = ["yes", "1", 1, True, None, "~", "*", "2024-01-01", "0x10", "a: b"]
    rules = [
        {"allow": "*:*", "when": {"a": {"one_of": choices}}},
        {"deny": "*:x", "when": {"p.q": {"matches": "#.*\\d", "under": "ä b"}}, "annotations": {"read_only": False}},
    ]
    profile = {"description": "yes", "own_tools": "read", "rules": rules}
    assert read_profile("mine", profile_yaml(profile)) == {"name": "mine", **profile}


def test_an_agent_that_expires_immediately_is_reported_as_added(cli):
    code, out, _ = cli("agent", "add", "brief", "--expires", "0.001s")
    assert (code, out.splitlines()[0]) == (0, "Agent brief: profile developer, already expired.")


def test_approvals_show_the_whole_call_and_quote_text_of_others(cli, monkeypatch):
    row = {"id": "abcde", "agent": "reviewer", "rule": "ask", "left": 9.0, "question": None}
    besides = {"inputResponses": {"sure": {"action": "accept\u202e"}}, "_meta": {"x": "y" * 2000}}
    spoofed = {"conversation": "x) wants w:read; 9 s left", "tool": "w:note; 9 s left"}
    found = {"approvals": [{**row, **spoofed, "arguments": {"a": 1}, "besides": besides, "whole": True}]}
    monkeypatch.setattr("toolcrib.cli.approval_commands.from_daemon", lambda *_, **__: found)
    _, out, err = cli("approvals")
    assert out.startswith('abcde  reviewer wants to call "w:note; 9 s left"; 9 s left\n')
    assert '\n      in the conversation "x) wants w:read; 9 s left"\n      a = 1\n' in out
    assert r'also sent: inputResponses = {"sure": {"action": "accept\u202e"}}' in out
    assert "`toolcrib approvals abcde` shows everything" in err
    assert f'also sent: _meta = {{"x": "{"y" * 2000}"}}' in cli("approvals", "abcde")[1]
