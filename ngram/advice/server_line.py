"""The command line that does what a row of a replay did: llama-server's, or the nearest to it.

Options as of llama.cpp build 11434 (common/arg.cpp), of vLLM (``--speculative-config``), and of
transformers (``generate``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from types import MappingProxyType

from ..drafters.settings import KINDS, SERVER_CACHE_DRAFT, DrafterSpec, Number, Setting


@dataclass(frozen=True)
class ServerLine:
    """What to run.

    Attributes
    ----------
    line : llama-server's command line.
    is_exact : whether it drafts what the row did, token for token.
    remarks : what it does otherwise, a sentence each.
    elsewhere : where the row's own drafter is at home, if that is not llama-server.
    """

    line: str
    is_exact: bool
    remarks: tuple[str, ...]
    elsewhere: str | None = None


def server_line(
    spec: DrafterSpec, model: str, static: str | None = None, dynamic: str | None = None
) -> ServerLine:
    """Return the command line for a row, and the nearest one where llama-server has none.

    Parameters
    ----------
    model : path of the GGUF file.
    static, dynamic : n-gram caches of the replay; only ngram-cache reads them.
    """
    remarks = []
    settings: list[Setting] = []
    for setting in spec.names:
        nearest = setting if setting.kind.has_exact else _nearest(setting)
        if setting.kind.has_exact and not spec.upstream_exact:
            remarks.append(f"llama-server's own {setting.name}: {setting.kind.flaw}")
        if setting.name == "ngram-cache" and setting.draft_max != SERVER_CACHE_DRAFT:
            remarks.append(f"llama-server's ngram-cache drafts up to {SERVER_CACHE_DRAFT} tokens")
        if nearest is not setting:
            remarks.append(f"llama-server has no {setting.name}; {nearest} is the nearest it has")
        if nearest.name not in [one.name for one in settings]:
            settings.append(nearest)
    settings.sort(key=lambda setting: setting.kind.code)
    known = [one for one in spec.names if one.kind.has_exact]
    if known != sorted(known, key=lambda setting: setting.kind.code):
        remarks.append("llama-server asks them in an order of its own")
    words = ["llama-server", "-m", model, "--spec-type", ",".join(one.name for one in settings)]
    for setting in settings:
        for key in setting.kind.keys:
            words += [key.flag, str(setting.params[key.name])] if key.flag else []
        if setting.name == "ngram-cache":
            words += ["-lcs", static] if static is not None else []
            words += ["-lcd", dynamic] if dynamic is not None else []
            remarks += [_not_readable(path) for path in (static, dynamic) if _is_native(path)]
    return ServerLine(join(words), spec.is_of_server, tuple(remarks), _elsewhere(spec.names))


def _nearest(setting: Setting) -> Setting:
    """Return what of llama-server is nearest to a drafter that it has not."""
    if setting.name == "suffix":
        return _setting("ngram-cache")  # the only one that weighs several continuations by counts
    size_n = setting.params["ngram-max" if setting.name == "prompt-lookup" else "prompt-lookup-min"]
    return _setting("ngram-simple", {"size-n": size_n, "size-m": setting.draft_max})


def _setting(name: str, given: dict[str, Number] | None = None) -> Setting:
    params = {key.name: key.default for key in KINDS[name].keys} | (given or {})
    return Setting(name, MappingProxyType(params))


def _elsewhere(settings: Sequence[Setting]) -> str | None:
    """Return how the one who has a drafter spells it; of a combination nobody has it."""
    if len(settings) > 1 or settings[0].kind.has_exact:
        return None
    params = {key.replace("-", "_"): value for key, value in settings[0].params.items()}
    if settings[0].name == "prompt-lookup":
        return (
            f"transformers: model.generate(..., prompt_lookup_num_tokens={params['draft_max']}, "
            f"max_matching_ngram_size={params['ngram_max']})"
        )
    config: dict[str, str | Number] = {"method": "ngram"} | params
    if settings[0].name == "suffix":
        config = {"method": "suffix", "num_speculative_tokens": params["num_speculative_tokens"]}
        for key in ("max_tree_depth", "max_spec_factor", "min_token_prob"):
            config[f"suffix_decoding_{key}"] = params[key]
    return "vLLM: " + join(["vllm", "serve", "MODEL", "--speculative-config", json.dumps(config)])


def _is_native(path: str | None) -> bool:
    """Whether a cache is in our own format, which llama-server does not read."""
    from ..cache.file import MAGIC

    if path is None or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _not_readable(path: str | None) -> str:
    return f"llama-server reads {path} when lookup-merge --format llama.cpp has converted it"
