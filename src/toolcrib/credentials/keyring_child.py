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


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    account, password = order["account"], order["password"]
    try:
        used = keyring.get_keyring()
        match order["action"]:
            case "put":
                used.set_password(SERVICE, account, password)
            case "delete":
                with contextlib.suppress(PasswordDeleteError):
                    used.delete_password(SERVICE, account)
        return {"password": used.get_password(SERVICE, account), "reason": ""}
    except NoKeyringError:
        return {"password": None, "reason": "this session has none"}
    except KeyringLocked:
        return {"password": None, "reason": "it is locked"}
    except Exception as error:
        # Each keyring has its own errors.
        return {"password": None, "reason": str(error) or type(error).__name__}


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
