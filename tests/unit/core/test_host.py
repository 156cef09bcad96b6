# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, Host, Ownership


def test_a_write_keeps_mode_and_link(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    real = tmp_path / "etc" / "real.toml"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o600)
    (tmp_path / "etc" / "link.toml").symlink_to("real.toml")
    host.write("/etc/link.toml", "new")
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "etc" / "link.toml").is_symlink()


def test_a_refused_write_leaves_everything_as_it_was(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/a", "old")

    def refuse(path: str) -> None:
        assert Path(path).read_text() == "new"
        raise ValueError("not valid")

    with pytest.raises(ValueError):
        host.write("/etc/a", "new", check=refuse)
    assert host.read("/etc/a") == "old"
    assert os.listdir(tmp_path / "etc") == ["a"]


def test_new_files_get_the_mode_asked_for(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/secret", "x", mode=0o600)
    assert host.mode("/etc/secret") == 0o600


def test_new_files_get_the_owner_asked_for_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/theirs", "x", mode=0o640)
    if os.geteuid() == 0:
        os.chown(tmp_path / "etc/theirs", 12, 34)
    theirs = host.ownership("/etc/theirs")
    assert theirs is not None and theirs.mode == 0o640
    host.write("/etc/like-theirs", "x", ownership=theirs)
    assert host.ownership("/etc/like-theirs") == theirs
    host.write("/etc/theirs", "y", ownership=Ownership(0o600, 0, 0))
    assert host.ownership("/etc/theirs") == theirs
    assert host.ownership("/etc/none") is None


def test_a_new_file_gets_the_label_asked_for(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    try:
        os.setxattr(tmp_path, "security.selinux", b"system_u:object_r:etc_t:s0\0")
    except OSError:
        pytest.skip("labels cannot be set here")
    label = "system_u:object_r:container_config_t:s0\0"
    host.write("/a", "x", ownership=Ownership(0o600, os.getuid(), os.getgid(), label))
    assert os.getxattr(tmp_path / "a", "security.selinux") == label.encode()
    assert host.ownership("/a") == Ownership(0o600, os.getuid(), os.getgid(), label)


def test_what_is_not_there_reads_as_nothing(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert host.read("/etc/none") is None
    assert host.list("/etc") == []
    assert host.glob("/etc/*") == []
    host.remove("/etc/none")


def test_globs_answer_without_the_root(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/lib/modules/6.1/updates/dkms/nvidia.ko", "")
    assert host.glob("/lib/modules/6.1/updates/**/nvidia*.ko*") == ["/lib/modules/6.1/updates/dkms/nvidia.ko"]


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write_bytes("/etc/a", b"\xff# caf\xe9\n")
    host.write("/etc/a", host.read("/etc/a") + "more\n")
    assert host.read_bytes("/etc/a") == b"\xff# caf\xe9\nmore\n"


def test_a_failed_command_says_what_it_said() -> None:
    with pytest.raises(CommandFailed) as failed:
        Host().run(["sh", "-c", "echo no such thing >&2; exit 3"])
    assert failed.value.details["rc"] == 3
    assert "no such thing" in str(failed.value)


def test_a_missing_program_is_an_answer() -> None:
    assert Host().run(["gpuops-no-such-program"], check=False).rc == 127


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(CommandFailed, match="had not ended"):
        Host().run(["sleep", "5"], timeout=0.1)


def test_what_a_killed_write_left_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    (tmp_path / "etc").mkdir()

    def killed(path: str) -> None:
        os.link(path, str(tmp_path / "left"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host.write("/etc/a", "first", check=killed)
    (tmp_path / "left").rename(tmp_path / "etc" / ".gpuops-a")
    host.write("/etc/a", "second")
    assert os.listdir(tmp_path / "etc") == ["a"]
    assert host.read("/etc/a") == "second"


def test_nothing_unfinished_lies_in_a_folder_of_drop_ins(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    seen = []
    host.write("/etc/crio/crio.conf.d/99-a.conf", "x", check=seen.append)
    assert [Path(path).parent.name for path in seen] == ["crio"]
    assert os.listdir(tmp_path / "etc" / "crio") == ["crio.conf.d"]
