"""Prepares a run before its program starts, and cleans up after it.

In: a `RunRequest`. Out: a `PreparedRun`: the program, an identity leased from the daemon, files in its private folder,
the environment, the log. If Toolcrib's tools are unavailable, it stops or continues without them, as requested.
Used by `code_agent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolcrib.coding_agents.client_spec import ClientSpec, HeadlessSpec, Launch, LaunchRequest, TokenUsage, labels
from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.program import Program, find_program
from toolcrib.coding_agents.program_environment import (
    ProgramEnvironment,
    program_environment,
    search_path_with_plain_git,
)
from toolcrib.coding_agents.run_folder import LogSeals, runs_folder
from toolcrib.coding_agents.run_history import ConversationState, conversation_state
from toolcrib.coding_agents.run_log import RunLog
from toolcrib.coding_agents.run_result import OnMcpFailure, RunMetadata
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import Paths, home_of, project_of
from toolcrib.core.answers import Answer
from toolcrib.daemon_client.lease import AgentLease, LeaseRequest, open_lease_client
from toolcrib.errors import ConfigError, Denied, NotFound, ToolcribError, UsageError, WorkspaceError
from toolcrib.identity.agent_folders import AgentFolders
from toolcrib.policy.profile import BUILTIN, OwnTools, OwnToolsLimit, own_tools_limit
from toolcrib.workspace.protected_paths import check_root
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.settings.model import in_ci

_EXPIRY_MARGIN = 120.0
"""Seconds that an identity outlives the time limit of its run if the run cannot revoke it."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    client: ClientSpec
    prompt: str
    workdir: Path
    profile: str
    conversation: str = ""
    """The conversation to continue, or `last`; empty for a new one."""
    timeout: float
    on_mcp_failure: OnMcpFailure
    environ: Mapping[str, str]
    env: tuple[str, ...] = ()
    """Names of variables to pass on even if they would be withheld."""
    env_file: Path | None = None
    extra: tuple[str, ...] = ()
    """Arguments for the program."""
    parent: str = ""
    """An agent whose permissions and lifetime limit the run's agent."""
    job: str = ""
    """The job that this run executes."""
    listing: ListingMode | None = None
    """How tools are listed; None for the agent's own setting."""
    answer: Answer | None = None
    """Answers what servers ask. Without it, their questions wait for the owner."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    client: ClientSpec
    headless: HeadlessSpec
    program: Program
    lease: AgentLease | None
    """None for a run without Toolcrib's tools."""
    launch_request: LaunchRequest
    launch: Launch
    environ: Mapping[str, str]
    """The program's environment, without the variables from `launch`."""
    metadata: RunMetadata
    log: RunLog
    warnings: tuple[str, ...]
    used: TokenUsage
    """Tokens of the program's session before this run, for programs that count per session."""
    _open: contextlib.AsyncExitStack = field(repr=False)

    async def close(self) -> None:
        """Revokes the identity and removes its files. Calling it again does nothing."""
        await self._open.aclose()

    def sweep(self) -> None:
        """Removes files that the program wrote to its private folder while it exited. Call it after `close`."""
        folders, name = AgentFolders(self.launch_request.folder.parent), self.launch_request.folder.name
        # Another run of the conversation may have started and use a folder with the same name. The daemon removes
        # leftovers when it starts.
        with contextlib.suppress(OSError, ToolcribError):
            if self.lease is not None and folders.get(name) is None:
                folders.remove(name)

    def without_tools(self) -> Launch:
        """A launch without Toolcrib's endpoint, for a program that does not start with it. Writes the files."""
        launch = self.headless.launch(replace(self.launch_request, url=""))
        _put(launch, self.launch_request.folder)
        return launch


@contextlib.asynccontextmanager
async def prepare_run(request: RunRequest) -> AsyncIterator[PreparedRun]:
    """Raises if the run cannot start."""
    client, headless = request.client, request.client.headless
    if headless is None:
        raise UsageError(
            f"Toolcrib does not know how to run {client.title}.",
            remedy=f"`toolcrib connect {client.name}` shows the entry to add to it.",
        )
    if not request.workdir.is_dir():
        raise UsageError(f"{request.workdir} is not a folder.", remedy="Choose an existing folder with --workdir.")
    _refuse_unfit(request)
    root = project_of(request.workdir)
    conversation = _conversation(request, headless, root)
    program = await asyncio.to_thread(find_program, request.client, request.environ, request.workdir)
    async with contextlib.AsyncExitStack() as stack:
        lease, warnings = await _leased(request, root, conversation, stack)
        ready = await asyncio.to_thread(_ready, request, headless, program, lease, conversation, warnings, stack)
        yield ready


def _refuse_unfit(request: RunRequest) -> None:
    """Refuses a home folder, where workspace tools are refused but the program's own tools would not be.

    Also refuses a folder name that is not UTF-8: it cannot be logged or sent to the daemon.
    """
    try:
        os.fsencode(request.workdir).decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"The name of {str(request.workdir)!r} is not UTF-8.", remedy="Rename the folder, or use another."
        ) from error
    try:
        check_root(request.workdir, Paths.of_user(request.environ).folders, home=home_of(request.environ))
    except WorkspaceError as error:
        raise UsageError(error.message.replace("be a workspace", "be a run's folder"), remedy=error.remedy) from error


def _conversation(request: RunRequest, headless: HeadlessSpec, root: Path) -> ConversationState:
    if not request.conversation:
        return ConversationState(conversation=secrets.token_hex(5), provider=request.client.name)
    before = conversation_state(root, request.conversation, request.client.name, LogSeals.of_user(request.environ))
    if before.provider != request.client.name:
        raise UsageError(
            f"The conversation {before.conversation} is with {before.provider}.",
            remedy=f'Continue with `toolcrib run {before.provider} "…" --conversation {before.conversation}`.',
        )
    if not headless.is_session(before.session):
        raise NotFound(
            f"The last run of the conversation {before.conversation} left no {request.client.title} session.",
            remedy="Omit --conversation to start a new one.",
        )
    return before


async def _leased(
    request: RunRequest, root: Path, conversation: ConversationState, stack: contextlib.AsyncExitStack
) -> tuple[AgentLease | None, tuple[str, ...]]:
    """An identity for the run; None if there is none and the run continues without it."""
    wanted = LeaseRequest(
        client=request.client.name,
        profile=request.profile,
        workdir=request.workdir,
        conversation=conversation.conversation,
        lives=request.timeout + _EXPIRY_MARGIN,
        parent=request.parent,
        job=request.job,
        ci=in_ci(request.environ),
        listing=request.listing or "",
        continues=bool(conversation.session),
    )
    try:
        lease_client = await stack.enter_async_context(
            open_lease_client(Paths.of_user(request.environ), root, request.environ)
        )
        lease = await lease_client.lease(wanted)
    except (UsageError, NotFound, ConfigError, Denied):
        # The request itself is wrong; this is not a failure of the tools.
        raise
    except ToolcribError as error:
        if request.on_mcp_failure is OnMcpFailure.STOP:
            raise
        return None, (f"Toolcrib's tools are unavailable: {error.text()} The run continues without them.",)
    stack.push_async_callback(lease.release)
    return lease, ()


def _ready(
    request: RunRequest,
    headless: HeadlessSpec,
    program: Program,
    lease: AgentLease | None,
    conversation: ConversationState,
    warnings: tuple[str, ...],
    stack: contextlib.AsyncExitStack,
) -> PreparedRun:
    own = _own_tools(request) if lease is None else lease.own_tools
    given = program_environment(
        request.environ,
        workdir=request.workdir,
        own_tools=own.tools,
        keeps=headless.keeps,
        withheld=frozenset() if lease is None else lease.withheld,
        named=request.env,
        file=request.env_file,
    )
    folder = _folder_without_agent(stack) if lease is None else lease.folder
    environ = dict(given.environ)
    if own.tools is not OwnTools.ALL:
        environ["PATH"] = search_path_with_plain_git(folder, environ["PATH"])
    launch_request = LaunchRequest(
        prompt=request.prompt,
        session=conversation.session,
        new_session=str(uuid.uuid4()),
        own_tools=own.tools,
        own_shell=own.shell,
        guarded=own.guarded,
        url="" if lease is None else lease.url,
        token="" if lease is None else lease.token,
        headers={} if lease is None else labels(lease.agent, conversation.conversation, listing=lease.listing),
        folder=folder,
        workdir=request.workdir,
        environ=environ,
        private=(*Paths.of_user(request.environ).folders, runs_folder(project_of(request.workdir))),
        extra=request.extra,
    )
    launch = headless.launch(launch_request)
    _put(launch, folder)
    metadata = _metadata(request, launch_request, program, launch, conversation, "" if lease is None else lease.agent)
    log = RunLog.open(
        project_of(request.workdir),
        metadata,
        seals=LogSeals.made(request.environ),
        secrets=(*given.secrets, *(() if lease is None else (lease.token,))),
    )
    return PreparedRun(
        client=request.client,
        headless=headless,
        program=program,
        lease=lease,
        launch_request=launch_request,
        launch=launch,
        environ=environ,
        metadata=metadata,
        log=log,
        warnings=(*warnings, *_environment_warnings(given)),
        used=conversation.used,
        _open=stack,
    )


def _folder_without_agent(stack: contextlib.AsyncExitStack) -> Path:
    # Nested, because the parent folder is made private too.
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) / "run"
    folder.mkdir(mode=0o700)
    return folder


def _put(launch: Launch, folder: Path) -> None:
    folders = AgentFolders(folder.parent)
    for name, text in launch.files.items():
        folders.put(folder.name, name, text)
    for name, place in launch.links.items():
        if not place.exists():
            place.mkdir(mode=0o700, parents=True)
        folders.link(folder.name, name, place)


def _own_tools(request: RunRequest) -> OwnToolsLimit:
    """Without a daemon, the user's profiles and trusted files are unknown, so they allow nothing."""
    known = BUILTIN.get(request.profile)
    settings = load_settings(request.workdir, environ=request.environ).settings
    profile = OwnToolsLimit(tools=OwnTools.NONE if known is None else known.own_tools)
    return profile & own_tools_limit(settings, ci=in_ci(request.environ))


def _environment_warnings(given: ProgramEnvironment) -> tuple[str, ...]:
    # The program has no use for Toolcrib's variables.
    missed = sorted(name for name in given.left_out if not name.startswith("TOOLCRIB_"))
    if not missed:
        return given.warnings
    names = ", ".join(missed)
    warning = f"Not passed on, because Toolcrib's configuration uses them: {names}. Use --env NAME to pass them on."
    return (*given.warnings, warning)


def _metadata(
    request: RunRequest,
    launch_request: LaunchRequest,
    program: Program,
    launch: Launch,
    conversation: ConversationState,
    agent: str,
) -> RunMetadata:
    now = time.time()
    return RunMetadata(
        run_id=f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}",
        provider=request.client.name,
        conversation=conversation.conversation,
        agent=agent,
        profile=request.profile,
        own_tools=launch_request.own_tools,
        workdir=str(request.workdir),
        prompt=request.prompt,
        prompt_bytes=len(request.prompt.encode(errors="surrogatepass")),
        started_at=now,
        pid=os.getpid(),
        pid_began=process_started_at(os.getpid()) or 0.0,
        program=str(program.path),
        version=program.version,
        session_before=conversation.session,
        governed=launch.governed,
        ungoverned=launch.ungoverned,
    )
