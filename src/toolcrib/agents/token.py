"""An agent's token: made of chance, shown once, kept as a digest.

In: nothing, or a token that somebody brought. Out: a new token, or the digest by which `roster` knows its agent.
"""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "tcb_"
"""So that a token that strayed into a text can be told, and hidden."""


def mint() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """A token has 256 bits of chance in it: no salt and no slow hash would make its digest harder to turn back."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
