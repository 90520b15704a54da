"""Every kind of row is read as it was written, on every engine."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.config.masking import storable
from toolcrib.errors import StoreError
from toolcrib.store import identity, pins, servers
from toolcrib.store.database import Database
from toolcrib.store.identity import AgentRow, LegacySessionRow, ProfileRow, SessionRow
from toolcrib.store.pins import PinChange, PinRow

DEFINITIONS = (b'{"name": "a",\n "x": 1.10}', b'{"name":"\xc3\xa9"}', b"\xff\x00 not even JSON")


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    with Database.open(store_url) as database:
        yield database


@pytest.mark.req("ENG-10")
def test_known_tools_are_kept_byte_for_byte_written_if_changed_and_forgotten_per_server(store_url: str) -> None:
    with Database.open(store_url) as database:
        assert database.read(servers.load_tools, "id1", "/project") is None
        assert database.write(servers.remember_tools, "id1", "/project", DEFINITIONS) is True
        assert database.write(servers.remember_tools, "id1", "/project", list(DEFINITIONS)) is False
        assert database.write(servers.remember_tools, "id1", None, ()) is True
        assert database.write(servers.remember_tools, "stays", "/project", DEFINITIONS) is True
    with Database.open(store_url) as database:
        assert database.read(servers.load_tools, "id1", "/project") == DEFINITIONS
        assert database.read(servers.load_tools, "id1", None) == ()
        assert database.read(servers.load_tools, "id2", "/project") is None
        assert database.write(servers.remember_tools, "id1", "/project", DEFINITIONS[:1]) is True
        assert database.read(servers.load_tools, "id1", "/project") == DEFINITIONS[:1]
        database.write(servers.forget_tools, "id1")
        assert database.read(servers.load_tools, "id1", "/project") is None
        assert database.read(servers.load_tools, "id1", None) is None
        assert database.read(servers.load_tools, "stays", "/project") == DEFINITIONS


def test_tools_that_cannot_be_read_count_as_unknown(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.write(servers.remember_tools, "id", None, DEFINITIONS)
    junk = sa.text("UPDATE known_tools SET definitions = :junk").bindparams(junk=b"\xc1")
    database.write(lambda connection: connection.execute(junk))
    assert database.read(servers.load_tools, "id", None) is None
    assert "cannot be read" in caplog.text


@pytest.mark.req("BNS-10")
def test_trust_is_bound_to_a_path_and_its_content(database: Database) -> None:
    path = Path("/home/me/projekt ü/.toolcrib/config.yml")
    database.write(servers.trust_file, path, "aa")
    database.write(servers.trust_file, path, "bb")
    database.write(servers.trust_file, "/other", "cc")
    found = {row.path: row.sha256 for row in database.read(servers.all_trusted_files)}
    assert found == {str(path): "bb", "/other": "cc"}
    assert database.write(servers.untrust_file, path) is True
    assert database.write(servers.untrust_file, path) is False
    assert [row.path for row in database.read(servers.all_trusted_files)] == ["/other"]
    with pytest.raises(ValueError, match="absolute"):
        database.write(servers.trust_file, "config.yml", "aa")


@pytest.mark.req("KSI-5")
def test_a_server_is_trusted_until_trust_is_removed(database: Database) -> None:
    for server, name in (("one", "files"), ("two", "git"), ("one", "files")):
        database.write(servers.trust_server, server, name)
    assert database.read(servers.all_trusted_servers) == {"one", "two"}
    assert database.write(servers.untrust_server, "one") is True
    assert database.write(servers.untrust_server, "one") is False
    assert database.read(servers.all_trusted_servers) == {"two"}


def pin(sha256: str, tool: str = "read", **values: Any) -> PinRow:
    known = {"definition": b"\x00\xff", "accepted_at": 1.5, "accepted_by": ""}
    return PinRow(sha256=sha256, tool=tool, **known | values)


@pytest.mark.req("KSI-5")
def test_pins_are_added_replaced_and_dropped_per_server_and_can_be_undone(database: Database) -> None:
    first, second = pin("aa"), pin("bb", accepted_at=2.5, accepted_by="owner")
    assert database.write(pins.change_pins, "one", PinChange(add=[first], kept_out=["wipe"])) == ()
    database.write(pins.change_pins, "two", PinChange(add=[pin("aa", "other")], kept_out=[]))
    reviewed = pin("aa", accepted_by="owner")
    dropped = database.write(pins.change_pins, "one", PinChange(add=[second, reviewed], drop=["zz"], kept_out=["read"]))
    assert dropped == (first,)
    assert database.read(pins.pins_of, "one", ["read"]) == (reviewed, second)
    assert database.read(pins.load_kept_out) == {"one": {"read"}}
    database.write(pins.change_pins, "one", PinChange(add=dropped, drop=["bb"], kept_out=[]))
    assert database.read(pins.pins_of, "one", ["read"]) == (first,)
    assert {one: [row.tool for row in rows] for one, rows in database.read(pins.load_pins).items()} == {
        "one": ["read"],
        "two": ["other"],
    }
    assert database.read(pins.load_kept_out) == {}


def test_the_last_reported_difference_is_kept_per_server_and_root(database: Database) -> None:
    for digest in ("aa", "bb"):
        database.write(pins.note_difference, "one", "/root", digest)
    assert database.read(pins.noted_difference, "one", "/root") == "bb"
    assert database.read(pins.noted_difference, "one", "") == ""


def agent(name: str, **values: Any) -> AgentRow:
    return AgentRow(**{"name": name, "profile": "developer", "digest": name.encode(), "created_at": 1.5} | values)


def session(agent: str, conversation: str = "default", **values: Any) -> SessionRow:
    known = {"id": f"s_{agent}", "started_at": 1.25, "used_at": 2.5, "mode": "full"}
    return SessionRow(agent=agent, conversation=conversation, **known | values)


def legacy(id: str, agent: str, conversation: str = "default") -> LegacySessionRow:
    return LegacySessionRow(
        id=id, agent=agent, conversation=conversation, started_at=3.5, capabilities="{}", client="c"
    )


@pytest.mark.req("KSI-2")
def test_agents_rules_and_profiles_survive_a_restart(store_url: str) -> None:
    reviewer = agent("reviewer", workdir="/src/ü", expires_at=9.75, digest=b"\x00\xff" * 16)
    child = agent("child", parent="reviewer", created_at=2.5)
    profile = ProfileRow(name="mine", content='{"rules": []}', changed_at=4.5)
    with Database.open(store_url) as database:
        assert database.write(identity.add_agent, reviewer)
        assert database.write(identity.add_agent, child)
        rules = [
            database.write(identity.add_rule, name, origin="agent", rule=text, added_at=3.5)
            for name, text in (("reviewer", '{"allow": "git:*"}'), ("child", '{"deny": "*"}'), ("reviewer", "{}"))
        ]
        database.write(identity.put_profile, dataclasses.replace(profile, content="before"))
        database.write(identity.put_profile, profile)
    with Database.open(store_url) as database:
        assert database.read(identity.all_agents) == (reviewer, child)
        assert database.read(identity.all_rules) == tuple(rules)
        assert database.read(identity.all_profiles) == (profile,)
        database.write(identity.drop_rules, [rules[0].id, rules[2].id])
        assert database.read(identity.all_rules) == (rules[1],)
        assert database.write(identity.drop_profile, "mine") is True
        assert database.write(identity.drop_profile, "mine") is False


@pytest.mark.req("KSI-2")
def test_a_taken_name_is_refused_and_a_new_token_replaces_the_old(database: Database) -> None:
    first = agent("reviewer", expires_at=5.0)
    assert database.write(identity.add_agent, first) is True
    assert database.write(identity.add_agent, agent("reviewer", digest=b"other", profile="owner")) is False
    assert database.read(identity.all_agents) == (first,)
    assert database.write(identity.change_token, "reviewer", b"secret", None) is True
    assert database.read(identity.all_agents) == (agent("reviewer", digest=b"secret"),)
    assert "secret" not in repr(database.read(identity.all_agents))
    assert database.write(identity.change_token, "nobody", b"x", None) is False


@pytest.mark.req("KSI-2", "KSI-7")
def test_removed_agents_lose_their_rules_and_sessions_and_others_keep_theirs(database: Database) -> None:
    for name in ("parent", "child", "stays"):
        database.write(identity.add_agent, agent(name))
        database.write(identity.add_rule, name, origin="agent", rule="{}", added_at=1.0)
        database.write(identity.put_sessions, [session(name), session(name, "second")])
        database.write(identity.begin_legacy_sessions, [legacy(f"l_{name}", name)])
    database.write(identity.put_sessions, [session("owner")])
    database.write(identity.remove_agents, ["parent", "child", "never was"])
    database.write(identity.remove_agents, [])
    assert [row.name for row in database.read(identity.all_agents)] == ["stays"]
    assert [row.agent for row in database.read(identity.all_rules)] == ["stays"]
    assert sorted(row.agent for row in database.read(identity.all_sessions)) == ["owner", "stays", "stays"]
    assert [row.id for row in database.read(identity.all_legacy_sessions)] == ["l_stays"]
    with pytest.raises(StoreError, match="conflicts with others"):
        database.write(identity.add_rule, "child", origin="agent", rule="{}", added_at=1.0)
    assert [row.agent for row in database.read(identity.all_rules)] == ["stays"]


COUNTS = """
import sys
from toolcrib.store import identity
from toolcrib.store.database import Database
with Database.open(sys.argv[1], busy_timeout=30) as database:
    for _ in range(40):
        print(database.write(identity.next_version, "permissions"))
"""


def test_a_counter_only_grows_also_in_several_processes(store_url: str) -> None:
    with Database.open(store_url) as database:
        assert database.read(identity.version, "permissions") == 0
    words = [sys.executable, "-c", COUNTS, store_url]
    counting = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    numbers = [int(line) for process in counting for line in process.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 121))
    with Database.open(store_url) as database:
        assert database.read(identity.version, "permissions") == 120
        assert database.write(identity.next_version, "other") == 1


@pytest.mark.req("KSI-7")
def test_sessions_survive_a_restart_with_all_their_numbers(store_url: str) -> None:
    big = 2**62
    counted = session("a", "c1", used_at=9.5, calls=3, denied=1, failed=2, listings=4, result_bytes=big)
    counted = dataclasses.replace(counted, usage='{"tokens":{"lists":7}}')
    plain = session("a", "c2", catalog_version=7, permission_version=8)
    with Database.open(store_url) as database:
        database.write(identity.put_sessions, [session("a", "c1"), plain, counted])
        database.write(identity.begin_legacy_sessions, [legacy("l1", "a", "c1"), legacy("l2", "a", "c2")])
    with Database.open(store_url) as database:
        assert database.read(identity.all_sessions) == (plain, counted)
        database.write(identity.put_sessions, [dataclasses.replace(plain, used_at=10.5)])
        assert [row.conversation for row in database.read(identity.all_sessions)] == ["c1", "c2"]
        assert set(database.read(identity.all_legacy_sessions)) == {legacy("l1", "a", "c1"), legacy("l2", "a", "c2")}


@pytest.mark.req("KSI-7")
def test_an_ended_session_loses_its_legacy_ids(database: Database) -> None:
    database.write(identity.put_sessions, [session("a", "one"), session("a", "two"), session("b", "one")])
    database.write(
        identity.begin_legacy_sessions, [legacy("l1", "a", "one"), legacy("l2", "a", "two"), legacy("l3", "b", "one")]
    )
    database.write(identity.end_sessions, [("a", "one"), ("b", "two")])
    kept = {(row.agent, row.conversation) for row in database.read(identity.all_sessions)}
    assert kept == {("a", "two"), ("b", "one")}
    assert {row.id for row in database.read(identity.all_legacy_sessions)} == {"l2", "l3"}
    database.write(identity.end_legacy_sessions, ["l3"])
    database.write(identity.end_sessions, [("a", "two")])
    assert [row.agent for row in database.read(identity.all_sessions)] == ["b"]
    assert database.read(identity.all_legacy_sessions) == ()


@pytest.mark.req("KSI-7")
def test_two_processes_may_store_the_same_conversation_and_legacy_ids_need_a_session(database: Database) -> None:
    database.write(identity.put_sessions, [session("a", id="s_mine")])
    database.write(identity.begin_legacy_sessions, [legacy("l1", "a"), legacy("l2", "gone"), legacy("l3", "a")])
    database.write(identity.put_sessions, [session("a", id="s_theirs")])
    assert [row.id for row in database.read(identity.all_sessions)] == ["s_theirs"]
    assert {row.id for row in database.read(identity.all_legacy_sessions)} == {"l1", "l3"}
    works: list[Callable[[sa.Connection, list[Any]], None]]
    works = [identity.put_sessions, identity.end_sessions]
    works += [identity.begin_legacy_sessions, identity.end_legacy_sessions]
    for work in works:
        database.write(work, [])


@pytest.mark.parametrize("text", ["/p/\udcff", "/p\0", "\ud800"])
def test_a_text_that_one_engine_cannot_store_is_refused_by_both(database: Database, text: str) -> None:
    row = session("a", text)
    with pytest.raises(StoreError, match="cannot store the text") as raised:
        database.write(identity.put_sessions, [session("b"), row])
    assert raised.value.remedy
    assert raised.value.text().isascii()
    assert database.read(identity.all_sessions) == ()
    with pytest.raises(StoreError, match="cannot store the text"):
        database.write(identity.end_sessions, [("a", text)])


@given(text=st.text(alphabet=st.characters(codec=None) | st.sampled_from("\0\ud800\udfff\\")))
def test_storable_texts_can_always_be_stored(text: str) -> None:
    made = storable(text)
    assert "\0" not in made
    made.encode()
    assert made == text or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")),
)
@settings(max_examples=25, deadline=None)
def test_any_definitions_are_read_as_they_were_written(database: Database, definitions: list[bytes], root: str) -> None:
    database.write(servers.remember_tools, "id", root, definitions)
    assert database.read(servers.load_tools, "id", root) == tuple(definitions)
