"""N-gram caches and drafting: corpus, counts, cache file, drafter, replay.

What a program needs of it is named here and imported at its first use: docs/python-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache.count import NgramCounter
    from .cache.file import open_cache, write_cache
    from .cache.ngram_cache import NgramCache, merge_caches
    from .drafters.drafter import SpecDrafter
    from .drafters.settings import DrafterSpec, parse_specs
    from .llama_cpp import LlamaCppDraftModel
    from .lookup.drafter import NgramDrafter

__all__ = [
    "DrafterSpec",
    "LlamaCppDraftModel",
    "NgramCache",
    "NgramCounter",
    "NgramDrafter",
    "SpecDrafter",
    "merge_caches",
    "open_cache",
    "parse_specs",
    "write_cache",
]

_MODULES = {
    "DrafterSpec": "drafters.settings",
    "LlamaCppDraftModel": "llama_cpp",
    "NgramCache": "cache.ngram_cache",
    "NgramCounter": "cache.count",
    "NgramDrafter": "lookup.drafter",
    "SpecDrafter": "drafters.drafter",
    "merge_caches": "cache.ngram_cache",
    "open_cache": "cache.file",
    "parse_specs": "drafters.settings",
    "write_cache": "cache.file",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # so that this is asked once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
