"""Who comes in: a token proves it, labels only name a conversation.

In: a token and labels, over HTTP or in a bridge's first line. Out: a `Guest`, whose permission is looked up again
whenever it is used, and the project it works in. `http` and `pipe` ask here; `agents` knows who there is.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path

from toolcrib.agents.agent import Agent
from toolcrib.agents.roster import Roster
from toolcrib.agents.session import Session
from toolcrib.config.project import project_of
from toolcrib.config.redact import mask_tokens
from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Project
from toolcrib.errors import Case, FolderGone, NotFound
from toolcrib.gateway.answers import Rejected
from toolcrib.gateway.envelope import Turns
from toolcrib.policy import CLIENT, OWNER, Caller, Permission

LONGEST_LABEL = 128
UNLABELLED = "default"

_LOOK_AGAIN = 1.0
"""Seconds for which a folder that was there counts as being there."""
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="toolcrib"'),)


class Guest:
    """Who is at the other end, for as long as it is the same credential."""

    __slots__ = ("_agent", "_fixed", "_roster", "name")

    def __init__(
        self, name: str, *, fixed: Permission | None = None, agent: Agent | None = None, roster: Roster
    ) -> None:
        self.name = name
        self._fixed = fixed
        self._agent = agent
        self._roster = roster

    @property
    def workdir(self) -> Path | None:
        return None if self._agent is None else self._agent.workdir

    def permission(self) -> Permission:
        """As it is now, for what is done now: between two looks a request may have waited for long."""
        if self._fixed is not None:
            return self._fixed
        return self._today().permission

    def _today(self) -> Agent:
        try:
            today = self._roster.find(self.name)
        except NotFound:
            raise bad_token() from None
        # The same name with another token is not the one who came in.
        if self._agent is None or today.digest != self._agent.digest:
            raise bad_token()
        return today

    def caller(self, conversation: str, session: Session) -> Caller:
        return Caller(agent=self.name, permission=self.permission(), conversation=conversation, session=session)


class Reception:
    def __init__(self, crib: Crib, *, owner_token: str = "") -> None:
        """Without the owner's token nobody is taken for the owner."""
        self._crib = crib
        self._owner_token = owner_token.encode()
        self._loop = asyncio.get_running_loop()
        self.turns = Turns()
        self._owner = Guest(OWNER.agent, fixed=OWNER.permission, roster=crib.roster)
        self._client = Guest(CLIENT.agent, fixed=CLIENT.permission, roster=crib.roster)
        self._roots: dict[Path, tuple[Path, float]] = {}
        """By an agent's folder: the root of its project, and when the folder was last seen."""

    def admit(self, token: str) -> Guest:
        """Whose token this is; one that nobody has is refused."""
        if self._owner_token and hmac.compare_digest(token.encode(errors="replace"), self._owner_token):
            return self._owner
        agent = self._crib.roster.authenticate(token)
        if agent is None:
            raise bad_token()
        return Guest(agent.name, agent=agent, roster=self._crib.roster)

    def unnamed(self) -> Guest:
        """A client that the person started here, and that brought no token."""
        return self._client

    async def project(self, guest: Guest) -> Project:
        """Where the guest works: the project of its folder, or the daemon's own."""
        workdir = guest.workdir
        if workdir is None:
            return self._crib.home
        project = await self._crib.project(self.root_of(guest, workdir))
        project.touched = self._loop.time()
        return project

    def root_of(self, guest: Guest, workdir: Path) -> Path:
        root, seen = self._roots.get(workdir, (workdir, 0.0))
        now = self._loop.time()
        if not seen or now - seen > _LOOK_AGAIN:
            # A project in use stays the same, also if its folder gets another mark above it.
            known = seen and any(project.root == root for project in self._crib.projects)
            found = _looked_up(workdir)
            if found is None:
                raise FolderGone(
                    f"The folder {workdir}, which {guest.name} works in, is not there.",
                    remedy="Make it again, or add the agent anew.",
                )
            self._roots[workdir] = (root if known else found, now)
        return self._roots[workdir][0]


def _looked_up(workdir: Path) -> Path | None:
    """The root of the folder's project; None if the folder is not there, or not for us."""
    try:
        return project_of(workdir) if workdir.is_dir() else None
    except OSError:
        return None


def bad_token() -> Rejected:
    return Rejected(Case.BAD_TOKEN, extra=_CHALLENGE)


def no_token() -> Rejected:
    return Rejected(Case.NO_TOKEN, extra=_CHALLENGE)


def conversation_of(label: str) -> str | None:
    """A label as it may be used; None if it says nothing."""
    if not label:
        return None
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise Rejected(Case.CONVERSATION)
    # It is kept and shown: a token that strayed into it is not.
    return mask_tokens(label)
