"""The daemon, from start to end: lock, owner's token, port, crib, gateway, socket. A signal or a command stops it
within five seconds; a daemon that was started for runs ends with the last of them.

In: the project root, the flags. Out: an exit code. Clients get the last known catalog at once, while the servers
connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvloop

from toolcrib import __version__
from toolcrib.coding_agents.client_files import renew_private_files
from toolcrib.commands.all import registry
from toolcrib.commands.builtin import builtins
from toolcrib.commands.run import end_run_agent, orphaned_agents
from toolcrib.config.layers import remember_store
from toolcrib.config.masking import Masker
from toolcrib.config.model import WORKSPACE, Flags
from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.core.config_watch import watching
from toolcrib.core.crib import Crib
from toolcrib.core.favorites import counting_daily
from toolcrib.daemon.log import LOGGED, log_to, write_to_log
from toolcrib.daemon.socket import CommandSocket
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime, daemon_lock, write_info
from toolcrib.errors import ConfigError, PortTaken, ToolcribError
from toolcrib.events import ConfigReloaded, Event, TokenReplaced
from toolcrib.gateway.http import HttpGateway
from toolcrib.http_server import AsgiServer
from toolcrib.identity.agent import mint_token
from toolcrib.jobs.queue import JobQueue
from toolcrib.signals import ending_signals, raise_open_file_limit


def owner_token(file: Path) -> str:
    private_folder(file.parent)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read_token(file)
    token = mint_token()
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(token + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        # Every later start would reject half a token.
        file.unlink()
        raise
    return token


def _read_token(file: Path) -> str:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{file} can be read by others (mode {mode:o}).",
            remedy=f"Remove it (the next start creates a new token), or: chmod 600 {file}",
        )
    token = file.read_text().strip()
    if len(token) < 32:
        raise ConfigError(f"{file} contains no token.", remedy="Remove it; the next start creates a new one.")
    return token


log = logging.getLogger(__name__)

_REQUESTS_MAY_END = 1.0
"""Seconds, of the five that a stop may take; the servers' processes need the rest."""

_FIRST_RUN_WITHIN = 20.0
"""Seconds that a daemon for runs waits for its first run."""
_CLAIMED_WITHIN = 15.0
"""Seconds that a run of the last daemon has to reclaim its agent."""

Ready = Callable[[dict[str, Any]], None]


class Daemon:
    def __init__(self, paths: Paths, root: Path, flags: Flags, lasts: DaemonLifetime) -> None:
        self.leases = ActiveLeases(lasts, on_idle=self.stop)
        self.jobs = JobQueue(self.leases)
        self.mask = Masker()
        self._paths = paths
        self._root = root
        self._flags = flags
        self._stopping = asyncio.Event()
        self._started_at = time.time()
        self._port = 0
        self._in_terminal = _has_terminal()
        self._reloading: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "running": True,
            "endpoint": f"http://127.0.0.1:{self._port}/mcp",
            "token_file": str(self._paths.owner_token),
            "pid": os.getpid(),
            "version": __version__,
            "socket": str(self._paths.socket),
            "root": str(self._root),
            "log": str(self._paths.log),
            "started_at": self._started_at,
            "uptime": time.time() - self._started_at,
            "unsafe_no_sandbox": self._flags.unsafe_no_sandbox,
            "for_runs": self.leases.lasts is DaemonLifetime.FOR_RUNS,
            "runs": len(self.leases.agents),
            "jobs": self.jobs.counts,
            "stopping": self._stopping.is_set(),
        }

    def stop(self) -> None:
        self.leases.close()
        self._stopping.set()

    def _stop_if_idle(self) -> None:
        if self.leases.idle:
            self.stop()

    def _found(self, crib: Crib) -> dict[str, Any]:
        """The configuration's problems, for the process that starts the daemon."""
        config = crib.projects.home.config
        for problem in config.problems:
            log.warning("configuration: %s", problem)
        return {
            "problems": [str(problem) for problem in config.problems],
            "untrusted": [str(file) for file in config.untrusted],
            "workspace": bool(crib.projects.home.catalog.of_server(WORKSPACE)),
        }

    async def _renew_client_files(self, crib: Crib) -> None:
        """Updates the agents' client files with our address, and with each new token from now on."""
        endpoint = self.describe()["endpoint"]
        agents = [agent.name for agent in crib.services.agents.agents]
        await asyncio.to_thread(renew_private_files, crib.services.agents.folder, agents, url=endpoint)

        def replaced(event: Event) -> None:
            if isinstance(event, TokenReplaced):
                renew_private_files(crib.services.agents.folder, [event.agent], url=endpoint)

        crib.bus.subscribe(replaced, TokenReplaced)

    def _hang_up(self, crib: Crib) -> None:
        """SIGHUP reloads the configuration, unless it means that the terminal is gone."""
        if self._stopping.is_set():
            return
        if self._in_terminal and not _has_terminal():
            self.stop()
        elif self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload(crib))

    async def _reload(self, crib: Crib) -> None:
        try:
            async with crib.projects.editing:
                await crib.projects.reload()
        except ToolcribError as error:
            log.warning("could not reload the configuration: %s", error.text())

    async def _until_stopped(self) -> None:
        if self.leases.lasts is DaemonLifetime.FOR_RUNS:
            asyncio.get_running_loop().call_later(_FIRST_RUN_WITHIN, self._stop_if_idle)
        await self._stopping.wait()

    @contextlib.asynccontextmanager
    async def _minding_orphans(self, crib: Crib) -> AsyncIterator[None]:
        """Removes agents that runs of the last daemon left behind, unless a run reclaims them."""
        orphans = await orphaned_agents(crib)

        async def end_unclaimed(after: float) -> None:
            await asyncio.sleep(after)
            for agent in orphans:
                if agent.name not in self.leases.agents:
                    await end_run_agent(crib, agent)

        later = asyncio.create_task(end_unclaimed(_CLAIMED_WITHIN))
        try:
            yield
        finally:
            later.cancel()
            if self.leases.lasts is DaemonLifetime.FOR_RUNS:
                await end_unclaimed(0)

    async def run(self, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self.stop)
        token = owner_token(self._paths.owner_token)
        self.mask.learn({token: "token of the owner"})
        crib = Crib(
            paths=self._paths,
            root=self._root,
            environ=os.environ,
            flags=self._flags,
            builtins=builtins(registry, self, unsafe_no_sandbox=self._flags.unsafe_no_sandbox),
            is_daemon=True,
            mask=self.mask,
        )
        async with (
            crib,
            self._minding_orphans(crib),
            watching(crib.projects),
            counting_daily(crib.services.favorites),
        ):
            self.jobs.crib = crib
            if signal.SIGHUP in ending_signals():
                loop.add_signal_handler(signal.SIGHUP, self._hang_up, crib)
            remember_store(self._paths, self._flags.store)
            settings = crib.projects.home.config.settings
            _set_log_level(crib)
            crib.bus.subscribe(write_to_log, *LOGGED)
            crib.bus.subscribe(lambda _: _set_log_level(crib), ConfigReloaded)
            listener = bind(settings.port)
            self._port = listener.getsockname()[1]
            gateway = HttpGateway(crib, token=token, port=self._port)
            server = AsgiServer(gateway)
            control = CommandSocket(crib, self)
            try:
                await crib.services.agents.sweep()
                await self._renew_client_files(crib)
                await control.start(self._paths.socket)
                await server.start(listener)
                write_info(self._paths, self.describe())
                self._paths.stopped.unlink(missing_ok=True)
                for file in (self._paths.socket, self._paths.daemon_info):
                    crib.servers.reaper.unlink(file)
                _settle_memory()
                if self._flags.unsafe_no_sandbox:
                    log.warning("workspace commands run without a sandbox, because of --unsafe-no-sandbox")
                log.info("serving %s, root %s", self.describe()["endpoint"], self._root)
                await self.jobs.begin()
                ready({**self.describe(), **self._found(crib)})
                await self._until_stopped()
            finally:
                log.info("stopping")
                for file in (self._paths.daemon_info, self._paths.socket):
                    file.unlink(missing_ok=True)
                crib.services.store.hurry()
                crib.projects.pool.hurry()
                gateway.close()
                crib.services.approvals.close()
                # Workers release their agents over the socket, which closes last.
                await asyncio.gather(self.jobs.close(), server.stop(limit=_REQUESTS_MAY_END))
                await control.stop()


def _set_log_level(crib: Crib) -> None:
    logging.getLogger("toolcrib").setLevel(crib.projects.home.config.settings.log_level.upper())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _settle_memory() -> None:
    """Objects that exist at the start stay to the end, so the garbage collector need not scan them under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _keep_files_from_children() -> None:
    """Keeps files that the shell left open from the servers, which would otherwise inherit them."""
    for entry in os.listdir("/dev/fd"):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(OSError):
            if int(entry) > 2:
                os.set_inheritable(int(entry), False)


def bind(port: int) -> socket.socket:
    """A listening socket on loopback."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"Port {port} cannot be used: {os.strerror(error.errno or 0)}.",
            remedy="Choose another with --port (0 for any free port), or end the program that uses it.",
            data={"port": port},
        ) from error
    return listener


def run_foreground(
    root: Path, flags: Flags, *, ready: Ready, lasts: DaemonLifetime = DaemonLifetime.UNTIL_STOPPED
) -> int:
    """Runs until a signal or `toolcrib down`; a daemon for runs, until the last run ends."""
    paths = Paths.of_user(os.environ)
    _keep_files_from_children()
    raise_open_file_limit()
    try:
        return _run_locked(paths, Daemon(paths, root, flags, lasts), ready)
    except OSError as error:
        raise unusable_path(error, paths.state_dir) from error


def _run_locked(paths: Paths, daemon: Daemon, ready: Ready) -> int:
    with daemon_lock(paths):
        handler = log_to(paths.log, os.environ.get("TOOLCRIB_LOG_LEVEL", "info"), daemon.mask)
        try:
            # Closing the loop waits for the default executor's threads.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.suppress(KeyboardInterrupt):
                runner.run(daemon.run(ready))
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
    return 0
