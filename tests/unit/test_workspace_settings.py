"""The settings of a workspace: one YAML file, read strictly; what nobody trusted only narrows."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.config.model import Severity
from toolcrib.config.trust import trust_digest
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.serving.main import HELP
from toolcrib.workspace.settings.example import EXAMPLE
from toolcrib.workspace.settings.load import FileTrust, LoadedSettings, load_settings, settings_files
from toolcrib.workspace.settings.model import (
    DEFAULTS,
    GUARDED,
    KB,
    LIMITS,
    LIMITS_KEYS,
    MB,
    SECONDS_KEYS,
    SHELL_TOOLS,
    TOOL_NAMES,
    TOOL_SECONDS,
    WRITING_TOOLS,
    GitMode,
    Limits,
    WorkspaceSettings,
    flat_settings,
    in_ci,
    narrow_settings,
)
from toolcrib.workspace.settings.read import TOP_KEYS
from toolcrib.workspace.tool import ToolNeeds
from toolcrib.workspace.tools import TOOLS

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "workspace.md").read_text()


class Place:
    """A home and a project, with a file of settings in either."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.realpath(base))
        self.root = self.base / "code" / "project"
        self.file = self.root / ".toolcrib" / "workspace.yml"
        self.file.parent.mkdir(parents=True)
        self.user_file = self.base / "crib" / "workspace.yml"
        self.user_file.parent.mkdir()
        self.environ = {"HOME": str(self.base), "TOOLCRIB_HOME": str(self.base / "crib")}

    def load(self, project: str | None = None, *, user: str | None = None, **more: Any) -> LoadedSettings:
        if project is not None:
            self.file.write_text(project)
        if user is not None:
            self.user_file.write_text(user)
        return load_settings(self.root, environ=self.environ, **more)

    def trusted(self, project: str, **more: Any) -> LoadedSettings:
        return self.load(project, is_trusted=lambda path, digest: digest == trust_digest(path), **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def errors(loaded: LoadedSettings) -> list[str]:
    return [str(problem) for problem in loaded.problems if problem.severity is Severity.ERROR]


def not_wider(narrowed: WorkspaceSettings, base: WorkspaceSettings) -> bool:
    """Written out key by key, on its own: what `narrow_settings` is held against."""
    limits, most = narrowed.limits, base.limits
    return (
        (narrowed.read_only or not base.read_only)
        and narrowed.off >= base.off
        and (narrowed.git is GitMode.READ_ONLY or base.git is GitMode.COMMIT)
        and (base.network or not narrowed.network)
        and (narrowed.forbid_shell_in_ci or not base.forbid_shell_in_ci)
        and set(narrowed.environment) <= set(base.environment)
        and set(narrowed.readable) <= set(base.readable)
        and set(narrowed.hidden) >= set(base.hidden)
        and set(narrowed.guarded) >= set(base.guarded)
        and (base.repositories or not narrowed.repositories)
        and narrowed.python in (base.python, None)
        and limits.seconds.keys() == most.seconds.keys()
        and all(limits.seconds[name] <= most.seconds[name] for name in most.seconds)
        and all(getattr(limits, key.name) <= getattr(most, key.name) for key in LIMITS.values())
    )


# Without any file


@pytest.mark.req("FRG-12")
def test_without_a_file_the_defaults_hold_and_no_problem_is_told(place: Place) -> None:
    loaded = place.load()
    assert (loaded.settings, loaded.problems, loaded.files, loaded.waiting) == (DEFAULTS, (), (), None)


@pytest.mark.req("FRG-9")
def test_the_defaults_are_the_careful_ones() -> None:
    assert DEFAULTS.network is False
    assert DEFAULTS.git is GitMode.READ_ONLY
    assert DEFAULTS.forbid_shell_in_ci is True
    assert DEFAULTS.repositories is False
    assert {".claude", ".codex", ".gemini", ".mcp.json", ".vscode", ".cursor", ".idea", ".envrc", ".husky"} <= {
        *DEFAULTS.guarded
    }
    assert (DEFAULTS.environment, DEFAULTS.readable) == ((), ())
    assert DEFAULTS.limits.seconds.keys() == set(TOOL_NAMES)


# One file says it all


@pytest.mark.req("FRG-12")
def test_one_file_says_all_of_it(place: Place) -> None:
    loaded = place.trusted("""
read_only: true
tools: {run_lint: off, list_dir: false, read_file: on}
git: commit
network: true
forbid_shell_in_ci: false
environment: [DATABASE_URL, GIT_AUTHOR_NAME]
readable: [~/data, /opt/sdk]
hidden: [".env*", secrets/**]
guarded: {.vscode: off, "*.code-workspace": false, deploy/**: on, .idea: on}
repositories: true
python: .venv/bin/python
limits:
  seconds: {default: 5, run_tests: 900.5, read_file: 7}
  memory_mb: 100
  processes: 20
  file_mb: 3
  output_kb: 4
  kept_mb: 0
  read_kb: 6
  session_calls: 7
  session_seconds: 8.5
  session_mb: 9
""")
    assert loaded.problems == ()
    usual = {name: 5.0 for name, seconds in TOOL_SECONDS.items() if seconds == 30}
    assert loaded.settings == WorkspaceSettings(
        read_only=True,
        off=frozenset({"run_lint", "list_dir"}),
        git=GitMode.COMMIT,
        network=True,
        forbid_shell_in_ci=False,
        environment=("DATABASE_URL", "GIT_AUTHOR_NAME"),
        readable=(Path("/opt/sdk"), place.base / "data"),
        hidden=(".env*", "secrets/**"),
        guarded=(*(name for name in GUARDED if name not in (".vscode", "*.code-workspace")), "deploy/**"),
        repositories=True,
        python=".venv/bin/python",
        limits=Limits(
            seconds=dict(TOOL_SECONDS) | usual | {"run_tests": 900.5, "read_file": 7.0},
            memory=100 * MB,
            processes=20,
            file_size=3 * MB,
            output=4 * KB,
            kept=0,
            read=6 * KB,
            session_calls=7,
            session_seconds=8.5,
            session_bytes=9 * MB,
        ),
    )
    assert [(one.path, one.trust) for one in loaded.files] == [(place.file, FileTrust.TRUSTED)]


@pytest.mark.req("FRG-12")
@pytest.mark.parametrize(
    ("name", "content"), [("workspace.yaml", "read_only: true\n"), ("workspace.json", '{"readOnly": true}')]
)
def test_other_spellings_of_the_file_and_its_keys_count_too(place: Place, name: str, content: str) -> None:
    (place.file.parent / name).write_text(content)
    loaded = place.load()
    assert loaded.settings.read_only
    assert loaded.origins == {"read_only": str(place.file.parent / name)}


def test_of_two_files_the_first_is_read_and_the_other_named(place: Place) -> None:
    (place.file.parent / "workspace.json").write_text('{"read_only": true}')
    loaded = place.load("network: false\n")
    assert not loaded.settings.read_only
    assert "workspace.json beside it" in str(loaded.problems[0])


@pytest.mark.req("FRG-12")
def test_every_file_that_would_be_read_is_told_so_that_changes_are_seen(place: Place) -> None:
    told = settings_files(place.root, place.environ)
    above = place.root.parent / ".toolcrib" / "workspace.yml"
    assert {place.file, place.user_file, above} <= set(told)
    assert place.base / ".toolcrib" / "workspace.yml" not in told, "the home is no project"


# A folder within a project


@pytest.mark.req("FRG-9")
def test_a_project_s_prohibitions_hold_in_every_folder_of_it(place: Place) -> None:
    place.file.write_text("read_only: true\nhidden: [.env*, sub/keys, other]\ntools: {run_tests: off}\n")
    inner = place.root / "sub" / "deeper"
    (inner / ".toolcrib").mkdir(parents=True)
    (inner / ".toolcrib" / "workspace.yml").write_text("read_only: false\nhidden: [own/a, b]\n")
    loaded = load_settings(inner, environ=place.environ)
    assert loaded.settings.read_only
    assert "run_tests" in loaded.settings.off
    folder = Folder(inner, hidden=loaded.settings.hidden, above=loaded.settings.above)
    shown = {
        path for path in ("x", ".env", "a/.env.local", "own/a", "own/b", "c/b", "a") if folder.readable(path_of(path))
    }
    assert shown == {"x", "a"}
    keys = place.root / "sub" / "keys"
    keys.mkdir()
    found = load_settings(keys, environ=place.environ).settings
    assert not Folder(keys, hidden=found.hidden, above=found.above).readable(path_of("any"))


@pytest.mark.parametrize("name", ["a[b]c", "star*", "!bang", "{x,y}", "back\\slash"])
def test_a_folder_s_odd_name_is_no_pattern(place: Place, name: str) -> None:
    place.file.write_text("hidden: [seen]\n")
    inner = place.root / name
    (inner / ".toolcrib").mkdir(parents=True)
    (inner / ".toolcrib" / "workspace.yml").write_text("hidden: [in/here]\n")
    found = load_settings(inner, environ=place.environ).settings
    folder = Folder(inner, hidden=found.hidden, above=found.above)
    assert [folder.readable(path_of(path)) for path in ("in/here", "in/there", "seen", "abc")] == [
        False,
        True,
        False,
        True,
    ]


def path_of(path: str) -> FolderPath:
    return FolderPath(tuple(path.split("/")))


# What is wrong


WRONG: list[tuple[str, str, int, str]] = [
    ("netwrok: true", "netwrok", 1, "Did you mean network?"),
    ("env: [A]", "env", 1, "Did you mean environment?"),
    ("something: 1", "something", 1, "one of read_only"),
    ("read_only: yes", "read_only", 1, 'found "yes", expected true or false'),
    ("read_only: 1", "read_only", 1, "found 1"),
    ("\n\ntools: {run_shell: off}", "tools.run_shell", 3, "Did you mean run_shell_safe?"),
    ("tools: [run_tests]", "tools", 1, "a mapping"),
    ("tools: {run_tests: maybe}", "tools.run_tests", 1, "on or off"),
    ("git: writable", "git", 1, "read-only or commit"),
    ("network: true\nnetwork: false", "network", 2, "a second time"),
    ("read_only: true\nreadOnly: false", "readOnly", 2, "a second value for the same thing"),
    ("environment: PATH", "environment", 1, "a list of texts"),
    ("environment: [A=b]", "environment[0]", 1, "the name of a variable"),
    ("environment: [TOOLCRIB_HOME]", "environment[0]", 1, "private to Toolcrib"),
    ("environment: [toolcrib_token]", "environment[0]", 1, "private to Toolcrib"),
    ("environment: [OK, LD_PRELOAD]", "environment[1]", 1, "which code programs load"),
    ("environment: [PYTHONSTARTUP]", "environment[0]", 1, "which code programs load"),
    ("environment: [BASH_ENV]", "environment[0]", 1, "which code programs load"),
    ("environment: [GIT_SSH_COMMAND]", "environment[0]", 1, "GIT_AUTHOR_*"),
    ("environment: [PATH]", "environment[0]", 1, "The sandbox sets it itself"),
    ('readable: ["~"]', "readable[0]", 1, "your home"),
    ("readable: [/]", "readable[0]", 1, "your home"),
    ("readable: [data]", "readable[0]", 1, "an absolute path"),
    ("readable: [~/a/../.ssh]", "readable[0]", 1, "without .."),
    ("readable: [~/.ssh]", "readable[0]", 1, "Keys are kept there"),
    ("readable: [~/.aws/more]", "readable[0]", 1, "Keys are kept there"),
    ("readable: [~/crib/state]", "readable[0]", 1, "Toolcrib keeps its own files"),
    ("readable: [/proc/self]", "readable[0]", 1, "belongs to the system"),
    ('hidden: ["!.env"]', "hidden[0]", 1, "It can only hide"),
    ('hidden: ["# all"]', "hidden[0]", 1, "It can only hide"),
    ("hidden: [../x]", "hidden[0]", 1, ".., ! and"),
    ("hidden: ['[']", "hidden[0]", 1, "a pattern such as"),
    ("hidden: [1]", "hidden[0]", 1, "text"),
    ("guarded: [.vscode]", "guarded", 1, "a mapping such as"),
    ("guarded: {.vscod: off}", 'guarded[".vscod"]', 1, "Did you mean .vscode?"),
    ("guarded: {deploy/**: off}", 'guarded["deploy/**"]', 1, "off for a pattern that is not guarded by default"),
    ("guarded: {.vscode: maybe}", 'guarded[".vscode"]', 1, "on or off"),
    ('guarded: {"!x": on}', 'guarded["!x"]', 1, "a pattern such as deploy/**"),
    ("guarded: {../x: on}", 'guarded["../x"]', 1, "a pattern such as deploy/**"),
    ("repositories: maybe", "repositories", 1, "true or false"),
    ("python: [python3]", "python", 1, "text"),
    ('python: "a\\nb"', "python", 1, "printable"),
    ("limits: 5", "limits", 1, "a mapping"),
    ("limits: {memory_gb: 4}", "limits.memory_gb", 1, "Did you mean memory_mb?"),
    ("limits: {memory_mb: 1}", "limits.memory_mb", 1, "a whole number from 64 to 1048576"),
    ("limits: {processes: 20.5}", "limits.processes", 1, "a whole number"),
    ("limits: {session_calls: true}", "limits.session_calls", 1, "found true"),
    ("limits: {output_kb: '4'}", "limits.output_kb", 1, "a whole number"),
    ("limits: {seconds: 5}", "limits.seconds", 1, "a mapping"),
    ("limits: {seconds: {run_tets: 5}}", "limits.seconds.run_tets", 1, "Did you mean run_tests?"),
    ("limits: {seconds: {default: 1e9}}", "limits.seconds.default", 1, "a number from 0.1 to 86400"),
    ("limits: {session_seconds: 1e999}", "limits.session_seconds", 1, "a number"),
    ("- read_only", "", 1, "a mapping"),
    ("a: [", "", 2, "YAML"),
    ("read_only: !!python/object:os.system true", "", 1, "a tag"),
]


@pytest.mark.req("FRG-12", "FRG-9")
@pytest.mark.parametrize(("text", "key", "line", "told"), WRONG, ids=[wrong[0].strip()[:40] for wrong in WRONG])
def test_a_mistake_is_told_with_its_place_and_stops_every_tool(
    place: Place, text: str, key: str, line: int, told: str
) -> None:
    loaded = place.trusted(text)
    wrong = [problem for problem in loaded.problems if problem.severity is Severity.ERROR]
    assert [(problem.file, problem.key, problem.line) for problem in wrong] == [(str(place.file), key, line)]
    assert told in str(wrong[0])
    assert not loaded.ok
    assert str(wrong[0]) in loaded.settings.broken
    assert not_wider(loaded.settings, DEFAULTS)
    assert loaded.settings.read_only


@pytest.mark.req("FRG-9")
def test_a_mistake_in_one_line_lets_no_other_line_widen(place: Place) -> None:
    """What was not understood may have been the line that forbids."""
    loaded = place.trusted(
        "netwrok: false\nnetwork: true\ngit: commit\nenvironment: [A]\nreadable: [/opt]\npython: /x\n"
    )
    assert not_wider(loaded.settings, DEFAULTS)
    assert loaded.settings.broken


@pytest.mark.req("FRG-9")
def test_a_mistake_in_the_users_file_is_not_made_good_by_the_projects(place: Place) -> None:
    loaded = place.trusted("network: true\nread_only: false\n", user="red_only: true\n")
    assert "red_only" in loaded.settings.broken
    assert not loaded.settings.network


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_link_in_place_of_the_projects_file_is_not_followed(place: Place, whole_folder: bool) -> None:
    elsewhere = place.base / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "workspace.yml").write_text("read_only: false\n")
    if whole_folder:
        place.file.parent.rmdir()
        place.file.parent.symlink_to(elsewhere)
    else:
        place.file.symlink_to(elsewhere / "workspace.yml")
    loaded = place.load()
    assert "found a link" in loaded.settings.broken


@pytest.mark.parametrize("kind", ["folder", "pipe", "too large", "dangling"])
def test_something_else_in_place_of_the_file_stops_the_tools_and_never_waits(place: Place, kind: str) -> None:
    match kind:
        case "folder":
            place.user_file.mkdir()
        case "pipe":
            os.mkfifo(place.user_file)
        case "too large":
            place.user_file.write_text("#" * (1024 * 1024 + 1))
        case "dangling":
            place.user_file.symlink_to("nowhere")
    assert place.load().settings.broken


# Who may widen


WIDENS = """
network: true
git: commit
environment: [SECRET]
readable: [/opt/sdk]
forbid_shell_in_ci: false
python: ./evil
read_only: false
tools: {run_shell_safe: on}
limits: {memory_mb: 9999, seconds: {run_tests: 9999}}
"""


@pytest.mark.req("FRG-9")
def test_an_untrusted_file_does_not_widen_and_says_what_it_would(place: Place) -> None:
    loaded = place.load(WIDENS, user="read_only: true\ntools: {run_shell_safe: off}\n")
    assert loaded.settings == dataclasses.replace(DEFAULTS, read_only=True, off=frozenset({"run_shell_safe"}))
    assert loaded.waiting is not None and loaded.waiting.file == place.file
    assert loaded.effects == (
        "allows writing and the shell, which are off now (read_only: false)",
        "switches run_shell_safe on",
        "lets commands commit (git: commit)",
        "gives commands network access",
        "allows the shell in CI",
        "gives commands these variables: SECRET",
        "lets commands read /opt/sdk",
        "runs tests and linters with ./evil",
        "raises limits.seconds.run_tests from 600 to 9999",
        "raises limits.memory_mb from 4096 to 9999",
    )
    assert "toolcrib trust" in str(loaded.problems[0])
    assert loaded.problems[0].severity is Severity.WARNING


@pytest.mark.req("FRG-9")
def test_what_an_untrusted_file_forbids_holds_without_a_word(place: Place) -> None:
    loaded = place.load(
        """
read_only: true
tools: {run_tests: off}
hidden: [.env]
environment: [A]
limits: {memory_mb: 64, seconds: {default: 1, run_tests: 2}}
""",
        user="environment: [A, B]\nhidden: [keys]\n",
    )
    assert loaded.problems == ()
    assert loaded.waiting is None
    assert loaded.settings.read_only
    assert loaded.settings.off == {"run_tests"}
    assert loaded.settings.hidden == ("keys", ".env")
    assert loaded.settings.environment == ("A",)
    assert loaded.settings.limits.memory == 64 * MB
    assert loaded.settings.limits.seconds["run_tests"] == 2
    assert loaded.settings.limits.seconds["read_file"] == 1
    assert loaded.origins["tools.run_tests"] == str(place.file)


@pytest.mark.req("FRG-9")
def test_an_untrusted_file_guards_more_and_never_less(place: Place) -> None:
    project = "guarded: {.vscode: off, .idea: off, deploy/**: on}\nrepositories: true\n"
    loaded = place.load(project)
    assert (loaded.settings.guarded, loaded.settings.repositories) == ((*GUARDED, "deploy/**"), False)
    assert loaded.effects == (
        "lets tools and commands write files that other programs obey: .idea, .vscode",
        "lets tools and commands create git repositories",
    )
    assert set(place.trusted(project).settings.guarded) == {*GUARDED, "deploy/**"} - {".vscode", ".idea"}


@pytest.mark.req("FRG-9")
def test_a_file_of_an_inner_folder_guards_there_and_takes_nothing_from_the_outer_one(place: Place) -> None:
    place.file.write_text("guarded: {keys: on}\n")
    inner = place.root / "inner"
    (inner / ".toolcrib").mkdir(parents=True)
    (inner / ".toolcrib" / "workspace.yml").write_text("guarded: {own/a: on, .vscode: off}\n")
    for trusts in (False, True):
        found = load_settings(inner, environ=place.environ, is_trusted=lambda *_, yes=trusts: yes).settings
        folder = Folder(inner, guarded=found.guarded, above=found.above)
        guards = [name for name in ("keys", "own/a", "own", ".idea", ".vscode") if folder.guarded(path_of(name))]
        assert guards == ["keys", "own/a", ".idea", *([] if trusts else [".vscode"])]
        folder.close()


@pytest.mark.req("FRG-9")
def test_trust_is_in_exactly_these_bytes_at_this_place(place: Place) -> None:
    asked: list[tuple[Path, str]] = []

    def is_trusted(path: Path, digest: str) -> bool:
        asked.append((path, digest))
        return True

    assert place.load("network: true\n", is_trusted=is_trusted).settings.network
    assert asked == [(place.file, trust_digest(place.file))]
    assert place.load().waiting.digest == trust_digest(place.file)  # type: ignore[union-attr]
    digest = trust_digest(place.file)
    changed = place.load("network: true\n#\n", is_trusted=lambda _, given: given == digest)
    assert not changed.settings.network
    assert changed.waiting is not None


def test_a_file_with_a_mistake_asks_for_no_trust(place: Place) -> None:
    loaded = place.load("network: true\nfoo: 1\n")
    assert loaded.waiting is None
    assert loaded.settings.broken


@pytest.mark.req("FRG-9")
def test_the_users_file_widens_and_a_trusted_project_goes_beyond_it(place: Place) -> None:
    loaded = place.trusted("read_only: false\nnetwork: true\n", user="read_only: true\ngit: commit\n")
    assert (loaded.settings.read_only, loaded.settings.network, loaded.settings.git) == (False, True, GitMode.COMMIT)
    assert loaded.origins == {
        "read_only": str(place.file),
        "network": str(place.file),
        "git": str(place.user_file),
    }


@pytest.mark.req("FRG-9")
def test_what_the_user_hides_no_trusted_project_shows(place: Place) -> None:
    assert place.trusted("hidden: []\n", user="hidden: [.env]\n").settings.hidden == (".env",)


@pytest.mark.req("FRG-12")
def test_a_file_that_a_person_names_takes_the_projects_place_and_is_trusted(place: Place) -> None:
    chosen = place.base / "mine.yml"
    chosen.write_text("network: true\n")
    loaded = place.load("read_only: true\n", config=chosen)
    assert (loaded.settings.network, loaded.settings.read_only) == (True, False)
    assert [one.trust for one in loaded.files] == [FileTrust.CHOSEN]
    assert "found no file" in place.load(config=place.base / "none.yml").settings.broken


@pytest.mark.req("FRG-9")
def test_the_flag_makes_read_only_whatever_a_file_says(place: Place) -> None:
    loaded = place.trusted("read_only: false\n", read_only=True)
    assert loaded.settings.read_only
    assert loaded.origins["read_only"] == "--read-only"


@pytest.mark.req("FRG-9")
def test_a_readable_folder_inside_the_workspace_is_left_out(place: Place) -> None:
    """Whoever works in the workspace could turn it into a link to anywhere."""
    outside = place.base / "link"
    outside.symlink_to(place.root / "data")
    (place.root / "data").mkdir()
    user = f"readable: [{place.root}/data, {outside}, {place.root}-sibling, {place.base}/code]\n"
    loaded = place.load(user=user)
    assert loaded.settings.readable == (place.base / "code", Path(f"{place.root}-sibling"))


@pytest.mark.req("FRG-9")
def test_a_readable_link_is_judged_by_where_it_leads(place: Place) -> None:
    (place.base / ".ssh").mkdir()
    (place.base / "innocent").symlink_to(place.base / ".ssh")
    assert "Keys are kept there" in place.load(user="readable: [~/innocent]\n").settings.broken


def test_a_users_file_that_everybody_may_write_is_told(place: Place) -> None:
    place.user_file.write_text("network: true\n")
    place.user_file.chmod(0o666)
    assert "everybody may write" in str(place.load().problems[0])


# What holds for every file


names = st.lists(st.sampled_from(["A", "B", "C", "D"]), unique=True).map(lambda found: tuple(sorted(found)))
folders = names.map(lambda found: tuple(Path("/", name) for name in found))


def numbers(most: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=0, max_value=most)


any_limits = st.builds(
    Limits,
    seconds=st.fixed_dictionaries({name: st.floats(min_value=0.1, max_value=1000) for name in TOOL_NAMES}),
    **{key.name: numbers(50) for key in LIMITS.values()},
)
any_settings = st.builds(
    WorkspaceSettings,
    read_only=st.booleans(),
    off=st.frozensets(st.sampled_from(TOOL_NAMES)),
    git=st.sampled_from(GitMode),
    network=st.booleans(),
    forbid_shell_in_ci=st.booleans(),
    environment=names,
    readable=folders,
    hidden=names,
    guarded=names,
    repositories=st.booleans(),
    python=st.none() | st.sampled_from(["a", "b"]),
    limits=any_limits,
    broken=st.sampled_from(["", "x", "y"]),
)


@pytest.mark.req("FRG-9")
@given(any_settings, any_settings)
def test_narrowing_is_never_wider_in_any_key(base: WorkspaceSettings, other: WorkspaceSettings) -> None:
    assert not_wider(narrow_settings(base, other), base)


@pytest.mark.req("FRG-9")
@given(any_settings, any_settings, any_settings)
def test_narrowing_is_idempotent_and_associative(
    one: WorkspaceSettings, two: WorkspaceSettings, three: WorkspaceSettings
) -> None:
    assert narrow_settings(one, one) == one
    assert narrow_settings(narrow_settings(one, two), two) == narrow_settings(one, two)
    assert narrow_settings(narrow_settings(one, two), three) == narrow_settings(one, narrow_settings(two, three))


@pytest.mark.req("FRG-9")
@given(any_settings)
def test_a_key_that_the_file_can_say_can_be_told_apart(one: WorkspaceSettings) -> None:
    """`flat_settings`, which effects and origins stand on, forgets no key."""
    told = flat_settings(one)
    for field in dataclasses.fields(WorkspaceSettings):
        if field.name not in ("limits", "broken", "off", "above"):
            assert field.name in told
    assert {f"limits.{word}" for word in LIMITS} | {f"limits.seconds.{name}" for name in TOOL_NAMES} <= told.keys()
    assert {name for name in TOOL_NAMES if told[f"tools.{name}"] == "off"} == one.off


values: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["on", "off", "commit", "read-only", "~/x", "/opt", "FOO", ".env*", "run_tests", "${HOME}"])
)
words = st.sampled_from(
    [*TOP_KEYS, *LIMITS_KEYS, *SECONDS_KEYS, "readOnly", "off", "sandbox", "unsafe_no_sandbox"]
) | st.text(max_size=6)
documents = st.dictionaries(
    words,
    st.recursive(
        values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=12
    ),
    max_size=6,
)
good_documents = st.fixed_dictionaries(
    {},
    optional={
        "read_only": st.booleans(),
        "tools": st.dictionaries(st.sampled_from(TOOL_NAMES), st.sampled_from(["on", "off"])),
        "git": st.sampled_from(["read-only", "commit"]),
        "network": st.booleans(),
        "forbid_shell_in_ci": st.booleans(),
        "environment": st.lists(st.sampled_from(["A", "B", "C"]), max_size=3),
        "readable": st.lists(st.sampled_from(["/opt/a", "/opt/a/b", "/opt"]), max_size=3),
        "hidden": st.lists(st.sampled_from([".env", "secrets/**"]), max_size=2),
        "guarded": st.dictionaries(st.sampled_from([".vscode", "*.code-workspace"]), st.sampled_from(["on", "off"])),
        "repositories": st.booleans(),
        "python": st.sampled_from(["python3", "/x/python"]),
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "seconds": st.dictionaries(st.sampled_from(SECONDS_KEYS), st.floats(min_value=0.1, max_value=86_400)),
                "memory_mb": st.integers(min_value=64, max_value=100_000),
                "session_calls": st.integers(min_value=1, max_value=100_000),
            },
        ),
    },
)


def check_untrusted(content: bytes, user: str, name: str = "workspace.yml") -> LoadedSettings:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        base = place.load(user=user)
        assert base.settings.broken == ""
        (place.file.parent / name).write_bytes(content)
        loaded = place.load()
        assert not_wider(loaded.settings, base.settings)
        assert all(line.isprintable() for line in (*loaded.effects, *map(str, loaded.problems)))
        assert all(one.trust is not FileTrust.TRUSTED for one in loaded.files)
        return loaded


USERS = ["{}", "network: true\ngit: commit\nenvironment: [A, B]\nreadable: [/opt, /opt/a]\npython: mine\nhidden: [x]\n"]


@pytest.mark.req("FRG-9")
@settings(deadline=None)
@given(documents, st.sampled_from(USERS))
def test_an_untrusted_file_never_widens_whatever_it_holds(document: dict[str, Any], user: str) -> None:
    check_untrusted(json.dumps(document).encode(), user)


@pytest.mark.req("FRG-9")
@settings(deadline=None)
@given(good_documents, st.sampled_from(USERS))
def test_nor_does_one_without_a_mistake(document: dict[str, Any], user: str) -> None:
    loaded = check_untrusted(yaml.safe_dump(document).replace("'on'", "on").encode(), user)
    assert errors(loaded) == []


@pytest.mark.req("FRG-9")
@settings(deadline=None)
@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("ab:{}[]-&*!<>|?#'\"\\,\n \t%@`0.~"), max_size=80).map(str.encode),
    st.sampled_from(["workspace.yml", "workspace.yaml", "workspace.json"]),
)
def test_nor_do_any_bytes(content: bytes, name: str) -> None:
    check_untrusted(content, USERS[1], name)


# The example and the documentation


def uncommented(text: str) -> str:
    """With every setting on; prose has one blank after its `#`."""
    return re.sub(r"^#(?! \S|$)", "", text, flags=re.MULTILINE)


@pytest.mark.req("FRG-12")
@pytest.mark.parametrize("change", [str, uncommented], ids=["as made", "with every line on"])
def test_the_example_changes_nothing(place: Place, change: Callable[[str], str]) -> None:
    loaded = place.load(change(EXAMPLE))
    assert (loaded.settings, loaded.problems) == (DEFAULTS, ())


@pytest.mark.req("FRG-12")
def test_the_example_has_every_key() -> None:
    said = yaml.safe_load(uncommented(EXAMPLE))
    assert set(said) == set(TOP_KEYS)
    assert set(said["limits"]) == set(LIMITS_KEYS)
    assert set(said["tools"]) == set(TOOL_NAMES)


@pytest.mark.req("FRG-12")
def test_every_key_and_its_default_is_documented() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", DOCUMENTATION, re.MULTILINE))
    known = flat_settings(DEFAULTS)
    for word in [
        "limits.seconds.default",
        *(key for key in known if not key.startswith(("tools.", "limits.seconds."))),
    ]:
        default = {"limits.seconds.default": 30, "guarded": "listed"}.get(word, known.get(word))
        shown = {False: "false", True: "true", None: "found"}.get(default, default) if default != [] else "none"  # type: ignore[call-overload]
        assert rows[word].split()[0].strip("`,;").replace(",", "") == str(shown), word
    for name in ("run_tests", "run_lint", "run_shell_safe"):
        assert rows[f"limits.seconds.{name}"].strip() == str(int(TOOL_SECONDS[name]))


@pytest.mark.req("FRG-1")
def test_every_tool_and_what_it_takes_is_documented() -> None:
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.+?) \|", DOCUMENTATION.split("## The tools")[1], re.MULTILINE))
    for tool in TOOLS:
        words = set(re.findall(r"[a-z_]+", rows[tool.name]))
        assert {field.name for field in msgspec.structs.fields(tool.parameters)} - words == set(), tool.name


@pytest.mark.req("FRG-2")
def test_every_option_of_the_server_is_documented() -> None:
    assert [option for option in HELP if f"| `{option}" not in DOCUMENTATION] == []


@pytest.mark.req("FRG-9", "FRG-10")
def test_the_settings_know_every_tool_for_what_it_is() -> None:
    assert {tool.name for tool in TOOLS} == set(TOOL_NAMES)
    sandboxed = {tool.name for tool in TOOLS if tool.needs is ToolNeeds.SANDBOX}
    changing = {tool.name for tool in TOOLS if not tool.reads_only}
    assert changing >= WRITING_TOOLS
    assert changing - WRITING_TOOLS <= sandboxed, "in read-only mode it is off, or the sandbox binds the folder so"
    assert sandboxed >= SHELL_TOOLS


# CI


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, ""),
        ({"CI": "true"}, "CI"),
        ({"CI": "1"}, "CI"),
        ({"CI": "woodpecker"}, "CI"),
        ({"CI": "false"}, ""),
        ({"CI": "FALSE "}, ""),
        ({"CI": "0"}, ""),
        ({"CI": ""}, ""),
        ({"CI": "false", "GITLAB_CI": "true"}, "GITLAB_CI"),
        ({"GITHUB_ACTIONS": "true"}, "GITHUB_ACTIONS"),
        ({"BUILDKITE": "true"}, "BUILDKITE"),
        ({"JENKINS_URL": "http://ci.example/"}, "JENKINS_URL"),
        ({"TF_BUILD": "True"}, "TF_BUILD"),
        ({"TEAMCITY_VERSION": "2026.1"}, "TEAMCITY_VERSION"),
        ({"CIRCLECI": "true"}, "CIRCLECI"),
        ({"TRAVIS": "true"}, "TRAVIS"),
        ({"PATH": "/bin", "CIRCUS": "true"}, ""),
    ],
)
def test_ci_is_known_by_its_variables(environ: dict[str, str], told: str) -> None:
    assert in_ci(environ) == told
