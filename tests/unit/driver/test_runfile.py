# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver by NVIDIA's installer: planned from a real host, with the real apt, and carried out by a stand-in of the
installer (nvidia_installer.py)."""
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import pytest
from apt_machine import NAMES, Machine
from gpu_hosts import A100, facts
from nvidia_installer import DKMS_CONF, installer
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import observation as activation
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import observing, runfile, runfile_removal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.runfile_executors import machine_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.runfile import MEMORY
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import manager as apt
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Credentials

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")), reason="needs apt and gpg")
OLD, NEW = "580.178.04", "595.91.07"
BARE = facts(A100)
# Of the installer, where it is stopped
STEPS = [2, 5, *(pytest.param(number, marks=pytest.mark.variation) for number in (1, 3, 4, 6))]
ELF_OF_AARCH64 = "\x7fELF\2\1\1" + "\0" * 11 + "\xb7\0"


def in_use(version: str) -> HostFacts:
    return BARE.but(driver_installed=version, driver_boots=version, driver_loaded=version, driver_userspace=version,
                    module_installed="open", module_loaded="open")


class Host(Machine):
    """files: {version: SHA-256} of the installers in the served directory."""

    files: Dict[str, str]

    def run_of(self, version: str, there: HostFacts = BARE, **changes: Any) -> Plan:
        return self.plan(there, **{
            "source": "runfile", "version": version, "runfile": self.repository.url,
            "runfile_checksum": self.files[version], **changes})

    def tree(self) -> Set[str]:
        """What anybody could have on the host, beside logs, lists and the memory of ours."""
        top = self.root.path
        return {str(path.relative_to(top)) for path in top.rglob("*") if not str(path.relative_to(top)).startswith(
            ("called", "var/lib/gpuops", "var/lib/apt", "var/lib/dpkg", "var/cache/apt", "var/log", "run"))}

    def reads(self, version: str, source: str = "open") -> None:
        """The modules that DKMS would build are there."""
        self.built = (Kernel(BARE.kernel, headers=True, module=version,
                             license="Dual MIT/GPL" if source == "open" else "NVIDIA"),)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(running, "has_bindings", lambda host: True)
    with Repository(tmp_path / "repository") as repository:
        build(repository.directory, "dkms", "3.0.10-8")
        for name in NAMES:
            build(repository.directory, name, OLD + "-1")
        repository.publish()
        root = Root(tmp_path / "host")
        root.trust(repository)
        entry = root.path / "etc/apt/sources.list.d/other.list"
        entry.write_text(entry.read_text().replace("127.0.0.1", "localhost"))
        root.apt("update")
        for name in ("usr/src", "usr/bin", "usr/lib/x86_64-linux-gnu", "lib/firmware", "srv", "var/cache"):
            (root.path / name).mkdir(parents=True, exist_ok=True)
        made = Host(root, repository)
        made.built = (Kernel(BARE.kernel, headers=True),)
        made.files = {version: installer(
            repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % version), version, str(root.path))
            for version in (OLD, NEW)}
        monkeypatch.setattr(observing, "read_kernels", lambda *_words: made.built)
        yield made


def cut(host: Host, number: int) -> None:
    """Power is cut in an installation of OLD, after its file of that number, 0 for its end: nothing of ours runs any
    more."""
    host.host.write("/cut", str(number))
    plan = host.run_of(OLD)
    child = os.fork()
    if child == 0:
        try:
            host.apply(plan)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    host.host.remove("/cut")


def damaged(host: Host, version: str) -> None:
    """What was fetched of this driver is of the same length, and not the same any more."""
    path = runfile.cached_path(version, host.files[version])
    whole = host.host.read_bytes(path) or b""
    host.host.write_bytes(path, whole[:-9] + b"\0" * 9)


def listed(host: Host, number: int) -> List[str]:
    return re.findall(r"(?m)^%d: (/.*)$" % number, host.host.read(runfile.LIST) or "")


def installed(host: Host, version: str, **changes: Any) -> None:
    host.apply(host.run_of(version, **changes))
    host.reads(version)


class TestInstalls:
    def test_user_space_and_the_source_of_the_module(self, host: Host) -> None:
        installed(host, OLD)
        assert host.host.link("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1") == "libnvidia-ml.so." + OLD
        assert runfile.version(host.host) == OLD
        conf = host.host.read("/usr/src/nvidia-%s/dkms.conf" % OLD) or ""
        assert 'PACKAGE_VERSION="%s"' % OLD in conf and 'BUILT_MODULE_NAME[1]="nvidia-uvm"' in conf
        assert "__" not in conf and "was generated" in conf
        assert host.host.read("/usr/src/nvidia-%s/Kbuild" % OLD) == "# of kernel-open\n"
        assert host.root.installed()["dkms"] == "3.0.10-8"
        assert host.run_of(OLD, in_use(OLD)).steps == ()

    def test_no_module_is_loaded_or_unloaded_and_nothing_is_asked(self, host: Host) -> None:
        installed(host, OLD, there=in_use("570.86.16"))
        (called,) = (host.host.read("/called") or "").splitlines()
        assert called.split()[:3] == ["nvidia-installer", "--silent", "--no-kernel-modules"]
        assert "--no-systemd" in called and not host.host.exists("/unloaded")

    def test_the_flavours(self, host: Host) -> None:
        library = "/usr/lib/x86_64-linux-gnu/libGLX_nvidia.so." + OLD
        installed(host, OLD)
        assert not host.host.exists(library)
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        host.built = (Kernel(BARE.kernel, headers=True),)
        installed(host, OLD, flavour="full")
        assert host.host.exists(library)

    def test_a_file_under_the_name_of_another_version_is_fetched_under_its_own(self, host: Host) -> None:
        host.apply(host.run_of(OLD, state="staged"))
        host.host.rename(runfile.cached_path(OLD, host.files[OLD]), runfile.cached_path(NEW, host.files[OLD]))
        installed(host, OLD)
        assert host.host.list(runfile.STORE) == [runfile.cached_path(OLD, host.files[OLD]).rpartition("/")[2]]

    def test_its_file_and_directory_are_roots_alone(self, host: Host) -> None:
        host.apply(host.run_of(OLD, state="staged"))
        assert host.host.mode(runfile.STORE) == 0o700
        assert host.host.mode(runfile.cached_path(OLD, host.files[OLD])) == 0o600

    def test_what_was_staged_needs_its_place_no_more(self, host: Host) -> None:
        host.apply(host.run_of(OLD, state="staged"))
        (host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)).unlink()
        installed(host, OLD)
        assert runfile.version(host.host) == OLD

    @pytest.mark.parametrize("state", ["staged", "present"])
    def test_what_was_damaged_since_is_fetched_anew_before_anything_changes(self, host: Host, state: str) -> None:
        """The place where it is fetched from is not asked before: it may be without it, and the driver there stays."""
        installed(host, NEW)
        host.apply(host.run_of(OLD, in_use(NEW), state="staged"))
        assert "runfile.fetch" not in [step.action for step in host.run_of(OLD, in_use(NEW), state=state).steps]
        damaged(host, OLD)
        plan = host.run_of(OLD, in_use(NEW), state=state)
        assert plan.steps[0].action == "runfile.fetch"
        served = host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)
        served.rename(served.with_suffix(".away"))
        before = host.tree()
        with pytest.raises(GpuOpsError) as failed:
            host.apply(plan)
        assert failed.value.code == "driver.runfile_not_fetched" and host.tree() == before
        served.with_suffix(".away").rename(served)
        host.apply(plan)
        assert runfile.is_whole(host.host, OLD, host.files[OLD])
        assert runfile.version(host.host) == (OLD if state == "present" else NEW)

    def test_no_file_is_read_where_nothing_is_installed_from_it(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a gigabyte each time."""
        installed(host, OLD)
        installed(host, NEW, there=in_use(OLD))
        monkeypatch.delattr(type(host.host), "sha256")
        for state in ("present", "staged", "absent"):
            host.run_of(NEW, in_use(NEW), state=state)
        assert not host.plan(in_use(NEW), source="runfile", state="rolled_back", roll_back_to=NEW).steps

    @pytest.mark.parametrize("given", [
        pytest.param("/srv/own.run", marks=pytest.mark.variation), pytest.param("/srv/", marks=pytest.mark.variation), "file:///srv/own.run"])
    def test_from_a_path_of_the_host(self, host: Host, given: str) -> None:
        name = "/srv/NVIDIA-Linux-x86_64-%s.run" % OLD if given.endswith("/") else "/srv/own.run"
        (refusal,) = host.run_of(OLD, runfile=given).refusals
        assert refusal.code == "driver.runfile_not_there" and name in refusal.found
        host.host.write_bytes(name, (host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)).read_bytes())
        installed(host, OLD, runfile=given)
        assert runfile.version(host.host) == OLD and host.host.exists(name)


class TestRefuses:
    """Whatever is wrong with the file: the host is as it was."""

    def fails(self, host: Host, code: str, **changes: Any) -> GpuOpsError:
        with pytest.raises(GpuOpsError) as failed:
            host.apply(host.run_of(OLD, **changes))
        assert failed.value.code == code
        assert not any(map(host.host.exists, (
            runfile.LIST, runfile.HALF, runfile.COPY, "/usr/bin/nvidia-smi", "/called", "/usr/src/nvidia-" + OLD)))
        return failed.value

    def test_another_checksum(self, host: Host) -> None:
        told = self.fails(host, "driver.runfile_checksum_differs", runfile_checksum="0" * 64)
        assert host.files[OLD] in told.found
        assert runfile.cached(host.host) == {} and "dkms" not in host.root.installed()

    def test_a_place_without_it(self, host: Host) -> None:
        told = self.fails(host, "driver.runfile_not_fetched", runfile=host.repository.url + "nowhere/")
        assert "404" in told.found and "dkms" not in host.root.installed()

    def test_a_file_that_was_damaged_since_it_was_planned(self, host: Host) -> None:
        host.apply(host.run_of(OLD, state="staged"))
        plan = host.run_of(OLD)
        damaged(host, OLD)
        with pytest.raises(GpuOpsError) as failed:
            host.apply(plan)
        assert failed.value.code == "driver.runfile_lost" and not host.host.exists("/called")
        assert runfile.cached(host.host) == {}

    def test_a_file_that_was_damaged_and_is_not_in_its_place_any_more(self, host: Host) -> None:
        host.host.write_bytes("/srv/own.run", (
            host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)).read_bytes())
        host.apply(host.run_of(OLD, runfile="/srv/own.run", state="staged"))
        host.host.remove("/srv/own.run")
        assert not host.run_of(OLD, runfile="/srv/own.run").refusals
        damaged(host, OLD)
        (refusal,) = host.run_of(OLD, runfile="/srv/own.run").refusals
        assert refusal.code == "driver.runfile_not_there"

    def test_a_way_back_whose_file_was_damaged(self, host: Host) -> None:
        installed(host, OLD)
        installed(host, NEW, there=in_use(OLD))
        damaged(host, OLD)
        (refusal,) = host.plan(in_use(NEW), source="runfile", state="rolled_back").refusals
        assert refusal.code == "driver.runfile_no_way_back" and "no whole file" in refusal.found

    @pytest.mark.parametrize("state", ["staged", pytest.param("present", marks=pytest.mark.variation)])
    @pytest.mark.parametrize("changed, said", [
        ({".manifest": "Driver\n%s\n-\nnvidia\n-\n-\n-\n-\nnvidia-smi 0755 UTILITY_BINARY\n" % NEW}, NEW),
        ({"kernel-open__dkms.conf": ""}, "kernel-open/dkms.conf"),
        ({"kernel-open__dkms.conf": DKMS_CONF + "__NEWER_TOKEN\n"}, "__NEWER_TOKEN"),
        ({"kernel__dkms.conf": DKMS_CONF + "__NEWER_TOKEN\n"}, "kernel/dkms.conf"),
        ({"nvidia-installer": ""}, "does not unpack"),
        ({"nvidia-installer": ELF_OF_AARCH64}, "183"),
    ])
    def test_a_file_that_is_not_what_it_was_taken_for(
        self, host: Host, changed: Dict[str, str], said: str, state: str
    ) -> None:
        """Also where another driver is there: it stays."""
        path = host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)
        host.files[OLD] = installer(path, OLD, str(host.root.path), **changed)
        assert said in self.fails(host, "driver.runfile_not_understood", state=state).found
        assert host.host.list(runfile.STORE) == [] and "dkms" not in host.root.installed()
        if state == "present":
            installed(host, NEW)
            before = host.tree()
            with pytest.raises(GpuOpsError) as failed:
                host.apply(host.run_of(OLD, in_use(NEW)))
            assert failed.value.code == "driver.runfile_not_understood" and host.tree() == before

    def test_corrected_as_the_error_says_it_is_installed(self, host: Host) -> None:
        path = host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)
        host.files[OLD] = installer(path, NEW, str(host.root.path))
        self.fails(host, "driver.runfile_not_understood")
        host.apply(host.plan(BARE, source="runfile", version=NEW, runfile=host.repository.url + path.name,
                             runfile_checksum=host.files[OLD]))
        assert runfile.version(host.host) == NEW

    def test_a_file_without_the_source_of_the_module_that_is_wanted_later(self, host: Host) -> None:
        path = host.repository.directory / ("NVIDIA-Linux-x86_64-%s.run" % OLD)
        host.files[OLD] = installer(path, OLD, str(host.root.path), **{
            "kernel__" + name: "" for name in ("dkms.conf", "Kbuild", "nvidia__nv.c")})
        host.apply(host.run_of(OLD, state="staged"))
        told = self.fails(host, "driver.runfile_not_understood", kernel_module="proprietary")
        assert "kernel/dkms.conf" in told.found and "none of its files is there" in told.remedy
        assert not host.host.exists(runfile.WORK)

    @pytest.mark.parametrize("program, machine", [
        (b"\x7fELF\2\1\1" + bytes(11) + b"\x3e\0", 62), (b"\x7fELF\2\1\1" + bytes(11) + b"\xb7\0", 183),
        (b"\x7fELF\2\2\1" + bytes(11) + b"\0\x15", 21), (b"\x7fELF\2\1\1", 0), (b"#!/bin/sh\n", None), (b"", None),
    ])
    def test_the_machine_that_a_program_is_for(self, program: bytes, machine: Optional[int]) -> None:
        assert machine_of(program) == machine

    def test_no_space(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(host.host), "free", lambda *_words: 1 << 20)
        codes = {refusal.code for refusal in host.run_of(OLD).refusals}
        assert codes == {"packages.no_space"}

    def test_what_a_stopped_run_has_unpacked_counts_as_the_space_for_it(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cut(host, 3)
        monkeypatch.setattr(type(host.host), "free", lambda *_words: 1536 << 20)
        assert not host.run_of(OLD).refusals
        (refusal,) = host.run_of(NEW).refusals
        assert refusal.code == "packages.no_space"
        runfile_removal.remove_tree(host.host, runfile.WORK)
        assert host.run_of(OLD).refusals

    def test_a_driver_without_anything_that_could_remove_it(self, host: Host) -> None:
        host.host.write("/usr/bin/nvidia-smi", "")
        (refusal,) = host.run_of(OLD).refusals
        assert refusal.code == "driver.files_of_nobody" and "/usr/bin/nvidia-smi" in refusal.found


def test_credentials_are_in_no_step_and_are_what_the_place_is_asked_with(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(apt, "download", lambda host, url, target, told, timeout: asked.append((url, told)) or
                        CommandResult((), 1, "", "401"))
    plan = host.run_of(OLD, runfile="https://somebody:s3cret@mirror.example.org/nvidia/")
    assert "s3cret" not in json.dumps(plan.to_dict())
    with pytest.raises(GpuOpsError) as failed:
        host.apply(plan)
    assert "s3cret" not in str(failed.value) and asked == [(
        "https://mirror.example.org/nvidia/NVIDIA-Linux-x86_64-%s.run" % OLD, Credentials("somebody", "s3cret"))]


class TestIsStopped:
    """In the middle, after any of its files: the next run ends as an undisturbed one, and so does what follows."""

    @pytest.mark.parametrize("number", STEPS)
    def test_and_the_next_run_ends_it(self, host: Host, number: int) -> None:
        before = host.tree()
        host.host.write("/stop", str(number))
        with pytest.raises(GpuOpsError) as failed:
            host.apply(host.run_of(OLD))
        assert failed.value.code == "driver.runfile_not_installed" and host.host.exists(runfile.HALF)
        assert not host.host.exists(runfile.WORK)
        host.host.remove("/stop")
        # Of others: under such a name from before, or not in that moment
        theirs = ("/usr/local/nvidia-smi", "/usr/local/libcuda.so." + OLD)
        for path, moment in zip(theirs, (time.time() - 600, time.time() + 600)):
            host.host.write(path, "theirs")
            os.utime(host.host.path(path), (moment, moment))
        plan = host.run_of(OLD)
        assert [step.action for step in plan.steps][:2] == [runfile.REMOVE, "runfile.install"]
        host.apply(plan)
        host.reads(OLD)
        assert host.run_of(OLD, in_use(OLD)).steps == ()
        assert not any(map(host.host.exists, (runfile.HALF, runfile.COPY, runfile.WORK)))
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.tree().difference(("usr/local", *(path[1:] for path in theirs))) == before
        assert all(map(host.host.exists, theirs))

    @pytest.mark.parametrize("number", STEPS)
    def test_by_a_power_cut(self, host: Host, number: int) -> None:
        before = host.tree()
        cut(host, number)
        assert host.host.exists(runfile.WORK)
        host.apply(host.run_of(OLD))
        host.reads(OLD)
        assert not any(map(host.host.exists, (runfile.HALF, runfile.COPY, runfile.WORK)))
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.tree() == before

    @pytest.mark.parametrize("number, length", [
        (5, 0), pytest.param(5, 5, marks=pytest.mark.variation), pytest.param(0, 0, marks=pytest.mark.variation)])
    def test_by_a_power_cut_that_tears_files(self, host: Host, number: int, length: int) -> None:
        """Listed ones and the one that is not; the uninstaller's program among them."""
        before = host.tree()
        cut(host, number)
        for path in host.tree() - before:
            if path.startswith("usr/") and host.host.is_file("/" + path) and not host.host.link("/" + path):
                os.truncate(host.host.path("/" + path), length)
        host.apply(host.run_of(OLD))
        assert not re.search(r"(?m)^1\d\d: ", host.host.read(runfile.LIST) or "")
        host.reads(OLD)
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.tree() == before

    def test_by_a_power_cut_that_leaves_nulls(self, host: Host) -> None:
        before = host.tree()
        cut(host, 5)
        path = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + OLD
        size = os.path.getsize(host.host.path(path))
        os.truncate(host.host.path(path), 3)
        os.truncate(host.host.path(path), size)
        assert path not in listed(host, 1)
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before

    @pytest.mark.parametrize("lost", ["", "list", pytest.param("end", marks=pytest.mark.variation)])
    @pytest.mark.parametrize("state", [pytest.param("present", marks=pytest.mark.variation), "absent"])
    def test_by_a_power_cut_that_tears_its_list(self, host: Host, lost: str, state: str) -> None:
        if lost == "end":
            host.host.write("/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD, "theirs")
        before = host.tree()
        cut(host, 4)
        text = host.host.read(runfile.LIST) or ""
        os.truncate(host.host.path(runfile.LIST), {"": 0, "list": text.index("(") + 3, "end": len(text) - 3}[lost])
        if state == "present":
            host.apply(host.run_of(OLD))
            host.reads(OLD)
            assert len(listed(host, 1)) == 6
            host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        else:
            host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before
        assert lost != "end" or host.host.read("/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD) == "theirs"

    @pytest.mark.parametrize("lines", [pytest.param(0, marks=pytest.mark.variation), 2])
    def test_what_it_moved_aside_is_named_where_no_list_tells_whence(self, host: Host, lines: int) -> None:
        """lines: of the list that the power cut has left."""
        theirs = "/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD
        host.host.write(theirs, "theirs")
        cut(host, 2)
        planned = host.plan(BARE, source="runfile", state="absent")
        text = (host.host.read(runfile.LIST) or "").splitlines(True)
        os.truncate(host.host.path(runfile.LIST), len("".join(text[:lines])))
        before = host.tree()
        for plan in (host.run_of(OLD), host.run_of(NEW), host.plan(BARE, version=OLD, migrate=True),
                     host.plan(BARE, source="runfile", state="absent")):
            (refusal,) = plan.refusals
            assert refusal.code == "driver.runfile_moved_aside" and "/var/lib/nvidia/100" in refusal.found
        assert not host.run_of(NEW, state="staged").refusals
        with pytest.raises(GpuOpsError) as failed:
            host.apply(planned)
        assert failed.value.code == "driver.runfile_moved_aside" and host.tree() == before
        host.host.rename("/var/lib/nvidia/100", theirs)
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.host.read(theirs) == "theirs" and not host.host.exists("/var/lib/nvidia")

    def test_what_lies_where_it_moved_something_aside_goes(self, host: Host) -> None:
        """Not listed yet; and what was moved aside cannot come back."""
        path = "/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD
        host.host.write(path, "theirs")
        cut(host, 6)
        assert path not in listed(host, 1)
        host.host.write("/var/lib/nvidia/100", "torn")
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert not host.host.exists(path)

    def test_files_of_others_with_its_names_stay(self, host: Host) -> None:
        """Written in the same moment: elsewhere, or of another content, longer or shorter."""
        cut(host, 2)
        theirs = {"/usr/local/lib/python3/nvidia-smi": "#!/bin/sh\n", "/usr/lib/x/nvidia-modprobe": "#!/bin/sh\necho\n",
                  "/usr/lib/y/libcuda.so." + OLD: "theirs"}
        for path, text in theirs.items():
            host.host.write(path, text)
        os.symlink("theirs", host.host.path("/usr/lib/y/libcuda.so.1"))
        host.apply(host.run_of(OLD))
        assert {path: host.host.read(path) for path in theirs} == theirs
        assert host.host.link("/usr/lib/y/libcuda.so.1") == "theirs"

    def test_in_its_removal_links_go_whose_files_went_before(self, host: Host) -> None:
        before = host.tree()
        installed(host, OLD)
        host.host.write_bytes(runfile.COPY, host.host.read_bytes(runfile.UNINSTALLER) or b"", 0o700)
        for path in listed(host, 1):
            host.host.remove(path)
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before

    def test_and_can_be_uninstalled(self, host: Host) -> None:
        before = host.tree()
        host.host.write("/stop", "3")
        with pytest.raises(GpuOpsError):
            host.apply(host.run_of(OLD))
        host.host.remove("/stop")
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before

    def test_or_fails_by_itself_and_is_named(self, host: Host) -> None:
        host.host.write("/fails", "")
        with pytest.raises(GpuOpsError) as failed:
            host.apply(host.run_of(OLD))
        assert failed.value.code == "driver.runfile_not_installed" and "Installation has failed" in failed.value.found
        host.host.remove("/fails")
        installed(host, OLD)
        assert runfile.version(host.host) == OLD

    def test_before_its_program_was_kept_and_packages_come_back(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.root.install(*("%s=%s-1" % (name, OLD) for name in NAMES))
        plan = host.run_of(NEW, in_use(OLD), migrate=True)
        write = type(host.host).write_bytes

        def stopped(self: Any, name: str, *rest: Any, **more: Any) -> None:
            if name == runfile.COPY:
                raise KeyboardInterrupt
            write(self, name, *rest, **more)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(type(host.host), "write_bytes", stopped)
            host.apply(plan)
        assert host.host.exists(runfile.HALF) and runfile.version(host.host) == ""
        host.apply(host.plan(BARE.but(driver_loaded=OLD), source="runfile", state="rolled_back", migrate=True))
        assert host.driver() == dict.fromkeys(NAMES, OLD + "-1")
        assert host.host.list(runfile.STORE) == [runfile.cached_path(NEW, host.files[NEW]).rpartition("/")[2]]

    @pytest.mark.parametrize("left", [".fetched", "work/nvidia-installer", "judged/.manifest", ".gpuops-half", ""])
    def test_while_it_is_fetched_and_uninstalled(self, host: Host, left: str) -> None:
        before = host.tree()
        host.host.make_directory(runfile.STORE, 0o700)
        if left:
            host.host.write(os.path.join(runfile.STORE, left), "half of it")
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before and not host.plan(BARE, source="runfile", state="absent").steps

    def test_while_the_source_of_its_module_is_removed(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """rm has no order: the file that tells whose it is may be the first."""
        before = host.tree()
        installed(host, OLD)

        def stopped(there: Any, path: str) -> None:
            if there.exists(path + "/" + runfile.MARK):
                there.remove(path + "/" + runfile.MARK)
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(runfile_removal, "remove_tree", stopped)
            host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        host.built = (Kernel(BARE.kernel, headers=True),)
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before

    def test_while_it_is_fetched(self, host: Host) -> None:
        host.host.write(runfile.STORE + "/.fetched", "half of it")
        installed(host, OLD)
        assert runfile.version(host.host) == OLD and not host.host.exists(runfile.STORE + "/.fetched")


class TestChanges:
    def test_another_version_and_back(self, host: Host) -> None:
        installed(host, OLD)
        plan = host.run_of(NEW, in_use(OLD))
        (way,) = plan.returns_to.values()
        assert (way["version"], way["how"], way["source"]) == (OLD, "archive", "NVIDIA's installer")
        host.apply(plan)
        host.reads(NEW)
        assert runfile.version(host.host) == NEW and not host.host.exists("/usr/src/nvidia-" + OLD)
        assert set(runfile.cached(host.host).values()) == {OLD, NEW}
        there = in_use(NEW).but(driver_loaded=OLD)
        host.apply(host.plan(there, source="runfile", state="rolled_back"))
        host.reads(OLD)
        assert runfile.version(host.host) == OLD and not host.host.exists("/unloaded")
        assert host.plan(in_use(OLD), source="runfile", state="rolled_back").steps == ()

    @pytest.mark.parametrize("stopped, version", [("runfile.install", ""), ("dkms.build", NEW)])
    def test_stopped_half_way_it_still_has_its_way_back(self, host: Host, stopped: str, version: str) -> None:
        """stopped: before this step; version: what is there then."""
        installed(host, OLD)
        plan = host.run_of(NEW, in_use(OLD))
        actions = [step.action for step in plan.steps]
        host.apply(replace(plan, steps=plan.steps[:actions.index(stopped)]))
        host.built = (Kernel(BARE.kernel, headers=True),)
        there = BARE.but(driver_loaded=OLD, driver_userspace=version)
        again = host.run_of(NEW, there)
        first = next(step for step in again.steps if step.action == stopped)
        assert {step: (way["version"], way["how"]) for step, way in again.returns_to.items()} == {
            first.id: (OLD, "archive")}
        host.apply(host.plan(there, source="runfile", state="rolled_back"))
        assert runfile.version(host.host) == OLD

    def test_without_space_it_is_not_taken_away_for_the_one_before(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        installed(host, OLD)
        installed(host, NEW, there=in_use(OLD))
        monkeypatch.setattr(type(host.host), "free", lambda *_words: 1 << 20)
        back = host.plan(in_use(NEW).but(driver_loaded=OLD), source="runfile", state="rolled_back")
        assert {refusal.code for refusal in back.refusals} == {"packages.no_space"}

    def test_another_flavour_of_the_same_file_and_back(self, host: Host) -> None:
        library = "/usr/lib/x86_64-linux-gnu/libGLX_nvidia.so." + OLD
        installed(host, OLD)
        host.apply(host.run_of(OLD, in_use(OLD), flavour="full"))
        assert host.host.exists(library) and host.run_of(OLD, in_use(OLD), flavour="full").steps == ()
        host.apply(host.plan(in_use(OLD), source="runfile", state="rolled_back"))
        assert not host.host.exists(library)
        assert host.plan(in_use(OLD), source="runfile", state="rolled_back").steps == ()

    def test_another_file_of_the_same_version_and_back(self, host: Host) -> None:
        installed(host, OLD)
        before, firmware = host.files[OLD], "/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD
        host.files[OLD] = installer(
            host.repository.directory / "other.run", OLD, str(host.root.path), **{"gsp_ga10x.bin": "another"})
        other = {"runfile": host.repository.url + "other.run"}
        host.apply(host.run_of(OLD, in_use(OLD), **other))
        assert host.host.read(firmware) == "another" and host.run_of(OLD, in_use(OLD), **other).steps == ()
        assert set(runfile.cached(host.host)) == {before, host.files[OLD]}
        host.apply(host.plan(in_use(OLD), source="runfile", state="rolled_back"))
        assert host.host.read(firmware) == "firmware " + OLD

    @pytest.mark.parametrize("dkms", [pytest.param((), marks=pytest.mark.variation), ("dkms=3.0.10-8",)])
    def test_packages_go_for_it_and_come_back(self, host: Host, dkms: Tuple[str, ...]) -> None:
        host.root.install(*("%s=%s-1" % (name, OLD) for name in NAMES), *dkms)
        (refusal,) = host.run_of(NEW, in_use(OLD)).refusals
        assert refusal.code == "driver.packages_of_another_source" and "`migrate`" in refusal.remedy
        plan = host.run_of(NEW, in_use(OLD), migrate=True)
        (way,) = plan.returns_to.values()
        assert (way["version"], way["how"]) == (OLD, "archive")
        host.apply(plan)
        host.reads(NEW)
        assert host.driver() == {} and runfile.version(host.host) == NEW and "dkms" in host.root.installed()
        host.apply(host.plan(in_use(NEW).but(driver_loaded=OLD), source="runfile", state="rolled_back"))
        assert host.driver() == dict.fromkeys(NAMES, OLD + "-1") and runfile.version(host.host) == ""

    def test_it_goes_for_packages(self, host: Host) -> None:
        installed(host, OLD)
        host.apply(host.plan(in_use(OLD), version=OLD, migrate=True))
        assert host.driver() == dict.fromkeys(NAMES, OLD + "-1")
        assert runfile.version(host.host) == "" and not host.host.exists(runfile.STORE)

    def test_what_lay_in_its_way_comes_back(self, host: Host) -> None:
        """A file of somebody else that the installer moves aside."""
        theirs = "/lib/firmware/nvidia/%s/gsp_ga10x.bin" % OLD
        host.host.write(theirs, "theirs")
        before = host.tree()
        installed(host, OLD)
        assert host.host.read(theirs) == "firmware " + OLD
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.host.read(theirs) == "theirs" and host.tree() == before

    def test_the_module_of_one_that_came_by_us_is_ours_to_unload_and_that_of_others_is_not(self, host: Host) -> None:
        def is_unloaded() -> bool:
            return activation.observe(host.host, host.journal, Policy(state="absent"), in_use(OLD)).ours

        installed(host, OLD)
        assert is_unloaded()
        host.journal.remember(MEMORY, {})
        assert not is_unloaded()

    def test_one_that_others_have_installed_stays_as_it_is(self, host: Host) -> None:
        installed(host, OLD)
        host.journal.remember(MEMORY, {})
        before = host.tree()
        assert host.run_of(OLD, in_use(OLD)).steps == ()
        (refusal,) = host.run_of(NEW, in_use(OLD)).refusals
        assert refusal.code == "driver.runfile_of_others"
        assert runfile.REMOVE not in [
            step.action for step in host.plan(in_use(OLD), source="runfile", state="absent").steps]
        assert host.tree() == before
        assert not host.run_of(NEW, in_use(OLD), migrate=True).refusals

    def test_what_somebody_has_uninstalled_himself_goes_with_the_rest(self, host: Host) -> None:
        before = host.tree()
        installed(host, OLD)
        host.host.run([host.host.path(runfile.UNINSTALLER), "--silent", "--skip-module-unload"])
        host.built = (Kernel(BARE.kernel, headers=True),)
        host.apply(host.plan(BARE, source="runfile", state="absent"))
        assert host.tree() == before and not host.journal.recall(MEMORY)
        assert not host.plan(BARE, source="runfile", state="absent").steps

    def test_a_source_that_has_become_that_of_a_package_stays(self, host: Host) -> None:
        installed(host, OLD)
        host.host.run([host.host.path(runfile.UNINSTALLER), "--silent", "--skip-module-unload"])
        host.root.install(*("%s=%s-1" % (name, OLD) for name in NAMES))
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.host.exists("/usr/src/nvidia-%s/dkms.conf" % OLD) and not host.journal.recall(MEMORY)

    def test_uninstalled_the_host_is_as_it_was(self, host: Host) -> None:
        before = host.tree()
        installed(host, OLD)
        host.apply(host.plan(in_use(OLD), source="runfile", state="absent"))
        assert host.tree() == before and "dkms" not in host.root.installed()
        assert not host.host.exists("/unloaded")


def test_a_memory_of_a_newer_release_is_refused(host: Host) -> None:
    host.journal.remember(MEMORY, {"schema": 2})
    with pytest.raises(GpuOpsError) as failed:
        host.run_of(OLD)
    assert failed.value.code == "driver.runfile_memory_of_a_newer_release"
