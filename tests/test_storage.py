"""Files and folders appear whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stackelberg.storage import sweep_unfinished, whole_folder, write_whole


def test_a_file_replaces_the_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.yaml"
    write_whole(file, "first")
    write_whole(file, b"second")
    assert file.read_text() == "second" and list(file.parent.iterdir()) == [file]
    assert stat.S_IMODE(file.stat().st_mode) & stat.S_IRUSR


def test_a_file_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    write_whole(file, "first")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("stackelberg.storage.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(file, "second")
    assert file.read_text() == "first" and list(tmp_path.iterdir()) == [file]


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint-7"
    with whole_folder(target) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_text("all of them")
        assert not target.exists()
    assert (target / "deep" / "weights").read_text() == "all of them" and list(tmp_path.iterdir()) == [target]


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "checkpoint-7"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_full_folder_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "results").write_text("precious")
    with pytest.raises(OSError, match=r"[Nn]ot empty|exists"), whole_folder(target) as folder:
        (folder / "results").write_text("new")
    assert (target / "results").read_text() == "precious"


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-checkpoint-3-x").mkdir()
    (tmp_path / ".unfinished-config").write_text("half")
    (tmp_path / "kept").write_text("whole")
    sweep_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
