"""docs/permissions.md says what is so: its profile, its table of decisions, its commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from toolcrib.catalog.snapshot import Catalog
from toolcrib.cli.app import app
from toolcrib.cli.profile_commands import read_profile
from toolcrib.config.model import ANNOTATIONS
from toolcrib.policy import BUILTIN, Permission, Profile, profile_from

pytestmark = pytest.mark.req("KSI-5")

PAGE = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
ROWS = re.findall(r"^\| `([^`]+:[^`]+)` \| `([^`]+)` \| (\w+) \| `([^`]+)` \|$", PAGE, re.MULTILINE)
COMMANDS = re.findall(r"^\$ toolcrib (.*)$", PAGE, re.MULTILINE)


def example() -> Profile:
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return profile_from("mine", {key: value for key, value in read_profile("mine", found[1]).items() if key != "name"})


@pytest.mark.parametrize(("name", "arguments", "verdict", "rule"), ROWS)
def test_each_row_of_the_table_is_what_the_profile_decides(name: str, arguments: str, verdict: str, rule: str) -> None:
    server, _, tool = name.partition(":")
    listing = {server: (json.dumps({"name": tool}).encode(),)}
    (known,) = Catalog.build(listing, version=1, folders={server: "/repo"}).tools
    decision = Permission(example(), agent="x", workdir=Path("/repo")).decide(known, json.loads(arguments))
    assert (str(decision.verdict), decision.rule.removeprefix("profile mine: ")) == (verdict, rule)


def test_the_table_shows_every_verdict() -> None:
    assert {row[2] for row in ROWS} == {"allow", "deny", "ask"}
    assert len(ROWS) == 11


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one(line: str) -> None:
    word, *rest = shlex.split(line, comments=True)
    command = get_command(app).commands[word].load()
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    # Reads the words and runs nothing.
    command.make_context(word, rest)


def test_every_profile_and_claim_is_documented() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \| [a-zE]", PAGE.split("## Profiles")[1], re.MULTILINE) == list(BUILTIN)
    assert all(f"`{claim}`" in PAGE for claim in ANNOTATIONS)
    assert all(f"`{test}: " in PAGE for test in ("under", "one_of", "matches"))
    assert len(COMMANDS) == 8
