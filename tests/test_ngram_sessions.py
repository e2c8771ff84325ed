"""Sessions: the arrays that kernels find by address, laid out by name on both sides."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from draftsmith.ngram.drafters import session_kernels as any_drafter
from draftsmith.ngram.drafters.slot_kernels import Bank
from draftsmith.ngram.lookup import session_kernels as lookup
from draftsmith.ngram.lookup.draft_kernels import Bigrams, Context, Dynamic, Followers
from draftsmith.ngram.lookup.tables import session_of


def arrays_of(kind: type) -> tuple[object, ...]:
    """One array for each field, of as many items as arrays were made before."""
    made = iter(range(100))
    tuples = {"context": Context, "dynamic": Dynamic, "bigrams": Bigrams, "bank": Bank}

    def filled(fields: tuple[str, ...]) -> list[object]:
        return [
            Followers(*filled(Followers._fields))
            if name == "followers"
            else tuples[name](*filled(tuples[name]._fields))
            if name in tuples
            else np.zeros(next(made), np.int32)
            for name in fields
        ]

    return kind(*filled(kind._fields))


@pytest.mark.parametrize("kernels", [lookup, any_drafter])
def test_lays_out_all_arrays_in_order(kernels: ModuleType) -> None:
    """An array that the glue puts elsewhere than the kernels look for it."""
    session = session_of(arrays_of(kernels.Session), kernels.N_ARRAYS)
    assert session[1::2].tolist() == list(range(kernels.N_ARRAYS))


@pytest.mark.parametrize("kernels", [lookup, any_drafter])
def test_counts_what_the_kernels_know_of(kernels: ModuleType) -> None:
    """A new array that only one side knows: all after it would be another one's memory."""
    session = arrays_of(kernels.Session)
    for arrays in (session[:-1], (*session, np.zeros(1, np.int32))):
        with pytest.raises(AssertionError, match="do not agree"):
            session_of(arrays, kernels.N_ARRAYS)
