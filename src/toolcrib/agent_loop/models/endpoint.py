"""The URL and the key of a run's model.

In: `AgentOptions`. Out: a `ModelEndpoint`, or a `UsageError` with the correct usage. This module imports no provider's
SDK; `load_module` imports the modules that do, when a run needs them.

A key is sent only to its intended recipient. A provider's own URL gets `api_key`, or the key in the provider's usual
variable. A `base_url` gets `api_key` or no key at all, as local servers expect. Variables that would redirect the SDKs
or add headers (`OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL`, `ANTHROPIC_CUSTOM_HEADERS`, `GOOGLE_GEMINI_BASE_URL` …) are
ignored: use `base_url`.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from toolcrib.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.agent_loop.options import AgentOptions


class ToolFormat(enum.StrEnum):
    """The format of tool definitions for a provider."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


class ModelProvider(NamedTuple):
    name: str
    module: str
    """Its module in this package."""
    format: ToolFormat
    url: str
    """Its own base URL, in its SDK's form."""
    variables: tuple[str, ...]
    """The environment variables for its key; the first one that is set is used."""


_OPENAI, _OPENAI_KEY = "https://api.openai.com/v1", ("OPENAI_API_KEY",)
_GOOGLE, _GOOGLE_KEYS = "https://generativelanguage.googleapis.com", ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_TABLE = (
    ModelProvider("openai", "openai", ToolFormat.OPENAI_CHAT, _OPENAI, _OPENAI_KEY),
    ModelProvider("openai-responses", "openai", ToolFormat.OPENAI_RESPONSES, _OPENAI, _OPENAI_KEY),
    ModelProvider("anthropic", "anthropic", ToolFormat.ANTHROPIC, "https://api.anthropic.com", ("ANTHROPIC_API_KEY",)),
    ModelProvider("google", "google", ToolFormat.GOOGLE, _GOOGLE, _GOOGLE_KEYS),
    ModelProvider(
        "openrouter", "openrouter", ToolFormat.OPENAI_CHAT, "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)
    ),
)
PROVIDERS: Mapping[str, ModelProvider] = MappingProxyType({provider.name: provider for provider in _TABLE})


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint:
    provider: ModelProvider
    model: str
    """The provider's name for it."""
    url: str
    key: str = field(repr=False)
    """Empty to send no key."""
    organization: str = ""
    project: str = ""
    """The OpenAI organization and project that are billed."""

    @property
    def elsewhere(self) -> bool:
        """Whether this is not the provider's own URL."""
        return self.url != self.provider.url


def find_endpoint(options: AgentOptions) -> ModelEndpoint:
    name, _, model = options.model.partition(":")
    provider = _provider(name, options.model)
    if not model:
        raise UsageError(f"{options.model!r} has no model name.", remedy=f"Write {provider.name}:MODEL.")
    if provider.name == "openrouter" and "/" not in model:
        raise UsageError(
            f"OpenRouter's model names start with their maker, but {model!r} does not.",
            remedy=f"Write openrouter:MAKER/{model}; https://openrouter.ai/models lists them.",
        )
    if "max_retries" in options.settings:
        raise UsageError("settings must not contain max_retries.", remedy="Use AgentOptions(retries=…).")
    _check_installed()
    key = (options.api_key or "").strip()
    if options.base_url:
        return ModelEndpoint(provider=provider, model=model, url=_checked(options.base_url), key=key)
    usual = os.environ if options.environ is None else options.environ
    return ModelEndpoint(
        provider=provider,
        model=model,
        url=provider.url,
        key=key or _usual_key(provider, usual),
        organization=usual.get("OPENAI_ORG_ID", ""),
        project=usual.get("OPENAI_PROJECT_ID", ""),
    )


def _provider(name: str, model: str) -> ModelProvider:
    if (provider := PROVIDERS.get(name)) is not None and ":" in model:
        return provider
    near = difflib.get_close_matches(name, PROVIDERS, n=2)
    meant = f"Did you mean {' or '.join(f'{one}:…' for one in near)}? " if near else ""
    raise UsageError(
        f"{model!r} does not start with a known provider.",
        remedy=f"{meant}Write PROVIDER:MODEL, with one of {', '.join(PROVIDERS)}. For a compatible server, use the "
        "provider whose interface it has, and set base_url.",
        data={"providers": list(PROVIDERS)},
    )


def _check_installed() -> None:
    if importlib.util.find_spec("pydantic_ai") is None:
        raise UsageError("The agent's dependencies are not installed.", remedy='Run pip install "toolcrib[agent]".')


def _checked(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if "@" in base_url.partition("//")[2].partition("/")[0]:
        raise UsageError("base_url contains a user or a password.", remedy="Remove them, and set api_key instead.")
    if not usable:
        raise UsageError(
            f"base_url {base_url!r} is not an HTTP URL.", remedy="Write http://… or https://…, with a host."
        )
    return base_url


def _usual_key(provider: ModelProvider, usual: Mapping[str, str]) -> str:
    for variable in provider.variables:
        if key := usual.get(variable, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise UsageError(
                    f"{variable} is not a valid key.", remedy="Set it to a key of printable ASCII characters."
                )
            return key
    raise UsageError(
        f"No API key for {provider.name} is set.",
        remedy=f"Set {' or '.join(provider.variables)}, or AgentOptions(api_key=…).",
        data={"variables": list(provider.variables)},
    )


def load_module(name: str) -> ModuleType:
    """Imports a module of `agent_loop`, such as `models.openai`. Slow the first time, so call it in a thread."""
    try:
        return importlib.import_module(f"toolcrib.agent_loop.{name}")
    except ImportError as error:
        raise UsageError(
            f"The agent's dependencies are not installed: {error}.", remedy="Run pip install 'toolcrib[agent]'."
        ) from error
