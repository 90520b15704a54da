"""The settings of a workspace: a YAML file, read strictly. An untrusted file only narrows the settings."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from parts.tool_context import make_files, settings_with
from toolcrib.config.model import Severity
from toolcrib.config.trust import trust_digest
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.serving.main import HELP
from toolcrib.workspace.settings import model
from toolcrib.workspace.settings.example import EXAMPLE
from toolcrib.workspace.settings.load import FileTrust, LoadedSettings, load_settings, settings_files
from toolcrib.workspace.settings.model import DEFAULTS, GUARDED, MB, TOOL_NAMES, GitMode, Limits, WorkspaceSettings
from toolcrib.workspace.settings.read import TOP_KEYS
from toolcrib.workspace.tool import ToolNeeds
from toolcrib.workspace.tools import TOOLS

pytestmark = pytest.mark.req("FRG-9", "FRG-12")

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "workspace.md").read_text()


class Files:
    """A user's settings file, and a project's."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.realpath(base))
        self.root = self.base / "code" / "project"
        self.project = self.root / ".toolcrib" / "workspace.yml"
        self.project.parent.mkdir(parents=True)
        self.user = self.base / "crib" / "workspace.yml"
        self.user.parent.mkdir()
        self.environ = {"HOME": str(self.base), "TOOLCRIB_HOME": str(self.base / "crib")}

    def load(self, project: str | None = None, *, user: str | None = None, **more: Any) -> LoadedSettings:
        for file, text in ((self.project, project), (self.user, user)):
            if text is not None:
                file.write_text(text)
        return load_settings(self.root, environ=self.environ, **more)

    def load_trusted(self, project: str, **more: Any) -> LoadedSettings:
        return self.load(project, is_trusted=lambda path, digest: digest == trust_digest(path), **more)

    def inner(self, name: str, settings: str) -> Path:
        """A folder in the project, with its own settings file."""
        make_files(self.root / name, {".toolcrib/workspace.yml": settings})
        return self.root / name


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def paths_of(*paths: str) -> dict[str, FolderPath]:
    return {path: FolderPath(tuple(path.split("/"))) for path in paths}


def readable(root: Path, files: Files, *paths: str) -> list[str]:
    """The paths that the settings of a folder don't hide."""
    found = load_settings(root, environ=files.environ).settings
    folder = Folder(root, hidden=found.hidden, above=found.above)
    return [path for path, parts in paths_of(*paths).items() if folder.readable(parts)]


def not_wider(narrowed: WorkspaceSettings, base: WorkspaceSettings) -> bool:
    """Compares key by key, independently of `narrow_settings`."""
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
        and all(getattr(limits, key.name) <= getattr(most, key.name) for key in model.LIMITS.values())
    )


def test_without_a_file_the_careful_defaults_apply(files: Files):
    loaded = files.load()
    assert (loaded.settings, loaded.problems, loaded.files, loaded.waiting) == (DEFAULTS, (), (), None)
    assert (
        WorkspaceSettings(
            git=GitMode.READ_ONLY,
            network=False,
            forbid_shell_in_ci=True,
            repositories=False,
            environment=(),
            readable=(),
        )
        == DEFAULTS
    )
    assert set(DEFAULTS.guarded) >= {
        *(".claude", ".codex", ".gemini", ".mcp.json", ".vscode", ".cursor", ".idea", ".envrc", ".husky")
    }
    assert DEFAULTS.limits.seconds.keys() == set(TOOL_NAMES)


def test_one_file_can_set_everything(files: Files):
    loaded = files.load_trusted("""
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
    usual = {name: 5.0 for name, seconds in model.TOOL_SECONDS.items() if seconds == 30}
    assert loaded.settings == settings_with(
        read_only=True, off=frozenset({"run_lint", "list_dir"}), git=GitMode.COMMIT, network=True,
        forbid_shell_in_ci=False, environment=("DATABASE_URL", "GIT_AUTHOR_NAME"),
        readable=(Path("/opt/sdk"), files.base / "data"), hidden=(".env*", "secrets/**"),
        guarded=(*(name for name in GUARDED if name not in (".vscode", "*.code-workspace")), "deploy/**"),
        repositories=True, python=".venv/bin/python",
        seconds=dict(model.TOOL_SECONDS) | usual | {"run_tests": 900.5, "read_file": 7.0},
        memory=100 * MB, processes=20, file_size=3 * MB, output=4 * model.KB, kept=0, read=6 * model.KB,
        session_calls=7, session_seconds=8.5, session_bytes=9 * MB,
    )  # fmt: skip
    assert [(one.path, one.trust) for one in loaded.files] == [(files.project, FileTrust.TRUSTED)]


@pytest.mark.parametrize(
    ("name", "content"), [("workspace.yaml", "read_only: true\n"), ("workspace.json", '{"readOnly": true}')]
)
def test_other_spellings_are_read_but_only_one_of_two_files(files: Files, name: str, content: str):
    file = files.project.parent / name
    file.write_text(content)
    loaded = files.load()
    assert loaded.settings.read_only
    assert loaded.origins == {"read_only": str(file)}
    loaded = files.load("network: false\n")
    assert not loaded.settings.read_only
    assert f"{name} next to it" in str(loaded.problems[0])
    files.user.touch(0o666)
    files.user.chmod(0o666)
    assert any("everyone can write" in str(problem) for problem in files.load().problems)


def test_all_files_that_can_have_settings_are_known_so_that_changes_are_noticed(files: Files):
    found = settings_files(files.root, files.environ)
    assert {files.project, files.user, files.root.parent / ".toolcrib" / "workspace.yml"} <= set(found)
    assert files.base / ".toolcrib" / "workspace.yml" not in found, "the home is not a project"


def test_a_projects_prohibitions_apply_in_all_its_folders(files: Files):
    files.project.write_text("read_only: true\nhidden: [.env*, sub/keys, other]\ntools: {run_tests: off}\n")
    inner = files.inner("sub/deeper", "read_only: false\nhidden: [own/a, b]\n")
    loaded = load_settings(inner, environ=files.environ)
    assert loaded.settings.read_only
    assert "run_tests" in loaded.settings.off
    assert readable(inner, files, "x", ".env", "a/.env.local", "own/a", "own/b", "c/b", "a") == ["x", "a"]
    (files.root / "sub" / "keys").mkdir()
    assert readable(files.root / "sub" / "keys", files, "any") == []


@pytest.mark.parametrize("name", ["a[b]c", "star*", "!bang", "{x,y}", "back\\slash"])
def test_special_characters_in_a_folders_name_are_not_a_pattern(files: Files, name: str):
    files.project.write_text("hidden: [seen]\n")
    inner = files.inner(name, "hidden: [in/here]\n")
    assert readable(inner, files, "in/here", "in/there", "seen", "abc") == ["in/there", "abc"]


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
    ("network: true\nnetwork: false", "network", 2, "a duplicate key"),
    ("read_only: true\nreadOnly: false", "readOnly", 2, "a second value for the same setting"),
    ("environment: PATH", "environment", 1, "a list of strings"),
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


@pytest.mark.parametrize(("text", "key", "line", "message"), WRONG, ids=[wrong[0].strip()[:40] for wrong in WRONG])
def test_a_mistake_is_reported_with_its_position_and_disables_every_tool(
    files: Files, text: str, key: str, line: int, message: str
):
    loaded = files.load_trusted(text)
    (error,) = [problem for problem in loaded.problems if problem.severity is Severity.ERROR]
    assert (error.file, error.key, error.line) == (str(files.project), key, line)
    assert message in str(error)
    assert not loaded.ok
    assert str(error) in loaded.settings.broken
    assert not_wider(loaded.settings, DEFAULTS)
    assert loaded.settings.read_only


def test_after_a_mistake_no_other_line_and_no_other_file_widens_the_settings(files: Files):
    """The wrong line may have been a prohibition."""
    wider = "network: true\ngit: commit\nenvironment: [A]\nreadable: [/opt]\npython: /x\n"
    loaded = files.load_trusted("netwrok: false\n" + wider)
    assert not_wider(loaded.settings, DEFAULTS)
    assert loaded.settings.broken
    loaded = files.load_trusted("network: true\nread_only: false\n", user="red_only: true\n")
    assert "red_only" in loaded.settings.broken
    assert not loaded.settings.network


def test_a_link_instead_of_the_projects_file_or_folder_is_not_followed(files: Files):
    files.user.write_text("read_only: false\n")
    files.project.symlink_to(files.user)
    assert "found a link" in files.load().settings.broken
    files.project.unlink()
    files.project.parent.rmdir()
    files.project.parent.symlink_to(files.user.parent)
    assert "found a link" in files.load().settings.broken


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda file: file.write_text("#" * 2**20 + "#"), lambda file: file.symlink_to("nowhere")],
    ids=["folder", "pipe", "too large", "dangling"],
)
@pytest.mark.parametrize("whose", ["user", "project"])
def test_anything_but_a_small_regular_file_disables_the_tools_without_waiting(files: Files, make: Any, whose: str):
    make(getattr(files, whose))
    assert files.load().settings.broken


WIDER = """
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


def test_an_untrusted_file_widens_nothing_and_its_effects_are_listed(files: Files):
    loaded = files.load(WIDER, user="read_only: true\ntools: {run_shell_safe: off}\n")
    assert loaded.settings == settings_with(read_only=True, off=frozenset({"run_shell_safe"}))
    assert loaded.waiting is not None and loaded.waiting.file == files.project
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


def test_prohibitions_of_an_untrusted_file_apply_without_a_warning(files: Files):
    limits = "limits: {memory_mb: 64, seconds: {default: 1, run_tests: 2}}\n"
    project = "read_only: true\ntools: {run_tests: off}\nhidden: [.env]\nenvironment: [A]\n" + limits
    loaded = files.load(project, user="environment: [A, B]\nhidden: [keys]\n")
    assert (loaded.problems, loaded.waiting) == ((), None)
    usual = {name: min(1.0, seconds) if seconds == 30 else seconds for name, seconds in model.TOOL_SECONDS.items()}
    assert loaded.settings == settings_with(
        read_only=True,
        off=frozenset({"run_tests"}),
        hidden=("keys", ".env"),
        environment=("A",),
        memory=64 * MB,
        seconds=usual | {"run_tests": 2.0},
    )
    assert loaded.origins["tools.run_tests"] == str(files.project)


def test_an_untrusted_file_guards_more_and_never_less(files: Files):
    project = "guarded: {.vscode: off, .idea: off, deploy/**: on}\nrepositories: true\n"
    loaded = files.load(project)
    assert (loaded.settings.guarded, loaded.settings.repositories) == ((*GUARDED, "deploy/**"), False)
    assert loaded.effects == (
        "lets tools and commands write files that configure other programs: .idea, .vscode",
        "lets tools and commands create git repositories",
    )
    assert set(files.load_trusted(project).settings.guarded) == {*GUARDED, "deploy/**"} - {".vscode", ".idea"}


def test_an_inner_folders_file_guards_more_there_and_removes_nothing_of_the_outer_one(files: Files):
    files.project.write_text("guarded: {keys: on}\n")
    inner = files.inner("inner", "guarded: {own/a: on, .vscode: off}\n")
    for trusted in (False, True):
        found = load_settings(inner, environ=files.environ, is_trusted=lambda *_, yes=trusted: yes).settings
        folder = Folder(inner, guarded=found.guarded, above=found.above)
        paths = paths_of("keys", "own/a", "own", ".idea", ".vscode").items()
        guarded = [path for path, parts in paths if folder.guarded(parts)]
        assert guarded == ["keys", "own/a", ".idea", *([] if trusted else [".vscode"])]
        folder.close()


def test_trust_applies_to_the_exact_bytes_of_one_file(files: Files):
    asked: list[tuple[Path, str]] = []
    loaded = files.load("network: true\n", is_trusted=lambda *given: asked.append(given) or True)
    digest = trust_digest(files.project)
    assert loaded.settings.network
    assert asked == [(files.project, digest)]
    assert files.load().waiting.digest == digest  # type: ignore[union-attr]
    changed = files.load("network: true\n#\n", is_trusted=lambda _, given: given == digest)
    assert not changed.settings.network
    assert changed.waiting is not None
    broken = files.load("network: true\nfoo: 1\n")
    assert broken.waiting is None, "a file with a mistake needs no trust"
    assert broken.settings.broken


def test_a_trusted_project_widens_the_users_settings_but_hides_no_less(files: Files):
    user = "read_only: true\ngit: commit\nhidden: [.env]\n"
    loaded = files.load_trusted("read_only: false\nnetwork: true\nhidden: []\n", user=user)
    assert loaded.settings == settings_with(network=True, git=GitMode.COMMIT, hidden=(".env",))
    project = str(files.project)
    assert loaded.origins.items() >= {"read_only": project, "network": project, "git": str(files.user)}.items()


def test_options_replace_the_projects_file_or_make_everything_read_only(files: Files):
    chosen = files.base / "mine.yml"
    chosen.write_text("network: true\n")
    loaded = files.load("read_only: true\n", config=chosen)
    assert (loaded.settings.network, loaded.settings.read_only) == (True, False)
    assert [one.trust for one in loaded.files] == [FileTrust.CHOSEN]
    assert "found no file" in files.load(config=files.base / "none.yml").settings.broken
    loaded = files.load_trusted("read_only: false\n", read_only=True)
    assert loaded.settings.read_only
    assert loaded.origins["read_only"] == "--read-only"


def test_a_readable_folder_is_judged_by_its_real_path_and_ignored_inside_the_workspace(files: Files):
    """A command could replace a folder in the workspace with a link to anywhere."""
    link = files.base / "link"
    link.symlink_to(files.root / "data")
    (files.root / "data").mkdir()
    user = f"readable: [{files.root}/data, {link}, {files.root}-sibling, {files.base}/code]\n"
    assert files.load(user=user).settings.readable == (files.base / "code", Path(f"{files.root}-sibling"))
    (files.base / ".ssh").mkdir()
    (files.base / "innocent").symlink_to(files.base / ".ssh")
    assert "Keys are kept there" in files.load(user="readable: [~/innocent]\n").settings.broken


def lists_of(*words: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), max_size=3)


def switches(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), st.sampled_from(["on", "off"]))


names = st.sets(st.sampled_from("ABCD")).map(lambda found: tuple(sorted(found)))
booleans = dict.fromkeys(("read_only", "network", "forbid_shell_in_ci", "repositories"), st.booleans())
any_limits = st.builds(
    Limits,
    seconds=st.fixed_dictionaries({name: st.floats(min_value=0.1, max_value=1000) for name in TOOL_NAMES}),
    **{key.name: st.integers(min_value=0, max_value=50) for key in model.LIMITS.values()},
)
any_settings = st.builds(
    WorkspaceSettings,
    off=st.frozensets(st.sampled_from(TOOL_NAMES)),
    git=st.sampled_from(GitMode),
    readable=names.map(lambda found: tuple(Path("/", name) for name in found)),
    python=st.none() | st.sampled_from(["a", "b"]),
    limits=any_limits,
    broken=st.sampled_from(["", "x", "y"]),
    **booleans,
    **dict.fromkeys(("environment", "hidden", "guarded"), names),
)


@given(any_settings, any_settings, any_settings)
def test_narrowing_is_never_wider_idempotent_and_associative(
    one: WorkspaceSettings, two: WorkspaceSettings, three: WorkspaceSettings
):
    narrowed = model.narrow_settings(one, two)
    assert not_wider(narrowed, one)
    assert model.narrow_settings(one, one) == one
    assert model.narrow_settings(narrowed, two) == narrowed
    assert model.narrow_settings(narrowed, three) == model.narrow_settings(one, model.narrow_settings(two, three))


@given(any_settings)
def test_flat_settings_contain_every_key_of_a_file(one: WorkspaceSettings):
    found = model.flat_settings(one)
    fields = {field.name for field in dataclasses.fields(WorkspaceSettings)} - {"limits", "broken", "off", "above"}
    limits = {f"limits.{word}" for word in model.LIMITS} | {f"limits.seconds.{name}" for name in TOOL_NAMES}
    assert fields | limits <= found.keys()
    assert {name for name in TOOL_NAMES if found[f"tools.{name}"] == "off"} == one.off


values: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["on", "off", "commit", "read-only", "~/x", "/opt", "FOO", ".env*", "run_tests", "${HOME}"])
)
words = st.sampled_from(
    [*TOP_KEYS, *model.LIMITS_KEYS, *model.SECONDS_KEYS, "readOnly", "off", "sandbox", "unsafe_no_sandbox"]
) | st.text(max_size=6)
documents = st.dictionaries(
    words,
    st.recursive(
        values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=12
    ),
    max_size=6,
)
good_limits = {
    "seconds": st.dictionaries(st.sampled_from(model.SECONDS_KEYS), st.floats(min_value=0.1, max_value=86_400)),
    "memory_mb": st.integers(min_value=64, max_value=100_000),
    "session_calls": st.integers(min_value=1, max_value=100_000),
}
good_documents = st.fixed_dictionaries(
    {},
    optional=booleans
    | {
        "tools": switches(*TOOL_NAMES),
        "git": st.sampled_from(["read-only", "commit"]),
        "environment": lists_of("A", "B", "C"),
        "readable": lists_of("/opt/a", "/opt/a/b", "/opt"),
        "hidden": lists_of(".env", "secrets/**"),
        "guarded": switches(".vscode", "*.code-workspace"),
        "python": st.sampled_from(["python3", "/x/python"]),
        "limits": st.fixed_dictionaries({}, optional=good_limits),
    },
)
USERS = ["{}", "network: true\ngit: commit\nenvironment: [A, B]\nreadable: [/opt, /opt/a]\npython: mine\nhidden: [x]\n"]


def check_untrusted(content: bytes, user: str, name: str = "workspace.yml") -> LoadedSettings:
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        base = files.load(user=user)
        assert base.settings.broken == ""
        (files.project.parent / name).write_bytes(content)
        loaded = files.load()
        assert not_wider(loaded.settings, base.settings)
        assert all(line.isprintable() for line in (*loaded.effects, *map(str, loaded.problems)))
        assert all(one.trust is not FileTrust.TRUSTED for one in loaded.files)
        return loaded


@given(documents, good_documents, st.sampled_from(USERS))
def test_an_untrusted_file_never_widens_the_settings(document: Any, good: Any, user: str):
    check_untrusted(json.dumps(document).encode(), user)
    loaded = check_untrusted(yaml.safe_dump(good).replace("'on'", "on").encode(), user)
    assert [problem for problem in loaded.problems if problem.severity is Severity.ERROR] == []


@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("ab:{}[]-&*!<>|?#'\"\\,\n \t%@`0.~"), max_size=80).map(str.encode),
    st.sampled_from(["workspace.yml", "workspace.yaml", "workspace.json"]),
)
def test_random_bytes_never_widen_the_settings(content: bytes, name: str):
    check_untrusted(content, USERS[1], name)


def test_the_example_has_every_key_and_changes_nothing(files: Files):
    # Prose has a blank after its `#`.
    uncommented = re.sub(r"^#(?! \S|$)", "", EXAMPLE, flags=re.MULTILINE)
    for text in (EXAMPLE, uncommented):
        loaded = files.load(text)
        assert (loaded.settings, loaded.problems) == (DEFAULTS, ())
    found = yaml.safe_load(uncommented)
    assert [set(found), set(found["limits"]), set(found["tools"])] == [
        set(TOP_KEYS),
        set(model.LIMITS_KEYS),
        set(TOOL_NAMES),
    ]


def test_every_key_and_its_default_is_documented():
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", DOCUMENTATION, re.MULTILINE))
    known = model.flat_settings(DEFAULTS)
    for word in (
        "limits.seconds.default",
        *(key for key in known if not key.startswith(("tools.", "limits.seconds."))),
    ):
        default = {"limits.seconds.default": 30, "guarded": "listed"}.get(word, known.get(word))
        shown = {False: "false", True: "true", None: "found"}.get(default, default) if default != [] else "none"  # type: ignore[call-overload]
        assert rows[word].split()[0].strip("`,;").replace(",", "") == str(shown), word
    for name in ("run_tests", "run_lint", "run_shell_safe"):
        assert rows[f"limits.seconds.{name}"].strip() == str(int(model.TOOL_SECONDS[name]))


@pytest.mark.req("FRG-1", "FRG-2")
def test_every_tool_argument_and_server_option_is_documented():
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.+?) \|", DOCUMENTATION.split("## The tools")[1], re.MULTILINE))
    for tool in TOOLS:
        words = set(re.findall(r"[a-z_]+", rows[tool.name]))
        assert {field.name for field in msgspec.structs.fields(tool.parameters)} - words == set(), tool.name
    assert [option for option in HELP if f"| `{option}" not in DOCUMENTATION] == []


@pytest.mark.req("FRG-9", "FRG-10")
def test_the_settings_classify_every_tool():
    assert {tool.name for tool in TOOLS} == set(TOOL_NAMES)
    sandboxed = {tool.name for tool in TOOLS if tool.needs is ToolNeeds.SANDBOX}
    changing = {tool.name for tool in TOOLS if not tool.reads_only}
    assert changing >= model.WRITING_TOOLS
    assert changing - model.WRITING_TOOLS <= sandboxed, "in read-only mode it is off, or the sandbox does it"
    assert sandboxed >= model.SHELL_TOOLS


def test_ci_is_detected_by_its_variables():
    for value in ("", "0", "false", "FALSE "):
        assert model.in_ci({"CI": value}) == ""
    for value in ("true", "1", "woodpecker"):
        assert model.in_ci({"CI": value}) == "CI"
    assert model.in_ci({"CI": "false", "GITLAB_CI": "true"}) == "GITLAB_CI"
    for name in ("GITHUB_ACTIONS", "BUILDKITE", "TF_BUILD", "CIRCLECI", "TRAVIS", "JENKINS_URL", "TEAMCITY_VERSION"):
        assert model.in_ci({name: "http://ci.example/" if name == "JENKINS_URL" else "True"}) == name
    assert model.in_ci({"PATH": "/bin", "CIRCUS": "true"}) == model.in_ci({}) == ""
