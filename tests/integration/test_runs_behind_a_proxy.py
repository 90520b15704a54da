"""Runs of the real programs where the person has a proxy, which knows nothing of this machine's own addresses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from parts import runs
from parts.daemon import Home
from parts.runs import Desk
from parts.sizes import some
from toolcrib.testing.script import Call
from toolcrib.testing.server import serving

PROXY = "http://127.0.0.1:9"
"""Nobody is there."""
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class InEnvironment(Desk):
    @property
    def environ(self) -> dict[str, str]:
        said = {name: PROXY for upper in NAMES for name in (upper, upper.lower())}
        return {**super().environ, **said, "no_proxy": "elsewhere.example"}


class InTheProgramsFile(Desk):
    """Where the program has variables of its own."""

    def use(self, url: str, *more: object) -> None:
        super().use(url)
        if self.person is runs.CLAUDE:
            file = self.folder / ".claude" / "settings.json"
            settings = json.loads(file.read_text())
            settings["env"] |= dict.fromkeys(NAMES, PROXY)
            file.write_text(json.dumps(settings))
            return
        file = self.folder / (".codex" if self.person is runs.CODEX else ".gemini") / ".env"
        with file.open("a") as opened:
            opened.writelines(f"{name}={PROXY}\n" for name in NAMES)


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5")
@pytest.mark.parametrize(
    ("kind", "profile"),
    some(
        [(InTheProgramsFile, "read-only")],
        [(InEnvironment, "read-only"), (InEnvironment, "trusted"), (InTheProgramsFile, "trusted")],
    ),
)
@pytest.mark.parametrize("client", runs.ALL)
def test_toolcrib_is_asked_directly(
    toolcrib_home: Home, parts: Callable[[str], list[str]], client: str, kind: type[Desk], profile: str
) -> None:
    for name in runs.ALL:
        parts(name)
    (toolcrib_home.project / "note.md").write_text("Words that are there.\n")
    person = runs.ALL[client]
    with (
        runs.desk(person, toolcrib_home, toolcrib_home.project) as desk,
        serving(person.agent.provider, (Call("workspace_read_file", {"path": "note.md"}),)) as model,
    ):
        behind = kind(person=desk.person, home=desk.home, project=desk.project)
        behind.use(model.url)
        told = behind.run("Do it.", "--profile", profile)
    assert "Words that are there." in "".join(model.results), told.out + told.err
