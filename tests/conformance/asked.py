"""What the fixture servers of both eras ask in the scenarios of the conformance suite. Standard library only."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def form(message: str, schema: Json) -> Json:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema, "mode": "form"}}


def ask(message: str, **properties: str) -> Json:
    """A form of required fields, each with its type."""
    wanted = {name: {"type": kind} for name, kind in properties.items()}
    return form(message, {"type": "object", "properties": wanted, "required": list(properties)})


def sample(prompt: str) -> Json:
    messages = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 64}}


ROOTS: Json = {"method": "roots/list", "params": {}}
DEFAULTS: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
_PLAIN = ["option1", "option2", "option3"]
_TITLED = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
CHOICES: Json = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": _PLAIN},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _PLAIN}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}
NAME = ask("What is your name?", name="string")
CONTEXT = ask("What context should the prompt use?", context="string")
CONFIRM = ask("Please confirm", ok="boolean")
STEPS = (
    ask("Step 1: What is your name?", name="string"),
    ask("Step 2: What is your favorite color?", color="string"),
)
CAPITAL = sample("What is the capital of France?")
