"""An agent's token: made of chance, shown once, kept as a digest.

In: nothing, or a token that somebody brought. Out: a new token, or the digest by which `roster` knows its agent.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

PREFIX = "tcb_"
"""So that a token that strayed into a text can be told, and hidden."""


_LENGTH = len(PREFIX) + 43


def mint() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def naming_tokens(text: str, holder: Callable[[str], str]) -> str:
    """Tokens that have a holder are replaced by a word on whose they are; what only looks like one stays."""
    shown: list[str] = []
    end = at = 0
    while (at := text.find(PREFIX, at)) >= 0:
        if whose := holder(text[at : at + _LENGTH]):
            shown += [text[end:at], f"[secret token of {whose}]"]
            end = at = at + _LENGTH
        else:
            at += 1
    return "".join([*shown, text[end:]])


def digest_of(token: str) -> bytes:
    """A token has 256 bits of chance in it: no salt and no slow hash would make its digest harder to turn back."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
