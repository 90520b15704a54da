"""Runs of the real programs behind a proxy that cannot reach this machine's own addresses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from parts import runs
from parts.runs import ProgramUser
from parts.sizes import some
from toolcrib.testing.script import Call
from toolcrib.testing.server import ScriptedModel

PROXY = "http://127.0.0.1:9"
"""Nothing listens there."""
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class InEnvironment(ProgramUser):
    @property
    def environ(self) -> dict[str, str]:
        proxies = {name: PROXY for upper in NAMES for name in (upper, upper.lower())}
        return {**super().environ, **proxies, "no_proxy": "elsewhere.example"}


class InTheProgramsFile(ProgramUser):
    """In the program's own file for variables."""

    def use(self, url: str, *more: object) -> None:
        super().use(url)
        if self.setup is runs.CLAUDE:
            file = self.folder / ".claude" / "settings.json"
            settings = json.loads(file.read_text())
            settings["env"] |= dict.fromkeys(NAMES, PROXY)
            file.write_text(json.dumps(settings))
            return
        file = self.folder / (".codex" if self.setup is runs.CODEX else ".gemini") / ".env"
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
def test_toolcrib_is_reached_without_the_proxy(
    new_user: Callable[..., tuple[ProgramUser, ScriptedModel]], client: str, kind: type[ProgramUser], profile: str
) -> None:
    user, model = new_user(client, Call("workspace_read_file", {"path": "note.md"}), kind=kind)
    (user.project / "note.md").write_text("Words that are there.\n")
    finished = user.run("Do it.", "--profile", profile)
    assert "Words that are there." in "".join(model.results), finished.out + finished.err
