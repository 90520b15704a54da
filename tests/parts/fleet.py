"""The real servers and coding agents that tests run, installed once for all checkouts.

In: `pins.json`, with the kind and exact version of each part. Out: the command that starts a part.
Parts are in `$TOOLCRIB_TEST_CACHE` (default `~/.cache/toolcrib-tests`), one folder per part and version. A folder gets
its name when it is complete, so a broken download is never used. `python tests/parts/fleet.py` installs all parts.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SERVERS = HERE / "servers"
OLDEST_NODE = 18
INSTALL_LIMIT = 600.0


class NotRun(Exception):
    """A part that is unavailable on this machine, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Pin:
    name: str
    kind: str
    packages: dict[str, str]
    entry: str = ""
    """The file to run, relative to the part's folder."""
    bin: str = ""
    """An npm package whose `bin` names the file to run."""

    @property
    def folder(self) -> Path:
        made_of = json.dumps([self.kind, self.packages, sys.version_info[:2] if self.kind == "pypi" else None])
        return cache() / f"{self.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"

    @property
    def on_this_machine(self) -> Path | None:
        """An installed program of the distribution, of any version."""
        found = shutil.which(Path(self.entry).name) if self.kind == "deb" else None
        return Path(found) if found else None


def cache() -> Path:
    return Path(os.environ.get("TOOLCRIB_TEST_CACHE") or Path.home() / ".cache" / "toolcrib-tests")


@functools.cache
def pins() -> dict[str, Pin]:
    entries: dict[str, Any] = json.loads((HERE / "pins.json").read_text())
    return {name: Pin(name=name, **entry) for name, entry in entries.items()}


@functools.cache
def node() -> str:
    """A node new enough for the npm servers."""
    found = shutil.which("node")
    if not found:
        raise NotRun(f"node is not installed (version {OLDEST_NODE} or newer is needed)")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < OLDEST_NODE:
        raise NotRun(f"node is {version}, at least v{OLDEST_NODE} is needed")
    return found


def ensure(name: str) -> Path:
    """The folder of a part, which is installed if it is missing."""
    pin = pins()[name]
    if pin.folder.is_dir():
        return pin.folder
    if here := pin.on_this_machine:
        return here.parent
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(cache() / f"{pin.folder.name}.lock"):
        if not pin.folder.is_dir():
            {"npm": _npm, "deb": _unpacked, "pypi": _venv}[pin.kind](pin)
    return pin.folder


def command(name: str) -> list[str]:
    """The command that starts a part, without arguments."""
    pin = pins()[name]
    if here := pin.on_this_machine:
        return [str(here)]
    folder = ensure(name)
    if not pin.bin:
        return [str(folder / pin.entry)]
    package = folder / "node_modules" / pin.bin
    bins: dict[str, str] | str = json.loads((package / "package.json").read_text())["bin"]
    script = bins if isinstance(bins, str) else next(iter(bins.values()))
    return [node(), str(package / script)]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _building(pin: Pin) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f".{pin.name}-", dir=cache(), ignore_cleanup_errors=True) as building:
        yield Path(building)
        Path(building).rename(pin.folder)


def _npm(pin: Pin) -> None:
    npm = shutil.which("npm")
    if not npm:
        raise NotRun("npm is not installed")
    node()
    packages = [f"{package}@{version}" for package, version in pin.packages.items()]
    with _building(pin) as folder:
        _run(pin, [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *packages])


def _unpacked(pin: Pin) -> None:
    """A package of the distribution, unpacked but not installed, so root permissions are not needed."""
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise NotRun(f"{' '.join(pin.packages)} is not installed, and there is no {program} to fetch it with")
    with _building(pin) as folder:
        # For root, apt-get downloads as another user, who must be able to write here.
        folder.chmod(0o755 if os.geteuid() else 0o777)
        download = ["apt-get", "download", "-qq", *pin.packages]
        try:
            _run(pin, download, folder)
        except NotRun:
            if os.geteuid():
                raise
            # A fresh machine may have no package lists yet.
            _run(pin, ["apt-get", "update", "-qq"])
            _run(pin, download, folder)
        for package in folder.glob("*.deb"):
            _run(pin, ["dpkg-deb", "--extract", str(package), str(folder)])
            package.unlink()
        if not (folder / pin.entry).is_file():
            raise NotRun(f"{pin.name}: {' '.join(pin.packages)} holds no {pin.entry}")
        folder.chmod(0o755)


def _venv(pin: Pin) -> None:
    """A venv holds absolute paths, so it is built in its final place; the link to it, made last, marks it complete."""
    place = pin.folder.with_name(pin.folder.name + ".venv")
    shutil.rmtree(place, ignore_errors=True)
    _run(pin, [sys.executable, "-m", "venv", str(place)])
    wanted = [f"{package}=={version}" for package, version in pin.packages.items()]
    _run(pin, [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted])
    link = pin.folder.with_name(pin.folder.name + ".link")
    link.unlink(missing_ok=True)
    link.symlink_to(place.name, target_is_directory=True)
    link.rename(pin.folder)


def _run(pin: Pin, words: list[str], folder: Path | None = None) -> None:
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # The tests' PYTHONPATH must not apply to the part.
    environ.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=INSTALL_LIMIT, env=environ, cwd=folder, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotRun(f"{pin.name}: installing took longer than {INSTALL_LIMIT:.0f} s") from None
    if done.returncode:
        tail = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise NotRun(f"{pin.name}: could not be installed ({' '.join(pin.packages)}): {tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Installs the real servers and coding agents that the tests use.")
    parser.add_argument("names", nargs="*", help="which parts (default: all)")
    names = parser.parse_args().names or list(pins())
    failures: dict[str, str] = {}

    def install(name: str) -> None:
        try:
            ensure(name)
        except NotRun as reason:
            failures[name] = str(reason)

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(install, names))
    for name, reason in sorted(failures.items()):
        print(f"NOT RUN {name}: {reason}")
    print(f"{len(names) - len(failures)} of {len(names)} parts are ready in {cache()}")
    return 1 if failures and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
