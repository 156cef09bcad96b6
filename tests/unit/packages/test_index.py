# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Repositories read by real apt from a real web server, and what apt says of transactions."""
from __future__ import annotations

import base64
import email.utils
import os
import re
import resource
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest
from scratch_apt import Repository, Root, build, held

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import model, space
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import credentials
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.index import (
    LISTS,
    index,
    parse_simulation,
    read_key,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Credentials

KEYRING = "/etc/apt/keyrings/ours.asc"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Repository]:
    with Repository(tmp_path / "other", key="two") as running:
        build(running.directory, "dkms", "3")
        running.publish()
        yield running


@pytest.fixture(autouse=True)
def filled(repository: Repository) -> None:
    for version in ("1.0-1", "2.0-1~rc1", "2.0-1"):
        build(repository.directory, "driver", version, depends="dkms", size=2048)
    repository.publish()


def ours(repository: Repository, **more: object) -> model.Repository:
    return model.Repository(repository.url, repository.key.public, KEYRING, **more)  # type: ignore[arg-type]


def test_a_repository_is_read_that_the_host_does_not_have_and_nothing_of_the_host_changes(
    root: Root, repository: Repository
) -> None:
    before = root.tree()
    with index(root.host, [ours(repository)]) as opened:
        assert opened.versions(["driver", "none"]) == {"driver": ["2.0-1", "2.0-1~rc1", "1.0-1"], "none": []}
    changed = set(root.tree().items()) ^ set(before.items())
    assert {name for name, _data in changed if not name.startswith(LISTS.lstrip("/"))} == set()


@pytest.mark.parametrize("key", ["", "url"])
def test_a_host_that_takes_no_more_bytes_is_told_in_words(root: Root, repository: Repository, key: str) -> None:
    """As a full /tmp or /run does; the limit of a process stands in for it (setrlimit(2))."""
    told = root.path / "told"
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Repository(root.path / "asks", password="user:word") as closed:
        pid = os.fork()
        if pid == 0:
            said = "nothing was wrong"
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited))
                if key:
                    read_key(root.host, closed.url + "key.asc", Credentials("user", "word"))
                with index(root.host, [ours(repository)]):
                    pass
            except GpuOpsError as error:
                said = str(error)
            except BaseException as error:
                said = "a traceback: %r" % error
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
                told.write_text(said)
                os._exit(0)
        os.waitpid(pid, 0)
    assert re.match(r"Found: /\S+ cannot be written: File too large", told.read_text()), told.read_text()


def test_six_readings_fetch_each_index_once(root: Root, repository: Repository, other: Repository) -> None:
    """What a drained first installation does: driver, toolkit, and again after each of their steps."""
    root.trust(other)
    for _round in range(6):
        with index(root.host, [ours(repository)], beside_system=True) as opened:
            assert opened.simulate({"driver": "2.0-1"}).installs == {"driver": "2.0-1", "dkms": "3"}
    for server in (repository, other):
        assert server.fetched("Packages") == 1
        assert (server.fetched("InRelease"), server.fetched("InRelease", 304)) == (1, 5)


def test_a_new_version_is_seen_at_once(root: Root, repository: Repository) -> None:
    with index(root.host, [ours(repository)]):
        pass
    repository.add("driver", "3.0-1")
    with index(root.host, [ours(repository)]) as opened:
        assert opened.versions(["driver"])["driver"][0] == "3.0-1"


def test_lists_that_the_apt_of_a_killed_reader_still_reads_are_waited_for(root: Root, repository: Repository) -> None:
    """Without its lists' lock apt leaves them as they were: a plan of yesterday."""
    with index(root.host, [ours(repository)]):
        pass
    build(repository.directory, "driver", "3.0-1", depends="dkms")
    repository.publish()
    with held(root.path / (LISTS.lstrip("/") + "/state/lists/lock")) as holder:
        assert holder.stdin is not None
        release = threading.Timer(1.5, holder.stdin.close)
        release.start()
        with index(root.host, [ours(repository)]) as opened:
            assert opened.versions(["driver"])["driver"][0] == "3.0-1"
        release.join()


@contextmanager
def small(directory: Path, *options: str) -> Iterator[None]:
    """A file system of so much room on a directory."""
    directory.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.parametrize("room, said", [
    ("nr_inodes=3", "cannot be written: No space left on device"),
    ("size=48k", "apt cannot write its lists: E: Write error"),
])
def test_without_room_for_lists_nothing_is_planned_from_half_of_them(
    root: Root, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str, said: str
) -> None:
    with small(root.path / "run", "size=1m"), small(tmp_path / "full", room):
        monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        with pytest.raises(GpuOpsError) as caught, index(root.host, [ours(repository)]):
            pass
    assert said in caught.value.found


def test_lists_that_lie_in_a_run_that_is_full_by_now_are_read_elsewhere(root: Root, repository: Repository) -> None:
    with small(root.path / "run", "size=64k"):
        (root.path / (LISTS.lstrip("/") + "/state")).mkdir(parents=True)
        (root.path / "run/full").write_bytes(bytes(56 << 10))
        with index(root.host, [ours(repository)]) as opened:
            assert opened.versions(["driver"])["driver"]


def test_lists_that_one_key_signed_are_not_believed_by_another(
    root: Root, repository: Repository, other: Repository
) -> None:
    with index(root.host, [ours(repository)]):
        pass
    forged = model.Repository(repository.url, other.key.public, KEYRING)
    with pytest.raises(GpuOpsError, match="cannot be read"), index(root.host, [forged]):
        pass


def test_files_of_others_that_have_the_collections_name_do_not_take_the_place_of_ours(
    root: Root, repository: Repository, other: Repository
) -> None:
    """An administrator keeps what he writes for it in files called gpuops."""
    root.trust(other, "gpuops")
    root.write("etc/apt/sources.list.d/gpuops.sources", "# nothing yet\n")
    root.write("etc/apt/auth.conf.d/gpuops.conf", "machine elsewhere.invalid login a password b\n")
    root.write("etc/apt/preferences.d/gpuops", "Package: dkms\nPin: version 3\nPin-Priority: -1\n")
    repository.authorized = "Basic " + base64.b64encode(b"u:p").decode()
    with index(root.host, [ours(repository, credentials=Credentials("u", "p"))], beside_system=True) as opened:
        opened.prefer("Package: driver\nPin: version 1.0-1\nPin-Priority: 1000\n")
        assert opened.versions(["driver"])["driver"][0] == "2.0-1"
        assert "dkms" in opened.simulate({"driver": "2.0-1"}).problem, "the administrator's pin counts"


def test_lists_and_archives_in_places_of_their_own_stay_as_they_are(root: Root, repository: Repository) -> None:
    root.write("etc/apt/apt.conf.d/50places",
               'Dir::State::lists "%s/srv/lists";\nDir::Cache::archives "%s/srv/archives";\n' % (root.path, root.path))
    with index(root.host, [ours(repository)]) as opened:
        assert opened.versions(["driver"])["driver"][0] == "2.0-1"
    assert not (root.path / "srv").exists()


def test_an_expired_source_of_somebody_else_is_left_out_and_named(
    root: Root, repository: Repository, other: Repository
) -> None:
    root.trust(other)
    other.publish(valid_until=email.utils.formatdate(time.time() - 86400, usegmt=True))
    build(repository.directory, "dkms", "2")
    repository.publish()
    with index(root.host, [ours(repository)], beside_system=True) as opened:
        assert opened.simulate({"driver": "2.0-1"}).installs == {"driver": "2.0-1", "dkms": "2"}
        assert len(opened.unread) == 1
        assert other.url in opened.unread[0] and "expired" in opened.unread[0]
        assert repository.url not in opened.unread[0]


def test_our_own_expired_source_is_an_error_that_names_it(
    root: Root, repository: Repository, other: Repository
) -> None:
    root.trust(other)
    repository.publish(valid_until=email.utils.formatdate(time.time() - 86400, usegmt=True))
    with pytest.raises(GpuOpsError) as caught, index(root.host, [ours(repository)], beside_system=True):
        pass
    assert repository.url in caught.value.found and "expired" in caught.value.found
    assert other.url not in caught.value.found


def test_a_source_without_anybody_behind_it(root: Root, repository: Repository) -> None:
    gone = model.Repository("http://127.0.0.1:1/", repository.key.public, KEYRING)
    with pytest.raises(GpuOpsError, match=r"http://127.0.0.1:1/ cannot be read"), index(root.host, [gone]):
        pass


def test_entries_that_apt_does_not_understand_are_an_error(root: Root, repository: Repository) -> None:
    root.write("etc/apt/sources.list", "deb\n")
    with pytest.raises(GpuOpsError, match="a source of /etc/apt cannot be read"), \
            index(root.host, [ours(repository)], beside_system=True):
        pass


class TestSimulation:
    @pytest.fixture(autouse=True)
    def configured(self, root: Root, repository: Repository) -> None:
        build(repository.directory, "dkms", "3", size=1024)
        repository.publish()
        root.trust(repository)
        root.apt("update")

    def simulated(self, root: Root, version: str, allow_downgrade: bool = False) -> model.Simulation:
        with index(root.host, [], beside_system=True) as opened:
            return opened.simulate({"driver": version}, allow_downgrade)

    def test_every_package_is_named_with_what_it_holds(self, root: Root) -> None:
        done = self.simulated(root, "2.0-1")
        assert done.change == ({"driver": None, "dkms": None}, {"driver": "2.0-1", "dkms": "3"})
        assert done.unpacked == 3 * 1024 * 1024
        assert 0 < done.download < 10000

    def test_a_downgrade_is_refused_where_the_transaction_may_none(self, root: Root) -> None:
        root.install("driver=2.0-1")
        assert "downgraded" in self.simulated(root, "2.0-1~rc1").problem
        allowed = self.simulated(root, "2.0-1~rc1", allow_downgrade=True)
        assert (allowed.problem, allowed.change) == ("", ({"driver": "2.0-1"}, {"driver": "2.0-1~rc1"}))

    def test_a_held_package_is_refused_and_named(self, root: Root) -> None:
        root.install("driver=1.0-1")
        root.hold("driver")
        done = self.simulated(root, "2.0-1")
        assert done.held == ("driver",) and "Held packages were changed" in done.problem

    def test_packages_that_go_have_their_version(self, root: Root, repository: Repository) -> None:
        build(repository.directory, "rival", "1", conflicts="driver")
        repository.publish()
        root.install("driver=1.0-1")
        with index(root.host, [], beside_system=True) as opened:
            done = opened.simulate({"rival": "1"})
        assert done.change == ({"driver": "1.0-1", "rival": None}, {"driver": None, "rival": "1"})


class TestCredentials:
    URL = "%s://apt:%s@%s"
    PASSWORD = "c0rrect-h%rse"

    @pytest.fixture
    def closed(self, tmp_path: Path) -> Iterator[Repository]:
        with Repository(tmp_path / "closed", password="apt:" + self.PASSWORD) as running:
            build(running.directory, "driver", "1.0-1")
            (running.directory / "key.asc").write_text(running.key.public)
            running.publish()
            yield running

    def test_index_and_key_are_read_with_them(self, root: Root, closed: Repository) -> None:
        url, told = credentials.split(closed.url.replace("http://", "http://apt:c0rrect-h%25rse@"))
        assert (url, told) == (closed.url, Credentials("apt", self.PASSWORD))
        assert read_key(root.host, url + "key.asc", told).startswith("-----BEGIN PGP")
        with index(root.host, [ours(closed, credentials=told)]) as opened:
            assert opened.versions(["driver"]) == {"driver": ["1.0-1"]}
        assert not any(self.PASSWORD.encode() in data for data in root.tree().values())

    def test_wrong_ones_are_an_error_without_them(self, root: Root, closed: Repository) -> None:
        told = Credentials("apt", "wr0ng-secret")
        for read in (lambda: read_key(root.host, closed.url + "key.asc", told), lambda: self._open(root, closed, told)):
            with pytest.raises(GpuOpsError) as caught:
                read()
            assert "401" in caught.value.found
            assert "wr0ng-secret" not in str(caught.value) + repr(caught.value.details)

    def _open(self, root: Root, closed: Repository, told: Credentials) -> None:
        with index(root.host, [ours(closed, credentials=told)]):
            pass

    def test_those_of_the_host_serve_too(self, root: Root, closed: Repository) -> None:
        root.write("etc/apt/auth.conf.d/admin.conf", "machine %s login apt password %s\n" % (closed.url, self.PASSWORD))
        self._open(root, closed, None)  # type: ignore[arg-type]

    @pytest.mark.parametrize("url", ["http://apt:a%20b@h/", "http://apt:%23b@h/", "http://apt@h/"])
    def test_what_apt_cannot_be_told_is_refused(self, url: str) -> None:
        with pytest.raises(GpuOpsError, match="that apt cannot be told"):
            credentials.split(url)

    def test_an_open_repository_has_none(self) -> None:
        assert credentials.split("https://host/a@b/") == ("https://host/a@b/", None)


def test_the_room_that_a_transaction_needs_is_counted_by_file_system() -> None:
    mib = space.MIB
    transaction = model.Simulation({"nvidia-kernel-open-dkms": "1", "linux-image-6.1.0-50-amd64": "1"}, (),
                                   download=30 * mib, unpacked=100 * mib)
    apart = {space.SYSTEM: 1, space.ARCHIVES: 2, space.BOOT: 3}
    enough = space.Space(apart, {space.SYSTEM: 100 * mib, space.ARCHIVES: 30 * mib, space.BOOT: 132 * mib}, 50 * mib)
    assert space.lacking(enough, transaction) == []
    full = space.Space(apart, dict(enough.free, **{space.BOOT: 131 * mib}), 50 * mib)
    assert space.lacking(full, transaction) == [(space.BOOT, 132 * mib, 131 * mib)]
    together = space.Space(dict.fromkeys(apart, 1), dict.fromkeys(apart, 261 * mib), 50 * mib)
    assert space.lacking(together, transaction) == [(space.SYSTEM, 262 * mib, 261 * mib)]


def test_the_room_of_a_host(root: Root) -> None:
    root.write("boot/initrd.img-6.1.0-50-amd64", "x" * 5000)
    seen = space.observe(root.host)
    assert seen.initramfs == 5000
    assert seen.device[space.BOOT] == os.stat(root.path).st_dev
    assert 0 < seen.free[space.SYSTEM] <= os.statvfs(root.path).f_blocks * os.statvfs(root.path).f_frsize


def test_apt_says_what_it_would_do() -> None:
    installs, removes, before = parse_simulation(
        "Remv nvidia-dkms-580 [580.178.04-1]\n"
        "Inst libnvidia-ml1 [580.178.04-1] (595.91.07-1 NVIDIA:NVIDIA CUDA [amd64])\n"
        "Inst libnvidia-ml1:i386 (595.91.07-1 NVIDIA [i386])\n"
        "Inst dkms (3.0.10-8+deb12u1 Debian:12.11/stable [all]) []\nConf dkms (3.0.10 x)\n", "amd64")
    assert installs == {
        "libnvidia-ml1": "595.91.07-1", "libnvidia-ml1:i386": "595.91.07-1", "dkms": "3.0.10-8+deb12u1"}
    assert removes == ("nvidia-dkms-580",)
    assert before == {"nvidia-dkms-580": "580.178.04-1", "libnvidia-ml1": "580.178.04-1"}
