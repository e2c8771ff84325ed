"""Files of MTP heads: where they may be, what they may leave out, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.errors import (
    DraftsmithError,
    InputUnreadable,
    ModelDamaged,
    ModelNotGguf,
    ModelUnsupported,
    UsageError,
)
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.transformer.hparams import read_params
from draftsmith.engine.transformer.model import Model, load_model
from draftsmith.mtp.drafter import MtpDrafter
from draftsmith.mtp.head import MtpHead, open_head
from numpy.typing import NDArray
from toy_model import write_model
from toy_mtp import HEADS, Story, ToyHead, d2t_of, write_model_with_head, write_toy_head

SMALL: dict[str, Any] = {"n_embd": 64, "n_ff": 96, "n_head": 4, "n_head_kv": 2, "d_head": 16}
FINGERPRINT = "ab" * 32
N = 64
TEXT = np.random.default_rng(3).integers(0, 400, 20).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without MTP layers, of two layers and 64 wide."""
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf", **SMALL)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    loaded = load_model(path, n_threads=2)
    yield loaded
    loaded.close()


@pytest.fixture
def head_path(tmp_path: Path) -> Path:
    return tmp_path / "head.gguf"


def opened(head: Path | None, path: Path, model: Model) -> MtpHead:
    return open_head(head, read_metadata(path), model, FINGERPRINT)


def draft_of(head: MtpHead) -> tuple[list[int], bytes]:
    story = Story(head.model, MtpDrafter(head, 32))
    story.tell(TEXT)
    tokens = story.drafter.draft(5).tolist()
    assert tokens
    return tokens, story.drafter.confidences.tobytes()


# --------------------------------------------------------------------------------------------------
# What fits


@pytest.mark.parametrize("name", HEADS)
def test_a_head_in_the_models_file_is_the_same(
    name: str, path: Path, model: Model, head_path: Path, tmp_path: Path
) -> None:
    """The bug: blocks counted from the wrong end; tensors of the model taken for the head's."""
    toy = ToyHead(**HEADS[name])
    alone = draft_of(opened(write_toy_head(head_path, head=toy, **SMALL), path, model))
    whole = write_model_with_head(tmp_path / "whole.gguf", head=toy, **SMALL)
    both = load_model(whole, n_threads=1)
    assert draft_of(opened(None, whole, both)) == alone
    # a file that holds the model too may be named as a head
    assert draft_of(opened(whole, path, model)) == alone
    both.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_trunk_runs_without_the_heads_in_its_file(arch: str, tmp_path: Path) -> None:
    """The bug: a block of multi-token prediction run as one of the model's."""
    toy = ToyHead(n_heads=2)
    plain = write_model(tmp_path / "plain.gguf", arch, **SMALL)
    whole = write_model_with_head(tmp_path / "whole.gguf", arch, head=toy, **SMALL)
    n_vocab = load_model(plain).params.n_vocab
    params = read_params(read_metadata(whole), n_vocab)
    assert params.n_nextn == 2
    assert params.n_layers == read_params(read_metadata(plain), n_vocab).n_layers
    found = []
    for file in (plain, whole):
        loaded = load_model(file, n_threads=1)
        done = loaded.forward(np.array(TEXT), loaded.new_cache(20), rows="all")
        found.append(done.logits.tobytes())
        loaded.close()
    assert found[0] == found[1]


def test_what_a_head_may_leave_out(path: Path, model: Model, head_path: Path) -> None:
    """The bug: a default other than the contract's; a fingerprint that every head has to have."""
    head = opened(write_toy_head(head_path, **SMALL), path, model)
    assert head.is_normed
    assert head.feature_layers == ()
    assert head.d2t.tolist() == list(range(model.params.n_vocab))
    assert head.n_bytes < model.n_bytes
    names = {"draftsmith.target.fingerprint": FINGERPRINT}
    opened(write_toy_head(head_path, head=ToyHead(names=names), **SMALL), path, model)


def test_rows_of_the_draft_vocabulary_alone_are_packed(
    path: Path, model: Model, head_path: Path
) -> None:
    """The bug: a reduced vocabulary that costs as much as the whole one; a copy a head."""
    sizes = []
    for n_heads in (1, 2):
        toy = ToyHead(n_draft=100, n_heads=n_heads)
        sizes.append(opened(write_toy_head(head_path, head=toy, **SMALL), path, model).n_bytes)
        toy = ToyHead(n_heads=n_heads)
        sizes.append(opened(write_toy_head(head_path, head=toy, **SMALL), path, model).n_bytes)
    output = 112 * N * 4
    assert sizes[0] - sizes[1] == output
    assert sizes[2] - sizes[3] == output
    assert sizes[3] == 2 * sizes[1]


def test_progress_comes_to_its_end(path: Path, model: Model, head_path: Path) -> None:
    """The bug: a bar that stays where it was."""
    told: list[tuple[int, int]] = []
    open_head(
        write_toy_head(head_path, **SMALL),
        read_metadata(path),
        model,
        FINGERPRINT,
        on_progress=lambda *pair: told.append(pair),
    )
    assert told[-1][0] == told[-1][1] > 0


# --------------------------------------------------------------------------------------------------
# Refusals


def assert_refused(
    kind: type[DraftsmithError], words: str, head: Path | None, path: Path, model: Model
) -> None:
    """An error of that kind, of one line, with all those words, the file's name and a remedy."""
    with pytest.raises(kind) as caught:
        opened(head, path, model)
    assert type(caught.value) is kind
    for word in (*words.split(), (head or path).name):
        assert word in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_model_without_heads_says_what_it_lacks(path: Path, model: Model) -> None:
    """The bug: a traceback, or drafts of whatever blocks there are."""
    assert_refused(
        UsageError, "no MTP layers 'llama.nextn_predict_layers' missing", None, path, model
    )
    with pytest.raises(UsageError, match="--mtp-head"):
        opened(None, path, model)


def test_a_file_without_heads_is_no_head(path: Path, model: Model) -> None:
    """The bug: a missing tensor named, where all of it is missing."""
    assert_refused(UsageError, "no MTP layers 'llama.nextn_predict_layers'", path, path, model)


@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        ({"nextn_predict_layers": 0}, UsageError, "no MTP layers nextn_predict_layers' is 0"),
        ({"nextn_predict_layers": 4}, ModelDamaged, "is 4, expected 1 to the 3 block_count"),
        ({"nextn_predict_layers": 2**32 - 1}, ModelDamaged, "4294967295 expected 1 to the 3"),
        ({"nextn_predict_layers": 2}, UsageError, "another model 3 with 2 MTP expected 4"),
        ({"nextn_predict_layers": "1"}, ModelDamaged, "nextn_predict_layers str integer"),
        ({"block_count": 5}, UsageError, "another model block_count' 5 expected 3"),
        ({"block_count": None}, ModelDamaged, "'llama.block_count' missing"),
        ({"embedding_length": 72}, UsageError, "another model embedding_length' is 72 expected 64"),
        ({"feed_forward_length": 64}, UsageError, "another feed_forward_length' is 64 expected 96"),
        ({"attention.head_count": 2}, UsageError, "another head_count' is 2 expected 4"),
        ({"attention.head_count_kv": [1, 2]}, UsageError, "head_count_kv' 1 2 expected 2"),
        ({"attention.key_length": 32}, UsageError, "key_length' is 32 expected 16"),
        ({"attention.layer_norm_rms_epsilon": 0.5}, UsageError, "epsilon' is 0.5 expected"),
        ({"rope.freq_base": 500.0}, UsageError, "freq_base' is 500 expected 10000"),
        ({"rope.scaling.factor": 4.0}, UsageError, "factor' is 4 expected 1"),
        ({"embedding_length": "64"}, UsageError, "embedding_length' is 64 expected 64"),
        ({"nextn.hidden": "half"}, ModelUnsupported, "nextn.hidden' 'half' 'normed' 'raw'"),
        ({"nextn.feature_layers": [0, 2]}, ModelDamaged, "feature_layers' 2 expected 0 to 1"),
        ({"nextn.feature_layers": [-1]}, ModelDamaged, "feature_layers' -1 expected 0 to 1"),
        ({"nextn.feature_layers": [1, 1]}, ModelDamaged, "feature_layers' each once"),
        ({"nextn.feature_layers": [0] * 5000}, ModelDamaged, "feature_layers' each once"),
        ({"nextn.feature_layers": [0.5]}, ModelDamaged, "feature_layers' 0.5"),
        ({"nextn.feature_layers": 1}, ModelDamaged, "feature_layers' int numbers"),
    ],
    ids=str,
)
def test_wrong_keys(
    keys: dict[str, Any],
    kind: type[DraftsmithError],
    words: str,
    path: Path,
    model: Model,
    head_path: Path,
) -> None:
    """The bug: a crash inside a kernel, or drafts that are never right and nobody knows why."""
    write_toy_head(head_path, head=ToyHead(keys=keys), **SMALL)
    assert_refused(kind, words, head_path, path, model)


def test_a_head_for_another_architecture(path: Path, model: Model, head_path: Path) -> None:
    """The bug: keys of the other architecture looked for in vain."""
    write_toy_head(head_path, "qwen2", **SMALL)
    assert_refused(
        UsageError, "another model general.architecture 'qwen2' 'llama'", head_path, path, model
    )


def test_a_head_for_another_vocabulary(path: Path, model: Model, head_path: Path) -> None:
    """The bug: drafts of other words that happen to have the same ids."""
    names = {"draftsmith.target.fingerprint": "cd" * 32}
    write_toy_head(head_path, head=ToyHead(names=names), **SMALL)
    assert_refused(UsageError, "another vocabulary cdcdcd ababab", head_path, path, model)


@pytest.mark.parametrize(
    "name",
    [
        "eh_proj.weight", "enorm.weight", "hnorm.weight", "eh_proj_first.weight",
        "feature_norm.weight",
    ],
)  # fmt: skip
def test_missing_tensors_of_the_head(name: str, path: Path, model: Model, head_path: Path) -> None:
    """The bug: a projection of nothing."""
    full = f"blk.2.nextn.{name}"
    toy = ToyHead(feature_layers=(1,), tensors={full: None})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelDamaged, f"no tensor {full}", head_path, path, model)


@pytest.mark.parametrize(
    "name",
    [
        "blk.2.made_up.weight", "blk.2.nextn.made_up.weight", "blk.2.nextn.feature_norm.weight",
        "blk.2.nextn.eh_proj.scale", "blk.2.attn_qkv.bias", "nextn.made_up", "made_up.weight",
        "blk.3.attn_q.weight",
    ],
)  # fmt: skip
def test_tensors_that_would_not_be_used(
    name: str, path: Path, model: Model, head_path: Path, tmp_path: Path
) -> None:
    """The bug: a head that is more than what is computed of it, and drafts."""
    toy = ToyHead(tensors={name: floats(N)})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelUnsupported, f"tensor {name} is none that head", head_path, path, model)
    if name.startswith("blk.2.") or name == "nextn.made_up":  # of the head in the model's file, too
        whole = write_model_with_head(tmp_path / "whole.gguf", head=toy, **SMALL)
        both = load_model(whole, n_threads=1)
        assert_refused(ModelUnsupported, f"tensor {name} is none that head", None, whole, both)
        both.close()


@pytest.mark.parametrize("name", ["attn_q.weight", "attn_norm.weight", "ffn_down.weight"])
def test_missing_tensors_of_the_block(name: str, path: Path, model: Model, head_path: Path) -> None:
    """The bug: a block that is run without one of its matrices."""
    write_toy_head(head_path, head=ToyHead(tensors={f"blk.2.{name}": None}), **SMALL)
    assert_refused(ModelDamaged, f"no tensor blk.2.{name}", head_path, path, model)


def floats(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("eh_proj", floats(64, 64), "64 x 64, not 64 x 128"),
        ("eh_proj_first", floats(64, 128), "64 x 128, not 64 x 192"),
        ("enorm", floats(128), "128, not 64"),
        ("feature_norm", floats(128), "128, not 64"),
        ("shared_head_norm", floats(32), "32, not 64"),
        ("shared_head_head", floats(101, 64), "101 x 64, not 100 x 64"),
        ("shared_head_head", floats(64), "64, not 100 x 64"),
        ("embed_tokens", floats(100, 64), "100 x 64, not"),
    ],
    ids=str,
)
def test_tensors_of_another_shape(
    name: str, tensor: NDArray[Any], words: str, path: Path, model: Model, head_path: Path
) -> None:
    """The bug: weights read from after the end of a tensor."""
    full = f"blk.2.nextn.{name}.weight"
    toy = ToyHead(feature_layers=(1,), n_draft=100, tensors={full: tensor})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelDamaged, f"{full} {words}", head_path, path, model)


@pytest.mark.parametrize("weight_type", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize(
    "name",
    [
        "nextn.eh_proj", "nextn.eh_proj_first", "nextn.enorm", "nextn.feature_norm",
        "nextn.shared_head_norm", "nextn.shared_head_head", "nextn.embed_tokens", "attn_q",
        "ffn_norm",
    ],
)  # fmt: skip
def test_weights_that_are_not_finite(
    name: str, weight_type: str, path: Path, model: Model, head_path: Path
) -> None:
    """The bug: NaN, which rounding to int8 turns into numbers, or which ends all drafts."""
    toy = ToyHead(feature_layers=(1,), n_draft=64, embeddings=True, output="draft")
    write_toy_head(head_path, head=toy, weight_type=weight_type, **SMALL)
    tensor = {t.name: t for t in read_metadata(head_path).tensors}[f"blk.2.{name}.weight"]
    data = bytearray(head_path.read_bytes())
    at = read_metadata(head_path).data_start + tensor.offset
    is_vector = len(tensor.dimensions) == 1
    # the first number, or the scale of the first block
    nan = np.float32(np.nan) if is_vector or weight_type == "F32" else np.float16(np.nan)
    data[at : at + nan.nbytes] = nan.tobytes()
    head_path.write_bytes(data)
    assert_refused(ModelDamaged, f"blk.2.{name}.weight not finite", head_path, path, model)


IDS = d2t_of(100, 400)


def changed(at: int, token: int) -> NDArray[np.int32]:
    ids = IDS.copy()
    ids[at] = token
    return ids


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (changed(-1, 10**6), "to 1000000, expected of the"),
        (changed(0, -1), "from -1 expected from 0"),
        (changed(5, int(IDS[4])), f"{IDS[4]} after {IDS[4]}, ascending"),
        (changed(5, 0), f"0 after {IDS[4]}, ascending"),
        (np.arange(5000, dtype=np.int32), "5000 ids to 4999"),
        (IDS.reshape(10, 10), "I32 of 10 x 10, expected a vector"),
        (floats(100), "F32 of 100, expected I32"),
    ],
    ids=str,
)
def test_wrong_draft_vocabularies(
    ids: NDArray[Any], words: str, path: Path, model: Model, head_path: Path
) -> None:
    """The bug: tokens that are none; ties that the wrong token wins."""
    toy = ToyHead(n_draft=100, tensors={"nextn.d2t": ids})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelDamaged, f"nextn.d2t {words}", head_path, path, model)


def test_ids_in_place_of_weights(path: Path, model: Model, head_path: Path) -> None:
    """The bug: a crash, or the bits of whole numbers taken for weights."""
    name = "blk.2.nextn.eh_proj.weight"
    toy = ToyHead(tensors={name: np.zeros((N, 2 * N), np.int32)})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelUnsupported, f"{name} I32", head_path, path, model)


def test_embeddings_of_several_types(path: Path, model: Model, head_path: Path) -> None:
    """The bug: a table whose rows are cut at another's length."""
    toy = ToyHead(n_heads=2, tensors={"blk.3.nextn.embed_tokens.weight": floats(1, N)})
    write_toy_head(head_path, head=toy, **SMALL)
    assert_refused(ModelDamaged, "blk.3.nextn.embed_tokens.weight 1 x 64", head_path, path, model)
    table = np.ones((model.params.n_vocab, N), np.float32)
    toy = ToyHead(n_heads=2, tensors={"blk.3.nextn.embed_tokens.weight": table})
    write_toy_head(head_path, head=toy, weight_type="F16", **SMALL)
    assert_refused(ModelUnsupported, "F32, F16 one type", head_path, path, model)


def test_files_that_are_none(path: Path, model: Model, head_path: Path) -> None:
    """The bug: an error that names the model's file."""
    assert_refused(InputUnreadable, "can't be read", head_path, path, model)
    head_path.write_bytes(b"no GGUF at all")
    assert_refused(ModelNotGguf, "not a GGUF", head_path, path, model)
    whole = write_toy_head(head_path, **SMALL).read_bytes()
    head_path.write_bytes(whole[: len(whole) - 1000])
    assert_refused(ModelDamaged, "ends at byte", head_path, path, model)


def test_strings_instead_of_numbers(path: Path, model: Model, head_path: Path) -> None:
    """The bug: a head of 10 MB that took 6 GB, as an array of strings that are as long as one."""
    strings = ["x" * 1_000_000, *[""] * 60_000]
    for key in ("feed_forward_length", "embedding_length", "rope.freq_base"):
        write_toy_head(head_path, head=ToyHead(keys={key: strings}), **SMALL)
        assert_refused(UsageError, f"{key} an array of 60001 strings", head_path, path, model)
