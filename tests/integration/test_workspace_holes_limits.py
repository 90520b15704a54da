"""Limits per call and per session, at every tool that they are for."""

from __future__ import annotations

import pytest

from parts import holes, sides, traps
from parts.holes import CALLS
from parts.sides import PLAIN, limited
from parts.traps import Ground

pytestmark = [pytest.mark.req("FRG-10"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]


def test_every_tool_counts_as_a_call_and_none_goes_beyond(tame: Ground, environ: dict[str, str]) -> None:
    for tool, arguments in CALLS.items():
        before = traps.seen(tame.root)
        with sides.in_process(tame.root, limited(session_calls=1), environ=environ) as side:
            assert not side.call("stat_file", path="notes.txt").is_error
            said = side.call(tool, **arguments)
        assert said.is_error, tool
        assert "session_calls" in said.text
        assert traps.seen(tame.root) == before


@pytest.mark.parametrize("form", [form for form, (tool, _) in holes.WRITE_FORMS.items() if tool == "write_file"])
def test_no_way_of_writing_goes_beyond_the_session_s_bytes(tame: Ground, environ: dict[str, str], form: str) -> None:
    tool, arguments = holes.WRITE_FORMS[form]
    written = 0
    with sides.in_process(tame.root, limited(session_bytes=40), environ=environ) as side:
        for number in range(30):
            said = side.call(tool, **arguments("made.txt" if "append" in form else f"made{number}.txt"))
            if said.is_error:
                break
            written += said.data["written"]
        assert "session_mb" in said.text, said
        # Nor can what is used up be had by editing.
        assert "session_mb" in side.call("edit_file", path="notes.txt", old="plain", new="p" * 40).text
    assert written <= 40
    made = sum(path.stat().st_size for path in tame.root.glob("made*"))
    assert made <= 40


def test_one_large_write_is_refused_before_anything_is_written(tame: Ground, environ: dict[str, str]) -> None:
    before = traps.seen(tame.root)
    with sides.in_process(tame.root, limited(session_bytes=100, file_size=50), environ=environ) as side:
        assert side.call("write_file", path="made", content="x" * 101).is_error
        assert side.call("write_file", path="notes.txt", content="x" * 101, mode="append").is_error
        assert side.call("edit_file", path="notes.txt", old="plain", new="x" * 101).is_error
        assert side.call("write_file", path="made", content="x" * 60).is_error
    assert traps.seen(tame.root) == before


@pytest.mark.parametrize("tool", ["run_shell_safe", "run_tests", "run_lint", "project_diff"])
def test_what_runs_ends_at_its_time(tame: Ground, environ: dict[str, str], tool: str) -> None:
    """Each of them would take ten minutes, by code of the project's own."""
    root, sleep = tame.root, "import time\ntime.sleep(600)\n"
    (root / "test_ok.py").write_text(f"def test_it():\n    {sleep.replace(chr(10), '; ').rstrip('; ')}\n")
    (root / "slow.py").write_text(f"{sleep}def plugin(version): ...\n")
    (root / "mypy.ini").write_text("[mypy]\nplugins = ./slow.py\n")
    calls = {**CALLS, "run_shell_safe": {"command": "sleep 600"}, "run_lint": {"tools": ["mypy"]}}
    if tool == "project_diff":
        traps.git(root, "config", "filter.slow.clean", "sleep 600; cat")
        (root / ".gitattributes").write_text("notes.txt filter=slow\n")
        (root / "notes.txt").write_text("changed\n")
    seconds = {**PLAIN.limits.seconds, tool: 2.0}
    with sides.in_process(root, limited(seconds=seconds), environ=environ) as side:
        side.call("stat_file", path=".")
        said = side.call(tool, **calls[tool])
    assert "2 s" in said.text or "2 seconds" in said.text, said


def test_commands_of_a_session_end_when_its_seconds_are_used_up(tame: Ground, environ: dict[str, str]) -> None:
    with sides.in_process(tame.root, limited(session_seconds=0.5), environ=environ) as side:
        side.sh("sleep 60")
        for tool in ("run_shell_safe", "run_tests", "run_lint", "project_diff"):
            said = side.call(tool, **CALLS[tool])
            assert said.is_error
            assert "session_seconds" in said.text, said
        assert not side.call("read_file", path="notes.txt").is_error
