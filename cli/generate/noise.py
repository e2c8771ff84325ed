"""Warnings of comparisons whose ratio is noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..output import Output

# A text that took less is noise to begin with: nobody is warned of it, but told.
SHORT_MS = 200.0


def warn_of_noise(record: Mapping[str, Any], out: Output) -> None:
    """Say of a record of --compare what its ratio can't be taken for."""
    if record["gain_unexplained"]:
        tell = out.note if record["decode_ms"] < SHORT_MS else out.warn
        tell(
            f"a ratio of {record['ratio']:.3f} is more than the {record['ratio_explained']:.3f} "
            "that the tokens of a round, over what its passes cost, can come to: the difference "
            "is noise of the machine; compare again while it does nothing else, with a larger "
            "--repeat or -n"
        )
    elif record["gain_within_spread"]:
        out.note(
            "some turns were faster with drafts and some without: the difference is smaller than "
            "the noise; a larger --repeat or -n says more"
        )
