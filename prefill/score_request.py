"""What a user asks of a scorer: which one, by which model and heads. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ..engine.errors import UsageError


class ScorerKind(StrEnum):
    """What scores the tokens of a prompt."""

    AUTO = "auto"  # trained, where one was trained for the model, or else fused
    LEXICAL = "lexical"
    ATTENTION = "attention"
    BLOCKSPARSE = "blocksparse"
    FUSED = "fused"
    EMBEDDED = "embedded"
    TRAINED = "trained"
    PFLASH = "pflash"
    LUCEBOX = "lucebox"
    GEMFILTER = "gemfilter"
    SPECPREFILL = "specprefill"

    @property
    def needs_heads(self) -> bool:
        """Whether heads have to be known."""
        return self in (ScorerKind.ATTENTION, ScorerKind.BLOCKSPARSE, ScorerKind.FUSED)

    @property
    def is_trained(self) -> bool:
        """Whether a trained projection has to be known."""
        return self in (ScorerKind.EMBEDDED, ScorerKind.TRAINED)


@dataclass(frozen=True)
class ScoreRequest:
    """The options that say how to score.

    Attributes
    ----------
    model : one that scores; None: the target's own first layers
    calibration : a file; None: what is found for the model
    heads : a list of them; None: those of the calibration
    window : tokens that a token of the document sees; None: as the calibration says
    one_pass : kept tokens go on from the layer where they were scored
    """

    kind: ScorerKind
    model: str | None = None
    calibration: str | None = None
    heads: str | None = None
    window: int | None = None
    one_pass: bool = False

    def settled(self) -> ScoreRequest:
        """The same, with "auto" settled as far as the other options say what is meant."""
        if self.kind is not ScorerKind.AUTO:
            return self
        if self.calibration is not None and self.calibration.endswith(".gguf"):
            return replace(self, kind=ScorerKind.TRAINED)
        says_how = (self.heads, self.calibration, self.window)
        if self.one_pass or any(value is not None for value in says_how):
            return replace(self, kind=ScorerKind.FUSED)
        return self

    def check(self) -> None:
        """Refuse what does not go together; "auto" is settled.

        Raises
        ------
        UsageError
        """
        if not self.kind.needs_heads and self.kind is not ScorerKind.AUTO:
            for flag, value in (
                ("--heads", self.heads),
                ("--calibration", None if self.kind.is_trained else self.calibration),
                ("--window", self.window),
            ):
                if value is not None:
                    raise UsageError(
                        f"{flag} is not for --scorer {self.kind}", remedy="leave one of them out"
                    )
        if self.kind is ScorerKind.LEXICAL and self.model is not None:
            raise UsageError(
                "--scorer lexical asks no model",
                remedy="leave out --scorer-model, or name a scorer",
            )
        if self.one_pass and (not self.kind.needs_heads or self.model is not None):
            raise UsageError(
                "--one-pass goes on from the model's own first layers",
                remedy="leave out --scorer-model, and give --scorer fused, attention or "
                "blocksparse",
            )
        if self.heads is not None and self.calibration is not None:
            raise UsageError("--heads and --calibration both name heads", remedy="give one of them")
        if self.heads is not None:
            from .scorers.head_names import parse_heads

            parse_heads(self.heads)  # before any file is read
        if self.window is not None and self.kind is ScorerKind.BLOCKSPARSE:
            raise UsageError(
                "--window is not for --scorer blocksparse, which sees blocks",
                remedy="leave it out",
            )
