"""What a program's author meets before reading any page: completion, help(), tracebacks, types, the wait for import."""

from __future__ import annotations

import inspect
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


def test_an_error_that_nobody_caught_says_what_to_do() -> None:
    error = UsageError("It cannot be.", remedy="Do this.")
    assert traceback.format_exception_only(error) == ["toolcrib.errors.UsageError: It cannot be. Do this.\n"]
    assert (error.message, error.text()) == ("It cannot be.", "It cannot be. Do this.")
    error.remedy = ""
    assert str(error) == "It cannot be."


def test_completion_knows_every_name_before_it_is_loaded() -> None:
    assert set(toolcrib.__all__) <= set(dir(toolcrib))
    assert {"__name__", "__doc__"} <= set(dir(toolcrib))


@pytest.mark.parametrize("name", sorted({*toolcrib.__all__} - {"__version__"}))
def test_help_has_words_for_every_name(name: str) -> None:
    found = getattr(toolcrib, name)
    words = found.__doc__ or ""
    assert words, name
    assert not words.startswith(f"{name}("), "only what dataclass makes of the fields"
    if inspect.isclass(found) and issubclass(found, toolcrib.ToolProvider):
        methods = inspect.getmembers(found, inspect.isfunction)
        assert [key for key, one in methods if not key.startswith("_") and not inspect.getdoc(one)] == []


def test_importing_the_library_does_not_load_the_engine_that_is_not_used() -> None:
    code = "import sys; from toolcrib import Crib; print([m for m in sys.modules if '.dialects.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.soak
def test_a_handler_has_the_type_of_what_it_listens_to(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from toolcrib import Kit
            from toolcrib.events import CallFinished, CallIntended, Event

            def hear(event: Event) -> None: ...

            kit = Kit([])
            kit.subscribe(lambda event: event.tool, CallFinished)
            kit.subscribe(lambda event: event.tool, CallFinished, CallIntended)
            kit.subscribe(hear)
            kit.subscribe(hear, CallFinished)
            kit.subscribe(lambda event: event.nothing, CallFinished)
            """
        )
    )
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path, check=False)
    assert done.stdout == f'{program.name}:12: error: "CallFinished" has no attribute "nothing"  [attr-defined]\n'


@pytest.mark.parametrize("source", [[], 3, b"x", ("a",)])
def test_a_source_that_is_none_is_refused_at_once(source: object) -> None:
    with pytest.raises(UsageError, match=r"cannot be a .*servers"):
        Crib.from_config(source)  # type: ignore[arg-type]


def test_a_mistake_in_a_mapping_has_no_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        with_servers_of({"servers": {"a": {"command": 3.5}}}, Config(), environ={})
    assert told.value.message.startswith("the configuration: servers.a.command: found")
    file = tmp_path / "servers.json"
    file.write_text('{"servers":\n {"a": {"command": 3.5}}}')
    (problem,) = with_servers_of(file, Config(), environ={}).problems
    assert problem.line == 2
