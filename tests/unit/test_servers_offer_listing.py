"""A server's list of resources, templates and prompts: what is of no use is skipped, and hides nothing else."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from toolcrib.errors import ServerUnavailable
from toolcrib.servers.link import Peer
from toolcrib.servers.model import LONGEST_ADDRESS, Era, ServerAnswer
from toolcrib.servers.tool_listing import MAX_ODD, MAX_TEMPLATES, list_offers


def link_to(listed: dict[str, Any], *, is_over: bool = False) -> Any:
    async def request(method: str, *_: Any, **__: Any) -> ServerAnswer:
        return ServerAnswer(result=json.dumps(listed[method]).encode())

    peer = Peer(era=Era.LEGACY, version="2025-11-25", capabilities=frozenset({"resources"}))
    return SimpleNamespace(name="long", peer=peer, request=request, is_over=is_over)


@pytest.mark.req("BNS-4", "BNS-10")
async def test_addresses_that_are_too_long_to_be_read_are_not_listed() -> None:
    longest, longer = ("x://".ljust(LONGEST_ADDRESS + more, "a") for more in (0, 1))
    listed = {
        "resources/list": {"resources": [{"uri": uri} for uri in (longer, longest, "x://1")]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": uri} for uri in (longer, "x://{id}")]},
    }

    found = await list_offers(link_to(listed), 1.0)
    assert [json.loads(one)["uri"] for one in found.resources] == [longest, "x://1"]
    assert [json.loads(one)["uriTemplate"] for one in found.templates] == ["x://{id}"]


@pytest.mark.req("BNS-4", "BNS-10")
async def test_more_templates_than_an_address_can_be_compared_with_are_refused() -> None:
    resources = [{"uri": f"x://{n}"} for n in range(MAX_TEMPLATES + 1)]
    for more in (0, 1):
        templates = [{"uriTemplate": f"x://{n}/{{id}}"} for n in range(MAX_TEMPLATES + more)]
        listed = {
            "resources/list": {"resources": resources},
            "resources/templates/list": {"resourceTemplates": templates},
        }
        found = await list_offers(link_to(listed), 1.0)
        assert len(found.templates) == (0 if more else MAX_TEMPLATES)
        assert len(found.resources) == len(resources)


async def test_a_list_that_a_lost_connection_cut_off_does_not_count_as_empty() -> None:
    lists = link_to({}, is_over=True)

    async def request(*_: Any, **__: Any) -> ServerAnswer:
        raise ServerUnavailable("It was stopped.")

    lists.request = request
    with pytest.raises(ServerUnavailable):
        await list_offers(lists, 1.0)
    lists.is_over = False
    assert (await list_offers(lists, 1.0)).resources == ()


@pytest.mark.req("BNS-4", "BNS-10")
async def test_only_so_many_addresses_with_many_spellings_are_listed() -> None:
    odd = [{"uri": f"x://a/../{n}%252e"} for n in range(MAX_ODD + 10)]
    plain = [{"uri": f"https://h/%20{n}"} for n in range(MAX_ODD + 10)]
    listed = {"resources/list": {"resources": odd + plain}, "resources/templates/list": {"resourceTemplates": []}}
    found = await list_offers(link_to(listed), 1.0)
    assert len(found.resources) == MAX_ODD + len(plain)
