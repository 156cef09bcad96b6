# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules that Ubuntu has built and signed, and the hold of the kernel, with real apt and dpkg on a scratch root."""
from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest
from driver_world import policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import observing, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import EXECUTORS
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import KERNEL_FILE, PIN_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

sys.path.append(str(Path(__file__).parents[1] / "packages"))
from scratch_apt import Repository, Root, build  # noqa: E402

needs_apt = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")), reason="needs apt and gpg")
OLD, FITTING, NEWEST = "580.126.09", "580.178.04", "580.186.00"
# The kernel that runs, and the one that Ubuntu has meanwhile
RUNNING, NEXT = "6.8.0-90-generic", "6.8.0-95-generic"
SERIES, PROPRIETARY = "580-server-open", "580-server"
MODULES, PROPRIETARY_MODULES = ("linux-modules-nvidia-%s-" % series for series in (SERIES, PROPRIETARY))
UBUNTU = facts(A100, os_id="ubuntu", os_version="24.04", kernel=RUNNING, boot_kernel=RUNNING)


def revision(driver: str) -> str:
    return driver + "-0ubuntu0.24.04.1"


def lower_bound(driver: str) -> str:
    """All that modules of the proprietary kind, and what follows kernels of either, say of their driver."""
    return "nvidia-kernel-common-580-server (>= %s)" % driver


def bounds(driver: str) -> str:
    return "nvidia-kernel-common-580-server (<= %s-1), %s" % (driver, lower_bound(driver))


def archive(directory: Path) -> None:
    """What Ubuntu's archive has, small: user space of three drivers, modules of two of them, two kernels."""
    for driver in (OLD, FITTING, NEWEST):
        version = revision(driver)
        common = "nvidia-kernel-common-580-server (= %s)" % version
        for name, depends in (
                ("nvidia-kernel-common-580-server", ""), ("libnvidia-compute-580-server", ""),
                ("nvidia-utils-580-server", "libnvidia-compute-580-server (= %s)" % version),
                ("nvidia-headless-no-dkms-" + PROPRIETARY, "libnvidia-compute-580-server (= %s), %s" % (
                    version, common)),
                ("nvidia-dkms-" + SERIES, "dkms, " + common),
                ("nvidia-headless-no-dkms-" + SERIES, "libnvidia-compute-580-server (= %s), %s" % (version, common)),
                ("nvidia-headless-" + SERIES, "nvidia-headless-no-dkms-%s (= %s), nvidia-dkms-%s (= %s)" % (
                    SERIES, version, SERIES, version))):
            build(directory, name, version, depends=depends)
    build(directory, "dkms", "3.0.11-1ubuntu13")
    for kernel, version in ((RUNNING, "6.8.0-90.91"), (NEXT, "6.8.0-95.95")):
        base = kernel.rpartition("-")[0]
        build(directory, "linux-image-" + kernel, version)
        build(directory, "linux-headers-" + base, version)
        build(directory, "linux-headers-" + kernel, version, depends="linux-headers-" + base)
        build(directory, "linux-image-generic", version, depends="linux-image-" + kernel)
        build(directory, "linux-headers-generic", version, depends="linux-headers-" + kernel)
        build(directory, "linux-generic", version, depends="linux-image-generic (= %s)" % version)
    for kernel, version, driver in ((RUNNING, "6.8.0-90.91", OLD), (RUNNING, "6.8.0-90.91+1", FITTING),
                                    (NEXT, "6.8.0-95.95", FITTING)):
        build(directory, "linux-signatures-nvidia-" + kernel, version)
        for modules, tie in ((MODULES, bounds(driver)), (PROPRIETARY_MODULES, lower_bound(driver))):
            build(directory, modules + kernel, version,
                  depends="linux-image-%s, linux-signatures-nvidia-%s (= %s), %s" % (kernel, kernel, version, tie))
            build(directory, modules + "generic", version, depends="%s%s (= %s), %s" % (
                modules, kernel, version, lower_bound(driver)))


class Machine:
    """An Ubuntu host, whose modules are those that its packages would bring."""

    def __init__(self, root: Root, repository: Repository) -> None:
        self.root, self.host, self.repository = root, root.host, repository
        self.journal = Journal(self.host)
        self.transactions: List[Step] = []

    def plan(self, there: HostFacts = UBUNTU, **changes: Any) -> Plan:
        wanted = policy(**{"source": "distribution", "version": "580", "repository_url": "", "repository_key": "",
                           **changes})
        return planner.plan(observing.observe(self.host, self.journal, wanted, there), wanted, there)

    def apply(self, plan: Plan) -> Plan:
        assert not plan.refusals, plan.refusals
        executors = {**generic_executors(), **EXECUTORS, "dkms.build": self._built, "module.verify": self._built}
        done: List[str] = []
        for step in plan.steps:
            if step.action in ("packages.install", "packages.remove"):
                self._transaction(step, done)
            else:
                executors[step.action](self.host, self.journal, step)
            done.append(step.id)
        return plan

    def _built(self, host: Host, journal: Journal, step: Step) -> None:
        (kernel,) = [kernel for kernel in self.kernels() if kernel.release == step.subject]
        assert kernel.module == step.change["after"]["nvidia"]

    def _transaction(self, step: Step, done: List[str]) -> None:
        opened = Provenance().opened(self.host, step, done)
        request = step.parameters["request"]
        if step.action == "packages.remove":
            self.root.apt("remove", "--purge", *request)
        elif APT.builtin_module(step.to_dict()) == "command":
            options = APT.builtin_options(step.to_dict())
            assert options is not None
            self.root.apt(*options["argv"][1:])
        else:
            self.root.install("--no-install-recommends", *("%s=%s" % item for item in request.items()))
        Provenance().settle(self.host, self.journal, step, opened)
        self.transactions.append(step)

    def kernels(self) -> Tuple[Kernel, ...]:
        there = self.root.installed()
        found = []
        for release in (RUNNING, NEXT):
            module = there.get("nvidia-dkms-" + SERIES, "")
            if MODULES + release in there and not module:
                module = OLD if there[MODULES + release] == "6.8.0-90.91" else FITTING
            if "linux-image-" + release in there:
                found.append(Kernel(release, "linux-headers-" + release in there, module.partition("-")[0],
                                    "Dual MIT/GPL" if module else ""))
        return tuple(found)

    def names(self) -> List[str]:
        return sorted(self.root.installed())

    def history(self) -> int:
        return (self.root.path / "var/log/apt/history.log").read_text().count("Start-Date")


@pytest.fixture(scope="module")
def ubuntu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with Repository(tmp_path_factory.mktemp("ubuntu") / "repository") as repository:
        archive(repository.directory)
        repository.publish()
        yield repository


@pytest.fixture
def machine(ubuntu: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(running, "has_bindings", lambda host: True)
    root = Root(tmp_path / "host")
    root.trust(ubuntu)
    root.apt("update")
    root.install("linux-generic=6.8.0-90.91", "linux-image-generic=6.8.0-90.91")
    made = Machine(root, ubuntu)
    monkeypatch.setattr(observing, "read_kernels", lambda *_words: made.kernels())
    return made


KERNEL = ["linux-generic", "linux-image-" + RUNNING, "linux-image-generic"]
USER_SPACE = ["libnvidia-compute-580-server", "nvidia-headless-no-dkms-" + SERIES, "nvidia-kernel-common-580-server",
              "nvidia-utils-580-server"]
SIGNED = [MODULES + RUNNING, MODULES + "generic", "linux-signatures-nvidia-" + RUNNING]
BUILT = ["dkms", "nvidia-dkms-" + SERIES, "nvidia-headless-" + SERIES]


@needs_apt
def test_signed_modules_are_installed_once_exchanged_for_dkms_and_removed(machine: Machine) -> None:
    machine.apply(machine.plan(build="precompiled"))
    assert machine.names() == sorted([*KERNEL, *USER_SPACE, *SIGNED]), "no DKMS, no headers, no other kernel"
    there = machine.root.installed()
    assert {there[name] for name in USER_SPACE} == {revision(FITTING)}, "the newest driver has no modules yet"
    assert {there[name] for name in SIGNED} == {"6.8.0-90.91+1"}
    asked = len(machine.repository.requests)
    for build_again in ("precompiled", "auto"):
        assert machine.plan(build=build_again) == Plan()
    assert len(machine.repository.requests) == asked, "a converged host asks no repository"
    before = machine.history()
    machine.apply(machine.plan(build="dkms"))
    headers = ["linux-headers-6.8.0-90", "linux-headers-" + RUNNING]
    assert not set(SIGNED).intersection(machine.names())
    assert {*KERNEL, *USER_SPACE, *BUILT, *headers} <= set(machine.names())
    assert machine.history() == before + 1, "one transaction"
    assert {machine.root.installed()[name] for name in USER_SPACE} == {revision(FITTING)}
    assert machine.plan(build="dkms") == Plan()
    machine.apply(machine.plan(build="precompiled"))
    assert machine.history() == before + 2
    assert set(SIGNED) <= set(machine.names()) and not set(BUILT[1:]).intersection(machine.names())
    machine.apply(machine.plan(state="absent"))
    assert machine.names() == KERNEL
    assert not machine.host.exists(PIN_FILE)


@needs_apt
def test_a_kernel_without_signed_modules_is_named_and_auto_builds(machine: Machine) -> None:
    other = "6.8.0-80-generic"
    there = UBUNTU.but(kernel=other, boot_kernel=other, secure_boot=True)
    kernels = (Kernel(other, headers=True),)
    machine.kernels = lambda: kernels  # type: ignore[method-assign]
    (refusal,) = machine.plan(there, build="precompiled").refusals
    assert refusal.code == "driver.no_precompiled_module" and other in refusal.found
    plan = machine.plan(there, secure_boot="ignore")
    assert "dkms.build" in [step.action for step in plan.steps]
    (refusal,) = machine.plan(there).refusals
    assert refusal.code == "driver.secure_boot_without_key"


@needs_apt
def test_modules_of_another_driver_than_the_wanted_are_named(machine: Machine) -> None:
    (refusal,) = machine.plan(build="precompiled", version=NEWEST).refusals
    assert "%s%s is of driver %s, %s for kernel" % (MODULES, RUNNING, OLD, FITTING) in refusal.found
    assert "set `version` to %s or %s" % (OLD, FITTING) in refusal.remedy


@needs_apt
def test_modules_whose_dependencies_let_newer_drivers_in_come_with_their_own(machine: Machine) -> None:
    plan = machine.plan(build="precompiled", kernel_module="proprietary")
    (coming,) = [step.change["after"] for step in plan.steps if step.action == "packages.install"]
    assert {name: coming[PROPRIETARY_MODULES + name] for name in (RUNNING, "generic")} == dict.fromkeys(
        (RUNNING, "generic"), "6.8.0-90.91+1")
    assert coming["nvidia-utils-580-server"] == coming["nvidia-kernel-common-580-server"] == revision(FITTING)
    (refusal,) = machine.plan(build="precompiled", kernel_module="proprietary", version=NEWEST).refusals
    assert "%s%s is of driver %s, %s for kernel" % (PROPRIETARY_MODULES, RUNNING, OLD, FITTING) in refusal.found


@needs_apt
def test_a_held_kernel_stays_through_an_upgrade_and_another_one_comes_once_it_is_not_held(machine: Machine) -> None:
    machine.apply(machine.plan(build="precompiled", kernel_hold=True))
    held = machine.root.installed()
    machine.root.apt("dist-upgrade")
    assert machine.root.installed() == held
    assert machine.plan(build="precompiled", kernel_hold=True) == Plan()
    assert machine.root.install("linux-image-" + NEXT, check=False).returncode != 0, "nor by its name"
    machine.root.install("linux-headers-" + RUNNING)
    machine.apply(machine.plan(build="precompiled"))
    assert not machine.host.exists(KERNEL_FILE)
    machine.root.apt("dist-upgrade")
    there = machine.root.installed()
    assert there["linux-image-generic"] == "6.8.0-95.95" and MODULES + NEXT in there
    assert there["nvidia-utils-580-server"] == revision(FITTING), "the driver is held on its own"
    machine.apply(machine.plan(state="absent"))
    assert machine.names() == sorted([*KERNEL, "linux-headers-6.8.0-90", "linux-headers-" + RUNNING,
                                      "linux-image-" + NEXT]), "nor is a module left that came with the kernel"


@needs_apt
def test_a_held_kernel_gets_its_headers_and_no_others(machine: Machine) -> None:
    machine.apply(machine.plan(build="dkms", kernel_hold=True))
    assert [name for name in machine.names() if name.startswith("linux-")] == sorted([
        *KERNEL, "linux-headers-6.8.0-90", "linux-headers-" + RUNNING])
    machine.root.apt("dist-upgrade")
    assert machine.kernels()[-1].release == RUNNING
    assert machine.plan(build="dkms", kernel_hold=True) == Plan()
