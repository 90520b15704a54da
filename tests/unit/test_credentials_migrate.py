"""A migration gives the vault a new key, in a file or a real keyring, and loses nothing wherever it is cut off."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parts.keyring_session import KeyringSession, keyring_session
from parts.sizes import sized
from parts.small_disk import small_disk
from toolcrib.config.paths import Paths
from toolcrib.credentials import system_keyring
from toolcrib.credentials.keys import KeyStore, VaultKeys
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import AlreadyRunning, StoreError

pytestmark = pytest.mark.req("BNS-6")

SECRET, ACCOUNT = CredentialKind.SECRET, CredentialKind.ACCOUNT
ENTRIES = {(SECRET, "A"): b"value-a", (SECRET, "B"): b"value-b", (ACCOUNT, "A"): b"tokens"}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of_user({"TOOLCRIB_HOME": str(tmp_path / "home")})


@pytest.fixture
def vault(paths: Paths) -> Vault:
    """With entries of both kinds, and one that is damaged."""
    return filled(paths)


@pytest.fixture(scope="module")
def keyring() -> Iterator[KeyringSession]:
    with keyring_session() as session:
        yield session


def filled(paths: Paths) -> Vault:
    vault = Vault(paths)
    for (kind, name), value in ENTRIES.items():
        vault.put(kind, name, value)
    return vault


def held(vault: Vault) -> dict[tuple[CredentialKind, str], bytes | None]:
    return {(kind, name): vault.get(kind, name) for kind, name in ENTRIES}


def files(paths: Paths) -> dict[str, bytes]:
    found = (path for path in paths.credentials.rglob("*") if path.is_file() and path.parent.name != "locks")
    return {str(path.relative_to(paths.credentials)): path.read_bytes() for path in found}


def test_a_migration_encrypts_every_entry_with_a_new_key(paths: Paths, vault: Vault) -> None:
    before = files(paths)
    assert vault.migrate(KeyStore.FILE) == len(ENTRIES)
    after = files(paths)
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] == after[name]] == []
    assert held(Vault(paths)) == ENTRIES
    (paths.credentials / "key").write_bytes(before["key"])
    assert Vault(paths).names(SECRET) == (), "the old key decrypts nothing"


def test_an_empty_vault_can_be_migrated(paths: Paths) -> None:
    assert Vault(paths).migrate(KeyStore.FILE) == 0
    assert held(filled(paths)) == ENTRIES


def test_without_its_key_nothing_is_encrypted_again(paths: Paths, vault: Vault) -> None:
    key = paths.credentials / "key"
    kept = key.read_bytes()
    key.unlink()
    before = files(paths)
    with pytest.raises(StoreError, match="key is missing"):
        vault.migrate(KeyStore.FILE)
    assert files(paths) == before
    key.write_bytes(kept)
    key.chmod(0o600)
    assert held(vault) == ENTRIES


def test_a_damaged_entry_stays_as_it_is(paths: Paths, vault: Vault) -> None:
    damaged = next((paths.credentials / "secret").iterdir())
    damaged.write_bytes(b"x" * 100)
    assert vault.migrate(KeyStore.FILE) == len(ENTRIES) - 1
    assert damaged.read_bytes() == b"x" * 100
    assert list(vault.damaged(SECRET)) == [damaged]


def test_a_migration_is_refused_during_a_sign_in(paths: Paths, vault: Vault) -> None:
    before = files(paths)
    with (
        vault.lock(ACCOUNT, "sign-in x"),
        pytest.raises(AlreadyRunning, match="sign-in at a server, or its renewal, is in progress") as refused,
    ):
        vault.migrate(KeyStore.FILE)
    assert refused.value.remedy
    assert files(paths) == before
    assert vault.migrate(KeyStore.FILE) == len(ENTRIES)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        paths = Paths.of_user({"TOOLCRIB_HOME": str(disk.path)})
        vault = filled(paths)
        filler = disk.fill()
        with pytest.raises(StoreError, match="No space left"):
            vault.migrate(KeyStore.FILE)
        assert held(Vault(paths)) == ENTRIES
        filler.unlink()
        assert vault.migrate(KeyStore.FILE) == len(ENTRIES)


def test_others_read_and_write_while_the_key_changes(paths: Paths, vault: Vault) -> None:
    over, wrong = threading.Event(), []

    def work(number: int) -> None:
        mine, step = Vault(paths), 0
        while not over.is_set():
            step += 1
            mine.put(SECRET, f"own-{number}", b"%d" % step)
            if mine.get(SECRET, f"own-{number}") != b"%d" % step or held(mine) != ENTRIES:
                wrong.append((number, step))
            mine.delete(SECRET, f"own-{number}")
            if mine.get(SECRET, f"own-{number}") is not None:
                wrong.append((number, -step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(sized(30, 300)):
            vault.migrate(KeyStore.FILE)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert held(vault) == ENTRIES


def test_a_reader_gets_the_value_if_the_key_changes_after_it_has_read_the_entry(
    paths: Paths, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable, migrated = VaultKeys.readable, []

    def readable_after_a_migration(keys: VaultKeys) -> Iterator[bytes | StoreError]:
        if not migrated:
            migrated.append(True)
            Vault(paths).migrate(KeyStore.FILE)
        return readable(keys)

    monkeypatch.setattr(VaultKeys, "readable", readable_after_a_migration)
    assert vault.get(SECRET, "A") == ENTRIES[SECRET, "A"]
    assert migrated


KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from toolcrib.config.paths import Paths
from toolcrib.credentials import sealing
from toolcrib.credentials.keys import KeyStore
from toolcrib.credentials.vault import CredentialKind, Vault

home, store, bus, begin, every = sys.argv[1], KeyStore(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
OURS = ("vault.py", "keys.py", "system_keyring.py")

def killed_at(line, place):
    left = line
    def trace(frame, event, argument):
        nonlocal left
        if os.path.basename(frame.f_code.co_filename) not in OURS:
            return None
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    Vault(Paths.of_user({"TOOLCRIB_HOME": place})).migrate(store, bus=bus)
    os._exit(0)

line, status = begin, 1
while status:
    place = f"{home}-{line}"
    shutil.copytree(home, place)
    child = os.fork()
    if not child:
        killed_at(line, place)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    print(json.dumps([place, status]), flush=True)
    line += every
"""


def killed_everywhere(paths: Paths, store: KeyStore, bus: str = "", begin: int = 1, every: int = 1) -> Iterator[Paths]:
    """The vault after a migration that was killed before its first line, before its second, and so on; at last,
    after one that was completed."""
    words = [sys.executable, "-c", KILLED, str(paths.config_dir), store.value, bus, str(begin), str(every)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            place, _status = json.loads(line)
            yield Paths.of_user({"TOOLCRIB_HOME": place})
            shutil.rmtree(place)
    assert process.returncode == 0


def check(paths: Paths, then: KeyStore) -> None:
    """All entries are there, can be changed and migrated, and nothing is left of the killed migration."""
    vault = Vault(paths)
    assert held(vault) == ENTRIES
    assert (vault.damaged(SECRET), vault.damaged(ACCOUNT)) == ({}, {})
    vault.put(SECRET, "LATER", b"later")
    assert Vault(paths).get(SECRET, "LATER") == b"later"
    assert vault.migrate(then) == len(ENTRIES) + 1
    assert held(Vault(paths)) == ENTRIES
    assert Vault(paths).get(SECRET, "LATER") == b"later"
    left = [name for name in files(paths) if name == "key.new" or Path(name).name.startswith(".")]
    assert left == []


def test_a_migration_that_is_killed_at_any_line_loses_nothing(paths: Paths, vault: Vault) -> None:
    kills = 0
    for after in killed_everywhere(paths, KeyStore.FILE):
        check(after, KeyStore.FILE)
        kills += 1
    assert kills > 100, "every line of the migration"
    assert held(vault) == ENTRIES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("to", list(KeyStore))
def test_a_migration_to_and_from_a_keyring_that_is_killed_loses_nothing(
    paths: Paths, keyring: KeyringSession, to: KeyStore
) -> None:
    filled(paths)
    if to is KeyStore.FILE:
        Vault(paths).migrate(KeyStore.KEYRING, bus=keyring.bus)
    kills = 0
    for after in killed_everywhere(paths, to, keyring.bus, begin=3, every=sized(17, 1)):
        check(after, KeyStore.FILE)
        kills += 1
    assert kills > 8


def test_the_key_is_in_the_keyring_and_not_in_the_folder(
    paths: Paths, vault: Vault, keyring: KeyringSession, tmp_path: Path
) -> None:
    assert vault.key_store() is KeyStore.FILE
    vault.migrate(KeyStore.KEYRING, bus=keyring.bus)
    assert (vault.key_store(), Vault(paths).key_store()) == (KeyStore.KEYRING, KeyStore.KEYRING)
    assert set(json.loads(files(paths)["key"])) == {"account", "bus"}
    later = Vault(paths)
    assert held(later) == ENTRIES, "another process finds the bus where it was"
    later.put(SECRET, "C", b"c")
    assert vault.get(SECRET, "C") == b"c"

    copied = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path / "copy")})
    shutil.copytree(paths.config_dir, copied.config_dir)
    Vault(copied).migrate(KeyStore.FILE)
    assert held(Vault(paths)) == ENTRIES, "a copy that is migrated leaves the key of the original"

    old = json.loads(files(paths)["key"])
    vault.migrate(KeyStore.FILE)
    assert held(Vault(paths)) == ENTRIES
    assert system_keyring._ask("get", keyring.bus, old["account"]) == (None, "")


def test_the_usual_address_of_the_bus_is_enough(
    paths: Paths, vault: Vault, keyring: KeyringSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setattr(system_keyring, "_USUAL_BUS", keyring.bus.removeprefix("unix:path="))
    vault.migrate(KeyStore.KEYRING, bus="unix:path=/nowhere")
    assert json.loads(files(paths)["key"])["bus"] == keyring.bus
    assert held(Vault(paths)) == ENTRIES


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (KeyringSession.end, "this session has none"),
        (KeyringSession.lock, "it is locked"),
        (KeyringSession.hang, "it did not answer"),
    ],
)
def test_without_its_keyring_nothing_is_lost_and_the_error_says_what_to_do(
    paths: Paths, vault: Vault, how: Callable[[KeyringSession], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keyring_session() as session:
        if how is KeyringSession.hang:
            monkeypatch.setattr(system_keyring, "_LIMIT", 2.0)
        vault.migrate(KeyStore.KEYRING, bus=session.bus)
        how(session)
        before = files(paths)
        later = Vault(paths)
        with pytest.raises(StoreError, match="system's keyring, which cannot be read") as unreadable:
            later.get(SECRET, "A")
        assert why in unreadable.value.message
        assert "toolcrib reload" in unreadable.value.remedy
        with pytest.raises(StoreError, match="system's keyring"):
            later.put(SECRET, "NEW", b"new")
        with pytest.raises(StoreError, match="system's keyring"):
            later.migrate(KeyStore.FILE)
        assert files(paths) == before


def test_without_a_keyring_the_key_stays_in_its_file(
    paths: Paths, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_keyring, "_buses", lambda known="": [f"unix:path={paths.state_dir / 'none'}"])
    before = files(paths)
    with pytest.raises(StoreError, match="keyring cannot be used: this session has none") as refused:
        vault.migrate(KeyStore.KEYRING)
    assert "keep the key in a file" in refused.value.remedy
    assert files(paths) == before
    monkeypatch.setattr(system_keyring.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"toolcrib\[keyring\]"):
        vault.migrate(KeyStore.KEYRING)


def test_a_locked_keyring_is_asked_once_for_several_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    others = threading.Barrier(5)

    def locked(action: str, *_: object, **__: object) -> tuple[None, str]:
        asked.append(action)
        with contextlib.suppress(threading.BrokenBarrierError):
            # The others, if they ask too.
            others.wait(0.5)
        return None, "it is locked"

    monkeypatch.setattr(system_keyring, "_ask", locked)
    monkeypatch.setattr(system_keyring, "_buses", lambda known="": [""])
    keyring, entry = system_keyring.SystemKeyring(), system_keyring.KeyringEntry(account="x")

    def read() -> str:
        try:
            return str(keyring.get(entry))
        except StoreError as error:
            return error.message

    with ThreadPoolExecutor(5) as readers:
        answers = set(readers.map(lambda _: read(), range(5)))
    assert (asked, len(answers)) == (["get"], 1)
