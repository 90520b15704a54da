"""The documentation matches the code."""

import ast
import builtins
import inspect
import itertools
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import token_docs
import token_tables
import toolcrib
from parts.run_logs import message, metadata, summary
from parts.stand_in import RunScript, code_agent
from toolcrib import testing
from toolcrib.catalog.snapshot import Catalog
from toolcrib.cli.app import app
from toolcrib.cli.profile_commands import read_profile
from toolcrib.cli.run_command import STOPPED, exit_code
from toolcrib.coding_agents.clients import RUNNABLE
from toolcrib.coding_agents.code_agent import TIMEOUT, CodeAgent
from toolcrib.coding_agents.run_result import RunStatus
from toolcrib.config.keys import AUTH_KEYS, RETRY_KEYS, SERVER_KEYS
from toolcrib.config.layers import load
from toolcrib.config.model import ANNOTATIONS, ListingMode, Severity
from toolcrib.config.paths import Paths
from toolcrib.config.settings import TOP_KEYS
from toolcrib.errors import ConfigError, DaemonNotRunning, NotFound, StoreError, UsageError
from toolcrib.listing.cost import ANTHROPIC, OPENAI, WITHOUT_CACHE, conversation_costs
from toolcrib.policy import BUILTIN, Permission, Profile, profile_from
from toolcrib.servers import environment
from toolcrib.testing import PROVIDERS, Step
from toolcrib.testing.__main__ import step_from

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.req("BNS-3")
def test_every_configuration_key_is_documented():
    words = set(re.findall(r"[a-z_]+", CONFIGURATION))
    known = {*SERVER_KEYS.values(), *AUTH_KEYS.values(), *RETRY_KEYS.values(), *TOP_KEYS} - {"mcp_servers"}
    assert known - words == set()


@pytest.mark.req("BNS-3")
def test_the_example_configuration_loads_without_a_problem(tmp_path):
    example = re.search(r"```yaml\n(.*?)```", CONFIGURATION, re.DOTALL)[1]
    (tmp_path / "config.yml").write_text(example)
    (tmp_path / "src" / "warehouse").mkdir(parents=True)
    environ = {"TOOLCRIB_HOME": str(tmp_path), "HOME": str(tmp_path), "DOCS_TOKEN": "secret-token"}
    config = load(paths=Paths.of_user(environ), root=None, environ=environ)
    assert [str(problem) for problem in config.problems if problem.severity is Severity.ERROR] == []
    assert set(config.servers) == {"files", "docs", "warehouse"}
    assert config.settings.port == int(re.search(r"of the endpoint; (\d+)", CONFIGURATION)[1])


PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("[bde]*/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files_and_headings(page):
    for target, heading in LINK.findall((ROOT / page).read_text()):
        if "://" not in target:
            file = (ROOT / page).parent / target if target else ROOT / page
            assert file.exists(), target
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if heading else []
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not heading or heading in anchors, f"{target}#{heading}"


def test_the_index_links_to_every_page():
    linked = {
        str((ROOT / "docs" / target).resolve()) for target, _ in LINK.findall((ROOT / "docs/index.md").read_text())
    }
    assert [page for page in PAGES if str(ROOT / page) not in linked] == ["docs/index.md"]


def test_the_packages_copy_of_the_readme_has_only_absolute_links():
    hooks = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = README
    for substitution in hooks["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert len(targets) == len(re.findall(r"\]\(", README)) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "(https://raw.githubusercontent.com/toolcrib/toolcrib/main/docs/pictures/terminal.svg)" in text


def test_every_package_is_in_the_architecture():
    packages = {path.parent.name for path in (ROOT / "src" / "toolcrib").glob("*/__init__.py")}
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [package for package in sorted(packages) if f"| `{package}` |" not in architecture] == []


def test_every_file_in_the_architecture_exists():
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "toolcrib" / name).exists()] == []


def test_every_name_in_the_glossary_exists():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    places = [
        place
        for cell in re.findall(r"\| ([^|]*) \|$", glossary, re.MULTILINE)
        for place in re.findall(r"`([\w.]+)`", cell)
    ]
    assert len(places) > 30
    for place in places:
        pkgutil.resolve_name(f"toolcrib.{place}")


def test_every_dependency_has_a_reason():
    project, page = PYPROJECT["project"], (ROOT / "docs" / "dependencies.md").read_text()
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = [re.match(r"[a-zA-Z0-9-]+", line)[0] for line in lines]
    assert [name for name in names if f"`{name}`" not in page] == []


def command_lines(page: str, prefix: str = r"\$ ") -> list[str]:
    """The command lines of a page, without the program."""
    return re.findall(rf"^{prefix}toolcrib (.*)$", (ROOT / page).read_text(), re.MULTILINE)


DOCUMENTED = {
    "README.md": command_lines("README.md"),
    "docs/permissions.md": command_lines("docs/permissions.md"),
    "docs/coding-agents.md": command_lines("docs/coding-agents.md", r"(?:[^|\n]*\| )?"),
}


@pytest.mark.req("FRG-8", "KSI-5")
@pytest.mark.parametrize("line", [line for lines in DOCUMENTED.values() for line in lines])
def test_every_documented_command_line_is_valid(line):
    word, *rest = shlex.split(line.partition(" < ")[0], comments=True)
    command = get_command(app).commands[word].load()
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    # Parses the words and runs nothing.
    command.make_context(word, rest)


def test_every_command_is_in_the_readme():
    assert [word for word in get_command(app).commands if word not in README] == []
    assert all(len(lines) >= 8 for lines in DOCUMENTED.values())


def test_the_variables_of_a_servers_process_are_documented():
    section = CONFIGURATION.split("## What a server's process sees")[1].split("\n## ")[0]
    names = set(re.findall(r"`([A-Z_]+)`", section))
    inherited = environment._ALLOWED | environment._PROXIES | set(environment._ALLOWED_PREFIXES)
    assert names - {"GITHUB_TOKEN"} == {*inherited, environment.MARKER}


def test_every_class_and_module_in_a_docstring_exists():
    """Backticked CamelCase words, and dotted paths that start with one of Toolcrib's packages."""
    sources = ROOT / "src" / "toolcrib"
    known, texts = set(dir(builtins)), []
    for file in sources.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    known.add(name)
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    known.add(name)
                case ast.alias(name=name):
                    known.update(name.split("."))
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts.append((file.relative_to(sources), text))
    packages = {path.parent.name for path in sources.glob("*/__init__.py")}
    stale = []
    for file, text in texts:
        words = re.findall(r"`((?:[A-Z][a-z]+)+)`", text)
        stale += [(str(file), word) for word in words if word not in known | OTHERS_WORDS]
        for path in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text):
            package, *rest = path.split(".")
            place = sources.joinpath(package, *rest)
            exists = place.with_suffix(".py").exists() or place.is_dir() or rest[-1] in {*known, "yml"}
            if package in packages and not exists:
                stale.append((str(file), path))
    assert stale == []


OTHERS_WORDS = {"Arguments", "ToolSearch"}
"""A misspelled key, and a tool of Claude Code."""


AGENTS_PAGE = ROOT / "docs" / "coding-agents.md"
TEXT = AGENTS_PAGE.read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.req("FRG-8")
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_for_coding_agents_runs(program, monkeypatch, capsys):
    made = []
    script = RunScript(about=metadata(), events=(message("I look."),), end=summary())
    monkeypatch.setattr(toolcrib, "CodeAgent", code_agent(script, made), raising=False)
    exec(compile(program, str(AGENTS_PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - Toolcrib's own page
    printed = capsys.readouterr().out
    assert "message" in printed
    assert "finished" in printed
    (asked,) = made
    for name in ("prompt", "conversation"):
        asked.pop(name)
    # The real class accepts the same arguments.
    inspect.signature(CodeAgent).bind(asked.pop("client"), **asked)


@pytest.mark.req("FRG-7")
def test_versions_time_limit_and_exit_codes_are_those_of_the_code():
    assert len(PROGRAMS) == 2
    for client in RUNNABLE:
        assert client.headless is not None
        assert f"{client.title} {'.'.join(map(str, client.headless.oldest))}" in " ".join(TEXT.split())
        assert client.headless.install.removeprefix("npm install -g ") in TEXT
    assert TIMEOUT == 2 * 3600
    table = TEXT.split("| exit code | |")[1].split("\n\n")[0]
    codes = {int(code) for row in re.findall(r"^\| ([0-9, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    ends = {exit_code(status) for status in RunStatus if status not in (RunStatus.RUNNING, RunStatus.KILLED)}
    errors = (UsageError, ConfigError, NotFound, DaemonNotRunning, StoreError)
    assert ends <= codes
    assert STOPPED in codes
    assert {error.exit_code for error in errors} <= codes


PERMISSIONS_PAGE = (ROOT / "docs" / "permissions.md").read_text()
ROWS = re.findall(r"^\| `([^`]+:[^`]+)` \| `([^`]+)` \| (\w+) \| `([^`]+)` \|$", PERMISSIONS_PAGE, re.MULTILINE)


def example() -> Profile:
    found = re.search(r"```yaml\n(.*?)```", PERMISSIONS_PAGE, re.DOTALL)
    assert found is not None
    return profile_from("mine", {key: value for key, value in read_profile("mine", found[1]).items() if key != "name"})


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize(("name", "arguments", "verdict", "rule"), ROWS)
def test_the_example_profile_decides_as_documented(name, arguments, verdict, rule):
    server, _, tool = name.partition(":")
    listing = {server: (json.dumps({"name": tool}).encode(),)}
    (known,) = Catalog.build(listing, version=1, folders={server: "/repo"}).tools
    decision = Permission(example(), agent="x", workdir=Path("/repo")).decide(known, json.loads(arguments))
    assert (str(decision.verdict), decision.rule.removeprefix("profile mine: ")) == (verdict, rule)


@pytest.mark.req("KSI-5")
def test_every_verdict_profile_and_annotation_is_documented():
    assert ({row[2] for row in ROWS}, len(ROWS)) == ({"allow", "deny", "ask"}, 11)
    profiles = re.findall(r"^\| `([a-z-]+)` \| [a-zE]", PERMISSIONS_PAGE.split("## Profiles")[1], re.MULTILINE)
    assert profiles == list(BUILTIN)
    assert all(f"`{claim}`" in PERMISSIONS_PAGE for claim in ANNOTATIONS)
    assert all(f"`{test}: " in PERMISSIONS_PAGE for test in ("under", "one_of", "matches"))


def test_the_measured_tables_and_the_picture_are_those_of_the_recorded_figures():
    figures, page = token_tables.read(), (ROOT / "docs" / "listing.md").read_text()
    assert [name for _, name, _ in token_tables.PLACE.findall(page)] == ["lists", "callers", "prices", "clients"]
    assert token_tables.with_tables(page, figures) == page
    assert token_tables.picture(figures["prices"]) == token_tables.PICTURE.read_text()
    shares = {row["prices"]: [row["thin"], row["search"], row["handshake"]] for row in figures["prices"]}
    for prices in (ANTHROPIC, OPENAI, WITHOUT_CACHE):
        lists = {mode: next(reversed(figures["lists"]))[mode] for mode in ("full", "thin", "search")}
        costs = conversation_costs({ListingMode(mode): tokens for mode, tokens in lists.items()}, prices)
        assert shares[prices.provider] == [round(100 * costs[mode], 1) for mode in ("thin", "search", "handshake")]
    asked = f"Anthropic asks {ANTHROPIC.write:g} for writing the cache, {ANTHROPIC.read:g} for reading it and "
    asked += f"{ANTHROPIC.output:g} for output; OpenAI {OPENAI.write:g}, {OPENAI.read:g} and {OPENAI.output:g}."
    assert asked in " ".join(page.split())


TESTING_PAGE = (ROOT / "docs" / "testing.md").read_text()
EXAMPLES = ROOT / "examples"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TESTING_PAGE, re.DOTALL | re.MULTILINE)


def test_the_table_of_our_own_tools_has_their_tokens():
    assert token_docs.table() in (ROOT / "docs/listing.md").read_text()


def test_the_testing_page_shows_the_current_example():
    agent, test, _ = blocks("python")
    assert agent == (EXAMPLES / "testing" / "my_agent.py").read_text()
    assert test == (EXAMPLES / "testing" / "test_my_agent.py").read_text()


def test_the_testing_example_passes_in_a_separate_project(tmp_path):
    shutil.copytree(EXAMPLES / "testing", tmp_path / "testing", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLES / "clock_server.py", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "testing"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE), ran.stdout


def test_every_provider_step_and_script_of_the_testing_page_is_valid():
    for name, made in PROVIDERS.items():
        assert f"| `{name}` |" in TESTING_PAGE
        assert f"`http://127.0.0.1:PORT{made().base}` |" in TESTING_PAGE
    public = {name: getattr(testing, name) for name in testing.__all__}
    steps = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, Step)}
    assert {name for name in steps - {"Step"} if f"| `{name}(" not in TESTING_PAGE} == set()
    missing = {name for name in public if not re.search(rf"\b{name}\b", TESTING_PAGE)}
    assert missing <= {"PROVIDERS", "RecordedRequest"}
    [script] = blocks("json")
    assert len([step_from(step) for step in json.loads(script)["steps"]]) == 8
