"""What a person approves shows as what it is."""

from __future__ import annotations

import unicodedata

import pytest

from toolcrib.config.show import visible


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("rm\u200b -rf\u2060", r"rm\u200b -rf\u2060"),
        ("a\x1b[2K\r\nb\x9b", r"a\x1b[2K\r\nb\x9b"),
        ("ls\u00a0-la\u3164\ufe0f\u2800", r"ls\xa0-la\u3164\ufe0f\u2800"),
        ("\u3161rf \u23afrf \ufe58rf \u141fetc", r"\u3161rf \u23afrf \ufe58rf \u141fetc"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("p\u0430ypal.com", r"p\u0430ypal.com"),
        ("/etc/p\u03b1sswd", r"/etc/p\u03b1sswd"),
        ("\u0441\u043e\u0440\u0443", r"\u0441\u043e\u0440\u0443"),
        ("\uff52\uff4d \U0001d42b\U0001d426 \ufb01le", r"\uff52\uff4d \U0001d42b\U0001d426 \ufb01le"),
        ("cat \u2215etc\u2044x \u2018$(id)\u2019 \u2010\u2010help\u037e", None),
        ("e\u0338 x\u0305", r"e\u0338 x\u0305"),
        ("half \udc80", r"half \udc80"),
    ],
)
def test_what_hides_or_looks_like_ascii_is_spelled_out(written: str, shown: str | None) -> None:
    assert visible(written) == (shown if shown is not None else written.encode("unicode_escape").decode())


@pytest.mark.parametrize(
    "text",
    [
        "ls -la; echo \"$HOME\" 'x' | sh \\n ~/`id`",
        "naïve café Łódź über Tiếng Việt",
        "привет, мир",
        "run命令 日本語テスト 한국어",
        "हिन्दी ไทย العربية Ελλάδα",
        "😀",
    ],
)
def test_words_of_any_language_stay_readable(text: str) -> None:
    assert visible(text) == text


def test_nothing_that_has_no_shape_gets_through() -> None:
    unseen = [
        chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]
    assert [c for c in unseen if c in visible(f"a{c}b") or c in visible(f"м{c}и")] == []
