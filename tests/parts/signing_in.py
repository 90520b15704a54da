"""`toolcrib login` as a person without a browser uses it: they open the printed address.

The authorization servers of tests redirect at once, so that opening the address is all there is to do.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import urllib.error
import urllib.request
from typing import Any

from parts.daemon import PROGRAM, Finished, Home
from parts.preloaded import Preloaded

_ADDRESS = re.compile(r"https?://\S+")


def sign_in(home: Home, name: str, *words: str) -> Finished:
    command = [str(PROGRAM), "login", name, "--no-browser", *words]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said: list[str] = []
    with Preloaded(command, env=home.environ(), cwd=home.project, text=True, **pipes) as process:
        for line in process.stdout:
            said.append(line)
            if (address := _ADDRESS.search(line)) and "code_challenge=" in address[0]:
                open_address(address[0])
    return Finished(exit_code=process.returncode, out="".join(said), err="")


def open_address(address: str) -> None:
    """As a browser does: follows redirects, the last of them to the listener of the sign-in."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=60).close()
