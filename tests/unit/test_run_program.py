"""A client's program is the user's own and recent enough, and its version is cached."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts import leftovers
from parts.tool_context import file_names, make_files
from toolcrib.coding_agents import program
from toolcrib.coding_agents.client_spec import ClientSpec, HeadlessSpec, Launch
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import Program, find_program
from toolcrib.errors import NotFound, UsageError

pytestmark = pytest.mark.req("FRG-10")


UNUSED: Any = None
CLIENT: ClientSpec = replace(
    client_named("generic"),
    name="agent",
    title="The Agent",
    headless=HeadlessSpec(
        program="agent",
        oldest=(2, 1, 300),
        install="npm install -g the-agent",
        keeps=(),
        launch=lambda request: Launch(args=()),
        parser=UNUSED,
        is_session=bool,
    ),
)


class FakeMachine:
    """Folders with programs that record each start and their environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home, self.cache = path / "home", path / "crib" / "cache" / "programs.json"
        self.environ = {
            "PATH": f"{path}/one:{path}/two:/usr/bin:/bin",
            "HOME": str(self.home),
            "TOOLCRIB_HOME": str(path / "crib"),
        }
        for folder in ("work", "home", "one", "two"):
            (path / folder).mkdir()

    def install(
        self, folder: str, script: str = "echo 2.1.325 '(The Agent)'", *, name: str = "agent", mode: int = 0o755
    ) -> Path:
        file = self.path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\n{{ echo "ran in $PWD"; env; }} >> {self.path}/notes\n{script}\n')
        file.chmod(mode)
        return file

    def set_version(self, version: str) -> None:
        """The version that `cat {path}/version` prints."""
        (self.path / "version").write_text(version)

    def find(self, workdir: str = "work", client: ClientSpec = CLIENT, **environ: str) -> Program:
        return find_program(client, {**self.environ, **environ}, self.path / workdir)

    def error(self, match: str, workdir: str = "work", **environ: str) -> NotFound:
        with pytest.raises(NotFound, match=match) as caught:
            self.find(workdir, **environ)
        return caught.value

    def notes(self) -> str:
        file = self.path / "notes"
        return file.read_text() if file.exists() else ""

    def times_run(self) -> int:
        return self.notes().count("ran in ")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_the_first_program_on_path_is_found_and_its_version_read_once(machine: FakeMachine):
    second = machine.install("two")
    first = machine.install("one", "echo agent-cli v2.1.400-beta.1 >&2")
    for _ in range(3):
        found = machine.find()
        assert (found.path, found.version) == (first, "2.1.400")
    assert machine.times_run() == 1
    os.utime(machine.install("one", "echo 2.1.401"), ns=(1, 1))
    assert machine.find().version == "2.1.401", "it was replaced"
    first.unlink()
    assert machine.find().path == second
    assert machine.times_run() == 3


def test_two_programs_behind_one_launcher_are_distinguished(machine: FakeMachine):
    launcher = machine.install("manager", 'case "$0" in */agent) echo 2.1.325;; *) echo 7.0.0;; esac', name="shim")
    for name in ("agent", "other"):
        (machine.path / "one" / name).symlink_to(launcher)
    assert CLIENT.headless is not None
    other = replace(CLIENT, headless=replace(CLIENT.headless, program="other"))
    assert machine.find().version == "2.1.325"
    assert machine.find(client=other).version == "7.0.0"


def test_a_version_is_cached_for_a_day_unless_it_is_outdated(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch):
    machine.install("one", f"cat {machine.path}/version")
    machine.set_version("1.0.0")
    machine.error(r"is version 1\.0\.0")
    machine.set_version("3.0.0")
    assert machine.find().version == "3.0.0"
    machine.set_version("3.0.1")
    assert machine.find().version == "3.0.0"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert machine.find().version == "3.0.1"


def test_a_missing_or_outdated_program_is_reported_with_its_install_command(machine: FakeMachine):
    machine.install("one", mode=0o644)
    (machine.path / "two" / "agent").mkdir()
    error = machine.error("not installed")
    assert error.text() == "The Agent is not installed: 'agent' is not on PATH. Install it: npm install -g the-agent"
    assert error.exit_code == 4
    assert error.data == {"looked_in": [f"{machine.path}/one", f"{machine.path}/two", "/usr/bin", "/bin"]}
    file = machine.install("one", "echo 2.1.299")
    versions = f"{file} is version 2.1.299; Toolcrib requires The Agent 2.1.300 or later."
    error = machine.error("is version")
    assert (error.text(), error.exit_code) == (f"{versions} Update it: npm install -g the-agent", 4)


@pytest.mark.parametrize("path", ["work/node_modules/.bin", "work/sub/../bin", "linked/bin", "one", "work/link"])
def test_a_program_in_the_project_is_skipped_and_never_run(machine: FakeMachine, path: str):
    make_files(machine.path, {"work/.git/HEAD": "ref: refs/heads/main\n", "work/sub/x": ""})
    (machine.path / "linked").symlink_to(machine.path / "work")
    if path in ("one", "work/link"):
        target = machine.install("work/bin" if path == "one" else "elsewhere", "echo 9.9.9")
        (machine.path / path).mkdir(exist_ok=True)
        (machine.path / path / "agent").symlink_to(target)
    else:
        machine.install(path, "echo 9.9.9")
    hostile = f"{machine.path}/{path}:{machine.environ['PATH']}"
    machine.error("was skipped: it is inside the run", "work/sub", PATH=hostile)
    assert machine.times_run() == 0
    good = machine.install("two")
    assert machine.find("work/sub", PATH=hostile).path == good
    assert machine.times_run() == 1
    assert "9.9.9" not in machine.cache.read_text()


def test_relative_folders_and_programs_that_everybody_can_change_are_skipped(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
):
    machine.install("elsewhere/bin")
    machine.install("elsewhere")
    monkeypatch.chdir(machine.path / "elsewhere")
    machine.error("is not installed", PATH=".::bin:./bin")
    machine.install("one", mode=0o757)
    machine.error("every user of this machine can change it")
    assert machine.times_run() == 0


def test_the_interpreter_of_a_program_is_not_taken_from_the_project(machine: FakeMachine):
    machine.install("work/bin", "echo 9.9.9", name="agent-node")
    machine.install("two", name="agent-node")
    machine.install("one").write_text("#!/usr/bin/env agent-node\n")
    hostile = f"{machine.path / 'work' / 'bin'}:{machine.environ['PATH']}"
    assert machine.find(PATH=hostile).version == "2.1.325"


def test_a_run_in_the_home_folder_may_use_programs_there(machine: FakeMachine):
    file = machine.install("home/.local/bin")
    for workdir in ("home", ""):
        assert machine.find(workdir, PATH=str(file.parent)).path == file
    machine.error("was skipped", "home/.local", PATH=str(file.parent))


def test_the_version_is_read_in_the_root_folder_and_without_secrets(machine: FakeMachine):
    machine.install("one")
    secrets = {"AGENT_API_KEY": "sesame-1", "DATABASE": "postgres://me:sesame-2@host/db", "TOOLCRIB_TOKEN": "sesame-3"}
    machine.find(**secrets, MANAGER_DIR="/opt/manager")
    seen = machine.notes()
    assert "sesame" not in seen
    assert "MANAGER_DIR=/opt/manager" in seen, "version managers need theirs"
    assert f"HOME={machine.home}" in seen
    assert seen.split("ran in ")[1].split("\n")[0] == "/", "a temporary folder could be left behind"


def test_a_program_that_does_not_answer_is_ended_with_its_children(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program, "_VERSION_TIMEOUT", 0.3)
    machine.install("one", f"trap '' TERM; setsid sleep 600 & echo $! > {machine.path}/pid; sleep 600")
    machine.error(r"does not print its version: `--version` printed nothing within 0\.3 s")
    assert leftovers.read(int((machine.path / "pid").read_text())) is None
    assert not machine.cache.exists()


def test_a_program_without_a_version_is_refused(machine: FakeMachine):
    for script, reason in (
        ("echo hello world; exit 3", "printed “hello world”"),
        ("yes 1.2", "does not print its version"),
        ("printf '\\033[2J sk-0123456789abc'", "printed “\\x1b[2J ****”"),
        ("exit 0", "printed nothing"),
    ):
        machine.install("one", script)
        assert len(machine.error(re.escape(reason)).text()) < 600
    machine.install("one").write_text("#!/no/such/interpreter\n")
    machine.error("cannot be started")
    with pytest.raises(UsageError, match="does not know how to run"):
        machine.find(client=client_named("generic"))


def test_the_cache_is_private_and_forgets_removed_programs(machine: FakeMachine):
    first = machine.install("one")
    machine.find()
    assert machine.cache.stat().st_mode & 0o777 == 0o600
    assert machine.cache.parent.stat().st_mode & 0o777 == 0o700
    first.unlink()
    second = machine.install("two")
    machine.find()
    assert list(json.loads(machine.cache.read_text())) == [str(second)]
    assert file_names(machine.cache.parent) == {"programs.json", "programs.lock"}
    victim = machine.path / "victim"
    machine.cache.rename(victim)
    before = victim.read_text()
    machine.cache.symlink_to(victim)
    machine.find()
    assert machine.times_run() == 3, "a link in place of the cache is not followed"
    assert victim.read_text() == before
    assert not machine.cache.is_symlink()


def test_an_unwritable_cache_is_ignored(machine: FakeMachine):
    machine.install("one")
    (machine.path / "crib").write_text("a file where a folder should be")
    assert machine.find().version == "2.1.325"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary(max_size=60)
    | st.just(b"[" * 100_000)
    | st.fixed_dictionaries({"program": json_values, "version": json_values, "at": json_values}).map(
        lambda entry: json.dumps({"THE PATH": entry}).encode()
    )
    | json_values.map(lambda value: json.dumps({"THE PATH": value}).encode())
)
def test_an_invalid_cache_is_ignored(tmp_path: Path, content: bytes):
    path = tmp_path / "agent"
    path.touch()
    cache = tmp_path / "programs.json"
    cache.write_bytes(content.replace(b"THE PATH", os.fsencode(path)))
    assert program._cached_version(cache, path) == ""
    program._cache_version(cache, path, "1.2.3")
    assert program._cached_version(cache, path) == "1.2.3"


@pytest.mark.req("FRG-11")
def test_concurrent_searches_read_the_version_once(machine: FakeMachine):
    machine.install("one", "sleep 0.2; echo 2.1.325")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: machine.find(), range(8)))
    assert {one.version for one in found} == {"2.1.325"}
    assert machine.times_run() == 1
