"""Known secrets are masked in every form, and text for people has no deceptive characters."""

import base64
import json
import string
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, quote_plus

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config import masking
from toolcrib.config.from_code import server_config
from toolcrib.config.job_settings import JobSettings
from toolcrib.config.masking import Masker, mask_text, mask_tree, names_a_secret, secrets_of
from toolcrib.config.model import Config, DaemonSettings
from toolcrib.config.show import visible

LIMIT = 60.0
SECRET = 'p@ss/w"ord+é?1'

SECRETS = st.text(string.ascii_letters + string.digits + "+/=?&%\"'\\ é", min_size=8, max_size=40).filter(str.strip)
SURROUNDINGS = st.text(string.ascii_letters + ":/ .", max_size=20)


@pytest.mark.req("KSI-5")
@given(SECRETS, SURROUNDINGS, SURROUNDINGS)
def test_a_known_value_is_hidden_anywhere_in_a_text(secret, before, after):
    assert secret not in Masker([secret])(before + secret + after)


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize(
    "encoded",
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
def test_url_and_json_forms_are_hidden_too(encoded):
    lowered = SECRET.lower() if encoded.islower() else SECRET
    masked = Masker([lowered])(f"x={encoded}&y=1")
    assert encoded not in masked
    assert masked == "x=****&y=1"


@pytest.mark.req("KSI-5")
@given(SECRETS, st.binary(max_size=7), st.binary(max_size=7), st.booleans())
def test_base64_is_hidden_with_any_text_before_and_after(secret, before, after, urlsafe):
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    encoded = encode(before + secret.encode() + after).decode()
    masked = Masker([secret])(f"<{encoded}>")
    # What the neighbours do not share in is gone: at most four bits of it are left at either end.
    whole = encode(secret.encode()).decode().rstrip("=")
    for piece in range(len(encoded) - 7):
        visible = encoded[piece : piece + 8]
        if visible in masked:
            decoded = base64.urlsafe_b64decode(visible.replace("+", "-").replace("/", "_"))
            assert secret.encode()[2:-2] not in decoded
    assert whole[:-1] not in masked


@pytest.mark.req("KSI-5")
def test_text_that_looks_like_a_secret_is_hidden_too():
    masked = Masker()("curl -H 'Authorization: Bearer abcdef123456' https://user:pass@host/?token=zzz")
    assert not any(secret in masked for secret in ("abcdef123456", "user:pass", "zzz"))
    names = {"apiKey": True, "DB_PASSWORD": True, "token": True, "path": False, "keyboard": False}
    assert {name: names_a_secret(name) for name in names} == names


def test_later_overlapping_empty_and_multiline_secrets_are_handled():
    redact = Masker()
    assert redact("see hunter2hunter2") == "see hunter2hunter2"
    redact.learn(["hunter2hunter2"])
    assert redact("see hunter2hunter2") == "see ****"
    assert Masker([""])("plain") == "plain"
    assert Masker(["abcdefgh", "efghijkl"]).known("<abcdefghijkl>") == "<****>"
    assert Masker(["first line\nsecond line\n"]).known("has second line") == "has ****"
    mask = Masker({"secret-1": "KEY of server docs", "server": "WORD of server other"})
    assert mask.named("a secret-1 server") == "a [secret KEY of server docs] [secret WORD of server other]"


@pytest.mark.req("KSI-5")
def test_text_masked_while_another_thread_learns_a_secret_is_not_cached(monkeypatch):
    redact = Masker()
    begun, go_on = threading.Event(), threading.Event()

    def slow(text):
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


@pytest.mark.req("KSI-5")
def test_keys_and_values_with_a_secret_name_are_hidden_in_a_tree():
    kept = {"author": "Ada", "flag": True, "none": None}
    tree = {"hunter2hunter2": [1, {"path": "x/hunter2hunter2"}], "api_key": "anything", "password": 12345}
    masked = {"****": [1, {"path": "x/****"}], "api_key": "****", "password": "****", "tokens": ["****", "****"]}
    found = mask_tree({**tree, "tokens": ["a", "b"], **kept}, Masker(["hunter2hunter2"]), names_a_secret)
    assert found == {**masked, **kept}


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("written", ['p@ss!(w)"ord', "p%40ss%21(w)%22ord", "p%40ss!(w)%22ord"])
def test_a_secret_in_a_url_is_hidden_as_written_as_sent_and_as_decoded(written):
    far = server_config("far", {"url": f"https://h/mcp?key={quote(written, safe='%!()@')}"})
    mask = Masker(secrets_of(Config(servers={"far": far}))).known
    for shape in ('p@ss!(w)"ord', quote('p@ss!(w)"ord', safe=""), str(httpx2.URL(far.url)).partition("key=")[2]):
        assert mask(f"<{shape}>") == "<****>"


def test_the_mask_of_every_secret_in_a_configuration_names_its_owner():
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


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("rm\u200b -rf\u2060", r"rm\u200b -rf\u2060"),
        ("a\x1b[2K\r\nb\x9b", r"a\x1b[2K\r\nb\x9b"),
        ("ls\u00a0-la\u3164\ufe0f\u2800", r"ls\xa0-la\u3164\ufe0f\u2800"),
        ("\u3161rf \u23afrf \ufe58rf \u141fetc", r"\u3161rf \u23afrf \ufe58rf \u141fetc"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("p\u0430ypal.com", r"p\u0430ypal.com"),
        ("/etc/p\u03b1sswd", r"/etc/p\u03b1sswd"),
        ("\u0441\u043e\u0440\u0443", r"\u0441\u043e\u0440\u0443"),
        ("\uff52\uff4d \U0001d42b\U0001d426 \ufb01le", r"\uff52\uff4d \U0001d42b\U0001d426 \ufb01le"),
        ("cat \u2215etc\u2044x \u2018$(id)\u2019 \u2010\u2010help\u037e", None),
        ("e\u0338 x\u0305", r"e\u0338 x\u0305"),
        ("half \udc80", r"half \udc80"),
    ],
)
def test_invisible_and_lookalike_characters_are_escaped(written, shown):
    assert visible(written) == (shown if shown is not None else written.encode("unicode_escape").decode())


@pytest.mark.parametrize(
    "text",
    [
        "ls -la; echo \"$HOME\" 'x' | sh \\n ~/`id`",
        "naïve café Łódź über Tiếng Việt",
        "привет, мир",
        "run命令 日本語テスト 한국어",
        "हिन्दी ไทย العربية Ελλάδα",
        "😀",
    ],
)
def test_words_of_any_language_stay_readable(text):
    assert visible(text) == text


def test_every_invisible_character_is_escaped():
    every = map(chr, range(0x110000))
    unseen = [c for c in every if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    assert [c for c in unseen if c in visible(f"a{c}b") or c in visible(f"м{c}и")] == []


def test_what_several_threads_learn_at_once_is_all_hidden() -> None:
    mask = Masker(f"secret-of-before-{number}" for number in range(500))
    learned = [f"secret-of-thread-{number}" for number in range(16)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda secret: mask.learn([secret]), learned))
    assert "secret" not in mask.line(" ".join(learned))
