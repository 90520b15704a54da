"""Sockets that only this user, or only this machine, can reach.

In: a port or a path. Out: listening sockets, or an error that says what to do. `http` serves on them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from toolcrib.errors import AlreadyRunning, ConfigError, PortTaken

LONGEST_PATH = 107
"""Bytes of a unix socket's path; the kernel takes no more."""
_TRIES = 20
_BACKLOG = 1024


def loopback(port: int) -> list[socket.socket]:
    """On 127.0.0.1, and on ::1 where there is one: nobody else shall answer to `localhost` with our number."""
    for _ in range(_TRIES):
        first = _bound(socket.AF_INET, "127.0.0.1", port)
        number = first.getsockname()[1]
        try:
            return [first, _bound(socket.AF_INET6, "::1", number)]
        except PortTaken:
            first.close()
            if port:
                raise
        except OSError:
            return [first]
    raise PortTaken("No port is free on both 127.0.0.1 and ::1.", remedy="Name one: --http PORT.")


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortTaken(
                f"Port {port} of {host} cannot be used: {os.strerror(error.errno)}.",
                remedy="Choose another with --http PORT (0 takes any free one), or end the program that has it.",
                data={"port": port},
            ) from error
        raise
    return listener


@contextlib.contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """Listens at a path that only we can reach: mode 0600, in a folder that others cannot write. Removed at the end."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(
            f"{path} is too long for a unix socket ({LONGEST_PATH} bytes at most).", remedy="Choose a shorter path."
        )
    _check_folder(path.parent)
    _make_room(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be made: {error.strerror}.", remedy="Choose another path.") from error
        finally:
            os.umask(before)
        made = path.lstat()
        try:
            listener.listen(_BACKLOG)
            yield listener
        finally:
            # Another server may have taken the place of a socket that somebody removed under us.
            with contextlib.suppress(OSError):
                if os.path.samestat(path.lstat(), made):
                    path.unlink()


def _check_folder(folder: Path) -> None:
    try:
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}.", remedy="Make the folder first.") from error
    if found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"Others can write in {folder}, so they could put a socket of theirs in the place of ours.",
            remedy="Choose a folder that only you can write, such as $XDG_RUNTIME_DIR.",
        )


def _make_room(path: Path) -> None:
    """Removes the socket that a killed server left; a living one, or anything else, stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is no socket.", remedy="Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass
    raise AlreadyRunning(f"A server already listens at {path}.", remedy="Use that one, or choose another path.")
