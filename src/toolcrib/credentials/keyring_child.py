"""Reads, writes or deletes one password in the system's keyring.

In: an order as JSON on stdin. Out: the password, or why there is none, as JSON on stdout. A process of its own, because
a keyring may wait for a person without an end, and finds its address in the environment. `system_keyring` starts it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import keyring
from keyring.errors import KeyringLocked, NoKeyringError, PasswordDeleteError

SERVICE = "toolcrib"


_ATTEMPTS = 3


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return {"password": _done(order["action"], order["account"], order["password"]), "reason": ""}
        except NoKeyringError:
            return {"password": None, "reason": "this session has none"}
        except KeyringLocked:
            return {"password": None, "reason": "it is locked"}
        except Exception as error:
            # Each keyring has its own errors. An item can vanish for a moment while another program changes one.
            reason = str(error) or type(error).__name__
    return {"password": None, "reason": reason}


def _done(action: str, account: str, password: str) -> str | None:
    used = keyring.get_keyring()
    match action:
        case "put":
            used.set_password(SERVICE, account, password)
        case "delete":
            with contextlib.suppress(PasswordDeleteError):
                used.delete_password(SERVICE, account)
    return used.get_password(SERVICE, account)


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
