"""The program of a client is the person's own, new enough, and asked only once which version it is."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts import leftovers
from toolcrib.coding_agents import program
from toolcrib.coding_agents.client_spec import ClientSpec, HeadlessSpec, Launch
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import find_program
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
        launch=lambda request: Launch(words=()),
        parser=_unused,
        is_session=bool,
    ),
)

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Puts a program into a folder; it notes each time that it is run, with its environment."""

    def put(folder: str, says: str = "echo 2.1.325 '(The Agent)'", *, name: str = "agent", mode: int = 0o755) -> Path:
        file = tmp_path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\n{{ echo "ran in $PWD"; env; }} >> {tmp_path}/notes\n{says}\n')
        file.chmod(mode)
        return file

    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    return put


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": f"{tmp_path}/one:{tmp_path}/two:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "TOOLCRIB_HOME": str(tmp_path / "crib"),
    }


def notes(tmp_path: Path) -> str:
    file = tmp_path / "notes"
    return file.read_text() if file.exists() else ""


def times_run(tmp_path: Path) -> int:
    return notes(tmp_path).count("ran in ")


def test_the_first_on_path_is_found_and_asked_only_once(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    second = install("two")
    first = install("one", "echo agent-cli v2.1.400-beta.1 >&2")
    for _ in range(3):
        found = find_program(CLIENT, environ, tmp_path / "work")
        assert (found.path, found.version) == (first, "2.1.400")
    assert times_run(tmp_path) == 1
    first.unlink()
    assert find_program(CLIENT, environ, tmp_path / "work").path == second
    assert times_run(tmp_path) == 2


def test_a_program_that_was_replaced_is_asked_again(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one")
    assert find_program(CLIENT, environ, tmp_path / "work").version == "2.1.325"
    os.utime(install("one", "echo 2.1.326 '(The Agent)'"), ns=(1, 1))
    assert find_program(CLIENT, environ, tmp_path / "work").version == "2.1.326"


def test_two_programs_behind_one_starter_are_told_apart(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    starter = install("manager", 'case "$0" in */agent) echo 2.1.325;; *) echo 7.0.0;; esac', name="shim")
    for name in ("agent", "other"):
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / name).symlink_to(starter)
    assert CLIENT.headless is not None
    other = replace(CLIENT, headless=replace(CLIENT.headless, program="other"))
    assert find_program(CLIENT, environ, tmp_path / "work").version == "2.1.325"
    assert find_program(other, environ, tmp_path / "work").version == "7.0.0"


def test_a_version_is_believed_for_a_day(
    tmp_path: Path, install: Install, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one", f"cat {tmp_path}/version")
    (tmp_path / "version").write_text("3.0.0")
    assert find_program(CLIENT, environ, tmp_path / "work").version == "3.0.0"
    (tmp_path / "version").write_text("3.0.1")
    assert find_program(CLIENT, environ, tmp_path / "work").version == "3.0.0"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert find_program(CLIENT, environ, tmp_path / "work").version == "3.0.1"


def test_a_missing_program_is_told_with_its_install_line(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one", mode=0o644)
    (tmp_path / "two" / "agent").mkdir(parents=True)
    with pytest.raises(NotFound) as missing:
        find_program(CLIENT, environ, tmp_path / "work")
    assert missing.value.text() == (
        "The Agent is not installed: there is no 'agent' on PATH. Install it: npm install -g the-agent"
    )
    assert missing.value.exit_code == 4
    assert missing.value.data == {"looked_in": [f"{tmp_path}/one", f"{tmp_path}/two", "/usr/bin", "/bin"]}


def test_a_program_that_is_too_old_is_told_with_both_versions(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    file = install("one", "echo 2.1.299")
    with pytest.raises(NotFound) as old:
        find_program(CLIENT, environ, tmp_path / "work")
    assert old.value.text() == (
        f"{file} is version 2.1.299; The Agent is needed in version 2.1.300 or newer. "
        "Install it anew: npm install -g the-agent"
    )
    assert old.value.exit_code == 4


def test_what_was_too_old_is_asked_again_for_it_may_have_been_replaced_behind_its_starter(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one", f"cat {tmp_path}/version")
    (tmp_path / "version").write_text("1.0.0")
    with pytest.raises(NotFound, match=r"is version 1\.0\.0"):
        find_program(CLIENT, environ, tmp_path / "work")
    (tmp_path / "version").write_text("3.0.0")
    assert find_program(CLIENT, environ, tmp_path / "work").version == "3.0.0"


@pytest.mark.parametrize("path", ["work/node_modules/.bin", "work/sub/../bin", "linked/bin", "one", "work/link"])
def test_a_program_of_the_project_s_is_passed_over_and_never_run(
    tmp_path: Path, install: Install, environ: Mapping[str, str], path: str
) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    (tmp_path / "work" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "work" / "sub").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "work")
    if path == "one":
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "agent").symlink_to(install("work/bin", "echo 9.9.9"))
    elif path == "work/link":
        (tmp_path / path).mkdir()
        (tmp_path / path / "agent").symlink_to(install("elsewhere", "echo 9.9.9"))
    else:
        install(path, "echo 9.9.9")
    hostile = {**environ, "PATH": f"{tmp_path}/{path}:{environ['PATH']}"}
    with pytest.raises(NotFound, match="was passed over: it lies in the project"):
        find_program(CLIENT, hostile, tmp_path / "work" / "sub")
    assert times_run(tmp_path) == 0
    good = install("two")
    assert find_program(CLIENT, hostile, tmp_path / "work" / "sub").path == good
    assert times_run(tmp_path) == 1
    assert "9.9.9" not in (tmp_path / "crib" / "cache" / "programs.json").read_text()


def test_folders_that_are_not_absolute_are_not_looked_into(
    tmp_path: Path, install: Install, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("elsewhere/bin")
    install("elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(NotFound, match="is not installed"):
        find_program(CLIENT, {**environ, "PATH": ".::bin:./bin"}, tmp_path / "work")
    assert times_run(tmp_path) == 0


def test_the_interpreter_of_a_program_is_not_taken_from_the_project_when_it_is_asked(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("work/bin", "echo 9.9.9", name="agent-node")
    install("two", name="agent-node")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "agent").write_text("#!/usr/bin/env agent-node\n")
    (tmp_path / "one" / "agent").chmod(0o755)
    hostile = {**environ, "PATH": f"{tmp_path / 'work' / 'bin'}:{environ['PATH']}"}
    assert find_program(CLIENT, hostile, tmp_path / "work").version == "2.1.325"


def test_whoever_works_in_the_home_folder_may_have_programs_there(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    file = install("home/.local/bin")
    own = {**environ, "PATH": str(file.parent)}
    assert find_program(CLIENT, own, tmp_path / "home").path == file
    assert find_program(CLIENT, own, tmp_path).path == file
    with pytest.raises(NotFound, match="passed over"):
        find_program(CLIENT, own, tmp_path / "home" / ".local")


def test_a_program_that_every_user_can_change_is_passed_over(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one", mode=0o757)
    with pytest.raises(NotFound, match="every user of this machine can change it"):
        find_program(CLIENT, environ, tmp_path / "work")
    assert times_run(tmp_path) == 0


def test_it_is_asked_in_a_folder_of_no_meaning_and_without_secrets(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one")
    more = {
        "AGENT_API_KEY": "sesame-1",
        "DATABASE": "postgres://me:sesame-2@host/db",
        "TOOLCRIB_TOKEN": "tcb_sesame-3",
        "MANAGER_DIR": "/opt/manager",
    }
    find_program(CLIENT, {**environ, **more}, tmp_path / "work")
    seen = notes(tmp_path)
    assert "sesame" not in seen
    assert "MANAGER_DIR=/opt/manager" in seen, "version managers need theirs"
    assert f"HOME={environ['HOME']}" in seen
    assert seen.split("ran in ")[1].split("\n")[0] == "/", "a folder of ours would be left by a sudden end"


def test_a_program_that_does_not_answer_is_given_up_with_all_that_it_started(
    tmp_path: Path, install: Install, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_LIMIT", 0.3)
    install("one", f"trap '' TERM; setsid sleep 600 & echo $! > {tmp_path}/pid; sleep 600")
    with pytest.raises(NotFound, match=r"does not say its version: `--version` gave nothing within 0\.3 s"):
        find_program(CLIENT, environ, tmp_path / "work")
    assert leftovers.read(int((tmp_path / "pid").read_text())) is None
    assert not (tmp_path / "crib" / "cache" / "programs.json").exists()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo hello world; exit 3", "gave “hello world”"),
        ("yes 1.2", "does not say its version"),
        ("printf '\\033[2J sk-0123456789abc'", r"gave “\\x1b[2J ****”"),
        ("exit 0", "gave nothing"),
    ],
)
def test_a_program_that_says_no_version_is_not_run(
    tmp_path: Path, install: Install, environ: Mapping[str, str], says: str, why: str
) -> None:
    install("one", says)
    with pytest.raises(NotFound, match=re.escape(why.replace("\\\\", "\\"))) as refused:
        find_program(CLIENT, environ, tmp_path / "work")
    assert len(refused.value.text()) < 600


def test_a_program_that_cannot_be_started_is_told(tmp_path: Path, install: Install, environ: Mapping[str, str]) -> None:
    install("one").write_text("#!/no/such/interpreter\n")
    with pytest.raises(NotFound, match="cannot be started"):
        find_program(CLIENT, environ, tmp_path / "work")


def test_a_client_that_cannot_be_run_is_refused(tmp_path: Path, environ: Mapping[str, str]) -> None:
    with pytest.raises(UsageError, match="is run is not known"):
        find_program(client_named("generic"), environ, tmp_path)


def test_the_memory_is_private_and_forgets_programs_that_are_gone(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one")
    find_program(CLIENT, environ, tmp_path / "work")
    memory = tmp_path / "crib" / "cache" / "programs.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    assert memory.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "one" / "agent").unlink()
    second = install("two")
    find_program(CLIENT, environ, tmp_path / "work")
    assert list(json.loads(memory.read_text())) == [str(second)]
    assert {file.name for file in memory.parent.iterdir()} == {"programs.json", "programs.lock"}


def test_a_memory_that_cannot_be_kept_does_not_stop_anybody(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one")
    (tmp_path / "crib").write_text("a file where a folder should be")
    assert find_program(CLIENT, environ, tmp_path / "work").version == "2.1.325"


def test_a_link_in_place_of_the_memory_is_neither_read_nor_written_through(
    tmp_path: Path, install: Install, environ: Mapping[str, str]
) -> None:
    install("one")
    find_program(CLIENT, environ, tmp_path / "work")
    memory = tmp_path / "crib" / "cache" / "programs.json"
    victim = tmp_path / "victim"
    memory.rename(victim)
    before = victim.read_text()
    memory.symlink_to(victim)
    find_program(CLIENT, environ, tmp_path / "work")
    assert times_run(tmp_path) == 2
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
def test_a_memory_that_makes_no_sense_is_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent"
    path.touch()
    memory = tmp_path / "programs.json"
    memory.write_bytes(content.replace(b"THE PATH", os.fsencode(path)))
    assert program._cached_version(memory, path) == ""
    program._cache_version(memory, path, "1.2.3")
    assert program._cached_version(memory, path) == "1.2.3"


@pytest.mark.req("FRG-11")
def test_of_many_that_look_at_once_one_asks(tmp_path: Path, install: Install, environ: dict[str, str]) -> None:
    install("one", "sleep 0.2; echo 2.1.325")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: find_program(CLIENT, environ, tmp_path / "work"), range(8)))
    assert {one.version for one in found} == {"2.1.325"}
    assert notes(tmp_path).count("ran in") == 1
