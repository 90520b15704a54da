"""Every requirement has a test, or is in the list of those that are not built yet.

The list may only shrink: an identifier that has a test must leave it, and none may be added that is already built.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "requirements.md"

_NUMBERS_NOT_BUILT_YET = {
    "BNS": (11,),
}
NOT_BUILT_YET = frozenset(f"{family}-{n}" for family, numbers in _NUMBERS_NOT_BUILT_YET.items() for n in numbers)
LARGEST = 1
"""How long the list is now. Lower it whenever the list shrinks."""


def known() -> list[str]:
    return re.findall(r"^\| ([A-Z]{3}-\d+) \|", PAGE.read_text(), re.MULTILINE)


MARK = re.compile(r"\bmark\.req\(([^)]*)\)")


@functools.cache
def shown() -> dict[str, set[str]]:
    """Each identifier in a `req` mark, and the files that have it."""
    found: dict[str, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for arguments in MARK.findall(file.read_text()):
            assert re.fullmatch(r'\s*("[^"]+",?\s*)+', arguments), f"{file.name}: a req mark holds plain identifiers"
            for name in re.findall(r'"([^"]+)"', arguments):
                found.setdefault(name, set()).add(file.name)
    return found


def test_every_requirement_has_a_test_or_is_listed_as_not_built() -> None:
    assert len(known()) == len(set(known())) == 53, "the page names each requirement once"
    missing = set(known()) - shown().keys() - NOT_BUILT_YET
    assert not missing, f"no test is marked with {sorted(missing)}"


def test_marks_name_only_requirements_that_exist() -> None:
    unknown = {name: files for name, files in shown().items() if name not in known()}
    assert not unknown


def test_the_list_of_what_is_not_built_never_grows_and_holds_only_requirements_without_a_test() -> None:
    assert set(known()) >= NOT_BUILT_YET
    assert len(NOT_BUILT_YET) <= LARGEST
    built = NOT_BUILT_YET & shown().keys()
    assert not built, f"take these out of NOT_BUILT_YET: {sorted(built)}"
