"""Finds the resources and prompts that requests name.

In: what servers offer, their tools, and the results of calls. Out: the current `OfferCatalog`, and the server of an
address. `Project` and `Kit` are offer sources.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from toolcrib.calls.door import CallAnswer, CallRequest
from toolcrib.catalog.offers import OfferCatalog, with_addresses
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.servers.model import Offers, ServerAnswer

READ_METHOD = "resources/read"
PROMPT_METHOD = "prompts/get"
COMPLETE_METHOD = "completion/complete"
TEMPLATE_REFERENCE = "template:"
"""Before the text of a template that a request for completion names; otherwise it names a prompt."""
_NOTHING = Offers()
_MAX_LINKS = 1000
_LARGEST_WITH_LINKS = 1024 * 1024


class _Link(msgspec.Struct):
    type: str = ""
    uri: str = ""


class _Linked(msgspec.Struct):
    content: list[_Link] = []


class OfferSource:
    def __init__(self) -> None:
        self.offers = OfferCatalog()
        """All current resources and prompts. A new snapshot replaces it after a change."""
        self.links: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The servers of the addresses that results of tools had lately, by agent."""

    def update_offers(self, listed: Mapping[str, Offers], catalog: Catalog, *, style: NameStyle, limit: int) -> None:
        """`listed` has the offers of each server; `limit` is for the names of prompts."""
        apps: dict[str, set[str]] = {}
        for tool in catalog.tools:
            if "_meta" in tool.fields and (uri := tool.app_uri):
                apps.setdefault(tool.server, set()).add(uri)
        self.offers = OfferCatalog.build(
            {name: offers for name, offers in listed.items() if offers != _NOTHING or name in apps},
            {name: frozenset(uris) for name, uris in apps.items()},
            style=style,
            limit=limit,
            previous=self.offers,
        )

    def find_offer(self, method: str, name: str, agent: str, shown: Callable[[Tool], bool] | None = None) -> Tool:
        """What a request names: a prompt, a template to complete, or a resource. Raises `UnknownOffer`."""
        if method == PROMPT_METHOD or (method == COMPLETE_METHOD and not name.startswith(TEMPLATE_REFERENCE)):
            return self.offers.prompt(name)
        if method == COMPLETE_METHOD:
            return self.offers.template(name.removeprefix(TEMPLATE_REFERENCE))
        return self.offers.resource(name, self.links.get((agent, name), ""), shown)

    def public_answer(self, request: CallRequest, made: CallAnswer) -> ServerAnswer:
        """The server's answer; in that to a read, addresses are public."""
        answer, tool = made.answer, made.tool
        if request.method != READ_METHOD or answer.result is None or request.tool == tool.name:
            return answer
        return ServerAnswer(result=with_addresses(answer.result, self.offers, tool))

    def remember_links(self, agent: str, server: str, result: bytes) -> None:
        """The resources that a result links to can be read by the agent that got it, although no list has them."""
        if len(result) > _LARGEST_WITH_LINKS:
            return
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            for link in msgspec.json.decode(result, type=_Linked).content[:_MAX_LINKS]:
                if link.type == "resource_link" and link.uri:
                    self.links[agent, link.uri] = server
                    self.links.move_to_end((agent, link.uri))
        while len(self.links) > _MAX_LINKS:
            self.links.popitem(last=False)
