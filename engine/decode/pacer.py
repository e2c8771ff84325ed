"""How many tokens to draft: estimates of what a round costs and what it yields, weighed.

A round evaluates the last token and ``n`` drafted ones in one batch and yields 1 + accepted
tokens. The pacer takes the ``n`` of the most tokens per second: for a text that the drafter
cannot foresee that is 0, plain decoding. It never changes the text, only where it is cut into
rounds. It reads no clock: times are handed in, and the same times give the same choices.

Costs come from measured steps (``StepCosts``). The yield comes from how often each position of a
draft matched when all before it had, exponentially forgotten; a draft is scored against the text
that follows it whether it was verified or not, so where drafting is cheap, watching is free. Where
a drafter has several sources, each has its own ``TrackRecord``, and the one that promises most is
asked. Where it tells how sure it is of each token, that counts instead of the position.
Against bad luck and wrong estimates there is an account of the time won over plain decoding:
a round that could lose more than what is on it is not played, so that no text loses more than
a step or two and 1 % of its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

import numpy as np

from ..errors import UsageError
from .track_record import TrackRecord, yields

# Time of a batch over that of a single token, before anything is measured.
_PRIOR_CURVE = ((1, 1.0), (2, 1.08), (3, 1.16), (4, 1.3), (8, 1.6), (16, 2.2))
_PRIOR_SLOPE = 0.075  # a token, past the curve's end
# Standard deviations, of logarithms (0.1 is about 10 %).
_NOISE = 0.1  # of a measured time
_FIRST_NOISE = 0.2  # of the first one of a larger batch than any before, which may be a slow start
_DRIFT = 0.01  # of all sizes together, from one measurement to the next
_SHAPE_DRIFT = 0.003  # of a size against half of it, likewise
_SHAPE_DOUBT = 0.4  # of the prior curve, of a size against half of it
_UNKNOWN = 30.0  # of a single step's time before the first measurement
_SURPRISE_MOST = 3  # of these together; what is beyond counts as that
_JUMP_MOST = 0.7  # and at most so much, about twice or half the estimate
_HOPE = 2  # standard deviations by which a batch may cost less than estimated
_LONGEST = 64  # tokens of a draft; a longer one has never paid, and its curve would take long
_PLAIN_BATCH = 4  # single steps that are measured by their median

_LEAP = 4  # a batch is at most that many times the largest measured yet
_LEAST_GAIN = 1.02  # an estimated gain below is as likely none
_CHEAP = 0.005  # of a single step: drafts that cost no more are always made
_PLAIN_SHARE = 0.005  # of the time may go into single steps where drafting is faster

_LOSS_SHARE = 0.01  # of the time spent may be lost against plain decoding,
_BALANCE_FIRST = 1.0  # and that many single steps in a text's first rounds
_BALANCE_MOST = 16.0  # what was won counts up to that
_HICCUP = 1.3  # a measured time further from its estimate counts as that far
_CREDIT_MOST = 4.0  # single steps saved up of that share, for looking at what seems not to pay
_RATE_MEMORY = 1 - 1 / 64  # of the speed of the last rounds


class StepCosts:
    """Estimated time of a step by batch size, from measured times.

    A Kalman filter of the logarithms: they drift together, and sizes differ from the prior curve
    as a random walk along the logarithm of the size does. So a size that was never measured
    follows its measured neighbours, and those past the largest follow that.

    Parameters
    ----------
    largest : sizes are 1 to that

    Attributes
    ----------
    ns : the estimates in nanoseconds, never falling with size; empty before the first measurement
    largest_measured : of all sizes; 0 before the first
    """

    def __init__(self, largest: int) -> None:
        sizes = np.arange(1, largest + 1)
        self._log_ns = np.log([prior_cost(size) for size in sizes.tolist()])  # [largest]
        walked = np.log2(sizes)
        shape = np.minimum(walked[:, None], walked)
        self._doubt = _UNKNOWN**2 + _SHAPE_DOUBT**2 * shape  # covariance [largest, largest]
        self._drift = _DRIFT**2 + _SHAPE_DRIFT**2 * shape
        self.ns: list[float] = []
        self.largest_measured = 0

    def measure(self, size: int, ns: float) -> None:
        """Learn that a batch of ``size`` took ``ns`` nanoseconds."""
        index = size - 1
        self._doubt += self._drift
        shared = self._doubt[index].copy()
        noise = _NOISE if size <= self.largest_measured else _FIRST_NOISE
        total = float(shared[index]) + noise**2
        most = _SURPRISE_MOST * math.sqrt(total)
        if self.ns:
            most = min(most, _JUMP_MOST)
        surprise = math.log(max(ns, 1.0)) - float(self._log_ns[index])
        gain = shared / total
        self._log_ns += gain * min(max(surprise, -most), most)
        self._doubt -= gain[:, None] * shared
        self.largest_measured = max(self.largest_measured, size)
        self.ns = np.maximum.accumulate(np.exp(self._log_ns)).tolist()

    def hopeful_ns(self) -> list[float]:
        """Estimates as low as they may well be, against that of a single step."""
        doubt = self._doubt.diagonal() + self._doubt[0, 0] - 2 * self._doubt[0]
        log_ns = self._log_ns - _HOPE * np.sqrt(np.maximum(doubt, 0))
        hopeful: list[float] = np.maximum.accumulate(np.exp(log_ns)).tolist()
        return hopeful


class Pacer:
    """Chooses draft lengths for one text after another; made anew for another model or drafter.

    A round: ask the drafter for ``n_to_draft`` tokens, verify the first ``n_to_verify`` of what
    it gave, then ``observe``. A drafter of several sources is asked for what ``choose`` says.

    Parameters
    ----------
    draft_max : most tokens a draft, 0 or more; what is above 64 counts as 64
    drawn : drafts are drawn at random and stand by ``RejectSamples``: how many of them are
        verified is then settled before they are seen, without regard to confidences

    Raises
    ------
    UsageError : draft_max below 0
    """

    def __init__(self, draft_max: int, *, drawn: bool = False) -> None:
        if draft_max < 0:
            raise UsageError(f"draft_max {draft_max} is below 0", remedy="give 0 or more")
        self.draft_max = min(draft_max, _LONGEST)
        self._drawn = drawn
        self._costs = StepCosts(self.draft_max + 1)
        self._records: dict[str, TrackRecord] = {}
        self._record = self._record_of("")  # of the source that was last asked
        self._plain_ns: list[int] = []  # of single steps, not learnt from yet
        self._since_plain_ns = 0.0
        self._credit = 0.0  # in single steps
        self._rate_tokens = self._rate_ns = 0.0  # of the last rounds
        self.begin()

    def begin(self) -> None:
        """A new text: what was drafted for the last one is not scored against it."""
        self._expected: list[int] = []
        self._expected_record = self._record
        self._expected_confidences: Sequence[float] = ()
        self._confidences: Sequence[float] = ()  # of this round
        self._next = 0
        self._n_asked = 0
        self._n_settled = 0
        self._balance = _BALANCE_FIRST  # time won over plain decoding, in single steps

    def n_to_draft(self, room: int) -> int:
        """Tokens to ask the drafter for, at most ``room``; 0: do not call it."""
        return self.choose(room, ("",))[1]

    def choose(self, room: int, origins: Sequence[str]) -> tuple[str, int]:
        """Which source to ask, and for how many tokens, at most ``room``; 0: none.

        Parameters
        ----------
        origins : 1 or more that would give a draft, in the order of preference among equals
        """
        room = max(0, min(room, self.draft_max))
        origin = origins[0] if len(origins) == 1 else self._promising(room, origins)
        self._record = self._record_of(origin)
        self._confidences = ()
        self._n_asked = self._n_to_ask(self._record, room)
        if self._drawn:
            self._n_settled = self._n_to_verify(self._n_asked)
        return origin, self._n_asked

    def n_to_verify(self, n_drafted: int, confidences: Sequence[float] = ()) -> int:
        """How many of ``n_drafted`` tokens to evaluate; those past it are only watched.

        Parameters
        ----------
        confidences : [n_drafted] of 0 to 1, the drafter's; empty: it has none
        """
        if self._drawn:
            return min(n_drafted, self._n_settled)
        self._confidences = confidences
        return self._n_to_verify(n_drafted)

    def observe(
        self,
        draft: Sequence[int],
        n_verified: int,
        tokens: Sequence[int],
        *,
        verify_ns: int,
        draft_ns: int | None,
    ) -> None:
        """Learn from a round.

        Parameters
        ----------
        draft : all that the drafter gave
        n_verified : how many of them were evaluated
        tokens : what the text really got in this round
        verify_ns : time of the forward pass and the sampling
        draft_ns : time that the drafter took; None where it was not called
        """
        record = self._record
        self._measure(n_verified, verify_ns)
        self._since_plain_ns = self._since_plain_ns + verify_ns if n_verified else 0.0
        if draft_ns is not None:
            record.time(len(draft), draft_ns)
        self._settle(
            len(draft) if draft_ns is not None else None, n_verified, len(tokens), verify_ns
        )
        self._rate_tokens = self._rate_tokens * _RATE_MEMORY + len(tokens)
        self._rate_ns = self._rate_ns * _RATE_MEMORY + verify_ns + (draft_ns or 0)
        if draft and (n_verified or self._next >= len(self._expected)):
            self._expected, self._next = list(draft), 0
            self._expected_record, self._expected_confidences = record, self._confidences
        self._score(tokens)
        self._n_asked, self._confidences = 0, ()

    def _record_of(self, origin: str) -> TrackRecord:
        if origin not in self._records:
            self._records[origin] = TrackRecord(self.draft_max)
        return self._records[origin]

    @property
    def _rate(self) -> float:
        """Tokens a nanosecond of the last rounds: what time is worth that a round takes longer."""
        plain = 1 / self._costs.ns[0]
        return max(plain, self._rate_tokens / self._rate_ns) if self._rate_ns else plain

    def _promising(self, room: int, origins: Sequence[str]) -> str:
        """The source of the most tokens beyond what their time is worth."""
        records = [self._record_of(origin) for origin in origins]
        for origin, record in zip(origins, records, strict=True):
            if record.first_draft or not self._costs.ns:
                return origin
        gains = [self._best_to_ask(record, room)[1] for record in records]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] <= 0:  # then look at what looking costs something, where that is saved up
            dear = max(range(len(records)), key=lambda i: records[i].draft_ns)
            cheap = min(range(len(records)), key=lambda i: records[i].draft_ns)
            saved_ns = self._credit * self._costs.ns[0]
            return origins[dear if saved_ns >= records[dear].draft_ns else cheap]
        for i, record in enumerate(records):
            if i != best:
                record.pass_over()
        return origins[best]

    def _n_to_ask(self, record: TrackRecord, room: int) -> int:
        if record.first_draft:
            return min(room, record.first_draft)
        draft_ns = record.draft_ns
        single = self._costs.ns[0]
        if draft_ns * room <= _CHEAP * single:
            return room
        n, _ = self._best_to_ask(record, room)
        if n or self._next < len(self._expected):  # the last draft still tells something
            return n
        if self._best_to_ask(record, room, balance=math.inf)[0]:
            return 0  # it pays, but that much cannot be risked yet: save
        n = min(room, int(self._credit * single / draft_ns))
        self._credit -= n * draft_ns / single
        return n

    def _best_to_ask(
        self, record: TrackRecord, room: int, *, balance: float | None = None
    ) -> tuple[int, float]:
        """How many tokens to ask for, and the tokens they win over a single step.

        ``balance`` is that of ``_best``.
        """
        draft_ns, step_ns, rate = record.draft_ns, self._costs.ns, self._rate
        if not record.is_confident:
            tokens = yields(record.acceptances(room))
            n = self._best(tokens, step_ns, draft_ns, balance=balance)
            return n, tokens[n] - 1 - rate * (step_ns[n] + n * draft_ns - step_ns[0])
        most_ns = step_ns[0] * (1 + (self._balance if balance is None else balance))
        best, best_gain = 0, 0.0
        for n in range(1, min(room, self._leap) + 1):
            if step_ns[n] + n * draft_ns > most_ns:
                break
            gain = record.worth[n - 1] - rate * draft_ns * record.lengths[n - 1]
            if gain > max(best_gain, _LEAST_GAIN - 1):
                best, best_gain = n, gain
        return best, best_gain

    def _n_to_verify(self, n_drafted: int) -> int:
        record, step_ns = self._record, self._costs.ns
        if not step_ns:
            return 0
        acceptances, rate = record.acceptances(n_drafted), None
        is_confident = len(self._confidences) or (record.is_confident and not n_drafted)
        if is_confident and self._n_asked:
            acceptances, rate = record.calibrated(self._confidences), self._rate
            prices = [rate * (ns - step_ns[0]) for ns in step_ns]
            record.remember(acceptances, self._n_asked, prices)
        if not n_drafted:
            return 0
        tokens = yields(acceptances)
        n = self._best(tokens, step_ns, rate=rate)
        if not n:
            return self._hopeful(tokens)
        gain = tokens[n] * step_ns[0] / step_ns[n]
        if (gain - 1) * step_ns[0] < _PLAIN_SHARE * self._since_plain_ns:
            return 0  # to measure again what a gain is compared with
        return n

    def _measure(self, n_verified: int, verify_ns: int) -> None:
        """Single steps are measured a few at a time, by their median: most rounds are single."""
        if not n_verified:
            self._plain_ns.append(verify_ns)
        if self._plain_ns and (
            n_verified or not self._costs.ns or len(self._plain_ns) == _PLAIN_BATCH
        ):
            self._costs.measure(1, median_low(self._plain_ns))
            self._plain_ns.clear()
        if n_verified:
            self._costs.measure(1 + n_verified, verify_ns)

    def _settle(
        self, n_drafted: int | None, n_verified: int, n_tokens: int, verify_ns: float
    ) -> None:
        """Book what a round won over plain decoding; ``n_drafted`` None: no draft was asked for."""
        single, estimate = self._costs.ns[0], self._costs.ns[n_verified]
        spent = single
        if n_verified:
            spent = min(max(verify_ns, estimate / _HICCUP), estimate * _HICCUP)
        if n_drafted is not None and not self._record.first_draft:
            spent += self._record.draft_ns * max(1, n_drafted)
        spent /= single
        self._balance = min(self._balance + n_tokens - (1 - _LOSS_SHARE) * spent, _BALANCE_MOST)
        self._credit = min(self._credit + _LOSS_SHARE * spent, _CREDIT_MOST)

    def _score(self, tokens: Sequence[int]) -> None:
        """Compare what was drafted, verified or not, with how the text went on."""
        confidences = self._expected_confidences
        for token in tokens:
            position = self._next
            if position >= min(len(self._expected), self.draft_max):
                return
            hit = self._expected[position] == token
            confidence = confidences[position] if len(confidences) else None
            self._expected_record.score(position, hit, confidence)
            self._next = position + 1 if hit else len(self._expected)

    @property
    def _leap(self) -> int:
        """Most drafted tokens of a batch that is not much larger than any measured yet."""
        return max(0, min(self.draft_max, _LEAP * self._costs.largest_measured - 1))

    def _best(
        self,
        tokens: Sequence[float],
        step_ns: Sequence[float],
        draft_ns: float = 0.0,
        *,
        balance: float | None = None,
        rate: float | None = None,
    ) -> int:
        """Drafted tokens of the most tokens per second; the fewest of equals.

        Parameters
        ----------
        tokens : [n + 1] a round is expected to yield, by drafted tokens
        step_ns : estimated time of a step by batch size
        draft_ns : time of a drafted token that is yet to be spent
        balance : single steps that may be lost, were all rejected; None: what there is
        rate : tokens that a nanosecond yields elsewhere, where rounds differ; None: they do not
        """
        single = step_ns[0]
        most_ns = single * (1 + (self._balance if balance is None else balance))
        best = 0
        best_worth = _LEAST_GAIN / single if rate is None else _LEAST_GAIN - rate * single
        for n, n_tokens in enumerate(tokens[1 : self._leap + 1], 1):
            round_ns = step_ns[n] + n * draft_ns
            if round_ns > most_ns:
                break
            worth = n_tokens / round_ns if rate is None else n_tokens - rate * round_ns
            if worth > best_worth:
                best, best_worth = n, worth
        return best

    def _hopeful(self, tokens: Sequence[float]) -> int:
        """Tokens to verify against the estimate: the batch may cost less than it seems to.

        Only where it would pay at the least likely cost, and where the credit covers the loss.
        """
        n = self._best(tokens, self._costs.hopeful_ns())
        loss = self._costs.ns[n] / self._costs.ns[0] - tokens[n]
        if loss > self._credit:
            return 0
        self._credit -= max(0.0, loss)
        return n


def n_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens, from the first on, two texts (or a draft and its text) begin alike."""
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def prior_cost(size: int) -> float:
    """Assumed time of a batch of ``size`` over that of a single token."""
    low, low_cost = _PRIOR_CURVE[0]
    for high, cost in _PRIOR_CURVE[1:]:
        if size <= high:
            return low_cost + (cost - low_cost) * (size - low) / (high - low)
        low, low_cost = high, cost
    return low_cost + _PRIOR_SLOPE * (size - low)
