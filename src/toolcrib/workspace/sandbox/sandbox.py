"""Runs untrusted code in a sandbox.

In: the folder, the settings, commands. Out: their output and how they ended, or a refusal with its reason and remedy.
`system` finds what the system offers. At the start a self-test tries to break out (`probing` runs inside); if one probe
succeeds, no command is ever run. `process` runs a command in the environment that `system` and `layout` describe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import platform
import secrets
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolcrib.errors import WorkspaceError
from toolcrib.workspace import protected_paths
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import kernel_rules, mount_namespace, system
from toolcrib.workspace.sandbox.command import (
    BubblewrapLaunch,
    CommandEnding,
    LaunchPlan,
    SandboxCommand,
    SandboxProbe,
    SandboxResult,
)
from toolcrib.workspace.sandbox.folder_lock import FolderLock
from toolcrib.workspace.sandbox.git_protection import Placeholders
from toolcrib.workspace.sandbox.kernel_rules import MACHINES
from toolcrib.workspace.sandbox.layout import closed_error, crowd_error, lay_out_mounts, survey_folder
from toolcrib.workspace.sandbox.limits import CgroupParent, LimitGuard, find_cgroup_parent, limits_for_inner, rlimits
from toolcrib.workspace.sandbox.process import OnOutput, OutputFile, ProcessTree, finish_in_thread
from toolcrib.workspace.sandbox.survey import AT_THE_START, Parts, Survey, survey
from toolcrib.workspace.sandbox.system import SystemSupport
from toolcrib.workspace.settings.model import GitMode, WorkspaceSettings

SELFTEST_SECONDS = 20.0
_PREFIX = "toolcrib-probe-"
PROBE_NAMES = {
    "writing": "nothing outside can be changed",
    "reading": "nothing private can be read",
    "network": "no network, no socket from outside",
    "privileges": "no capabilities, no mounts, no namespaces",
    "calls": "dangerous system calls are refused",
    "rules": "Landlock is active",
    "limits": "limits are set and cannot be raised",
    "leave_one_behind": "no process is left behind",
}


async def run_selftest(
    run: Callable[[SandboxCommand], Awaitable[SandboxResult]],
    *,
    root: Path,
    bound: Sequence[Path],
    limits: Mapping[str, int],
    has_network: bool,
) -> tuple[SandboxProbe, ...]:
    canary = f"canary-{secrets.token_hex(16)}"
    with contextlib.ExitStack() as stack:
        outside = stack.enter_context(_outside_folder())
        (outside / "secret").write_text(canary)
        given = {
            "canary": canary,
            "folders": ["/", "/usr", "/etc", "/dev", "/proc", *map(str, bound), *_parent(root)],
            "files": [
                "/usr/bin/env",
                "/proc/sys/kernel/core_pattern",
                "/proc/sysrq-trigger",
                str(system.own_interpreter()),
            ],
            "secrets": [str(outside / "secret"), *_private(root, bound)],
            "listeners": [] if has_network else _listen(stack, outside, canary),
            "limits": dict(limits),
        }
        source = Path(__file__).with_name("probing.py").read_text()
        argv = (str(system.own_interpreter()), "-I", "-S", "-E", "-c", source, json.dumps(given))
        finished = await run(
            SandboxCommand(argv=argv, seconds=SELFTEST_SECONDS, reports=True, writes=False, name="self-test")
        )
    return _read_probes(finished, canary)


@contextlib.contextmanager
def _outside_folder() -> Iterator[Path]:
    """A temporary folder, locked while we run: an unlocked one was left by a killed process."""
    beside = Path(tempfile.gettempdir())
    for left in beside.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    with _locked(made):
        # Renamed after locking, so that others never find it unlocked.
        folder = made.rename(beside / made.name.removeprefix("."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if it is not ours, or another process holds the lock."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "not ours", str(folder))
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _read_probes(finished: SandboxResult, canary: str) -> tuple[SandboxProbe, ...]:
    if finished.ending is not CommandEnding.EXITED or finished.code != 0 or not finished.report:
        detail = finished.stderr.text(1000).strip() or f"it ended with {finished.code} ({finished.ending})"
        return (SandboxProbe("the self-test runs", False, detail),)
    answers: dict[str, list[str]] = json.loads(finished.report)
    if left := _processes_with(canary):
        answers["leave_one_behind"].append(f"process {left} still runs")
    return tuple(SandboxProbe(PROBE_NAMES[name], not found, "; ".join(found)) for name, found in answers.items())


def _parent(root: Path) -> list[str]:
    """Empty below /tmp, which is private to the sandbox."""
    return [] if root.is_relative_to("/tmp") else [str(root.parent)]  # noqa: S108


def _private(root: Path, bound: Sequence[Path]) -> list[str]:
    """Paths near the folder, in the home, and in the system that commands must not see."""
    open_ways = {place for path in (root, *bound) for place in (path, *path.parents)}
    around = ["/etc/shadow", "/run", "/var", "/sys", "/boot", "/root", "/home"]
    for place in {root.parent, protected_paths.user_home() or root.parent}:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            around += [entry.path for _, entry in zip(range(50), entries, strict=False)]
    return [
        path
        for path in around
        if Path(path) not in open_ways
        and not any(Path(path).is_relative_to(place) for place in (*bound, root, *system.system_folders()))
        and path not in {"/tmp", "/dev", "/proc", "/etc", *system.SYSTEM_FOLDERS, system.SANDBOX_HOME}  # noqa: S108
    ]


def _listen(stack: contextlib.ExitStack, outside: Path, canary: str) -> list[tuple[str, object]]:
    """Opens listeners that must be unreachable: a port, a socket with a path, an abstract socket."""
    port = stack.enter_context(socket.socket(socket.AF_INET))
    port.bind(("127.0.0.1", 0))
    doors: list[tuple[str, object]] = [("AF_INET", port.getsockname())]
    named, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
    named.bind(str(outside / "door"))
    abstract.bind(f"\0{canary}")
    doors += [("AF_UNIX", str(outside / "door")), ("AF_UNIX", f"@{canary}")]
    for door in (port, named, abstract):
        door.listen(8)
    return doors


def _processes_with(canary: str) -> str:
    mark = canary.encode()
    for number in filter(str.isdigit, (entry.name for entry in Path("/proc").iterdir())):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{number}/cmdline").read_bytes() and int(number) != os.getpid():
                return number
    return ""


log = logging.getLogger(__name__)

SCRATCH_SHARE = 4
TIDY_TRIES = 100
MAX_ARGUMENTS = 8000
"""bubblewrap's limit is 9000."""
MAX_SCRATCH = 1024 * 1024 * 1024


class Sandbox:
    """Created by `Sandbox.open`, which tests it."""

    def __init__(
        self, folder: Folder, settings: WorkspaceSettings, *, environ: Mapping[str, str], unsafe: bool
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.unsafe = unsafe
        self.probes: tuple[SandboxProbe, ...] = ()
        self.refusal: WorkspaceError | None = None
        self._environ = environ
        self._support: SystemSupport | None = None
        self._namespace: mount_namespace.MountNamespace | None = None
        self._cgroups: CgroupParent | None = find_cgroup_parent(settings.limits)
        self._trees: set[ProcessTree] = set()
        self._known: list[Parts] = []
        self._is_whole = True
        """Whether the first survey covered the whole folder."""
        commits = settings.git is GitMode.COMMIT and not settings.read_only
        self._folder_lock = FolderLock(folder, self._look, hides=bool(settings.hidden), commits=commits)
        is_root = os.geteuid() == 0
        self.uid, self.gid = folder.owner if is_root else (os.geteuid(), os.getegid())
        self._bound = system.toolchains(settings, environ, folder.root)
        self._surroundings = system.BubblewrapArguments(
            uid=self.uid,
            gid=self.gid,
            bound=tuple(self._bound),
            etc=tuple(system.etc_paths(settings)),
            network=settings.network,
            scratch=min(settings.limits.memory // SCRATCH_SHARE, MAX_SCRATCH),
        )

    @classmethod
    async def open(
        cls, folder: Folder, settings: WorkspaceSettings, *, environ: Mapping[str, str], unsafe: bool = False
    ) -> Sandbox:
        """Never fails: if no sandbox can be built or it does not hold, `refusal` gives the reason."""
        sandbox = cls(folder, settings, environ=environ, unsafe=unsafe)
        if unsafe:
            log.warning("UNSAFE: commands in %s run WITHOUT A SANDBOX, with all permissions of this user.", folder.root)
            return sandbox
        try:
            await sandbox._build()
        except WorkspaceError as refusal:
            sandbox.refusal = refusal
            log.warning("%s", refusal.text())
        return sandbox

    async def close(self) -> None:
        """Stops all commands."""
        self.refusal = WorkspaceError("The sandbox is closed.", remedy="Start the workspace again.")
        for tree in self._trees:
            tree.end(CommandEnding.CANCELLED)
        await asyncio.gather(*(tree.gone() for tree in self._trees))
        for _ in range(TIDY_TRIES):
            if self._cgroups is None or self._cgroups.tidy():
                break
            await asyncio.sleep(0.01)
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        await self._folder_lock.close()

    def describe(self) -> dict[str, Any]:
        """Which protections are active."""
        if self.unsafe:
            return {"sandbox": "none", "unsafe": True, "warning": "Commands run without a sandbox."}
        found = self._support
        return {
            "sandbox": "refused" if self.refusal else "bubblewrap",
            "unsafe": False,
            "bubblewrap": found.version if found else None,
            "landlock": found.landlock if found else 0,
            "seccomp": found is not None,
            "limits": f"cgroup v{self._cgroups.version}" if self._cgroups else "rlimits and a watcher",
            "uid": self.uid,
            "leaves_root": self._namespace is not None and self.uid != 0,
            "network": self.settings.network,
            "git": str(self.settings.git),
            "protected_inside": len(self._known),
            "looked_through": "all" if self._is_whole else "in part",
            "readable": [str(path) for path in self._bound],
            "refusal": self.refusal.text() if self.refusal else None,
            "probes": [{"name": probe.name, "held": probe.held, "detail": probe.detail} for probe in self.probes],
        }

    async def run(self, command: SandboxCommand, *, on_output: OnOutput | None = None) -> SandboxResult:
        """Returns when all processes of the command have ended. Cancelling kills all of them first."""
        if self.refusal is not None:
            raise self.refusal
        return await self._run(command, on_output)

    async def _run(self, command: SandboxCommand, on_output: OnOutput | None = None) -> SandboxResult:
        self.folder.check_same()
        os.close(self.folder.open_dir(command.cwd))
        kept = None
        if command.keeps and not self.settings.read_only:
            kept = OutputFile(self.folder, command.name, after=self.settings.limits.output)
        if self.unsafe:
            return await self._run_over(command, Survey(), kept, on_output)
        writes = command.writes and not self.settings.read_only
        seen = await self._folder_lock.enter(writes=writes, seconds=command.seconds)
        try:
            finished = await self._run_over(command, seen, kept, on_output)
        finally:
            notes = await self._folder_lock.leave()
        return replace(finished, notes=tuple(notes))

    async def _run_over(
        self, command: SandboxCommand, seen: Survey, kept: OutputFile | None, on_output: OnOutput | None
    ) -> SandboxResult:
        with Placeholders(self.folder) as placeholders:
            if self.unsafe:
                start = self._outside(command)
            else:
                start = await finish_in_thread(lambda: self._inside(command, seen, placeholders))
            if self.refusal is not None:
                raise self.refusal
            tree = ProcessTree(start, kept, on_output)
            self._trees.add(tree)
            try:
                return await tree.run()
            finally:
                self._trees.discard(tree)

    def _look(self) -> Survey:
        """Runs in a thread, one at a time."""
        try:
            seen = survey_folder(self.folder, self.settings, self._known)
        except PermissionError as error:
            raise closed_error(error) from error
        # Closed folders were not surveyed, but may be opened again.
        closed = [parts for parts in self._known if any(parts[: len(c.parts)] == c.parts for c in seen.closed)]
        self._known = list(dict.fromkeys([*seen.known(), *closed]))
        return seen

    def _look_at_the_start(self) -> None:
        try:
            seen = survey(self.folder, AT_THE_START, hides=False)
        except WorkspaceError:
            # Reported again before every command.
            self._is_whole = False
            return
        self._known, self._is_whole = seen.known(), seen.is_whole

    async def _probe(self, command: SandboxCommand) -> SandboxResult:
        """Runs our own code, from which the folder needs no protection, so no lock is needed."""
        return await self._run_over(command, Survey(), None, None)

    async def _build(self) -> None:
        is_root = os.geteuid() == 0
        self._support = await asyncio.to_thread(system.find_support, self._environ, self.folder.root, is_root=is_root)
        if is_root:
            needed = [*self._bound, self.folder.root, Path(self._support.bwrap).parent]
            interpreter = system.own_interpreter()
            try:
                self._namespace = await asyncio.to_thread(
                    mount_namespace.build_mount_namespace, self.folder.owner, needed, self._support.enter, interpreter
                )
            except OSError as error:
                why = f"root privileges cannot be dropped: {error}"
                raise system.sandbox_refused(why, system.sandbox_remedy(str(error))) from error
        try:
            self.probes = await run_selftest(
                self._probe,
                root=self.folder.root,
                bound=self._bound,
                limits=rlimits(self.settings.limits, counted=self._cgroups is not None),
                has_network=self.settings.network,
            )
        except WorkspaceError as error:
            self.probes = (SandboxProbe("the sandbox can be created", False, error.message),)
            raise system.sandbox_refused(error.message.rstrip("."), error.remedy) from error
        if failed := next((probe for probe in self.probes if not probe.held), None):
            why = f"the sandbox is not secure: probe “{failed.name}” failed ({failed.detail})"
            raise system.sandbox_refused(why, system.sandbox_remedy(failed.detail))
        if not self.settings.hidden:
            await finish_in_thread(self._look_at_the_start)

    # Cached, because it is the same for every command and would add to its time.

    @functools.cached_property
    def _surrounding_arguments(self) -> list[str]:
        return self._surroundings.to_list()

    @functools.cached_property
    def _filter(self) -> bytes:
        return kernel_rules.seccomp_program(platform.machine(), counts_memory=self._cgroups is not None)

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        return system.command_environment(self.settings, self._environ, self.folder.root, self._bound)

    @functools.cached_property
    def _interpreter(self) -> str:
        return str(system.own_interpreter())

    def _inside(self, command: SandboxCommand, seen: Survey, placeholders: Placeholders) -> LaunchPlan:
        if self._support is None:
            raise RuntimeError("the sandbox was not opened")
        writes = command.writes and not self.settings.read_only
        try:
            layout = lay_out_mounts(self.folder, self.settings.git, seen, placeholders, writes=writes)
        except PermissionError as error:
            raise closed_error(error) from error
        if len(layout.arguments()) > MAX_ARGUMENTS:
            raise crowd_error()
        expected, masks = layout.expected()
        trees = [b"/tmp", b"/dev/shm", *([os.fsencode(self.folder.root)] if writes else [])]
        abi = self._support.landlock
        cwd = str(self.folder.root.joinpath(*command.cwd.parts))
        wrapping = BubblewrapLaunch(
            command=[*(self._namespace.command if self._namespace else ()), self._support.bwrap],
            descriptors=[self._namespace.descriptor] if self._namespace else [],
            arguments=[*self._surrounding_arguments, *layout.arguments(), *system.CLOSING_ARGUMENTS, "--chdir", cwd],
            files=system.etc_files(self.settings, self.uid, self.gid),
            filter=self._filter,
        )
        plan = {
            "places": expected,
            "masks": masks,
            "landlock": kernel_rules.landlock_attributes(abi),
            "writable": kernel_rules.landlock_rules(
                trees, [os.fsencode(device) for device in system.WRITABLE_DEVICES], abi
            ),
        }
        return self._with(command, wrapping=wrapping, plan=plan, environment=self._environment, cwd="/")

    def _outside(self, command: SandboxCommand) -> LaunchPlan:
        """Without a sandbox: the same variables, limits and cleanup, but no confinement."""
        own = {name: self._environ[name] for name in ("HOME", "TMPDIR", "USER", "PATH") if name in self._environ}
        environment = self._environment | own
        plan: dict[str, Any] = {"places": [], "masks": [], "landlock": b""}
        cwd = str(self.folder.root.joinpath(*command.cwd.parts))
        return self._with(command, wrapping=None, plan=plan, environment=environment, cwd=cwd)

    def _with(
        self,
        command: SandboxCommand,
        *,
        wrapping: BubblewrapLaunch | None,
        plan: Mapping[str, Any],
        environment: Mapping[str, str],
        cwd: str,
    ) -> LaunchPlan:
        return LaunchPlan(
            wrapping=wrapping,
            interpreter=self._interpreter,
            plan={
                **plan,
                "argv": [os.fsencode(word) for word in command.argv],
                "limits": limits_for_inner(self.settings.limits, counted=self._cgroups is not None),
                "prlimit": MACHINES[platform.machine()].prlimit,
            },
            environment={**environment, **command.env},
            cwd=cwd,
            owner=(self.uid, self.gid) if self._namespace else None,
            stdin=command.stdin,
            reports=command.reports,
            watch=self._guard,
            seconds=command.seconds,
            max_output=self.settings.limits.kept,
        )

    def _guard(self, pid: int) -> LimitGuard:
        self._folder_lock.sandbox_made()
        limits = self.settings.limits
        return LimitGuard(limits, pid, self._cgroups.make(limits) if self._cgroups else None)
