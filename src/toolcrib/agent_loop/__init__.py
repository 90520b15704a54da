"""The agent loop behind `run_agent`: a model, tools, and a stream of typed events.

In: a prompt and `AgentOptions`. Out: the classes of `events`. `options` defines the options, `setup` checks them,
`run` opens and closes a run, `loop` queries the model, `coding` has the built-in tools, `models` the providers. Its
dependencies are the extra `toolcrib[agent]`, imported when a run starts.
"""
