"""`toolcrib login` as a person without a browser uses it: they open the printed address.

The authorization servers of tests redirect at once, so that opening the address is all there is to do.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from parts.daemon import PROGRAM, Finished, Home
from parts.preloaded import Preloaded

_ADDRESS = re.compile(r"https?://\S+")


class RunningLogin:
    """A `toolcrib login` in progress. Its output is read as it comes, stderr with stdout."""

    def __init__(self, process: Preloaded) -> None:
        self.process = process
        self.said: list[str] = []

    def address(self) -> str:
        """Waits for the next address to open; empty if the command has ended without one."""
        for line in self.process.stdout:
            self.said.append(line)
            if (found := _ADDRESS.search(line)) and "code_challenge=" in found[0]:
                return found[0]
        return ""

    def hear(self, text: str) -> None:
        """Waits for a line with this text."""
        for line in self.process.stdout:
            self.said.append(line)
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}: {self.said}")

    def type(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def finish(self) -> Finished:
        self.said += self.process.stdout
        return Finished(exit_code=self.process.wait(60), out="".join(self.said), err="")


@contextlib.contextmanager
def logging_in(
    home: Home, name: str, *words: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> Iterator[RunningLogin]:
    pipes: Any = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [str(PROGRAM), "login", name, *words]
    with Preloaded(command, env=home.environ(env), cwd=home.project, text=True, **pipes) as process:
        try:
            yield RunningLogin(process)
        finally:
            if process.poll() is None:
                process.kill()


def sign_in(home: Home, name: str, *words: str) -> Finished:
    with logging_in(home, name, "--no-browser", *words) as login:
        while address := login.address():
            open_address(address)
        return login.finish()


def open_address(address: str) -> None:
    """As a browser does: follows redirects, the last of them to the listener of the sign-in."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=60).close()


def answer_of(address: str) -> str:
    """The address to which the authorization server redirects, as a browser on another machine shows it."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follows no redirect."""

    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay).open(address, timeout=60)
    except urllib.error.HTTPError as redirect:
        with redirect:
            return str(redirect.headers["Location"])
    raise AssertionError("it did not redirect")
