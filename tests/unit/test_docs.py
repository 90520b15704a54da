"""What the documentation says is so."""

import re
from pathlib import Path

import pytest

from toolcrib.config.keys import AUTH_KEYS, RETRY_KEYS, SERVER_KEYS, TOP_KEYS
from toolcrib.config.layers import load
from toolcrib.config.model import Severity
from toolcrib.config.paths import Paths

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/configuration.md"]
)
def test_links_lead_somewhere(page):
    file = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
        if "://" not in target:
            assert (file.parent / target).exists(), target


def test_every_room_is_on_the_map():
    rooms = {path.parent.name for path in (ROOT / "src" / "toolcrib").glob("*/__init__.py")}
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [room for room in sorted(rooms) if f"| `{room}` |" not in architecture] == []


def test_every_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[a-zA-Z0-9-]+", line)[0] for line in project["dependencies"]]
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in names if f"`{name}`" not in architecture] == []
