"""Changes to a GGUF file, of which fault_drill.py's mutants of models are made.

Some are damage, some are lies by someone who knows the format, and some are put right again after
the change (``resize``, ``retype``), so that they get past the checks of offsets and lengths and
reach what comes after them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from copy import deepcopy

import numpy as np
from drill_bytes import NUMBERS, mutate
from drill_gguf import ARRAY, BLOCKS, STRING, File, Info, n_bytes, put_together, text
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from toy_model import SUPER_TYPES, WEIGHT_TYPES, random_super_blocks

FLOAT_FORMS = {6: "<f", 12: "<d"}
MOST_BYTES = 6 << 20  # of a file put right; a larger one is left as it was

# Sizes to try: of every kind, some that models have and some that kernels may trip over.
SIZES = {
    "n_embd": (1, 7, 8, 16, 24, 32, 40, 64, 248, 264, 512),
    "n_head": (1, 2, 3, 4, 7, 12, 24, 25, 26, 50, 64, 128, 1024),
    "n_kv": (1, 2, 3, 4, 5, 12, 25, 64),
    "d_head": (1, 2, 4, 8, 12, 16, 20, 24, 40, 48, 64, 120, 136, 256, 512, 520),
    "n_ff": (1, 4, 8, 16, 24, 31, 32, 33, 40, 64, 264, 1000, 4096, 20000),
    "n_vocab": (1, 2, 7, 8, 9, 15, 16, 17, 31, 255, 483, 485, 3000),
}
KEYS = {
    "n_embd": ("embedding_length",),
    "n_head": ("attention.head_count",),
    "n_kv": ("attention.head_count_kv",),
    "d_head": ("attention.key_length", "attention.value_length"),
    "n_ff": ("feed_forward_length",),
}
# Whole numbers of metadata that are no sizes of tensors, and what to try for them.
COUNTS = {
    "block_count": (0, 1, 2, 3, 512, 513, 2**31, 2**32 - 1),
    "nextn_predict_layers": (0, 1, 2, 3),
    "context_length": (0, 1, 2, 15, 16, 17, 2**20, 2**31 - 1, 2**31, 2**32 - 1),
    "attention.sliding_window": (0, 1, 2, 15, 2**31 - 1, 2**32 - 1),
    "attention.sliding_window_pattern": (0, 1, 2, 3, 2**31 - 1, 2**32 - 1),
    "rope.dimension_count": (0, 1, 2, 3, 8, 15, 30, 34, 2**32 - 1),
    "rope.scaling.original_context_length": (0, 1, 2**31 - 1, 2**32 - 1),
    "expert_count": (0, 1, 8),
    "vocab_size": (0, 1, 2**32 - 1),
}
REALS = {
    "attention.layer_norm_rms_epsilon": (0.0, -1.0, 1e-12, 1e-45, 1.0, 3.4e38),
    "rope.freq_base": (0.0, -1.0, 1.0, 2.0, 1e15, 3.4e38, 1e-45),
    "rope.freq_base_swa": (0.0, 1.0, 1e15),
    "rope.scaling.factor": (0.0, -1.0, 1e-45, 0.5, 1.0, 1e6, 3.4e38),
    "rope.scaling.attn_factor": (0.0, 1e-3, 1e3, 3.4e38),
    "final_logit_softcapping": (0.0, 1e-45, -1.0, 1e6, 3.4e38),
}
# Bits of (the least and the largest numbers), (NaN, infinities): of weights, and float16 of scales.
EXTREMES = {
    "F32": ("<I", ((1, 0x7F7FFFFF, 0xFF7FFFFF), (0x7FC00000, 0x7F800000, 0xFF800000))),
    "BF16": ("<H", ((1, 0x7F7F, 0xFF7F), (0x7FC0, 0x7F80, 0xFF80))),
    "": ("<H", ((1, 0x7BFF, 0xFBFF), (0x7E00, 0x7C00, 0xFC00))),
}
TEXTS = ("", "none", "linear", "yarn", "longrope", "llama", "gemma3", "gpt2", "\0", "é" * 40)


# Each change takes the parts, which are its own, and returns the bytes of the file.


def damage(file: File, rng: random.Random) -> bytes:
    """Bits and bytes anywhere; half of them before the tensors' data."""
    data = put_together(file)
    n_data = sum(len(info.data) for info in file.infos)
    return mutate(data, rng, n_first=max(64, len(data) - n_data))


def change_value(file: File, rng: random.Random) -> bytes:
    """Another number, text, length or type for a value of the metadata."""
    prefix = f"{file.architecture}.".encode()
    likely = [pair for pair in file.pairs if pair.key.startswith(prefix)]
    pair = rng.choice(likely if likely and rng.random() < 0.6 else file.pairs)
    kind = rng.randrange(5)
    if kind == 0:
        pair.type = rng.choice((*range(14), 2**31))
    elif pair.type == STRING:
        raw = (
            rng.choice(TEXTS).encode() if rng.random() < 0.5 else rng.randbytes(rng.choice((1, 9)))
        )
        n = len(raw) if kind < 3 else rng.choice(NUMBERS)
        pair.value = struct.pack("<Q", n) + raw
    elif pair.type == ARRAY:
        at = rng.choice((0, 4, 12 + rng.randrange(max(1, len(pair.value) - 12))))
        number = struct.pack("<Q", rng.choice(NUMBERS))[: 4 if at == 0 else 8]
        pair.value = pair.value[:at] + number + pair.value[at + len(number) :]
    elif pair.type in FLOAT_FORMS:
        number = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38))
        pair.value = struct.pack(FLOAT_FORMS[pair.type], number)
    else:
        pair.value = struct.pack("<Q", rng.choice(NUMBERS))[: len(pair.value)]
    return put_together(file)


def change_constant(file: File, rng: random.Random) -> bytes:
    """A number of the architecture that decides nothing about the tensors' shapes, or its kind."""
    if rng.random() < 0.5:
        key = rng.choice(list(COUNTS))
        file.set_count(key, rng.choice(COUNTS[key]))
    elif rng.random() < 0.8:
        key = rng.choice(list(REALS))
        value = rng.choice((*REALS[key], float("nan"), float("inf")))
        file.set(f"{file.architecture}.{key}", 6, struct.pack("<f", value))
    else:
        scaling = rng.choice(("linear", "yarn", "none", "longrope"))
        file.set(f"{file.architecture}.rope.scaling.type", STRING, text(scaling.encode()))
        factor = rng.choice(REALS["rope.scaling.factor"])
        file.set(f"{file.architecture}.rope.scaling.factor", 6, struct.pack("<f", factor))
    return put_together(file)


def change_pairs(file: File, rng: random.Random) -> bytes:
    """A key that is missing, twice, of another name, or of another's value; a wrong count."""
    pair, other = rng.choice(file.pairs), rng.choice(file.pairs)
    kind = rng.randrange(5)
    if kind == 0:
        file.pairs.remove(pair)
    elif kind == 1:
        file.pairs.append(pair)
    elif kind == 2:
        pair.key = rng.choice((b"", b"\xff", pair.key[:-1], other.key))
    elif kind == 3:
        pair.type, pair.value, other.type, other.value = (
            other.type, other.value, pair.type, pair.value
        )  # fmt: skip
    else:
        file.n_pairs = rng.choice((*NUMBERS, len(file.pairs) + rng.choice((-1, 1))))
    return put_together(file)


def change_info(file: File, rng: random.Random) -> bytes:
    """A lie about a tensor: name, number of dimensions, a dimension, type, offset."""
    info, other = rng.choice(file.infos), rng.choice(file.infos)
    kind = rng.randrange(8)
    if kind == 0:
        info.name = rng.choice((b"", b"\xff\n", b"x" * 64, other.name, info.name + b"x"))
    elif kind == 1:
        info.dimensions = rng.choice(
            ([], info.dimensions[::-1], [*info.dimensions, 1], [*info.dimensions, 1, 1, 1])
        )
    elif kind in (2, 3):
        place = rng.randrange(len(info.dimensions))
        n = info.dimensions[place]
        info.dimensions[place] = rng.choice((*NUMBERS, n + 1, n - 1, 2 * n, n + 32, n // 2))
    elif kind == 4:
        info.type = rng.choice((*range(43), 2**31, 2**32 - 1))
    elif kind == 5:
        info.offset = rng.choice((*NUMBERS, 32, 64, 2**20))
    elif kind == 6:
        info.name, other.name = other.name, info.name
    else:
        file.n_infos = rng.choice((*NUMBERS, len(file.infos) + rng.choice((-1, 1))))
    return put_together(file)


def change_tensors(file: File, rng: random.Random) -> bytes:
    """A tensor that is missing or twice, or two that hold each other's data."""
    info, other = rng.choice(file.infos), rng.choice(file.infos)
    kind = rng.randrange(3)
    if kind == 0:
        file.infos.remove(info)
    elif kind == 1:
        file.infos.append(deepcopy(info))
    else:
        info.data, other.data = other.data, info.data
    return put_together(file)


def poison(file: File, rng: random.Random) -> bytes:
    """NaN or infinity in a scale, weight, norm or bias, or in all of a tensor; to be refused.

    Not in an embedding, which may be that of a token that no text has.
    """
    _overwrite(rng.choice([info for info in file.infos if b"token_embd" not in info.name]), 1, rng)
    return put_together(file)


def exaggerate(file: File, rng: random.Random) -> bytes:
    """The least or the largest number in scales and weights; what comes of it may be anything."""
    _overwrite(rng.choice(file.infos), 0, rng)
    return put_together(file)


def _overwrite(info: Info, which: int, rng: random.Random) -> None:
    """Put a number of EXTREMES into one block of a tensor, or into all of them."""
    items, size = BLOCKS[info.type]
    kind = GGMLQuantizationType(info.type)
    form, numbers = EXTREMES["F32" if size // items == 4 else "BF16" if kind.name == "BF16" else ""]
    bits = struct.pack(form, rng.choice(numbers[which]))
    # Q6_K's scale is at the end of its block, all others' at the beginning; some have a second.
    inside = size - 2 if kind.name == "Q6_K" else 0
    if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        inside = rng.choice((0, 2))
    data = bytearray(info.data)
    n_blocks = len(data) // size
    for block in rng.choice((range(n_blocks), [rng.randrange(n_blocks)])):
        at = block * size + inside
        data[at : at + len(bits)] = bits
    info.data = bytes(data)


def sizes_of(file: File) -> dict[str, int]:
    """The model's sizes, from tensors that have them; all differ in the files drilled."""
    names = "token_embd.weight", "attn_q.weight", "attn_k.weight", "ffn_up.weight"
    embd, q, k, ff = (file.info(name) for name in names)
    sizes = {}
    if embd:
        sizes["n_embd"], sizes["n_vocab"] = embd.dimensions
    if ff:
        sizes["n_ff"] = ff.dimensions[1]
    key = file.pair(f"{file.architecture}.attention.head_count")
    if q and k and key:  # not in the later parts of a split model
        sizes["n_head"] = int.from_bytes(key.value, "little")
        sizes["d_head"] = q.dimensions[1] // sizes["n_head"]
        sizes["n_kv"] = k.dimensions[1] // sizes["d_head"]
    return sizes


def _dimensions(sizes: dict[str, int]) -> list[int]:
    """All that tensors of these sizes have for dimensions."""
    dimensions = [sizes[name] for name in ("n_embd", "n_vocab", "n_ff") if name in sizes]
    if "n_head" in sizes:
        d_head = sizes["d_head"]
        q, kv = sizes["n_head"] * d_head, sizes["n_kv"] * d_head
        dimensions += [d_head // 2, d_head, q, kv, q + 2 * kv]
    return dimensions


def resize(file: File, rng: random.Random) -> bytes:
    """One or two sizes of the model changed everywhere: metadata, shapes, data."""
    old = sizes_of(file)
    if not old:
        return change_info(file, rng)
    unchanged = deepcopy(file)
    new = dict(old)
    for name in rng.sample(sorted(old), min(len(old), rng.choice((1, 1, 2)))):
        new[name] = rng.choice(SIZES[name])
    if rng.random() < 0.5 and "n_head" in new:  # most counts of heads would not divide
        new["n_head"] = new["n_kv"] * rng.choice((1, 2, 24, 25, 32))
    renamed = dict(zip(_dimensions(old), _dimensions(new), strict=True))
    for info in file.infos:
        info.dimensions = [renamed.get(n, n) for n in info.dimensions]
        if info.dimensions[0] % BLOCKS[info.type][0] and rng.random() < 0.9:
            info.type = int(rng.choice((GGMLQuantizationType.F16, GGMLQuantizationType.F32)))
    for name, keys in KEYS.items():
        for key in keys:
            if name in new:
                file.set_count(key, new[name])
    if sum(n_bytes(info) for info in file.infos) > MOST_BYTES:
        return change_info(unchanged, rng)
    for info in file.infos:
        _fill(info, rng)
    return put_together(file)


def retype(file: File, rng: random.Random) -> bytes:
    """Some tensors of another type, with data to match."""
    for info in rng.sample(file.infos, rng.randrange(1, 4)):
        kind = int(GGMLQuantizationType[rng.choice(WEIGHT_TYPES)])
        if info.dimensions[0] % BLOCKS[kind][0] == 0:
            info.type = kind
            info.data = b""
    for info in file.infos:
        _fill(info, rng)
    return put_together(file)


def _fill(info: Info, rng: random.Random) -> None:
    """Weights of the right number, where there are not."""
    n = n_bytes(info)
    if len(info.data) == n or n == 0:
        info.data = info.data[:n]
        return
    items, size = BLOCKS[info.type]
    draw = np.random.default_rng(rng.randrange(2**32))
    name = GGMLQuantizationType(info.type).name
    rows = n // (-(-info.dimensions[0] // items) * size)
    shape = (rows, -(-info.dimensions[0] // items) * items)
    if name in SUPER_TYPES:
        info.data = random_super_blocks(name, shape, 0.1, draw).tobytes()
    else:
        weights = draw.normal(0, 0.1, shape).astype(np.float32)
        if name == "F16":
            info.data = weights.astype(np.float16).tobytes()
        else:
            info.data = quantize(weights, GGMLQuantizationType(info.type)).tobytes()


def change_vocabulary(file: File, rng: random.Random) -> bytes:
    """Fewer tokens, other flags, ids outside, another model or pre-tokenizer."""
    kind = rng.randrange(5)
    if kind == 0:
        key = rng.choice(("bos", "eos", "eot", "eom", "fim_pad"))
        value = struct.pack("<I", rng.choice((0, 1, 250, 483, 484, 2**31, 2**32 - 1)))
        file.set(f"tokenizer.ggml.{key}_token_id", 4, value)
    elif kind == 1:
        key = rng.choice(("add_bos_token", "add_eos_token", "add_space_prefix"))
        file.set(f"tokenizer.ggml.{key}", 7, bytes([rng.randrange(3)]))
    elif kind == 2:
        model = rng.choice(("llama", "gpt2", "none", "bert"))
        file.set("tokenizer.ggml.model", STRING, text(model.encode()))
    elif kind == 3:
        pre = rng.choice(("gpt-2", "llama-bpe", "qwen2", "smollm", "default", "falcon"))
        file.set("tokenizer.ggml.pre", STRING, text(pre.encode()))
    else:
        tokens = [rng.randbytes(rng.randrange(3)) for _ in range(rng.choice((0, 1, 2, 484)))]
        value = struct.pack("<IQ", STRING, len(tokens)) + b"".join(map(text, tokens))
        file.set(f"tokenizer.ggml.{rng.choice(('tokens', 'merges'))}", ARRAY, value)
    return put_together(file)


HOSTILE_TEMPLATES = (
    "",
    "{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**10**10 }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__ }}{{ cycler.__init__.__globals__ }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for m in messages %}{{ m.content",
    "{{ messages[10**9].content }}",
    "{{ raise_exception('no') }}",
    "(" * 3000 + "{{" + "(" * 3000,
    "{% include 'x' %}{% import 'y' as z %}",
    "{{ '%1000000000d' % 1 }}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
)


def change_template(file: File, rng: random.Random) -> bytes:
    """Another chat template: damaged, or one that means harm."""
    pair = file.pair("tokenizer.chat_template")
    raw = pair.value[8:] if pair else b"{{ messages }}"
    is_hostile = rng.random() < 0.5
    raw = rng.choice(HOSTILE_TEMPLATES).encode() if is_hostile else mutate(raw, rng)
    file.set("tokenizer.chat_template", STRING, text(raw))
    return put_together(file)


# A change and how often it is made.
Change = Callable[[File, random.Random], bytes]
CHANGES: dict[Change, int] = {
    damage: 20,
    change_value: 16,
    change_constant: 10,
    change_pairs: 6,
    change_info: 14,
    change_tensors: 3,
    poison: 5,
    exaggerate: 3,
    resize: 14,
    retype: 5,
    change_vocabulary: 4,
    change_template: 2,
}


def mutant(whole: File, rng: random.Random) -> tuple[str, bytes]:
    """(name of the change, bytes) of one mutant."""
    (change,) = rng.choices(list(CHANGES), list(CHANGES.values()))
    return change.__name__, change(deepcopy(whole), rng)
