"""MTP heads ready to run: their weights packed, beside those of the model they draft for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import REMEDY_CONVERT, ModelUnsupported, naming_model
from ..engine.gguf.file import GgufMetadata
from ..engine.gguf.tensors import Tensor
from ..engine.transformer.dequant import dequantise
from ..engine.transformer.forward_kernels import N_SLOTS, OFFSET
from ..engine.transformer.model import Model
from ..engine.transformer.pack import Piece, not_finite, pack
from ..engine.transformer.unused_tensors import is_of_mtp, may_stay_in_block, unused_error
from ..engine.transformer.weights import pieces_of_layer, shaped
from . import mtp_kernels as kernels
from .head_file import D2T, HeadFile, open_head_file

_ROWS_CHECKED = 4096  # of an embedding table at a time


class MtpHead:
    """One head or a chain of them; made by ``open_head``. Drafters share it.

    Attributes
    ----------
    model : that it drafts for
    params : of the heads' blocks
    is_normed, feature_layers, d2t : see ``HeadFile``
    arena, slots : packed weights; slots int64 [2 * n_heads, N_SLOTS, N_PLACES], the blocks first,
        then what else each head has (``mtp_kernels``)
    embeddings : uint8 [n_tables * n_vocab, row_bytes], quantised rows; never written to
    embedding_type : ggml's number of their type
    n_tables : one table, or one a head
    """

    def __init__(
        self,
        model: Model,
        file: HeadFile,
        arena: NDArray[np.uint8],
        slots: NDArray[np.int64],
        tables: list[Tensor],
    ) -> None:
        self.model = model
        self.params = file.params
        self.is_normed = file.is_normed
        self.feature_layers = file.feature_layers
        self.d2t = file.d2t
        self.arena = arena
        self.slots = slots
        self.n_tables = len(tables)
        self.embedding_type = int(tables[0].type)
        self._table = tables[0].data  # holds the mapped file
        if len(tables) == 1:
            self.embeddings = _as_if_writable(self._table)
        else:
            self.embeddings = np.concatenate([table.data for table in tables])

    @property
    def n_heads(self) -> int:
        """Heads of the chain; a single one recurs."""
        return self.params.n_layers

    @property
    def n_draft(self) -> int:
        """Tokens of the draft's vocabulary."""
        return self.d2t.size

    @property
    def n_bytes(self) -> int:
        """Memory of the packed weights, without what the model holds anyway."""
        return self.arena.nbytes


def open_head(
    path: Path | None,
    metadata: GgufMetadata,
    model: Model,
    fingerprint: str,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> MtpHead:
    """Open the heads of ``path``, or those in the model's own file, and pack their weights.

    Parameters
    ----------
    path : None: the model's file
    metadata : of the model
    fingerprint : of the model's vocabulary (``Tokenizer.fingerprint``), hexadecimal
    on_progress : told (bytes packed, all bytes)

    Raises
    ------
    UsageError : there is no head, it is one for another model, or there is no memory for it
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported : the file
    """
    file = open_head_file(path, metadata, model.params, fingerprint)
    with naming_model(file.path):
        tables = _tables(file)
        pieces = list(_pieces(file))
        _refuse_unused(file, [*tables, *(piece.tensor for piece in pieces)])
        arena, slots = pack(
            pieces,
            (2 * file.n_heads, N_SLOTS),
            n_threads=model.n_threads,
            on_progress=on_progress,
        )
        _share_output(file, slots)
    return MtpHead(model, file, arena, slots, tables)


def _pieces(file: HeadFile) -> Iterator[Piece]:
    """All that drafts read, but for what ``_share_output`` adds."""
    params, k = file.params, len(file.feature_layers)
    n = params.n_embd
    for i in range(file.n_heads):
        row = file.n_heads + i
        yield from pieces_of_layer(params, file.tensors, file.first_block + i, i)
        at = f"blk.{file.first_block + i}.nextn."
        yield _vector(file.tensors, f"{at}enorm.weight", (row, kernels.ENORM), n)
        yield _vector(file.tensors, f"{at}hnorm.weight", (row, kernels.HNORM), n)
        yield _matrix(file.tensors, f"{at}eh_proj.weight", (row, kernels.EH_PROJ), n, 2 * n)
        if k:
            name, place = f"{at}eh_proj_first.weight", (row, kernels.EH_FIRST)
            yield _matrix(file.tensors, name, place, n, (2 + k) * n)
            name, place = f"{at}feature_norm.weight", (row, kernels.FEATURE_NORM)
            yield _vector(file.tensors, name, place, k * n)
        yield _vector(file.trunk, "output_norm.weight", (row, kernels.TRUNK_NORM), n)
        name, place = f"{at}shared_head_norm.weight", (row, kernels.HEAD_NORM)
        if name in file.tensors:
            yield _vector(file.tensors, name, place, n)
        else:
            yield _vector(file.trunk, "output_norm.weight", place, n)
        output = _output(file, i)
        if output is not None:
            yield output
        if f"{at}shared_head_head.weight" not in file.tensors and "output.bias" in file.trunk:
            bias = shaped(file.trunk, "output.bias", (params.n_vocab,))
            order = file.d2t.astype(np.int64)
            yield Piece((row, kernels.OUTPUT_BIAS), bias, order, is_vector=True)


def _refuse_unused(file: HeadFile, used: list[Tensor]) -> None:
    """Refuse a file with a tensor that drafts would be made without.

    Raises
    ------
    ModelUnsupported : it names the tensor
    """
    read = {id(tensor) for tensor in used}
    unused = [
        name
        for name, tensor in file.tensors.items()
        if id(tensor) not in read
        and name != D2T
        and not may_stay_in_block(file.params, file.tensors, name)
        # what else the model's file holds is the model's, also where the head's file is a copy
        and (name not in file.trunk or is_of_mtp(name, file.first_block, file.n_heads))
    ]
    if unused:
        raise unused_error(unused, "an MTP head")


def _output(file: HeadFile, i: int) -> Piece | None:
    """The output matrix of a head; None: the model's, or that of the first head without its own."""
    row, n_vocab = file.n_heads + i, file.params.n_vocab
    name = f"blk.{file.first_block + i}.nextn.shared_head_head.weight"
    tensors, is_own = (file.tensors, True) if name in file.tensors else (file.trunk, False)
    if not is_own:
        if file.d2t.size == n_vocab or i != _first_without_output(file):
            return None
        name = "output.weight" if "output.weight" in file.trunk else "token_embd.weight"
    n_rows = n_vocab
    if is_own and tensors[name].shape[0] != n_vocab:
        n_rows = file.d2t.size
    tensor = shaped(tensors, name, (n_rows, file.params.n_embd))
    order = file.d2t.astype(np.int64) if n_rows == n_vocab else np.arange(n_rows, dtype=np.int64)
    return Piece((row, kernels.OUTPUT), tensor, order, is_vector=False)


def _first_without_output(file: HeadFile) -> int:
    """The first head that has no output matrix of its own; -1: all have."""
    for i in range(file.n_heads):
        if f"blk.{file.first_block + i}.nextn.shared_head_head.weight" not in file.tensors:
            return i
    return -1


def _share_output(file: HeadFile, slots: NDArray[np.int64]) -> None:
    """Let heads without an output matrix of their own read the one that was packed for all."""
    first = _first_without_output(file)
    places = slots[file.n_heads :, kernels.OUTPUT]
    if first >= 0:
        places[places[:, OFFSET] < 0] = places[first]


def _vector(tensors: dict[str, Tensor], name: str, at: tuple[int, int], n: int) -> Piece:
    return Piece(at, shaped(tensors, name, (n,)), np.arange(n, dtype=np.int64), is_vector=True)


def _matrix(
    tensors: dict[str, Tensor], name: str, at: tuple[int, int], n_rows: int, n_columns: int
) -> Piece:
    order = np.arange(n_rows, dtype=np.int64)
    return Piece(at, shaped(tensors, name, (n_rows, n_columns)), order, is_vector=False)


def _tables(file: HeadFile) -> list[Tensor]:
    """The embeddings: one table for all heads, or one a head."""
    names = [f"blk.{file.first_block + i}.nextn.embed_tokens.weight" for i in range(file.n_heads)]
    if not any(name in file.tensors for name in names):
        return [file.trunk["token_embd.weight"]]
    tables = []
    for name in names:
        tensors = file.tensors
        if name not in tensors:
            tensors, name = file.trunk, "token_embd.weight"
        tables.append(shaped(tensors, name, (file.params.n_vocab, file.params.n_embd)))
        _check_finite(tables[-1])
    if len({table.type for table in tables}) > 1:
        found = ", ".join(table.type.name for table in tables)
        raise ModelUnsupported(
            f"the heads' embeddings are of the types {found}, expected one type",
            remedy=REMEDY_CONVERT,
        )
    return tables


def _check_finite(table: Tensor) -> None:
    for start in range(0, len(table.data), _ROWS_CHECKED):
        rows = table.data[start : start + _ROWS_CHECKED]
        if not np.isfinite(dequantise(table.type, rows)).all():
            raise not_finite(table)


def _as_if_writable(table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A view that says it may be written to: Numba compiles anew for arrays that say otherwise."""
    at = ctypes.cast(table.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(at, table.shape)
