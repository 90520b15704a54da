"""Offered tools as each provider's wire format wants them.

In: an `OfferedTool`. Out: a `Definition`: what to send, each place where the provider's dialect could not take the
schema as it is, and the way back for the arguments that its model writes. `Tools` and the agent loop's models use it.

    wire, adaptations, undo = openai.definition(offer, "chat")
    arguments = offer.arguments(undo(json.loads(call.arguments)))

Where nobody knows which provider's model wrote the arguments, `undo.undo_arguments` takes back what any of them may
have changed. Nothing is imported here: who only needs `definition` pays for no format.
"""
