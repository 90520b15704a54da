"""A person with a real daemon, as the client of the conformance suite: writes the entry, signs in, calls the tool.

In: the scenarios' orders, which `client_command` passes on. Out: `outcomes`, by scenario. One daemon serves all
scenarios; each has an entry of its own.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Self

from conformance.suite import HERE
from parts.daemon import Daemon
from parts.raw_client import Endpoint
from parts.signing_in import sign_in

METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""The suite's authorization servers know this client."""
SIGN_INS = 3
"""The most that one scenario may need: one, another one for more scopes, and one too many."""
AT_ONCE = 3


class SigningClient:
    def __init__(self, daemon: Daemon) -> None:
        self.outcomes: dict[str, str] = {}
        """By scenario: why the tool could not be called; empty if it was."""
        self._daemon = daemon
        self._entries: dict[str, Any] = {}
        self._editing = threading.Lock()
        self._turns = threading.Semaphore(AT_ONCE)

    @classmethod
    @contextlib.contextmanager
    def listening(cls, daemon: Daemon, folder: Path, wanted: AbstractSet[str]) -> Iterator[tuple[Self, str]]:
        """Yields the client, and the command for the suite. Other scenarios than the wanted ones fail at once."""
        client = cls(daemon)

        class Order(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                order = json.loads(self.rfile.readline())
                outcome = "not wanted"
                if order["scenario"] in wanted:
                    with client._turns:
                        outcome = client.work(**order)
                    client.outcomes[order["scenario"]] = outcome
                self.wfile.write(" ".join(outcome.split()).encode() + b"\n")

        class Orders(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            request_queue_size = 64

        address = str(folder / "orders")
        with Orders(address, Order) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield client, f"{sys.executable} -I -S {HERE / 'client_command.py'} {address}"
            finally:
                server.shutdown()
                thread.join()

    def work(self, scenario: str, url: str, context: Mapping[str, str]) -> str:
        name = scenario.removeprefix("auth/")
        self._add(name, {"url": url, "auth": auth_of(scenario, context)})
        reason = self._call(name)
        for _ in range(SIGN_INS):
            if "toolcrib login" not in reason:
                break
            said = sign_in(self._daemon.home, name).out
            if "Signed in at" not in said:
                return said
            reason = self._call(name)
        return reason

    def _add(self, name: str, entry: Mapping[str, Any]) -> None:
        with self._editing:
            self._entries[name] = entry
            changed = self._daemon.home.toolcrib / "config.json.new"
            changed.write_text(json.dumps({"servers": self._entries}))
            changed.replace(changed.with_suffix(""))
            self._daemon.command("config:reload")

    def _call(self, name: str) -> str:
        """Why the tool cannot be called; empty if it was."""
        tools = self._daemon.command("tool:list", server=name)["tools"]
        if not tools:
            return str(self._daemon.command("server:show", name=name)["last_error"])
        message = json.loads(Endpoint(self._daemon).call(tools[0]["name"]).message)
        if "error" in message:
            return str(message["error"]["message"])
        return str(message["result"]["content"][0]["text"]) if message["result"].get("isError") else ""


def auth_of(scenario: str, context: Mapping[str, str]) -> dict[str, Any]:
    """The `auth` of an entry, with what the person was given."""
    kind = "client_credentials" if "client-credentials" in scenario else "oauth"
    names = {"client_id": "client_id", "client_secret": "client_secret", "private_key": "private_key_pem"}
    given = {name: context[key] for name, key in {**names, "issuer": "issuer"}.items() if key in context}
    return {"type": kind, **({} if given else {"client_metadata_url": METADATA_URL}), **given}
