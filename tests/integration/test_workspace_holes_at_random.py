"""Any calls in any order at one workspace: what lies outside stays as it is, and nothing of it is told.

The tables try each path on the folder as it was laid. Here what one call leaves is where the next one goes: folders
that were made on the way, links that a command has put or turned, files that were renamed between two calls.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts import holes, sides, traps
from parts.daemon import Home
from parts.traps import Ground, leaked

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

NAMES = (
    "a",
    "b.py",
    "src",
    "c",
    "test_x.py",
    "outdir",
    "out.txt",
    "door2",
    "notes.txt",
    ".toolcrib",
    ".git",
    "runs",
    "..",
)
SEEDS = (4, 9)


class Walker:
    """Draws calls; half of the paths lead out, the others are made of a few names, so that they meet again."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311
        self.ground = ground
        tables = (holes.leading_out, holes.links_out, holes.run_logs, holes.never_writable, holes.odd_words)
        self.hostile = [path for table in tables for path in table(ground).values() if "\0" not in path]
        forms = {**holes.FILE_FORMS, **holes.WRITE_FORMS, **holes.PATTERN_FORMS}
        self.forms = list(forms.values())
        slow = {**holes.CODE_FORMS, **holes.WORD_FORMS}
        self.slow = [form for form in slow.values() if form[0] in ("project_diff", "run_shell_safe")]

    def path(self) -> str:
        if self.draw.random() < 0.5:
            return self.draw.choice(self.hostile)
        return "/".join(self.draw.choice(NAMES) for _ in range(self.draw.randint(1, 4)))

    def call(self) -> tuple[str, dict[str, Any]]:
        chance = self.draw.random()
        if chance < 0.04:
            return "run_shell_safe", {"command": self.draw.choice(self.turns())}
        form = self.draw.choice(self.slow if chance < 0.06 else self.forms)
        return form[0], dict(form[1](self.path()))

    def turns(self) -> list[str]:
        """What code inside can do to the folder before the next call."""
        name, other = self.draw.choice(NAMES[:9]), self.draw.choice(NAMES[:9])
        outside = self.ground.outside
        return [
            f"ln -sfn {outside} {name}",
            f"ln -sfn ../outside {name}/{other}",
            f"ln -sfn {outside}/secret.txt {name}",
            f"mv -T {name} {other}",
            f"rm -rf {name}; mkdir -p {name}/{other}",
            f"ln -sfn .git {name}; ln -sfn .toolcrib {other}",
            f"cp -a {name} {other}; chmod -R 700 {name}",
            f"rm -rf {name}; mkfifo {name}",
        ]

    def turn(self) -> None:
        """What somebody else does to the folder meanwhile, with rights that code inside has not."""
        name = self.ground.root / self.draw.choice(NAMES[:9])
        if name.is_dir() and not name.is_symlink():
            shutil.rmtree(name)
        else:
            name.unlink(missing_ok=True)
        target = self.draw.choice(
            (self.ground.outside, self.ground.sibling, Path("/proc/self"), Path("../outside/deep"))
        )
        name.symlink_to(target)


@pytest.fixture
def ground(toolcrib_home: Home) -> Iterator[Ground]:
    place = toolcrib_home.path / "g"
    place.mkdir()
    yield traps.lay(place)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_order_of_calls_gets_out(
    toolcrib_home: Home, ground: Ground, seed: int, sized: Callable[[int, int], int]
) -> None:
    walker = Walker(ground, seed)
    environ = toolcrib_home.environ({traps.SECRET_NAME: traps.SECRET})
    protected = (ground.root / ".toolcrib", ground.root / ".git" / "hooks")
    before = [traps.seen(path) for path in protected]
    config = (ground.root / ".git" / "config").read_bytes()
    made: list[tuple[str, dict[str, Any]]] = []
    worked = 0
    # The number bounds it on a fast machine, the clock on a slow one.
    until = time.monotonic() + sized(7, 120)
    with sides.in_process(ground.root, environ=environ) as side:
        for step in range(sized(1500, 100_000)):
            if time.monotonic() > until:
                break
            if step % 40 == 39:
                walker.turn()
            made.append(walker.call())
            tool, arguments = made[-1]
            said = side.call(tool, **arguments)
            worked += not said.is_error
            assert not leaked(said.whole), f"{made[-30:]}: {said}"
            assert "a bug in the workspace" not in said.text, f"{made[-30:]}: {said}"
            if step % 100 == 0:
                assert not ground.harm(), made[-101:]
    assert not ground.harm(), made[-101:]
    assert [traps.seen(path) for path in protected] == before
    assert (ground.root / ".git" / "config").read_bytes() == config
    # Both kinds of calls were among them.
    assert len(made) // 20 < worked < len(made)
