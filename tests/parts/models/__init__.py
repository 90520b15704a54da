"""Models that follow a script, behind the real HTTP interfaces of their providers, on loopback.

In: a list of steps. Out: what a provider's service would stream, and a record of what the model was given. `script`
says what comes next in a `conversation`, `server` speaks HTTP, `anthropic`, `openai` and `google` are one provider's
wire format each. `python -m parts.models PROVIDER SCRIPT.json` runs one by itself.
"""
