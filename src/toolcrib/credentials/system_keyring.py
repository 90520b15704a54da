"""The vault's key in the system's keyring: GNOME Keyring, KWallet, the macOS keychain.

In: a key. Out: where it is, as text for a file; and the key again. A process started without a session, such as a
daemon in a client's thin environment, looks for the session's bus in its usual place, and where it was at first.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from toolcrib.errors import StoreError
from toolcrib.signals import with_default_signals

_BUS = "DBUS_SESSION_BUS_ADDRESS"
_USUAL_BUS = "/run/user/{}/bus"
_LIMIT = 10.0
"""Seconds for an answer. A locked keyring asks the person meanwhile."""
_TRY_AGAIN = 5.0
"""Seconds after a failure during which it isn't tried again: each secret would wait as long."""
_REMEDY = "Log in to your desktop or unlock the keyring, then run `toolcrib reload`."


@dataclass(frozen=True, kw_only=True)
class KeyringEntry:
    account: str
    """Begins with the folder of the entries that the key encrypts."""
    bus: str = ""
    """The session's bus when the key was stored; empty where there is none."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, text: bytes) -> KeyringEntry | None:
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


class SystemKeyring:
    """Remembers the keys that it has read, because an account's key never changes."""

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}
        self._asking = threading.Lock()
        """Otherwise a locked keyring would ask the person once for each server."""
        self._failure: tuple[float, StoreError] | None = None

    def put(self, account: str, key: bytes, *, bus: str) -> KeyringEntry:
        """The key was read back when this returns. `bus` is tried too; it may be empty."""
        text = base64.b64encode(key).decode()
        reason = ""
        for tried in _buses(bus):
            stored, reason = _ask("put", tried, account, text)
            if stored == text:
                self._keys[account] = key
                return KeyringEntry(account=account, bus=tried)
        raise StoreError(
            f"The system's keyring cannot be used: {reason or 'it did not keep the key'}.",
            remedy="Log in to your desktop or unlock the keyring. Without one, keep the key in a file.",
        )

    def get(self, entry: KeyringEntry) -> bytes:
        """Raises `StoreError` if the keyring can't be read or has no such key."""
        if entry.account not in self._keys:
            with self._asking:
                self._read(entry)
        return self._keys[entry.account]

    def _read(self, entry: KeyringEntry) -> None:
        if entry.account in self._keys:
            return
        if self._failure and time.monotonic() < self._failure[0]:
            raise self._failure[1]
        try:
            self._keys[entry.account] = _found(entry)
        except StoreError as error:
            self._failure = time.monotonic() + _TRY_AGAIN, error
            raise

    def delete(self, entry: KeyringEntry) -> None:
        """Best effort: a key that encrypts nothing any longer does no harm."""
        for bus in _buses(entry.bus):
            _ask("delete", bus, entry.account)


def _found(entry: KeyringEntry) -> bytes:
    reasons, end = [], time.monotonic() + _LIMIT
    for bus in _buses(entry.bus):
        # Its first address may be that of a locked keyring, and a daemon must not take long to start.
        password, reason = _ask("get", bus, entry.account, within=max(1.0, end - time.monotonic()))
        if password is not None:
            return base64.b64decode(password)
        reasons.append(reason or "it has no such key")
    raise StoreError(
        f"The key of your secrets is in the system's keyring, which cannot be read: {'; '.join(reasons)}.",
        remedy=_REMEDY,
    )


def _buses(known: str = "") -> list[str]:
    """The addresses of the session's bus to try; an empty one where there is no such bus, as on macOS."""
    usual = Path(_USUAL_BUS.format(os.geteuid()))
    found = (os.environ.get(_BUS, ""), f"unix:path={usual}" if usual.exists() else "", known)
    return [*dict.fromkeys(filter(None, found))] or [""]


def _ask(action: str, bus: str, account: str, password: str = "", *, within: float = _LIMIT) -> tuple[str | None, str]:
    """The account's password, and why there is none. Neither is in the process's arguments or environment."""
    if importlib.util.find_spec("keyring") is None:
        return None, "the package for it is not installed (`toolcrib[keyring]`)"
    order = json.dumps({"action": action, "account": account, "password": password})
    try:
        done = subprocess.run(
            with_default_signals([sys.executable, "-P", "-m", "toolcrib.credentials.keyring_child"]),
            input=order,
            capture_output=True,
            text=True,
            timeout=within,
            env={**os.environ, **({_BUS: bus} if bus else {})},
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {within:.0f} seconds; it may be locked"
    except (OSError, ValueError):
        return None, "the program that reads it failed"
    return answer["password"], str(answer["reason"]).rstrip(".")
