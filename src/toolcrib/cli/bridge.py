"""`toolcrib stdio`: the thin bridge that a client starts as a stdio server in its project.

In: MCP messages of any protocol version, one per line, on stdin. Out: the daemon's messages on stdout, byte for byte.
The client is Claude Code, Codex, Gemini CLI …; `daemon_client.starting` finds the daemon's socket or starts a daemon.
The bridge first sends the project root, the conversation, what the client's list of tools should be and, for an agent,
the token from the agent's private folder. After that it only forwards lines. Nothing heavy is imported here.

Only complete lines are forwarded, so a daemon that dies in the middle of one can't corrupt the client's stream. When
the connection to the daemon is lost, pending requests get an error. The next request reconnects, starts a daemon if
none is running, and repeats a legacy client's handshake. Only a request does so: notifications and responses belong to
the lost connection. After `toolcrib down`, only a bridge that starts then starts a daemon; the others refuse requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolcrib.cli.bridge_messages import BridgeMessage, BridgeReader, MessageKind, complaint, messages
from toolcrib.coding_agents.own_equivalents import not_needed
from toolcrib.config.paths import Paths, project_root, working_folder
from toolcrib.daemon_client.starting import START, connect_or_start, try_connect
from toolcrib.errors import SERVER_UNAVAILABLE, DaemonNotRunning, NotFound, ToolcribError

CHUNK = 1 << 18
DRAIN_SECONDS = 5.0
"""Seconds to wait for pending answers after the client closed stdin."""
HANDSHAKE_SECONDS = 10.0
"""Seconds that a new daemon may take to answer a repeated `initialize`."""
FIRST_REQUEST_SECONDS = 2.0
"""Seconds to wait for a request to which a startup error can be the answer."""

ENDLESS = frozenset({"subscriptions/listen"})
"""Requests that last as long as the connection. The bridge doesn't wait for their answers when it ends."""

STOPPED = "The Toolcrib daemon stopped before answering this request; the call may have run."


class DaemonLink:
    """One connection to the daemon, and the requests pending on it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = BridgeReader()
        self.lock = threading.Lock()
        self.gone = threading.Event()
        self.waiting: dict[str, str] = {}
        """The client's requests without an answer: id → method."""
        self.passing = 0
        """Lines from the daemon on their way to the client."""
        self.asked: set[str] = set()
        """The daemon's requests without an answer."""
        self.reason = ""
        """Why the daemon is about to close the connection, if its last message gave a reason."""

    def expect(self, found: Sequence[BridgeMessage]) -> bool:
        """Records the messages that the client is about to send. False: the link is gone and nothing was recorded."""
        with self.lock:
            if self.gone.is_set():
                return False
            for message in found:
                if message.kind is MessageKind.REQUEST:
                    self.waiting[message.id] = message.method
                elif message.kind is MessageKind.ANSWER:
                    self.asked.discard(message.id)
                elif message.method == "notifications/cancelled":
                    # The client expects no answer to a cancelled request, and a legacy daemon sends none.
                    self.waiting.pop(message.id, None)
            return True

    def forget(self, found: Sequence[BridgeMessage]) -> bool:
        """Undoes `expect` for a line that was not sent. False: its requests were already answered."""
        with self.lock:
            taken = [self.waiting.pop(m.id, None) for m in found if m.kind is MessageKind.REQUEST]
            return None not in taken

    def note(self, found: Sequence[BridgeMessage]) -> None:
        """Records messages from the daemon that are about to be forwarded."""
        with self.lock:
            self.passing += 1
            for message in found:
                if message.kind is MessageKind.ANSWER:
                    self.waiting.pop(message.id, None)
                elif message.kind is MessageKind.REQUEST:
                    self.asked.add(message.id)

    def passed_on(self) -> None:
        with self.lock:
            self.passing -= 1

    def end(self) -> dict[str, str]:
        """Marks the link as gone and returns the requests that were not answered."""
        with self.lock:
            self.gone.set()
            unanswered, self.waiting = self.waiting, {}
            return unanswered

    def pending(self) -> bool:
        with self.lock:
            return self.passing > 0 or any(method not in ENDLESS for method in self.waiting.values())


class Bridge:
    def __init__(
        self,
        *,
        stdin: int,
        stdout: int,
        environ: Mapping[str, str],
        cwd: Path,
        agent: str = "",
        client: str = "",
        listing: str = "",
        start: Sequence[str] = START,
    ) -> None:
        """`client`: a client whose own tools may replace workspace tools; `listing`: how tools are listed."""
        self._stdin = stdin
        self._stdout = stdout
        self._environ = environ
        self._start = start
        self._paths = Paths.of_user(environ)
        self._agent = agent
        root = project_root(environ, cwd)
        # Decided once, because a list must not change in the middle of a conversation.
        without = ",".join(sorted(not_needed(client, environ, cwd, root)))
        self._introduction = {
            "root": str(root),
            "conversation": environ.get("TOOLCRIB_CONVERSATION") or os.urandom(16).hex(),
            **{name: value for name, value in (("listing", listing), ("without", without)) if value},
        }
        self._link: DaemonLink | None = None
        self._reader: threading.Thread | None = None
        self._out = threading.Lock()
        self._client_gone = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._initialize = b""
        self._initialize_id = ""
        self._initialize_answered = False
        self._initialized = b""

    def run(self) -> int:
        """Forwards messages until the client closes stdin."""
        try:
            self._open(replay=False)
        except ToolcribError as error:
            self._turn_away(error)
            raise
        lines = BridgeReader()
        while chunk := self._read_client():
            for line in lines.feed(chunk):
                self._from_client(line)
        if rest := lines.rest().strip():
            self._from_client(rest + b"\n")
        self._drain()
        return 0

    # -- the client's side ---------------------------------------------------------------------------------------

    def _read_client(self) -> bytes:
        """Returns the client's bytes, or nothing once it closed stdin or stopped reading stdout."""
        ready, _, _ = select.select([self._stdin, self._wake_read], [], [])
        if self._wake_read in ready or self._client_gone.is_set():
            return b""
        return os.read(self._stdin, CHUNK)

    def _turn_away(self, error: ToolcribError) -> None:
        """Answers the client's first request with the error, so that the client can show it."""
        lines = BridgeReader()
        deadline = time.monotonic() + FIRST_REQUEST_SECONDS
        while (left := deadline - time.monotonic()) > 0 and select.select([self._stdin], [], [], left)[0]:
            chunk = os.read(self._stdin, CHUNK)
            found = [message for line in lines.feed(chunk) for message in messages(line) or []]
            asked = [message.id for message in found if message.kind is MessageKind.REQUEST]
            self._refuse(asked, error.text())
            if asked or not chunk:
                return

    def _from_client(self, line: bytes) -> None:
        found = messages(line)
        known = found or []
        self._remember_handshake(line, known)
        needs_daemon = found is None or any(message.kind is MessageKind.REQUEST for message in known)
        while not self._client_gone.is_set():
            link = self._link
            if link is None or link.gone.is_set():
                if not needs_daemon:
                    return
                try:
                    link = self._open(replay=not any(message.method == "initialize" for message in known))
                except ToolcribError as error:
                    _print_error(error)
                    self._refuse([m.id for m in known if m.kind is MessageKind.REQUEST], error.text())
                    return
            if self._is_stale_answer(link, known) or self._send(link, line, known):
                return

    def _is_stale_answer(self, link: DaemonLink, known: Sequence[BridgeMessage]) -> bool:
        """An answer to a previous daemon's request must not reach this daemon."""
        answers = [message for message in known if message.kind is MessageKind.ANSWER]
        with link.lock:
            return bool(answers) and all(message.id not in link.asked for message in answers)

    def _send(self, link: DaemonLink, line: bytes, known: Sequence[BridgeMessage]) -> bool:
        """True when the line is handled. A line that was not sent completely cannot have run and may be sent again."""
        if not link.expect(known):
            return False
        try:
            link.sock.sendall(line)
        except OSError:
            taken_back = link.forget(known)
            self._lost(link)
            return not taken_back
        return True

    def _remember_handshake(self, line: bytes, known: Sequence[BridgeMessage]) -> None:
        for message in known:
            if message.kind is MessageKind.REQUEST and message.method == "initialize":
                self._initialize, self._initialize_id = line, message.id
                self._initialize_answered, self._initialized = False, b""
            elif message.method == "notifications/initialized":
                self._initialized = line

    # -- the daemon's side ---------------------------------------------------------------------------------------

    def _open(self, *, replay: bool) -> DaemonLink:
        # First, because an unknown agent is no reason to start a daemon.
        hello = self._hello()
        sock = self._connected()
        link = DaemonLink(sock)
        try:
            sock.sendall(hello)
            early = self._repeat_handshake(link) if replay and self._initialize_answered else []
        except OSError as error:
            sock.close()
            raise ToolcribError(
                f"The daemon closed the connection: {error}.", remedy="Check `toolcrib logs` and try again."
            ) from error
        except ToolcribError:
            sock.close()
            raise
        self._link = link
        self._reader = threading.Thread(target=self._read_daemon, args=(link, early), daemon=True)
        self._reader.start()
        return link

    def _connected(self) -> socket.socket:
        if self._link is not None and self._paths.stopped.exists():
            if (sock := try_connect(self._paths.socket)) is not None:
                return sock
            raise DaemonNotRunning(
                "The daemon was stopped with `toolcrib down`.",
                remedy="Start it with `toolcrib up --detach`; this client then continues.",
            )
        return connect_or_start(self._paths.socket, environ=self._environ, start=self._start)

    def _hello(self) -> bytes:
        """The first line of a connection. The token is read each time, because it may have been rotated."""
        params = dict(self._introduction)
        if self._agent:
            params["token"] = self._token()
        return _line({"jsonrpc": "2.0", "method": "toolcrib/bridge", "params": params})

    def _token(self) -> str:
        folder = self._paths.agents / self._agent
        # The name must not lead outside the folder of agents.
        if Path(self._agent).name != self._agent or self._agent == ".." or not folder.is_dir():
            raise NotFound(
                f"There is no agent {self._agent!r}.",
                remedy=f"`toolcrib agent list` shows all agents; `toolcrib agent add {self._agent}` creates it.",
            )
        try:
            return (folder / "token").read_text().strip()
        except (OSError, ValueError) as error:
            raise ToolcribError(
                f"The token of the agent {self._agent!r} cannot be read: {error}.",
                remedy=f"`toolcrib agent rotate {self._agent}` creates a new one.",
            ) from error

    def _repeat_handshake(self, link: DaemonLink) -> list[bytes]:
        """Sends the client's `initialize` again. Drops the answer and returns other lines that arrived."""
        link.sock.sendall(self._initialize)
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        early: list[bytes] = []
        answered = False
        while not answered:
            link.sock.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = link.sock.recv(CHUNK)
            if not chunk:
                raise ConnectionResetError("it closed the connection during the handshake")
            for line in link.lines.feed(chunk):
                if reason := complaint(line):
                    raise ToolcribError(reason)
                if BridgeMessage(MessageKind.ANSWER, self._initialize_id) not in (messages(line) or []):
                    early.append(line)
                elif "error" in json.loads(line):
                    raise ToolcribError("The new daemon refused the handshake.", remedy="Restart the client.")
                else:
                    answered = True
        link.sock.settimeout(None)
        if self._initialized:
            link.sock.sendall(self._initialized)
        return early

    def _read_daemon(self, link: DaemonLink, early: Sequence[bytes]) -> None:
        """The reader thread: forwards the daemon's lines to the client until the connection ends."""
        for line in early:
            self._from_daemon(link, line)
        while True:
            try:
                chunk = link.sock.recv(CHUNK)
            except OSError:
                chunk = b""
            if not chunk:
                break
            for line in link.lines.feed(chunk):
                self._from_daemon(link, line)
        self._lost(link)

    def _from_daemon(self, link: DaemonLink, line: bytes) -> None:
        found = messages(line) or []
        if any(message.kind is MessageKind.ANSWER and message.id == self._initialize_id for message in found):
            self._initialize_answered = True
        link.reason = complaint(line)
        # Counts as answered before it is written, so that a link that breaks now doesn't answer it again.
        link.note(found)
        try:
            self._to_client(line)
        finally:
            link.passed_on()

    def _lost(self, link: DaemonLink) -> None:
        unanswered = link.end()
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_RDWR)
        link.sock.close()
        self._refuse(list(unanswered), link.reason or STOPPED)

    # -- messages of the bridge itself ---------------------------------------------------------------------------

    def _refuse(self, ids: Sequence[str], text: str) -> None:
        for request_id in ids:
            error = {"code": SERVER_UNAVAILABLE, "message": text}
            self._to_client(_line({"jsonrpc": "2.0", "id": json.loads(request_id), "error": error}))

    def _to_client(self, line: bytes) -> None:
        view = memoryview(line)
        try:
            with self._out:
                while view:
                    view = view[os.write(self._stdout, view) :]
        except OSError:
            self._client_gone.set()
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b".")

    def _drain(self) -> None:
        """After the client closed stdin, gives the daemon a little time for pending answers."""
        link = self._link
        if link is None or link.gone.is_set():
            return
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + DRAIN_SECONDS
        while link.pending() and not self._client_gone.is_set() and time.monotonic() < deadline:
            link.gone.wait(0.02)
        if link.gone.is_set() and self._reader is not None:
            # The reader answers the remaining requests with an error.
            self._reader.join(1.0)


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _print_error(error: ToolcribError) -> None:
    sys.stderr.write(f"toolcrib stdio: {error.text()}\n")
    sys.stderr.flush()


def run_bridge(agent: str = "", start: Sequence[str] = START, *, client: str = "", listing: str = "") -> int:
    """Runs the bridge on this process's stdin and stdout; returns the exit code."""
    try:
        return Bridge(
            stdin=0,
            stdout=1,
            environ=os.environ,
            cwd=working_folder(),
            agent=agent,
            client=client,
            listing=listing,
            start=start,
        ).run()
    except ToolcribError as error:
        _print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
