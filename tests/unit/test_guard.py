"""The guard of `make check` finds each violation, and the walk counts calls correctly."""

import json
import sys
from pathlib import Path

import pytest

import guard
import walk


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "one.py").write_text("import json\n\n\nclass One:\n    pass\n\n\nclass _Hidden:\n    pass\n")
    (folder / "two.py").write_text("class Two:\n    pass\n\n\nclass _Hidden:\n    pass\n")
    return folder


def found(package: Path, *allowed: dict[str, str]) -> list[str]:
    return guard.violations(guard.read_sources(package), allowed)


def test_two_public_classes_with_the_same_name_are_found_even_inside_functions(package):
    assert found(package) == []
    (package / "sub").mkdir()
    (package / "sub" / "three.py").write_text("def make():\n    class One:\n        pass\n    return One\n")
    [loss] = found(package)
    assert all(part in loss for part in ("class One", "one.py:4", "sub/three.py:2"))


@pytest.mark.parametrize(
    ("statement", "module"),
    [("import json", "json"), ("from a.b import c", "a.b"), ("from . import c", "."), ("import a, b", "a, b")],
)
def test_an_import_inside_a_function_needs_an_entry_with_a_reason(package, statement, module):
    (package / "late.py").write_text(f"class C:\n    async def f(self):\n        def g():\n            {statement}\n")
    entry = {"file": "late.py", "module": module}
    [loss] = found(package)
    assert loss.startswith(f"late.py: {module} is imported inside a function")
    [loss] = found(package, {**entry, "reason": ""})
    assert "is imported inside a function" in loss
    assert found(package, {**entry, "reason": "It is slow."}) == []


@pytest.mark.parametrize("call", ["import_module(name)", "importlib.import_module(name)", "__import__(name)"])
def test_an_import_by_name_inside_a_function_needs_a_reason_too(package, call):
    (package / "late.py").write_text(f"import importlib\n\n\ndef f(name):\n    return {call}\n")
    [loss] = found(package)
    assert loss.startswith("late.py: a module is imported by its name inside a function")
    assert found(package, {"file": "late.py", "module": guard.BY_NAME, "reason": "It is slow."}) == []


def test_the_list_of_late_imports_is_short_and_has_no_stale_entry(package):
    [loss] = found(package, {"file": "one.py", "module": "json", "reason": "It is slow."})
    assert "no import of json inside a function" in loss
    modules = [f"m{number}" for number in range(guard.MAX_LATE_IMPORTS + 1)]
    (package / "late.py").write_text("def f():\n" + "".join(f"    import {module}\n" for module in modules))
    [loss] = found(package, *({"file": "late.py", "module": module, "reason": "It is slow."} for module in modules))
    assert loss.startswith(f"{len(modules)} imports are inside functions")


def test_a_file_that_is_too_long_is_found(package):
    (package / "long.py").write_text("\n" * guard.MAX_LINES)
    assert found(package) == []
    (package / "long.py").write_text("\n" * (guard.MAX_LINES + 1))
    [loss] = found(package)
    assert loss.startswith(f"long.py: {guard.MAX_LINES + 1} lines")


def test_calls_may_grow_by_a_tenth():
    for calls, losses in {90: 0, 100: 0, 110: 0, 111: 1}.items():
        assert len(list(guard.more_calls({walk.CALL: 100}, {walk.CALL: calls}))) == losses
    [loss] = guard.more_calls({}, {walk.LIST: 1})
    assert "--record" in loss


def test_recording_writes_the_current_calls(package, tmp_path, monkeypatch, capsys):
    figures, late = tmp_path / "figures.json", tmp_path / "late.toml"
    late.write_text("allowed = []\n")
    figures.write_text(json.dumps({walk.CALL: 100, walk.LIST: 10}))
    for name, value in (("SOURCES", package), ("FIGURES", figures), ("LATE_IMPORTS", late)):
        monkeypatch.setattr(guard, name, value)
    monkeypatch.setattr(guard, "count_calls", lambda: {walk.CALL: 200, walk.LIST: 10})
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    assert guard.main() == 1
    assert capsys.readouterr().out.startswith("tools/call: 200 calls, but 100 are recorded.")
    monkeypatch.setattr(sys, "argv", ["guard.py", "--record"])
    assert guard.main() == 0
    assert json.loads(figures.read_text()) == {walk.CALL: 200, walk.LIST: 10}


def test_the_recorded_figures_are_those_that_the_guard_counts():
    assert json.loads(guard.FIGURES.read_text()).keys() == {walk.CALL, walk.LIST}


async def test_a_walk_counts_each_call_in_the_package_once(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    files = {
        "one/a.py": "import asyncio\nasync def ask(b):\n    await asyncio.sleep(0)\n    return [b(n) for n in 'xy']\n",
        "two/b.py": "def twice(n):\n    return once(n) * 2\ndef once(n):\n    return n\n",
    }
    spaces = {}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        exec(compile(text, str(tmp_path / name), "exec"), spaces.setdefault(name, {}))  # noqa: S102
    monkeypatch.setattr(walk, "PACKAGE", tmp_path)
    ask, twice = spaces["one/a.py"]["ask"], spaces["two/b.py"]["twice"]
    with walk.Recorder().installed() as recorder:
        found = await recorder.record(lambda: ask(twice))  # type: ignore[operator]
    expected = [("one/a.py", "ask", 0), *[("two/b.py", "twice", 1), ("two/b.py", "once", 2)] * 2]
    assert [(one.file, one.function, one.depth) for one in found.calls] == expected
    assert found.files == {"one/a.py": 1, "two/b.py": 4}
    assert found.changes == 2
