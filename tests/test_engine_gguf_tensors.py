"""Tensors mapped from GGUF files: what gguf's reader sees, and no lie believed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from crafted_gguf import Crafted, Value, crafted, write_crafted
from draftsmith.engine.errors import (
    DraftsmithError,
    InputUnreadable,
    ModelDamaged,
    ModelNotGguf,
    ModelUnsupported,
)
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.tensors import _OTHER_TYPES, TensorType, open_tensors
from draftsmith.engine.pages import forget_pages
from toy_gguf import write_toy

F32 = TensorType.F32


def floats(name: str, n: int = 8, **changes: object) -> Crafted:
    """A sound vector of float32, but for the changes."""
    values = {"type": F32, "dimensions": (n,), "data": np.arange(n, dtype=np.float32).tobytes()}
    return Crafted(name, **(values | changes))  # type: ignore[arg-type]


def test_types_are_those_of_gguf() -> None:
    """A wrong number, name or block size, which would read another type's bytes as numbers."""
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    for kind in TensorType:
        assert names.pop(int(kind)) == kind.name
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(kind))]
        assert (kind.block_items, kind.block_bytes) == sizes
    assert names.items() <= _OTHER_TYPES.items()  # this one knows newer types, too


def test_equals_gguf_reader(tmp_path: Path) -> None:
    """A tensor that begins elsewhere or has its dimensions the other way round."""
    path = write_toy(tmp_path / "toy.gguf", "smollm", weights=True)
    tensors = open_tensors(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(tensors) == set(theirs)
    for name, tensor in tensors.items():
        assert tensor.name == name
        assert tensor.type == theirs[name].tensor_type
        assert tensor.shape == tuple(theirs[name].shape[::-1].tolist())
        assert tensor.data.tobytes() == theirs[name].data.tobytes()
    again = open_tensors(path, read_metadata(path))
    assert [(t.name, t.data.tobytes()) for t in again.values()] == [
        (t.name, t.data.tobytes()) for t in tensors.values()
    ]


@pytest.mark.parametrize("kind", TensorType, ids=lambda kind: kind.name)
def test_rows_of_every_type(tmp_path: Path, kind: TensorType) -> None:
    """Rows cut at the wrong byte, or a vector or a stack of matrices that has no rows."""
    n_columns, row_bytes = 2 * kind.block_items, 2 * kind.block_bytes
    shapes = {"vector": (), "matrix": (3,), "stack": (3, 2), "deep": (3, 2, 2)}
    rng = np.random.default_rng(int(kind))
    raw = {name: rng.bytes(row_bytes * int(np.prod(rows))) for name, rows in shapes.items()}
    path = write_crafted(
        tmp_path / "types.gguf",
        [Crafted(name, kind, (n_columns, *rows), raw[name]) for name, rows in shapes.items()],
    )
    tensors = open_tensors(path)
    for name, rows in shapes.items():
        assert tensors[name].shape == (*rows[::-1], n_columns)
        assert tensors[name].data.shape == (np.prod(rows), row_bytes)
        assert tensors[name].data.tobytes() == raw[name]


def test_views_are_read_only_and_forgettable(tmp_path: Path) -> None:
    """Weights copied into memory, written to by mistake, or gone after their pages were let go."""
    path = write_crafted(tmp_path / "model.gguf", [floats("a", 64), floats("b", 64)])
    tensors = open_tensors(path)
    before = tensors["b"].data.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        tensors["a"].data[0, 0] = 1
    forget_pages(tensors["a"].data)
    assert tensors["b"].data.tobytes() == before
    assert tensors["b"].data.view(np.float32)[0, 63] == 63


def test_alignment_is_the_files(tmp_path: Path) -> None:
    """Data looked for at a multiple of 32 in a file that says otherwise."""
    for alignment in (8, 16, 32, 64, 4096):
        values: dict[str, Value] = {"general.alignment": alignment}
        data = crafted([floats("a", 3), floats("b", 5)], values, alignment=alignment)
        (tmp_path / "m.gguf").write_bytes(data)
        tensors = open_tensors(tmp_path / "m.gguf")
        for name, n in (("a", 3), ("b", 5)):
            assert tensors[name].data.view(np.float32)[0].tolist() == list(range(n))


LIES: list[tuple[str, list[Crafted], dict[str, Value], str]] = [
    ("twice", [floats("a"), floats("a")], {}, "'a' stands twice"),
    ("overlap", [floats("a"), floats("b", offset=0)], {}, "'a' and 'b' overlap"),
    ("overlap by bytes", [floats("a", 16), floats("b", offset=32)], {}, "overlap"),
    ("unaligned", [floats("a", 16, offset=4)], {}, "multiple of 32"),
    ("long", [floats("a"), floats("b", dimensions=(9,))], {}, "but tensor 'b' at byte"),
    ("many rows", [floats("a"), floats("b", dimensions=(8, 2))], {}, "but tensor 'b' at byte"),
    ("far", [floats("a"), floats("b", offset=2**63)], {}, "begins at byte"),
    ("wrapping", [floats("a"), floats("b", offset=2**64 - 32)], {}, "begins at byte"),
    ("huge", [floats("a", dimensions=(2**62, 2**62, 4, 4))], {}, "but tensor 'a' at byte"),
    # 2**64 bytes would be 0 in a machine's integer.
    ("wraps to 0", [floats("a", dimensions=(2**61, 2))], {}, "but tensor 'a' at byte"),
    ("empty", [floats("a", dimensions=(8, 0)), floats("b")], {}, "'a' has the shape (0, 8)"),
    ("no dimensions", [floats("a", dimensions=())], {}, "'a' has the shape ()"),
    ("half a block", [floats("a", type=TensorType.Q4_0, dimensions=(48,))], {}, "multiple of 32"),
    ("half a super-block", [floats("a", type=14, dimensions=(32, 8))], {}, "of 256 for Q6_K"),
    ("no name", [floats("")], {}, "a tensor's name is ''"),
    ("two lines", [floats("a\nb")], {}, r"a tensor's name is 'a\nb'"),
    ("long name", [floats("a" * 64)], {}, "a tensor's name is 'aaa"),
    ("alignment 0", [floats("a")], {"general.alignment": 0}, "general.alignment is 0"),
    ("alignment 4", [floats("a")], {"general.alignment": 4}, "general.alignment is 4"),
    ("alignment 24", [floats("a")], {"general.alignment": 24}, "power of two from 8"),
    ("alignment huge", [], {"general.alignment": 2**31}, "power of two from 8"),
    ("alignment text", [floats("a")], {"general.alignment": "32"}, "expected an integer"),
]


@pytest.mark.parametrize(
    ("tensors", "values", "found"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES]
)
def test_lies_are_refused(
    tmp_path: Path, tensors: list[Crafted], values: dict[str, Value], found: str
) -> None:
    """A shape, an offset or an alignment that is believed before it is checked."""
    path = write_crafted(tmp_path / "model.gguf", tensors, values=values)
    tracemalloc.start()
    with pytest.raises(ModelDamaged) as caught:
        open_tensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found in caught.value.message
    assert "\n" not in str(caught.value)
    assert "model.gguf" in caught.value.message
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (10, "Q2_K"),
        (20, "IQ4_NL"),
        (27, "I64"),
        (4, "number, 4"),
        (2**32 - 1, "number, 4294967295"),
    ],
)
def test_other_types_are_named(tmp_path: Path, number: int, found: str) -> None:
    """A refusal that leaves open which type it was and what would work."""
    path = write_crafted(tmp_path / "model.gguf", [floats("t", type=number)])
    with pytest.raises(ModelUnsupported) as caught:
        open_tensors(path)
    assert found in caught.value.message
    assert "'t'" in caught.value.message
    assert all((kind.name in caught.value.remedy) == (kind.name != "I32") for kind in TensorType)


def test_damaged_anywhere(tmp_path: Path) -> None:
    """A traceback, or a view beyond the file, from one damaged byte or a short file."""
    whole = crafted(
        [floats("a"), Crafted("q", TensorType.Q8_0, (64, 2), bytes(136)), floats("z")],
        {"general.alignment": 32},
    )
    path = tmp_path / "model.gguf"
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(ModelNotGguf if n_bytes < 4 else ModelDamaged):
            open_tensors(path)
    refusals = []
    for place in range(len(whole) - 32 - 136 - 64):
        for flip in (0x01, 0xFF):
            data = bytearray(whole)
            data[place] ^= flip
            path.write_bytes(data)
            try:
                for tensor in open_tensors(path).values():
                    tensor.data.sum()  # reads it all: beyond the file's end, the process would die
            except DraftsmithError as error:
                refusals.append(str(error))
    assert len(refusals) > 100
    assert not [refusal for refusal in refusals if "\n" in refusal]


@pytest.fixture
def split(tmp_path: Path) -> Callable[[], list[Path]]:
    """Write a model of three tensors in three parts, and return the parts."""

    def write(**changes: Value) -> list[Path]:
        paths = []
        for part in range(3):
            values: dict[str, Value] = {
                "split.no": part,
                "split.count": 3,
                "split.tensors.count": 3,
            }
            path = tmp_path / f"big-{part + 1:05d}-of-00003.gguf"
            values |= changes if part == 1 else {}
            name = "tensor.0" if changes.get("same") else f"tensor.{part}"
            paths.append(write_crafted(path, [floats(name, 8 + part)], values=values))
        return paths

    return write


def test_split_model_is_whole(split: Callable[..., list[Path]]) -> None:
    """Tensors of the first part only, or each taken from the wrong part."""
    tensors = open_tensors(split()[0])
    assert {name: t.shape for name, t in tensors.items()} == {
        f"tensor.{part}": (8 + part,) for part in range(3)
    }
    for part in range(3):
        values = tensors[f"tensor.{part}"].data.view(np.float32)[0]
        assert values.tolist() == list(range(8 + part))


def test_split_by_gguf(tmp_path: Path) -> None:
    """Parts that gguf's own writer makes, refused or read in another way."""
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    arrays = {f"t{i}": np.arange(i + 1, dtype=np.float32) for i in range(5)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = open_tensors(tmp_path / "big-00001-of-00003.gguf")
    assert {name: t.data.view(np.float32)[0].tolist() for name, t in tensors.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_parts_that_do_not_fit(split: Callable[..., list[Path]]) -> None:
    """Half a model, or parts of two models, run as if they were one."""
    for change, found in (
        ({"split.no": 2}, "split.no and split.count are (2, 3), expected (1, 3)"),
        ({"split.count": 4}, "split.no and split.count are (1, 4), expected (1, 3)"),
        ({"same": True}, "'tensor.0' stands twice"),
    ):
        with pytest.raises(ModelDamaged) as caught:
            open_tensors(split(**change)[0])
        assert found in caught.value.message


def test_missing_and_renamed_parts(split: Callable[..., list[Path]]) -> None:
    """A missing part without a word on which, or a search for parts that do not exist."""
    first, second, third = split()
    with pytest.raises(ModelUnsupported, match="is part 2 of a split model"):
        open_tensors(second)
    third.rename(third.with_name("elsewhere.gguf"))
    with pytest.raises(InputUnreadable) as caught:
        open_tensors(first)
    assert "part 3 of 3 of the model is missing" in caught.value.message
    assert third.name in caught.value.message
    for name in ("big.gguf", "big-00001-of-00004.gguf", "big-00001-of-99999.gguf"):
        with pytest.raises(ModelUnsupported) as unsupported:
            open_tensors(first.rename(first.with_name(name)))
        assert "-00001-of-00003.gguf" in unsupported.value.remedy
        first.with_name(name).rename(first)


@pytest.mark.parametrize("n_announced", [0, 2, 4, 2**32 - 1])
def test_number_of_tensors_of_all_parts(tmp_path: Path, n_announced: int) -> None:
    """A part with tensors missing, which would show as an absent layer at best."""
    for part in range(2):
        values: dict[str, Value] = {
            "split.no": part,
            "split.count": 2,
            "split.tensors.count": n_announced,
        }
        tensors = [floats("a"), floats("b")] if part == 0 else [floats("c")]
        write_crafted(tmp_path / f"m-{part + 1:05d}-of-00002.gguf", tensors, values=values)
    with pytest.raises(ModelDamaged, match=f"3 tensors, but {n_announced} are announced"):
        open_tensors(tmp_path / "m-00001-of-00002.gguf")


def test_many_parts_announced(tmp_path: Path) -> None:
    """A count of parts that is counted up to before the first missing one is noticed."""
    for n_parts in (65535, 99999, 100000, 2**32 - 1):
        path = tmp_path / f"m-00001-of-{n_parts:05d}.gguf"
        write_crafted(path, [floats("a")], values={"split.no": 0, "split.count": n_parts})
        with pytest.raises((InputUnreadable, ModelUnsupported)):
            open_tensors(path)
