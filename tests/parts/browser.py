"""Headless Chromium, driven by chromedriver's HTTP API. Root installs missing programs with apt.

`Browser.program` is for the variable BROWSER: it opens an address in the browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parts.fleet import NotRun
from parts.waiting import wait_for

APT_LIMIT = 600.0
_STARTED = re.compile(r"started successfully on port (\d+)")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
)
_PROGRAM = """#!{python}
import json, sys, urllib.request
body = json.dumps({{"url": sys.argv[1]}}).encode()
order = urllib.request.Request({url!r}, body, {{"Content-Type": "application/json"}})
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(order).close()
"""


class Browser:
    def __init__(self, driver: str, program: Path) -> None:
        self._driver = driver
        self.program = program

    def click(self, css: str) -> None:
        """Waits for the element."""
        element = wait_for(lambda: self._find(css), f"{css} in the page")
        self._ask("POST", f"/element/{element}/click", {})

    def text(self) -> str:
        return str(self._ask("GET", f"/element/{self._find('body')}/text"))

    def _find(self, css: str) -> str:
        found = self._ask("POST", "/elements", {"using": "css selector", "value": css})
        return str(next(iter(found[0].values()))) if found else ""

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask(method, f"{self._driver}{path}", body)


def ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - always http on loopback
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)["value"]


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    chromium, chromedriver = _programs()
    with (
        tempfile.TemporaryDirectory(prefix="tc-browser-", ignore_cleanup_errors=True) as made,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(made)
        driver = stack.enter_context(_started(chromedriver, folder))
        options = {"binary": chromium, "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        session = f"{driver}/session/{ask('POST', f'{driver}/session', wanted)['sessionId']}"
        stack.callback(ask, "DELETE", session)
        program = folder / "open"
        program.write_text(_PROGRAM.format(python=sys.executable, url=f"{session}/url"))
        program.chmod(0o755)
        yield Browser(session, program)


@contextlib.contextmanager
def _started(chromedriver: str, folder: Path) -> Iterator[str]:
    """The address of a chromedriver."""
    environ = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    with subprocess.Popen(
        [chromedriver, "--port=0"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said = []
            for line in process.stdout or ():
                said.append(line)
                if found := _STARTED.search(line):
                    yield f"http://127.0.0.1:{found[1]}"
                    return
            raise NotRun(f"chromedriver ended at once: {''.join(said)[-300:]}")
        finally:
            process.terminate()


def _programs() -> tuple[str, str]:
    names = ("chromium", "chromedriver")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"]
    # A fresh machine may have no list of packages, or an old one.
    for words in (install, ["apt-get", "update", "-qq"], install):
        if all(map(shutil.which, names)) or os.geteuid() != 0 or not shutil.which("apt-get"):
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(words, capture_output=True, timeout=APT_LIMIT, check=False, env=environ)
    found = [shutil.which(name) or "" for name in names]
    if not all(found):
        raise NotRun("chromium and chromedriver are not installed")
    return found[0], found[1]
