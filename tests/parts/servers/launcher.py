"""A stand-in for `npx`: takes a lock, writes to stderr, waits for a file, and becomes the server
`odd_stdio`, or the command line in `SERVER`.

`LAUNCHES` names a file for its lines `begin`, `end` and `asked to end`; `GO` the file to wait for. Its lock is a folder
next to `LAUNCHES`. Like npm, it ignores stdin, and removes the lock when it ends or gets SIGTERM, which takes a while.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

launches, go = Path(os.environ["LAUNCHES"]), Path(os.environ["GO"])
lock = launches.with_name("concurrency.lock")


def note(what):
    with launches.open("a") as file:
        file.write(f"{what}\n")


def asked_to_end(*_):
    time.sleep(1.2)
    lock.rmdir()
    note("asked to end")
    os._exit(143)


lock.mkdir()
signal.signal(signal.SIGTERM, asked_to_end)
note("begin")
sys.stderr.write("npm warn exec The following package was not found and will be installed: odd@1\n")
sys.stderr.flush()
while not go.exists():
    time.sleep(0.01)
lock.rmdir()
note("end")
server = [sys.executable, "-I", "-S", str(Path(__file__).with_name("odd_stdio.py"))]
server = json.loads(os.environ.get("SERVER", "null")) or server
os.execv(server[0], server)  # noqa: S606 - as npx does
