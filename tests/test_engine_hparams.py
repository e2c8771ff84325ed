"""Sizes and constants of models, as llama.cpp reads them from metadata, and none of them absurd."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.errors import DraftsmithError, ModelDamaged, ModelUnsupported
from draftsmith.engine.gguf.file import GgufMetadata, GgufStrings, MetadataValue, read_metadata
from draftsmith.engine.transformer.hparams import ModelParams, RopeParams, read_params

Values = dict[str, MetadataValue]

EPS = float(np.float32(1e-6))


def metadata(architecture: str, values: Values) -> GgufMetadata:
    """Metadata of ``values``, whose keys lack the architecture."""
    return GgufMetadata(
        Path("model.gguf"),
        3,
        0,
        {"general.architecture": architecture}
        | {f"{architecture}.{key}": value for key, value in values.items()},
    )


def read(architecture: str, values: Values, n_vocab: int = 1000) -> ModelParams:
    return read_params(metadata(architecture, values), n_vocab)


# The keys that their makers' files hold.
LLAMA: Values = {  # Llama 3.2 1B
    "block_count": 16,
    "context_length": 131072,
    "embedding_length": 2048,
    "feed_forward_length": 8192,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "rope.freq_base": 500000.0,
    "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "attention.key_length": 64,
    "attention.value_length": 64,
    "rope.dimension_count": 64,
}
QWEN2: Values = {  # Qwen2.5 0.5B
    "block_count": 24,
    "context_length": 32768,
    "embedding_length": 896,
    "feed_forward_length": 4864,
    "attention.head_count": 14,
    "attention.head_count_kv": 2,
    "rope.freq_base": 1e6,
    "attention.layer_norm_rms_epsilon": EPS,
}
QWEN3: Values = {  # Qwen3 0.6B
    "block_count": 28,
    "context_length": 40960,
    "embedding_length": 1024,
    "feed_forward_length": 3072,
    "attention.head_count": 16,
    "attention.head_count_kv": 8,
    "rope.freq_base": 1e6,
    "attention.layer_norm_rms_epsilon": EPS,
    "attention.key_length": 128,
    "attention.value_length": 128,
}
GEMMA3: Values = {  # Gemma 3 4B
    "block_count": 34,
    "context_length": 131072,
    "embedding_length": 2560,
    "feed_forward_length": 10240,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.layer_norm_rms_epsilon": EPS,
    "attention.sliding_window": 1024,
    "rope.freq_base": 1e6,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
ALL = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gemma3": GEMMA3}
SMALLEST = ("block_count", "context_length", "embedding_length", "feed_forward_length",
            "attention.head_count", "attention.layer_norm_rms_epsilon")  # fmt: skip


def test_llama() -> None:
    """A size read from the wrong key, or a rule of another architecture."""
    assert read("llama", LLAMA, 128256) == ModelParams(
        architecture="llama", n_vocab=128256, n_ctx_train=131072, n_embd=2048, n_layers=16,
        n_nextn=0, n_head=32, n_head_kv=8, d_head=64, n_ff=8192, eps=float(np.float32(1e-5)),
        attn_scale=0.125, embd_scale=1.0, gelu=False, softcap=0.0, local=(False,) * 16, window=0,
        rope=RopeParams(
            adjacent=True, n_rot=64, base=500000.0, base_local=500000.0, n_ctx_original=131072
        ),
    )  # fmt: skip


def test_qwen() -> None:
    """Pairs taken as llama's, or a head's size taken from n_embd where a key says otherwise."""
    qwen2, qwen3 = read("qwen2", QWEN2), read("qwen3", QWEN3)
    assert (qwen2.d_head, qwen2.rope.n_rot, qwen2.rope.adjacent) == (64, 64, False)
    assert (qwen3.d_head, qwen3.rope.n_rot, qwen3.rope.adjacent) == (128, 128, False)
    assert qwen3.attn_scale == pytest.approx(1 / math.sqrt(128), rel=1e-7)
    for params in (qwen2, qwen3):
        assert (params.gelu, params.embd_scale, params.window, any(params.local)) == (
            False, 1.0, 0, False,
        )  # fmt: skip


def test_gemma3() -> None:
    """Gemma's windows, bases or scales mixed up."""
    params = read("gemma3", GEMMA3)
    assert params.local == tuple(layer % 6 < 5 for layer in range(34))
    assert (params.window, params.gelu, params.softcap) == (1024, True, 0.0)
    assert params.embd_scale == float(np.sqrt(np.float32(2560)))
    assert params.attn_scale == 1 / 16
    rope = params.rope
    assert (rope.base, rope.base_local, rope.scaling, rope.factor) == (1e6, 1e4, "linear", 8.0)
    assert (rope.adjacent, rope.n_rot) == (False, 256)


def test_gemma3_27b_scales_otherwise() -> None:
    """The largest Gemma 3's queries scaled by its heads' size, which it was not trained with."""
    largest = GEMMA3 | {
        "block_count": 62,
        "embedding_length": 5376,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.key_length": 128,
        "attention.value_length": 128,
    }
    assert read("gemma3", largest).attn_scale == float(np.float32(1) / np.sqrt(np.float32(168)))
    # The rule is Gemma's, not that of any 62 layers.
    assert read("qwen3", QWEN3 | {"block_count": 62}).attn_scale == float(
        np.float32(1) / np.sqrt(np.float32(128))
    )


@pytest.mark.parametrize(
    ("pattern", "local"),
    [
        (None, [1, 1, 1, 1, 1, 0, 1, 1]),
        (3, [1, 1, 0, 1, 1, 0, 1, 1]),
        (1, [0] * 8),
        (0, [1] * 8),
        (np.array([1, 0, 0, 1, 1, 0, 1, 1], bool), [1, 0, 0, 1, 1, 0, 1, 1]),
        (np.array([1, 0, 0, 2, 1, 0, 1, 1], np.int32), [1, 0, 0, 1, 1, 0, 1, 1]),
    ],
)
def test_window_patterns(pattern: MetadataValue | None, local: list[int]) -> None:
    """A pattern of one kind that is read as another, or a window where no layer has one."""
    values = GEMMA3 | {"block_count": 8, "rope.freq_base_swa": 20000.0}
    if pattern is not None:
        values["attention.sliding_window_pattern"] = pattern
    params = read("gemma3", values)
    assert params.local == tuple(bool(layer) for layer in local)
    assert params.window == (1024 if any(local) else 0)
    assert params.rope.base_local == (20000.0 if any(local) else 1e6)


def test_windows_absent_or_of_other_architectures() -> None:
    """Layers made local by a key that llama.cpp reads for Gemma only, or by a window of 0."""
    without = {key: value for key, value in GEMMA3.items() if "sliding" not in key}
    for architecture, values in (
        ("gemma3", without),
        ("gemma3", GEMMA3 | {"attention.sliding_window": 0}),
        ("llama", LLAMA | {"attention.sliding_window": 4096}),
        ("qwen2", QWEN2 | {"attention.sliding_window": 4096}),
    ):
        params = read(architecture, values)
        assert (params.window, any(params.local)) == (0, False)
        assert params.rope.base_local == params.rope.base


@pytest.mark.parametrize("architecture", ALL)
def test_defaults(architecture: str) -> None:
    """A missing key that becomes something else than with llama.cpp."""
    values: Values = {
        "block_count": 2, "context_length": 512, "embedding_length": 64,
        "feed_forward_length": 128, "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": EPS,
    }  # fmt: skip
    params = read(architecture, values)
    assert (params.n_head_kv, params.d_head, params.n_nextn) == (4, 16, 0)
    assert params.rope == RopeParams(
        adjacent=architecture == "llama", n_rot=16, base=1e4, base_local=1e4, n_ctx_original=512
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ("none", 1.0)),
        ({"type": "none", "factor": 4.0}, ("none", 1.0)),
        ({"factor": 4.0}, ("linear", 4.0)),
        ({"type": "linear", "factor": 4.0}, ("linear", 4.0)),
        ({"type": "linear"}, ("none", 1.0)),
        ({"factor": 0.0}, ("none", 1.0)),
        ({"factor": 1.0}, ("none", 1.0)),
        ({"type": "yarn", "factor": 4.0}, ("yarn", 4.0)),
        ({"type": "yarn"}, ("yarn", 1.0)),
    ],
)
def test_rope_scaling(values: Values, expected: tuple[str, float]) -> None:
    """A model whose context was stretched, turned as if it was not, or the other way round."""
    scaling = {f"rope.scaling.{key}": value for key, value in values.items()}
    rope = read("qwen2", QWEN2 | scaling).rope
    assert (rope.scaling, rope.factor) == expected
    assert rope.ext_factor == (1.0 if expected[0] == "yarn" else 0.0)
    assert (rope.beta_fast, rope.beta_slow) == (32.0, 1.0)


def test_rope_scaling_of_old_files_and_yarn() -> None:
    """The old name of the factor ignored, or preferred; yarn's own numbers lost."""
    assert read("llama", LLAMA | {"rope.scale_linear": 2.0}).rope.factor == 2.0
    both: Values = {"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}
    assert read("llama", LLAMA | both).rope.factor == 4.0
    yarn: Values = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 8192,
        "rope.scaling.attn_factor": 0.75,
    }
    rope = read("qwen3", QWEN3 | yarn).rope
    assert (rope.n_ctx_original, rope.attn_factor) == (8192, 0.75)
    yarn["rope.scaling.original_context_length"] = 0
    assert read("qwen3", QWEN3 | yarn).rope.n_ctx_original == 40960


def test_multi_token_prediction_blocks_are_counted_apart() -> None:
    """Blocks of multi-token prediction run as if they were the trunk's."""
    params = read("gemma3", GEMMA3 | {"block_count": 13, "nextn_predict_layers": 1})
    assert (params.n_layers, params.n_nextn, len(params.local)) == (12, 1, 12)
    pattern = np.ones(13, bool)
    values = GEMMA3 | {
        "block_count": 13, "nextn_predict_layers": 1, "attention.sliding_window_pattern": pattern,
    }  # fmt: skip
    assert read("gemma3", values).local == (True,) * 12
    for n_nextn in (13, 14, 2**32 - 1):
        with pytest.raises(ModelDamaged, match="nextn_predict_layers"):
            read("gemma3", GEMMA3 | {"block_count": 13, "nextn_predict_layers": n_nextn})


def test_a_number_a_layer() -> None:
    """Layers that differ, run with the first one's sizes."""
    for key in ("feed_forward_length", "attention.head_count", "attention.head_count_kv"):
        scalar = LLAMA[key]
        same = np.full(16, scalar, np.uint32)
        assert read("llama", LLAMA | {key: same}) == read("llama", LLAMA)
        other = same.copy()
        other[7] *= 2
        with pytest.raises(ModelUnsupported, match=f"'llama.{key}' differs between layers"):
            read("llama", LLAMA | {key: other})
        for wrong in (same[:-1], same[:0], same.astype(np.float32), same > 0):
            with pytest.raises(ModelDamaged, match=f"'llama.{key}' is an array"):
                read("llama", LLAMA | {key: wrong})
    with pytest.raises(ModelDamaged, match=r"llama\.embedding_length"):
        read("llama", LLAMA | {"embedding_length": np.full(16, 2048, np.uint32)})


@pytest.mark.parametrize("key", SMALLEST)
def test_missing_keys_are_named(key: str) -> None:
    """A default where there can be none, or a refusal that leaves the key open."""
    for architecture, values in ALL.items():
        rest = {name: value for name, value in values.items() if name != key}
        with pytest.raises(ModelDamaged, match=f"'{architecture}.{key}' is missing"):
            read(architecture, rest)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in SMALLEST[:-1] for value in (0, -1, 2**31, 2**64 - 1)),
        *((key, value) for key in SMALLEST[:-1] for value in (1.5, "8", True)),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 5),
        ("attention.head_count_kv", 64),
        ("attention.key_length", 0),
        ("attention.value_length", -64),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 63),
        ("rope.dimension_count", 66),
        ("nextn_predict_layers", -1),
        ("rope.scaling.original_context_length", -1),
        *(
            (key, value)
            for key in (
                "attention.layer_norm_rms_epsilon",
                "rope.freq_base",
                "rope.scaling.factor",
                "rope.scaling.attn_factor",
            )
            for value in (math.nan, math.inf, -math.inf, -1.0, 1e30, 1, "1")
        ),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", 1.0),
        ("rope.scaling.attn_factor", 0.0),
        ("rope.scaling.type", 1),
        ("expert_count", "8"),
        ("attention.causal", 1),
    ],
)
def test_absurd_values_are_refused(key: str, value: MetadataValue) -> None:
    """A size or a number that is believed, and divided by or allocated with later."""
    with pytest.raises(ModelDamaged) as caught:
        read("llama", LLAMA | {key: value})
    assert "\n" not in str(caught.value)
    assert "model.gguf" in caught.value.message
    if value not in (5, 64):  # there, it is the relation of two keys that is wrong
        assert f"llama.{key}" in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", math.nan),
        ("final_logit_softcapping", -30.0),
        ("rope.freq_base_swa", 0.5),
        ("attention.sliding_window", -1),
        ("attention.sliding_window", 2**31),
        ("attention.sliding_window_pattern", -6),
        ("attention.sliding_window_pattern", "6"),
        ("attention.sliding_window_pattern", np.ones(33, bool)),
        ("attention.sliding_window_pattern", np.ones(35, np.int32)),
        ("attention.sliding_window_pattern", np.ones(34, np.float32)),
        ("attention.sliding_window_pattern", GgufStrings.of([b"x"])),
    ],
)
def test_absurd_values_of_gemma3(key: str, value: MetadataValue) -> None:
    """The same, of what only Gemma has."""
    with pytest.raises(ModelDamaged, match=f"gemma3.{key}"):
        read("gemma3", GEMMA3 | {key: value})


def test_keys_without_values_length() -> None:
    """Values as long as keys where llama.cpp takes them to be n_embd / n_head."""
    values = {key: value for key, value in QWEN3.items() if key != "attention.value_length"}
    with pytest.raises(ModelUnsupported, match=r"'qwen3\.attention\.value_length' is 64"):
        read("qwen3", values)
    assert read("qwen3", values | {"attention.key_length": 64}).d_head == 64


@pytest.mark.parametrize(
    ("architecture", "values", "found"),
    [
        ("llama", {"expert_count": 8}, "a mixture of 8 experts ('llama.expert_count')"),
        ("gemma3", {"expert_count": 1}, "a mixture of 1 experts"),
        ("qwen3", {"expert_used_count": 2}, "2 experts used for a token"),
        ("qwen2", {"expert_used_count": np.array([0] * 23 + [3], np.uint32)}, "3 experts used"),
        ("llama", {"expert_group_count": 4}, "'llama.expert_group_count'"),
        ("qwen3", {"attention.causal": False}, "not causal"),
        ("llama", {"rope.scaling.type": "longrope"}, "'longrope'"),
        ("qwen2", {"rope.scaling.type": "Yarn"}, "none, linear, yarn are known"),
        ("llama", {"rope.dimension_count": 32}, "expected the 64 of a head"),
        ("qwen3", {"attention.value_length": 64}, "'qwen3.attention.value_length' is 64"),
        ("gemma3", {"attention.key_length_swa": 128}, "'gemma3.attention.key_length_swa' is 128"),
        ("gemma3", {"rope.dimension_count_swa": 128}, "rope.dimension_count_swa' is 128"),
        ("qwen3", {"attention.key_length": 520, "attention.value_length": 520}, "heads of 520"),
        ("qwen3", {"attention.key_length": 12, "attention.value_length": 12}, "heads of 12"),
        ("llama", {"embedding_length": 2052}, "hidden states of 2052"),
    ],
)
def test_unsupported_is_named(architecture: str, values: Values, found: str) -> None:
    """A feature that is left out of the computation without a word."""
    with pytest.raises(ModelUnsupported) as caught:
        read(architecture, ALL[architecture] | values)
    assert found in caught.value.message
    assert "\n" not in str(caught.value)


# What llama.cpp reads of these architectures and makes no logits of; and what it does not read,
# with the values that its own files hold (model_saver) or that another architecture would follow.
WITHOUT_EFFECT: Values = {
    "embedding_length_out": 8,
    "pooling_type": 3,
    "classifier.output_labels": GgufStrings.of([b"yes", b"no"]),
    "classifier.pooling_type": 1,
    "expert_group_used_count": 2,
    "rope.scaling.finetuned": True,
    "rope.scaling.alpha": 1000.0,
}
NOT_READ: Values = {
    "attention.clamp_kqv": 1.0,
    "attention.max_alibi_bias": 8.0,
    "attention.scale": 0.5,
    "attention.output_scale": 0.5,
    "attention.value_scale": 0.5,
    "attention.temperature_length": 64,
    "attention.temperature_scale": 0.5,
    "attention.layer_norm_epsilon": 0.5,
    "attention.rope_pattern": 0,
    "attn_logit_softcapping": 50.0,
    "router_logit_softcapping": 30.0,
    "logit_scale": 2.0,
    "residual_scale": 3.5,
    "embedding_scale": 12.0,
    "use_parallel_residual": True,
    "swin_norm": True,
    "swiglu_clamp_exp": 7.0,
    "swiglu_clamp_shexp": np.ones(34, np.float32),
    "expert_weights_scale": 0.5,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 2,
    "rope.dimension_sections": np.array([16, 24, 24, 0], np.int32),
    "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scaling.yarn_attn_factor": 2.0,
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 2.0,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "dense_2_feat_out": 8,
    "vocab_size": 7,
    "a.made_up.key": "of any type",
}
OF_GEMMA_ONLY: Values = {
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": 2,
    "rope.freq_base_swa": 20000.0,
    "final_logit_softcapping": 30.0,
}
SIZES_OF_GEMMA_ONLY: Values = {
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "rope.dimension_count_swa": 32,
}


@pytest.mark.parametrize("key", [*WITHOUT_EFFECT, *NOT_READ, *OF_GEMMA_ONLY])
@pytest.mark.parametrize("architecture", ALL)
def test_what_llama_cpp_makes_nothing_of_changes_nothing(architecture: str, key: str) -> None:
    """A model run otherwise than by llama.cpp, or refused, for a key that it does not read."""
    plain = read(architecture, ALL[architecture])
    value = {**WITHOUT_EFFECT, **NOT_READ, **OF_GEMMA_ONLY}[key]
    changed = read(architecture, ALL[architecture] | {key: value})
    assert (changed == plain) == (architecture != "gemma3" or key not in OF_GEMMA_ONLY)


@pytest.mark.parametrize("key", SIZES_OF_GEMMA_ONLY)
@pytest.mark.parametrize("architecture", ALL)
def test_sizes_of_layers_with_windows(architecture: str, key: str) -> None:
    """A model refused for the size of layers that it has not."""
    values = ALL[architecture] | {key: SIZES_OF_GEMMA_ONLY[key]}
    if architecture == "gemma3":
        with pytest.raises(ModelUnsupported, match=key):
            read(architecture, values)
    else:
        assert read(architecture, values) == read(architecture, ALL[architecture])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context_length", 4096),
        ("feed_forward_length", 4096),
        ("attention.head_count_kv", 1),
        ("attention.layer_norm_rms_epsilon", 0.25),
        ("rope.freq_base", 5000.0),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.factor", 2.0),
        ("rope.scaling.attn_factor", 0.5),
        ("rope.scaling.original_context_length", 64),
        ("nextn_predict_layers", 1),
        ("block_count", 12),
    ],
)
@pytest.mark.parametrize("architecture", ALL)
def test_what_llama_cpp_reads_is_read(architecture: str, key: str, value: MetadataValue) -> None:
    """A key that is left out of what is computed, without a word."""
    assert read(architecture, ALL[architecture] | {key: value}) != read(
        architecture, ALL[architecture]
    )


def test_yarn_that_shrinks_is_refused() -> None:
    """A yarn factor whose growth is negative or the logarithm of 0."""
    for factor in (0.5, 1e-30):
        values: Values = {"rope.scaling.type": "yarn", "rope.scaling.factor": factor}
        with pytest.raises(ModelDamaged, match="1 or more for yarn"):
            read("qwen2", QWEN2 | values)


def test_other_architectures_are_named() -> None:
    """A model of another architecture run as the nearest one."""
    for architecture in ("gemma2", "qwen35", "LLAMA", "", "x\ny", "x" * 10000):
        with pytest.raises(ModelUnsupported) as caught:
            read(architecture, LLAMA)
        assert repr(architecture[:64]) in caught.value.message
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
        assert "llama, qwen2, qwen3, gemma3" in caught.value.remedy
    nameless = GgufMetadata(Path("model.gguf"), 3, 0, {})
    with pytest.raises(ModelDamaged, match=r"'general\.architecture' is missing"):
        read_params(nameless, 10)


def test_vocabulary_size_is_checked() -> None:
    """An embedding of no token, or of more than ids can name."""
    for n_vocab in (0, -1, 2**31):
        with pytest.raises(ModelDamaged, match="vocabulary"):
            read("llama", LLAMA, n_vocab)


def test_the_vocabulary_has_a_text_for_each_row() -> None:
    """A model that chooses a token without a text, found only when it is to be shown."""
    for n_tokens in (999, 1001):
        named = metadata("llama", LLAMA)
        named.values["tokenizer.ggml.tokens"] = GgufStrings.of([b"x"] * n_tokens)
        with pytest.raises(ModelDamaged, match=f"has {n_tokens} tokens, .* computes with 1000"):
            read_params(named, 1000)
    assert read_params(metadata("llama", LLAMA), 1000).n_vocab == 1000  # no vocabulary at all


def test_layers_that_widen_absurdly_are_refused() -> None:
    """A small file whose rows of 8 numbers become a million each: gigabytes of buffers a pass."""
    narrow: Values = {**LLAMA, "embedding_length": 8}
    heads: Values = {"attention.head_count": 1024, "attention.head_count_kv": 1}
    with pytest.raises(
        ModelUnsupported, match=r"'llama\.feed_forward_length' makes 1048576 numbers"
    ):
        read("llama", {**narrow, "feed_forward_length": 1 << 20})
    with pytest.raises(
        ModelUnsupported, match=r"'llama\.attention\.head_count' makes 65536 numbers"
    ):
        read("llama", {**narrow, **heads, "feed_forward_length": 64})


def test_the_real_model(smollm2: Path) -> None:
    """A key that is spelt otherwise in real files than in these tests."""
    params = read_params(read_metadata(smollm2), 49152)
    assert (params.n_layers, params.n_embd, params.n_head, params.n_head_kv) == (30, 576, 9, 3)
    assert (params.d_head, params.n_ff, params.n_ctx_train) == (64, 1536, 8192)
    assert (params.rope.base, params.eps) == (100000.0, float(np.float32(1e-5)))


def test_any_values_are_refused_or_bounded() -> None:
    """A traceback, or a size without bound, from metadata of any kind."""
    rng = random.Random(5)
    keys = [
        *sorted(set().union(*ALL.values())),
        "attention.sliding_window_pattern", "rope.freq_base_swa", "nextn_predict_layers",
        "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scale_linear",
        "final_logit_softcapping", "attention.causal", "expert_count", "expert_used_count",
        "expert_group_count",
    ]  # fmt: skip
    odd: list[MetadataValue] = [
        0, 1, 2, 8, 16, 34, 64, -1, 2**32 - 1, 2**64 - 1, 0.0, 1.0, 5e-324, math.nan, math.inf, "",
        "yarn", "linear", True, False, np.zeros(0, np.int32), np.full(34, 8, np.uint32),
        np.full(16, 2**31, np.uint64), np.ones(28, bool), GgufStrings.of([b"a"]),
    ]  # fmt: skip
    n_read = 0
    for _ in range(4000):
        architecture = rng.choice(sorted(ALL))
        changes = {rng.choice(keys): rng.choice(odd) for _ in range(rng.choice((1, 1, 2, 3)))}
        try:
            params = read(architecture, ALL[architecture] | changes)
        except DraftsmithError:
            continue
        n_read += 1
        assert 1 <= len(params.local) == params.n_layers <= 512
        assert params.n_head % params.n_head_kv == 0
        assert params.d_head <= 512
        assert math.isfinite(params.attn_scale + params.embd_scale + params.softcap + params.eps)
    assert 200 < n_read < 3800
