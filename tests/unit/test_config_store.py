"""Which settings choose the database, and that its password is never shown."""

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
        self.paths.state_dir.mkdir(parents=True)

    def configure(self, **settings: Any) -> None:
        (self.paths.config_dir / "config.json").write_text(json.dumps(settings))

    def load(self) -> Config:
        return load(paths=self.paths, root=self.root, environ=self.environ, is_trusted=lambda *_: True)

    def store(self, flag: str | None = None) -> str | Path:
        return store_location(self.paths, self.environ, Flags(store=flag))


@pytest.fixture
def person(tmp_path):
    return Person(tmp_path)


@pytest.mark.req("BNS-3")
def test_the_database_is_a_file_by_default_and_the_highest_layer_wins(person):
    assert person.store() == person.paths.database
    person.configure(store="~/mine.db")
    assert person.store() == f"{person.environ['HOME']}/mine.db"
    person.configure(store="postgresql://crib:${DB_PASSWORD}@db.example/crib")
    assert person.store("/tmp/flag.db") == "/tmp/flag.db", "the flag overrides a file with an unset variable"
    person.environ["DB_PASSWORD"] = "hush-hush"
    assert person.store() == URL
    assert mask(person.load())["settings"]["store"] == "postgresql://****@db.example/crib"
    person.configure(store="~/mine.db")
    person.environ["TOOLCRIB_STORE"] = URL
    assert person.store() == URL
    assert person.store("/tmp/flag.db") == "/tmp/flag.db"


UNUSABLE = ["mysql://u:hush-hush@h/d", "relative.db", "postgresql://u:${UNSET}@h/d", "/a\0b"]


@pytest.mark.parametrize(
    ("through", "given"),
    [*(("file", given) for given in (*UNUSABLE, "", 3, ["/x"])), *(("variable", given) for given in UNUSABLE)],
)
def test_an_invalid_store_is_an_error_instead_of_another_database(person, through, given):
    if through == "file":
        person.configure(store=given)
    else:
        person.environ["TOOLCRIB_STORE"] = given
    with pytest.raises(ConfigError) as raised:
        person.store()
    assert "store" in raised.value.message.lower()
    assert "hush" not in raised.value.text()


OWN = {"store": "/evil.db", "audit_values": True, "audit_keep_days": 1, "audit_keep_mb": 1, "session_idle_hours": 1}


@pytest.mark.req("BNS-3", "KSI-9")
def test_even_a_trusted_project_cannot_set_the_store_or_the_audit_settings(person):
    before = person.load().settings
    (person.root / ".toolcrib" / "config.json").write_text(json.dumps({**OWN, "names": "plain"}))
    config = person.load()
    assert config.settings == dataclasses.replace(before, names=NameStyle.PLAIN)
    assert {(problem.severity, problem.key) for problem in config.problems} == {(Severity.ERROR, key) for key in OWN}
    assert person.store() == person.paths.database
    person.configure(**OWN)
    assert config.settings != person.load().settings == dataclasses.replace(before, **OWN, names=NameStyle.PLAIN)


@pytest.mark.parametrize(
    "store",
    [
        URL,
        "postgres://u:hush@h/d",
        "postgresql://u@h/d?password=hush",
        "postgresql://u@h/d?sslmode=require&sslpassword=hush",
        "postgresql://[u:hush@h/d",
    ],
)
@pytest.mark.req("KSI-9")
def test_a_password_in_a_flag_is_refused_with_safe_alternatives(store):
    assert holds_password(store)
    with pytest.raises(UsageError) as raised:
        without_password(store)
    assert "hush" not in raised.value.text()
    assert "TOOLCRIB_STORE" in raised.value.remedy
    assert "PGPASSFILE" in raised.value.remedy


def test_a_flag_without_a_password_is_accepted_and_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    for store in ("postgresql://u@h:5432/d?sslmode=require", "postgresql:///d?host=/run/postgresql", "/some/file.db"):
        assert not holds_password(store)
        assert without_password(store) == store
    monkeypatch.chdir(tmp_path)
    assert without_password("crib.db") == str(tmp_path / "crib.db")
    assert without_password(None) is None


@pytest.mark.req("BNS-3")
def test_after_a_daemon_with_store_a_command_without_a_store_is_refused(person):
    remember_store(person.paths, "postgresql://crib@db.example/crib")
    assert person.paths.last_store.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError) as raised:
        person.store()
    assert "postgresql://crib@db.example/crib" in raised.value.message
    for way in ("`store: postgresql", "TOOLCRIB_STORE", f"`toolcrib up --store {person.paths.database}`"):
        assert way in raised.value.remedy
    assert person.store("/tmp/flag.db") == "/tmp/flag.db"
    person.environ["TOOLCRIB_STORE"] = URL
    assert person.store() == URL
    del person.environ["TOOLCRIB_STORE"]
    person.configure(store="/tmp/mine.db")
    assert person.store() == "/tmp/mine.db"


def test_a_daemon_with_the_default_file_or_without_the_flag_deletes_the_record(person):
    for store in (None, str(person.paths.database)):
        remember_store(person.paths, "/elsewhere.db")
        remember_store(person.paths, store)
        assert person.store() == person.paths.database
        assert list(person.paths.state_dir.iterdir()) == []
