"""The documentation matches the code."""

import ast
import builtins
import itertools
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from toolcrib.cli.app import app
from toolcrib.config.keys import AUTH_KEYS, RETRY_KEYS, SERVER_KEYS
from toolcrib.config.layers import load
from toolcrib.config.model import Severity
from toolcrib.config.paths import Paths
from toolcrib.config.settings import TOP_KEYS
from toolcrib.servers import environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.req("BNS-3")
def test_every_key_is_documented():
    words = set(re.findall(r"[a-z_]+", CONFIGURATION))
    known = {*SERVER_KEYS.values(), *AUTH_KEYS.values(), *RETRY_KEYS.values(), *TOP_KEYS} - {"mcp_servers"}
    assert known - words == set()


@pytest.mark.req("BNS-3")
def test_the_example_configuration_loads_without_a_word(tmp_path):
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


def test_the_index_leads_to_every_page():
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


def test_every_package_is_on_the_map():
    packages = {path.parent.name for path in (ROOT / "src" / "toolcrib").glob("*/__init__.py")}
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [package for package in sorted(packages) if f"| `{package}` |" not in architecture] == []


def test_every_file_that_the_map_names_exists():
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "toolcrib" / name).exists()] == []


def test_every_place_that_the_glossary_names_exists():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    places = [
        place
        for cell in re.findall(r"\| ([^|]*) \|$", glossary, re.MULTILINE)
        for place in re.findall(r"`([\w.]+)`", cell)
    ]
    assert len(places) > 30
    for place in places:
        pkgutil.resolve_name(f"toolcrib.{place}")


def test_every_dependency_has_its_reason():
    project, page = PYPROJECT["project"], (ROOT / "docs" / "dependencies.md").read_text()
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = [re.match(r"[a-zA-Z0-9-]+", line)[0] for line in lines]
    assert [name for name in names if f"`{name}`" not in page] == []


COMMANDS = re.findall(r"^\$ toolcrib (.*)$", README, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_readme_is_one(line):
    word, *rest = shlex.split(line, comments=True)
    # Reads the words and runs nothing.
    get_command(app).commands[word].load().make_context(word, rest)


def test_every_command_is_named_in_the_readme():
    assert [word for word in get_command(app).commands if word not in README] == []
    assert len(COMMANDS) > 8


def test_what_a_servers_process_sees_is_documented():
    told = CONFIGURATION.split("## What a server's process sees")[1].split("\n## ")[0]
    names = set(re.findall(r"`([A-Z_]+)`", told))
    inherited = environment._ALLOWED | environment._PROXIES | set(environment._ALLOWED_PREFIXES)
    assert names - {"GITHUB_TOKEN"} == {*inherited, environment.MARKER}


def test_every_class_and_module_that_a_docstring_names_exists():
    """Backticked CamelCase words, and dotted paths that begin with a package of ours."""
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
"""A misspelt key, and a tool of Claude Code's."""
