"""A small disk that a test can fill. It needs the permission to mount, which root usually has."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from parts.report import not_run


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def fill(self) -> Path:
        """Fills the disk; returns the file to delete to free it."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (65_536, 4096, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return filler


@contextlib.contextmanager
def small_disk(folder: Path, *, kilobytes: int) -> Iterator[Disk]:
    folder.mkdir(mode=0o700, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "toolcrib-test", str(folder)]
    if not shutil.which("mount"):
        not_run("a small disk", "`mount` is missing")
    done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        not_run("a small disk", f"tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        # Lazily, because a process may still have a file open there.
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)
