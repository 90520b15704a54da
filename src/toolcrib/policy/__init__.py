"""Who may use what: (caller, tool) → a decision that carries the rule that made it.

In: a `Caller` and a `Tool` of the catalog. Out: a `Decision`. The same function serves listing and
calling, so that what is shown and what may be called never differ.
"""

from toolcrib.policy.decision import CLIENT, OWNER, Caller, Decision, Verdict, decide

__all__ = ["CLIENT", "OWNER", "Caller", "Decision", "Verdict", "decide"]
