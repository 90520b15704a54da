"""The vault keeps values durably and privately, says what is damaged, and is safe to use from several processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parts.small_disk import small_disk
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault
from toolcrib.errors import StoreError

SECRET, ACCOUNT = CredentialKind.SECRET, CredentialKind.ACCOUNT
VALUE = b"value-of-the-token"


def paths_in(folder: Path) -> Paths:
    return Paths.of_user({"TOOLCRIB_HOME": str(folder)})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_in(tmp_path)


@pytest.fixture
def vault(paths: Paths) -> Vault:
    return Vault(paths)


def files(paths: Paths) -> list[Path]:
    return sorted(path for path in paths.credentials.rglob("*") if path.is_file())


def entry(paths: Paths, kind: CredentialKind = SECRET) -> Path:
    """The file of the only entry of this kind."""
    (file,) = (paths.credentials / kind).iterdir()
    return file


@pytest.mark.req("BNS-6")
def test_a_value_is_kept_encrypted_and_only_its_owner_can_open_the_files(paths: Paths, vault: Vault) -> None:
    assert vault.get(SECRET, "TOKEN") is None
    assert vault.names(SECRET) == ()
    assert not paths.credentials.exists(), "reading creates nothing"
    vault.put(SECRET, "TOKEN", b"first")
    vault.put(SECRET, "TOKEN", VALUE)
    vault.put(ACCOUNT, "TOKEN", b"another kind")
    later = Vault(paths)
    assert (later.get(SECRET, "TOKEN"), later.get(ACCOUNT, "TOKEN")) == (VALUE, b"another kind")
    assert later.names(SECRET) == ("TOKEN",)
    assert len(files(paths)) == 3, "two entries and the key"
    for file in files(paths):
        assert VALUE not in file.read_bytes()
        assert b"TOKEN" not in file.read_bytes()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (later.delete(SECRET, "TOKEN"), later.delete(SECRET, "TOKEN")) == (True, False)
    assert (vault.get(SECRET, "TOKEN"), vault.get(ACCOUNT, "TOKEN")) == (None, b"another kind")


WRITER = """
import sys
from pathlib import Path
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault
home, number = sys.argv[1:]
vault = Vault(Paths.of_user({"TOOLCRIB_HOME": home}))
print("ready", flush=True)
sys.stdin.readline()
vault.put(CredentialKind.SECRET, f"own-{number}", number.encode())
for _ in range(20):
    vault.put(CredentialKind.SECRET, "shared", number.encode() * 4096)
    value = vault.get(CredentialKind.SECRET, "shared")
    assert len(value) == 4096 and len(set(value)) == 1, value[:10]
"""


def test_processes_that_write_at_once_share_one_key_and_lose_nothing(paths: Paths, vault: Vault) -> None:
    argv = [sys.executable, "-c", WRITER, str(paths.config_dir)]
    writers = [
        subprocess.Popen([*argv, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n", timeout=60)
    assert [writer.returncode for writer in writers] == [0] * 4
    assert [vault.get(SECRET, f"own-{number}") for number in range(4)] == [b"0", b"1", b"2", b"3"]
    assert vault.damaged(SECRET) == {}
    assert {file.name for file in paths.credentials.iterdir()} == {"key", "secret"}, "no second key is left"


def test_a_full_disk_is_an_error_and_the_old_value_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        vault = Vault(paths_in(disk.path))
        vault.put(SECRET, "TOKEN", VALUE)
        before = files(paths_in(disk.path))
        disk.fill()
        with pytest.raises(StoreError, match="No space left") as full:
            vault.put(SECRET, "TOKEN", b"new" * 4096)
        assert "space" in full.value.remedy
        assert vault.get(SECRET, "TOKEN") == VALUE
        assert files(paths_in(disk.path)) == before, "no half file is left"


def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(paths: Paths, vault: Vault) -> None:
    paths.state_dir.mkdir(mode=0o700)
    paths.credentials.write_text("a file")
    for use in (vault.names, lambda kind: vault.get(kind, "A"), lambda kind: vault.put(kind, "A", b"")):
        with pytest.raises(StoreError, match=str(paths.credentials)):
            use(SECRET)


def wrong_key(paths: Paths) -> None:
    (paths.credentials / "key").write_bytes(bytes(32))


def short_key(paths: Paths) -> None:
    (paths.credentials / "key").write_bytes(bytes(31))


def no_key(paths: Paths) -> None:
    (paths.credentials / "key").unlink()


def open_key(paths: Paths) -> None:
    (paths.credentials / "key").chmod(0o640)


def damaged_entry(paths: Paths) -> None:
    content = bytearray(entry(paths).read_bytes())
    content[-1] ^= 1
    entry(paths).write_bytes(content)


def empty_entry(paths: Paths) -> None:
    entry(paths).write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (wrong_key, "cannot be decrypted"),
        (short_key, "key is damaged"),
        (no_key, "key is missing"),
        (open_key, "read by others"),
        (damaged_entry, "cannot be decrypted"),
        (empty_entry, "cannot be decrypted"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_and_never_another_value(
    paths: Paths, vault: Vault, harm: Callable[[Paths], None], message: str
) -> None:
    vault.put(SECRET, "TOKEN", VALUE)
    harm(paths)
    with pytest.raises(StoreError, match=message) as refused:
        vault.get(SECRET, "TOKEN")
    assert refused.value.remedy
    assert vault.names(SECRET) == ()
    assert list(vault.damaged(SECRET)) == [entry(paths)]


def test_one_damaged_entry_hides_no_other_and_can_be_replaced_or_deleted(paths: Paths, vault: Vault) -> None:
    vault.put(SECRET, "DAMAGED", VALUE)
    file = entry(paths)
    vault.put(SECRET, "WHOLE", b"whole")
    file.write_bytes(b"x" * 100)
    assert vault.names(SECRET) == ("WHOLE",)
    assert list(vault.damaged(SECRET)) == [file]
    vault.put(SECRET, "DAMAGED", b"again")
    assert vault.names(SECRET) == ("DAMAGED", "WHOLE")
    file.write_bytes(b"x" * 100)
    assert vault.delete(SECRET, "DAMAGED")
    assert vault.damaged(SECRET) == {}


def test_an_entry_is_of_no_use_under_another_name_or_kind(paths: Paths, vault: Vault) -> None:
    vault.put(SECRET, "MINE", VALUE)
    mine = entry(paths).read_bytes()
    vault.put(ACCOUNT, "MINE", b"tokens")
    vault.delete(SECRET, "MINE")
    vault.put(SECRET, "OTHER", b"other")
    entry(paths).write_bytes(mine)
    entry(paths, ACCOUNT).write_bytes(mine)
    for kind, name in ((SECRET, "OTHER"), (ACCOUNT, "MINE")):
        with pytest.raises(StoreError, match="cannot be decrypted"):
            vault.get(kind, name)


@pytest.mark.req("BNS-6")
def test_permissions_of_others_are_taken_back(paths: Paths, vault: Vault) -> None:
    vault.put(SECRET, "TOKEN", VALUE)
    paths.credentials.chmod(0o755)
    assert vault.get(SECRET, "TOKEN") == VALUE
    assert stat.S_IMODE(paths.credentials.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_used(paths: Paths, vault: Vault) -> None:
    vault.put(SECRET, "TOKEN", VALUE)
    os.chown(paths.credentials, 12345, 12345)
    with pytest.raises(StoreError, match="another user"):
        vault.get(SECRET, "TOKEN")
    with pytest.raises(StoreError, match="another user"):
        vault.put(SECRET, "TOKEN", b"new")


def test_a_stored_value_is_durable_with_its_key_and_its_folders(
    paths: Paths, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, replace, link = os.fsync, Path.replace, os.link

    def seen_fsync(descriptor: int) -> None:
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def seen_replace(self: Path, target: Path) -> Path:
        done.append(("name", str(self)))
        return replace(self, target)

    def seen_link(source: Path, target: Path) -> None:
        done.append(("link", str(target)))
        link(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    monkeypatch.setattr(os, "link", seen_link)
    vault.put(SECRET, "TOKEN", VALUE)
    key, entry_file = (place for what, place in done if what == "name")
    folder = str(paths.credentials)
    assert done == [
        ("sync", key),
        ("name", key),
        ("link", f"{folder}/key"),
        ("sync", entry_file),
        ("name", entry_file),
        ("sync", f"{folder}/secret"),
        ("sync", folder),
        ("sync", str(paths.state_dir)),
    ]


def test_a_child_keeps_the_lock_after_its_parent_gave_it_up(vault: Vault) -> None:
    with vault.lock(ACCOUNT, "one") as descriptor:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
        with pytest.raises(BlockingIOError), vault.lock(ACCOUNT, "one", wait=False):
            pass
        with vault.lock(ACCOUNT, "another", wait=False), vault.lock(SECRET, "one", wait=False):
            pass
    with pytest.raises(BlockingIOError), vault.lock(ACCOUNT, "one", wait=False):
        pass
    child.communicate(timeout=20)
    with vault.lock(ACCOUNT, "one", wait=False):
        pass
