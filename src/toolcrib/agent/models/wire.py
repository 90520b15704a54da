"""A pydantic-ai model that sends the definitions it was given.

In: nothing. Out: `AsGiven`, to be mixed into a provider's model in front of it. Without it pydantic-ai would rewrite
the schemas for what it takes for the provider's dialect; that is done in `catalog.formats`, and told.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from toolcrib.agent.models.definitions import Definitions


class AsGiven:
    definitions: Definitions

    def customize_request_parameters(self, model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
        return model_request_parameters

    def _map_tool_definition(self, f: ToolDefinition, *_: Any, **__: Any) -> Any:
        return self.definitions.of(f.name)
