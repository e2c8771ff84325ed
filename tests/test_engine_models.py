"""What a model name means, and where fetched models are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from draftsmith.engine.errors import InputUnreadable, ModelUnknown
from draftsmith.engine.models import KNOWN_MODELS, cache_folder, resolve_model


def test_a_file_wins_over_a_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the user's, shadowed by a name of ours."""
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"GGUF")
    assert resolve_model("smollm2") == Path("smollm2")


def test_cut_short_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-copied model that is used."""
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path))
    (tmp_path / KNOWN_MODELS["smollm2"].file_name).write_bytes(b"GGUF")
    with pytest.raises(ModelUnknown, match="has 4 bytes, not 98362432; run draftsmith fetch-model"):
        resolve_model("smollm2")


@pytest.mark.parametrize("name", ["x.gguf", "a/b", "./x"])
def test_paths_are_paths(name: str) -> None:
    """A mistyped path answered with a list of known names."""
    with pytest.raises(InputUnreadable, match="does not exist"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".gguf", "loop"])
def test_paths_that_cannot_be_asked_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name too long, or a folder that is closed to us, reported as an internal error."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(InputUnreadable, match="cannot be read"):
        resolve_model(name)


def test_a_folder_of_a_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m smollm2` refused because a folder of that name lies in the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path))
    Path("smollm2").mkdir()
    with pytest.raises(ModelUnknown, match="run draftsmith fetch-model"):
        resolve_model("smollm2")


def test_no_name() -> None:
    """`-m "$MODEL"` with the variable unset, answered with "model  is a folder"."""
    with pytest.raises(ModelUnknown, match="'' is neither a file nor a known model"):
        resolve_model("")


def test_unknown_name() -> None:
    """A name that nothing has, without the names that there are."""
    with pytest.raises(ModelUnknown, match="one of: smollm2"):
        resolve_model("qwen")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "{home}/.cache/draftsmith"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/draftsmith"),
        ("darwin", {}, "{home}/Library/Caches/draftsmith"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/draftsmith"),
        ("linux", {"DRAFTSMITH_CACHE": "~/m", "XDG_CACHE_HOME": "/x"}, "{home}/m"),
    ],
)
def test_cache_folder(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong folder on another platform, or a setting without effect."""
    for name in ("DRAFTSMITH_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder() == Path(expected.format(home=Path.home()))


def test_folders(tmp_path: Path) -> None:
    """The bug: the advice to name a .gguf file in a folder that has only another format's."""
    for name, remedy in (
        ("x.txt", "name the .gguf file inside it"),
        ("model-00001-of-00002.safetensors", "convert it to a .gguf file with llama.cpp's"),
        ("x.gguf", "name the .gguf file inside it"),
    ):
        (tmp_path / name).write_text("")
        with pytest.raises(InputUnreadable, match="is a folder") as caught:
            resolve_model(str(tmp_path))
        assert remedy in caught.value.remedy
