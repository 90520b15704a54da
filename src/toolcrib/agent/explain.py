"""Why a run could not go on, for people.

In: what pydantic-ai raised, or anything else. Out: what went wrong, and what would help. `course` tells it as the run's
last event.
"""

from __future__ import annotations

from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, ModelQuotaExceededError, UserError

from toolcrib.agent.models.failures import AnswerStopped, BrokenAnswer, Wordless, reason

BY_STATUS = {
    400: "The provider does not take this request: check the model's name, `settings`, and what the tools returned.",
    401: "Check the key: `api_key`, or the provider's variable.",
    402: "The provider wants to be paid first.",
    403: "This key may not use the model.",
    404: "Check the model's name, and `base_url` if you gave one.",
    413: "The conversation has become too long for the provider: begin a new one.",
    429: "The provider wants fewer requests: wait, or raise `retries`.",
}
LATER = "The provider is in trouble: try again later, or raise `retries`."
SAYS_NOTHING = "Check the model's name and `settings`, or ask in other words."
BROKEN = "Run it again with `history=` this run's `messages`, or raise `retries`."
STOPPED = "The provider's documentation explains this stop reason."
UNREACHED = "Check the network, and `base_url` if you gave one."


def is_known(error: Exception) -> bool:
    """Whether the words say enough; of any other the log has the whole."""
    return isinstance(error, AgentRunError | UserError)


def error(error: Exception) -> str:
    return reason(error) if is_known(error) else f"{type(error).__name__}: {error}"


def remedy(error: Exception) -> str:
    if isinstance(error, ModelQuotaExceededError):
        return "The account's quota is used up: raise it with the provider."
    if isinstance(error, ModelHTTPError):
        return BY_STATUS.get(error.status_code, LATER if error.status_code >= 500 else "")
    if isinstance(error, Wordless):
        return SAYS_NOTHING
    if isinstance(error, BrokenAnswer):
        return BROKEN
    if isinstance(error, AnswerStopped):
        return STOPPED
    return UNREACHED if isinstance(error, ModelAPIError) else ""
