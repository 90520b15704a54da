"""Permissions: (permission, tool, arguments) → a decision with the rule behind it.

In: profiles and rules; tools of the catalog. Out: a `Decision`. One function serves listing, searching and calling.
Above: `identity`, which stores the rules, and every caller of `decide`. Below: `catalog`.
"""

from toolcrib.policy.condition import Condition, Matches, OneOf, Under, condition_from
from toolcrib.policy.permission import Decision, Permission
from toolcrib.policy.profile import BUILTIN, OwnTools, Profile, profile_data, profile_from
from toolcrib.policy.rule import Rule, RuleOrigin, Verdict, rule_data, rule_from

__all__ = [
    "BUILTIN",
    "Condition",
    "Decision",
    "Matches",
    "OneOf",
    "OwnTools",
    "Permission",
    "Profile",
    "Rule",
    "RuleOrigin",
    "Under",
    "Verdict",
    "condition_from",
    "profile_data",
    "profile_from",
    "rule_data",
    "rule_from",
]
