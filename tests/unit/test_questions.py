"""What a server may ask, and what it is told: the checks of questions, and the folders it learns as roots."""

from __future__ import annotations

import asyncio
import json
import os
import string
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parts.waiting import until
from toolcrib.config.from_code import server_config
from toolcrib.config.model import ServerConfig
from toolcrib.errors import ProtocolViolation
from toolcrib.servers import questions
from toolcrib.servers.link import Peer
from toolcrib.servers.link_questions import OpenCall, ServerQuestions
from toolcrib.servers.model import Era, ServerAnswer, ToolCall
from toolcrib.servers.pipe_link import PipeLink
from toolcrib.servers.question_checks import LARGEST_FORM, LONGEST_MESSAGE, host_of
from toolcrib.servers.questions import (
    CANCEL,
    ELICITATION,
    ROOTS,
    SAMPLING,
    CallAsker,
    Question,
    QuestionRefused,
    can_answer,
    needed_input,
    offered_capabilities,
    prepared,
    settle_round,
    settled,
)
from toolcrib.servers.roots import MAX_ROOTS, roots_inside

pytestmark = pytest.mark.req("KSI-8")


def config(**entry: Any) -> ServerConfig:
    return server_config("shop", {"url": "https://shop.example/mcp", **entry})


SHOP = config()
ALL: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class Person:
    """Answers every question in the same way, and remembers what it was asked."""

    def __init__(self, answer: Any = None, root: Path | None = None, capabilities: Mapping[str, Any] = ALL) -> None:
        self.capabilities = capabilities
        self.root = root
        self.asked: list[Question] = []
        self.noted: list[tuple[str, str]] = []
        self.permitted: list[Question] = []
        self.cancelled = 0
        self._answer = answer

    async def permit(self, question: Question) -> None:
        self.permitted.append(question)

    async def ask(self, question: Question) -> Mapping[str, Any]:
        self.asked.append(question)
        if self._answer is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return cast("Mapping[str, Any]", self._answer)

    def note(self, question: Question, action: str) -> None:
        self.noted.append((question.mode, action))


class StandingClock:
    def __init__(self) -> None:
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.pauses -= 1


def form(fields: Mapping[str, Any], message: Any = "Which one?", **more: Any) -> dict[str, Any]:
    return {"message": message, "requestedSchema": {"type": "object", "properties": fields, **more}}


def text_form(name: str, message: str = "Please fill this in.", **field: Any) -> dict[str, Any]:
    return form({name: {"type": "string", **field}}, message)


def refusal(params: Any, method: str = ELICITATION, of: ServerConfig = SHOP) -> str:
    with pytest.raises(QuestionRefused) as refused:
        prepared(of, method, params)
    return refused.value.text()


SECRETS = [
    *("password", "pwd", "passwd", "passphrase", "passcode", "apiKey", "api_key", "API-Key", "APIKEY", "access_token"),
    *(
        "accessToken",
        "APIToken",
        "authtoken",
        "bearer token",
        "client_secret",
        "clientSecret",
        "private key",
        "ssh_key",
    ),
    *(
        "credentials",
        "cardNumber",
        "credit_card_number",
        "cvv",
        "CVC2",
        "pin",
        "pinCode",
        "otp",
        "one_time_code",
        "totp",
    ),
    *(
        "verificationCode",
        "2fa_code",
        "recovery phrase",
        "seed phrase",
        "mnemonic",
        "ssn",
        "userPassword",
        "dbpassword",
    ),
    *(
        "newPassword2",
        "token",
        "GITHUB_TOKEN",
        "jwt",
        "session_cookie",
        "Passwort",
        "contraseña",
        "mot de passe",
        "пароль",
    ),
    *("密码", "パスワード", "\uff50\uff41ssword", "pass\u200bword", "license_key", "webhook secret", "backupCodes"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_form_with_a_field_for_a_secret_is_refused_with_the_reason(name):
    assert "is for a secret" in refusal(text_form(name))
    assert "page of its own" in refusal(text_form("value", title=name))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "max_tokens",
            "maxTokens",
            "token_count",
            "tokenLimit",
            "tokens_used_count",
            "keyboard",
            "secretary",
            "passport",
        ),
        *("passportNumber", "passenger", "keywords", "key", "primaryKey", "publicKey", "sortKey", "username", "email"),
        *(
            "password_length",
            "passwordPolicy",
            "password_manager",
            "token_name",
            "secretName",
            "credentialsPath",
            "pinned",
        ),
        *("pin_number", "pinboard", "code", "zipCode", "postcode", "countryCode", "sourceCode", "compass", "bypass"),
        *(
            "tokenSymbol",
            "tokenizer",
            "api_key_name",
            "author",
            "authority",
            "opinion",
            "spin",
            "secret_santa",
            "passing",
        ),
        *(
            "account_number",
            "iban",
            "phone",
            "birthday",
            "notes",
            "capital",
            "shopping",
            "desktop",
            "hotpot",
            "cardinal",
        ),
    ],
)
def test_a_form_with_an_ordinary_field_is_passed_on(name):
    question = prepared(SHOP, ELICITATION, text_form(name))
    assert question.schema["properties"] == {name: {"type": "string"}}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "string", "format": "password"}, ""),
        ({"type": "string", "format": "Password"}, ""),
        ({"type": "string", "writeOnly": True}, ""),
        ({"description": "Enter your GitHub password"}, ""),
        ({"description": "The API key to use"}, ""),
        ({"description": "Your current account password."}, ""),
        ({"type": "string", "description": "Paste the access token here"}, ""),
        ({"type": "string"}, "Please enter your password."),
        ({"type": "string"}, "What's your API key?"),
        ({"type": "number"}, "Please provide the one-time code that we sent."),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "Type in your passphrase"),
        ({"type": "string", "oneOf": [{"type": "string"}]}, "Type in your passphrase"),
        ({"type": "array", "items": {"type": "string"}}, "Enter all your passwords, please"),
        ({"type": ["string", "null"], "title": "Password"}, ""),
        ({"type": "string"}, "Do not forget to enter your password."),
        ({"type": "string"}, "Do not enter your name. Enter your password."),
    ],
)
def test_a_form_that_wants_a_secret_in_other_words_is_refused(field, message):
    assert "secret" in refusal(form({"value": field, "second": {"type": "boolean"}}, message))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "string", "description": "Enter a name for the API key"}, ""),
        ({"type": "string", "description": "A label for your new token"}, ""),
        ({"type": "string"}, "Your token has expired. Which account should I use?"),
        ({"type": "string"}, "I will rotate the password. Which environment?"),
        ({"type": "boolean", "title": "Password"}, "Should I reset your password?"),
        ({"type": "string", "enum": ["password", "token"], "title": "Token"}, "Enter your secret kind"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}], "title": "Token"}, ""),
        ({"type": "array", "items": {"enum": ["a"]}, "title": "Secrets"}, ""),
        ({"type": "integer", "title": "Max tokens"}, ""),
        # server-everything's
        ({"type": "integer", "description": "Your favorite integer (do not give us your phone number, pin, …)"}, ""),
        ({"type": "string", "description": "Don't enter or paste your password"}, ""),
        ({"type": "string"}, "Never share your PIN here. Which account should I use?"),
        ({"type": "integer", "title": "Tokens"}, ""),
    ],
)
def test_a_form_that_only_mentions_a_secret_is_passed_on(field, message):
    assert prepared(SHOP, ELICITATION, form({"value": field}, message)).mode == "form"


SEPARATORS = st.sampled_from(["", "_", "-", " ", ".", "\u200b"])
CASES = st.sampled_from([str.lower, str.upper, str.title, str.capitalize])


@given(
    before=st.text(string.ascii_lowercase, max_size=8),
    between=SEPARATORS,
    case=CASES,
    where=st.sampled_from(["name", "title"]),
    kind=st.sampled_from(["string", "number", "integer", None]),
    others=st.dictionaries(st.text(string.ascii_lowercase, max_size=5), st.just({"type": "boolean"}), max_size=3),
    extra=st.dictionaries(st.sampled_from(["minLength", "default", "x-hint"]), st.integers(1, 5)),
)
def test_no_form_with_a_password_field_passes(before, between, case, where, kind, others, extra):
    spelled = case(f"{before}{between}password")
    field = {**extra, **({} if kind is None else {"type": kind})}
    fields = {**others, spelled: field} if where == "name" else {**others, "v": {**field, "title": spelled}}
    assert "secret" in refusal(form(fields))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)


def names_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for key, one in value.items() for name in [key, *names_in(one)]]
    return [name for one in value for name in names_in(one)] if isinstance(value, list) else []


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    schema=json_values, message=json_values, path=st.lists(st.sampled_from(["properties", "items", "a"]), max_size=4)
)
def test_no_schema_hides_a_field_in_another(schema, message, path):
    hidden: Any = {"type": "object", "properties": {"password": {"type": "string"}}}
    for key in path:
        hidden = {key: hidden}
    for tried in (schema, hidden, {"type": "object", "properties": {"a": hidden, "b": schema}}):
        try:
            question = prepared(SHOP, ELICITATION, {"message": message, "requestedSchema": tried})
        except QuestionRefused:
            continue
        for field in question.schema["properties"].values():
            assert "password" not in names_in(field)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "object",
        {},
        {"type": "object"},
        {"type": "object", "properties": []},
        {"type": "string", "properties": {}},
        {"type": "object", "properties": {"a": "string"}},
        {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {}, "$defs": {"a": {}}},
        {"type": "object", "properties": {}, "patternProperties": {"x": {}}},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {}, "allOf": [{}]},
        {"type": "object", "properties": {"a": {"oneOf": [{"properties": {}}]}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": [{"enum": ["a"]}]}}},
        {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(101)}},
        {"type": "object", "properties": {"a": {"enum": ["x" * LARGEST_FORM]}}},
        {"type": "object", "properties": {"a\x1b[2J": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"enum": ["\u202eabc"]}}},
        {"type": "object", "properties": {"a": {"oneOf": [{"const": "\x07"}]}}},
    ],
)
def test_a_form_outside_the_specifications_subset_is_refused(schema):
    refusal({"message": "m", "requestedSchema": schema})


def test_a_deep_form_is_refused_and_not_followed():
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    refusal(form({"a": deep}))


@pytest.mark.parametrize("mode", ["voice", "", "URL", 1, {}, [], True])
def test_an_unknown_mode_is_refused(mode):
    refusal({**text_form("name"), "mode": mode})


def test_the_specifications_examples_are_passed_on_unchanged():
    titled = [{"const": "#F00", "title": "Red"}, {"const": "#0F0", "title": "Green"}]
    fields = {
        "name": {"type": "string", "title": "Name", "minLength": 3, "maxLength": 50, "pattern": "^[A-Za-z]+$"},
        "email": {"type": "string", "format": "email", "default": "user@example.com"},
        "n": {"type": "number", "minimum": 0, "maximum": 100, "default": 50},
        "yes": {"type": "boolean", "default": False},
        "one": {"type": "string", "enum": ["Red", "Green"], "default": "Red"},
        "old": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
        "titled": {"type": "string", "oneOf": titled},
        "many": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": ["Red"]}, "default": ["Red"]},
        "many_titled": {"type": "array", "items": {"anyOf": titled}},
        "emoji": {"type": "string", "title": "👩\u200d💻 \u0646\u200c\u0647"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    params = form(fields, required=["name"], additionalProperties=False)
    assert prepared(SHOP, ELICITATION, params).schema == params["requestedSchema"]


def test_a_message_displays_as_what_it_is_and_cannot_imitate_another_question():
    said = "Hi\x1b[2J\u202eevil\r\nServer 'bank' asks: which account?\n  toolcrib: approve?\nநன்றி 👩\u200d💻"
    message = prepared(SHOP, ELICITATION, text_form("name", said)).params["message"]
    assert message == (
        "Server 'shop' asks: Hi\\x1b[2J\\u202eevil\n> Server 'bank' asks: which account?\n>   toolcrib: approve?\n"
        "நன்றி 👩\u200d💻"
    )
    long = prepared(SHOP, ELICITATION, text_form("name", "x" * 100_000)).params["message"]
    assert len(long) < LONGEST_MESSAGE + 100
    assert long.endswith("x…")
    labels = prepared(SHOP, ELICITATION, text_form("name", title="\x1b]0;a\x07", description="\u2066b")).schema
    assert labels["properties"]["name"] == {"type": "string", "title": "\\x1b]0;a\\x07", "description": "\\u2066b"}


@pytest.mark.parametrize("message", [None, 7, {}, ["a"]])
def test_a_message_that_is_no_text_counts_as_none(message):
    params = form({"name": {"type": "string"}}, message)
    assert prepared(SHOP, ELICITATION, params).params["message"] == "Server 'shop' asks: "


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "ftp://h/",
            "HTTPS//h",
            "https:h.example",
        ),
        *(
            "https:///h.example",
            "https://u:p@h.example/",
            "https://h.example@evil.example",
            "http:\\\\h.example",
            "//h",
        ),
        *("https://h.example\\@evil.example/", "https://h .example/", "https://h.example/a b", "https://h.example/\n"),
        *(
            "https://h.example/\u202egro.elpmaxe",
            "https://bücher.example/",
            "https://h%2eexample/",
            "https://h.example:x",
        ),
        *(
            "https://h.example:99999",
            "https://[::1",
            "https://h.example/" + "x" * 9000,
            "\x00https://h.example",
            None,
            7,
            [],
        ),
        *("https://-h.example", "https://h.exam<ple", "http://h,evil.example", "vscode://h.example"),
    ],
)
def test_an_address_that_may_lead_elsewhere_is_refused(url):
    assert "http:// or https://" in refusal({"mode": "url", "message": "Pay", "url": url, "elicitationId": "1"})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://Shop.example/pay?order=1#x", "a page on shop.example:"),
        ("https://shop.example:8443/a@b", "a page on shop.example:"),
        ("http://localhost:3000/", "a page on localhost:"),
        ("http://[::1]:80/", "a page on ::1:"),
        ("http://shop.example/", "a page on shop.example (without encryption):"),
        ("https://xn--pypal-4ve.com/", "a page on xn--pypal-4ve.com (check this name"),
    ],
)
def test_an_address_is_shown_with_its_host(url, shown):
    question = prepared(SHOP, ELICITATION, {"mode": "url", "message": "Pay", "url": url, "elicitationId": "1"})
    assert question.params["message"].startswith(f"Server 'shop' asks you to open {shown}")
    assert question.params["url"] == url
    assert question.params["elicitationId"] == "1"


@given(st.text(max_size=40))
def test_a_host_is_found_only_where_a_browser_goes(rest):
    host = host_of(f"https://h.example{rest}")
    if host and rest[:1] in ("/", "?", "#", ""):
        assert host == "h.example"
    assert host_of(f"https://{rest}@h.example/") in ("", host_of(f"https://{rest}"))


def test_sampling_names_the_server_and_takes_no_context_of_other_servers():
    may = config(sampling="allow")
    params = {
        "messages": [],
        "maxTokens": 5,
        "includeContext": "allServers",
        "task": {"ttl": 1},
        "systemPrompt": "Be brief.",
    }
    question = prepared(may, SAMPLING, params)
    assert question.params == {
        "messages": [],
        "maxTokens": 5,
        "systemPrompt": "This request is from the MCP server 'shop'. Be brief.",
    }
    assert not question.needs_approval
    assert prepared(config(sampling="ask"), SAMPLING, params).needs_approval
    assert "sampling: ask" in refusal(params, SAMPLING)
    assert can_answer({"sampling": {}}, question)
    tools = prepared(may, SAMPLING, {**params, "tools": []})
    assert not can_answer({"sampling": {}}, tools)
    assert can_answer({"sampling": {"tools": {}}}, tools)


@pytest.mark.parametrize(
    ("entry", "caller", "offered"),
    [
        ({}, None, {"elicitation": {"form": {}, "url": {}}, "roots": {}}),
        ({}, {}, {"roots": {}}),
        ({"roots": "none"}, ALL, {"elicitation": {"form": {}, "url": {}}}),
        ({"roots": "client"}, {}, {}),
        ({"roots": "client"}, {"roots": {"listChanged": True}}, {"roots": {}}),
        ({"roots": "client"}, None, {"elicitation": {"form": {}, "url": {}}, "roots": {}}),
        ({"sampling": "ask", "roots": "none"}, {"sampling": {"tools": {}}}, {"sampling": {"tools": {}}}),
        ({"sampling": "allow", "roots": "none"}, {"sampling": True, "tasks": {}}, {}),
    ],
)
def test_a_server_is_told_what_its_entry_and_the_caller_permit(entry, caller, offered):
    assert offered_capabilities(config(**entry), caller) == offered


async def test_roots_are_answered_as_the_entry_says(tmp_path):
    inside = {"uri": (tmp_path / "a").as_uri()}
    (tmp_path / "a").mkdir()
    client = Person({"roots": [inside, {"uri": "file:///etc"}]}, tmp_path)
    roots = Question(server="shop", method=ROOTS)
    project = {"roots": [{"uri": tmp_path.as_uri(), "name": tmp_path.name}]}
    assert await settled(SHOP, roots, client, None) == project
    assert client.asked == []
    assert await settled(config(roots="client"), roots, client, None) == {"roots": [inside]}
    silent = Person(root=tmp_path, capabilities={})
    assert await settled(config(roots="client"), roots, silent, None) == {"roots": []}
    assert await settled(config(roots="client"), roots, None, tmp_path) == {"roots": []}
    assert await settled(SHOP, roots, None, None) == {"roots": []}
    assert "which it does not get" in refusal({}, ROOTS, config(roots="none"))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A project with folders and links, beside a folder that is outside."""
    base = tmp_path_factory.mktemp("roots")
    for folder in ("project/src/deep", "outside/secret", "project-2"):
        (base / folder).mkdir(parents=True)
    (base / "project" / "file.txt").write_text("x")
    (base / "project" / "out").symlink_to(base / "outside")
    (base / "project" / "in").symlink_to(base / "project" / "src")
    (base / "project" / "loop").symlink_to(base / "project" / "loop")
    (base / "link").symlink_to(base / "project")
    return base


@given(
    parts=st.lists(
        st.sampled_from(["..", ".", "", "src", "deep", "out", "in", "loop", "secret", "outside", "%2e%2e"]) | NAMES
    ),
    start=st.sampled_from(["project", "link", "project-2", "outside", ""]),
    encoded=st.booleans(),
    scheme=st.sampled_from(["file://", "file://localhost", "FILE://", "file:", "file://evil.example", "https://h", ""]),
    tail=st.sampled_from(["", "/", "?x=/etc", "#/etc", "%00", "%2f..%2f..", ";/.."]),
)
def test_no_root_outside_the_project_reaches_a_server(tree, parts, start, encoded, scheme, tail):
    path = str(tree / start) + "/" + "/".join(parts)
    uri = f"{scheme}{quote(path, safe='') if encoded else path}{tail}"
    found = roots_inside({"roots": [{"uri": uri, "name": "n"}]}, tree / "project")
    for root in found["roots"]:
        assert root["uri"].startswith("file:///")
        real = Path(os.path.realpath(Path(root["uri"].removeprefix("file://")))) if "%" not in root["uri"] else None
        assert real is None or real.is_relative_to(tree / "project")
        assert set(root) == {"uri", "name"}


def test_roots_are_written_anew_without_links_and_without_files(tree):
    project = tree / "project"
    wanted = [
        *(project, tree / "link" / "src", project / "in", project / "src" / ".." / "src" / "deep"),
        *(project / "file.txt", project / "absent", project / "out", tree / "project-2", project / "loop", tree),
    ]
    found = roots_inside({"roots": [{"uri": f"file://{path}", "extra": 1} for path in wanted]}, project)
    kept = [project, project / "src", project / "src" / "deep"]
    assert found == {"roots": [{"uri": path.as_uri()} for path in kept]}
    assert roots_inside({"roots": [{"uri": "file:///"}]}, None) == {"roots": []}


@pytest.mark.parametrize("roots", [None, {}, "file:///", [None], [[]], [{}], [{"uri": 7}], [{"uri": ["file:///"]}]])
def test_roots_of_another_form_are_no_roots(tree, roots):
    assert roots_inside({"roots": roots}, tree) == {"roots": []}


def test_a_very_long_list_of_roots_is_cut(tree):
    many = [{"uri": "file:///nowhere"}] * MAX_ROOTS + [{"uri": (tree / "project").as_uri()}]
    assert roots_inside({"roots": many}, tree) == {"roots": []}


def asking(of: ServerConfig = SHOP, root: Path | None = None) -> tuple[ServerQuestions, list[str]]:
    untagged: list[str] = []
    return ServerQuestions(of, root, lambda: untagged.append("asked")), untagged


def open_call(person: Person, agent: str = "a", task: str = "") -> OpenCall:
    return OpenCall(agent, cast("CallAsker", person), StandingClock(), task)


async def test_an_untagged_question_is_put_to_the_only_call_in_flight():
    at, untagged = asking()
    person = Person({"action": "decline"})
    call = at.calls["tc-1"] = open_call(person)
    assert at.call_of(ELICITATION, {}, "") is call
    assert untagged == ["asked"]
    assert await at.answer(ELICITATION, text_form("name"), call) == {"action": "decline"}
    assert person.noted == [("form", "decline")]
    assert cast("StandingClock", call.clock).pauses == 0


@pytest.mark.parametrize("agents", [("a", "b"), ("a", "a")])
async def test_nobody_is_asked_an_untagged_question_while_several_calls_run(agents, caplog):
    at, untagged = asking()
    people = [Person({"action": "accept"}), Person({"action": "accept"})]
    for number, (agent, person) in enumerate(zip(agents, people, strict=True)):
        at.calls[f"tc-{number}"] = open_call(person, agent)
    call = at.call_of(ELICITATION, {}, "")
    assert call is None
    assert await at.answer(ELICITATION, text_form("name"), call) == CANCEL
    assert untagged == ["asked"]
    assert [person.asked for person in people] == [[], []]
    assert [person.noted for person in people] == [[("form", "nobody could be asked")]] * 2
    assert "while several calls were running" in caplog.text


async def test_a_question_on_a_calls_own_stream_or_about_a_task_is_put_to_that_call():
    at, untagged = asking()
    first, second, third = open_call(Person(), task="t1"), open_call(Person()), open_call(Person())
    at.calls |= {"tc-1": first, "tc-2": second}
    assert at.call_of(ROOTS, {}, "") is second, "a question about a task names it"
    at.calls["tc-4"] = third
    assert at.call_of(ELICITATION, {}, "tc-2") is second
    assert at.call_of(ELICITATION, {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t1"}}}, "") is first
    for meta in (
        "x",
        {"io.modelcontextprotocol/related-task": "t1"},
        {"io.modelcontextprotocol/related-task": {"taskId": 1}},
    ):
        assert at.call_of(ROOTS, {"_meta": meta}, "") is None
    assert at.call_of(ELICITATION, {}, "tc-3") is None
    assert untagged == []


async def test_a_call_that_ended_is_not_asked_any_more():
    at, _ = asking()
    call = at.calls["tc-1"] = open_call(Person())
    call.end()
    assert at.call_of(ELICITATION, {}, "") is None
    assert at.call_of(ELICITATION, {}, "tc-1") is None


async def test_asking_for_roots_alone_does_not_count_as_asking(tmp_path):
    at, untagged = asking()
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        at.calls[f"tc-{number}"] = open_call(Person(root=tmp_path / name))
    assert await at.answer(ROOTS, {}, at.call_of(ROOTS, {}, "")) == {"roots": []}
    del at.calls["tc-0"]
    found = await at.answer(ROOTS, {}, at.call_of(ROOTS, {}, ""))
    assert [root["name"] for root in found["roots"]] == ["two"]
    at.calls["tc-3"] = open_call(Person(root=tmp_path / "two"))
    assert await at.answer(ROOTS, {}, at.call_of(ROOTS, {}, "")) == found
    assert untagged == []


async def test_a_call_is_asked_a_limited_number_of_questions():
    at, _ = asking()
    person = Person({"action": "accept", "content": {}})
    call = at.calls["tc-1"] = open_call(person)
    for _ in range(32):
        await at.answer(ELICITATION, text_form("name"), call)
    with pytest.raises(QuestionRefused, match="more than 32 questions during one call"):
        await at.answer(ELICITATION, text_form("name"), call)
    assert len(person.asked) == 32


async def test_the_clock_stands_still_until_all_questions_are_answered():
    at, _ = asking()
    call = at.calls["tc-1"] = open_call(Person())
    clock = cast("StandingClock", call.clock)
    both = [asyncio.ensure_future(at.answer(ELICITATION, text_form("name"), call)) for _ in range(2)]
    await asyncio.sleep(0)
    assert clock.pauses == 2
    for one in both:
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
    assert clock.pauses == 0


async def test_the_log_says_that_a_caller_cannot_be_asked(caplog):
    question = prepared(SHOP, ELICITATION, text_form("name"))
    for asker in (None, cast("CallAsker", Person(capabilities={}))):
        caplog.clear()
        assert await settled(SHOP, question, asker, None) == CANCEL
        assert caplog.messages == ["shop: it asked a question (form), but its caller cannot be asked"]


async def test_a_question_that_nobody_answers_ends(monkeypatch):
    monkeypatch.setattr(questions, "LONGEST_QUESTION", 0.01)
    person = Person()
    question = prepared(SHOP, ELICITATION, text_form("name"))
    assert await settled(SHOP, question, cast("CallAsker", person), None) == CANCEL
    assert (person.cancelled, person.noted) == (1, [("form", "unanswered")])
    may = config(sampling="allow")
    with pytest.raises(QuestionRefused, match="did not answer"):
        await settled(may, prepared(may, SAMPLING, {"messages": []}), cast("CallAsker", person), None)


async def test_one_refused_question_of_a_round_withdraws_the_others():
    person = Person()
    requests = {"a": {"method": ELICITATION, "params": text_form("name")}, "b": {"method": ROOTS}}
    needed = needed_input("shop", json.dumps({"inputRequests": requests}).encode())
    bad = Person({"action": "perhaps"})

    async def ask(question: Question) -> Mapping[str, Any]:
        return await (person if question.method == ELICITATION else bad).ask(question)

    person_and_bad = Person()
    person_and_bad.ask = ask  # type: ignore[method-assign]
    bad._answer = None
    round_of = asyncio.ensure_future(
        settle_round(config(roots="client"), needed, cast("CallAsker", person_and_bad), None, passes=False)
    )
    await until(lambda: len(person.asked) + len(bad.asked) == 2, "both to be asked")
    round_of.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_of
    assert (person.cancelled, bad.cancelled) == (1, 1)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({}, "without a question"),
        ({"inputRequests": {}}, "without a question"),
        ({"inputRequests": {str(n): {"method": ROOTS} for n in range(33)}}, "more than 32"),
        ({"inputRequests": [], "requestState": "s"}, "invalid form"),
        ({"inputRequests": {"a": {"params": {}}}}, "invalid form"),
        ({"requestState": 7}, "invalid form"),
        ({"requestState": "x" * 100_000}, "more than 64 KB"),
        ({"requestState": "x", "more": "x" * 2_000_000}, "more than 1024 KB"),
    ],
)
def test_input_that_is_asked_for_in_another_form_is_refused(result, why):
    with pytest.raises(ProtocolViolation, match=why):
        needed_input("shop", json.dumps(result).encode())


PAGE = {"mode": "url", "url": "https://shop.example/pay", "message": "Pay", "elicitationId": "e1"}


def required(*pages: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"code": -32042, "message": "Pay\x1b first", "data": {"elicitations": pages}})


def call_of(person: Person | None, **more: Any) -> ToolCall:
    return ToolCall(name="buy", agent="a", asker=cast("CallAsker", person), **more)


def error_of(answer: ServerAnswer) -> dict[str, Any]:
    assert answer.error is not None
    found: dict[str, Any] = json.loads(answer.error)
    return found


def test_an_error_that_requires_pages_names_the_server_on_each():
    at, _ = asking()
    person = Person()
    error = error_of(at.required_pages(required(PAGE), call_of(person)))
    (page,) = error["data"]["elicitations"]
    assert page == {**PAGE, "message": "Server 'shop' asks you to open a page on shop.example: Pay"}
    assert (error["code"], error["message"]) == (-32042, "Pay\\x1b first")
    assert person.noted == [("url", "passed on")]
    assert at.asked_to_open({"elicitationId": "e1"}) == "a"
    assert [at.asked_to_open({"elicitationId": other}) for other in ("e2", 1, None, [])] == [None] * 4
    with pytest.raises(QuestionRefused):
        at.required_pages(required(PAGE, {**PAGE, "url": "file:///etc"}), call_of(person))


def test_a_client_of_the_modern_protocol_is_asked_to_open_a_required_page_once():
    at, _ = asking()
    person = Person()
    answer = at.required_pages(required(PAGE), call_of(person, takes_input=True))
    assert answer.questions is not None
    assert [one.params["url"] for one in answer.questions.questions.values()] == [PAGE["url"]]
    again = call_of(person, takes_input=True, params={"inputResponses": msgspec.Raw(b"{}")})
    assert error_of(at.required_pages(required(PAGE), again))["code"] == -32042
    cannot = call_of(Person(capabilities={}), takes_input=True)
    assert error_of(at.required_pages(required(PAGE), cannot))["code"] == -32042


@pytest.mark.parametrize(
    "error", [b"7", b"{}", b'{"code": -32042}', b'{"code": -32000, "data": {"elicitations": [{}]}}']
)
def test_other_errors_stay_as_they_are(error):
    at, _ = asking()
    assert at.required_pages(error, call_of(None)).error == error


async def test_completed_pages_are_remembered_for_a_limited_number_of_questions():
    at, _ = asking()
    person = Person({"action": "accept"})
    for number in range(1100):
        call = open_call(person, f"agent-{number}")
        await at.answer(ELICITATION, {**PAGE, "elicitationId": f"e{number}"}, call)
    assert at.asked_to_open({"elicitationId": "e1099"}) == "agent-1099"
    assert at.asked_to_open({"elicitationId": "e0"}) is None


class Pipe(PipeLink):
    """A connection to a legacy server that we write ourselves, with one call in flight."""

    def __init__(self, person: Person, era: Era = Era.LEGACY) -> None:
        super().__init__("shop", send=self._keep, on_lists_changed=lambda: None)
        self.sent: list[dict[str, Any]] = []
        self.questions = ServerQuestions(SHOP, None, lambda: None)
        self.negotiated(Peer(era=era, version="2025-11-25"))
        how: Any = {"meta": {}, "limit": 60.0, "call": call_of(person)}
        self.call = asyncio.ensure_future(self.request("tools/call", {"name": "buy"}, **how))

    async def _keep(self, message: bytes) -> None:
        self.sent.append(json.loads(message))

    def hear(self, **message: Any) -> None:
        self.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def ask(self, id: Any, **params: Any) -> None:
        self.hear(id=id, method=ELICITATION, params=params or text_form("name"))

    def cancel(self, id: Any) -> None:
        self.hear(method="notifications/cancelled", params={"requestId": id})

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [message for message in self.sent if "method" not in message]


@asynccontextmanager
async def pipe(person: Person, era: Era = Era.LEGACY) -> AsyncIterator[Pipe]:
    link = Pipe(person, era)
    await until(lambda: link.sent)
    yield link
    link.call.cancel()
    await asyncio.gather(link.call, return_exceptions=True)
    await link.stop(1.0)


async def test_a_question_is_answered_once_whatever_its_id():
    person = Person({"action": "decline"})
    async with pipe(person) as link:
        for id in (1, 1, "1", -7, 2**60, 1.5, ""):
            link.ask(id)
        await until(lambda: len(link.replies) == 6)
        assert sorted(str(reply["id"]) for reply in link.replies) == sorted(map(str, (1, "1", -7, 2**60, 1.5, "")))
        assert {reply["result"]["action"] for reply in link.replies} == {"decline"}
        link.ask(1)
        await until(lambda: len(link.replies) == 7)


@pytest.mark.parametrize("id", [None, True, [], {}, [1]])
async def test_a_question_with_an_id_of_another_type_is_no_question(id):
    person = Person({"action": "decline"})
    async with pipe(person) as link:
        link.ask(id)
        link.cancel(id)
        link.ask("last")
        await until(lambda: link.replies)
        assert [reply["id"] for reply in link.replies] == ["last"]


async def test_a_server_can_withdraw_its_question_even_before_it_was_put():
    person = Person()
    async with pipe(person) as link:
        for number in range(20):
            link.ask(number)
            link.cancel(number)
        link.ask("stays")
        await until(lambda: person.asked)
        link.cancel("stays")
        await until(lambda: person.cancelled)
        assert (len(person.asked), link.replies, link._asked) == (1, [], {})


async def test_more_questions_than_a_person_can_answer_are_refused():
    async with pipe(Person()) as link:
        for number in range(40):
            link.ask(number)
        await until(lambda: len(link.replies) == 8)
        assert {reply["error"]["message"] for reply in link.replies} == {"at most 32 questions of a call can be open"}


async def test_open_questions_end_with_the_call_and_the_server_is_told():
    person = Person()
    async with pipe(person) as link:
        link.ask(1)
        await until(lambda: person.asked)
        link.hear(id="tc-1", result={"content": []})
        assert (await link.call).result == b'{"content": []}'
        await until(lambda: link.replies)
        assert (person.cancelled, link.replies) == (1, [{"jsonrpc": "2.0", "id": 1, "result": CANCEL}])
        link.ask(2)
        await until(lambda: len(link.replies) == 2)
        assert (len(person.asked), link.replies[1]["result"]) == (1, CANCEL)


async def test_a_question_that_is_too_large_is_refused_and_not_passed_on_in_part():
    person = Person({"action": "decline"})
    async with pipe(person) as link:
        link.ask(1, message="x" * 2_000_000)
        link.ask(2, **text_form("name", "x" * 100_000))
        link.hear(id=3, method=ELICITATION, params=[1])
        await until(lambda: len(link.replies) == 3)
        outcomes = {reply["id"]: reply.get("error", {}).get("code") for reply in link.replies}
        assert outcomes == {1: -32602, 2: None, 3: -32602}


async def test_a_modern_server_cannot_send_requests():
    person = Person({"action": "accept"})
    async with pipe(person, Era.MODERN) as link:
        link.ask(1)
        await until(lambda: link.replies)
        assert (person.asked, link.replies[0]["error"]["code"]) == ([], -32601)


@given(
    messages=st.lists(json_values, max_size=6), id=json_values, method=st.sampled_from([ELICITATION, SAMPLING, ROOTS])
)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
async def test_no_message_of_a_server_breaks_the_connection(messages, id, method):
    async with pipe(Person({"action": "accept"})) as link:
        for params in messages:
            link.hear(id=id, method=method, params=params)
            link.hear(method="notifications/cancelled", params={"requestId": params})
            link.hear(method="notifications/elicitation/complete", params=params)
        link.ask("last")
        await until(lambda: any(reply["id"] == "last" for reply in link.replies))
        assert not link.lost.done()


async def test_a_server_pays_for_the_checks_of_its_questions():
    async with pipe(Person({"action": "cancel"})) as link:
        fields = {f"field {number}": {"type": "string", "description": "enter " * 90} for number in range(100)}
        began = time.thread_time()
        link.ask(1, **form(fields))
        await until(lambda: link.replies)
        took = time.thread_time() - began
        assert link.budget.pause > took / 2


async def test_the_checks_of_many_large_forms_let_other_tasks_run():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    forms = {str(number): {"method": ELICITATION, "params": text_form(f"f{number}")} for number in range(20)}
    needed = needed_input("shop", msgspec.json.encode({"inputRequests": forms}))
    await settle_round(SHOP, needed, cast("CallAsker", Person({})), None, passes=True)
    counting.cancel()
    assert turns >= 20
