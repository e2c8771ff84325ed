"""What a file is that was named as a GGUF file and is none: told by what it holds, not by its name.

Downloads and folders of models are full of them: pointers of Git LFS, web pages, compressed files,
models in other formats. Each is named, with the remedy that fits. GGUF files that hold something
else than a model are told apart by kinds.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES = 1024  # of a file, that tell what it is

_CONVERT = "convert the model that it belongs to with llama.cpp's convert_hf_to_gguf.py"
_NAME = "name a .gguf file"
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/.*?\nsize (\d{1,20})\n", re.DOTALL)
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|!--|html|head|body|title|\?xml)", re.I)
# Magics of before GGUF are numbers, and so stand the other way round in a file.
_GGML = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT"}
_CACHE = b"\x89DSNG\r\n"  # as ngram/cache/file.py writes them
_SAVED = (b"nsgg", b"qsgg")
_PACKED = (
    (b"\x1f\x8b", "gzip-compressed", "decompress it with gunzip"),
    (b"\xfd7zXZ\x00", "xz-compressed", "decompress it with unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "decompress it with unzstd"),
    (b"BZh", "bzip2-compressed", "decompress it with bunzip2"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "extract the .gguf file that is in it"),
    (b"Rar!\x1a\x07", "a RAR archive", "extract the .gguf file that is in it"),
)


class FileKind(NamedTuple):
    """What a file is instead of a model, "a web page", and what to do."""

    what: str
    remedy: str


def kind_of_bytes(head: bytes) -> FileKind:
    """What a file is that does not begin as GGUF.

    Parameters
    ----------
    head : its first ``HEAD_BYTES``, or all of a smaller file
    """
    found = _pointer_or_page(head) or _packed(head) or _other_format(head)
    return found or FileKind(f"it begins with {head[:4]!r}, expected b'GGUF'", _NAME)


def _pointer_or_page(head: bytes) -> FileKind | None:
    if not head:
        return FileKind("it is empty", _NAME)
    if not head.strip(b"\0"):
        return FileKind(
            "it begins with zeros alone, as a download that was begun and not written",
            "fetch the rest of it",
        )
    if head.startswith(b"version https://git-lfs"):
        size = _LFS.match(head)
        of = f" for a file of {int(size[1])} bytes" if size else ""
        return FileKind(
            f"it is a pointer of Git LFS{of}, not the file itself",
            "run `git lfs pull` in the folder that was cloned, or fetch the file by its own link",
        )
    if _PAGE.match(head):
        return FileKind(
            "it is a web page",
            "fetch the file itself, not the page about it: on Hugging Face, links with /resolve/ "
            "and not /blob/",
        )
    return None


def _packed(head: bytes) -> FileKind | None:
    if head.startswith(b"PK\x03\x04"):
        if b"/data.pkl" in head[:256] or b"/.format_version" in head[:256]:
            return FileKind("it is a PyTorch checkpoint", _CONVERT)
        return FileKind("it is a zip archive", "extract the .gguf file that is in it")
    for magic, what, remedy in _PACKED:
        if head.startswith(magic):
            return FileKind(f"it is {what}", remedy)
    return None


def _other_format(head: bytes) -> FileKind | None:
    if head[:4] in _GGML:
        return FileKind(
            f"it is a {_GGML[head[:4]]} file, llama.cpp's format before GGUF",
            "name the model's .gguf file, or convert the original model anew",
        )
    if head[:4] == b"algg":
        return FileKind("it is a LoRA adapter in a format before GGUF", "name the model itself")
    if head[:4] in _SAVED:
        return FileKind("it is a saved session of llama.cpp", "name the model that it is of")
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return FileKind("it is a pickle, such as an older PyTorch checkpoint", _CONVERT)
    n_header = int.from_bytes(head[:8], "little")
    if head[8:10] in (b'{"', b"{ ", b"{\n", b"{}") and n_header < 1 << 30:
        return FileKind("it is a safetensors file", _CONVERT)
    if head.startswith(_CACHE):
        return FileKind("it is an n-gram cache", "name the model that it was made with")
    if head[:6] == b"\x93NUMPY":
        return FileKind("it is a NumPy array", _NAME)
    if _is_old_imatrix(head):
        return FileKind(
            "it is an importance matrix, which quantising takes and running does not",
            "name the model itself",
        )
    if _is_text(head):
        begins = head[:24].decode("utf-8", "replace")
        return FileKind(f"it is text that begins with {begins!r}", _NAME)
    return None


def _is_old_imatrix(head: bytes) -> bool:
    """Entries, and of the first the length of its name and the name of a tensor."""
    n_entries, n_name = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4))
    name = head[8 : 8 + n_name]
    is_weight = 0 < n_name < 128 and name.endswith(b".weight")
    return 0 < n_entries < 1 << 20 and is_weight


def _is_text(head: bytes) -> bool:
    text = head.decode("utf-8", "replace").rstrip("\ufffd")
    return bool(text) and all(sign.isprintable() or sign in "\r\n\t\f\ufeff" for sign in text)
