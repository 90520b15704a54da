"""First contact with the library: completion, help(), tracebacks, types, import time, and errors in sources."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

import toolcrib
from toolcrib.config.from_code import with_servers_of
from toolcrib.config.model import Config
from toolcrib.core.crib import Crib
from toolcrib.errors import ConfigError, UsageError

LIMIT = 120.0
ROOT = Path(__file__).parents[2]


def test_the_traceback_of_an_error_has_the_remedy() -> None:
    error = UsageError("It cannot be.", remedy="Do this.")
    assert traceback.format_exception_only(error) == ["toolcrib.errors.UsageError: It cannot be. Do this.\n"]
    assert (error.message, error.text()) == ("It cannot be.", "It cannot be. Do this.")
    error.remedy = ""
    assert str(error) == "It cannot be."


def test_completion_has_every_name() -> None:
    assert {*toolcrib.__all__, "__name__", "__doc__"} <= set(dir(toolcrib))


@pytest.mark.parametrize("name", sorted({*toolcrib.__all__} - {"__version__"}))
def test_every_name_has_a_docstring(name: str) -> None:
    found = getattr(toolcrib, name)
    text = found.__doc__ or ""
    assert text, name
    assert not text.startswith(f"{name}("), "only the dataclass's generated docstring"
    if inspect.isclass(found) and issubclass(found, toolcrib.ToolProvider):
        methods = inspect.getmembers(found, inspect.isfunction)
        assert [key for key, one in methods if not key.startswith("_") and not inspect.getdoc(one)] == []


def test_importing_the_library_loads_no_database_engine() -> None:
    code = "import sys; from toolcrib import Crib; print([m for m in sys.modules if '.dialects.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.soak
def test_an_event_handler_gets_the_type_of_its_events(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from toolcrib import Kit
            from toolcrib.events import CallFinished, CallIntended, Event

            def handle(event: Event) -> None: ...

            kit = Kit([])
            kit.subscribe(lambda event: event.tool, CallFinished)
            kit.subscribe(lambda event: event.tool, CallFinished, CallIntended)
            kit.subscribe(handle)
            kit.subscribe(handle, CallFinished)
            kit.subscribe(lambda event: event.nothing, CallFinished)
            """
        )
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path, check=False)
    assert done.stdout == f'{program.name}:12: error: "CallFinished" has no attribute "nothing"  [attr-defined]\n'


@pytest.mark.parametrize("source", [[], 3, b"x", ("a",)])
def test_an_invalid_source_of_servers_is_refused(source: object) -> None:
    with pytest.raises(UsageError, match=r"cannot be a .*servers"):
        Crib.from_config(source)  # type: ignore[arg-type]


def test_an_error_in_a_file_has_a_line_and_one_in_a_mapping_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        with_servers_of({"servers": {"a": {"command": 3.5}}}, Config(), environ={})
    assert raised.value.message.startswith("the configuration: servers.a.command: found")
    file = tmp_path / "servers.json"
    file.write_text('{"servers":\n {"a": {"command": 3.5}}}')
    (problem,) = with_servers_of(file, Config(), environ={}).problems
    assert problem.line == 2


BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONFIG = f"""
[mypy]
mypy_path = {ROOT / "examples" / "testing"}:{ROOT / "src"}
[mypy-toolcrib.*]
follow_imports = silent
[mypy-anthropic.*,google.*,httpx2.*,mcp.*,openai.*,psycopg.*,pydantic.*,pydantic_ai.*,sqlalchemy.*,starlette.*,uvicorn.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""The SDKs are skipped: checking them takes a minute."""


def test_the_programs_of_the_documentation_and_the_examples_pass_mypy(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "library.md").read_text()
    programs = [block for block in BLOCK.findall(page) if "asyncio.run(" in block]
    assert len(programs) > 5
    for number, program in enumerate(programs):
        (tmp_path / f"page_{number}.py").write_text(program)
    examples = [file for folder in ("library", "testing") for file in (ROOT / "examples" / folder).glob("*.py")]
    assert len(examples) >= 5
    (tmp_path / "mypy.ini").write_text(CONFIG)
    mypy = ["-m", "mypy", "--strict", "--config-file", "mypy.ini", "--cache-dir", str(ROOT / ".mypy_cache" / "page")]
    command = [sys.executable, *mypy, *sorted(file.name for file in tmp_path.glob("*.py")), *map(str, examples)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
