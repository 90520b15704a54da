"""Offered tools in each provider's wire format.

In: an `OfferedTool`. Out: a `Definition`: the tool to send, a list of the changes that the provider's dialect made
necessary, and a function that reverts them in the arguments of a call. Used by `Tools` and the agent loop's models.

    wire, adaptations, undo = openai.definition(offer, "chat")
    arguments = offer.arguments(undo(json.loads(call.arguments)))

If you don't know which provider's model wrote the arguments, use `undo.undo_arguments`. This module imports nothing, so
that importing `definition` doesn't load the formats.
"""
