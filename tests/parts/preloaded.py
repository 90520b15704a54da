"""Toolcrib's processes and our test servers, started with most of their packages already imported.

Importing the MCP SDK, pydantic and SQLAlchemy takes a second of CPU time, and Toolcrib's lower layers take a quarter of
one; the tests start hundreds of daemons and commands. `Preloaded` is a `subprocess.Popen` for Python scripts, with or
without the interpreter before the script: the child is forked from a process that has imported these packages once. It
imports Toolcrib's upper layers itself: `toolcrib.calls` holds a value that differs between processes.
"""

from __future__ import annotations

import functools
import gc
import inspect
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = (
    "asyncio", "jsonschema_rs", "mcp.client.streamable_http", "mcp.client.subscriptions", "mcp.server.lowlevel.server",
    "msgspec", "pydantic", "re2", "rich.console", "rich.table", "sqlalchemy.dialects.sqlite", "typer",
    "uvicorn.protocols.http.httptools_impl", "uvloop", "websockets.asyncio.client", "yaml", "tomlkit",
    "toolcrib.audit.log", "toolcrib.http_server", "toolcrib.identity.approvals", "toolcrib.identity.sessions",
    "toolcrib.listing", "toolcrib.policy.permission", "toolcrib.servers.pool", "toolcrib.workspace.workspace",
)  # fmt: skip
MAX_REQUEST = 1 << 17
_old_streams: list[Any] = []
"""Kept, since the end of one would close its file."""


class Preloaded(subprocess.Popen[Any]):
    """Starts a fresh interpreter where a fork would differ: other signals, settings of the interpreter, no Linux."""

    _channel: socket.socket | None = None

    def _execute_child(self, *given: Any, **named: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        bound = inspect.signature(start).bind(*given, **named).arguments
        env = bound["env"] if bound["env"] is not None else os.environ
        if not _can_fork(env):
            start(*given, **named)
            return
        request = {
            "argv": [str(arg) for arg in bound["args"]][bound["args"][0] == sys.executable :],
            "env": dict(env),
            "cwd": str(bound["cwd"] or Path.cwd()),
            "new_session": bound["start_new_session"],
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        files = [bound["p2cread"], bound["c2pwrite"], bound["errwrite"]]
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.connect(preloader()[1])
        files = [number if file == -1 else file for number, file in enumerate(files)]
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        self.pid = int(self._channel.recv(32))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(bound[name] for name in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._channel is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        ready, _, _ = select.select([self._channel], [], [], 0 if wait_flags & os.WNOHANG else None)
        if not ready:
            return 0, 0
        status = int(self._channel.recv(32) or signal.SIGKILL)
        self._channel.close()
        return self.pid, status

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._channel is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc,no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def _can_fork(env: Mapping[str, str]) -> bool:
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    usual = ignored <= {signal.SIGPIPE, signal.SIGXFSZ} and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return sys.platform == "linux" and usual and not any(name.startswith(("PYTHON", "LD_")) for name in env)


@functools.cache
def preloader() -> tuple[int, str]:
    """The pid of the process that forks, and its address. It ends when its standard input is closed: with this one."""
    address = f"\0toolcrib-tests-{os.getpid()}"
    process = subprocess.Popen([sys.executable, __file__, address[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    preloader.process = process  # type: ignore[attr-defined]
    return process.pid, address


def serve(address: str) -> str:
    """Forks a child per request, and reports how it ended. Returns the script to run, in each child."""
    for package in PACKAGES:
        import_module(package)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as events:
        listener.bind(f"\0{address}")
        listener.listen(64)
        events.register(listener, selectors.EVENT_READ)
        events.register(sys.stdin, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            for key, _ in events.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)
                if key.fileobj is not listener:
                    events.unregister(key.fileobj)
                    os.close(key.fd)
                    channel, pid = key.data
                    channel.send(str(os.waitpid(pid, 0)[1]).encode())
                    channel.close()
                    continue
                channel, _ = listener.accept()
                data, files, _, _ = socket.recv_fds(channel, MAX_REQUEST, 3)
                pid = os.fork()
                if pid == 0:
                    return _become(json.loads(data), files)
                for file in files:
                    os.close(file)
                channel.send(str(pid).encode())
                events.register(os.pidfd_open(pid), selectors.EVENT_READ, (channel, pid))


def _become(request: Mapping[str, Any], files: list[int]) -> str:
    if request["new_session"]:
        os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    os.chdir(request["cwd"])
    for number, file in enumerate(files):
        os.dup2(file, number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "w" if number else "r"
        stream = os.fdopen(number, mode, encoding="utf-8", errors=getattr(sys, name).errors, closefd=False)
        _old_streams.append(getattr(sys, name))
        setattr(sys, name, stream)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv[:] = request["argv"]
    script: str = sys.argv[0]
    sys.path[0] = str(Path(script).parent)
    return script


if __name__ == "__main__":
    script = serve(sys.argv[1])
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    runpy.run_path(script, run_name="__main__")
