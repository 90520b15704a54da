"""A server of each era for each transport, connected by one daemon.

The servers run on the SDK of their era, and record what they receive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parts.daemon import Daemon, Home, StartDaemon
from parts.server_process import StartServer, stdio_command, stdio_entry

UPSTREAMS = {
    "stdio_modern": ("sdk_v2", "--modern-only"),
    "stdio_legacy": ("sdk_v1",),
    "http_modern": ("sdk_v2", "--modern-only"),
    "http_legacy": ("sdk_v1",),
    "sse_legacy": ("sdk_v1",),
    "ws_legacy": ("sdk_v1",),
}
SPELLED = {"ws": "websocket"}


@dataclass(frozen=True, kw_only=True)
class Upstreams:
    daemon: Daemon
    seen_files: dict[str, Path]

    def all_seen(self, upstream: str, method: str, text: str = "") -> list[dict[str, Any]]:
        """The lines in which the server recorded this."""
        file = self.seen_files[upstream]
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line["method"] == method and text in json.dumps(line)]


def connect_upstreams(
    home: Home, start_server: StartServer, start_daemon: StartDaemon, variants: Mapping[str, Any] = MappingProxyType({})
) -> Upstreams:
    """Needs the part `mcp-v1`. Each of the `variants` is one more entry for a server: its name, and what it adds."""
    servers: dict[str, Any] = {}
    seen_files = {name: home.path / f"{name}.seen" for name in UPSTREAMS}
    for name, (program, *flags) in UPSTREAMS.items():
        transport = name.partition("_")[0]
        flags += ["--seen", str(seen_files[name])]
        if transport == "stdio":
            servers[name] = stdio_entry(program, *flags)
        else:
            running = start_server([*stdio_command(program, *flags), "--transport", transport])
            servers[name] = {"url": running.url(transport), "transport": SPELLED.get(transport, transport)}
    for name, (upstream, more) in variants.items():
        servers[name] = {**servers[upstream], **more}
    daemon = start_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return Upstreams(daemon=daemon, seen_files=seen_files)
