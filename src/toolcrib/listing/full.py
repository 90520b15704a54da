"""The full listing: every tool that the caller may use, with its whole definition.

In: a catalog, a caller, the gateway's name style. Out: the JSON array of definitions as bytes, kept until the
catalog or the caller's permissions change. The `decide` of `policy` chooses, as it does for calls.
"""

from __future__ import annotations

from collections import OrderedDict

from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.policy import Caller, Verdict, decide

_KEPT = 32


class Listings:
    def __init__(self, style: NameStyle) -> None:
        self.style = style
        self._kept: OrderedDict[tuple[int, str], bytes] = OrderedDict()

    def tools(self, catalog: Catalog, caller: Caller) -> bytes:
        key = (catalog.version, caller.profile)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        public = catalog.by_public(self.style)
        shown = [tool.render(name) for name, tool in public.items() if decide(caller, tool).verdict is Verdict.ALLOW]
        array = b"[" + b",".join(shown) + b"]"
        self._kept[key] = array
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return array
