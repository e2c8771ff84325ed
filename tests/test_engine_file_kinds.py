"""Files that were named as a model and are none: each is named as what it is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import toy_gguf
import toy_model
from conftest import Done
from draftsmith.engine.errors import (
    ExitStatus,
    ModelHasNoTokenizer,
    ModelNotGguf,
    ModelUnsupported,
)
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.kinds import check_has_weights, check_is_model
from draftsmith.engine.gguf.other_files import HEAD_BYTES, kind_of_bytes
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import load_model
from draftsmith.ngram.cache.file import MAGIC

AGAIN = "again"
LFS = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def zipped(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * 40)
    return out.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0\0\0\0"


def old_imatrix() -> bytes:
    name = b"blk.0.attn_q.weight"
    return struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii4f", 4, 4, 1, 2, 3, 4)


# What a file holds, what it is called, and a word of the remedy.
FILES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "it is empty", "name a .gguf"),
    "zeros": (b"\0" * 5000, "zeros alone", "fetch the rest"),
    "lfs": (LFS.encode(), "a pointer of Git LFS for a file of 12345 bytes", "git lfs pull"),
    "lfs cut": (LFS.encode()[:60], "a pointer of Git LFS, not", "git lfs pull"),
    "lfs crlf": (LFS.replace("\n", "\r\n").encode(), "a pointer of Git LFS", "git lfs pull"),
    "html": (b"<!doctype html><html><head>", "a web page", "/resolve/"),
    "html after blanks": (b"\xef\xbb\xbf\r\n  <HTML lang=en>", "a web page", "/resolve/"),
    "xml": (b"<?xml version='1.0'?><Error>AccessDenied", "a web page", "/resolve/"),
    "json": (b'{"error": "Repository not found"}', "text that begins with '{\"error", "name a"),
    "words": ("Entry not found é".encode(), "text that begins with 'Entry not", "name a"),
    "gzip": (gzip.compress(b"GGUF" + bytes(99)), "gzip-compressed", "gunzip"),
    "xz": (lzma.compress(b"GGUF" + bytes(99)), "xz-compressed", "unxz"),
    "bzip2": (bz2.compress(b"GGUF" + bytes(99)), "bzip2-compressed", "bunzip2"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "zstd-compressed", "unzstd"),
    "zip": (zipped("model.gguf"), "a zip archive", "extract"),
    "torch": (zipped("archive/data.pkl", "archive/data/0"), "a PyTorch checkpoint", "convert_hf"),
    "pickle": (pickle.dumps({"w": 1}, 2), "a pickle", "convert_hf"),
    "safetensors": (safetensors(), "a safetensors file", "convert_hf"),
    "ggml": (struct.pack("<I", 0x67676D6C) + bytes(40), "a GGML file", "name the model's .gguf"),
    "ggmf": (struct.pack("<II", 0x67676D66, 1), "a GGMF file", "name the model's .gguf"),
    "ggjt": (struct.pack("<II", 0x67676A74, 3), "a GGJT file", "name the model's .gguf"),
    "ggla": (struct.pack("<II", 0x67676C61, 1), "a LoRA adapter", "name the model"),
    "session": (struct.pack("<II", 0x6767736E, 9), "a saved session", "name the model"),
    "imatrix": (old_imatrix(), "an importance matrix", "name the model"),
    "cache": (MAGIC + bytes(40), "an n-gram cache", "name the model"),
    "npy": (b"\x93NUMPY\x01\x00v\x00", "a NumPy array", "name a .gguf"),
    "bytes": (b"\x01\x02\x03\x04" * 9, r"begins with b'\x01\x02\x03\x04'", "name a .gguf"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_gguf(name: str, tmp_path: Path) -> None:
    """The bug: "it begins with b'vers'", for what a clone without Git LFS leaves after."""
    data, what, remedy = FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelNotGguf) as caught:
        read_metadata(path)
    assert what in caught.value.message
    assert remedy in caught.value.remedy
    assert AGAIN not in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_any_bytes_have_a_kind() -> None:
    """An error of another type for bytes that nobody thought of."""
    rng = np.random.default_rng(0)
    for data, _, _ in FILES.values():
        for n in range(min(len(data), 40)):
            assert kind_of_bytes(data[:n]).what
    for n in (1, 7, 8, 9, HEAD_BYTES):
        for _ in range(200):
            assert kind_of_bytes(rng.bytes(n)).what


def write_gguf(path: Path, architecture: str, **keys: str) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        writer.add_string(key.replace("__", "."), value)
    writer.add_tensor("x.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUFS: dict[str, tuple[str, dict[str, str], str]] = {
    "lora": ("llama", {"general__type": "adapter", "adapter__type": "lora"}, "a LoRA adapter"),
    "lora of old": ("llama", {"adapter__type": "lora"}, "a LoRA adapter"),
    "adapter": ("llama", {"general__type": "adapter", "adapter__type": "new"}, "an adapter"),
    "control vector": ("controlvector", {}, "a control vector"),
    "mmproj": ("clip", {"general__type": "mmproj"}, "a projector of images"),
    "clip": ("clip", {}, "a projector of images"),
    "imatrix": ("", {"general__type": "imatrix"}, "an importance matrix"),
    "scorer": ("draftsmith-scorer", {}, "a trained scorer"),
}


@pytest.mark.parametrize("name", GGUFS)
def test_ggufs_that_are_no_model(name: str, tmp_path: Path) -> None:
    """The bug: an adapter that "holds no tokenizer", with the advice to name its first part."""
    architecture, keys, what = GGUFS[name]
    path = write_gguf(tmp_path / "model.gguf", architecture, **keys)
    with pytest.raises(ModelHasNoTokenizer) as caught:
        load_tokenizer(path)
    assert f"model.gguf is {what}" in caught.value.message
    assert AGAIN not in caught.value.remedy
    path = write_gguf(path, architecture, **keys, tokenizer__ggml__model="gpt2")
    with pytest.raises(ModelUnsupported, match=what):
        check_is_model(read_metadata(path))


def test_models_are_models(tmp_path: Path, smollm2: Path) -> None:
    """A model that is taken for something else."""
    for path in (smollm2, toy_model.write_model(tmp_path / "toy.gguf", "llama")):
        check_is_model(read_metadata(path))
        check_has_weights(read_metadata(path))


def test_a_head_alone(cli: Callable[..., Done]) -> None:
    """The bug: the head that comes along, named as the model, "holds no tokenizer"."""
    from draftsmith.mtp import shipped

    done = cli("lookup-run", "-m", shipped.FOLDER / shipped.SHIPPED["smollm2"], "-p", "x")
    assert done.status == ExitStatus.MODEL_NO_TOKENIZER
    assert "is an MTP head alone, and no model; name its model, and the head with" in done.error


def test_a_vocabulary_alone(cli: Callable[..., Done], tmp_path: Path) -> None:
    """The bug: "has no tensor token_embd.weight; download or convert the model again"."""
    path = toy_gguf.write_toy(tmp_path / "vocab.gguf", "llama-bpe")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the cat sat on the mat again. " * 30)
    for args in (
        ("lookup-run", "-p", "x"),
        ("mtp-run", "-p", "x", "--drafter", "none"),
        ("mtp-run", "-p", "x"),
        ("prefill-run", "-f", text, "-p", "x", "--raw"),
    ):
        done = cli(args[0], "-m", path, *args[1:])
        assert done.status == ExitStatus.MODEL_UNSUPPORTED
        assert "vocab.gguf holds a vocabulary only, no weights; name a model with" in done.error
    with pytest.raises(ModelUnsupported, match="a vocabulary only"):
        load_model(path)
    model = toy_model.write_model(tmp_path / "toy.gguf", "llama")
    done = cli("prefill-run", "-m", model, "--drafter", path, "-f", text, "-p", "x", "--raw")
    assert "vocab.gguf holds a vocabulary only, no weights" in done.error
    cache = tmp_path / "cache.lcs"
    assert cli("lookup-create", "-m", path, "-f", text, "-lcs", cache).status == 0
    args = ("-m", path, "-f", text, "-c", "64")
    assert cli("lookup-stats", *args, "-lcs", cache, "--json").status == 0


def test_a_big_endian_model(tmp_path: Path) -> None:
    """The bug: a file of a big-endian machine that is to be converted with "current tools"."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(ModelUnsupported, match="big-endian") as caught:
        read_metadata(path)
    assert "gguf_convert_endian" in caught.value.remedy
