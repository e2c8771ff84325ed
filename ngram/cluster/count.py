"""Count a corpus on a Dask cluster: the same cache as on one machine, for corpora beyond one.

The graph: a task that chooses the borders of the ranges, a task a group of files that counts it
and cuts its counts into ranges, a tree of tasks a range that adds them up. ``dask.distributed``
schedules, moves and repeats them; this side only lists the files and puts the ranges together.
The only module that knows dask.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...engine.errors import (
    ClusterLost,
    ClusterUnfit,
    ClusterUnreachable,
    DraftsmithError,
    UsageError,
)
from ...engine.tokens.tokenizer import Tokenizer
from ..cache.ngram_cache import NgramCache
from ..corpus.files import Source, total_bytes
from ..corpus.find import find_sources, no_text
from ..corpus.stats import CorpusStats, nothing_in
from ..corpus.store import STDIN, show_path

if TYPE_CHECKING:
    from distributed import Client, Future

    from .tasks import Job, Report

_CONNECT_S = 5
# How often to look whether the cluster is still there, and how long it may be without a worker.
_WATCH_S = 2.0
_NO_WORKER_S = 30.0
# Files of a task: so many a thread of the cluster, of as many bytes at least and at most
# (compressed ones count for more), and no more files.
_TASKS_A_THREAD = 4
_GROUP_BYTES = (1 << 20, 32 << 20)
_GROUP_FILES = 2000
_EXPANSION = 4
# Ranges grow no smaller than this; pieces are added up so many at a time.
_RANGE_BYTES = 256 << 20
_RANGES = (8, 128)
_FAN_IN = 16
_SAMPLED_FILES = 8
# Times that a task is repeated by dask when it fails: a network may do for a moment what it likes.
_RETRIES = 2
_INSTALL = "pip install 'draftsmith[cluster]'"


@dataclass
class ClusterCorpus:
    """The files of a corpus that workers will read, and what came of it; see ``Corpus``."""

    sources: tuple[Source, ...]
    field: str | None
    escape: bool
    is_text: bool
    strict: bool
    left_out: list[str]
    stats: CorpusStats = dataclasses.field(default_factory=CorpusStats)
    bytes_read: int = 0

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files; None when one does not say."""
        return total_bytes(self.sources)


def open_cluster_corpus(
    paths: Sequence[str],
    *,
    field: str | None = None,
    escape: bool = False,
    is_text: bool = False,
    strict: bool = False,
) -> ClusterCorpus:
    """Find every input: URLs, and paths that the workers see too. No file is opened.

    Raises
    ------
    UsageError : dask is not installed; standard input or a pipe is named.
    InputUnreadable, InputHasNoText, InputMalformed : as for ``open_corpus``.
    """
    _require_dask()
    from .url_store import UrlStore

    if STDIN in paths:
        raise UsageError(
            "workers cannot read standard input", remedy="name files or URLs with --dask"
        )
    absolute = [_for_workers(path) for path in paths]
    stats = CorpusStats()
    sources, left_out = find_sources(
        absolute,
        field,
        UrlStore(),
        open_each=False,
        is_text=is_text,
        on_skip=None if strict else stats.skip,
    )
    for source in sources:
        if source.stamp is None:
            raise UsageError(
                f"{show_path(source.path)}: workers cannot read a pipe",
                remedy="name files or URLs with --dask",
            )
    return ClusterCorpus(tuple(sources), field, escape, is_text, strict, left_out, stats)


def count_on_cluster(
    address: str,
    corpus: ClusterCorpus,
    tokenizer: Tokenizer,
    orders: Sequence[int],
    on_progress: Callable[[], None],
) -> tuple[NgramCache, int]:
    """Return the cache of the corpus and the number of tokens counted.

    ``corpus`` tells what has been read; ``on_progress`` is called when it has changed.

    Raises
    ------
    ClusterUnreachable, ClusterUnfit, ClusterLost : what is wrong with the cluster.
    InputUnreadable, InputMalformed, InputHasNoText, InputEmpty : what is wrong with the corpus.
    """
    from .tasks import Job, join_ranges, own_version

    job = Job(
        own_version(),
        tokenizer.vocabulary,
        tokenizer.fingerprint,
        tuple(sorted(orders)),
        corpus.field,
        corpus.escape,
        corpus.is_text,
        corpus.strict,
    )
    with _connected(address) as client, _explained(address):
        _check_workers(client, job.version)
        futures = _start(client, job, corpus)
        try:
            n_tokens = _watch_reports(client, futures.reports, corpus, on_progress)
            sizes = [_result(client, future) for future in futures.sizes]
            ranges = (_result(client, futures.ranges.pop(0)) for _ in sizes)
            tables = join_ranges(sizes, ranges)
        finally:
            futures.cancel(client)
    return NgramCache(tables, tokenizer.n_vocab, tokenizer.fingerprint), n_tokens


def _require_dask() -> None:
    try:
        import distributed  # noqa: F401

        from . import url_store  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--dask needs dask, distributed and fsspec ({error})", remedy=_INSTALL
        ) from error


def _for_workers(path: str) -> str:
    """A path as every machine understands it: absolute."""
    local = path.removeprefix("file://")
    return os.path.abspath(local) if "://" not in local else path


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    """A client of the scheduler, with a worker at least."""
    import distributed

    # What dask logs comes to the user as one line.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        distributed.comm.resolve_address(address)  # a client that cannot even begin won't end
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterUnreachable(
            f"no Dask scheduler answers at {address} ({_first_line(error)})",
            remedy="start one (dask scheduler), or check the address",
        ) from error
    try:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError as error:
            raise ClusterUnreachable(
                f"the Dask scheduler at {address} has no worker",
                remedy=f"start some: dask worker {address}",
            ) from error
        yield client
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.close(timeout=_WATCH_S)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn what dask raises into our errors."""
    from distributed import KilledWorker

    try:
        yield
    except DraftsmithError:
        raise
    except KilledWorker as error:
        died = error.allowed_failures + 1
        raise ClusterLost(
            f"dask gave up: {died} worker{'s' if died > 1 else ''} died while on one task",
            remedy="look into the workers' logs; give them more memory, or fewer threads each",
        ) from error
    except (CancelledError, OSError) as error:
        raise ClusterLost(
            f"the Dask cluster at {address} went away "
            f"({getattr(error, 'reason', None) or _first_line(error)})",
            remedy="check the scheduler and its log, and run again",
        ) from error
    except ImportError as error:
        raise _unfit("a worker", error) from error


def _check_workers(client: Client, version: str) -> None:
    """Refuse a cluster where a worker's draftsmith is missing or another one."""
    from .tasks import own_version

    for worker, answer in client.run(own_version, on_error="return").items():
        if isinstance(answer, Exception):
            raise _unfit(f"the worker {worker}", answer)
        if answer != version:
            raise ClusterUnfit(
                f"the worker {worker} has draftsmith {answer}, but {version} asks",
                remedy="install the same version on every worker",
            )


def _unfit(worker: str, error: Exception) -> ClusterUnfit:
    return ClusterUnfit(
        f"{worker} cannot run draftsmith ({_first_line(error)})", remedy=f"there: {_INSTALL}"
    )


@dataclass
class _Futures:
    """What the client holds on to; all else dask drops as soon as nobody needs it."""

    reports: list[tuple[Future, int]]
    sizes: list[Future]
    ranges: list[Future]

    def cancel(self, client: Client) -> None:
        held = [future for future, _ in self.reports] + self.sizes + self.ranges
        with suppress(Exception):
            client.cancel(held, force=True)


def _start(client: Client, job: Job, corpus: ClusterCorpus) -> _Futures:
    """Send the graph."""
    weight = sum(map(_weight, corpus.sources))
    n_threads = max(1, sum(client.nthreads().values()))
    groups = list(
        _groups(corpus.sources, _within(weight // (_TASKS_A_THREAD * n_threads), _GROUP_BYTES))
    )
    n_ranges = _within(weight // _RANGE_BYTES, _RANGES)
    graph, reports, sizes, ranges = _graph(job, groups, corpus.sources, n_ranges)
    futures = client.get(graph, [reports, sizes, ranges], sync=False, retries=_RETRIES)
    n_bytes = [sum(source.size or 0 for source in group) for group in groups]
    return _Futures(list(zip(futures[0], n_bytes, strict=True)), futures[1], futures[2])


def _graph(
    job: Job, groups: Sequence[Sequence[Source]], sources: Sequence[Source], n_ranges: int
) -> tuple[dict[Any, Any], list[Any], list[Any], list[Any]]:
    """Return (graph, keys of the reports, of the ranges' sizes, of the ranges)."""
    from . import tasks

    mark = uuid.uuid4().hex  # two runs have no task in common

    def key(name: str, *at: int) -> tuple[Any, ...]:
        return (f"draftsmith_{name}-{mark}", *at)

    step = -(-len(sources) // _SAMPLED_FILES)
    graph: dict[Any, Any] = {
        key("job"): job,
        key("borders"): (
            tasks.sample_borders,
            key("job"),
            tasks.pack_sources(sources[::step]),
            n_ranges,
        ),
    }
    for i, group in enumerate(groups):
        packed = tasks.pack_sources(group)
        graph[key("count", i)] = (tasks.count_group, key("job"), packed, key("borders"))
        graph[key("report", i)] = (tasks.report_of, key("count", i))
    ranges: list[Any] = []
    for at in range(n_ranges):
        pieces = [key("piece", at, i) for i in range(len(groups))]
        for i, piece in enumerate(pieces):
            graph[piece] = (tasks.piece_of, key("count", i), at)
        level = 0
        while level == 0 or len(pieces) > 1:
            merged = [key("merge", at, level, i) for i in range(-(-len(pieces) // _FAN_IN))]
            for i, name in enumerate(merged):
                graph[name] = (tasks.merge_pieces, pieces[i * _FAN_IN : (i + 1) * _FAN_IN])
            pieces, level = merged, level + 1
        ranges += pieces
        graph[key("sizes", at)] = (tasks.sizes_of, pieces[0])
    reports = [key("report", i) for i in range(len(groups))]
    return graph, reports, [key("sizes", at) for at in range(n_ranges)], ranges


def _weight(source: Source) -> int:
    """Bytes of a file once it is decompressed, about."""
    return (source.size or 0) * (_EXPANSION if source.compression else 1)


def _within(value: int, limits: tuple[int, int]) -> int:
    return min(max(value, limits[0]), limits[1])


def _groups(sources: Sequence[Source], n_bytes: int) -> Iterator[list[Source]]:
    """Neighbouring files of about ``n_bytes`` together; one file at least."""
    group: list[Source] = []
    weight = 0
    for source in sources:
        if group and (weight + _weight(source) > n_bytes or len(group) == _GROUP_FILES):
            yield group
            group, weight = [], 0
        group.append(source)
        weight += _weight(source)
    yield group


def _watch_reports(
    client: Client,
    futures: Sequence[tuple[Future, int]],
    corpus: ClusterCorpus,
    on_progress: Callable[[], None],
) -> int:
    """Wait for all groups to be counted; return the number of tokens."""
    n_tokens, n_ids = 0, 0
    n_bytes = {future.key: n for future, n in futures}
    for future in _as_done(client, [future for future, _ in futures]):
        report: Report = _result(client, future)
        corpus.stats.add(report.stats)
        corpus.left_out += report.left_out
        corpus.bytes_read += n_bytes[future.key]
        n_tokens += report.n_tokens
        n_ids += report.n_ids
        on_progress()
    corpus.left_out.sort()
    _refuse_folders_without_text(corpus)
    if not n_tokens or not (corpus.stats.n_bytes or n_ids):
        raise nothing_in(corpus.stats)
    return n_tokens


def _refuse_folders_without_text(corpus: ClusterCorpus) -> None:
    left_out = set(corpus.left_out)
    kept = {source.folder for source in corpus.sources if source.path not in left_out}
    for source in corpus.sources:
        if source.folder is not None and source.folder not in kept:
            raise no_text(source.folder, corpus.field)


def _as_done(client: Client, futures: Sequence[Future]) -> Iterator[Future]:
    """Yield futures as they are done."""
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    watch = _Watch(client)
    for _ in futures:
        while True:
            try:
                future = done.get(timeout=_WATCH_S)
            except queue.Empty:
                watch.look()
            else:
                break
        yield future


def _result(client: Client, future: Future) -> Any:
    """The result of a future, unless no worker is left to make it."""
    watch = _Watch(client)
    timeout_s = _WATCH_S
    while True:
        try:
            return future.result(timeout=timeout_s)
        except TimeoutError:
            watch.look()
            timeout_s *= 2  # a big range on a slow line is fetched anew each time


class _Watch:
    """Looks whether the cluster still has workers: dask itself would wait for new ones for ever."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._empty_s = 0.0

    def look(self) -> None:
        """Raise ClusterLost when there has been no worker for some time."""
        self._empty_s = 0.0 if self._client.nthreads() else self._empty_s + _WATCH_S
        if self._empty_s >= _NO_WORKER_S:
            raise ClusterLost(
                f"no worker is left, and none came within {_NO_WORKER_S:.0f} s",
                remedy="look into the workers' logs, start some again, and run again",
            )


def _first_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
