"""The place where code that is not ours runs.

In: the folder, the settings, commands. Out: what they printed and how they ended, or a refusal with its reason and
remedy. `means` finds what the system has, `selftest` tries whether the sandbox holds; if one thing does not, nothing is
ever run here. `run` runs a command, in what `bwrap`, `places` and `layout` describe.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox import bwrap, landlock, means, places, seccomp, selftest, stage
from toolcrib.workspace.sandbox.cgroup import Nest, find_nest
from toolcrib.workspace.sandbox.floor import Floor
from toolcrib.workspace.sandbox.launch import Start, Wrapping
from toolcrib.workspace.sandbox.layout import closed_error, crowd_error, lay_out, look_through
from toolcrib.workspace.sandbox.limits import Guard, for_inner, rlimits
from toolcrib.workspace.sandbox.means import Means
from toolcrib.workspace.sandbox.model import Command, Ending, Finished, Probe
from toolcrib.workspace.sandbox.output import Kept
from toolcrib.workspace.sandbox.patience import in_a_thread
from toolcrib.workspace.sandbox.placeholders import Placeholders
from toolcrib.workspace.sandbox.run import OnOutput, Tree
from toolcrib.workspace.sandbox.survey import AT_THE_START, Parts, Survey, survey
from toolcrib.workspace.sandbox.syscalls import MACHINES, Machine
from toolcrib.workspace.settings.model import GitMode, Settings

log = logging.getLogger(__name__)

SCRATCH_SHARE = 4
TIDY_TRIES = 100
MOST_WORDS = 8000
"""bubblewrap takes 9000."""
MOST_SCRATCH = 1024 * 1024 * 1024


class Sandbox:
    """Opened by `Sandbox.open`, which tries it out."""

    def __init__(self, folder: Folder, settings: Settings, *, environ: Mapping[str, str], unsafe: bool) -> None:
        self.folder = folder
        self.settings = settings
        self.unsafe = unsafe
        self.probes: tuple[Probe, ...] = ()
        self.refusal: WorkspaceError | None = None
        self._environ = environ
        self._means: Means | None = None
        self._stage: stage.Stage | None = None
        self._nest: Nest | None = find_nest(settings.limits)
        self._trees: set[Tree] = set()
        self._known: list[Parts] = []
        self._is_whole = True
        """Whether all of the folder was looked through when this was opened."""
        commits = settings.git is GitMode.COMMIT and not settings.read_only
        self._floor = Floor(folder, self._look, hides=bool(settings.hidden), commits=commits)
        is_root = os.geteuid() == 0
        self.uid, self.gid = folder.owner if is_root else (os.geteuid(), os.getegid())
        self._bound = places.toolchains(settings, environ, folder.root)
        self._shell = bwrap.Shell(
            uid=self.uid,
            gid=self.gid,
            bound=tuple(self._bound),
            etc=tuple(places.etc(settings)),
            network=settings.network,
            scratch=min(settings.limits.memory // SCRATCH_SHARE, MOST_SCRATCH),
        )

    @classmethod
    async def open(
        cls, folder: Folder, settings: Settings, *, environ: Mapping[str, str], unsafe: bool = False
    ) -> Sandbox:
        """Never fails: where no sandbox can be built, or one does not hold, `refusal` says why."""
        sandbox = cls(folder, settings, environ=environ, unsafe=unsafe)
        if unsafe:
            log.warning("UNSAFE: commands in %s run WITHOUT A SANDBOX, as this user, with all it may do.", folder.root)
            return sandbox
        try:
            await sandbox._build()
        except WorkspaceError as refusal:
            sandbox.refusal = refusal
            log.warning("%s", refusal.text())
        return sandbox

    async def close(self) -> None:
        """Ends what runs."""
        self.refusal = WorkspaceError("The sandbox is closed.", remedy="Start the workspace again.")
        for tree in self._trees:
            tree.end(Ending.CANCELLED)
        await asyncio.gather(*(tree.gone() for tree in self._trees))
        for _ in range(TIDY_TRIES):
            if self._nest is None or self._nest.tidy():
                break
            await asyncio.sleep(0.01)
        if self._stage is not None:
            self._stage.close()
            self._stage = None
        await self._floor.close()

    def describe(self) -> dict[str, Any]:
        """Which means are in force."""
        if self.unsafe:
            return {"sandbox": "none", "unsafe": True, "warning": "Commands run without a sandbox."}
        found = self._means
        return {
            "sandbox": "refused" if self.refusal else "bubblewrap",
            "unsafe": False,
            "bubblewrap": found.version if found else None,
            "landlock": found.landlock if found else 0,
            "seccomp": found is not None,
            "limits": f"cgroup v{self._nest.version}" if self._nest else "rlimits and a watcher",
            "uid": self.uid,
            "leaves_root": self._stage is not None and self.uid != 0,
            "network": self.settings.network,
            "git": str(self.settings.git),
            "protected_inside": len(self._known),
            "looked_through": "all" if self._is_whole else "in part",
            "readable": [str(path) for path in self._bound],
            "refusal": self.refusal.text() if self.refusal else None,
            "probes": [{"name": probe.name, "held": probe.held, "detail": probe.detail} for probe in self.probes],
        }

    async def run(self, command: Command, *, on_output: OnOutput | None = None) -> Finished:
        """Gives `Finished` when nothing of it runs any more. Cancelling the task ends all of it before it goes on."""
        if self.refusal is not None:
            raise self.refusal
        return await self._run(command, on_output)

    async def _run(self, command: Command, on_output: OnOutput | None = None) -> Finished:
        self.folder.check_same()
        os.close(self.folder.open_dir(command.cwd))
        limits = self.settings.limits
        kept = None
        if command.keeps and not self.settings.read_only:
            kept = Kept(self.folder, command.name, after=limits.output)
        if self.unsafe:
            return await self._run_over(command, Survey(), kept, on_output)
        writes = command.writes and not self.settings.read_only
        seen = await self._floor.enter(writes=writes, seconds=command.seconds)
        notes: list[str] = []
        try:
            finished = await self._run_over(command, seen, kept, on_output)
        finally:
            notes = await self._floor.leave()
        return replace(finished, notes=tuple(notes))

    async def _run_over(
        self, command: Command, seen: Survey, kept: Kept | None, on_output: OnOutput | None
    ) -> Finished:
        with Placeholders(self.folder) as placeholders:
            if self.unsafe:
                start = self._outside(command)
            else:
                start = await in_a_thread(lambda: self._inside(command, seen, placeholders))
            if self.refusal is not None:
                raise self.refusal
            tree = Tree(start, kept, on_output)
            self._trees.add(tree)
            try:
                return await tree.run()
            finally:
                self._trees.discard(tree)

    def _look(self) -> Survey:
        """In a thread, one at a time."""
        try:
            seen = look_through(self.folder, self.settings, self._known)
        except PermissionError as error:
            raise closed_error(error) from error
        # What lies in a closed folder was not looked at; it may be opened again.
        closed = [parts for parts in self._known if any(parts[: len(c.parts)] == c.parts for c in seen.closed)]
        self._known = list(dict.fromkeys([*seen.known(), *closed]))
        return seen

    def _look_at_the_start(self) -> None:
        try:
            seen = survey(self.folder, AT_THE_START, hides=False)
        except WorkspaceError:
            # Said again before every command.
            self._is_whole = False
            return
        self._known, self._is_whole = seen.known(), seen.is_whole

    async def _probe(self, command: Command) -> Finished:
        """Our own code: nothing in the folder need be kept from it, so it waits for nobody."""
        return await self._run_over(command, Survey(), None, None)

    async def _build(self) -> None:
        is_root = os.geteuid() == 0
        self._means = await asyncio.to_thread(means.find, self._environ, self.folder.root, is_root=is_root)
        if is_root:
            needed = [*self._bound, self.folder.root, Path(self._means.bwrap).parent]
            interpreter = places.interpreter()
            try:
                self._stage = await asyncio.to_thread(
                    stage.build, self.folder.owner, needed, self._means.enter, interpreter
                )
            except OSError as error:
                why = f"root cannot be left: {error}"
                raise means.refused(why, means.remedy_for(str(error))) from error
        try:
            self.probes = await selftest.try_out(
                self._probe,
                root=self.folder.root,
                bound=self._bound,
                limits=rlimits(self.settings.limits, counted=self._nest is not None),
                has_network=self.settings.network,
            )
        except WorkspaceError as error:
            self.probes = (Probe("the sandbox can be made", False, error.message),)
            raise means.refused(error.message.rstrip("."), error.remedy) from error
        if failed := next((probe for probe in self.probes if not probe.held), None):
            why = f"the sandbox does not hold: not true is “{failed.name}” ({failed.detail})"
            raise means.refused(why, means.remedy_for(failed.detail))
        if not self.settings.hidden:
            await in_a_thread(self._look_at_the_start)

    # What is the same for every command is made once: it is part of a command's time.

    @functools.cached_property
    def _walls(self) -> list[str]:
        return self._shell.words()

    @functools.cached_property
    def _filter(self) -> bytes:
        return seccomp.program(platform.machine(), counts_memory=self._nest is not None)

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        return places.environment(self.settings, self._environ, self.folder.root, self._bound)

    @functools.cached_property
    def _interpreter(self) -> str:
        return str(places.interpreter())

    @functools.cached_property
    def _machine(self) -> Machine:
        return MACHINES[platform.machine()]

    def _inside(self, command: Command, seen: Survey, placeholders: Placeholders) -> Start:
        if self._means is None:
            raise RuntimeError("a sandbox that was not opened")
        writes = command.writes and not self.settings.read_only
        try:
            layout = lay_out(self.folder, self.settings.git, seen, placeholders, writes=writes)
        except PermissionError as error:
            raise closed_error(error) from error
        if len(layout.words()) > MOST_WORDS:
            raise crowd_error()
        expected, masks = layout.expected()
        trees = [b"/tmp", b"/dev/shm", *([os.fsencode(self.folder.root)] if writes else [])]
        abi = self._means.landlock
        cwd = str(self.folder.root.joinpath(*command.cwd.parts))
        wrapping = Wrapping(
            words=[*(self._stage.words if self._stage else ()), self._means.bwrap],
            descriptors=[self._stage.descriptor] if self._stage else [],
            arguments=[*self._walls, *layout.words(), *bwrap.CLOSING, "--chdir", cwd],
            files=places.files(self.settings, self.uid, self.gid),
            filter=self._filter,
        )
        plan = {
            "places": expected,
            "masks": masks,
            "landlock": landlock.attributes(abi),
            "writable": landlock.rules(trees, [os.fsencode(device) for device in bwrap.DEVICES], abi),
        }
        return self._with(command, wrapping=wrapping, plan=plan, environment=self._environment, cwd="/")

    def _outside(self, command: Command) -> Start:
        """Without a sandbox: the same variables, limits and ending, and nothing that confines."""
        own = {name: self._environ[name] for name in ("HOME", "TMPDIR", "USER", "PATH") if name in self._environ}
        environment = self._environment | own
        plan: dict[str, Any] = {"places": [], "masks": [], "landlock": b""}
        cwd = str(self.folder.root.joinpath(*command.cwd.parts))
        return self._with(command, wrapping=None, plan=plan, environment=environment, cwd=cwd)

    def _with(
        self,
        command: Command,
        *,
        wrapping: Wrapping | None,
        plan: Mapping[str, Any],
        environment: Mapping[str, str],
        cwd: str,
    ) -> Start:
        return Start(
            wrapping=wrapping,
            interpreter=self._interpreter,
            plan={
                **plan,
                "argv": [os.fsencode(word) for word in command.argv],
                "limits": for_inner(self.settings.limits, counted=self._nest is not None),
                "prlimit": self._machine.prlimit,
            },
            environment={**environment, **command.env},
            cwd=cwd,
            owner=(self.uid, self.gid) if self._stage else None,
            stdin=command.stdin,
            reports=command.reports,
            watch=self._guard,
            seconds=command.seconds,
            most_output=self.settings.limits.kept,
        )

    def _guard(self, pid: int) -> Guard:
        self._floor.stands()
        limits = self.settings.limits
        return Guard(limits, pid, self._nest.make(limits) if self._nest else None)
