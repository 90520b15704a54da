"""What docs/testing.md says is so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from toolcrib import testing
from toolcrib.testing import PROVIDERS, Step
from toolcrib.testing.__main__ import step_from

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
EXAMPLES = ROOT / "examples"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_example_as_it_is() -> None:
    agent, test, _ = blocks("python")
    assert agent == (EXAMPLES / "testing" / "my_agent.py").read_text()
    assert test == (EXAMPLES / "testing" / "test_my_agent.py").read_text()


def test_the_example_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "testing", tmp_path / "testing", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLES / "clock_server.py", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "testing"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE), ran.stdout


def test_every_provider_and_every_step_is_on_the_page() -> None:
    for name, made in PROVIDERS.items():
        assert f"| `{name}` |" in PAGE
        assert f"`http://127.0.0.1:PORT{made().base}` |" in PAGE
    steps = {
        name for name in testing.__all__ if isinstance(one := getattr(testing, name), type) and issubclass(one, Step)
    }
    assert {name for name in steps - {"Step"} if f"| `{name}(" not in PAGE} == set()
    assert {name for name in testing.__all__ if not re.search(rf"\b{name}\b", PAGE)} <= {"PROVIDERS", "RecordedRequest"}


def test_the_script_on_the_page_can_be_read() -> None:
    [script] = blocks("json")
    assert len([step_from(step) for step in json.loads(script)["steps"]]) == 8
