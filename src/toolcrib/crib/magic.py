"""Whether bytes are what their media type says.

In: bytes, and a media type that some provider takes. Out: yes or no, by the first few bytes. `messages` asks: a
provider that is sent a picture which is none refuses the whole conversation, for good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BEGINS: Mapping[str, bytes] = {
    "image/png": rb"\x89PNG",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8",
    "image/webp": rb"RIFF....WEBP",
    "image/heic": rb"....ftyp",
    "image/heif": rb"....ftyp",
    # Readers look for it in the first kilobyte.
    "application/pdf": rb".{0,1020}?%PDF",
    "audio/wav": rb"RIFF....WAVE",
    "audio/mpeg": rb"ID3|\xff[\xe0-\xff]",
    "audio/aiff": rb"FORM....AIF",
    "audio/aac": rb"ADIF|\xff[\xf0-\xff]",
    "audio/ogg": rb"OggS",
    "audio/flac": rb"fLaC",
}


def is_of(media_type: str, data: bytes) -> bool:
    """True also of a type that is not known here."""
    begins = _BEGINS.get(media_type)
    return begins is None or re.match(begins, data, re.DOTALL) is not None
