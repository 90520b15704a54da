"""What a server's process gets to see of our environment.

In: our environment and a server's configuration. Out: the child's environment, with which `stdio` starts it.

A child inherits an allow-list only, for our own environment may hold the keys of every other server:
who and where the user is, locale, temporary and XDG folders, and what a machine needs to reach the network at all
(proxies, certificate stores). A proxy address that holds a password is left out: name it in the server's `env`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

MARKER = "TOOLCRIB_CHILD"
"""Set in every child, so that whatever it starts can be found again."""

_ALLOWED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
    # Windows
    | {"SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "COMSPEC", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "USERNAME"}
    | {"HOMEDRIVE", "HOMEPATH", "PROGRAMFILES", "PROGRAMDATA", "PROCESSOR_ARCHITECTURE"}
)
_ALLOWED_PREFIXES = ("LC_", "XDG_")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})


def child_environment(env: Mapping[str, str], environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """`env` is the server's own."""
    inherited = {name: value for name, value in environ.items() if inherits(name, value)}
    if "PATH" in inherited:
        inherited["PATH"] = _absolute(inherited["PATH"])
    return {**inherited, **env, MARKER: marker}


def _absolute(path: str) -> str:
    """Without relative folders, which would be looked for where the server starts. An empty one means that, too."""
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))) or os.defpath


def inherits(name: str, value: str) -> bool:
    upper = name.upper()
    if upper in _PROXIES:
        return not _holds_password(value)
    return name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)


def _holds_password(address: str) -> bool:
    try:
        return "@" in urlsplit(address if "://" in address else f"//{address}").netloc
    except ValueError:
        return True
