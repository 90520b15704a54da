"""Clients' files: Toolcrib's entry in a user's file, and whole files in an agent's private folder.

In: a `ClientSpec`, the scope, the entry; for a private file an agent and the endpoint. Out: the user's file with only
that entry changed, and a backup of the previous content. When you remove the entry and nothing else has changed, the
file gets its old bytes back. Private files hold the agent's token and are deleted with the agent.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from toolcrib.coding_agents import json_entry, toml_entry
from toolcrib.coding_agents.client_spec import SERVER_NAME, ClientFileFormat, ClientScope, ClientSpec, labels
from toolcrib.coding_agents.clients import CLIENTS
from toolcrib.errors import ConfigError, NotFound, ToolcribError, UsageError
from toolcrib.identity.agent_folders import AgentFolders

BACKUP_SUFFIX = ".before-toolcrib"
_BOM = "\ufeff"


class EntryOutcome(enum.StrEnum):
    SHOWN = "shown"
    WRITTEN = "written"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class ClientEntry:
    client: ClientSpec
    scope: ClientScope
    entry: Mapping[str, Any]
    environ: Mapping[str, str]
    root: Path

    @property
    def file(self) -> Path | None:
        """The client's file, with symbolic links resolved."""
        place = self.client.places.get(self.scope)
        if place is None:
            return None
        if self.scope is ClientScope.PROJECT:
            # A variable moves a user's folder, never a project's.
            return (self.root / place.folder / place.file).resolve()
        home = self.environ.get("HOME", "")
        return place.under(Path(home) if Path(home).is_absolute() else Path.home(), self.environ).resolve()

    @property
    def backup(self) -> Path | None:
        """The backup with the content from before the entry was added, if there was any."""
        file = self.file
        return None if file is None or not _backup(file).exists() else _backup(file)

    @property
    def text(self) -> str:
        """The entry as the only content of a file, ready to paste."""
        return self._put("").rstrip("\n")

    def write(self) -> EntryOutcome:
        file = self.known_file()
        before = _read(file)
        text = before or ""
        try:
            if self._get(text) == self.entry:
                return EntryOutcome.UNCHANGED
            after = self._put(text)
        except ConfigError as error:
            raise ConfigError(
                f"{file} was not changed. {error.message}", remedy=f"Add this entry yourself:\n{self.text}"
            ) from error
        backup = _backup(file)
        if before is not None and (self._get(text) is None or not backup.exists()):
            _replace(backup, before, like=file)
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, after, like=file, expected=before)
        return EntryOutcome.WRITTEN

    def remove(self) -> EntryOutcome:
        file = self.known_file()
        now = _read(file)
        backup = _backup(file)
        if now is None:
            return EntryOutcome.ABSENT
        try:
            entry = self._get(now)
            if entry is None:
                # The user removed it. The backup may hold secrets and is no longer needed.
                backup.unlink(missing_ok=True)
                return EntryOutcome.ABSENT
            old = _read(backup)
            if old is None and self._reads_as(now, "", entry):
                file.unlink()
            elif old is not None and self._get(old) is None and self._reads_as(now, old, entry):
                _replace(file, old, like=file, expected=now)
            else:
                _replace(file, self._drop(now), like=file, expected=now)
        except ConfigError as error:
            raise ConfigError(
                f"{file}: {error.message}", remedy=f"Remove the entry {SERVER_NAME!r} yourself."
            ) from error
        backup.unlink(missing_ok=True)
        return EntryOutcome.REMOVED

    def _reads_as(self, now: str, before: str, entry: Any) -> bool:
        """Whether `now` is exactly `before` plus the entry, so nothing else has changed."""
        with contextlib.suppress(ConfigError):
            return self._put(before, entry) == now
        return False

    def known_file(self) -> Path:
        file = self.file
        if file is None:
            raise UsageError(
                f"Toolcrib does not know where {self.client.title} keeps its servers.",
                remedy="Run the command without --write and --remove, and paste the entry yourself.",
            )
        return file

    def _get(self, text: str) -> Any:
        return entry_editor(self.client).get_entry(text.removeprefix(_BOM), self.client.keys, SERVER_NAME)

    def _put(self, text: str, entry: Any = None) -> str:
        mark = _BOM if text.startswith(_BOM) else ""
        value = self.entry if entry is None else entry
        edited: str = entry_editor(self.client).put_entry(text.removeprefix(_BOM), self.client.keys, SERVER_NAME, value)
        return mark + edited

    def _drop(self, text: str) -> str:
        mark = _BOM if text.startswith(_BOM) else ""
        edited: str = entry_editor(self.client).drop_entry(text.removeprefix(_BOM), self.client.keys, SERVER_NAME)
        return mark + edited


def entry_editor(client: ClientSpec) -> ModuleType:
    """The module that reads and edits the client's file format."""
    return json_entry if client.format is ClientFileFormat.JSON else toml_entry


def _backup(file: Path) -> Path:
    return file.with_name(file.name + BACKUP_SUFFIX)


def _read(file: Path) -> str | None:
    """The file's text with unchanged line endings; None if the file doesn't exist."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.", remedy="Save it as UTF-8 and try again.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", remedy="Check its permissions.") from error


_UNCHECKED = object()


def _replace(file: Path, text: str, *, like: Path, expected: object = _UNCHECKED) -> None:
    """Replaces the file atomically, with the mode and owner of `like`; only the user can read a new file."""
    try:
        found: os.stat_result | None = like.stat()
    except FileNotFoundError:
        found = None
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode("utf-8"))
                stream.flush()
                os.fsync(stream.fileno())
                if found is not None:
                    # Only root can change a file's owner, and only root gets here with another user's file.
                    with contextlib.suppress(PermissionError):
                        os.fchown(stream.fileno(), found.st_uid, found.st_gid)
                    os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
            # The client may have changed the file in the meantime; don't overwrite its change.
            if expected is not _UNCHECKED and _read(file) != expected:
                raise ConfigError(f"Another program has just changed {file}.", remedy="Close the client and try again.")
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.", remedy="Check its permissions.") from error


log = logging.getLogger(__name__)


def write_private_file(
    folders: AgentFolders, agent: str, client: ClientSpec, *, url: str, conversation: str = "", listing: str = ""
) -> Path:
    """Writes the file with the agent's current token."""
    named = labels(agent, conversation, listing=listing)
    return folders.put(agent, client.private_file, _text(folders, agent, client, url, named))


def renew_private_files(folders: AgentFolders, agents: Iterable[str], *, url: str) -> None:
    """Updates the files generated for these agents. A file that cannot be written is logged and skipped."""
    for agent in agents:
        try:
            _renew(folders, agent, url)
        except ToolcribError as error:
            log.warning("the client files of agent %s could not be renewed: %s", agent, error.text())


def _renew(folders: AgentFolders, agent: str, url: str) -> None:
    for client in CLIENTS:
        current = folders.get(agent, client.private_file)
        if current is None:
            continue
        text = _text(folders, agent, client, url, {**_labels(client, current), **labels(agent)})
        if text != current:
            folders.put(agent, client.private_file, text)


def _text(folders: AgentFolders, agent: str, client: ClientSpec, url: str, named: Mapping[str, str]) -> str:
    token = folders.get(agent)
    if token is None:
        raise NotFound(
            f"{folders.token_file(agent)} is missing.", remedy=f"`toolcrib agent rotate {agent}` creates a new token."
        )
    entry = client.private(url=url, token=token, labels=named)
    text: str = entry_editor(client).put_entry("", client.keys, SERVER_NAME, entry)
    return text.rstrip("\n")


def _labels(client: ClientSpec, text: str) -> dict[str, str]:
    """The labels in the file."""
    try:
        entry: Any = entry_editor(client).get_entry(text, client.keys, SERVER_NAME)
    except ConfigError:
        return {}
    headers = [value for value in entry.values() if isinstance(value, dict)] if isinstance(entry, dict) else []
    return {name: str(value) for known in headers for name, value in known.items() if name.startswith("X-Toolcrib-")}
