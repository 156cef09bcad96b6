# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver of another source, of NVIDIA's installer or of a container goes for packages: with the real apt and dpkg."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator, Set

import pytest
from apt_machine import NAMES, Machine
from gpu_hosts import A100, facts
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import observing, runfile
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.staging_executors import Books
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import PROGRAM, ROOT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")), reason="needs apt and gpg")
OLD, NEW = "550.163.01", "580.178.04"
BARE = facts(A100)
LOADED = BARE.but(driver_installed=OLD, driver_boots=OLD, driver_loaded=OLD, driver_userspace=OLD,
                  module_installed="open", module_loaded="open")
NEWER = LOADED.but(driver_installed=NEW, driver_boots=NEW, driver_userspace=NEW)
# A driver container has loaded its own, and there is none on the host
CONTAINED = BARE.but(driver_loaded=OLD, module_loaded="open")
POD = "8f0f5c0e-0000-4000-8000-123456789abc"
# As Debian names them: of its own, and with a name that NVIDIA's packages have, too
OF_DEBIAN = {"nvidia-open-kernel-dkms": OLD + "-2", "nvidia-smi": OLD + "-2", "nvidia-modprobe": OLD + "-1"}
OF_NVIDIA = dict.fromkeys(NAMES, NEW + "-1")
# What nvidia-uninstall does with its list, and that it removes itself before the list
UNINSTALLER = """\
#!/bin/sh
root=$(cd "$(dirname "$0")/../../.." && pwd)
echo "$(basename "$0") $*" >> "$root/called"
sed -n 's/^1: //p' "$root/var/lib/nvidia/log" | while read -r path; do
    rm "$root$path"
    test ! -e "$root/stopped" || exit 0
done
test -e "$root/stopped" || rm -r "$root/var/lib/nvidia"
exit 0
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(running, "has_bindings", lambda host: True)
    monkeypatch.setattr(observing, "read_kernels", lambda *_words: (Kernel(LOADED.kernel, headers=True),))
    with Repository(tmp_path / "repository") as repository:
        for name, version in OF_NVIDIA.items():
            # Of this version NVIDIA's packages and Debian's cannot be there together
            build(repository.directory, name, version, conflicts="nvidia-smi" if name == "nvidia-driver-cuda" else "")
        for name, version in OF_DEBIAN.items():
            build(repository.directory, name, version)
        repository.publish()
        root = Root(tmp_path / "host")
        root.trust(repository)
        entry = root.path / "etc/apt/sources.list.d/other.list"
        entry.write_text(entry.read_text().replace("127.0.0.1", "localhost"))
        root.apt("update")
        yield Machine(root, repository)


def installed(machine: Machine) -> "dict[str, str]":
    return {name: version for name, version in machine.root.installed().items() if name in {*OF_DEBIAN, *OF_NVIDIA}}


def by_installer(machine: Machine, *more: str) -> None:
    """NVIDIA's installer has put a driver there."""
    paths = [runfile.UNINSTALLER, "/usr/bin/nvidia-smi", *more]
    for path in paths[1:]:
        machine.host.write(path, "")
    machine.host.write(runfile.UNINSTALLER, UNINSTALLER, mode=0o755)
    machine.host.write(runfile.LIST, "1.0-55016301 (%s)\nNVIDIA Accelerated Graphics Driver\n" % OLD
                       + "".join("1: %s\n123\n" % path for path in paths), mode=0o600)


class TestAnotherSource:
    def test_goes_in_the_transaction_that_brings_the_wanted_one(self, machine: Machine) -> None:
        machine.root.install(*map("=".join, OF_DEBIAN.items()))
        (refusal,) = machine.plan(LOADED, version=NEW).refusals
        assert refusal.code == "driver.packages_of_another_source" and "`migrate`" in refusal.remedy
        plan = machine.plan(LOADED, version=NEW, migrate=True)
        (step,) = [step for step in plan.steps if step.action == "packages.install"]
        before, after = step.change["before"], step.change["after"]
        there = installed(machine)
        machine.apply(plan)
        assert {name: version for name, version in before.items() if version} == there
        assert {name: version for name, version in after.items() if version} == installed(machine) == OF_NVIDIA

    def test_comes_back_where_its_driver_was_in_use(self, machine: Machine) -> None:
        machine.root.install(*map("=".join, OF_DEBIAN.items()))
        plan = machine.plan(LOADED, version=NEW, migrate=True)
        (way,) = plan.returns_to.values()
        assert (way["version"], way["how"], way["source"]) == (OLD, "archive", "distribution")
        machine.apply(plan)
        machine.apply(machine.plan(NEWER, state="rolled_back"))
        assert installed(machine) == OF_DEBIAN

    def test_is_not_touched_where_the_exchange_is_put_off(self, machine: Machine) -> None:
        machine.root.install(*map("=".join, OF_DEBIAN.items()))
        machine.apply(machine.plan(LOADED, version=NEW, migrate=True), Disruption.service_restart)
        assert installed(machine) == OF_DEBIAN


class TestTheOtherModuleOfDebians:
    SET = ("nvidia-smi", "libcuda1", "nvidia-persistenced", "nvidia-modprobe")
    OPEN, PROPRIETARY = ("nvidia-open-kernel-dkms", "nvidia-open-kernel-support"), (
        "nvidia-kernel-dkms", "nvidia-kernel-support")
    LOG = "/var/lib/dkms/nvidia-current-open/%s/build/make.log" % OLD
    FAULT = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"

    def offer(self, machine: Machine, builds: bool) -> None:
        for name in self.SET:
            build(machine.repository.directory, name, OLD + "-2")
        for source, support in (self.OPEN, self.PROPRIETARY):
            fails = source in self.OPEN and not builds
            build(machine.repository.directory, source, OLD + "-2", depends=support,
                  scripts={"postinst": "exit 10"} if fails else {})
            build(machine.repository.directory, support, OLD + "-2")
        machine.repository.publish()
        machine.root.apt("update")

    def there(self, machine: Machine) -> Set[str]:
        return set(machine.root.installed()).intersection((*self.OPEN, *self.PROPRIETARY))

    @pytest.mark.parametrize("first, second", [("open", "proprietary"), ("proprietary", "open")])
    def test_leaves_for_the_wanted_one(self, machine: Machine, first: str, second: str) -> None:
        self.offer(machine, True)
        for wanted in (first, second):
            machine.apply(machine.plan(BARE, source="distribution", version="550", kernel_module=wanted,
                                       repository_url="", repository_key=""))
            assert self.there(machine) == set(self.OPEN if wanted == "open" else self.PROPRIETARY)

    def test_leaves_also_where_it_did_not_build(self, machine: Machine) -> None:
        """As on Debian 13, whose open module no longer does: at first there is no DKMS to build it ahead with."""
        self.offer(machine, False)
        wanted = {"source": "distribution", "version": "550", "repository_url": "", "repository_key": ""}
        plan = machine.plan(BARE, kernel_module="open", **wanted)
        (step,) = [step for step in plan.steps if step.action == "packages.install"]
        assert Books().failed(machine.host, step) == ""
        with pytest.raises(AssertionError, match="exit status 10"):
            machine.apply(plan)
        machine.host.write(self.LOG, "CC [M] nvidia/nv-pci.o\n%s\n" % self.FAULT)
        assert Books().failed(machine.host, step) == \
            "nvidia-open-kernel-dkms not configured; the build that failed last: %s: %s" % (self.LOG, self.FAULT)
        machine.apply(machine.plan(BARE, kernel_module="proprietary", **wanted))
        assert self.there(machine) == set(self.PROPRIETARY)
        again = machine.plan(BARE, kernel_module="proprietary", **wanted)
        assert [step.action for step in again.steps] == ["dkms.build"], "which is nothing real here"


class TestTheInstallers:
    def test_goes_before_packages_come(self, machine: Machine) -> None:
        by_installer(machine)
        (refusal,) = machine.plan(LOADED, version=NEW).refusals
        assert refusal.code == "driver.files_of_no_package" and "`migrate`" in refusal.remedy
        plan = machine.plan(LOADED, version=NEW, migrate=True)
        actions = [step.action for step in plan.steps]
        assert actions.index("packages.download") < actions.index(runfile.REMOVE) < actions.index("packages.install")
        machine.apply(plan)
        assert machine.host.read("/called") == "nvidia-uninstall --silent --skip-module-unload\n"
        assert installed(machine) == OF_NVIDIA
        assert not any(map(machine.host.exists, (runfile.UNINSTALLER, runfile.LIST, runfile.COPY)))

    def test_that_was_stopped_in_its_removal_goes_with_the_next_run(self, machine: Machine) -> None:
        """Its own program is gone by then."""
        by_installer(machine)
        machine.host.write("/stopped", "")
        with pytest.raises(GpuOpsError) as failed:
            machine.apply(machine.plan(LOADED, version=NEW, migrate=True))
        assert failed.value.code == "driver.runfile_not_removed" and "/usr/bin/nvidia-smi" in failed.value.found
        assert not machine.host.exists(runfile.UNINSTALLER) and installed(machine) == {}
        machine.host.remove("/stopped")
        machine.host.write("/var/lib/nvidia/log", "1.0-55016301 (%s)\nNVIDIA\n1: /usr/bin/nvidia-smi\n1\n" % OLD)
        machine.apply(machine.plan(LOADED, version=NEW, migrate=True))
        assert installed(machine) == OF_NVIDIA and not machine.host.exists(runfile.COPY)

    def test_whose_removal_was_stopped_at_its_very_end_is_over_with_the_next_run(self, machine: Machine) -> None:
        machine.host.write(runfile.COPY, "#!/bin/sh\n", mode=0o700)
        machine.apply(machine.plan(LOADED, version=NEW, migrate=True))
        assert installed(machine) == OF_NVIDIA and not machine.host.exists(runfile.COPY)

    def test_that_leaves_a_file_has_it_named(self, machine: Machine) -> None:
        by_installer(machine)
        library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
        machine.host.write(library, "")
        with pytest.raises(GpuOpsError) as failed:
            machine.apply(machine.plan(LOADED, version=NEW, migrate=True))
        assert failed.value.code == "driver.runfile_not_removed" and library in failed.value.found
        assert installed(machine) == {}

    @pytest.mark.parametrize(("first", "told"), [
        ("1.0-58017804 (580.178.04)", "580.178.04"), ("580.178.04", "580.178.04"), ("", "unknown")])
    def test_version_is_read_from_its_list(self, machine: Machine, first: str, told: str) -> None:
        by_installer(machine)
        machine.host.write(runfile.LIST, first + "\n")
        assert runfile.version(machine.host) == told

    def test_without_its_program_is_nothing_that_could_be_removed(self, machine: Machine) -> None:
        by_installer(machine)
        machine.host.remove(runfile.UNINSTALLER)
        assert runfile.version(machine.host) == ""


class TestAContainers:
    @pytest.fixture(autouse=True)
    def container(self, machine: Machine) -> None:
        """The GPU Operator's: its pod runs, and its file system is mounted."""
        machine.host.write("/proc/self/mountinfo", "906 30 0:212 / %s rw shared:4 - overlay overlay rw\n" % ROOT)
        machine.host.write(PROGRAM, "#!/bin/bash\n")
        pod = "gpu-operator_nvidia-driver-daemonset-7xk2p_" + POD
        machine.host.write("/var/log/pods/%s/nvidia-driver-ctr/0.log" % pod, "")
        machine.host.write("/proc/812/cgroup", "0::/kubepods/besteffort/pod%s/1f2e\n" % POD)

    def ends(self, machine: Machine) -> None:
        """Its pod is killed."""
        machine.host.remove("/proc/812/cgroup")

    @pytest.mark.parametrize("state", ["present", "staged"])
    def test_is_left_to_it_where_nobody_wants_another(self, machine: Machine, state: str) -> None:
        (refusal,) = machine.plan(CONTAINED, version=NEW, state=state).refusals
        assert refusal.code == "driver.of_a_container" and refusal.option == "migrate"
        assert "%s is loaded" % OLD in refusal.found and "gpu-operator/nvidia-driver-daemonset-7xk2p" in refusal.found
        assert "DaemonSet nvidia-driver-daemonset" in refusal.found and ROOT in refusal.found
        assert "nvidia.com/gpu.deploy.operands=false" in refusal.remedy

    def test_goes_once_packages_are_fetched_and_its_pod_is_gone(self, machine: Machine) -> None:
        staged = machine.plan(CONTAINED, version=NEW, state="staged", migrate=True)
        assert {step.disruption for step in staged.steps} == {Disruption.none}
        machine.apply(staged)
        (refusal,) = machine.plan(CONTAINED, version=NEW, migrate=True).refusals
        assert refusal.code == "host.driver_container_at_work" and installed(machine) == {}
        self.ends(machine)
        plan = machine.plan(CONTAINED, version=NEW, migrate=True)
        assert "packages.download" not in {step.action for step in plan.steps}
        (way,) = plan.returns_to.values()
        assert (way["how"], "driver container" in way["why"]) == ("none", True)
        machine.apply(plan)
        assert installed(machine) == OF_NVIDIA

    def test_that_was_killed_is_still_left_where_nobody_wants_another(self, machine: Machine) -> None:
        """A boot, or the one who runs it, may bring it back."""
        self.ends(machine)
        (refusal,) = machine.plan(CONTAINED, version=NEW).refusals
        assert refusal.code == "driver.of_a_container" and "nothing of it runs" in refusal.found

    def test_file_system_says_nothing_once_packages_have_come(self, machine: Machine) -> None:
        """A run that was stopped before it was unmounted goes on."""
        self.ends(machine)
        machine.apply(machine.plan(CONTAINED, version=NEW, migrate=True))
        plan = machine.plan(NEWER.but(driver_loaded=OLD), version=NEW)
        assert not plan.refusals and {step.action for step in plan.steps} <= {"dkms.build"}

    def test_where_it_ended_as_it_was_told_to_the_host_is_a_bare_one(self, machine: Machine) -> None:
        self.ends(machine)
        machine.host.write("/proc/self/mountinfo", "")
        plan = machine.plan(BARE, version=NEW)
        assert not plan.refusals and not plan.returns_to

    def test_has_no_way_back(self, machine: Machine) -> None:
        self.ends(machine)
        machine.apply(machine.plan(CONTAINED, version=NEW, migrate=True))
        (refusal,) = machine.plan(NEWER, state="rolled_back").refusals
        assert refusal.code == "driver.no_record"
