"""Addresses stay as their servers wrote them, conflicts get a prefix, and hostile definitions harm nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.calls.door import CallAnswer, CallRequest
from toolcrib.catalog.offers import (
    OfferCatalog,
    loose_spellings,
    prefixes_of,
    spellings,
    with_server,
    without_server,
)
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import NameStyle
from toolcrib.core.offer_source import COMPLETE_METHOD, PROMPT_METHOD, READ_METHOD, TEMPLATE_REFERENCE, OfferSource
from toolcrib.errors import UnknownOffer
from toolcrib.identity.principal import OWNER
from toolcrib.listing import ListingCache
from toolcrib.servers.model import Offers, ServerAnswer

pytestmark = pytest.mark.req("BNS-4", "ENG-9")

ALL = frozenset({"resources", "prompts"})
AGENT = "a"


def offers(*uris: str, templates: tuple[str, ...] = (), prompts: tuple[str, ...] = ()) -> Offers:
    return Offers(
        resources=tuple(json.dumps({"uri": uri, "name": "n"}).encode() for uri in uris),
        templates=tuple(json.dumps({"uriTemplate": one, "name": "n"}).encode() for one in templates),
        prompts=tuple(json.dumps({"name": one}).encode() for one in prompts),
        capabilities=ALL,
    )


def source(tools: dict[str, Any] | None = None, **listed: Offers) -> OfferSource:
    made = OfferSource()
    update(made, tools, **listed)
    return made


def update(made: OfferSource, tools: dict[str, Any] | None = None, **listed: Offers) -> OfferCatalog:
    catalog = Catalog.build({name: (json.dumps(one).encode(),) for name, one in (tools or {}).items()}, version=1)
    made.update_offers(listed, catalog, style=NameStyle.SERVER, limit=48)
    return made.offers


def read(made: OfferSource, uri: str) -> tuple[str, str]:
    found = made.find_offer(READ_METHOD, uri, AGENT)
    return found.server, found.name


def uris(catalog: OfferCatalog) -> list[str]:
    return [one.shown_as for one in (*catalog.resources, *catalog.templates)]


def test_an_address_of_one_server_stays_and_one_of_two_gets_its_servers_name() -> None:
    made = source(a=offers("x://1", "x://both"), b=offers("x://both", "ui://view"), c=offers("ui://view"))
    assert uris(made.offers) == ["x://1", "a+x://both", "b+x://both", "ui://b+view", "ui://c+view"]
    assert read(made, "x://1") == ("a", "x://1")
    assert read(made, "b+x://both") == ("b", "x://both")
    assert read(made, "ui://c+view") == ("c", "ui://view")
    with pytest.raises(UnknownOffer, match=r"Several servers may have the resource 'x://both'") as caught:
        read(made, "x://both")
    assert caught.value.remedy == "Name the server: a+x://both, b+x://both, c+x://both."


def test_a_prefix_that_nobody_needs_is_understood_too() -> None:
    made = source(a=offers("x://1"), b=offers())
    assert read(made, "a+x://1") == ("a", "x://1")
    assert read(made, "b+x://1") == ("b", "x://1")


def test_the_contents_of_a_prefixed_address_have_the_prefix() -> None:
    made = source(a=offers("x://both"), b=offers("x://both"))
    tool = made.find_offer(READ_METHOD, "b+x://both", AGENT)
    result = b'{"contents":[{"uri":"x://both","text":"t","_meta":{"n":1.0}},{"uri":"x://part","text":""}],"extra":1}'
    made_call = CallAnswer(ServerAnswer(result=result), tool)
    public = made.public_answer(CallRequest(tool="b+x://both", method=READ_METHOD), made_call)
    assert json.loads(public.result or b"") == {
        "contents": [{"uri": "b+x://both", "text": "t", "_meta": {"n": 1.0}}, {"uri": "x://part", "text": ""}],
        "extra": 1,
    }
    alone = source(b=offers("x://both"))
    request = CallRequest(tool="x://both", method=READ_METHOD)
    assert alone.public_answer(request, made_call).result is result
    for odd in (b"[]", b'{"contents":3}', b'{"contents":[{"text":"no address"}]}', b"not json"):
        answer = CallAnswer(ServerAnswer(result=odd), tool)
        assert made.public_answer(CallRequest(tool="b+x://both", method=READ_METHOD), answer).result == odd


def test_prefixes_are_legal_schemes_and_unique() -> None:
    names = ["My Files", "my-files", "1st", "ünï", "files", "a+b"]
    prefixes = prefixes_of(names)
    assert prefixes["files"] == "files"
    assert len(set(prefixes.values())) == len(names)
    for name, prefix in prefixes.items():
        assert prefix[0].isalpha()
        assert prefix.isascii()
        assert without_server(with_server("x://a", prefix)) == (prefix, "x://a"), name
        assert without_server(with_server("ui://a", prefix)) == (prefix, "ui://a"), name


def test_a_scheme_with_a_plus_is_not_a_prefix() -> None:
    made = source(a=offers("git+ssh://host/repo"), b=offers())
    assert read(made, "git+ssh://host/repo") == ("a", "git+ssh://host/repo")
    assert without_server("data:text/plain,a+b://c") is None
    assert without_server("ui://a/b+c") is None


def test_an_unlisted_address_belongs_to_the_closest_template() -> None:
    made = source(
        a=offers(templates=("x://{path}", "x://data/{id}")),
        b=offers(templates=("x://data/{id}/raw", "y://{+path}")),
        c=offers(templates=("y://{+path}",)),
    )
    assert read(made, "x://anything") == ("a", "x://anything")
    assert read(made, "x://data/1") == ("a", "x://data/1")
    assert read(made, "x://data/1/raw") == ("b", "x://data/1/raw")
    with pytest.raises(UnknownOffer, match="Several servers"):
        read(made, "y://1")
    assert [one for one in uris(made.offers) if one.endswith("y://{+path}")] == ["b+y://{+path}", "c+y://{+path}"]
    assert made.find_offer(COMPLETE_METHOD, f"{TEMPLATE_REFERENCE}c+y://{{+path}}", AGENT).server == "c"
    with pytest.raises(UnknownOffer, match="no resource template"):
        made.find_offer(COMPLETE_METHOD, f"{TEMPLATE_REFERENCE}y://{{+path}}", AGENT)


def test_an_ambiguous_address_names_only_servers_that_the_caller_may_use() -> None:
    made = source(
        a=offers(templates=("x://{id}",)), b=offers(templates=("x://{id}",)), c=offers(templates=("x://{id}",))
    )

    def of(*servers: str) -> Any:
        return lambda tool: tool.server in servers

    assert made.find_offer(READ_METHOD, "x://1", AGENT, of("b")).server == "b"
    with pytest.raises(UnknownOffer) as caught:
        made.find_offer(READ_METHOD, "x://1", AGENT, of("b", "c"))
    assert caught.value.remedy == "Name the server: b+x://1, c+x://1."
    with pytest.raises(UnknownOffer, match="No server offers"):
        made.find_offer(READ_METHOD, "x://1", AGENT, of())


def test_templates_match_in_linear_time() -> None:
    """A backtracking matcher would not end."""
    hostile = "x://" + "{a}b" * 500 + "c"
    made = source(a=offers(templates=(hostile,)), b=offers(templates=("x://{only}c",)))
    assert read(made, "x://" + "b" * 4000 + "c") == ("a", "x://" + "b" * 4000 + "c")
    assert read(made, "x://" + "b" * 400 + "c") == ("b", "x://" + "b" * 400 + "c")
    with pytest.raises(UnknownOffer):
        read(made, "x://" + "b" * 4000 + "d")


@given(st.text(alphabet="ab{}/:+", max_size=12), st.text(alphabet="ab{}/:+", max_size=12))
def test_no_template_and_no_address_breaks_the_search(template: str, uri: str) -> None:
    made = source(a=offers("x://1", templates=(template,) if template else ()), b=offers("x://1"))
    try:
        found = made.find_offer(READ_METHOD, uri, AGENT)
    except UnknownOffer:
        return
    assert found.server in ("a", "b")
    assert uri.endswith(found.name.removeprefix("ui://"))


def linked(*links: Any) -> bytes:
    return json.dumps({"content": [{"type": "resource_link", "name": "n", "uri": uri} for uri in links]}).encode()


def test_a_link_in_a_result_can_be_read_at_its_server() -> None:
    made = source(a=offers(), b=offers())
    with pytest.raises(UnknownOffer, match="Several servers"):
        read(made, "x://linked")
    made.remember_links(AGENT, "b", linked("x://linked", ""))
    assert read(made, "x://linked") == ("b", "x://linked")
    with pytest.raises(UnknownOffer, match="Several servers"):
        made.find_offer(READ_METHOD, "x://linked", "another agent")
    update(made, a=offers())
    assert read(made, "x://linked") == ("a", "x://linked")
    made.remember_links(AGENT, "a", linked(*(f"x://{number}" for number in range(3000))))
    assert len(made.links) == 1000
    for odd in (b'{"content":"\\"resource_link\\""}', b"[" * 100_000, b"\xff", linked(5), b"x" * 2_000_000):
        made.remember_links(AGENT, "a", odd)


def test_an_app_belongs_to_the_server_of_its_tool_even_without_resources() -> None:
    tools = {name: {"name": "t", "_meta": {"ui": {"resourceUri": f"ui://{name}"}}} for name in ("a", "b")}
    made = source(tools, a=Offers(), b=Offers())
    assert read(made, "ui://b") == ("b", "ui://b")
    tools = {name: {"name": "t", "_meta": {"ui": {"resourceUri": "ui://same"}}} for name in ("a", "b")}
    made = source(tools, a=Offers(), b=Offers())
    assert read(made, "ui://a+same") == ("a", "ui://same")
    assert made.offers.public_uri("b", "ui://same") == "ui://b+same"


def test_toolcribs_own_servers_have_only_what_they_list() -> None:
    made = source(a=offers("x://1"), crib=offers("crib://servers", templates=("crib://jobs/{id}",)))
    assert read(made, "x://2") == ("a", "x://2")
    assert read(made, "crib://jobs/7") == ("crib", "crib://jobs/7")
    assert made.offers.lists("crib://servers")
    assert not made.offers.lists("x://2")
    with pytest.raises(UnknownOffer, match="No server offers"):
        read(source(crib=offers("crib://servers")), "x://2")


def test_an_owners_resource_stays_one_under_its_prefix() -> None:
    definition = b'{"uri":"crib://approvals","name":"n","annotations":{"toolcrib/owner":true}}'
    made = source(crib=Offers(resources=(definition,), capabilities=ALL))
    for uri in ("crib://approvals", "crib+crib://approvals"):
        assert made.find_offer(READ_METHOD, uri, AGENT) is made.offers.resources[0].tool
    assert made.offers.displayed("resource:crib:crib://approvals") is made.offers.resources[0].tool


def test_prompts_have_names_in_every_style_and_differ_by_case() -> None:
    made = source(a=offers(prompts=("review", "Review", "a b")), b=offers(prompts=("review",)))

    def get(name: str) -> tuple[str, str]:
        found = made.find_offer(PROMPT_METHOD, name, AGENT)
        return found.server, found.name

    names = [one.shown_as for one in made.offers.prompts]
    assert len({name.lower() for name in names}) == 4
    assert [get(name) for name in names] == [(one.tool.server, one.tool.name) for one in made.offers.prompts]
    assert get("prompt:a:Review") == ("a", "Review")
    assert get("a:Review") == ("a", "Review")
    assert get("prompt:a:review") == ("a", "review")
    assert get("b_review") == get("B_REVIEW") == ("b", "review")
    assert get("mcp_b_review") == ("b", "review")
    with pytest.raises(UnknownOffer, match="no prompt"):
        get("review")


def test_what_did_not_change_is_the_same_object() -> None:
    """Clients are told only about lists that changed, and decisions are cached by tool."""
    made = source(a=offers("x://1", "x://2", prompts=("p",)))
    before = made.offers
    assert update(made, a=offers("x://1", "x://2", prompts=("p",))) is before
    after = update(made, a=offers("x://1", "x://2", prompts=("p", "q")))
    assert after.resources is before.resources
    assert after.templates is before.templates
    assert after.prompts[0].tool is before.prompts[0].tool
    more = update(made, a=offers("x://1", "x://3", prompts=("p", "q")))
    assert more.resources[0].tool is before.resources[0].tool
    assert more.prompts is after.prompts
    conflict = update(made, a=offers("x://1", prompts=("p", "q")), b=offers("x://1"))
    assert uris(conflict) == ["a+x://1", "b+x://1"]


def test_definitions_are_listed_with_their_bytes() -> None:
    rest = b'"size":1.0,"icons":[],"_meta":{"big":123456789012345678901234567890}}'
    made = source(a=Offers(resources=(b'{"uri":"x:\\/\\/\\u0061",' + rest,), capabilities=ALL))
    listed = ListingCache(NameStyle.SERVER).offers(made.offers, OWNER.permission(), "resources")
    assert listed == b'[{"uri":"x://a",' + rest + b"]"
    assert made.offers.resources[0].tool.decoded()["_meta"] is not None


def test_an_address_too_long_to_read_is_refused_shortly() -> None:
    made = source(a=offers())
    with pytest.raises(UnknownOffer) as caught:
        read(made, "x://" + "a" * 100_000)
    assert len(caught.value.text()) < 400


def test_many_resources_are_found() -> None:
    many = [f"x://{number}" for number in range(10_000)]
    made = source(a=offers(*many), b=offers(*(f"y://{number}" for number in range(10_000))))
    assert len(made.offers.resources) == 20_000
    assert read(made, "x://9999") == ("a", "x://9999")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("prompt:a:p", (OfferKind.PROMPT, "a", "p")),
        ("resource:a:x://1", (OfferKind.RESOURCE, "a", "x://1")),
        ("resource:a:x://unlisted", (OfferKind.RESOURCE, "a", "x://unlisted")),
        ("resource:b:x://1", (OfferKind.RESOURCE, "b", "x://1")),
        ("resource:c:x://1", None),
        ("prompt:a:q", None),
    ],
)
def test_names_in_rules_find_what_they_name(name: str, found: tuple[OfferKind, str, str] | None) -> None:
    made = source(a=offers("x://1", prompts=("p",)), b=offers("x://1"))
    if found is None:
        with pytest.raises(UnknownOffer):
            made.offers.displayed(name)
    else:
        tool: Tool = made.offers.displayed(name)
        assert (tool.kind, tool.server, tool.name) == found
        assert tool.display == name


@pytest.mark.parametrize(
    ("uri", "read_as"),
    [
        ("file:///a/../etc/x", "file:///etc/x"),
        ("file:///a/%2e%2e/etc/x", "file:///etc/x"),
        ("file:///a/%252e%252e/etc/x", "file:///etc/x"),
        ("file:///a/%25252e%2525252e/etc/x", "file:///etc/x"),
        ("file:///a\\..\\etc\\x", "file:///etc/x"),
        ("file:///a//../etc/x", "file:///etc/x"),
        ("file:///a/./../etc/x", "file:///etc/x"),
        ("file:///../etc/x", "file:///etc/x"),
        ("file:///%65tc/x", "file:///etc/x"),
        ("file:////etc//x", "file:///etc/x"),
        ("repo://one/../two/x", "repo://two/x"),
        ("repo://one/../two/x", "repo://one/two/x"),
    ],
)
def test_the_spellings_of_an_address(uri: str, read_as: str) -> None:
    assert read_as in spellings(uri)
    assert uri in spellings(uri)


def test_loose_spellings_leave_out_what_servers_ignore() -> None:
    for uri in ("file:/etc/x", "FILE://localhost/etc/x", "file:///etc/x?a", "file:///etc/x#b", "file:///etc/x/"):
        assert "file:///etc/x" in loose_spellings(uri), uri
    for host in ("localhost", "localhost:80", "other.example", "user@localhost"):
        assert "file:///etc/x" in loose_spellings(f"file://{host}/etc/x")
    assert "file:///etc/x" in loose_spellings("file:///e\ntc/x")
    assert spellings("x://a/b.txt") == loose_spellings("x://a/b.txt") == {"x://a/b.txt"}


def test_no_server_takes_the_prefixed_addresses_of_another() -> None:
    own = offers("x://1", "ui://view")
    taking = offers("x://1", "a+x://1", "a+x://2", "ui://view", "ui://a+view", templates=("a+x://{id}",))
    made = source(a=own, z=taking)
    assert read(made, "a+x://1") == ("a", "x://1")
    assert read(made, "ui://a+view") == ("a", "ui://view")
    for shown in ("z+a+x://1", "z+a+x://2", "ui://z+a+view"):
        assert shown in uris(made.offers)
        assert read(made, shown) == ("z", without_server(shown)[1])  # type: ignore[index]
    assert "z+a+x://{id}" in uris(made.offers)


@pytest.mark.parametrize("uri", [" file:///etc/x", "\0file:///etc/x", "file:///src/.\t./etc/x", "file:///etc/x\u00a0"])
def test_letters_that_parsers_remove_make_an_address_unknown(uri: str) -> None:
    made = source(files=offers("file:///etc/x", templates=("{+uri}",)))
    for spelled in (uri, f"files+{uri}"):
        with pytest.raises(UnknownOffer, match="No server offers the resource"):
            read(made, spelled)


@given(st.text(max_size=60), st.text(alphabet="./%2e5c\\?#:a", max_size=200))
def test_spellings_end_for_any_text(one: str, other: str) -> None:
    for uri in (one, other, f"x://{other}", f"x://{'%25' * 1000}{one}"):
        assert uri in loose_spellings(uri)
        assert len(loose_spellings(uri)) < 500
