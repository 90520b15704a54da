"""One agent, its token, and what a new one must be like.

In: stored rows, or the owner's wish for a new agent; a token that somebody brought. Out: frozen `Agent`s, a checked
row; new tokens, made of chance and kept as digests. `state` and `registry` make agents, `gateway` and `calls` read
them.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from toolcrib.errors import UsageError
from toolcrib.policy.permission import Permission
from toolcrib.policy.profile import BUILTIN, Profile
from toolcrib.store.clock import DAY
from toolcrib.store.identity import AgentRow

TOKEN_PREFIX = "tcb_"  # noqa: S105 - what tokens begin with is no secret
"""So that a token that strayed into a text can be told, and hidden."""


_LENGTH = len(TOKEN_PREFIX) + 43


def mint_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def naming_tokens(text: str, holder: Callable[[str], str]) -> str:
    """Tokens that have a holder are replaced by a word on whose they are; what only looks like one stays."""
    shown: list[str] = []
    end = at = 0
    while (at := text.find(TOKEN_PREFIX, at)) >= 0:
        if whose := holder(text[at : at + _LENGTH]):
            shown += [text[end:at], f"[secret token of {whose}]"]
            end = at = at + _LENGTH
        else:
            at += 1
    return "".join([*shown, text[end:]])


RESERVED_NAMES = MappingProxyType(
    {
        "owner": "The owner may do everything; there is nothing to allow or deny.",
        "client": "It stands for whatever starts `toolcrib stdio` without an agent, with the profile developer. "
        "`toolcrib connect CLIENT --agent NAME` gives a client an agent of its own, with rules.",
    }
)
"""Callers that need no minted token: names that are taken, and what to know of them."""

DEEPEST = 8
"""How many agents may stand above one another: each decision looks at all of them."""

_LONGEST_LIFE = 10 * 366 * 86400.0
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")


# Compared by identity: there is one for each state an agent was in.
@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    name: str
    profile: str
    workdir: Path | None
    parent: str | None
    created_at: float
    expires_at: float | None
    permission: Permission = field(repr=False)
    digest: bytes = field(repr=False)
    """SHA-256 of its token."""
    fault: str = ""
    """Why it may do nothing, where what was kept of it cannot be understood."""

    def expired(self, now: float) -> bool:
        """Also one that was made while the clock was ahead, once that is set back: it would last too long."""
        return self.expires_at is not None and (self.expires_at <= now or self.created_at > now + DAY)


@dataclass(frozen=True, kw_only=True)
class MintedAgent:
    """An agent with its new token, which nobody can be told again."""

    agent: Agent
    token: str = field(repr=False)
    token_file: Path


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be an agent's name.",
            remedy="Use up to 48 small letters, digits, and _ . - after the first.",
        )
    if name in RESERVED_NAMES:
        raise UsageError(f"The name {name!r} is taken by Toolcrib itself.", remedy="Choose another.")
    return name


def new_agent_row(
    name: str, *, profile: Profile, workdir: Path | None, lives: float | None, above: tuple[Agent, ...], digest: bytes
) -> AgentRow:
    """A new agent; `above` are its parent, the parent's parent, and so on. It gets no more than the parent has."""
    checked_name(name)
    if profile is BUILTIN["owner"]:
        raise UsageError(
            "The profile owner is nobody's but yours.", remedy="`trusted` is the widest that an agent may have."
        )
    if len(above) >= DEEPEST:
        raise UsageError(
            f"{above[0].name} stands below {len(above) - 1} others already.",
            remedy="Make the agent a child of one further up.",
        )
    parent = above[0] if above else None
    now = time.time()
    folder = _folder(workdir, parent)
    return AgentRow(
        name=name,
        profile=profile.name,
        workdir=None if folder is None else str(folder),
        parent=None if parent is None else parent.name,
        digest=digest,
        created_at=now,
        expires_at=_end(now, lives, parent),
    )


def _folder(workdir: Path | None, parent: Agent | None) -> Path | None:
    bound = None if parent is None else parent.workdir
    if workdir is None:
        return bound
    # As in `os.path`: pathlib raises for a loop of links, and for a folder that we may not look into.
    folder = Path(os.path.realpath(workdir))
    if not workdir.is_absolute() or not os.path.isdir(folder):  # noqa: PTH112
        raise UsageError(f"{workdir} is no folder.", remedy="Give the whole path of one that exists.")
    if parent is not None and bound is not None and not folder.is_relative_to(bound.resolve()):
        raise UsageError(
            f"{folder} is outside of {bound}, the folder of {parent.name}.", remedy="A child works inside of it."
        )
    return folder


def _end(now: float, lives: float | None, parent: Agent | None) -> float | None:
    bound = None if parent is None else parent.expires_at
    if lives is None:
        return bound
    if not math.isfinite(lives) or not 0 < lives <= _LONGEST_LIFE:
        raise UsageError(
            "An agent lives for more than no time and less than ten years.", remedy="Without it: until removed."
        )
    if parent is not None and bound is not None and now + lives > bound:
        raise UsageError(
            f"{parent.name} ends earlier than that, and its children with it.",
            remedy="Give less time, or none: it then ends with its parent.",
        )
    return now + lives
