"""The full listing: every tool that the caller may use, with its whole definition.

In: a catalog, a caller, the gateway's name style. Out: the JSON array of definitions as bytes, kept until the
catalog or the caller's permissions change. The `decide` of `policy` chooses, as it does for calls.
"""

from __future__ import annotations

from collections import OrderedDict

from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.policy import Caller, Verdict, decide

_KEPT = 256
_KEPT_BYTES = 64 * 1024 * 1024


class Listings:
    def __init__(self, style: NameStyle) -> None:
        self.style = style
        self._kept: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._size = 0

    def tools(self, catalog: Catalog, caller: Caller) -> bytes:
        key = (catalog.version, caller.permission.key)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        public = catalog.by_public(self.style)
        # Whether a person will be asked, or the arguments will do, is seen at the call.
        shown = [tool.render(name) for name, tool in public.items() if decide(caller, tool).verdict is not Verdict.DENY]
        array = b"[" + b",".join(shown) + b"]"
        self._keep(key, array)
        return array

    def _keep(self, key: tuple[int, str], array: bytes) -> None:
        self._kept[key] = array
        self._size += len(array)
        while len(self._kept) > _KEPT or (self._size > _KEPT_BYTES and len(self._kept) > 1):
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)
