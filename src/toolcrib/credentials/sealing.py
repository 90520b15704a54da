"""Encrypts a value with a key; only the key and the same `bound_to` decrypt it.

In: bytes. Out: the nonce and the encrypted bytes (AES-256-GCM). `vault` imports it when it is first used.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12


def seal(value: bytes, key: bytes, bound_to: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, value, bound_to)


def unseal(sealed: bytes, key: bytes, bound_to: bytes) -> bytes | None:
    """None if it is damaged, or was sealed with another key or for another purpose."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
    except (InvalidTag, ValueError):
        return None
