"""Whatever a project's `.env` file names for Gemini CLI is emptied, and the person's own is understood as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolcrib.coding_agents.client_spec import LaunchRequest
from toolcrib.coding_agents.known import gemini_launch
from toolcrib.coding_agents.known.gemini_launch import env_file_variables
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-5")

NAME = "GOOGLE_GEMINI_BASE_URL"
NO_BLANKS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-=:")
"""What can be no blank to anybody, since it is part of a name or follows it."""


@pytest.fixture
def order(tmp_path: Path) -> LaunchRequest:
    for name in ("home/.gemini", "project/.gemini"):
        (tmp_path / name).mkdir(parents=True)
    return LaunchRequest(
        prompt="",
        own_tools=OwnTools.READ,
        url="",
        token="",
        headers={},
        folder=tmp_path / "private",
        workdir=tmp_path / "project",
        environ={"HOME": str(tmp_path / "home"), "PATH": "/bin"},
    )


def output(order: LaunchRequest, project: bytes = b"", person: bytes = b"") -> dict[str, str]:
    home = Path(order.environ["HOME"])
    (order.workdir / ".gemini" / ".env").write_bytes(project)
    (home / ".gemini" / ".env").write_bytes(person)
    return env_file_variables(order, home)


def test_whatever_character_is_taken_for_blank_the_name_is_emptied() -> None:
    every = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    for blank in every:
        if blank not in NO_BLANKS:
            for line in (f"{NAME}{blank}=x", f"X=1{blank}{NAME}: x", f"export{blank}{NAME}{blank}{blank}= 'x'"):
                assert NAME in gemini_launch._NAMED.findall(line), repr(line)


@pytest.mark.parametrize("blank", ["\ufeff", "\u180e", "\x1c", "\u00a0", "\u2028", "\r", "\r\n", "\v", "\n\n", ""])
@pytest.mark.parametrize("start", ["", "\ufeff", "# c\r", "A='\n", "\u2029", "\xff"])
def test_odd_blanks_around_a_name_do_not_hide_it(order: LaunchRequest, blank: str, start: str) -> None:
    assert output(order, f"{start}{blank}{NAME}{blank}=x".encode("latin-1", "ignore"))[NAME] == ""
    assert output(order, f"{start}{blank}{NAME}{blank}=x".encode())[NAME] == ""


AS_GEMINI_READS = re.compile(
    # dotenv's own, with blanks, ends of lines and letters as JavaScript has them.
    r"""(?:^|(?<=[\n\r\u2028\u2029]))B*(?:export B+)?([A-Za-z0-9_.-]+)(?:B*=B*?|:B+?)
    (B*'(?:\\'|[^'])*'|B*"(?:\\"|[^"])*"|B*`(?:\\`|[^`])*`|[^\#\r\n]+)?B*(?:\#[^\n\r\u2028\u2029]*)?
    (?:\Z|(?=[\n\r\u2028\u2029]))""".replace(
        "B", r"[\t\n\v\f\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
    ),
    re.VERBOSE,
)
PIECES = st.sampled_from(
    [*"AB.-_=:#'\"`\\ \t\n\r\v\f\x1c\x85\xa0", "export ", "\u1680\u2003\u2028\u2029", "\u3000", "\ufeff", "\u200b", "é"]
)


@settings(max_examples=400, deadline=None)
@given(text=st.lists(PIECES, max_size=24).map("".join))
@example(text="A\ufeff=x")
@example(text="A='\nB=x'")
def test_every_name_that_gemini_finds_is_emptied(order: LaunchRequest, text: str) -> None:
    names = {match[1] for match in AS_GEMINI_READS.finditer(re.sub("\r\n?", "\n", text))}
    assert names <= output(order, text.encode()).keys()


def test_values_are_not_taken_for_names(order: LaunchRequest) -> None:
    assert output(order, b"KEY=sk-0123\nOTHER='a secret'\n").keys() == {"KEY", "OTHER"}


def test_a_file_with_too_many_names_is_refused_and_a_long_one_is_looked_through_fast(order: LaunchRequest) -> None:
    many = "".join(f"NAME_{number}=\n" for number in range(10_000))
    with pytest.raises(ConfigError, match="too many variables"):
        output(order, many.encode())
    assert output(order, b"x" * 1_000_000) == {}
    assert output(order, b" \n" * 500_000 + b"A=1")["A"] == ""
    assert output(order, b"A \n" + b"\n" * 500_000 + b"=1")["A"] == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\ufeffKEY=x", "x"),
        ("KEY\ufeff=\u00a0x\u3000", "x"),
        ("KEY='a\nb' # c", "a\nb"),
        ('KEY="a\\nb"', "a\nb"),
        ("KEY=a\\nb", "a\\nb"),
        ("KEY='a\\nb'", "a\\nb"),
        ('KEY="open\\n', '"open\n'),
        ("KEY=\x1cx", "\x1cx"),
        ("KEY=a\rOTHER=b", "a"),
        ("KEY=\nOTHER=b", ""),
        ("KEY: `x`", "x"),
        ("KEY=it's", "it's"),
    ],
)
def test_the_users_env_file_is_parsed_as_gemini_does(order: LaunchRequest, text: str, wanted: str) -> None:
    assert output(order, b"KEY=other\n", text.encode())["KEY"] == wanted
