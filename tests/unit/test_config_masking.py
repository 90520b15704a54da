"""No dress makes a known secret pass."""

from __future__ import annotations

import base64
import json
import string
import threading
from urllib.parse import quote, quote_plus

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config import masking
from toolcrib.config.from_code import server_config
from toolcrib.config.masking import Masker, mask_text, mask_tree, names_a_secret, secrets_of
from toolcrib.config.model import Config, DaemonSettings, JobSettings

LIMIT = 60.0
SECRET = 'p@ss/w"ord+é?1'

SECRETS = st.text(string.ascii_letters + string.digits + "+/=?&%\"'\\ é", min_size=8, max_size=40).filter(str.strip)
SURROUNDINGS = st.text(string.ascii_letters + ":/ .", max_size=20)


def redactor(*values: str) -> Masker:
    return Masker(values)


@pytest.mark.req("KSI-5")
@given(SECRETS, SURROUNDINGS, SURROUNDINGS)
def test_a_known_value_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    assert secret not in redactor(secret)(before + secret + after)


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize(
    "dressed",
    [
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        "".join(f"%{byte:02x}" for byte in SECRET.lower().encode()),
        "".join(f"%{byte:02X}" for byte in SECRET.encode()),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
    ],
)
def test_its_url_and_json_forms_are_hidden_too(dressed: str) -> None:
    lowered = SECRET.lower() if dressed.islower() else SECRET
    masked = redactor(lowered)(f"x={dressed}&y=1")
    assert dressed not in masked
    assert masked == "x=****&y=1"


@pytest.mark.req("KSI-5")
@given(SECRETS, st.binary(max_size=7), st.binary(max_size=7), st.booleans())
def test_its_base64_is_hidden_whatever_stands_before_and_behind(
    secret: str, before: bytes, after: bytes, urlsafe: bool
) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    encoded = encode(before + secret.encode() + after).decode()
    masked = redactor(secret)(f"<{encoded}>")
    # What the neighbours do not share in is gone: at most four bits of it are left at either end.
    whole = encode(secret.encode()).decode().rstrip("=")
    for piece in range(len(encoded) - 7):
        visible = encoded[piece : piece + 8]
        if visible in masked:
            decoded = base64.urlsafe_b64decode(visible.replace("+", "-").replace("/", "_"))
            assert secret.encode()[2:-2] not in decoded
    assert whole[:-1] not in masked


@pytest.mark.req("KSI-5")
def test_what_only_looks_like_a_secret_is_hidden_as_well() -> None:
    masked = redactor()("curl -H 'Authorization: Bearer abcdef123456' https://user:pass@host/?token=zzz")
    assert not any(secret in masked for secret in ("abcdef123456", "user:pass", "zzz"))


def test_a_secret_that_becomes_known_later_is_hidden_from_then_on() -> None:
    redact = Masker()
    assert redact("see hunter2hunter2") == "see hunter2hunter2"
    redact.learn(["hunter2hunter2"])
    assert redact("see hunter2hunter2") == "see ****"


@pytest.mark.req("KSI-5")
def test_what_one_thread_masks_while_another_learns_of_a_secret_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redact = Masker()
    begun, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> str:
        if threading.current_thread().name == "slow":
            begun.set()
            assert go_on.wait(LIMIT)
        return mask_text(text)

    monkeypatch.setattr(masking, "mask_text", slow)
    thread = threading.Thread(target=redact, args=("see hunter2hunter2",), name="slow")
    thread.start()
    try:
        assert begun.wait(LIMIT)
        redact.learn(["hunter2hunter2"])
        redact("something else")
    finally:
        go_on.set()
        thread.join(LIMIT)
    assert redact("see hunter2hunter2") == "see ****"


def test_an_empty_value_hides_nothing() -> None:
    assert redactor("")("plain") == "plain"


@pytest.mark.req("KSI-5")
def test_in_a_tree_keys_and_what_stands_under_a_telling_name_are_hidden() -> None:
    tree = {
        "hunter2hunter2": [1, {"path": "x/hunter2hunter2"}],
        "api_key": "anything",
        "password": 12345,
        "tokens": ["a", "b"],
        "author": "Ada",
        "flag": True,
        "none": None,
    }
    assert mask_tree(tree, redactor("hunter2hunter2"), names_a_secret) == {
        "****": [1, {"path": "x/****"}],
        "api_key": "****",
        "password": "****",
        "tokens": ["****", "****"],
        "author": "Ada",
        "flag": True,
        "none": None,
    }


@pytest.mark.parametrize(
    ("name", "tells"), [("apiKey", True), ("DB_PASSWORD", True), ("token", True), ("path", False), ("keyboard", False)]
)
def test_names_that_tell_of_a_secret(name: str, tells: bool) -> None:
    assert names_a_secret(name) is tells


def test_secrets_that_overlap_leave_nothing_between_them() -> None:
    assert redactor("abcdefgh", "efghijkl").known("<abcdefghijkl>") == "<****>"


def test_a_mask_that_names_is_not_masked_itself() -> None:
    mask = Masker({"secret-1": "KEY of server docs", "server": "WORD of server other"})
    assert mask.named("a secret-1 server") == "a [secret KEY of server docs] [secret WORD of server other]"


def test_a_value_of_several_lines_is_hidden_line_by_line() -> None:
    assert redactor("first line\nsecond line\n").known("has second line") == "has ****"


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("written", ['p@ss!(w)"ord', "p%40ss%21(w)%22ord", "p%40ss!(w)%22ord"])
def test_a_secret_in_an_url_is_hidden_as_it_is_written_as_clients_send_it_and_as_servers_read_it(written: str) -> None:
    far = server_config("far", {"url": f"https://h/mcp?key={quote(written, safe='%!()@')}"})
    mask = Masker(secrets_of(Config(servers={"far": far}))).known
    for shape in ('p@ss!(w)"ord', quote('p@ss!(w)"ord', safe=""), str(httpx2.URL(far.url)).partition("key=")[2]):
        assert mask(f"<{shape}>") == "<****>"


def test_every_secret_of_a_configuration_says_whose_it_is() -> None:
    entry = {"url": "https://h/mcp?key=in-the-url", "headers": {"Authorization": "Bearer in-a-header"}}
    far = server_config("far", entry)
    near = server_config("near", {"command": "x", "args": ["--token", "in-the-args"], "env": {"KEY": "in-the-env"}})
    jobs = JobSettings(api_keys={"openai": "in-the-jobs"})
    settings = DaemonSettings(store="postgresql://me:in-the-store@h/db", jobs=jobs)
    mask = Masker(secrets_of(Config(servers={"far": far, "near": near}, settings=settings)))
    assert mask.named("in-the-url, in-a-header, in-the-args, in-the-env, in-the-jobs, in-the-store") == (
        "[secret url of server far], [secret Authorization of server far], [secret args of server near], "
        "[secret KEY of server near], [secret api_keys.openai of jobs], [secret store]"
    )
