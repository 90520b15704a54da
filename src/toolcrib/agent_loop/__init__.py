"""An agent of one's own: a model, tools, and a loop, as a stream of typed events.

In: a prompt and `AgentOptions`. Out: events of `agent.events`. `options` says what can be chosen, `run` is the loop,
`coding` the built-in tools, `models` the providers. Its dependencies are the extra `toolcrib[agent]`, imported when a
run begins.
"""
