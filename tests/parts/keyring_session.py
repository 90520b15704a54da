"""A session with a real keyring: a D-Bus of its own, and GNOME Keyring, unlocked.

In: a folder. Out: the address of the session's bus. Without the two programs, the test is reported as not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import secretstorage
from jeepney.io.blocking import open_dbus_connection

from parts import fleet
from parts.report import not_run
from parts.waiting import wait_for
from toolcrib.credentials.system_keyring import KeyringEntry, SystemKeyring
from toolcrib.errors import StoreError

# No services are listed, so nothing can be started on demand, such as a dialog.
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>
"""


@dataclass
class KeyringSession:
    bus: str
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def lock(self) -> None:
        """Locks it, as a desktop does with its screen. Nobody can answer its question for the password."""
        with contextlib.closing(open_dbus_connection(self.bus)) as connection:
            secretstorage.get_default_collection(connection).lock()

    def hang(self) -> None:
        self._processes[-1].send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ends it, as a logout does."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            process.send_signal(signal.SIGCONT)
            process.wait(20)


@contextlib.contextmanager
def keyring_session() -> Iterator[KeyringSession]:
    try:
        bus, keyring = fleet.command("dbus")[0], fleet.command("gnome-keyring")[0]
    except fleet.NotRun as reason:
        not_run("a keyring", str(reason))
    with tempfile.TemporaryDirectory(prefix="tc-bus-", dir="/tmp", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "bus.conf").write_text(_CONFIG.format(socket=folder / "bus"))
        session = KeyringSession(bus=f"unix:path={folder / 'bus'}")
        env = {"PATH": os.environ["PATH"], "HOME": place, "XDG_RUNTIME_DIR": place, "LC_ALL": "C"}
        env |= {"DBUS_SESSION_BUS_ADDRESS": session.bus, "GSETTINGS_BACKEND": "memory"}
        if libraries := [str(one) for one in Path(keyring).parents[1].glob("lib/*-linux-gnu")]:
            env["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        output = (folder / "output").open("wb")
        try:
            words = [bus, "--nofork", "--nopidfile", f"--config-file={folder / 'bus.conf'}"]
            session._processes.append(subprocess.Popen(words, env=env, stdout=output, stderr=output))
            wait_for((folder / "bus").exists, "the bus")
            words = [keyring, "--foreground", "--unlock", "--components=secrets"]
            daemon = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output)
            session._processes.append(daemon)
            assert daemon.stdin
            daemon.stdin.write(b"password of the keyring")
            daemon.stdin.close()
            wait_for(lambda: _answers(session.bus), "the keyring")
            yield session
        finally:
            output.close()
            session.end()


def _answers(bus: str) -> bool:
    try:
        entry = SystemKeyring().put("probe", b"x", bus=bus)
    except StoreError:
        return False
    return entry == KeyringEntry(account="probe", bus=bus)
