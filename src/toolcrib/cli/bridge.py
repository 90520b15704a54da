"""`toolcrib stdio`: the thin bridge that a client starts as a stdio server in its project.

In: MCP messages of any protocol version, one per line, on stdin. Out: the daemon's on stdout, byte for byte. Above it
is a client (Claude Code, Codex, Gemini CLI …); below it the daemon's socket, which `daemon_client.starting` finds or
starts. It sends the daemon the project root, the conversation and, for an agent, the token from the agent's private
folder; otherwise it only passes lines on. Nothing heavy is imported here.

A line is passed on when it is whole, so a daemon that dies in the middle of one never spoils the client's stream. When
the daemon goes away, requests in flight are answered with an error, and the next request connects again (and starts a
daemon where none runs); a legacy client's handshake is repeated for it then. Only a request does so: notices and
answers belong to the connection that is gone.
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
from toolcrib.config.paths import Paths, project_root, working_folder
from toolcrib.daemon_client.starting import START, connect_or_start
from toolcrib.errors import SERVER_UNAVAILABLE, NotFound, ToolcribError

CHUNK = 1 << 18
DRAIN_SECONDS = 5.0
"""Seconds that answers may still take after the client closed its side."""
HANDSHAKE_SECONDS = 10.0
"""Seconds that a new daemon may take to answer a repeated `initialize`."""
FIRST_REQUEST_SECONDS = 2.0
"""Seconds in which a client that cannot be served may ask its first question, to get the reason."""

ENDLESS = frozenset({"subscriptions/listen"})
"""Requests that end only with the connection: nobody waits for their answer at the end."""

STOPPED = "The Toolcrib daemon stopped while this request was under way; the call may have run."


class DaemonLink:
    """One connection to the daemon: what was asked over it, and whether it still stands."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = BridgeReader()
        self.lock = threading.Lock()
        self.gone = threading.Event()
        self.waiting: dict[str, str] = {}
        """The client's requests without an answer: id → method."""
        self.passing = 0
        """Lines of the daemon's on their way to the client."""
        self.asked: set[str] = set()
        """The daemon's requests without an answer."""
        self.reason = ""
        """Why the daemon is about to hang up, if that was the last thing it said."""

    def expect(self, found: Sequence[BridgeMessage]) -> bool:
        """Notes what the client is about to send. False: the link is gone, nothing was noted."""
        with self.lock:
            if self.gone.is_set():
                return False
            for message in found:
                if message.kind is MessageKind.REQUEST:
                    self.waiting[message.id] = message.method
                elif message.kind is MessageKind.ANSWER:
                    self.asked.discard(message.id)
                elif message.method == "notifications/cancelled":
                    # Who cancelled waits for nothing, and a legacy daemon sends nothing.
                    self.waiting.pop(message.id, None)
            return True

    def forget(self, found: Sequence[BridgeMessage]) -> bool:
        """Takes `expect` back for a line that did not go out. False: its requests were already answered."""
        with self.lock:
            taken = [self.waiting.pop(m.id, None) for m in found if m.kind is MessageKind.REQUEST]
            return None not in taken

    def note(self, found: Sequence[BridgeMessage]) -> None:
        """Notes what the daemon sent and is about to be passed on."""
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
        """Marks the link as gone; returns the requests that nobody will answer now."""
        with self.lock:
            self.gone.set()
            left, self.waiting = self.waiting, {}
            return left

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
        start: Sequence[str] = START,
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._environ = environ
        self._start = start
        self._paths = Paths.of_user(environ)
        self._agent = agent
        self._introduction = {
            "root": str(project_root(environ, cwd)),
            "conversation": environ.get("TOOLCRIB_CONVERSATION") or os.urandom(16).hex(),
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
        """Passes messages until the client closes its side."""
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
        """What the client wrote; nothing at its end, or when it no longer listens."""
        ready, _, _ = select.select([self._stdin, self._wake_read], [], [])
        if self._wake_read in ready or self._client_gone.is_set():
            return b""
        return os.read(self._stdin, CHUNK)

    def _turn_away(self, error: ToolcribError) -> None:
        """Tells a client that cannot be served why, as the answer to what it asks first."""
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
        """An answer to a question that another daemon asked must not be taken for one to this daemon's."""
        answers = [message for message in known if message.kind is MessageKind.ANSWER]
        with link.lock:
            return bool(answers) and all(message.id not in link.asked for message in answers)

    def _send(self, link: DaemonLink, line: bytes, known: Sequence[BridgeMessage]) -> bool:
        """True when the line is dealt with. A line that did not go out whole cannot have run: it may go again."""
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
        # Before all else: an agent that is not there is no reason to start a daemon.
        hello = self._hello()
        sock = connect_or_start(self._paths.socket, environ=self._environ, start=self._start)
        link = DaemonLink(sock)
        try:
            sock.sendall(hello)
            early = self._repeat_handshake(link) if replay and self._initialize_answered else []
        except OSError as error:
            sock.close()
            raise ToolcribError(
                f"The daemon went away again: {error}.", remedy="`toolcrib logs` says why; try again."
            ) from error
        except ToolcribError:
            sock.close()
            raise
        self._link = link
        self._reader = threading.Thread(target=self._read_daemon, args=(link, early), daemon=True)
        self._reader.start()
        return link

    def _hello(self) -> bytes:
        """Says who is there. The token is read each time: it may be a new one by now."""
        params = dict(self._introduction)
        if self._agent:
            params["token"] = self._token()
        return _line({"jsonrpc": "2.0", "method": "toolcrib/bridge", "params": params})

    def _token(self) -> str:
        folder = self._paths.agents / self._agent
        # A name is one folder below ours, never a way to another.
        if Path(self._agent).name != self._agent or self._agent == ".." or not folder.is_dir():
            raise NotFound(
                f"There is no agent {self._agent!r}.",
                remedy=f"`toolcrib agent list` shows which there are; `toolcrib agent add {self._agent}` makes it.",
            )
        try:
            return (folder / "token").read_text().strip()
        except (OSError, ValueError) as error:
            raise ToolcribError(
                f"The token of the agent {self._agent!r} cannot be read: {error}.",
                remedy=f"`toolcrib agent rotate {self._agent}` makes a new one.",
            ) from error

    def _repeat_handshake(self, link: DaemonLink) -> list[bytes]:
        """Says the client's `initialize` again; its answer is swallowed, other lines that came are returned."""
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
        """The reader's thread: the daemon's lines to the client, until the connection ends."""
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
        # Answered before it is out, so that a link that breaks now is no reason to answer it again.
        link.note(found)
        try:
            self._to_client(line)
        finally:
            link.passed_on()

    def _lost(self, link: DaemonLink) -> None:
        left = link.end()
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_RDWR)
        link.sock.close()
        self._refuse(list(left), link.reason or STOPPED)

    # -- words of our own ----------------------------------------------------------------------------------------

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
        """The client sends no more: the daemon learns that, and what it still owes gets a little time."""
        link = self._link
        if link is None or link.gone.is_set():
            return
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + DRAIN_SECONDS
        while link.pending() and not self._client_gone.is_set() and time.monotonic() < deadline:
            link.gone.wait(0.02)
        if link.gone.is_set() and self._reader is not None:
            # The reader tells the client of what nobody will answer now.
            self._reader.join(1.0)


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _print_error(error: ToolcribError) -> None:
    sys.stderr.write(f"toolcrib stdio: {error.text()}\n")
    sys.stderr.flush()


def run_bridge(agent: str = "", start: Sequence[str] = START) -> int:
    """The bridge on this process's own stdin and stdout, for an agent or for the person; returns the exit code."""
    try:
        return Bridge(stdin=0, stdout=1, environ=os.environ, cwd=working_folder(), agent=agent, start=start).run()
    except ToolcribError as error:
        _print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
