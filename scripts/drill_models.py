"""Mutants of small GGUF models of every architecture and tensor type, for fault_drill.py.

Each goes through all that a model file is read for: the tokenizer (a text there and back), the
tokens that end a text, the chat template, and the model itself: a pass over some tokens at once,
the same one by one, and a sampled token. A pass has to be finite, and bit for bit the same both
ways, whatever the model has become.

The arrays of a pass end at a page that nobody may touch, so that a kernel that reads or writes
after one crashes instead of going unnoticed.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from math import prod
from pathlib import Path
from typing import Any

import drill_changes
import drill_gguf
import numpy as np
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import DraftsmithError, UsageError
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.tokens.detokenise import TextStream
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer import dequant, kv_cache, model, pack, rope
from toy_model import write_model

TEXT = "<|im_start|>The dog doesn't mind 12345 naïve cafés.\n\tint main(void) { return 0; }"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hello"}]
RENDER_EACH = 100  # of mutants whose template is what it was; a rendering is a process
CONTEXT = 64
FEW, MANY = 8, 40  # tokens; MANY are more than the small buffers of a pass take

# All sizes of a model differ: drill_changes.resize tells them by that. K-quants need rows of 256.
SIZES = {"n_layers": 2, "n_embd": 256, "n_ff": 512, "n_head": 6, "n_head_kv": 2, "d_head": 32}
SMALL = {"n_embd": 64, "n_ff": 224, "d_head": 16}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "arch": "llama",
        "weight_type": "F16",
        "types": {
            "attn_q": "Q4_1",
            "attn_k": "Q5_0",
            "attn_v": "Q6_K",
            "ffn_up": "Q4_K",
            "ffn_down": "Q5_K",
            "token_embd": "Q8_0",
            "output": "Q4_0",
        },
        "rope_factors": True,
    },
    "qwen2": {
        "arch": "qwen2",
        "weight_type": "Q4_0",
        "types": {"attn_v": "Q5_1", "ffn_down": "Q6_K", "token_embd": "Q6_K"},
        "scaling": "yarn",
        "factor": 4.0,
        "n_ctx_original": 1024,
    },
    "qwen3": {
        "arch": "qwen3",
        "weight_type": "Q8_0",
        "types": {"ffn_gate": "BF16", "attn_q": "F32", "token_embd": "Q4_K"},
    },
    "gemma3": {
        "arch": "gemma3",
        "weight_type": "Q5_1",
        "types": {"attn_k": "Q4_K", "ffn_up": "F16", "token_embd": "Q5_0"},
        "softcap": 30.0,
        "vocabulary": "spm",
    },
    "small": {"arch": "llama", "fused": True, "all_biases": True, "tied": True, **SMALL},
    "split": {"arch": "llama", "max_tensors": 9, **SMALL},
}


class Models:
    """The mutants and what is done with them; see ``fault_drill.Subject``."""

    # What a pass of the largest batch takes in the models drilled (13 MB), tables, messages.
    floor_bytes = 24 << 20

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, list[tuple[str, drill_gguf.File]]] = {}
        self._logits: dict[str, np.ndarray] = {}
        self._name, self._path, self._seed, self._kind = "", folder, 0, ""

    def prepare(self) -> None:
        for name, options in MODELS.items():
            write_model(self._folder / f"{name}.gguf", seed=1, **SIZES | options)

    def warm_up(self, scratch: Path) -> None:
        fence()
        for name in MODELS:
            paths = sorted(self._folder.glob(f"{name}*.gguf"))
            parts = [(path.name, drill_gguf.take_apart(path.read_bytes())) for path in paths]
            raw = drill_gguf.text(TEMPLATE.encode())
            parts[0][1].set("tokenizer.chat_template", drill_gguf.STRING, raw)
            self._whole[name] = parts
            self._lay_out(scratch, name, {})
            for self._seed in (0, 1):
                result = self.use()
                assert result in ("ran", "right"), (name, result)
                self._logits[name] = self._last
        assert n_fenced > 0

    def write(self, seed: int, scratch: Path) -> tuple[str, int]:
        """Write a mutant; returns its kind and size."""
        rng = random.Random(seed)
        name = list(MODELS)[seed % len(MODELS)]
        parts = self._whole[name]
        part, whole = rng.choice(parts)
        kind, data = drill_changes.mutant(whole, rng)
        self._seed, self._kind = seed, kind
        return f"{name} {kind}", self._lay_out(scratch, name, {part: data})

    def _lay_out(self, scratch: Path, name: str, changed: dict[str, bytes]) -> int:
        """Write the parts of a model to new files: the old ones may still be mapped."""
        total = 0
        for part, whole in self._whole[name]:
            data = changed.get(part)
            data = drill_gguf.put_together(whole) if data is None else data
            (scratch / part).unlink(missing_ok=True)
            (scratch / part).write_bytes(data)
            total += len(data)
        self._name, self._path = name, scratch / self._whole[name][0][0]
        return total

    def bytes_beside(self) -> int:
        """Bytes of fenced arrays since the last call, which tracemalloc does not see."""
        global n_fenced
        n, n_fenced = n_fenced, 0
        return n

    def use(self) -> str:
        refused = False
        for stage in (self._read_vocabulary, self._render, self._run):
            try:
                stage()
            except DraftsmithError as error:
                line = str(error)
                if "\n" in line or not 10 < len(line) < 2000:
                    return f"wrong message: {line!r}"
                refused = True
            except Wrong as error:
                return f"wrong: {error}"
        if refused:
            return "refused"
        if self._kind == "poison":
            return "wrong: a number that is not finite was taken"
        whole = self._logits.get(self._name)
        same = whole is not None and np.array_equal(self._last, whole)
        return "right" if same else "ran"

    def _read_vocabulary(self) -> None:
        tokenizer = load_tokenizer(self._path)
        eog_ids(read_metadata(self._path), tokenizer.vocabulary)
        ids = tokenizer.encode(TEXT)
        if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.n_vocab:
            raise Wrong("a token outside the vocabulary")
        tokenizer.decode(ids)
        tokenizer.fingerprint  # noqa: B018

    def _render(self) -> None:
        metadata = read_metadata(self._path)
        template = ChatTemplate.of(metadata)
        if template.source != TEMPLATE or self._seed % RENDER_EACH == 0:
            template.render(MESSAGES)

    def _run(self) -> None:
        n_threads = 2 if self._seed % 4 == 0 else 1
        loaded = model.load_model(self._path, n_threads=n_threads)
        try:
            self._pass(loaded)
        finally:
            loaded.close()

    def _pass(self, loaded: model.Model) -> None:
        n = MANY if self._seed % 8 == 1 else FEW
        n_vocab = loaded.params.n_vocab
        tokens = (np.arange(n) * 37 + 5) % n_vocab
        cache = loaded.new_cache(min(CONTEXT, loaded.params.n_ctx_train))
        for outside in (-1, n_vocab):
            try:
                loaded.forward([outside], cache)
            except UsageError:
                continue
            raise Wrong("a token outside the vocabulary was taken")
        together = loaded.forward(tokens, cache, rows="all").logits
        if not np.isfinite(together).all():
            raise Wrong("logits that are not finite")
        cache.truncate(n - 3)
        for i in range(n - 3, n):
            alone = loaded.forward(tokens[i : i + 1], cache).logits[0]
            if not np.array_equal(alone, together[i]):
                raise Wrong("a batch that differs from its tokens one by one")
        self._last = together[:FEW]
        token = Sampler(SamplingParams(temperature=0.7)).sample(together[-1])
        tokenizer = self._tokenizer()
        if tokenizer is not None:
            TextStream(tokenizer).feed([token])
            TextStream(tokenizer).feed([n_vocab - 1])

    def _tokenizer(self) -> Any:
        try:
            return load_tokenizer(self._path)
        except DraftsmithError:
            return None


class Wrong(Exception):
    """A result that cannot be right."""


# --------------------------------------------------------------------------------------------------
# Arrays with a fence after them

n_fenced = 0  # bytes since somebody asked


class _Fenced:
    """NumPy, but for arrays that end where memory does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = float) -> np.ndarray:
        return fenced(shape, dtype)

    empty = zeros


def fenced(shape: Any, dtype: Any = np.uint8) -> np.ndarray:
    """Zeros, and after the last a page that may be neither read nor written."""
    global n_fenced
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    n = prod(sizes) * np.dtype(dtype).itemsize
    if n == 0 or sys.platform == "win32":
        return np.zeros(shape, dtype)
    n_fenced += n
    page = mmap.PAGESIZE
    n_mapped = -(-n // page) * page + page
    pages = np.frombuffer(mmap.mmap(-1, n_mapped, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    stop = n_mapped - page
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(pages.ctypes.data + stop), page, 0):
        raise OSError("mprotect failed")
    return pages[stop - n : stop].view(dtype).reshape(sizes)


def fence() -> None:
    """Put a fence after every array that the engine makes for a pass."""
    for module in (dequant, kv_cache, model, rope):
        module.np = _Fenced()  # type: ignore[attr-defined]
    pack._aligned = fenced
