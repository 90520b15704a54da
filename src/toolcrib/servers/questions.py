"""What a server asks in the middle of a call: elicitation, sampling and roots, in both protocol generations.

In: a server's `Question` and its configuration. Out: our own answer to it, or the question as its `Asker` may pass it
on; the input that a modern result asks for (`needed_input`). `link` and `server` call this for questions of either
generation; `gateway.asking`, `identity.approvals` and the library implement `Asker`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw

from toolcrib.config.masking import printable
from toolcrib.config.model import RootsMode, SamplingMode, ServerConfig
from toolcrib.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolViolation

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
METHODS = frozenset({ELICITATION, SAMPLING, ROOTS})
INPUT_REQUIRED = "input_required"
RELATED_TASK = "io.modelcontextprotocol/related-task"
QUESTION_SECONDS = 600.0
"""How long a question waits for an answer."""
MAX_ROUNDS = 10
"""How often a modern server may ask during one call."""
MAX_QUESTIONS = 32
"""In one round, or at the same time over one connection."""
LONGEST_MESSAGE = 16 * 1024
REFUSED_BY_PERSON = -1
"""The code that the specification has for sampling that a person refuses."""

CANCEL: Mapping[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}


class QuestionRefused(ProtocolViolation):
    """A question that is not passed on, or that its reader could not answer. `json_code` is for the server."""

    def __init__(self, message: str, *, remedy: str = "", json_code: int = INVALID_PARAMS) -> None:
        super().__init__(message, remedy=remedy)
        self.json_code = json_code


class Question(msgspec.Struct, frozen=True, kw_only=True):
    server: str
    """The name of the server that asks."""
    method: str
    """One of `METHODS`."""
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """As the server sent them, except that the message names the server."""
    task: str = ""
    """The client's id of the task that asks, for a legacy client."""
    needs_approval: bool = False
    """Whether the owner must approve it before it is passed on: `sampling: ask`."""

    @property
    def mode(self) -> str:
        """`form`, `url`, `sampling` or `roots`."""
        if self.method == ELICITATION:
            return "url" if self.params.get("mode") == "url" else "form"
        return "sampling" if self.method == SAMPLING else "roots"

    @property
    def client_params(self) -> dict[str, Any]:
        """The params for a client. The server's `_meta` is about its own connection."""
        params = {key: value for key, value in self.params.items() if key != "_meta"}
        return {**params, "_meta": {RELATED_TASK: {"taskId": self.task}}} if self.task else params

    @property
    def schema(self) -> Mapping[str, Any]:
        """Of the form; empty without one."""
        schema = self.params.get("requestedSchema")
        return schema if isinstance(schema, dict) else {}

    @property
    def digest(self) -> str:
        """Of the form's schema, or of the address to open, for the audit log."""
        about = self.params.get("url") if self.mode == "url" else self.schema
        return hashlib.sha256(msgspec.json.encode(about, order="sorted")).hexdigest()[:16]

    @property
    def asked(self) -> AskedQuestion:
        return AskedQuestion(self.mode, self.digest)


class AskedQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a question."""

    mode: str
    digest: str


class Asker(Protocol):
    """Passes a server's questions to someone who can answer."""

    capabilities: Mapping[str, Any]
    """What can be answered, as MCP's client capabilities: of `elicitation`, `sampling` and `roots`."""

    async def ask(self, question: Question) -> Mapping[str, Any]:
        """The result of the question. Raises `QuestionRefused`."""
        ...


class CallAsker(Asker, Protocol):
    """The asker of one call."""

    @property
    def root(self) -> Path | None:
        """The caller's project."""
        ...

    async def permit(self, question: Question) -> None:
        """Gets the owner's approval to pass the question on. Raises `QuestionRefused`."""
        ...

    def note(self, question: Question, action: str) -> None:
        """What became of a question: the person's action, `answered`, or why nobody was asked."""
        ...


class Clock(Protocol):
    """The time limit of a call, which stands still while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class OpenCall:
    """A call in flight that questions may belong to."""

    __slots__ = ("agent", "asker", "clock", "pending", "task")

    def __init__(self, agent: str, asker: CallAsker | None, clock: Clock, task: str = "") -> None:
        self.agent = agent
        self.asker = asker
        self.clock = clock
        self.task = task
        """The server's id of the task whose result it waits for."""
        self.pending: set[asyncio.Task[None]] = set()
        """Questions being answered."""

    def end(self) -> None:
        for question in self.pending:
            question.cancel()


class ServerQuestions:
    """The questions of one connection to a legacy server, and the calls that they may belong to."""

    def __init__(self, config: ServerConfig, root: Path | None, on_untagged: Callable[[], None]) -> None:
        """`on_untagged` is called for a question that names no call."""
        self.config = config
        self._root = root
        self._on_untagged = on_untagged
        self.calls: dict[str, OpenCall] = {}
        """By the id of our request."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server is told when the connection begins, before any caller is known."""
        return offered_capabilities(self.config, None)

    def call_of(self, method: str, params: Mapping[str, Any], request_id: str) -> OpenCall | None:
        """The call that a question belongs to. On a shared stream it names none: while one agent's calls are in flight,
        it is about these; while several agents' are, nobody can be asked."""
        if request_id:
            return self.calls.get(request_id)
        if task := _related_task(params):
            return next((call for call in self.calls.values() if call.task == task), None)
        if method != ROOTS:
            self._on_untagged()
        agents = {call.agent for call in self.calls.values()}
        return next(iter(self.calls.values())) if len(agents) == 1 else None

    async def answer(self, method: str, params: Mapping[str, Any], call: OpenCall | None) -> Mapping[str, Any]:
        """Raises `QuestionRefused`."""
        question = prepared(self.config, method, params, None if call is None else call.asker)
        if call is None:
            return await settled(self.config, question, None, self._root)
        call.clock.pause()
        try:
            return await settled(self.config, question, call.asker, self._root)
        finally:
            call.clock.resume()


def _related_task(params: Mapping[str, Any]) -> str:
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if isinstance(meta, Mapping) else None
    task = related.get("taskId") if isinstance(related, Mapping) else None
    return task if isinstance(task, str) else ""


async def settled(
    config: ServerConfig, question: Question, asker: CallAsker | None, root: Path | None
) -> Mapping[str, Any]:
    """The answer: our own, or the asker's. `root` is that of the server's instance. Raises `QuestionRefused`."""
    if root is None and asker is not None:
        root = asker.root
    if question.method == ROOTS and config.roots_mode is RootsMode.PROJECT:
        return _roots_of(root)
    if asker is None:
        return _unasked(question, root)
    try:
        if not can_answer(asker.capabilities, question):
            result = _unasked(question, root)
            asker.note(question, NOBODY)
            return result
        if question.needs_approval:
            await asker.permit(question)
        result = await asker.ask(question)
        result = await asyncio.to_thread(roots_inside, result, root) if question.method == ROOTS else result
        action = action_in(question.mode, result)
        result = _with_defaults(question, result) if action == "accept" else result
    except QuestionRefused:
        asker.note(question, REFUSED)
        raise
    except asyncio.CancelledError:
        asker.note(question, UNANSWERED)
        raise
    asker.note(question, action)
    return result


def unanswered(question: Question) -> Mapping[str, Any]:
    """The answer where somebody was asked and gave none. Raises `QuestionRefused`."""
    if question.method == ELICITATION:
        return CANCEL
    raise QuestionRefused(f"The client did not answer {question.method}.", json_code=INTERNAL_ERROR)


NOBODY, REFUSED, UNANSWERED, ANSWERED = "nobody could be asked", "refused", "unanswered", "answered"


def action_in(mode: str, result: Mapping[str, Any]) -> str:
    """What the person did: `accept`, `decline` or `cancel`; `answered` for questions without such a choice. Raises
    `QuestionRefused` for an invalid answer."""
    if mode not in ("form", "url"):
        return ANSWERED
    action = result.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise QuestionRefused("The client's answer to a question is not valid: it has no action.")
    return str(action)


def _with_defaults(question: Question, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """An accepted form, with the schema's defaults for the fields that it leaves out."""
    properties = question.schema.get("properties")
    fields = properties.items() if question.mode == "form" and isinstance(properties, dict) else ()
    defaults = {name: one["default"] for name, one in fields if isinstance(one, dict) and "default" in one}
    content = result.get("content")
    given = content if isinstance(content, dict) else {}
    return {**result, "content": {**defaults, **given}} if defaults.keys() - given.keys() else result


def _unasked(question: Question, root: Path | None) -> Mapping[str, Any]:
    """The answer where nobody can be asked."""
    match question.method:
        case "roots/list":
            return _roots_of(root)
        case "elicitation/create":
            return CANCEL
        case _:
            raise QuestionRefused(
                f"Server '{question.server}' asked for a model's answer, and the caller has no model to ask.",
                json_code=METHOD_NOT_FOUND,
            )


class PassedQuestions(msgspec.Struct, frozen=True):
    """The questions of one round that the caller answers in a call of its own."""

    questions: Mapping[str, Question]
    answers: Mapping[str, Mapping[str, Any]]
    """Our own answers to the other questions of the round."""
    state: str | None
    """The server's."""


async def settle_round(
    config: ServerConfig, needed: NeededInput, asker: CallAsker | None, root: Path | None, *, passes: bool
) -> PassedQuestions:
    """Answers the questions of one round, together. `passes`: leaves those to the caller that only it can answer.
    Raises `QuestionRefused`."""
    asked = {key: prepared(config, one.method, one.params, asker) for key, one in needed.requests.items()}
    passed = {key: one for key, one in asked.items() if passes and _is_for_caller(config, one, asker)}
    for one in passed.values():
        if asker is not None and one.needs_approval:
            await asker.permit(one)
    own = {key: one for key, one in asked.items() if key not in passed}
    answers = await asyncio.gather(*(settled(config, one, asker, root) for one in own.values()))
    return PassedQuestions(passed, dict(zip(own, answers, strict=True)), needed.state)


def _is_for_caller(config: ServerConfig, question: Question, asker: CallAsker | None) -> bool:
    if question.method == ROOTS and config.roots_mode is RootsMode.PROJECT:
        return False
    return asker is not None and can_answer(asker.capabilities, question)


def can_answer(capabilities: Mapping[str, Any], question: Question) -> bool:
    held = capabilities.get(question.method.partition("/")[0])
    if not isinstance(held, Mapping):
        return False
    # An empty capability means forms, as before there were addresses to open.
    return question.mode not in ("form", "url") or question.mode in held or (question.mode == "form" and not held)


def offered_capabilities(config: ServerConfig, capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a server is told that it may ask. None: before any caller is known."""
    known = (
        {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}} if capabilities is None else capabilities
    )
    offered = {name: known[name] for name in ("elicitation", "sampling", "roots") if name in known}
    if config.sampling is SamplingMode.DENY:
        offered.pop("sampling", None)
    if config.roots_mode is RootsMode.NONE:
        offered.pop("roots", None)
    elif config.roots_mode is RootsMode.PROJECT or capabilities is None:
        offered["roots"] = {}
    return offered


def prepared(config: ServerConfig, method: str, params: Mapping[str, Any], asker: CallAsker | None = None) -> Question:
    """The question as it may be passed on. Raises `QuestionRefused`."""
    try:
        return _prepared(config, method, params)
    except QuestionRefused:
        if asker is not None:
            asker.note(Question(server=config.name, method=method, params=params), REFUSED)
        raise


def _prepared(config: ServerConfig, method: str, params: Mapping[str, Any]) -> Question:
    name = config.name
    if method not in METHODS:
        raise QuestionRefused(f"Server '{name}' asked for {printable(method)[:80]!r}.", json_code=METHOD_NOT_FOUND)
    question = Question(server=name, method=method, params=params)
    match question.mode:
        case "sampling" if config.sampling is SamplingMode.DENY:
            raise QuestionRefused(
                f"Server '{name}' asked for a model's answer, which its entry does not permit.",
                remedy="Set `sampling: ask` or `sampling: allow` in its entry to permit it.",
                json_code=METHOD_NOT_FOUND,
            )
        case "sampling":
            return msgspec.structs.replace(question, needs_approval=config.sampling is SamplingMode.ASK)
        case "roots" if config.roots_mode is RootsMode.NONE:
            raise QuestionRefused(
                f"Server '{name}' asked for roots, which it does not get.",
                remedy="Set `roots: project` in its entry to permit it.",
                json_code=METHOD_NOT_FOUND,
            )
        case "form":
            _refuse_secrets(question)
        case "url":
            _check_address(question)
    return question if question.mode == "roots" else msgspec.structs.replace(question, params=_naming(question))


def _roots_of(root: Path | None) -> dict[str, Any]:
    return {"roots": [] if root is None else [{"uri": root.as_uri(), "name": root.name or str(root)}]}


def roots_inside(result: Mapping[str, Any], root: Path | None) -> dict[str, Any]:
    """A client's roots, as far as they are inside the caller's project. Reads the disk."""
    kept = []
    roots = result.get("roots")
    for one in roots if isinstance(roots, list) and root is not None else ():
        path = _local_path(one.get("uri")) if isinstance(one, dict) else None
        if path is not None and root is not None and path.resolve().is_relative_to(root.resolve()):
            kept.append(one)
    return {"roots": kept}


def _local_path(uri: Any) -> Path | None:
    try:
        parts = urlsplit(uri) if isinstance(uri, str) else None
    except ValueError:
        return None
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost") or "\0" in uri:
        return None
    path = Path(unquote(parts.path))
    return path if path.is_absolute() else None


_SENSITIVE = (
    r"(?:pass ?(?:word|wd|phrase|code)s?|secrets?|credentials?|(?:api|private|access|secret|signing|encryption) ?keys?"
    r"|tokens?|cvv|cvc|security code|card number|pin(?: code)?|otp|one ?time (?:code|password)|seed phrase|ssn)\b"
    r"(?! (?:names?|ids?|types?|counts?|limits?|budgets?|managers?|stores?|path|file|scopes?|length|policy|expiry))"
)
_SECRET_NAME = re.compile(rf"\b{_SENSITIVE}")
_SECRET_WISH = re.compile(rf"\b(?:enter|type|paste|provide|supply|give|your)\b[^.?!]{{0,40}}\b{_SENSITIVE}")
_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_COUNTS = re.compile(r"\b(?:max|min|total|number of|num)\b[^.]{0,20}\btokens\b")


def _words(text: Any) -> str:
    return re.sub(r"[\W_]+", " ", _CASE.sub(" ", text)).lower()[:LONGEST_MESSAGE] if isinstance(text, str) else ""


def _refuse_secrets(question: Question) -> None:
    """The specification forbids forms for secrets, which would pass through clients and models."""
    properties = question.schema.get("properties")
    fields = properties.items() if isinstance(properties, dict) else ()
    free = [
        (name, one) for name, one in fields if isinstance(one, dict) and not {"enum", "oneOf", "const"} & one.keys()
    ]
    free = [(name, one) for name, one in free if one.get("type") not in ("boolean", "array")]
    for name, one in free:
        named = any(
            _SECRET_NAME.search(text) and not _COUNTS.search(text) for text in map(_words, (name, one.get("title")))
        )
        wished = _SECRET_WISH.search(_words(one.get("description")))
        if named or wished or one.get("format") == "password" or one.get("writeOnly") is True:
            raise _for_secret(question, f"its field {printable(str(name))[:80]!r} is for a secret")
    if len(free) == 1 and _SECRET_WISH.search(_words(question.params.get("message"))):
        raise _for_secret(question, "its message asks for a secret")


def _for_secret(question: Question, why: str) -> QuestionRefused:
    return QuestionRefused(
        f"Toolcrib refused a form of server '{question.server}': {why}. Forms must not ask for passwords, keys or "
        "other secrets, because their answers pass through clients and models.",
        remedy="The server must ask for it on a page of its own (URL elicitation).",
    )


def _check_address(question: Question) -> None:
    url = question.params.get("url")
    if not isinstance(url, str) or not url.isprintable() or host_of(url) == "":
        raise QuestionRefused(
            f"Toolcrib refused an address that server '{question.server}' asked to open: it is not an http(s) URL."
        )


def host_of(url: str) -> str:
    """The host that a URL leads to, in ASCII; empty if it is no http(s) URL with only a host before its path."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("ascii")
    except (ValueError, UnicodeError):
        return ""
    return host if parts.scheme in ("http", "https") and "@" not in parts.netloc and "\\" not in url else ""


def _naming(question: Question) -> dict[str, Any]:
    """The params with the server's name in front of what a person or a model reads."""
    params = dict(question.params)
    name = printable(question.server)
    if question.mode == "sampling":
        system = params.get("systemPrompt")
        return {**params, "systemPrompt": f"This request is from the MCP server '{name}'. {system or ''}".rstrip()}
    message = params.get("message")
    said = message if isinstance(message, str) else ""
    if question.mode == "url":
        host = host_of(params["url"])
        odd = " (check this name: it contains other letters than it seems to)" if "xn--" in host else ""
        return {
            **params,
            "message": f"Server '{name}' asks you to open a page of {host}{odd}: {said[:LONGEST_MESSAGE]}",
        }
    return {**params, "message": f"Server '{name}' asks: {said[:LONGEST_MESSAGE]}"}


class NeededInput(msgspec.Struct, frozen=True):
    """A modern result that asks for input."""

    requests: dict[str, _InputRequest] = msgspec.field(name="inputRequests", default_factory=dict)
    state: str | None = msgspec.field(name="requestState", default=None)


class _InputRequest(msgspec.Struct, frozen=True):
    method: str
    params: dict[str, Any] = {}


def needed_input(server: str, result: bytes) -> NeededInput:
    """Raises `ProtocolViolation`."""
    try:
        needed = msgspec.json.decode(result, type=NeededInput)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{server}' asked for input in an invalid form: {error}.") from None
    if len(needed.requests) > MAX_QUESTIONS:
        raise ProtocolViolation(f"Server '{server}' asked more than {MAX_QUESTIONS} questions at once.")
    return needed


def with_input(params: Mapping[str, Raw], answers: Mapping[str, Any], state: str | None) -> dict[str, Raw]:
    """The params of the next round."""
    rest = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        rest["inputResponses"] = Raw(msgspec.json.encode(answers))
    return rest if state is None else {**rest, "requestState": Raw(msgspec.json.encode(state))}
