"""Encrypts a value with a key; only the key and the same `bound_to` decrypt it.

In: bytes. Out: the nonce and the encrypted bytes (AES-256-GCM). OpenSSL is loaded when something is sealed or opened.
"""

from __future__ import annotations

import secrets
from types import ModuleType

KEY_BYTES = 32
_NONCE_BYTES = 12


def seal(value: bytes, key: bytes, bound_to: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed: bytes = _openssl().AESGCM(key).encrypt(nonce, value, bound_to)
    return nonce + sealed


def unseal(sealed: bytes, key: bytes, bound_to: bytes) -> bytes | None:
    """None if it is damaged, or was sealed with another key or for another purpose."""
    openssl = _openssl()
    try:
        plain: bytes = openssl.AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
    except (openssl.InvalidTag, ValueError):
        return None
    return plain


def _openssl() -> ModuleType:
    from toolcrib.credentials import openssl  # noqa: PLC0415 - takes 100 ms

    return openssl
