"""Text to token ids and back, from the metadata of a GGUF file; no weight is read.

The ids equal llama.cpp's (build 11434) for byte-level BPE and SPM vocabularies. A text may be
encoded in blocks and by several threads: it is cut only where the cut cannot change an id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DraftsmithError, InputMalformed
from ..gguf.file import GgufMetadata, read_metadata
from .blocks import BLOCK_BYTES, Block, cut_blocks, last_cut, sight_of
from .bpe import bpe_rules
from .detokenise import TextStream
from .piece_encoder import PieceEncoder
from .special_tokens import SpecialTokens
from .spm import SpmSplitter, escape_spaces, spm_rules
from .vocabulary import Vocabulary, read_vocabulary

# To hand a job to a thread takes as long as to encode some hundred bytes: blocks of short
# documents go together.
_BATCH_BYTES = 1 << 14
_BATCH_BLOCKS = 1 << 8


class Tokenizer:
    """The tokenizer of one vocabulary; safe to use from several threads.

    Attributes
    ----------
    vocabulary : tokens, attributes and flags.
    n_vocab : number of tokens; every id is below it.
    name : tokenizer and pre-tokenizer, as the file names them: "gpt2/smollm".
    fingerprint : 32 bytes, SHA-256 over all that decides the ids of a text.
    add_bos, add_eos : whether a text is put between BOS and EOS by default.
    bos_id, eos_id : their ids, None if the vocabulary has none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.n_vocab = len(vocabulary.tokens)
        self.name = f"{vocabulary.model}/{vocabulary.pre_name}".rstrip("/")
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self._is_spm = vocabulary.pre is None
        self._rules = spm_rules(vocabulary) if self._is_spm else bpe_rules(vocabulary)
        self._splitter = (
            SpmSplitter.of(self._rules)
            if vocabulary.pre is None
            else vocabulary.pre.make_splitter()
        )
        self._specials = {
            parse_special: SpecialTokens(vocabulary, parse_special=parse_special)
            for parse_special in (True, False)
        }
        self._idle_encoders: list[PieceEncoder] = []

    @cached_property
    def fingerprint(self) -> bytes:
        return self.vocabulary.fingerprint()

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True
    ) -> NDArray[np.int32]:
        """Ids of a text, int32 [n_ids].

        Parameters
        ----------
        text : text, or its UTF-8.
        add_special : put BOS before and EOS after the text where the vocabulary asks for it.
        parse_special : let control tokens in the text, like <|im_start|>, be themselves.

        Raises
        ------
        InputMalformed : the text is not valid UTF-8.
        """
        data = _valid_utf8(text)
        return self._encode_block(Block(data, True, True), add_special, parse_special)

    def encode_documents(
        self,
        documents: Iterable[Iterable[bytes]],
        *,
        n_threads: int = 1,
        add_special: bool = True,
        parse_special: bool = True,
        block_bytes: int = BLOCK_BYTES,
    ) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Ids of many texts, in order, as they come.

        Yields (index of the document, int32 ids of its next part); every document yields at
        least once. Neither ``n_threads`` nor ``block_bytes`` nor how a document is cut into
        blocks changes an id. A document without a place to cut, such as one endless word, is
        held as a whole; of all else at most a few blocks a thread, short ones counted together.

        Parameters
        ----------
        documents : blocks of each document, UTF-8 when joined.
        n_threads : threads that encode.
        block_bytes : bytes that are encoded at once.
        """
        jobs = self._blocks_of(documents, self._specials[parse_special], block_bytes)
        if n_threads == 1:
            for document, block in jobs:
                yield document, self._encode_block(block, add_special, parse_special)
            return

        def encode_all(blocks: list[Block]) -> list[NDArray[np.int32]]:
            return [self._encode_block(block, add_special, parse_special) for block in blocks]

        pending: deque[tuple[list[int], Future[list[NDArray[np.int32]]]]] = deque()
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="tokenize")
        try:
            for indices, blocks in _batches(jobs):
                pending.append((indices, pool.submit(encode_all, blocks)))
                if len(pending) > 2 * n_threads:
                    indices, job = pending.popleft()
                    yield from zip(indices, job.result(), strict=True)
            while pending:
                indices, job = pending.popleft()
                yield from zip(indices, job.result(), strict=True)
        finally:
            # Not waiting: on Ctrl-C a thread may compile for seconds to come.
            pool.shutdown(wait=False, cancel_futures=True)

    def check_words(self, blocks: Iterable[bytes]) -> None:
        """Raise WordTooLong if a text, UTF-8 when joined, has a word that cannot be encoded."""
        for _ in cut_blocks(blocks, self._splitter, self._specials[True], BLOCK_BYTES):
            pass

    def encode_part(
        self, data: bytes, *, begins_text: bool, parse_special: bool = True
    ) -> NDArray[np.int32]:
        """Ids of a part of a text, int32 [n_ids], the text's end not among them.

        Parameters
        ----------
        data : UTF-8.
        begins_text : BOS comes before it where the vocabulary asks for it, and a space in SPM.
        """
        return self._encode_block(Block(data, begins_text, False), begins_text, parse_special)

    def last_cut(self, data: bytes) -> int:
        """The last place where a text that begins with ``data``, UTF-8, may be cut into two parts
        with the same ids, whatever goes on after it; 0: none."""
        return last_cut(data, self._splitter, self._specials[True])

    @property
    def sight(self) -> int:
        """Bytes after a place that decide whether the text may be cut there."""
        return sight_of(self._specials[True])

    def holds_control(self, text: str) -> bool:
        """Whether a control token is written out in a text, like <|im_start|>."""
        return self._specials[True].holds_control(text.encode())

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text that ``ids`` encode; control tokens are left out unless ``special``.

        Undoes ``encode``, also the space that SPM vocabularies put before a text (but not those
        after special tokens inside it). Bytes that are no UTF-8 become U+FFFD.

        Raises
        ------
        IndexError : the vocabulary has no such token.
        """
        stream = TextStream(self, special=special, begins_text=True)
        return stream.feed(ids) + stream.finish()

    def _blocks_of(
        self, documents: Iterable[Iterable[bytes]], specials: SpecialTokens, block_bytes: int
    ) -> Iterator[tuple[int, Block]]:
        for index, blocks in enumerate(documents):
            for block in cut_blocks(blocks, self._splitter, specials, block_bytes):
                yield index, block

    def _encode_block(
        self, block: Block, add_special: bool, parse_special: bool
    ) -> NDArray[np.int32]:
        """Ids of one block of a document, with BOS and EOS at the document's ends."""
        data = block.data
        fragments = self._specials[parse_special].partition(data)
        if self._is_spm:
            prefix = self.vocabulary.add_space_prefix
            data, fragments = escape_spaces(
                data, fragments, prefix_first=prefix and block.is_first, prefix_others=prefix
            )
        with self._encoder() as encoder:
            ids = encoder.encode(data, fragments)
        return self._with_ends(ids, block) if add_special else ids

    def _with_ends(self, ids: NDArray[np.int32], block: Block) -> NDArray[np.int32]:
        """``ids`` with BOS before and EOS after where the block begins or ends a document."""
        before = [self.bos_id] if self.add_bos and block.is_first else []
        behind = [self.eos_id] if self.add_eos and block.is_last else []
        if not before and not behind:
            return ids
        return np.concatenate((np.array(before, np.int32), ids, np.array(behind, np.int32)))

    @contextmanager
    def _encoder(self) -> Iterator[PieceEncoder]:
        """An encoder that no other thread uses meanwhile."""
        try:
            encoder = self._idle_encoders.pop()
        except IndexError:
            encoder = PieceEncoder(self._rules, self._splitter)
        try:
            yield encoder
        finally:
            self._idle_encoders.append(encoder)


def _batches(jobs: Iterator[tuple[int, Block]]) -> Iterator[tuple[list[int], list[Block]]]:
    """Blocks in order, and their documents, as many at a time as are worth waking a thread."""
    indices: list[int] = []
    blocks: list[Block] = []
    n_bytes = 0
    for index, block in jobs:
        indices.append(index)
        blocks.append(block)
        n_bytes += len(block.data)
        if n_bytes >= _BATCH_BYTES or len(blocks) == _BATCH_BLOCKS:
            yield indices, blocks
            indices, blocks, n_bytes = [], [], 0
    if blocks:
        yield indices, blocks


def _valid_utf8(text: str | bytes) -> bytes:
    try:
        if isinstance(text, str):
            return text.encode("utf-8")
        text.decode("utf-8")
        return text
    except UnicodeError as error:
        raise InputMalformed(
            f"the text is not valid UTF-8: {error}", remedy="replace what is malformed"
        ) from error


def load_tokenizer(path: Path | str, metadata: GgufMetadata | None = None) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Parameters
    ----------
    metadata : of that file, if it has been read already

    Raises
    ------
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported : see ``read_metadata``.
    ModelHasNoTokenizer, ModelUnsupported, ModelDamaged : see ``read_vocabulary``.
    """
    try:
        return Tokenizer(read_vocabulary(read_metadata(path) if metadata is None else metadata))
    except DraftsmithError as error:
        if str(path) not in error.message:
            error.message = f"{path}: {error.message}"
        raise


def open_tokenizer(path: Path) -> tuple[GgufMetadata, Tokenizer]:
    """Read a model's metadata and its tokenizer; raises as ``read_metadata`` and as that."""
    metadata = read_metadata(path)
    return metadata, load_tokenizer(path, metadata)
