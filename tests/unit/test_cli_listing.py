"""`cost`, `find` and `agent listing`: what they print, also for saved lists."""

from __future__ import annotations

import json

import pytest

from toolcrib.cli import listing_commands
from toolcrib.cli.app import run
from toolcrib.errors import ConfigError

TOOL = {"name": "read", "description": "Reads a file.", "inputSchema": {"type": "object", "properties": {}}}
COST = {
    "servers": [{"server": "files", "tools": 1, "full": 90, "thin": 30, "search": 5}],
    "gateway_tools": {"full": 10, "thin": 20, "search": 50},
    "total": {"full": 100, "thin": 50, "search": 55},
    "estimated": False,
    "auto": "full",
    "listing": "auto",
    "conversation": {
        kind: dict.fromkeys(("full", "handshake", "thin", "search"), 1.0) for kind in ("cached", "uncached")
    },
    "used": [],
}


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))

    def typed(*words, code=0):
        assert run([*words]) == code
        return capsys.readouterr()

    return typed


@pytest.fixture
def saved(tmp_path):
    def save(value, **layout):
        file = tmp_path / "saved.json"
        file.write_text(json.dumps(value, **layout))
        return file

    return save


def test_the_layout_of_a_saved_list_does_not_change_its_cost(saved, cli):
    answers = [
        cli("cost", "--json", "--catalog", str(saved(value, **layout))).out
        for value in ({"tools": [TOOL]}, {"jsonrpc": "2.0", "id": 1, "result": {"tools": [TOOL]}})
        for layout in ({"indent": 4}, {"separators": (",", ":")})
    ]
    assert len(set(answers)) == 1
    assert json.loads(answers[0])["servers"][0]["server"] == "saved"


def test_a_page_of_a_list_is_counted_with_a_warning(saved, cli, caplog):
    cli("cost", "--catalog", str(saved({"tools": [TOOL], "nextCursor": "2"})))
    assert "saved.json is only a part of the list: it has `nextCursor`." in caplog.text


@pytest.mark.parametrize(("value", "error"), [([TOOL], "not a saved list"), ({"error": {}}, "has no `tools`")])
def test_another_file_is_refused_and_the_error_says_what_to_save(saved, cli, value, error):
    shown = cli("cost", "--catalog", str(saved(value)), code=ConfigError.exit_code).err
    assert error in shown
    assert "or the answer to tools/list as it is" in shown


def test_an_empty_saved_list_says_nothing_about_the_configured_servers(saved, cli):
    shown = cli("cost", "--catalog", str(saved({"tools": []})))
    assert (shown.out, shown.err) == ("No tools.\n", "")
    assert cli("find", "a", "--catalog", str(saved({"tools": []}))).out == "There are no tools.\n"


@pytest.mark.parametrize(
    ("listing", "auto", "text"),
    [
        ("auto", "full", "`auto` chooses full for these tools.\n"),
        (
            "auto",
            "thin",
            "`auto` chooses thin for these tools, but full for clients that defer definitions themselves.",
        ),
        ("search", "full", "The mode is set to search; `auto` would choose full for these tools.\n"),
    ],
)
def test_cost_says_which_mode_is_set_and_what_auto_chooses(cli, monkeypatch, listing, auto, text):
    monkeypatch.setattr(listing_commands, "perform", lambda *_: {**COST, "listing": listing, "auto": auto})
    assert text in cli("cost").out


def test_what_an_agent_saved_is_measured_by_its_own_full_list(cli, monkeypatch):
    row = {"mode": "search", "sessions": 1, "listings": 2, "calls": 1, "tokens": {"lists": 20, "searches": 30}}
    used = [{"agent": "small", "full": 40, **row}, {"agent": "gone", "full": None, **row}]
    monkeypatch.setattr(listing_commands, "perform", lambda *_: {**COST, "used": used})
    lines = [line.split() for line in cli("cost").out.splitlines()]
    assert [line[-1] for line in lines if line[:1] in (["small"], ["gone"])] == ["30", "-"]


def test_an_unknown_listing_mode_is_refused_with_those_that_exist(cli):
    shown = cli("agent", "listing", "reviewer", "serach", code=2).err
    assert "Choose one of auto, full, thin, search, handshake, default." in shown
    shown = cli("connect", "claude", "--listing", "serach", code=2).err
    assert "Invalid value for '--listing': 'serach' is not one of 'auto', 'full'," in shown
