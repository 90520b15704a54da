"""A disk that is soon full.

In: a folder and a size. Out: a file system of that size in the folder, for as long as the block lasts. It needs the
right to mount (root has it in most places); where there is none the test is counted as not run.
"""

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
        """Takes all the room that is left; the file to remove to give it back."""
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
        not_run("a small disk", "there is no `mount`")
    done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        not_run("a small disk", f"tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        # Lazily: whoever still has a file open there must not keep the folder.
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)
