"""Public names: legal, unique, short, and the same whatever came first."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.names import GATEWAY_LIMIT, LIMITS, Names, ToolKey, folded_name, name_tools
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle

# Few letters, so that conflicts are common; some that are illegal, some that differ only by case.
_part = st.one_of(
    st.text(alphabet="aAb_-.é", max_size=6),
    st.text(max_size=80),
    st.text(alphabet="ab_", min_size=30, max_size=90),
)
_server = st.one_of(_part, st.just("crib"))
pairs_of_tools = st.lists(st.tuples(_server, _part), max_size=25)


def digest(server: str, tool: str) -> str:
    return hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()


@pytest.mark.req("BNS-8")
def test_a_tool_has_a_name_in_each_style() -> None:
    assert name_tools([("files", "read_file")]) == {
        ("files", "read_file"): Names(
            plain="read_file", mcp="mcp_files_read_file", server="files_read_file", display="files:read_file"
        )
    }


@pytest.mark.req("BNS-8")
def test_illegal_characters_become_underscores_and_display_keeps_them() -> None:
    names = name_tools([("my.docs", "søk/alt")])["my.docs", "søk/alt"]
    assert names == Names(
        plain="s_k_alt", mcp="mcp_my_docs_s_k_alt", server="my_docs_s_k_alt", display="my.docs:søk/alt"
    )


@pytest.mark.req("BNS-8")
def test_an_empty_name_becomes_a_word() -> None:
    assert name_tools([("files", "")])["files", ""].plain == "tool"


@pytest.mark.req("BNS-8")
def test_a_long_name_is_cut_and_ends_in_a_hash_of_server_and_tool() -> None:
    tool = "x" * 100
    names = name_tools([("files", tool)])["files", tool]
    short = digest("files", tool)[:8]
    assert names.plain == "x" * 55 + "_" + short
    assert names.mcp == "mcp_files_" + "x" * 45 + "_" + short
    assert names.server == "files_" + "x" * 33 + "_" + short


@pytest.mark.req("BNS-8")
def test_a_name_of_exactly_the_limit_stays() -> None:
    assert name_tools([("s", "x" * 46)])["s", "x" * 46].server == "s_" + "x" * 46
    assert name_tools([("s", "x" * 64)])["s", "x" * 64].plain == "x" * 64


@pytest.mark.req("BNS-8")
def test_plain_names_that_two_servers_share_take_the_server_form_on_both() -> None:
    names = name_tools([("files", "read"), ("docs", "read"), ("docs", "write")])
    assert names["files", "read"].plain == "files_read"
    assert names["docs", "read"].plain == "docs_read"
    assert names["docs", "write"].plain == "write"


@pytest.mark.req("BNS-8")
def test_server_names_that_run_into_each_other_all_get_a_hash() -> None:
    names = name_tools([("a", "b_c"), ("a_b", "c")])
    assert names["a", "b_c"].server == "a_b_c_" + digest("a", "b_c")[:8]
    assert names["a_b", "c"].server == "a_b_c_" + digest("a_b", "c")[:8]


@pytest.mark.req("BNS-8")
def test_names_that_differ_only_by_case_are_a_conflict() -> None:
    names = name_tools([("s", "Read"), ("s", "read")])
    assert len({folded_name(name.server) for name in names.values()}) == 2
    assert len({folded_name(name.plain) for name in names.values()}) == 2


@pytest.mark.req("BNS-8")
def test_a_server_cannot_take_a_name_by_listing_it_plainly() -> None:
    honest = name_tools([("files", "read_file")])["files", "read_file"]
    names = name_tools([("files", "read_file"), ("evil", "files_read_file"), ("evil", "mcp_files_read_file")])
    assert names["files", "read_file"] == honest
    assert names["evil", "files_read_file"].plain == "evil_files_read_file"


@pytest.mark.req("BNS-8")
def test_a_forged_hash_gives_way_to_the_tool_it_belongs_to() -> None:
    forged = "b_c_" + digest("a", "b_c")[:8]
    names = name_tools([("a", "b_c"), ("a_b", "c"), ("a", forged)])
    assert names["a", "b_c"].server == "a_b_c_" + digest("a", "b_c")[:8]
    assert names["a", forged].server == f"a_{forged}_" + digest("a", forged)[:8]


@pytest.mark.req("KSI-6", "BNS-8")
def test_commands_of_the_daemon_keep_their_names_whatever_servers_are_called() -> None:
    names = name_tools([("crib", "system_health"), ("crib_system", "health"), ("x", "crib_system_health")])
    health = names["crib", "system_health"]
    assert (health.plain, health.server) == ("crib_system_health", "crib_system_health")
    assert health.mcp == "mcp_crib_system_health"
    assert names["crib_system", "health"].server == "crib_system_health_" + digest("crib_system", "health")[:8]
    assert names["x", "crib_system_health"].plain == "x_crib_system_health"


def test_a_limit_without_room_for_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 40"):
        name_tools([], limit=20)


@pytest.mark.req("BNS-8")
@given(pairs_of_tools, st.sampled_from([None, GATEWAY_LIMIT]))
def test_every_name_is_legal_short_and_means_one_tool(pairs: list[ToolKey], limit: int | None) -> None:
    names = name_tools(pairs, limit=limit)
    holder: dict[str, ToolKey] = {}
    for pair, named in names.items():
        for style in NameStyle:
            public = named.of(style)
            assert re.fullmatch(r"[a-zA-Z0-9_-]+", public)
            assert len(public) <= min(limit or 64, LIMITS[style])
            assert holder.setdefault(folded_name(public), pair) == pair


@pytest.mark.req("BNS-8")
@given(pairs_of_tools, st.randoms(use_true_random=False))
def test_names_do_not_depend_on_the_order_of_servers(pairs: list[ToolKey], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert name_tools(shuffled) == name_tools(pairs)


@pytest.mark.req("BNS-8")
@given(pairs_of_tools, st.lists(st.text(alphabet="aAb_-.é", max_size=6), max_size=8))
def test_servers_that_contest_no_name_change_none(pairs: list[ToolKey], tools: list[str]) -> None:
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
def test_the_tools_of_jobs_have_one_name_in_every_style_and_answer_to_the_usual_ones(
    pair: tuple[str, str], short: str
) -> None:
    names = name_tools([*JOBS, ("files", "read_file")])[pair]
    usual = f"crib_{pair[1]}"
    assert names == Names(plain=short, mcp=short, server=short, display=":".join(pair), also=(usual, f"mcp_{usual}"))
    catalog = Catalog.build({"crib": (f'{{"name":"{pair[1]}"}}'.encode(),)}, version=1)
    found = {catalog.find(name).name for name in (short, short.upper(), usual, f"mcp_{usual}", names.display)}
    assert found == {pair[1]}


@pytest.mark.req("KAI-9")
@pytest.mark.parametrize("theirs", [("backbone", "submit_job"), ("submit", "job"), ("a", "Submit_Job")])
def test_a_server_s_own_name_goes_before_ours(theirs: tuple[str, str]) -> None:
    made, alone = name_tools([*JOBS, theirs]), name_tools([theirs])
    assert made[theirs] == alone[theirs], "it is called what it would be called without us"
    ours = made["crib", "job_submit"]
    assert (ours.plain, ours.mcp, ours.server) == ("crib_job_submit", "mcp_crib_job_submit", "crib_job_submit")
    assert made["crib", "job_list"].server == "list_jobs"


@given(pairs_of_tools)
def test_whatever_else_there_is_each_name_of_a_job_s_tool_means_that_tool(pairs: list[tuple[str, str]]) -> None:
    names = name_tools([*pairs, *JOBS])
    meant: dict[str, set[tuple[str, str]]] = {}
    for pair, one in names.items():
        for name in (one.plain, one.mcp, one.server, *one.also):
            meant.setdefault(folded_name(name), set()).add(pair)
    assert all(len(whose) == 1 for whose in meant.values())
