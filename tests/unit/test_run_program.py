"""A client's program is the user's own and recent enough, and its version is cached."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts import leftovers
from toolcrib.coding_agents import program
from toolcrib.coding_agents.client_spec import ClientSpec, HeadlessSpec, Launch
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import Program, find_program
from toolcrib.errors import NotFound, UsageError

pytestmark = pytest.mark.req("FRG-10")


def _unused(*_: object) -> Any:
    raise AssertionError("not asked for here")


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
        parser=_unused,
        is_session=bool,
    ),
)


@dataclass(kw_only=True)
class Machine:
    """Folders with programs that record each start and their environment."""

    path: Path
    environ: dict[str, str]

    def install(
        self, folder: str, says: str = "echo 2.1.325 '(The Agent)'", *, name: str = "agent", mode: int = 0o755
    ) -> Path:
        file = self.path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\n{{ echo "ran in $PWD"; env; }} >> {self.path}/notes\n{says}\n')
        file.chmod(mode)
        return file

    def find(self, workdir: str = "work", client: ClientSpec = CLIENT, **environ: str) -> Program:
        return find_program(client, {**self.environ, **environ}, self.path / workdir)

    def notes(self) -> str:
        file = self.path / "notes"
        return file.read_text() if file.exists() else ""

    def times_run(self) -> int:
        return self.notes().count("ran in ")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for folder in ("work", "home"):
        (tmp_path / folder).mkdir()
    environ = {
        "PATH": f"{tmp_path}/one:{tmp_path}/two:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "TOOLCRIB_HOME": str(tmp_path / "crib"),
    }
    return Machine(path=tmp_path, environ=environ)


def test_the_first_program_on_path_is_found_and_asked_once(machine: Machine) -> None:
    second = machine.install("two")
    first = machine.install("one", "echo agent-cli v2.1.400-beta.1 >&2")
    for _ in range(3):
        found = machine.find()
        assert (found.path, found.version) == (first, "2.1.400")
    assert machine.times_run() == 1
    first.unlink()
    assert machine.find().path == second
    assert machine.times_run() == 2


def test_a_replaced_program_is_asked_again(machine: Machine) -> None:
    machine.install("one")
    assert machine.find().version == "2.1.325"
    os.utime(machine.install("one", "echo 2.1.326 '(The Agent)'"), ns=(1, 1))
    assert machine.find().version == "2.1.326"


def test_two_programs_behind_one_starter_are_distinguished(machine: Machine) -> None:
    starter = machine.install("manager", 'case "$0" in */agent) echo 2.1.325;; *) echo 7.0.0;; esac', name="shim")
    for name in ("agent", "other"):
        (machine.path / "one").mkdir(exist_ok=True)
        (machine.path / "one" / name).symlink_to(starter)
    assert CLIENT.headless is not None
    other = replace(CLIENT, headless=replace(CLIENT.headless, program="other"))
    assert machine.find().version == "2.1.325"
    assert machine.find(client=other).version == "7.0.0"


def test_a_version_is_cached_for_a_day(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install("one", f"cat {machine.path}/version")
    (machine.path / "version").write_text("3.0.0")
    assert machine.find().version == "3.0.0"
    (machine.path / "version").write_text("3.0.1")
    assert machine.find().version == "3.0.0"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert machine.find().version == "3.0.1"


def test_a_missing_program_is_reported_with_its_install_command(machine: Machine) -> None:
    machine.install("one", mode=0o644)
    (machine.path / "two" / "agent").mkdir(parents=True)
    with pytest.raises(NotFound) as missing:
        machine.find()
    assert missing.value.text() == (
        "The Agent is not installed: 'agent' is not on PATH. Install it: npm install -g the-agent"
    )
    assert missing.value.exit_code == 4
    assert missing.value.data == {"looked_in": [f"{machine.path}/one", f"{machine.path}/two", "/usr/bin", "/bin"]}


def test_an_outdated_program_is_reported_with_both_versions(machine: Machine) -> None:
    file = machine.install("one", "echo 2.1.299")
    with pytest.raises(NotFound) as old:
        machine.find()
    assert old.value.text() == (
        f"{file} is version 2.1.299; Toolcrib requires The Agent 2.1.300 or later. Update it: npm install -g the-agent"
    )
    assert old.value.exit_code == 4


def test_the_version_of_an_outdated_program_is_not_cached(machine: Machine) -> None:
    machine.install("one", f"cat {machine.path}/version")
    (machine.path / "version").write_text("1.0.0")
    with pytest.raises(NotFound, match=r"is version 1\.0\.0"):
        machine.find()
    (machine.path / "version").write_text("3.0.0")
    assert machine.find().version == "3.0.0"


@pytest.mark.parametrize("path", ["work/node_modules/.bin", "work/sub/../bin", "linked/bin", "one", "work/link"])
def test_a_program_in_the_project_is_skipped_and_never_run(machine: Machine, path: str) -> None:
    (machine.path / "work" / ".git").mkdir(parents=True)
    (machine.path / "work" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (machine.path / "work" / "sub").mkdir()
    (machine.path / "linked").symlink_to(machine.path / "work")
    if path == "one":
        (machine.path / "one").mkdir()
        (machine.path / "one" / "agent").symlink_to(machine.install("work/bin", "echo 9.9.9"))
    elif path == "work/link":
        (machine.path / path).mkdir()
        (machine.path / path / "agent").symlink_to(machine.install("elsewhere", "echo 9.9.9"))
    else:
        machine.install(path, "echo 9.9.9")
    hostile = f"{machine.path}/{path}:{machine.environ['PATH']}"
    with pytest.raises(NotFound, match="was skipped: it is inside the run"):
        machine.find("work/sub", PATH=hostile)
    assert machine.times_run() == 0
    good = machine.install("two")
    assert machine.find("work/sub", PATH=hostile).path == good
    assert machine.times_run() == 1
    assert "9.9.9" not in (machine.path / "crib" / "cache" / "programs.json").read_text()


def test_relative_folders_on_path_are_skipped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install("elsewhere/bin")
    machine.install("elsewhere")
    monkeypatch.chdir(machine.path / "elsewhere")
    with pytest.raises(NotFound, match="is not installed"):
        machine.find(PATH=".::bin:./bin")
    assert machine.times_run() == 0


def test_the_interpreter_of_a_program_is_not_taken_from_the_project(machine: Machine) -> None:
    machine.install("work/bin", "echo 9.9.9", name="agent-node")
    machine.install("two", name="agent-node")
    (machine.path / "one").mkdir()
    (machine.path / "one" / "agent").write_text("#!/usr/bin/env agent-node\n")
    (machine.path / "one" / "agent").chmod(0o755)
    hostile = f"{machine.path / 'work' / 'bin'}:{machine.environ['PATH']}"
    assert machine.find(PATH=hostile).version == "2.1.325"


def test_a_run_in_the_home_folder_may_use_programs_there(machine: Machine) -> None:
    file = machine.install("home/.local/bin")
    assert machine.find("home", PATH=str(file.parent)).path == file
    assert machine.find("", PATH=str(file.parent)).path == file
    with pytest.raises(NotFound, match="was skipped"):
        machine.find("home/.local", PATH=str(file.parent))


def test_a_program_that_every_user_can_change_is_skipped(machine: Machine) -> None:
    machine.install("one", mode=0o757)
    with pytest.raises(NotFound, match="every user of this machine can change it"):
        machine.find()
    assert machine.times_run() == 0


def test_its_version_is_asked_in_the_root_folder_and_without_secrets(machine: Machine) -> None:
    machine.install("one")
    more = {
        "AGENT_API_KEY": "sesame-1",
        "DATABASE": "postgres://me:sesame-2@host/db",
        "TOOLCRIB_TOKEN": "tcb_sesame-3",
        "MANAGER_DIR": "/opt/manager",
    }
    machine.find(**more)
    seen = machine.notes()
    assert "sesame" not in seen
    assert "MANAGER_DIR=/opt/manager" in seen, "version managers need theirs"
    assert f"HOME={machine.environ['HOME']}" in seen
    assert seen.split("ran in ")[1].split("\n")[0] == "/", "a folder of ours would be left by a sudden end"


def test_a_program_that_does_not_answer_is_ended_with_its_children(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_VERSION_TIMEOUT", 0.3)
    machine.install("one", f"trap '' TERM; setsid sleep 600 & echo $! > {machine.path}/pid; sleep 600")
    with pytest.raises(NotFound, match=r"does not print its version: `--version` printed nothing within 0\.3 s"):
        machine.find()
    assert leftovers.read(int((machine.path / "pid").read_text())) is None
    assert not (machine.path / "crib" / "cache" / "programs.json").exists()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo hello world; exit 3", "printed “hello world”"),
        ("yes 1.2", "does not print its version"),
        ("printf '\\033[2J sk-0123456789abc'", r"printed “\\x1b[2J ****”"),
        ("exit 0", "printed nothing"),
    ],
)
def test_a_program_without_a_version_is_refused(machine: Machine, says: str, why: str) -> None:
    machine.install("one", says)
    with pytest.raises(NotFound, match=re.escape(why.replace("\\\\", "\\"))) as refused:
        machine.find()
    assert len(refused.value.text()) < 600


def test_a_program_that_cannot_be_started_is_refused(machine: Machine) -> None:
    machine.install("one").write_text("#!/no/such/interpreter\n")
    with pytest.raises(NotFound, match="cannot be started"):
        machine.find()


def test_a_client_that_cannot_be_run_is_refused(machine: Machine) -> None:
    with pytest.raises(UsageError, match="does not know how to run"):
        machine.find(client=client_named("generic"))


def test_the_cache_is_private_and_forgets_removed_programs(machine: Machine) -> None:
    machine.install("one")
    machine.find()
    memory = machine.path / "crib" / "cache" / "programs.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    assert memory.parent.stat().st_mode & 0o777 == 0o700
    (machine.path / "one" / "agent").unlink()
    second = machine.install("two")
    machine.find()
    assert list(json.loads(memory.read_text())) == [str(second)]
    assert {file.name for file in memory.parent.iterdir()} == {"programs.json", "programs.lock"}


def test_an_unwritable_cache_is_ignored(machine: Machine) -> None:
    machine.install("one")
    (machine.path / "crib").write_text("a file where a folder should be")
    assert machine.find().version == "2.1.325"


def test_a_link_in_place_of_the_cache_is_not_followed(machine: Machine) -> None:
    machine.install("one")
    machine.find()
    memory = machine.path / "crib" / "cache" / "programs.json"
    victim = machine.path / "victim"
    memory.rename(victim)
    before = victim.read_text()
    memory.symlink_to(victim)
    machine.find()
    assert machine.times_run() == 2
    assert victim.read_text() == before
    assert not memory.is_symlink()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    st.binary(max_size=60)
    | st.just(b"[" * 100_000)
    | st.fixed_dictionaries({"program": json_values, "version": json_values, "at": json_values}).map(
        lambda entry: json.dumps({"THE PATH": entry}).encode()
    )
    | json_values.map(lambda value: json.dumps({"THE PATH": value}).encode())
)
def test_an_invalid_cache_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent"
    path.touch()
    memory = tmp_path / "programs.json"
    memory.write_bytes(content.replace(b"THE PATH", os.fsencode(path)))
    assert program._cached_version(memory, path) == ""
    program._cache_version(memory, path, "1.2.3")
    assert program._cached_version(memory, path) == "1.2.3"


@pytest.mark.req("FRG-11")
def test_concurrent_searches_ask_for_the_version_once(machine: Machine) -> None:
    machine.install("one", "sleep 0.2; echo 2.1.325")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: machine.find(), range(8)))
    assert {one.version for one in found} == {"2.1.325"}
    assert machine.notes().count("ran in") == 1
