"""The models of ``prefill-run``: what scores prompts and what answers, and when each is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..generate.mtp_drafting import Drafters, DraftRequest, Material, open_drafters, warm_up
from ..generate.session import BAR_AFTER_S, Session, Target

if TYPE_CHECKING:
    from ...engine.gguf.file import GgufMetadata
    from ...engine.stages import Stages
    from ...engine.transformer.model import Model
    from ...prefill.planning import Reader, ScorePlan
    from ...prefill.scorers.one_pass import Begun, OnePassScorer
    from ...prefill.scorers.scores import Scorer
    from ..output import Output


class Models:
    """The target with its drafters, and the scorer, loaded when they are wanted first.

    Parameters
    ----------
    session_of : makes the target's session
    draft : how the answer is drafted; None: not at all
    take_turns : hold the weights of one model at a time

    Attributes
    ----------
    load_s : time that loading has taken
    """

    def __init__(
        self,
        plan: ScorePlan,
        target: Target,
        n_tokens: int,
        draft: DraftRequest | None,
        material: Material,
        draft_max: int,
        stages: Stages,
        out: Output,
        *,
        take_turns: bool = False,
    ) -> None:
        self.plan = plan
        self.load_s = 0.0
        self.weights_bytes = self.reader_bytes = self._kv_bytes = 0
        self._target = target
        self._n_tokens = n_tokens
        self._draft, self._material, self._draft_max = draft, material, draft_max
        self._stages, self._out = stages, out
        self._take_turns = take_turns and plan.reader is not None and not plan.reader.is_target
        self._session: Session | None = None
        self._drafters: Drafters | None = None
        self._model: Model | None = None
        self._scorer: Scorer | None = None
        self._one_pass: OnePassScorer | None = None
        self._is_warm = False

    def __enter__(self) -> Models:
        """Load what may be loaded before anything is asked."""
        from ...prefill import target  # noqa: F401 (its modules are in no time that is measured)

        if self._take_turns:
            with self.scoring():
                pass
        else:
            self.session()
            with self.scoring():
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_session()
        self._drop_reader()

    def session(self) -> Session:
        """The target, with an empty cache."""
        if self._session is None:
            if self._take_turns:
                self._drop_reader()
            with self._loading():
                self._session = self._open_session()
                if self._draft is not None:
                    self._drafters = open_drafters(
                        self._draft, self._session, self._material, self._draft_max, self._out
                    )
                    warm_up(self._drafters, self._session)
        self._session.cache.truncate(0)
        return self._session

    @property
    def drafters(self) -> Drafters | None:
        """Of the session; None: nothing drafts."""
        return self._drafters

    def kv_bytes(self, n_tokens: int) -> int:
        """Memory of the keys and values of so many tokens."""
        return self._kv_bytes * n_tokens

    @contextmanager
    def scoring(self) -> Iterator[Scorer]:
        """The scorer."""
        from ...prefill.scoring import warm_up as warm_up_scorer

        if self._scorer is None:
            if self._take_turns:
                self._drop_session()
            elif self.plan.reader is not None and self.plan.reader.is_target:
                self.session()
            with self._loading():
                self._scorer = self._make_scorer()
                if not self._is_warm:
                    warm_up_scorer(self._scorer, self._target.tokenizer)
                    self._is_warm = True
        yield self._scorer

    def begun(self) -> Begun | None:
        """What scoring has computed of the last prompt, for one pass; None: nothing that helps."""
        return None if self._one_pass is None else self._one_pass.take()

    def _make_scorer(self) -> Scorer:
        from ...prefill.scoring import make_scorer, one_pass_of

        reader = self.plan.reader
        model = None if reader is None else self._reading_model(reader)
        scorer = make_scorer(self.plan, self._target.tokenizer, model)
        self._one_pass = one_pass_of(scorer)
        return scorer

    def _reading_model(self, reader: Reader) -> Model:
        if reader.is_target:
            return self.session().model
        if self._model is None:
            self._model = self._load(reader.metadata, "unpacking the scorer model's weights")
            self.reader_bytes = self._model.n_bytes
        return self._model

    def _open_session(self) -> Session:
        import numpy as np

        from ...engine.decode.ready import warm_up as warm_up_model

        target = self._target
        model = self._load(target.metadata, "unpacking weights")
        self.weights_bytes = model.n_bytes
        warm_up_model(model)
        plan = target.plan(np.zeros(self._n_tokens, np.int32), 1)
        session = Session(plan, model)
        self._kv_bytes = session.cache.n_bytes // session.cache.n_ctx
        return session

    def _load(self, metadata: GgufMetadata, label: str) -> Model:
        from ...engine.transformer.model import load_model

        with self._out.progress(label, unit="bytes", after_s=BAR_AFTER_S) as bar:
            return load_model(
                metadata.path, metadata, n_threads=self._target.n_threads, on_progress=bar.update
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Count the block as loading; compilation too, which comes with it."""
        import time

        start = time.perf_counter()
        nested = self.load_s
        with self._stages.stage("load"), self._out.busy("compiling kernels"):
            yield
        self.load_s = nested + time.perf_counter() - start

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.model.close()
        self._session = self._drafters = None
        if self.plan.reader is not None and self.plan.reader.is_target:
            self._scorer = None

    def _drop_reader(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
            self._scorer = None
