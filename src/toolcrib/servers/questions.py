"""What a server asks in the middle of a call: elicitation, sampling and roots, in both protocol generations.

In: a server's `Question` and its configuration. Out: our own answer to it, or the question as its `Asker` may pass it
on; the input that a modern result asks for (`needed_input`). `link` and `server` call this for questions of either
generation; `gateway.asking`, `identity.approvals` and the library implement `Asker`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from toolcrib.config.masking import printable
from toolcrib.config.model import RootsMode, SamplingMode, ServerConfig
from toolcrib.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolViolation
from toolcrib.servers.form import defaults
from toolcrib.servers.question_checks import (
    address_fault,
    caution,
    displayable,
    form_fault,
    host_of,
    quoted,
    shown_form,
    wanted_secret,
)
from toolcrib.servers.roots import roots_inside, roots_of
from toolcrib.servers.wire import LARGEST_QUESTION

log = logging.getLogger(__name__)

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
METHODS = frozenset({ELICITATION, SAMPLING, ROOTS})
RELATED_TASK = "io.modelcontextprotocol/related-task"
INPUT_REQUIRED = "input_required"
INPUT_RESPONSES = "inputResponses"
QUESTION_SECONDS = 600.0
"""How long a question waits for an answer."""
MAX_ROUNDS = 10
"""How often a modern server may ask during one call."""
MAX_QUESTIONS = 32
"""In one round, or at the same time over one connection."""
LONGEST_QUESTION = 2 * QUESTION_SECONDS
"""Seconds after which a question ends whoever holds it, such as a program's hook: no call may hang for ever. The time
includes the owner's approval."""
MAX_STATE = 64 * 1024
REFUSED_BY_PERSON = -1
"""The code that the specification has for sampling that a person refuses."""

CANCEL: Mapping[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}


class QuestionRefused(ProtocolViolation):
    """A question that is not passed on, or that its reader could not answer. `json_code` is for the server."""

    def __init__(self, message: str, *, remedy: str = "", json_code: int = INVALID_PARAMS) -> None:
        super().__init__(message, remedy=remedy)
        self.json_code = json_code


class QuestionUnanswered(Exception):
    """Somebody was asked, and gave no answer."""


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
    tool: str = ""
    """`server:tool`: the call that it belongs to, once that is known."""

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
    def input_request(self) -> dict[str, Any]:
        """For a modern client, whose protocol has no ids of pages."""
        params = {key: value for key, value in self.client_params.items() if key != "elicitationId"}
        return {"method": self.method, "params": params}

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
        """The result of the question. Raises `QuestionRefused`, and `QuestionUnanswered` after `QUESTION_SECONDS`."""
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


async def settled(
    config: ServerConfig, question: Question, asker: CallAsker | None, root: Path | None
) -> Mapping[str, Any]:
    """The answer: our own, or the asker's. `root` is that of the server's instance. Raises `QuestionRefused`."""
    if root is None and asker is not None:
        root = asker.root
    if question.method == ROOTS and config.roots_mode is RootsMode.PROJECT:
        return roots_of(root)
    if asker is None:
        return _nobody_asked(config, question, root)
    action = UNANSWERED
    try:
        if not can_answer(asker.capabilities, question):
            action = NOBODY
            return _nobody_asked(config, question, root)
        async with asyncio.timeout(LONGEST_QUESTION):
            if question.needs_approval:
                await asker.permit(question)
            result = await asker.ask(question)
        result = await asyncio.to_thread(roots_inside, result, root) if question.method == ROOTS else result
        action = action_in(question.mode, result)
        return _with_defaults(question, result) if action == "accept" else result
    except (TimeoutError, QuestionUnanswered):
        return _unanswered(question)
    except QuestionRefused:
        action = action if action == NOBODY else REFUSED
        raise
    finally:
        asker.note(question, action)


def _nobody_asked(config: ServerConfig, question: Question, root: Path | None) -> Mapping[str, Any]:
    if question.method != ROOTS:
        log.warning("%s: it asked a question (%s), but its caller cannot be asked", config.name, question.mode)
    return unasked(config, question, root)


def _unanswered(question: Question) -> Mapping[str, Any]:
    """The answer where somebody was asked and gave none. Raises `QuestionRefused`."""
    if question.method == ELICITATION:
        return CANCEL
    raise QuestionRefused(f"The client did not answer {question.method}.", json_code=INTERNAL_ERROR)


NOBODY, REFUSED, UNANSWERED, ANSWERED = "nobody could be asked", "refused", "unanswered", "answered"
PASSED_ON = "passed on"


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
    missing = defaults(question.schema) if question.mode == "form" else {}
    content = result.get("content")
    given = content if isinstance(content, dict) else {}
    return {**result, "content": {**missing, **given}} if missing.keys() - given.keys() else result


def unasked(config: ServerConfig, question: Question, root: Path | None) -> Mapping[str, Any]:
    """The answer where nobody can be asked, or nobody has answered."""
    match question.method:
        case "roots/list":
            return roots_of(root if config.roots_mode is RootsMode.PROJECT else None)
        case "elicitation/create":
            return CANCEL
        case _:
            raise QuestionRefused(
                f"Server '{question.server}' asked for a model's answer, and there was none to ask.",
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
    asked = {}
    for key, wanted in needed.requests.items():
        asked[key] = prepared(config, wanted.method, wanted.params, asker)
        # The checks of a large form take a while.
        await asyncio.sleep(0)
    passed = {key: one for key, one in asked.items() if passes and _is_for_caller(config, one, asker)}
    for one in passed.values():
        if asker is not None and one.needs_approval:
            try:
                await asker.permit(one)
            except QuestionRefused:
                asker.note(one, REFUSED)
                raise
    own = {key: one for key, one in asked.items() if key not in passed}
    asking = {key: asyncio.ensure_future(settled(config, question, asker, root)) for key, question in own.items()}
    try:
        await asyncio.gather(*asking.values())
    finally:
        # If one is refused, nobody needs the other answers.
        for answer in asking.values():
            answer.cancel()
        await asyncio.gather(*asking.values(), return_exceptions=True)
    return PassedQuestions(passed, {key: answer.result() for key, answer in asking.items()}, needed.state)


def _is_for_caller(config: ServerConfig, question: Question, asker: CallAsker | None) -> bool:
    if question.method == ROOTS and config.roots_mode is RootsMode.PROJECT:
        return False
    return asker is not None and can_answer(asker.capabilities, question)


def can_answer(capabilities: Mapping[str, Any], question: Question) -> bool:
    held = capabilities.get(question.method.partition("/")[0])
    if not isinstance(held, Mapping):
        return False
    if question.mode == "sampling":
        return "tools" in held or not {"tools", "toolChoice"} & question.params.keys()
    # An empty capability means forms, as before there were addresses to open.
    return question.mode == "roots" or question.mode in held or (question.mode == "form" and not held)


def offered_capabilities(config: ServerConfig, capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a server is told that it may ask. None: before any caller is known."""
    known = (
        {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}} if capabilities is None else capabilities
    )
    offered = {name: known[name] for name in ("elicitation", "sampling") if isinstance(known.get(name), Mapping)}
    if config.sampling is SamplingMode.DENY:
        offered.pop("sampling", None)
    if config.roots_mode is RootsMode.PROJECT or (config.roots_mode is RootsMode.CLIENT and "roots" in known):
        # Without `listChanged`: the server is not told when a client's roots change.
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


_MODES = (None, "form", "url")


def _prepared(config: ServerConfig, method: str, params: Mapping[str, Any]) -> Question:
    name = config.name
    if method not in METHODS or (method == ELICITATION and params.get("mode") not in _MODES):
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
            question = msgspec.structs.replace(question, needs_approval=config.sampling is SamplingMode.ASK)
        case "roots" if config.roots_mode is RootsMode.NONE:
            raise QuestionRefused(
                f"Server '{name}' asked for roots, which it does not get.",
                remedy="Set `roots: project` in its entry to permit it.",
                json_code=METHOD_NOT_FOUND,
            )
        case "form" if why := form_fault(params.get("requestedSchema")):
            raise QuestionRefused(f"Toolcrib refused a form of server '{name}': {why}.")
        case "form" if why := wanted_secret(question.schema, params.get("message")):
            raise QuestionRefused(
                f"Toolcrib refused a form of server '{name}': {why}. Forms must not ask for passwords, keys or other "
                "secrets, because their answers pass through clients and models.",
                remedy="The server must ask for it on a page of its own (URL elicitation).",
            )
        case "url" if why := address_fault(params.get("url")):
            raise QuestionRefused(f"Toolcrib refused an address that server '{name}' asked to open: {why}.")
    return question if question.mode == "roots" else msgspec.structs.replace(question, params=_naming(question))


def _naming(question: Question) -> dict[str, Any]:
    """The params with the server's name in front of what a person or a model reads, and without what is for us."""
    params = {key: value for key, value in question.params.items() if key not in _FOR_US}
    match question.mode:
        case "sampling":
            system = params.get("systemPrompt")
            said = displayable(system) if isinstance(system, str) else ""
            return {**params, "systemPrompt": f"{naming(question)}{said}".rstrip()}
        case "form":
            params["requestedSchema"] = shown_form(question.schema)
    return {**params, "message": f"{naming(question)}{quoted(params.get('message'))}"}


_FOR_US = ("task", "includeContext")
"""No client is asked for a task. The context of the gateway's "server" would be that of all servers."""


def naming(question: Question) -> str:
    """The words in front of a question's text."""
    name = printable(question.server)
    if question.mode == "sampling":
        return f"This request is from the MCP server '{name}'. "
    if question.mode == "form":
        return f"Server '{name}' asks: "
    url = question.params["url"]
    return f"Server '{name}' asks you to open a page on {host_of(url)}{caution(url)}: "


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
        if len(result) > LARGEST_QUESTION:
            raise ProtocolViolation(f"Server '{server}' asked for input with more than {LARGEST_QUESTION // 1024} KB.")
        needed = msgspec.json.decode(result, type=NeededInput)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{server}' asked for input in an invalid form: {error}.") from None
    if len(needed.requests) > MAX_QUESTIONS:
        raise ProtocolViolation(f"Server '{server}' asked more than {MAX_QUESTIONS} questions at once.")
    if needed.state is None and not needed.requests:
        raise ProtocolViolation(f"Server '{server}' asked for input without a question.")
    if len((needed.state or "").encode()) > MAX_STATE:
        raise ProtocolViolation(f"Server '{server}' sent a state of more than {MAX_STATE // 1024} KB.")
    return needed


def with_input(params: Mapping[str, Raw], answers: Mapping[str, Any], state: str | None) -> dict[str, Raw]:
    """The params of the next round."""
    rest = {key: value for key, value in params.items() if key not in (INPUT_RESPONSES, "requestState")}
    if answers:
        rest[INPUT_RESPONSES] = Raw(msgspec.json.encode(answers))
    return rest if state is None else {**rest, "requestState": Raw(msgspec.json.encode(state))}
