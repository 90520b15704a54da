"""What lies in the folder and leads out without a path that does: doors of other processes, second names of files,
projects within the project, names that somebody took beforehand.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parts import sides
from parts.sides import PLAIN
from parts.traps import Ground

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]


# ---- doors of other processes


@contextlib.contextmanager
def listening(path: Path) -> Iterator[list[str]]:
    """A process of the person's that listens in the folder; says who came."""
    came: list[str] = []
    before = Path.cwd()
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        # A socket's whole path may have 107 bytes.
        os.chdir(path.parent)
        try:
            door.bind(path.name)
        finally:
            os.chdir(before)
        door.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    guest, _ = door.accept()
                    came.append(path.name)
                    guest.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield came
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(60)


DOORS = {
    "beside the code": "app.sock",
    "in git's folder": ".git/fsmonitor--daemon.ipc",
    "deep down": "a/b/c/d/e/f/g/h/i/j/app.sock",
    "among packages": "node_modules/x/app.sock",
}
KNOCK = """
import os, socket
def test_knock():
    os.chdir({folder!r})
    with socket.socket(socket.AF_UNIX) as door:
        door.connect({name!r})
"""


@pytest.mark.parametrize("where", DOORS)
@pytest.mark.parametrize("mode", ["writable", "read-only"])
def test_a_socket_in_the_folder_leads_to_nobody(ground: Ground, environ: dict[str, str], where: str, mode: str) -> None:
    """Behind it is a process of the person's, outside: a server under development, an agent of keys, git's own."""
    path = Path(DOORS[where])
    (ground.root / "test_knock.py").write_text(KNOCK.format(folder=str(path.parent), name=path.name))
    settings = replace(PLAIN, read_only=mode == "read-only")
    with listening(ground.root / path) as came, sides.in_process(ground.root, settings, environ=environ) as side:
        if mode == "read-only":
            said = side.call("run_tests", paths=["test_knock.py"])
            assert (said.data["failed"], said.data.get("passed", 0)) == (1, 0), said
        else:
            said = side.sh("python3 -c 'import test_knock; test_knock.test_knock()'")
            assert said.data["exit_code"] == 1, said
        assert not came


# ---- what others wrote into the folder


def test_logs_of_runs_stay_closed_in_a_project_within(ground: Ground, environ: dict[str, str]) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        sides.told(side.sh("cat sub/.toolcrib/runs/*; grep -r . sub; ls -R sub"))


def test_settings_of_a_project_within_are_not_written_by_a_command(ground: Ground, environ: dict[str, str]) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        side.sh(
            "echo 'network: true' > sub/.toolcrib/workspace.yml; mkdir src/.toolcrib; echo x > src/.toolcrib/config.yml"
        )
    assert not (ground.root / "sub" / ".toolcrib" / "workspace.yml").exists()


@pytest.mark.parametrize("planted", ["links", "a link for the folder", "the largest number", "a folder"])
def test_names_of_kept_output_that_were_taken_before_harm_nothing(
    ground: Ground, environ: dict[str, str], planted: str
) -> None:
    place = ground.root / ".toolcrib" / "output"
    if planted == "a link for the folder":
        place.symlink_to(ground.outside)
    else:
        place.mkdir()
    if planted == "links":
        (place / ".gitignore").symlink_to(ground.outside / "made")
        for number in range(1, 6):
            (place / f"run_shell_safe-{number}.log").symlink_to(ground.outside / "secret.txt")
    if planted == "the largest number":
        for number in (999_999_999, 1_000_000_000):
            (place / f"run_shell_safe-{number}.log").write_text("mine\n")
    if planted == "a folder":
        (place / "run_shell_safe-1.log").mkdir()
    with sides.in_process(ground.root, environ=environ) as side:
        said = sides.told(side.sh("yes 0123456789 | head -c 300000; echo THEEND"))
        assert "THEEND" in said.data["stdout"], said
        if kept := said.data.get("output_file"):
            assert "0123456789" in side.call("read_file", path=kept).text
    assert not ground.harm()
