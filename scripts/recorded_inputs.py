"""Inputs of the calls of scripts/record_outputs, and damaged files for their mistakes."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

# Bytes of a native cache's header: the version, the vocabulary's fingerprint, the checksum.
VERSION, FINGERPRINT, CHECKSUM = 8, 40, 72


def write_inputs(work: Path, root: Path) -> None:
    """Lay the inputs of all calls into ``work``."""
    golden = root / "tests" / "golden"
    shutil.copytree(golden / "cases", work / "cases")
    for name in ("kjv_train", "kjv_test", "sqlite_train", "sqlite_test"):
        shutil.copy(golden / f"{name}.txt", work)
    kjv, sqlite = ((work / f"{name}_test.txt").read_text() for name in ("kjv", "sqlite"))
    (work / "short.txt").write_text(kjv[:20_000])
    (work / "document.txt").write_text(kjv[:5_000])
    (work / "prompt.txt").write_text(sqlite[:1_200])
    folder = work / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text(sqlite[:3_000])
    (folder.parent / "a.txt").write_text(kjv[:3_000])
    (folder.parent / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\0")
    write_ids(work / "ids.npy", [place * 7 % 311 for place in range(3_000)])
    question = {"role": "user", "content": kjv[:4_500] + "\n\nWhat did the angel say?"}
    write_json(work / "chat.json", [question])
    suite = {"id": "one", "category": "prose", "prompt": "The cat sat. The cat", "max_tokens": 12}
    write_json(work / "suite.jsonl", suite)
    (work / "empty.txt").touch()
    (work / "few.txt").write_text("a few words")
    (work / "no_text").mkdir()
    (work / "bad.jsonl").write_text('{"text": "good"}\n{"text": \n')
    (work / "bad.npy").write_bytes(b"\x93NUMPY\1\0 not so")
    (work / "bad.jinja").write_text("{% if %}")
    (work / "no.gguf").write_bytes(b"PK\3\4 no model at all")
    write_gguf(work / "no_tokenizer.gguf", {"general.architecture": "llama"})
    unknown = {"general.architecture": "llama", "tokenizer.ggml.model": "unheard-of"}
    write_gguf(work / "unsupported.gguf", unknown)
    (work / "damaged.gguf").write_bytes((work / "unsupported.gguf").read_bytes()[:60])
    gram = struct.pack("<4i", 5, 6, -1, -1)
    (work / "bad_count.lcs").write_bytes(gram + struct.pack("<iii", 1, 7, 0))
    (work / "bad_token.lcs").write_bytes(gram + struct.pack("<iii", 1, 2**30, 3))
    (work / "not_a.lcs").write_bytes(b"neither one nor the other")


def write_ids(path: Path, ids: list[int]) -> None:
    """Write a .npy file of int32, version 1.0."""
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(ids)},), }}"
    line = header.ljust(117).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + struct.pack("<H", len(line))
    path.write_bytes(start + line + struct.pack(f"<{len(ids)}i", *ids))


def write_json(path: Path, value: object) -> None:
    """Write one line of JSON."""
    path.write_text(json.dumps(value) + "\n")


def write_gguf(path: Path, texts: dict[str, str]) -> None:
    """Write a GGUF file of version 3 with these metadata and no tensor."""

    def packed(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    pairs = b"".join(packed(k) + struct.pack("<I", 8) + packed(v) for k, v in texts.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(texts)) + pairs)


def cut(work: Path) -> None:
    """Write text.lcs, as a download leaves it that broke off."""
    (work / "cut.lcs").write_bytes((work / "text.lcs").read_bytes()[:50_000])


def change(work: Path) -> None:
    """Write text.lcs with one byte changed."""
    data = bytearray((work / "text.lcs").read_bytes())
    data[-5_000] ^= 0xFF
    (work / "changed.lcs").write_bytes(data)


def of_other_vocabulary(work: Path) -> None:
    """Write text.lcs, said to be of another vocabulary."""
    _patch(work, "other.lcs", FINGERPRINT, b"\1" * 32)


def of_newer_version(work: Path) -> None:
    """Write text.lcs, said to be of a newer format."""
    _patch(work, "newer.lcs", VERSION, struct.pack("<I", 99))


def _patch(work: Path, name: str, place: int, content: bytes) -> None:
    """Write text.lcs as ``name`` with other bytes in its header, and the checksum put right."""
    data = bytearray((work / "text.lcs").read_bytes())
    data[place : place + len(content)] = content
    data[CHECKSUM : CHECKSUM + 4] = struct.pack("<I", zlib.crc32(data[:CHECKSUM]))
    (work / name).write_bytes(data)
