"""Public names: legal, unique, short, and independent of the order of tools."""

from __future__ import annotations

import hashlib
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.names import GATEWAY_LIMIT, LIMITS, Names, ToolKey, folded_name, name_tools
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle

pytestmark = pytest.mark.req("BNS-8")

# Few letters, so that conflicts are common, with some illegal ones and some that differ only by case.
_part = st.one_of(
    st.text(alphabet="aAb_-.é", max_size=6), st.text(max_size=80), st.text(alphabet="ab_", min_size=30, max_size=90)
)
_server = st.one_of(_part, st.just("crib"))
pairs_of_tools = st.lists(st.tuples(_server, _part), max_size=25)


def digest(server: str, tool: str) -> str:
    return hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()


def test_a_tool_has_a_name_in_each_style() -> None:
    plain = Names(plain="read_file", mcp="mcp_files_read_file", server="files_read_file", display="files:read_file")
    assert name_tools([("files", "read_file")]) == {("files", "read_file"): plain}
    names = name_tools([("my.docs", "søk/alt")])["my.docs", "søk/alt"]
    assert (names.plain, names.mcp, names.server) == ("s_k_alt", "mcp_my_docs_s_k_alt", "my_docs_s_k_alt")
    assert names.display == "my.docs:søk/alt"
    assert name_tools([("files", "")])["files", ""].plain == "tool"


def test_a_long_name_is_cut_and_ends_in_a_hash_of_server_and_tool() -> None:
    tool = "x" * 100
    names = name_tools([("files", tool)])["files", tool]
    short = digest("files", tool)[:8]
    assert names.plain == "x" * 55 + "_" + short
    assert names.mcp == "mcp_files_" + "x" * 45 + "_" + short
    assert names.server == "files_" + "x" * 33 + "_" + short
    assert name_tools([("s", "x" * 46)])["s", "x" * 46].server == "s_" + "x" * 46, "exactly the limit"
    assert name_tools([("s", "x" * 64)])["s", "x" * 64].plain == "x" * 64, "exactly the limit"
    with pytest.raises(ValueError, match="at least 40"):
        name_tools([], limit=20)


def test_conflicting_names_get_the_servers_name_or_a_hash() -> None:
    names = name_tools([("files", "read"), ("docs", "read"), ("docs", "write")])
    assert [name.plain for name in names.values()] == ["files_read", "docs_read", "write"]
    ambiguous = [("a", "b_c"), ("a_b", "c")]
    assert [one.server for one in name_tools(ambiguous).values()] == [
        f"a_b_c_{digest(*pair)[:8]}" for pair in ambiguous
    ]
    by_case = name_tools([("s", "Read"), ("s", "read")]).values()
    for style in (NameStyle.SERVER, NameStyle.PLAIN):
        assert len({folded_name(name.of(style)) for name in by_case}) == 2


def test_a_server_cannot_take_another_servers_name() -> None:
    honest = name_tools([("files", "read_file")])["files", "read_file"]
    names = name_tools([("files", "read_file"), ("evil", "files_read_file"), ("evil", "mcp_files_read_file")])
    assert names["files", "read_file"] == honest
    assert names["evil", "files_read_file"].plain == "evil_files_read_file"


def test_a_forged_hash_does_not_take_a_name() -> None:
    forged = "b_c_" + digest("a", "b_c")[:8]
    names = name_tools([("a", "b_c"), ("a_b", "c"), ("a", forged)])
    assert names["a", "b_c"].server == "a_b_c_" + digest("a", "b_c")[:8]
    assert names["a", forged].server == f"a_{forged}_" + digest("a", forged)[:8]


@pytest.mark.req("KSI-6")
def test_commands_of_the_daemon_keep_their_names() -> None:
    names = name_tools([("crib", "system_health"), ("crib_system", "health"), ("x", "crib_system_health")])
    health = names["crib", "system_health"]
    assert (health.plain, health.server) == ("crib_system_health", "crib_system_health")
    assert health.mcp == "mcp_crib_system_health"
    assert names["crib_system", "health"].server == "crib_system_health_" + digest("crib_system", "health")[:8]
    assert names["x", "crib_system_health"].plain == "x_crib_system_health"


@given(pairs_of_tools, st.sampled_from([None, GATEWAY_LIMIT]), st.randoms(use_true_random=False))
def test_every_name_is_legal_short_unique_and_independent_of_the_order(
    pairs: list[ToolKey], limit: int | None, luck: Random
) -> None:
    names = name_tools(pairs, limit=limit)
    assert name_tools(luck.sample(pairs, len(pairs)), limit=limit) == names
    holder: dict[str, ToolKey] = {}
    for pair, named in names.items():
        for style in NameStyle:
            public = named.of(style)
            assert re.fullmatch(r"[a-zA-Z0-9_-]+", public)
            assert len(public) <= min(limit or 64, LIMITS[style])
            assert holder.setdefault(folded_name(public), pair) == pair


@given(pairs_of_tools, st.lists(st.text(alphabet="aAb_-.é", max_size=6), max_size=8))
def test_servers_without_conflicts_change_no_other_names(pairs: list[ToolKey], tools: list[str]) -> None:
    before = name_tools(pairs)
    added = [("zz-newcomer", f"qq{tool}") for tool in tools]
    after = name_tools([*pairs, *added])
    contested = {folded_name(name.of(style)) for name in name_tools(added).values() for style in NameStyle}
    if not contested & {folded_name(name.of(style)) for name in before.values() for style in NameStyle}:
        assert {pair: after[pair] for pair in before} == before


JOBS = {
    ("crib", "job_submit"): "submit_job",
    ("crib", "job_list"): "list_jobs",
    ("crib", "job_result"): "get_job_result",
    ("crib", "job_cancel"): "cancel_job",
}


@pytest.mark.req("KAI-9")
@pytest.mark.parametrize(("pair", "short"), JOBS.items())
def test_job_tools_have_one_name_in_every_style_and_aliases(pair: tuple[str, str], short: str) -> None:
    names = name_tools([*JOBS, ("files", "read_file")])[pair]
    usual = f"crib_{pair[1]}"
    assert names == Names(plain=short, mcp=short, server=short, display=":".join(pair), also=(usual, f"mcp_{usual}"))
    catalog = Catalog.build({"crib": (f'{{"name":"{pair[1]}"}}'.encode(),)}, version=1)
    found = {catalog.find(name).name for name in (short, short.upper(), usual, f"mcp_{usual}", names.display)}
    assert found == {pair[1]}


@pytest.mark.req("KAI-9")
@pytest.mark.parametrize("theirs", [("backbone", "submit_job"), ("submit", "job"), ("a", "Submit_Job")])
def test_a_servers_own_name_has_priority_over_ours(theirs: tuple[str, str]) -> None:
    made, alone = name_tools([*JOBS, theirs]), name_tools([theirs])
    assert made[theirs] == alone[theirs]
    ours = made["crib", "job_submit"]
    assert (ours.plain, ours.mcp, ours.server) == ("crib_job_submit", "mcp_crib_job_submit", "crib_job_submit")
    assert made["crib", "job_list"].server == "list_jobs"


@given(pairs_of_tools)
def test_each_name_of_a_job_tool_is_unique(pairs: list[ToolKey]) -> None:
    holder: dict[str, ToolKey] = {}
    for pair, one in name_tools([*pairs, *JOBS]).items():
        for name in (one.plain, one.mcp, one.server, *one.also):
            assert holder.setdefault(folded_name(name), pair) == pair
