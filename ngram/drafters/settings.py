"""What a user writes of drafters, ``NAME[:key=value,...]``, as settings: the one table of kinds.

A value may be several with ``|`` between them, which expand to a grid; ``a+b`` is a combination,
the first that drafts anything wins a round, as of llama.cpp's ``--spec-type a,b``. The table gives
each kind's keys, defaults and ranges, and how llama-server spells them (llama.cpp build 11434,
common/arg.cpp; vLLM's and transformers' own names for theirs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType

from ...engine.errors import UsageError

# A grid is one row a setting; more than these is a typing error or an attack.
GRID_MOST = 10_000
# Nobody mistypes more characters than these.
_GUESSED_MOST = 1000
# llama-server's ngram-cache has this built in; no option changes it.
SERVER_CACHE_DRAFT = 8
_LEAST, _MOST = "prompt-lookup-min", "prompt-lookup-max"

Number = int | float


@dataclass(frozen=True)
class Key:
    """One parameter of a kind.

    Attributes
    ----------
    default : its type is that of the values, whole numbers or not.
    least, most : range, both included.
    flag : llama-server's option, None where it has none.
    """

    name: str
    default: Number
    least: Number
    most: Number
    about: str
    flag: str | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.default, int)


@dataclass(frozen=True)
class SettingKind:
    """One drafter.

    Attributes
    ----------
    code : its number in the kernels; llama-server's order of priority.
    draft_key : the key that bounds the length of a draft.
    server_type : llama-server's ``--spec-type``, None where it has none. Such a kind exists twice:
        as llama.cpp has it, flaws included (``upstream_exact``), and repaired.
    flaw : what the repaired form does otherwise.
    """

    name: str
    code: int
    keys: tuple[Key, ...]
    draft_key: str
    about: str
    server_type: str | None = None
    flaw: str | None = None

    @property
    def has_exact(self) -> bool:
        """Whether there is a form that is llama.cpp's token for token."""
        return self.server_type is not None

    def key(self, name: str) -> Key:
        """Return a key by its name; KeyError where there is none."""
        return next(key for key in self.keys if key.name == name)


def _map_keys(kind: str, about_m: str = "longest draft") -> tuple[Key, Key]:
    return (
        Key("size-n", 12, 1, 1024, "tokens that are looked up", f"--spec-{kind}-size-n"),
        Key("size-m", 48, 1, 1024, about_m, f"--spec-{kind}-size-m"),
    )


def _min_hits(kind: str) -> Key:
    flag = f"--spec-{kind}-min-hits"
    return Key("min-hits", 1, 1, 65_535, "least occurrences that draft", flag)


_ALL = (
    SettingKind(
        "ngram-simple",
        0,
        _map_keys("ngram-simple"),
        "size-m",
        "what followed the latest earlier occurrence of the last tokens",
        "ngram-simple",
        "the text's first token never counts; drafts shorter than size-n are dropped",
    ),
    SettingKind(
        "ngram-map-k",
        1,
        (*_map_keys("ngram-map-k"), _min_hits("ngram-map-k")),
        "size-m",
        "the same through a hash table, no longer than what was accepted last time",
        "ngram-map-k",
        "a key that was once refused whole never drafts again; min-hits is ignored",
    ),
    SettingKind(
        "ngram-map-k4v",
        2,
        (*_map_keys("ngram-map-k4v"), _min_hits("ngram-map-k4v")),
        "size-m",
        "up to four continuations of each key, the clear favourite is drafted",
        "ngram-map-k4v",
        "what is drafted is the latest continuation, not the favourite; as ngram-map-k else",
    ),
    SettingKind(
        "ngram-mod",
        3,
        (
            Key("n-match", 24, 1, 1024, "tokens that are looked up", "--spec-ngram-mod-n-match"),
            Key("n-min", 48, 0, 1024, "shortest draft", "--spec-ngram-mod-n-min"),
            Key("n-max", 64, 0, 1024, "longest draft", "--spec-ngram-mod-n-max"),
        ),
        "n-max",
        "one pool from hashes of n-grams to next tokens, shared by all requests",
        "ngram-mod",
        "two n-grams of one hash give each other's tokens",
    ),
    SettingKind(
        "ngram-cache",
        4,
        (Key("draft-max", SERVER_CACHE_DRAFT, 1, 1024, "longest draft; in llama-server always 8"),),
        "draft-max",
        "counts of n-grams of sizes 1 to 4, and the caches of -lcs and -lcd, as llama-lookup",
        "ngram-cache",
        "n-grams across two rounds are never learnt; a new request finds the last one's counts",
    ),
    SettingKind(
        "suffix",
        5,
        (
            Key("max-tree-depth", 24, 2, 1024, "tokens of match and draft together"),
            Key("max-spec-factor", 1.0, 0.0, 1024.0, "draft tokens for each matched one"),
            Key("min-token-prob", 0.1, 0.0, 1.0, "least share of a drafted path's occurrences"),
            Key("num-speculative-tokens", 24, 1, 1024, "longest draft"),
        ),
        "num-speculative-tokens",
        "the likeliest continuation of the longest match, by a suffix automaton with counts",
    ),
    SettingKind(
        "prompt-lookup",
        6,
        (
            Key("ngram-max", 2, 1, 1024, "longest n-gram (max_matching_ngram_size)"),
            Key("draft-max", 10, 1, 1024, "longest draft (prompt_lookup_num_tokens)"),
        ),
        "draft-max",
        "transformers' prompt lookup: after the first occurrence of the longest n-gram",
    ),
    SettingKind(
        "vllm-ngram",
        7,
        (
            Key(_LEAST, 5, 1, 1024, "shortest n-gram"),
            Key(_MOST, 5, 1, 1024, "longest n-gram"),
            Key("num-speculative-tokens", 5, 1, 1024, "longest draft"),
        ),
        "num-speculative-tokens",
        "vLLM's n-gram proposer: after the first occurrence of the longest n-gram",
    ),
)
KINDS: Mapping[str, SettingKind] = MappingProxyType({kind.name: kind for kind in _ALL})


@dataclass(frozen=True)
class Setting:
    """One drafter with the values of all its keys."""

    name: str
    params: Mapping[str, Number]

    @property
    def kind(self) -> SettingKind:
        return KINDS[self.name]

    @property
    def draft_max(self) -> int:
        """The longest draft, in tokens."""
        return int(self.params[self.kind.draft_key])

    def __str__(self) -> str:
        """Text that parses to this setting: the keys that are not their defaults."""
        own = [
            f"{key.name}={self.params[key.name]}"
            for key in self.kind.keys
            if self.params[key.name] != key.default
        ]
        return self.name + (":" + ",".join(own) if own else "")


@dataclass(frozen=True)
class DrafterSpec:
    """One row: a drafter, or several in order of priority.

    Attributes
    ----------
    names : the first that drafts anything in a round wins it.
    upstream_exact : drafters of llama.cpp are as they are there, flaws included, and in its order.
    """

    names: tuple[Setting, ...]
    upstream_exact: bool = False

    @property
    def draft_max(self) -> int:
        """The longest draft, in tokens."""
        return max(setting.draft_max for setting in self.names)

    @property
    def has_exact(self) -> bool:
        """Whether any of its drafters has a form of llama.cpp's."""
        return any(setting.kind.has_exact for setting in self.names)

    @property
    def is_of_server(self) -> bool:
        """Whether llama-server itself drafts so, token for token."""
        return self.upstream_exact and all(setting.kind.has_exact for setting in self.names)

    def repaired(self) -> DrafterSpec:
        """Return the same with what is repaired of llama.cpp's flaws."""
        return replace(self, upstream_exact=False)

    def __str__(self) -> str:
        """Text that parses to this row, but for ``upstream_exact``."""
        return "+".join(str(setting) for setting in self.names)


def parse_specs(text: str, *, upstream_exact: bool = False) -> list[DrafterSpec]:
    """Return the rows that ``NAME[:key=value|value,...][+NAME...]`` stands for, in order.

    The last key's values change fastest. ``upstream_exact`` takes llama.cpp's own form of the
    drafters that have one, and its order of priority; rows without such a drafter stay as they are.

    Raises
    ------
    UsageError : an unknown name or key, a value that is no number or out of range, a combination
        that names a drafter twice, a grid of more than GRID_MOST rows
    """
    grids = [_grid(word.strip(), text) for word in text.split("+")]
    names = [name for name, _ in grids]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--drafter {text} combines {twice} with itself",
            remedy="name it once; several values, as in size-n=8|12, are rows of their own",
        )
    n_rows = math.prod(len(values) for _, grid in grids for values in grid.values())
    if n_rows > GRID_MOST:
        raise UsageError(
            f"--drafter {text} stands for {n_rows} settings, more than {GRID_MOST}",
            remedy="give fewer values",
        )
    rows = product(*(_settings(name, grid) for name, grid in grids))
    return [_spec(row, upstream_exact=upstream_exact) for row in rows]


def _spec(settings: Sequence[Setting], *, upstream_exact: bool) -> DrafterSpec:
    """Return a row; llama-server has its own order, whatever that of the names is."""
    spec = DrafterSpec(tuple(settings))
    if not (upstream_exact and spec.has_exact):
        return spec
    for setting in settings:
        if setting.name == "ngram-cache" and setting.draft_max != SERVER_CACHE_DRAFT:
            raise UsageError(
                f"--drafter {setting}: llama.cpp's own ngram-cache always drafts up to "
                f"{SERVER_CACHE_DRAFT} tokens",
                remedy="leave draft-max out, or --upstream-exact",
            )
    in_order = sorted(settings, key=lambda setting: setting.kind.code)
    return DrafterSpec(tuple(in_order), upstream_exact=True)


def _settings(name: str, grid: Mapping[str, Sequence[Number]]) -> Iterator[Setting]:
    """Yield every combination of a drafter's values."""
    for values in product(*grid.values()):
        params = {key.name: key.default for key in KINDS[name].keys}
        params.update(zip(grid, values, strict=True))
        for one, other in ((_LEAST, _MOST), (_MOST, _LEAST)):
            if one in grid and other not in grid:  # as vLLM does
                params[other] = params[one]
        setting = Setting(name, MappingProxyType(params))
        _check(setting)
        yield setting


def _check(setting: Setting) -> None:
    """Refuse values that are in range each, but not together."""
    least, most = setting.params.get(_LEAST, 0), setting.params.get(_MOST, 0)
    if least > most:
        raise UsageError(
            f"--drafter {setting.name}: {_LEAST}={least} is above {_MOST}={most}",
            remedy=f"give two that fit, as in {_LEAST}=2,{_MOST}=5",
        )


def _grid(word: str, text: str) -> tuple[str, dict[str, list[Number]]]:
    """Return the name and the values by key that ``NAME[:key=value|value,...]`` says."""
    name, _, rest = word.partition(":")
    name = name.strip()
    combined = _with_plus(text)
    if combined != text:
        raise UsageError(
            f"--drafter {text}: drafters are combined with +, and commas stand between keys "
            f"(did you mean {combined}?)",
            remedy="put + between them; for a row each, give --drafter for each",
        )
    if name not in KINDS:
        raise UsageError(
            f"--drafter {text}: there is no drafter {name!r}" + _meant(name, KINDS),
            remedy=f"name one of {', '.join(KINDS)}",
        )
    grid: dict[str, list[Number]] = {}
    for part in rest.split(",") if ":" in word else []:
        key_name, equals, values = (piece.strip() for piece in part.partition("="))
        keys = {key.name: key for key in KINDS[name].keys}
        if key_name not in keys or not equals:
            raise UsageError(
                f"--drafter {text}: {part.strip()!r} is no key of {name} with a value"
                + ("" if key_name in keys else _meant(key_name, keys)),
                remedy=f"give NAME:key=value; {name} has {', '.join(keys)}",
            )
        if key_name in grid:
            raise UsageError(
                f"--drafter {text}: {key_name} is given twice",
                remedy=f"put | between values that are rows of their own: {key_name}=1|2",
            )
        grid[key_name] = [_value(keys[key_name], value, text) for value in values.split("|")]
    return name, grid


def _with_plus(text: str) -> str:
    """Return a setting with + for each comma that a drafter's name follows, and the names mended.

    The same text where none does.
    """
    if "," not in text or len(text) > _GUESSED_MOST:
        return text
    first, *others = text.split(",")
    pieces = [_named_piece(first) or first]
    for piece in others:
        named = _named_piece(piece)
        pieces.append(f",{piece}" if named is None else f"+{named}")
    joined = "".join(pieces)
    return joined if joined.count("+") > text.count("+") else text


def _named_piece(piece: str) -> str | None:
    """Return ``NAME[:KEY=VALUE]`` with the name of a drafter; None: it begins with none."""
    name, colon, rest = piece.partition(":")
    name = name.strip()
    is_key = "=" in name or any(name == key.name for kind in _ALL for key in kind.keys)
    known = name if name in KINDS else None if is_key else _closest(name, KINDS)
    return None if known is None else f"{known}{colon}{rest}"


def _value(key: Key, word: str, text: str) -> Number:
    """Return a number in the key's range."""
    word = word.strip()
    value: Number = math.nan
    try:
        if word.isascii() and "_" not in word:  # int() and float() read more than numbers
            value = int(word) if key.is_whole else float(word)
    except ValueError:
        pass
    if not key.least <= value <= key.most:  # of nan, too
        kind = "whole number" if key.is_whole else "number"
        raise UsageError(
            f"--drafter {text}: {key.name}={word} is not a {kind} from {key.least} to {key.most}",
            remedy=f"give one; the default is {key.default}",
        )
    return value


def _meant(word: str, known: Mapping[str, object]) -> str:
    """Return a guess at what was meant, for the end of a message."""
    close = _closest(word, known)
    return "" if close is None else f" (did you mean {close}?)"


def _closest(word: str, known: Mapping[str, object]) -> str | None:
    """Return what is most like a word, whatever its case; None: nothing is."""
    close = get_close_matches(word.strip().lower()[:_GUESSED_MOST], known, n=1)
    return close[0] if close else None
