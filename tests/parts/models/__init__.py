"""Models that follow a script, behind the real HTTP interfaces of their providers, on loopback.

In: a list of tool calls. Out: what a provider's service would stream, and a record of what the model was given.
`script` says what comes next, `server` speaks HTTP, the other files are one provider's wire format each.
"""
