"""The rules of who may import whom, read from the source: a rule that a test checks is a rule
that nobody has to remember.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "engine", "ngram", "mtp", "prefill")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SCRIPTS = sorted(
    path
    for path in (ROOT / "scripts").iterdir()
    if path.is_file() and (path.suffix == ".py" or "python" in path.read_text().split("\n")[0])
)

# The rooms, from the ground up, and the rooms that each imports from. A top folder stands for the
# modules that lie in itself. docs/architecture.md draws this.
ROOMS = {
    "engine": set(),
    "engine/gguf": {"engine"},
    "engine/tokens": {"engine", "engine/gguf"},
    "engine/chat": {"engine", "engine/gguf", "engine/tokens"},
    "engine/transformer": {"engine", "engine/gguf"},
    "engine/decode": {"engine", "engine/gguf", "engine/tokens", "engine/transformer"},
    "ngram/corpus": {"engine", "engine/chat", "engine/tokens"},
    "ngram/conversations": {"engine", "engine/chat", "engine/tokens", "ngram/corpus"},
    "ngram/cache": {"engine"},
    "ngram/lookup": {"engine", "ngram/cache"},
    "ngram/drafters": {
        "engine",
        "engine/decode",
        "ngram/cache",
        "ngram/conversations",
        "ngram/lookup",
    },
    "ngram/advice": {"engine", "ngram/cache", "ngram/drafters"},
    "ngram/cluster": {"engine", "engine/tokens", "ngram/cache", "ngram/corpus"},
    "ngram": {"engine", "engine/decode", "ngram/cache", "ngram/drafters", "ngram/lookup"},
    "mtp": {
        "engine",
        "engine/chat",
        "engine/decode",
        "engine/gguf",
        "engine/transformer",
    },
    "prefill/prompt": {"engine", "engine/chat", "engine/tokens"},
    "prefill/scorers": {
        "engine",
        "engine/gguf",
        "engine/tokens",
        "engine/transformer",
        "prefill/prompt",
    },
    "prefill": {
        "engine",
        "engine/decode",
        "engine/gguf",
        "engine/tokens",
        "engine/transformer",
        "prefill/prompt",
        "prefill/scorers",
    },
    "prefill/needles": {"engine", "engine/tokens", "prefill", "prefill/prompt"},
    "prefill/calibration": {
        "engine",
        "engine/chat",
        "engine/gguf",
        "engine/tokens",
        "engine/transformer",
        "prefill",
        "prefill/needles",
        "prefill/prompt",
        "prefill/scorers",
    },
}
# Rooms of the command line see all of the library, and of each other these. COMMANDS are modules
# with a command each, what belongs to one alone, and what starts them; "cli" is what else lies
# there: options, output, figures.
COMMANDS = "cli, commands"
CLI_ROOMS = {
    "cli": set(),
    "cli/generate": {"cli"},
    "cli/replay": {"cli", "cli/generate"},
    "cli/prefill": {"cli", "cli/generate"},
    COMMANDS: {"cli", "cli/generate", "cli/replay", "cli/prefill"},
}
STARTS = {"cli/__main__.py", "cli/main.py"}
OF_COMMANDS = ("fetch_", "lookup_", "mtp_", "prefill_")
ONLY_IN = {
    "typer": "cli/",
    "rich": "cli/",
    "gguf": "tests/",  # and training, in scripts/; the package reads models itself
    "psutil": "engine/host.py",
    "jinja2": "engine/chat/worker.py",
    "dask": "ngram/cluster/count.py",
    "distributed": "ngram/cluster/count.py",
    "fsspec": "ngram/cluster/url_store.py",
    "aiohttp": "ngram/cluster/url_store.py",
    "matplotlib": "cli/plot.py",
}
# What commands may import early: it imports nothing heavy.
LIGHT = {"draftsmith.prefill.defaults", "draftsmith.prefill.score_request"}
# Modules of the command line that are imported late themselves.
LATE = {
    "cli/generate/suite_report.py",
    "cli/rate.py",
    "cli/replay/advice.py",
    "cli/replay/drafter_report.py",
    "cli/replay/report.py",
}
# Apart from *_kernels.py: engine/jit.py listens to Numba's compiler, engine/kernel_cache.py to
# where it keeps what it compiled.
NUMBA_TOO = {"engine/jit.py", "engine/kernel_cache.py"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST, path: Path, *, nested: bool = True) -> Iterator[str]:
    """Yield the absolute dotted name of everything a module imports, for types only or not."""
    nodes = ast.walk(tree) if nested else outer_nodes(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["draftsmith", *path.relative_to(ROOT).parent.parts]
                prefix = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{prefix}.{base}".rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def outer_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs at import: no function bodies, no TYPE_CHECKING blocks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from outer_nodes(node)


def tops(names: Iterator[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def test_finds_the_modules() -> None:
    """Would pass with nothing checked, were the folders renamed."""
    assert len(MODULES) > 15
    assert {"cli/main.py", "engine/errors.py", "ngram/cache/ngram_cache.py"} <= {
        name_of(p) for p in MODULES
    }
    assert {"scripts/fetch_model", "scripts/demo_table.py"} <= {name_of(p) for p in SCRIPTS}


def files_imported(path: Path) -> set[Path]:
    """The package's files that a module imports, for types only or not."""
    found = set()
    for name in imports(parse(path), path):
        top, *parts = name.split(".")
        if top == "draftsmith" and parts:
            place = ROOT.joinpath(*parts)
            found |= {place.with_suffix(".py"), place / "__init__.py"} & set(MODULES)
    # "from .x import y" also names the package of x, which says nothing of its __init__
    return {one for one in found if one != path and (one.name != "__init__.py" or len(found) == 1)}


def room_of(path: Path) -> str:
    """The room that a module lies in."""
    if name_of(path) in STARTS or (path.parent.name == "cli" and path.name.startswith(OF_COMMANDS)):
        return COMMANDS
    return path.parent.relative_to(ROOT).as_posix()


ARROWS = {path: files_imported(path) for path in MODULES}


def allowed(room: str) -> set[str]:
    """The rooms that a room may import from."""
    return ROOMS[room] if room in ROOMS else {*ROOMS, *CLI_ROOMS[room]}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    """A room that reaches up to a higher one, or that nobody has given a place."""
    room = room_of(path)
    for other in ARROWS[path]:
        assert room_of(other) in allowed(room) | {room}, name_of(other)
    for name in imports(parse(path), path):
        assert name.split(".")[0] not in {*FOLDERS, "scripts", "tests"}, name


def test_rooms_stand_in_order() -> None:
    """A rule that allows a circle of rooms, or ngram, mtp and prefill to know each other."""
    seen: set[str] = set()
    for room, others in (ROOMS | CLI_ROOMS).items():
        assert others <= seen, room
        seen.add(room)
        tops = {other.partition("/")[0] for other in others}
        assert tops <= {room.partition("/")[0].partition(",")[0], "engine"}, room


def test_arrows_are_all_used() -> None:
    """A rule for what no module does any more."""
    used = {(room_of(path), room_of(other)) for path in MODULES for other in ARROWS[path]}
    rules = {(room, other) for room, others in (ROOMS | CLI_ROOMS).items() for other in others}
    assert rules <= used, rules - used


def test_the_picture_shows_the_rooms() -> None:
    """docs/architecture.md, drawn once and never again."""
    drawn = set()
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        room, arrow, others = line.partition(" --> ")
        if arrow:
            drawn |= {(room.strip(), other) for other in others.split(" & ")}
    rules = {
        (room.replace(", ", "_").replace("/", "_"), other.replace("/", "_"))
        for room, others in (ROOMS | CLI_ROOMS).items()
        for other in others - {"engine"}
    }
    assert drawn == rules


def test_the_map_names_every_room() -> None:
    """A room that the map leaves out, or a module to begin at that has another name now."""
    rows = re.findall(
        r"^\| `([a-z/]+)/` \|.*\| `(\w+\.py)` \|$",
        (ROOT / "docs" / "architecture.md").read_text(),
        re.MULTILINE,
    )
    assert {room for room, _ in rows} == {*ROOMS, *CLI_ROOMS} - {COMMANDS}
    assert [row for row in rows if not (ROOT / row[0] / row[1]).is_file()] == []


def test_files_are_in_no_circle() -> None:
    """Two files that import each other, though it be for types only."""
    tuple(TopologicalSorter(ARROWS).static_order())  # raises CycleError, which names the files


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_libraries_stay_in_their_place(path: Path) -> None:
    """A second place that knows typer, rich, gguf, psutil or numba."""
    found = tops(imports(parse(path), path))
    for library, place in ONLY_IN.items():
        assert library not in found or name_of(path).startswith(place), library
    if not path.name.endswith("_kernels.py") and name_of(path) not in NUMBA_TOO:
        assert "numba" not in found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_prints_only_in_output(path: Path) -> None:
    """A print in the library, which would mix with --json."""
    if name_of(path) == "cli/output.py":
        return
    for node in ast.walk(parse(path)):
        assert not (isinstance(node, ast.Name) and node.id == "print"), node.lineno


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name.endswith("_kernels.py")], ids=name_of
)
def test_kernels_stand_alone(path: Path) -> None:
    """A stale kernel from Numba's cache, which sees no edit of what it calls in other files."""
    tree = parse(path)
    allowed = {"numpy", "numba", "draftsmith", *sys.stdlib_module_names}
    if name_of(path) == "engine/transformer/tile_kernels.py":
        allowed |= {"llvmlite"}  # writes vector code itself
    names = list(imports(tree, path))
    assert tops(names) <= allowed
    ours = [name for name in names if name.startswith("draftsmith.")]
    assert all("_kernels" in name for name in ours)


def test_kernels_know_what_they_are_built_on() -> None:
    """A kernel that is not compiled again after an edit of what it calls."""
    stamp = [sys.executable, ROOT / "scripts" / "stamp_kernels", "--check"]
    done = subprocess.run(stamp, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), "run scripts/stamp_kernels"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path).startswith("cli/")], ids=name_of
)
def test_commands_import_the_library_late(path: Path) -> None:
    """A library import at the top of a command module, which --help would pay for."""
    if name_of(path) in LATE:
        return
    allowed = {"draftsmith.engine.errors", *LIGHT, "draftsmith.cli"}
    for name in imports(parse(path), path, nested=False):
        if name.startswith(("draftsmith.", "numpy", "numba", "rich")):
            assert name.startswith(tuple(allowed)), name


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_scripts_run_the_command_line_as_a_process(path: Path) -> None:
    """A script that imports cli, and so depends on how it is built."""
    assert not any(name.startswith("draftsmith.cli") for name in imports(parse(path), path))


@pytest.mark.parametrize("path", [p for f in FOLDERS for p in [ROOT / f / "__init__.py"]])
def test_packages_import_nothing_heavy(path: Path) -> None:
    """An __init__ that makes every import of the package slow."""
    assert tops(imports(parse(path), path, nested=False)) <= {"__future__", "draftsmith", "typing"}


def test_type_checker_knows_the_kernels() -> None:
    """A new kernel module that mypy, which cannot see through Numba, complains about."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (left_out,) = [
        override["module"]
        for override in settings["tool"]["mypy"]["overrides"]
        if override.get("ignore_errors")
    ]
    names = [name_of(path).removesuffix(".py").replace("/", ".") for path in MODULES]
    assert left_out == [f"draftsmith.{name}" for name in names if name.endswith("_kernels")]
