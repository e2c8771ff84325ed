"""Counting on a Dask cluster: the bytes of the local build, whatever dies, and clear refusals.

Scheduler and workers are processes of their own on the loopback interface.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus, InputMalformed
from draftsmith.ngram.cluster import count as cluster_module

Cli = Callable[..., Done]
WORDS = [
    "the",
    "cat",
    "sat on a mat,",
    "and 12",
    "dogs",
    "didn't;",
    "naïve",
    "日本語",
    "{x;}\n",
    "\t",
]


@dataclass
class DaskCluster:
    """A scheduler and its workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def start_cluster(folder: Path, n_workers: int, **settings: str) -> Iterator[DaskCluster]:
    """Start them on free ports; end them however the tests end."""
    environment = {**os.environ, **settings, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    python = [sys.executable, "-W", "ignore", "-m"]
    file = folder / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []

    def start(module: str, *args: str | Path) -> subprocess.Popen[bytes]:
        command = [*python, module, "--scheduler-file", file, "--no-dashboard", *args]
        log = (folder / f"log{len(processes)}").open("wb")
        with log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        processes.append(process)
        return process

    try:
        start(
            "distributed.cli.dask_scheduler",
            *("--host", "127.0.0.1", "--port", "0", "--idle-timeout", "120", "--no-show"),
        )
        workers = [
            start(
                "distributed.cli.dask_worker",
                *("--no-nanny", "--nthreads", "1", "--host", "127.0.0.1"),
                *("--death-timeout", "30", "--local-directory", folder / f"worker{i}"),
            )
            for i in range(n_workers)
        ]
        until(lambda: file.exists() and file.read_text().strip().endswith("}"))
        yield DaskCluster(json.loads(file.read_text())["address"], workers)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def until(true: Callable[[], bool]) -> None:
    stop = time.monotonic() + 30
    while not true():
        assert time.monotonic() < stop, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler and two workers, for the tests that kill none."""
    with start_cluster(tmp_path_factory.mktemp("dask"), 2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks for a small corpus, and two levels of adding up."""
    monkeypatch.setattr(cluster_module, "_GROUP_BYTES", (4000, 4000))
    monkeypatch.setattr(cluster_module, "_FAN_IN", 3)


@pytest.fixture
def create(cli: Cli, smollm2: Path, tmp_path: Path) -> Cli:
    """Create tmp_path/NAME from some files."""

    def run(name: str, *args: str | Path) -> Done:
        return cli("lookup-create", "-m", smollm2, "-lcs", tmp_path / name, "--json", *args)

    return run


@pytest.fixture
def same(create: Cli, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Check that a cluster makes the local build's file and figures; returns its record."""

    def check(cluster: DaskCluster, *args: str | Path, local: Path | None = None) -> dict[str, Any]:
        there = create("there", "--dask", cluster.address, *args)
        assert there.status == 0, there.stderr
        here = create("here", *(args if local is None else ("-f", local, *args[2:])))
        assert here.status == 0, here.stderr
        assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
        for key in ("n_documents", "n_bytes", "n_invalid_utf8", "n_tokens", "n_entries"):
            assert there.record[key] == here.record[key], key
        return there.record

    return check


def text(seed: int, n_words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def write_many(folder: Path) -> Path:
    """Files of all kinds that a folder may hold."""
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(text(i, 10 * i))
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt.gz").write_bytes(gzip.compress(text(50, 500).encode()))
    (folder / "sub" / "b.txt.xz").write_bytes(lzma.compress(text(51, 500).encode()))
    (folder / "sub" / "c.md.bz2").write_bytes(bz2.compress(text(52, 500).encode()))
    (folder / "sub" / "latin1.txt").write_bytes(b"caf\xe9 \xff\n")
    (folder / "sub" / "empty.txt").touch()
    (folder / "sub" / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "sub" / ".hidden.txt").write_text("not this")
    np.save(folder / "ids.npy", np.arange(99, dtype=np.int32))
    return folder


def test_many_files_of_all_kinds(
    dask: DaskCluster, same: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A file that a worker takes for something else than the local build does, or leaves out."""
    folder = write_many(tmp_path / "corpus")
    record = same(dask, "-f", folder, folder / "ids.npy", folder / "1*.txt", "--ngram-max", "4")
    assert record["options"]["dask"] == dask.address
    assert record["n_documents"] == 45 + 1 + 10


def test_one_big_file(
    dask: DaskCluster, same: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A document that is cut where its tokens change, or a range that is lost."""
    (tmp_path / "big.txt").write_text(text(1, 60_000))
    same(dask, "-f", tmp_path / "big.txt", "--ngram-min", "1", "--ngram-max", "4")


def test_json_lines(dask: DaskCluster, same: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """--field or --escape that does not reach the workers."""
    for name in ("a.jsonl", "b.jsonl.gz"):
        lines = [json.dumps({"t": {"body": text(i, 30) + r"\n\x41"}}) + "\n" for i in range(99)]
        data = "".join(lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("z") else data)
    files = ("-f", tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz")
    record = same(dask, *files, "--field", "t.body", "--escape", "--ngram-max", "3")
    assert record["n_documents"] == 198


def test_faults_in_a_folder(
    dask: DaskCluster, same: Callable[..., dict[str, Any]], create: Cli, tmp_path: Path
) -> None:
    """One bad file among many ends the run of a whole cluster, or a worker counts half of it."""
    folder = tmp_path / "faults"
    folder.mkdir()
    (folder / "a.txt").write_text("the cat sat on a mat, " * 99)
    (folder / "b.txt").symlink_to(folder / "gone")
    (folder / "c.gz").write_bytes(gzip.compress(b"the dogs didn't; " * 9999)[:-9])
    (folder / "d.txt").write_bytes(("naïve " * 99).encode("utf-16-le"))
    (folder / "e.txt").write_bytes(("naïve " * 99).encode("utf-16"))
    record = same(dask, "-f", folder)
    assert record["n_documents"] == 2
    assert record["n_skipped"] == 3
    assert sorted(one.split(": ")[0] for one in record["skipped"]) == [
        str(folder / name) for name in ("b.txt", "c.gz", "d.txt")
    ]
    done = create("strict", "--dask", dask.address, "-f", folder, "--strict")
    assert done.status == ExitStatus.INPUT_UNREADABLE
    assert "b.txt" in done.error


@contextmanager
def serve(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_urls(
    dask: DaskCluster, create: Cli, same: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A web server's files and folders that give other documents than the same files on a disk."""
    folder = write_many(tmp_path / "corpus")
    (folder / "ids.npy").unlink()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_: object) -> None:
            pass

    with serve(Handler) as url:
        same(dask, "-f", f"{url}/sub/a.txt.gz", local=folder / "sub" / "a.txt.gz")
        same(dask, "-f", f"{url}/", "--ngram-max", "3", local=folder)
        np.save(folder / "ids.npy", np.arange(5000, dtype=np.int64))
        same(dask, "-f", f"{url}/ids.npy", local=folder / "ids.npy")
        missing = create("there", "--dask", dask.address, "-f", f"{url}/not-there.txt")
        assert missing.status == ExitStatus.INPUT_UNREADABLE
        assert "not-there.txt: cannot be read (no such file)" in missing.error
        (folder / "ids.npy").write_bytes(b"\x93NUMPY but not really")
        bad = create("there", "--dask", dask.address, "-f", f"{url}/ids.npy")
        assert bad.status == ExitStatus.INPUT_MALFORMED
        assert "not a whole .npy file" in bad.error


class Barrier:
    """A web server's files, each of which stops in the middle of being counted, once.

    Each is asked for once for a sample, once to be counted, and again when a worker has died.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.waiting: set[str] = set()
        self.go = threading.Event()
        requests: Counter[str] = Counter()

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(handler) -> None:
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(files[handler.path])))
                handler.end_headers()

            def do_GET(handler) -> None:
                handler.do_HEAD()
                data = files[handler.path]
                requests[handler.path] += 1
                half = len(data) // 2
                handler.wfile.write(data[:half])
                if requests[handler.path] == 2:
                    self.waiting.add(handler.path)
                    assert self.go.wait(30)
                handler.wfile.write(data[half:])

            def log_message(handler, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(server, *_: object) -> None:
                pass  # the reader was killed

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def kill_when_all_wait(self, n_files: int, kill: Callable[[], object]) -> None:
        try:
            until(lambda: len(self.waiting) == n_files)
            kill()
        finally:
            self.go.set()

    @contextmanager
    def killing(self, n_files: int, kill: Callable[[], object]) -> Iterator[None]:
        """Serve, and kill somebody when ``n_files`` are half read."""
        threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,)),
            threading.Thread(target=self.kill_when_all_wait, args=(n_files, kill)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.server.shutdown()
            for thread in threads:
                thread.join()
            self.server.server_close()


def test_worker_killed_in_the_middle(create: Cli, tmp_path: Path) -> None:
    """Counts that are lost with a worker, or counted twice when its task runs again."""
    files = {f"/{i}.txt": text(i, 20_000).encode() for i in range(4)}
    for name, data in files.items():
        (tmp_path / name[1:]).write_bytes(data)
    barrier = Barrier(files)
    with start_cluster(tmp_path, 2) as cluster, barrier.killing(2, cluster.workers[0].kill):
        urls = [barrier.url + name for name in files]
        there = create("there", "--dask", cluster.address, "-f", *urls, "--ngram-max", "4")
    assert there.status == 0, there.stderr
    assert cluster.workers[0].returncode == -9
    create("here", "-f", *(tmp_path / name[1:] for name in files), "--ngram-max", "4")
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


def test_last_worker_killed(create: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that waits for ever, because dask waits for new workers: in the middle, and later."""
    monkeypatch.setattr(cluster_module, "_CONNECT_S", 2)
    monkeypatch.setattr(cluster_module, "_WATCH_S", 0.2)
    monkeypatch.setattr(cluster_module, "_NO_WORKER_S", 1.0)
    barrier = Barrier({"/a.txt": text(1, 20_000).encode()})
    with start_cluster(tmp_path, 1) as cluster, barrier.killing(1, cluster.workers[0].kill):
        done = create("there", "--dask", cluster.address, "-f", f"{barrier.url}/a.txt")
        again = create("there", "--dask", cluster.address, "-f", f"{barrier.url}/a.txt")
    assert done.status == ExitStatus.CLUSTER_LOST, done.stderr
    assert "no worker is left" in done.error
    assert again.status == ExitStatus.CLUSTER_UNREACHABLE, again.stderr
    assert "has no worker" in again.error
    assert not (tmp_path / "there").exists()


def test_task_that_kills_workers(create: Cli, tmp_path: Path) -> None:
    """A traceback where dask gives a task up."""
    barrier = Barrier({"/a.txt": text(1, 20_000).encode()})
    setting = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with (
        start_cluster(tmp_path, 1, **setting) as cluster,
        barrier.killing(1, cluster.workers[0].kill),
    ):
        done = create("there", "--dask", cluster.address, "-f", f"{barrier.url}/a.txt")
    assert done.status == ExitStatus.CLUSTER_LOST, done.stderr
    assert "dask gave up: 1 worker died while on one task" in done.error


def test_interrupt(
    dask: DaskCluster, create: Cli, same: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Ctrl-C that is heard only when the workers are done, or leaves them busy."""
    barrier = Barrier({"/a.txt": text(1, 20_000).encode()})
    with barrier.killing(1, lambda: os.kill(os.getpid(), signal.SIGINT)):
        done = create("there", "--dask", dask.address, "-f", f"{barrier.url}/a.txt")
    assert done.status == ExitStatus.INTERRUPTED, done.stderr
    assert not (tmp_path / "there").exists()
    (tmp_path / "a.txt").write_text(text(2, 99))
    same(dask, "-f", tmp_path / "a.txt")


def test_bad_corpora(dask: DaskCluster, create: Cli, tmp_path: Path) -> None:
    """A worker's refusal that arrives as an internal error, or not at all."""

    def refused(status: ExitStatus, message: str, *args: str | Path) -> None:
        done = create("there", "--dask", dask.address, *args)
        assert done.status == status, done.stderr
        assert message in done.error
        assert not (tmp_path / "there").exists()

    (tmp_path / "empty.txt").write_text("\n")
    refused(ExitStatus.INPUT_EMPTY, "no text", "-f", tmp_path / "empty.txt")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"abc" * 999)[:-9])
    refused(ExitStatus.INPUT_UNREADABLE, "damaged or cut short", "-f", tmp_path / "bad.gz")
    (tmp_path / "x.jsonl").write_text('{"t": 1}\n')
    refused(ExitStatus.INPUT_MALFORMED, "not text", "-f", tmp_path / "x.jsonl", "--field", "t")
    np.save(tmp_path / "ids.npy", np.array([2**31 - 1], np.int32))
    refused(ExitStatus.INPUT_MALFORMED, "ids.npy", "-f", tmp_path / "ids.npy")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.bin").write_bytes(bytes(9))
    refused(ExitStatus.INPUT_NO_TEXT, "the folder holds no text", "-f", tmp_path / "folder")
    refused(ExitStatus.INPUT_UNREADABLE, "cannot be read", "-f", tmp_path / "gone.txt")
    refused(ExitStatus.INPUT_UNREADABLE, "cannot be read", "-f", "nosuch://bucket/a.txt")
    refused(ExitStatus.USAGE, "standard input", "-f", "-")


def test_scheduler_that_is_not_there(
    create: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang, or a traceback, where an address is wrong."""
    monkeypatch.setattr(cluster_module, "_CONNECT_S", 1)
    (tmp_path / "a.txt").write_text("some text")
    for address in ("127.0.0.1:1", "127.0.0.1", "nosuch://127.0.0.1:1"):
        start = time.monotonic()
        done = create("there", "--dask", address, "-f", tmp_path / "a.txt")
        assert time.monotonic() - start < 10
        assert done.status == ExitStatus.CLUSTER_UNREACHABLE, done.stderr
        assert f"no Dask scheduler answers at {address}" in done.error


def test_without_dask(create: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError where the extra is not installed."""
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = create("there", "--dask", "127.0.0.1:1", "-f", tmp_path / "a.txt")
    assert done.status == ExitStatus.USAGE
    assert "pip install 'draftsmith[cluster]'" in done.error


def test_worker_of_another_version(
    dask: DaskCluster, create: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two releases that count together, each in its way."""
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr("draftsmith.ngram.cluster.tasks.version", lambda _: "0.0.1")
    done = create("there", "--dask", dask.address, "-f", tmp_path / "a.txt")
    assert done.status == ExitStatus.CLUSTER_UNFIT, done.stderr
    assert "but 0.0.1 asks" in done.error


def test_errors_can_be_sent() -> None:
    """An error of ours that a worker cannot send, for want of its remedy."""
    error = pickle.loads(pickle.dumps(InputMalformed("what", remedy="do this")))
    assert type(error) is InputMalformed
    assert str(error) == "what; do this"
