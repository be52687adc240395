"""Files among the system's temporary ones: nobody else's folder is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clonos._temporary import private_folder, write_private


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this user has in a temporary folder of its own."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"clonos-{os.getuid()}"


def test_each_folder_is_made_for_its_user_alone(own: Path) -> None:
    made = private_folder("java", "bin")
    assert made == own / "java" / "bin"
    for folder in (own, own / "java", made):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder("java", "bin") == made


def test_a_folder_into_which_others_may_write_is_refused(own: Path) -> None:
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(PermissionError, match="TMPDIR"):
        private_folder("name")
    assert not (own / "name").exists()


def test_a_link_is_refused_wherever_it_leads(own: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        private_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(own: Path) -> None:
    own.mkdir(mode=0o700)
    os.chown(own, 12345, 12345)
    with pytest.raises(PermissionError):
        private_folder()


def test_a_secret_is_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(mode=0o666)
    link = tmp_path / "session"
    link.symlink_to(elsewhere)
    write_private(link, b"secret")
    assert elsewhere.read_bytes() == b""
    assert link.read_bytes() == b"secret"
    assert stat.S_IMODE(link.lstat().st_mode) == 0o600
