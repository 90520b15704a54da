"""Every scenario exists for every coding agent and is part of `make test`."""

from __future__ import annotations

from pathlib import Path

from gherkin.parser import Parser

from parts import runs

TESTS = Path(__file__).parent.parent
FEATURES = TESTS / "features"
AGENTS = sorted(runs.ALL)


def test_every_scenario_runs_with_every_coding_agent() -> None:
    feature = Parser().parse((FEATURES / "40_mcp_tools.feature").read_text())["feature"]
    assert [tag["name"] for tag in feature["tags"]] == ["@mcp", "@e2e"]
    outlines = [child["scenario"] for child in feature["children"] if "scenario" in child]
    assert len(outlines) >= 7
    for outline in outlines:
        rows = [row for examples in outline["examples"] for row in examples["tableBody"]]
        assert sorted({row["cells"][0]["value"] for row in rows}) == AGENTS, outline["name"]
    assert '\nscenarios("40_mcp_tools.feature")\n' in (FEATURES / "test_mcp_tools.py").read_text()


def test_the_scenarios_are_part_of_make_test() -> None:
    lines = (TESTS.parent / "Makefile").read_text().splitlines()
    target = lines[lines.index("test: check") + 1 :]
    assert any(line.startswith("\t$(PYTEST)") and line.split()[-1] == "tests" for line in target[: target.index("")])
