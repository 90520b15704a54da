"""How a step of a scenario is worded.

In: a sentence with names in braces. Out: what pytest-bdd finds the step by.
"""

from __future__ import annotations

import re

from pytest_bdd import parsers


def words(step: str) -> parsers.re:
    """`{name}` stands for a word, `"{name}"` for a text without quotes: so no step can be taken for a longer one."""
    quoted = re.sub(r'"\{(\w+)\}"', r'"(?P<\1>[^"]*)"', re.sub(r"[.+*?()|]", r"\\\g<0>", step))
    return parsers.re(re.sub(r"\{(\w+)\}", r"(?P<\1>\\w+)", quoted) + r"\Z")
