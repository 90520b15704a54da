"""The model of a run, called over its provider's HTTP interface.

`endpoint` finds the URL and the key; `definitions` writes the tools in the provider's format. The other modules need
`toolcrib[agent]` and are imported when a run starts: `opening` opens a model, `http` is its HTTP client, `answers`
checks that an answer is complete, `retrying` repeats failed requests, and each provider has a module.
"""
