"""Agents, their tokens, and the checks on a new agent.

In: stored rows, or the owner's request for a new agent. Out: frozen `Agent`s, a validated row, and random tokens, of
which only digests are stored. `state` and `registry` create agents; `gateway` and `calls` read them.
"""

from __future__ import annotations

import enum
import math
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.model import ListingMode
from toolcrib.errors import UsageError
from toolcrib.policy.permission import Permission
from toolcrib.policy.profile import BUILTIN, Profile
from toolcrib.store.clock import DAY
from toolcrib.store.identity import AgentRow

TOKEN_PREFIX = "tcb_"  # noqa: S105 - the prefix is not secret
"""Makes a leaked token recognizable, so that it can be masked."""


_LENGTH = len(TOKEN_PREFIX) + 43


def mint_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def naming_tokens(text: str, holder: Callable[[str], str]) -> str:
    """Replaces each token that `holder` knows with the name of its agent; other text stays as it is."""
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
        "client": "`client` means any program that runs `toolcrib stdio` without an agent. It has the profile "
        "developer. `toolcrib connect CLIENT --agent NAME` gives a client its own agent, with rules.",
    }
)
"""Names of callers without a minted token, each with an explanation for error messages."""

DEEPEST = 8
"""The maximum depth of parents: each decision checks all of them."""

_LONGEST_LIFE = 10 * 366 * 86400.0
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")


class ErrorForm(enum.StrEnum):
    """How an agent gets the errors of calls that did not reach their server."""

    RESULT = "result"
    """As results, which models can read: clients show them nothing else."""
    HTTP = "http"
    """As JSON-RPC errors with an HTTP status, for programs."""


# Compared by identity: every change to an agent creates a new object.
@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    name: str
    errors: ErrorForm
    listing: ListingMode | None
    """How its tools are listed; None: as its profile or the configuration says."""
    profile: str
    workdir: Path | None
    parent: str | None
    created_at: float
    expires_at: float | None
    permission: Permission = field(repr=False)
    digest: bytes = field(repr=False)
    """SHA-256 of its token."""
    fault: str = ""
    """Why it has no permissions, if its stored data is invalid."""

    def expired(self, now: float) -> bool:
        """Also true if it was created while the clock was ahead and the clock was set back: it would last too long."""
        return self.expires_at is not None and (self.expires_at <= now or self.created_at > now + DAY)


@dataclass(frozen=True, kw_only=True)
class MintedAgent:
    """An agent with its new token, which cannot be shown again."""

    agent: Agent
    token: str = field(repr=False)
    token_file: Path


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be an agent's name.",
            remedy="Use up to 48 lowercase letters and digits, and _ . - after the first character.",
        )
    if name in RESERVED_NAMES:
        raise UsageError(f"The name {name!r} is reserved by Toolcrib.", remedy="Choose another name.")
    return name


def new_agent_row(
    name: str,
    *,
    profile: Profile,
    workdir: Path | None,
    lives: float | None,
    above: tuple[Agent, ...],
    digest: bytes,
    errors: ErrorForm,
    listing: ListingMode | None,
) -> AgentRow:
    """The row of a new agent. `above` are its parent, the parent's parent, and so on; the parent is the limit."""
    checked_name(name)
    if profile is BUILTIN["owner"]:
        raise UsageError(
            "No agent can have the profile owner: it is only for you.",
            remedy="`trusted` is the widest profile for an agent.",
        )
    if len(above) >= DEEPEST:
        raise UsageError(
            f"{above[0].name} already has {len(above) - 1} levels of parents.",
            remedy="Make the agent a child of one of those parents.",
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
        errors=errors,
        listing=listing or "",
    )


def _folder(workdir: Path | None, parent: Agent | None) -> Path | None:
    bound = None if parent is None else parent.workdir
    if workdir is None:
        return bound
    # `os.path`, because pathlib raises for a loop of links and for an unreadable folder.
    folder = Path(os.path.realpath(workdir))
    if not workdir.is_absolute() or not os.path.isdir(folder):  # noqa: PTH112
        raise UsageError(f"{workdir} is not a folder.", remedy="Give the absolute path of an existing folder.")
    if parent is not None and bound is not None and not folder.is_relative_to(bound.resolve()):
        raise UsageError(
            f"{folder} is outside {bound}, the folder of {parent.name}.", remedy="Choose a folder inside it."
        )
    return folder


def _end(now: float, lives: float | None, parent: Agent | None) -> float | None:
    bound = None if parent is None else parent.expires_at
    if lives is None:
        return bound
    if not math.isfinite(lives) or not 0 < lives <= _LONGEST_LIFE:
        raise UsageError(
            "An agent's lifetime must be more than zero and less than ten years.",
            remedy="Without a lifetime, the agent exists until you remove it.",
        )
    if parent is not None and bound is not None and now + lives > bound:
        raise UsageError(
            f"{parent.name} ends earlier than that, and its children end with it.",
            remedy="Give a shorter lifetime, or none: the agent then ends with its parent.",
        )
    return now + lives
