"""Offers as each provider's wire format wants them.

In: an `Offer`. Out: a `Definition`: what to send, each place where the provider's dialect could not take the schema as
it is, and the way back for the arguments that its model writes. `toolbox` and the agent's models ask.

    wire, adaptations, undo = openai.definition(offer, "chat")
    arguments = offer.arguments(undo(json.loads(call.arguments)))

Where nobody knows which provider's model wrote the arguments, `undo_arguments` here takes back what any of them may
have changed.
"""

from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Adaptation, Definition
from toolcrib.formats.undo import Provider, undo_arguments

__all__ = ["Adaptation", "Definition", "Provider", "anthropic", "google", "openai", "undo_arguments"]
