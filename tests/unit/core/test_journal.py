# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is remembered on a host: small, of one instant, and readable for the releases to come."""
from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import journal as records
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host, Ownership
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step

# Written by release 0.1.0; its last line stands behind one that a power cut ended, as that release left it.
FORMER = Path(__file__).parent / "state_of_0_1"
# Ten thousand where a machine has the time
CHANGES = int(os.environ.get("GPUOPS_CHANGES", "1000"))
FORK = multiprocessing.get_context("fork")
CUT = '{"event": "done", "plan": "x", "step": {"acti'


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


@pytest.fixture
def former(host: Host) -> Host:
    directory = Path(host.path(records.DIRECTORY))
    directory.mkdir(parents=True, mode=0o755)
    for name in ("journal.jsonl", "originals.json", "packages.json", "memory.json"):
        shutil.copyfile(FORMER / name, directory / name)
    return host


def step(path: str = "/etc/a", text: str = "x") -> Step:
    return file_step("files", path, None, text, "It is wanted.")


def content(host: Host, path: str, data: bytes) -> None:
    real = Path(host.path(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_bytes(data)


def files(host: Host) -> Dict[str, Any]:
    directory = Path(host.path(records.DIRECTORY))
    return {path.relative_to(directory).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o7777)
            for path in directory.rglob("*") if path.is_file()}


class TestLines:
    def test_an_event_behind_a_torn_line_is_not_lost(self, host: Host) -> None:
        journal = Journal(host)
        journal.note("started", step(), "p")
        with open(host.path(records.JOURNAL), "a") as file:
            file.write(CUT)
        journal.note("done", step(), "p")
        assert [event["event"] for event in journal.events()] == ["started", "done"]
        assert journal.unfinished("files") == []

    def test_zeroes_that_a_power_cut_leaves_are_ended_too(self, host: Host) -> None:
        journal = Journal(host)
        journal.note("started", step(), "p")
        with open(host.path(records.JOURNAL), "ab") as file:
            file.write(b"\0" * 100)
        journal.note("done", step(), "p")
        assert [event["event"] for event in journal.events()] == ["started", "done"]

    def test_what_is_open_does_not_stand_on_the_lines(self, host: Host) -> None:
        Journal(host).note("started", step(), "p", policy="q", transaction={"a": "1"})
        os.unlink(host.path(records.JOURNAL))
        (event,) = Journal(host).unfinished("files")
        assert (event["step"], event["plan"], event["policy"], event["transaction"]) == (
            step().to_dict(), "p", "q", {"a": "1"})
        assert Journal(host).unfinished("others") == []


class TestSize:
    def test_changes_by_the_thousand_stay_small(self, memory: Path) -> None:
        host = Host(str(memory))
        journal = Journal(host)
        for number in range(CHANGES):
            change = step("/etc/%d" % (number % 40), "text %d " % number + "x" * (20_000_000 // CHANGES))
            journal.note("started", change, "p")
            journal.note("done", change, "p")
        sizes = {name: len(data) for name, (data, _mode) in files(host).items()}
        assert sizes.pop("state.json") < 1000
        assert sorted(sizes) == ["journal.jsonl", "journal.jsonl.1", "journal.jsonl.2", "journal.jsonl.3"]
        assert max(sizes.values()) <= records.JOURNAL_BYTES
        assert journal.events()[-1]["step"]["change"]["after"].startswith("text %d " % (CHANGES - 1))

    def test_a_journal_that_grew_for_years_is_shortened(self, host: Host) -> None:
        line = json.dumps({"event": "done", "plan": "p", "step": step(text="x" * 10_000).to_dict()}) + "\n"
        content(host, records.JOURNAL, line.encode() * 2000)
        Journal(host).note("started", step(text="the last"), "p")
        assert sum(len(data) for data, _mode in files(host).values()) < 2 * records.JOURNAL_BYTES
        assert Journal(host).events()[-1]["step"]["change"]["after"] == "the last"
        assert len(Journal(host).events()) > 300

    def test_a_big_original_is_written_once(self, host: Host) -> None:
        content(host, "/etc/big", b"x" * 1_000_000)
        Journal(host).keep_original("files", "/etc/big")
        (kept,) = host.list(records.ORIGINALS)
        before = os.stat(host.path("%s/%s" % (records.ORIGINALS, kept)))
        Journal(host).note("started", step(), "p")
        assert os.stat(host.path("%s/%s" % (records.ORIGINALS, kept))) == before
        assert len(files(host)["state.json"][0]) < 2000


class TestOriginals:
    def test_bytes_mode_owner_attributes_and_directories_come_back(self, host: Host) -> None:
        content(host, "/etc/a", b"# caf\xe9\n")
        os.chmod(host.path("/etc/a"), 0o4750)
        if os.geteuid() == 0:
            os.chown(host.path("/etc/a"), 12, 34)
            os.chmod(host.path("/etc/a"), 0o4750)
        try:
            os.setxattr(host.path("/etc/a"), "user.note", b"\xff theirs")
        except OSError:
            pass
        before = host.ownership("/etc/a")
        journal = Journal(host)
        for path in ("/etc/a", "/etc/new/er/b"):
            journal.keep_original("files", path)
            host.remove(path)
            host.write(path, "ours", mode=0o600)
            journal.restore(path)
        assert host.read_bytes("/etc/a") == b"# caf\xe9\n"
        assert host.ownership("/etc/a") == before
        assert host.list("/etc") == ["a"]
        assert journal.originals("files") == [] and host.list(records.ORIGINALS) == []

    def test_a_link_comes_back_and_its_target_as_it_was(self, host: Host) -> None:
        content(host, "/etc/real", b"theirs")
        os.symlink("real", host.path("/etc/link"))
        journal = Journal(host)
        journal.keep_original("files", "/etc/link")
        host.write("/etc/link", "ours")
        host.remove("/etc/link")
        journal.restore("/etc/link")
        assert host.link("/etc/link") == "real" and host.read("/etc/real") == "theirs"

    def test_a_link_to_nothing_stays_one(self, host: Host) -> None:
        os.makedirs(host.path("/etc"))
        os.symlink("deep/real", host.path("/etc/link"))
        journal = Journal(host)
        journal.keep_original("files", "/etc/link")
        host.write("/etc/link", "ours")
        journal.restore("/etc/link")
        assert host.link("/etc/link") == "deep/real" and host.list("/etc") == ["link"]

    def test_a_restored_file_that_nobody_changed_is_not_written(self, host: Host) -> None:
        content(host, "/etc/a", b"theirs")
        before = os.stat(host.path("/etc/a"))
        journal = Journal(host)
        journal.keep_original("files", "/etc/a")
        journal.restore("/etc/a")
        after = os.stat(host.path("/etc/a"))
        # It was read in between, so it may have another atime
        assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
            before.st_ino, before.st_mtime_ns, before.st_ctime_ns)

    def test_what_a_killed_write_left_goes_with_the_restoration(self, host: Host) -> None:
        os.makedirs(host.path("/etc"))
        journal = Journal(host)
        journal.keep_original("files", "/etc/a")
        content(host, "/etc/.gpuops-a", b"half")
        journal.restore("/etc/a")
        assert host.list("/etc") == []

    def test_two_files_of_the_same_bytes_are_kept_apart(self, host: Host) -> None:
        journal = Journal(host)
        for path in ("/etc/a", "/etc/b"):
            content(host, path, b"same")
            journal.keep_original("files", path)
        journal.forget_original("/etc/a")
        assert [original.content for original in journal.originals("files")] == [b"same"]

    def test_a_damaged_original_is_never_put_back(self, host: Host) -> None:
        content(host, "/etc/a", b"theirs")
        journal = Journal(host)
        journal.keep_original("files", "/etc/a")
        (name,) = host.list(records.ORIGINALS)
        content(host, "%s/%s" % (records.ORIGINALS, name), b"thei")
        with pytest.raises(GpuOpsError, match="/etc/a as it was before us, is damaged"):
            journal.restore("/etc/a")
        assert host.read("/etc/a") == "theirs"


class TestReaders:
    """They take no lock: a plan is made while another run works."""

    def test_an_original_that_is_made_needless_meanwhile_is_not_lost(self, host: Host) -> None:
        content(host, "/etc/a", b"theirs")
        writer = FORK.Process(target=keep_and_forget, args=(host,))
        writer.start()
        try:
            seen = set()
            while writer.is_alive():
                seen.update(original.content for original in Journal(host).originals("files"))
            assert seen == {b"theirs"}
        finally:
            writer.kill()
            writer.join()

    def test_what_a_writer_takes_over_meanwhile_is_not_missed(self, former: Host) -> None:
        for _again in range(20):
            writer = FORK.Process(target=lambda: Journal(former).remember("files", {"a": "note"}))
            writer.start()
            try:
                while writer.is_alive():
                    assert Journal(former).recall("cdi")["generated"]
            finally:
                writer.kill()
                writer.join()
            shutil.rmtree(former.path(records.DIRECTORY))
            Path(former.path(records.DIRECTORY)).mkdir()
            for name in ("journal.jsonl", "originals.json", "packages.json", "memory.json"):
                shutil.copyfile(FORMER / name, Path(former.path(records.DIRECTORY)) / name)


def keep_and_forget(host: Host) -> None:
    for _again in range(150):
        Journal(host).keep_original("files", "/etc/a")
        Journal(host).forget_original("/etc/a")


class TestSchema:
    def test_an_open_step_of_the_release_before_is_closed_by_this_one(self, tmp_path: Path) -> None:
        """It said 'after' for what a step depends on, and had the bytes of a subject in the step's id as they are."""
        host = Host(str(tmp_path))
        edited = Step("runtime", "file.edit", "/etc/caf\udce9.toml", "It is wanted.", depends_on=("runtime/x/y",))
        written = dict(edited.to_dict(), id="runtime/file.edit//etc/caf\udce9.toml")
        written["after"] = written.pop("depends_on")
        host.write(records.STATE, json.dumps({
            "schema": 1, "originals": {}, "packages": {}, "memory": {},
            "open": [{"step": written, "plan": "p", "policy": "q", "time": 1.0}]}))
        journal = Journal(host)
        assert [Step.from_dict(event["step"]) for event in journal.unfinished("runtime")] == [edited]
        journal.note("done", edited, "p")
        assert journal.unfinished("runtime") == []

    def test_what_the_release_before_wrote_is_taken_over(self, former: Host) -> None:
        before = files(former)
        for _again in range(2):
            journal = Journal(former)
            originals = [each for name in ("runtime", "nouveau", "toolkit") for each in journal.originals(name)]
            assert {each.path: (each.content, each.directories) for each in originals} == {
                "/etc/containerd/config.toml": (b"# caf\xe9, by the admin\nversion = 2\n", ()),
                "/etc/nvidia-container-runtime/config.toml": (b"# mine\n", ()),
                "/etc/modprobe.d/deep/er/gpuops.conf": (
                    None, ("/etc/modprobe.d", "/etc/modprobe.d/deep", "/etc/modprobe.d/deep/er")),
            }
            assert journal.originals("runtime")[0].ownership == Ownership(0o640, 0, 0)
            assert journal.packages("toolkit") == dict.fromkeys(
                ("libnvidia-container1", "nvidia-container-toolkit"), PackageChange(None, "1.18.0-1"))
            assert journal.recall("nouveau")["initramfs"]["/boot/initrd.img-6.1"]["ours"] is True
            assert journal.recall("cdi") == {"generated": True, "enabled": ["nvidia-cdi-refresh.path"]}
            assert journal.recall("toolkit") == {"configuration": "# kept\n", "writes": [
                {"before": "# mine\n", "after": "# first\n"}, {"before": "# first\n", "after": "# second\n"}]}
            # its line stood behind a torn one: the release before never saw it
            (event,) = journal.unfinished("driver")
            assert event["step"]["subject"] == "NVIDIA driver 580.126.09"
            assert event["packages_before"] == {"adduser": "3.134", "libc6": "2.36-9+deb12u10"}
            assert journal.unfinished("runtime") == []
            if files(former) == before:
                journal.note("started", step(), "p")
            former = Host(former.root)
        assert sorted(name for name in files(former) if not name.startswith("originals/")) == [
            "journal.jsonl", "state.json"]
        assert former.mode(records.DIRECTORY) == 0o700

    def test_reading_it_changes_nothing(self, former: Host) -> None:
        before = files(former)
        assert Journal(former).originals("runtime") and Journal(former).events()
        assert files(former) == before

    def test_a_file_of_the_release_before_goes_back_as_it_was(self, former: Host) -> None:
        content(former, "/etc/containerd/config.toml", b"version = 3\n")
        Journal(former).restore("/etc/containerd/config.toml")
        assert former.read_bytes("/etc/containerd/config.toml") == b"# caf\xe9, by the admin\nversion = 2\n"
        assert former.mode("/etc/containerd/config.toml") == 0o640

    def test_attributes_that_the_release_before_did_not_keep_stay(self, former: Host) -> None:
        content(former, "/etc/containerd/config.toml", b"version = 3\n")
        try:
            os.setxattr(former.path("/etc/containerd/config.toml"), "user.note", b"theirs")
        except OSError:
            pytest.skip("no extended attributes here")
        Journal(former).restore("/etc/containerd/config.toml")
        now = former.ownership("/etc/containerd/config.toml")
        assert now is not None and now.mode == 0o640 and now.attributes == {"user.note": "theirs"}

    def test_a_newer_schema_is_refused(self, host: Host) -> None:
        content(host, records.STATE, b'{"schema": 99}')
        with pytest.raises(GpuOpsError, match="has schema 99.*use that one or a newer one"):
            Journal(host).recall("files")

    @pytest.mark.parametrize("text", [
        b"", b"{", b"[]", b'{"open": []}', b'{"schema": 1}',
        b'{"schema": 1, "open": {}, "originals": {}, "packages": {}, "memory": {}}',
        b'{"schema": 1, "open": [{}], "originals": {}, "packages": {}, "memory": {}}',
        b'{"schema": 1, "open": [], "originals": {"/a": {"mode": 420}}, "packages": {}, "memory": {}}',
        b'{"schema": 1, "open": [], "originals": {}, "packages": {"driver": {"a": null}}, "memory": {}}',
        b'{"schema": 1, "open": [], "originals": {}, "packages": {}, "memory": {"driver": []}}'])
    def test_a_damaged_record_is_never_taken_for_none(self, host: Host, text: bytes) -> None:
        content(host, records.STATE, text)
        with pytest.raises(GpuOpsError, match="cannot be understood"):
            Journal(host).unfinished("files")
        assert files(host)["state.json"][0] == text

    @pytest.mark.parametrize("text", [b"{", b"[]", b'{"/etc/a": {"content": "x"}}'])
    def test_a_damaged_record_of_the_release_before_is_told(self, host: Host, text: bytes) -> None:
        content(host, records.DIRECTORY + "/originals.json", text)
        with pytest.raises(GpuOpsError, match="cannot be understood"):
            Journal(host).keep_original("files", "/etc/a")


def test_packages_and_notes_are_kept_and_dropped(host: Host) -> None:
    journal = Journal(host)
    changes = {"nvidia-open": PackageChange(None, "580"), "nvidia-old": PackageChange("535", None)}
    journal.set_packages("driver", changes)
    journal.remember("driver", {"a": [1]})
    assert Journal(host).packages("driver") == changes and Journal(host).recall("driver") == {"a": [1]}
    journal.set_packages("driver", {})
    journal.remember("driver", {})
    assert Journal(host).packages("driver") == {} and Journal(host).recall("driver") == {}


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_record_is_for_root_alone_whatever_the_umask(host: Host, umask: int) -> None:
    content(host, "/etc/a", b"theirs")
    before = os.umask(umask)
    try:
        journal = Journal(host)
        journal.keep_original("files", "/etc/a")
        journal.note("started", step(), "p")
    finally:
        os.umask(before)
    assert host.mode(records.DIRECTORY) == host.mode(records.ORIGINALS) == 0o700
    assert {mode for _data, mode in files(host).values()} == {0o600}
