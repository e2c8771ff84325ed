"""N-gram caches and drafting: corpus, counts, cache file, drafter, replay.

What a program needs of it is named here and imported at its first use: docs/python-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import NgramCache, merge_caches
    from .cache_file import open_cache, write_cache
    from .count import NgramCounter
    from .drafter import NgramDrafter
    from .llama_cpp import LlamaCppDraftModel
    from .spec import DrafterSpec, parse_specs
    from .spec_drafter import SpecDrafter

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
    "DrafterSpec": "spec",
    "LlamaCppDraftModel": "llama_cpp",
    "NgramCache": "cache",
    "NgramCounter": "count",
    "NgramDrafter": "drafter",
    "SpecDrafter": "spec_drafter",
    "merge_caches": "cache",
    "open_cache": "cache_file",
    "parse_specs": "spec",
    "write_cache": "cache_file",
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
