"""Where the database is: who may say so, and that a password is never shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib.cli.flags import without_password
from toolcrib.config.layers import load, remember_store, store_location
from toolcrib.config.model import Config, Flags, NameStyle, Severity
from toolcrib.config.paths import Paths
from toolcrib.config.settings import holds_password
from toolcrib.config.show import mask
from toolcrib.errors import ConfigError, UsageError

URL = "postgresql://crib:hush-hush@db.example/crib"


class Person:
    def __init__(self, folder: Path) -> None:
        self.paths = Paths.of_user({"TOOLCRIB_HOME": str(folder / "home")})
        self.root = folder / "project"
        self.environ = {"HOME": str(folder / "home")}
        (self.root / ".toolcrib").mkdir(parents=True)
        self.paths.config_dir.mkdir()

    def says(self, **settings: Any) -> None:
        (self.paths.config_dir / "config.json").write_text(json.dumps(settings))

    def project_says(self, **settings: Any) -> None:
        (self.root / ".toolcrib" / "config.json").write_text(json.dumps(settings))

    def load(self) -> Config:
        return load(paths=self.paths, root=self.root, environ=self.environ, is_trusted=lambda *_: True)

    def place(self, store: str | None = None) -> str | Path:
        return store_location(self.paths, self.environ, Flags(store=store))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.req("BNS-3")
def test_the_database_is_a_file_unless_somebody_says_otherwise_and_the_last_word_counts(person: Person) -> None:
    assert person.place() == person.paths.database
    person.says(store="~/mine.db")
    assert person.place() == f"{person.environ['HOME']}/mine.db"
    person.environ["TOOLCRIB_STORE"] = URL
    assert person.place() == URL
    assert person.place("/tmp/flag.db") == "/tmp/flag.db"


@pytest.mark.req("BNS-3")
def test_a_variable_fills_in_the_password(person: Person) -> None:
    person.says(store="postgresql://crib:${DB_PASSWORD}@db.example/crib")
    person.environ["DB_PASSWORD"] = "hush-hush"
    assert person.place() == URL


UNUSABLE = ["mysql://u:hush-hush@h/d", "relative.db", "postgresql://u:${UNSET}@h/d", "/a\0b"]


@pytest.mark.parametrize(
    ("through", "given"),
    [*(("file", given) for given in (*UNUSABLE, "", 3, ["/x"])), *(("variable", given) for given in UNUSABLE)],
)
def test_a_word_that_cannot_be_used_starts_nothing(person: Person, through: str, given: Any) -> None:
    if through == "file":
        person.says(store=given)
    else:
        person.environ["TOOLCRIB_STORE"] = given
    with pytest.raises(ConfigError) as raised:
        person.place()
    assert "store" in raised.value.message.lower()
    assert "hush" not in raised.value.text()


def test_a_good_word_makes_up_for_a_bad_one_below_it(person: Person) -> None:
    person.says(store="postgresql://u:${UNSET}@h/d")
    assert person.place("/tmp/flag.db") == "/tmp/flag.db"


OWN = {"store": "/evil.db", "audit_values": True, "audit_keep_days": 1, "audit_keep_mb": 1, "session_idle_hours": 1}


@pytest.mark.req("BNS-3", "KSI-9")
def test_a_project_may_not_say_what_is_kept_where_and_how_long_even_if_it_is_trusted(person: Person) -> None:
    before = person.load().settings
    person.project_says(**OWN, names="plain")
    config = person.load()
    assert config.settings == dataclasses.replace(before, names=NameStyle.PLAIN)
    assert {(problem.severity, problem.key) for problem in config.problems} == {(Severity.ERROR, key) for key in OWN}
    assert person.place() == person.paths.database
    person.says(**OWN)
    assert config.settings != person.load().settings == dataclasses.replace(before, **OWN, names=NameStyle.PLAIN)


def test_the_password_is_not_shown(person: Person) -> None:
    person.says(store=URL)
    shown = mask(person.load())["settings"]["store"]
    assert shown == "postgresql://****@db.example/crib"


@pytest.mark.parametrize(
    ("store", "holds"),
    [
        (URL, True),
        ("postgres://u:hush@h/d", True),
        ("postgresql://u@h/d?password=hush", True),
        ("postgresql://u@h/d?sslmode=require&sslpassword=hush", True),
        ("postgresql://[u:hush@h/d", True),
        ("postgresql://u@h:5432/d?sslmode=require", False),
        ("postgresql:///d?host=/run/postgresql", False),
        ("/some/file.db", False),
    ],
)
@pytest.mark.req("KSI-9")
def test_a_password_among_the_arguments_is_refused_with_the_ways_that_are_safe(store: str, holds: bool) -> None:
    assert holds_password(store) is holds
    if not holds:
        assert without_password(store) == store
        return
    with pytest.raises(UsageError) as raised:
        without_password(store)
    assert "hush" not in raised.value.text()
    assert "TOOLCRIB_STORE" in raised.value.remedy
    assert "PGPASSFILE" in raised.value.remedy


def test_a_relative_file_among_the_arguments_starts_where_the_person_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert without_password("crib.db") == str(tmp_path / "crib.db")
    assert without_password(None) is None


@pytest.mark.req("BNS-3")
def test_after_a_flag_nobody_opens_another_database_without_being_told(person: Person) -> None:
    person.paths.state_dir.mkdir()
    remember_store(person.paths, "postgresql://crib@db.example/crib")
    assert person.paths.last_store.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError) as raised:
        person.place()
    assert "postgresql://crib@db.example/crib" in raised.value.message
    for way in ("`store: postgresql", "TOOLCRIB_STORE", f"`toolcrib up --store {person.paths.database}`"):
        assert way in raised.value.remedy
    assert person.place("/tmp/flag.db") == "/tmp/flag.db"
    person.environ["TOOLCRIB_STORE"] = URL
    assert person.place() == URL
    del person.environ["TOOLCRIB_STORE"]
    person.says(store="/tmp/mine.db")
    assert person.place() == "/tmp/mine.db"


@pytest.mark.parametrize("back", [None, "the usual file"])
def test_a_daemon_on_the_usual_file_or_told_otherwise_than_by_the_flag_ends_that(
    person: Person, back: str | None
) -> None:
    person.paths.state_dir.mkdir()
    remember_store(person.paths, "/elsewhere.db")
    remember_store(person.paths, back and str(person.paths.database))
    assert person.place() == person.paths.database
    assert list(person.paths.state_dir.iterdir()) == []
