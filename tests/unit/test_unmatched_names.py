"""Transforms that name what is not there: said where it can be known, and taken where it cannot."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.transforms import (
    DefaultArguments,
    DropTools,
    FixArguments,
    ForTools,
    KeepTools,
    PrefixTools,
    RenameArguments,
    RenameTools,
    Transform,
    UnmatchedNames,
    common_errors,
)
from toolcrib.core.provider import ToolProvider
from toolcrib.core.results import Result
from toolcrib.core.toolbox import Tools
from toolcrib.errors import UsageError
from toolcrib.events import Bus
from toolcrib.servers.model import ServerState, ServerStatus

REPO = {"type": "object", "properties": {"repo_path": {"type": "string"}, "depth": {"type": "integer"}}}


def catalog(**servers: list[str]) -> Catalog:
    listings = {
        server: tuple(msgspec.json.encode({"name": name, "inputSchema": REPO}) for name in names)
        for server, names in servers.items()
    }
    return Catalog.build(listings, version=1)


def tools(**servers: list[str]) -> Tools:
    async def call(*_: Any, timeout: float | None) -> Result:
        raise AssertionError(timeout)

    return Tools(map(OfferedTool.of, catalog(**servers).tools), call=call)


@pytest.mark.parametrize(
    ("transform", "message", "meant"),
    [
        (FixArguments({"repo_pth": "."}), "FixArguments: no tool has an argument 'repo_pth'.", "repo_path"),
        (FixArguments({"repo_path": ".", "dept": 1}), "FixArguments: no tool has an argument 'dept'.", "depth"),
        (
            FixArguments({"repo_path": "."}, tools="gti:*"),
            "FixArguments: no tool is 'gti:*'.",
            "There are: git_status, git:git_status",
        ),
        (
            FixArguments({"repo_path": "."}, tools=iter(["git_statu"])),
            "FixArguments: no tool is 'git_statu'.",
            "git_status",
        ),
        (DefaultArguments({"dpth": 1}), "DefaultArguments: no tool has an argument 'dpth'.", "depth"),
        (RenameArguments({"repopath": "folder"}), "RenameArguments: no tool has an argument 'repopath'.", "repo_path"),
        (RenameTools({"git_statsu": "s"}), "RenameTools: no tool is 'git_statsu'.", "git_status"),
        (RenameTools({"git_push": "p", "git:git_psh": "s"}), "RenameTools: no tool is 'git:git_psh'.", "git:git_push"),
    ],
)
def test_a_name_that_no_tool_has_is_refused_with_the_nearest(transform: Transform, message: str, meant: str) -> None:
    with pytest.raises(UsageError) as told:
        tools(git=["git_status", "git_push"]).transformed(transform=transform)
    assert told.value.message == message
    assert meant in told.value.remedy


@pytest.mark.parametrize(
    "transform",
    [
        KeepTools("gti:*"),
        DropTools("nothing"),
        ForTools("nothing", FixArguments({"repo_pth": "."})),
        RenameTools(lambda offer: f"{offer.name}2"),
        FixArguments({"repo_path": "."}, tools=lambda offer: offer.server == "svn"),
    ],
)
def test_filters_and_functions_may_choose_nothing(transform: Transform) -> None:
    assert tools(git=["git_status"]).transformed(transform=transform).unmatched == ()


def test_each_transform_is_asked_about_what_comes_to_it() -> None:
    both = tools(git=["git_status"], svn=["svn_log"])
    assert (
        both.transformed(transform=[RenameArguments({"repo_path": "folder"}), FixArguments({"folder": "."})]).unmatched
        == ()
    )
    assert both.transformed(transform=[PrefixTools("x"), RenameTools({"x_git_status": "state"})]).names == (
        "state",
        "x_svn_log",
    )
    with pytest.raises(UsageError, match="svn_log"):
        both.transformed(drop="svn:*", transform=RenameTools({"svn_log": "log"}))
    assert both.transformed(drop="*", transform=FixArguments({"anything": 1})).names == ()


def test_what_is_taken_is_noted_and_only_what_nobody_knows_counts() -> None:
    typo, for_git = FixArguments({"repo_pth": "."}), RenameTools({"git_status": "state"})
    taken = [
        one.transformed(transform=[typo, for_git], unmatched=UnmatchedNames.TAKEN)
        for one in (tools(git=["git_status"]), tools(svn=["svn_log"]))
    ]
    assert [len(one.unmatched) for one in taken] == [1, 2]
    assert [one.data for one in common_errors(one.unmatched for one in taken)] == [{"argument": "repo_pth"}]
    assert common_errors([]) == []


class Desk(ToolProvider):
    """One server of two tools, in some state."""

    catalog = catalog(git=["git_status"])

    def __init__(self, state: ServerState) -> None:
        self.bus = Bus()
        self.state = state

    def status(self) -> dict[str, ServerStatus]:
        return {"git": ServerStatus(name="git", state=self.state, transport="stdio")}

    async def call(self, name: str, arguments: Any = None, *, timeout: float | None = None) -> Result:
        return Result.failed(f"{name} {arguments} {timeout}")


def test_a_counter_refuses_only_where_every_server_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="repo_pth"):
        Desk(ServerState.READY).tools(transform=FixArguments({"repo_pth": "."}))
    with caplog.at_level(logging.WARNING):
        assert Desk(ServerState.FAILED).tools(transform=FixArguments({"repo_pth": "."})).names == ("git_status",)
    assert "'repo_pth'. Did you mean repo_path" in caplog.text


async def test_the_time_limit_of_a_call_by_an_offers_name_reaches_the_counter() -> None:
    result = await Desk(ServerState.READY).tools().call("git_status", {"depth": 1}, timeout=4.5)
    assert result.text == "git:git_status {'depth': 1} 4.5"


def test_an_empty_prefix_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        PrefixTools("")


def test_a_tool_that_was_renamed_is_found_with_its_server_and_either_name() -> None:
    renamed = tools(git=["git_status", "log"]).transformed(transform=RenameTools({"git_status": "state"}))
    assert renamed["git:state"] is renamed["git:git_status"] is renamed["state"]
