# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real dpkg, killed while it unpacks a driver's package: every way from there ends where an undisturbed one ends."""
from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import CONTROLLER_ACTIONS, packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import ARGUMENTS, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import provenance, torn
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database, running
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

KERNEL = "6.1.0-50-amd64"
OLD, NEW = "580.178.04", "595.91.07"
FACTS = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel=KERNEL, boot_kernel=KERNEL,
                  gpus=(Gpu("0000:01:00.0", "20b2"),), driver_loaded=OLD)
MODULE = "nvidia-kernel-open-dkms"
BOOKS = Provenance()
# In the place of dpkg-deb: dpkg is killed when it has got a part of the package's files
KILLER = """#!/bin/sh
case "$*" in
*--fsys-tarfile*{victim}*) /usr/bin/dpkg-deb "$@" | head -c {size}; sleep 0.3; kill -9 $PPID ;;
*) exec /usr/bin/dpkg-deb "$@" ;;
esac
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Repository]:
    """Two drivers whose packages have files of their version's own names."""
    with Repository(tmp_path / "driver") as running_repository:
        for version in (OLD, NEW):
            for name, depends in (
                (MODULE, "dkms"), ("nvidia-persistenced", ""), ("nvidia-modprobe", ""),
                ("nvidia-driver-cuda", "libcuda1 (= %s-1)" % version), ("libcuda1", ""),
            ):
                files = {"usr/src/%s-%s/%d.c" % (name, version, number): b"x" * 20000 for number in range(9)}
                build(running_repository.directory, name, version + "-1", depends=depends, files=files)
        build(running_repository.directory, "dkms", "3")
        build(running_repository.directory, "tool-of-his", "1")
        (running_repository.directory / "key.asc").write_text(running_repository.key.public)
        running_repository.publish()
        yield running_repository


@pytest.fixture
def host(root: Root, driver: Repository, monkeypatch: pytest.MonkeyPatch) -> "Host":
    monkeypatch.setenv("DPKG_FORCE", "downgrade,not-root,script-chrootless")
    return Host(root, driver)


class Host:
    """A scratch host, and our runs on it."""

    def __init__(self, root: Root, driver: Repository) -> None:
        self.root = root
        self.driver = driver
        modules = root.path / "lib/modules" / KERNEL
        for directory in ("build", "kernel"):
            (modules / directory).mkdir(parents=True)
        (modules / "build/Makefile").touch()

    def planned(self, version: str = OLD, state: str = "present") -> Plan:
        given: Dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}
        given.update(version=version, state=state, kernel_headers=False, hold=False, repository_url=self.driver.url,
                     repository_key=self.driver.url + "key.asc",
                     repository_key_fingerprint=self.driver.key.fingerprint)
        wanted = policy_of(given)
        return planner.plan(observe(self.root.host, Journal(self.root.host), wanted, FACTS), wanted, FACTS)

    def run(self, version: str = OLD, state: str = "present", victim: str = "") -> List[str]:
        """The package steps of a run: what was done. victim: beginning of the file name at which dpkg is killed."""
        self.account()
        plan = self.planned(version, state)
        assert not plan.refusals, plan.refusals
        done = []
        for step in plan.steps:
            if step.action in ("file.write", "file.remove") and "gpuops" in step.subject:
                # apt takes the path of a key as it stands
                text = (step.change["after"] or "").replace("Signed-By: /", "Signed-By: %s/" % self.root.path)
                self.root.host.write(step.subject, text)
                continue
            elif step.action == torn.ACTION:
                torn.unpack(self.root.host, Journal(self.root.host), step)
            elif step.action in ("dpkg.configure", "dpkg.finish"):
                words = [*running.dpkg(self.root.host), "--configure", "-a"]
                assert self.root.host.run(words, check=False).rc == 0 or step.action == "dpkg.configure"
            elif step.action in CONTROLLER_ACTIONS:
                self._transact(step, victim)
            else:
                continue
            done.append(step.action)
            if victim and step.action in CONTROLLER_ACTIONS:
                return done
        left = self.planned(version, state)
        assert [step.id for step in left.steps if step.action.startswith(("dpkg.", "packages."))] == []
        return done

    def _transact(self, step: Step, victim: str) -> None:
        host = self.root.host
        time.sleep(1.1)  # transactions are told apart by the second of their beginning
        opened = BOOKS.opened(host, step)
        Journal(host).note("started", step, "plan", policy="p", transaction=opened)
        words = ["--purge", "remove", *sorted(step.parameters["request"])] if step.action == "packages.remove" else \
            install_words(step.parameters["request"], step.parameters.get("allow_downgrade", False))
        ended = self.root.apt(*self._killing(victim), *words, check=False)
        assert (ended.returncode == 0) != bool(victim), ended.stdout + ended.stderr
        if not victim:
            self.account()
            assert {name: self.root.installed().get(name) for name in step.change["after"]} == step.change["after"]

    def _killing(self, victim: str) -> Sequence[str]:
        if not victim:
            return ()
        directory = self.root.path / "tmp/killer"
        directory.mkdir(exist_ok=True)
        (directory / "dpkg-deb").write_text(KILLER.format(victim=victim, size=100000))
        (directory / "dpkg-deb").chmod(0o755)
        return "-o", "DPkg::Path=%s:/usr/sbin:/usr/bin:/sbin:/bin" % directory

    def account(self) -> None:
        """As a run begins: what an earlier one has left open is booked."""
        journal = Journal(self.root.host)
        for event in journal.unfinished("driver"):
            step = Step.from_dict(event["step"])
            BOOKS.settle(self.root.host, journal, step, event["transaction"])
            packages = self.root.packages()
            if not any(packages[name].unfinished for name in step.change["after"] if name in packages):
                journal.note("done", step, "plan")

    def torn(self) -> List[str]:
        return sorted(name for name, package in self.root.packages().items() if package.torn)

    def sources(self) -> List[str]:
        """Everything below /usr/src: what packages leave behind is seen there."""
        return sorted(str(path.relative_to(self.root.path)) for path in (self.root.path / "usr").rglob("*"))

    def ours(self) -> Dict[str, str]:
        return provenance.installed_by_us(self.root.host, Journal(self.root.host), "driver", self.root.packages())


def undisturbed(host: Host, version: str) -> Dict[str, str]:
    return dict.fromkeys(("libcuda1", "nvidia-driver-cuda", MODULE, "nvidia-modprobe", "nvidia-persistenced"),
                         version + "-1")


def step_of(plan: Plan, action: str) -> Optional[Step]:
    return next((step for step in plan.steps if step.action == action), None)


@pytest.mark.parametrize("first, then, victim, wanted", [
    (OLD, NEW, MODULE, "that before"),
    pytest.param(NEW, OLD, "libcuda1", "that before", marks=pytest.mark.variation),
    pytest.param(NEW, OLD, MODULE, "that which came", marks=pytest.mark.variation),
    pytest.param(OLD, NEW, "libcuda1", "that which came", marks=pytest.mark.variation),
])
def test_an_exchange_of_drivers_that_was_stopped(host: Host, first: str, then: str, victim: str, wanted: str) -> None:
    host.run(first)
    before = host.sources()
    host.run(then, victim=victim)
    assert host.torn() == [victim] and host.root.packages()[victim].version == first + "-1"
    assert host.sources() != before
    end = first if wanted == "that before" else then
    approved = host.planned(end)
    host.account()
    assert differences(host.planned(end), approved) == (), "what a run books before it plans makes no other plan"
    done = host.run(end)
    assert ("dpkg.unpack" in done) == (wanted == "that before")
    assert host.root.installed() == {**undisturbed(host, end), "dkms": "3"}
    assert host.ours() == host.root.installed()
    assert host.sources() == [name.replace(first, end) for name in before], "of the other version nothing is left"
    host.run(end, state="absent")
    assert (host.root.installed(), host.ours()) == ({}, {})


@pytest.mark.parametrize("upgrade", [pytest.param(False, marks=pytest.mark.variation), True])
def test_an_uninstall_after_a_stopped_transaction_leaves_nothing(host: Host, upgrade: bool) -> None:
    before = host.sources()
    if upgrade:
        host.run(OLD)
    host.run(NEW if upgrade else OLD, victim=MODULE)
    assert host.torn() == [MODULE] and host.sources() != before
    assert host.run(state="absent")[0] == "dpkg.unpack"
    assert host.root.packages() == {}
    assert host.sources() == before


def test_the_plan_names_package_and_version_and_what_it_disturbs(host: Host) -> None:
    host.run(OLD)
    host.run(NEW, victim=MODULE)
    step = step_of(host.planned(OLD), "dpkg.unpack")
    assert step is not None and step.change == {"before": {MODULE: "torn"}, "after": {MODULE: NEW + "-1"}}
    assert step.disruption is Disruption.driver_reload
    transaction = step_of(host.planned(OLD), "packages.install")
    assert transaction is not None and transaction.change["before"][MODULE] == NEW + "-1"
    assert transaction.change["after"][MODULE] == OLD + "-1"


def tear(root: Root, *names: str) -> None:
    """As dpkg writes it when it begins to unpack a package over another version of it."""
    status = root.path / "var/lib/dpkg/status"
    stanzas = status.read_text().split("\n\n")
    status.write_text("\n\n".join(
        stanza.replace("Status: install ok installed", "Status: install reinstreq half-installed")
        if any(stanza.startswith("Package: %s\n" % name) for name in names) else stanza for stanza in stanzas))
    assert sorted(name for name, package in root.packages().items() if package.torn) == sorted(names)


@pytest.mark.variation
def test_several_at_once_of_which_one_needs_the_other(host: Host) -> None:
    host.run(OLD)
    tear(host.root, "libcuda1", "nvidia-driver-cuda", "dkms", MODULE)
    assert host.run(OLD) == ["dpkg.unpack", "dpkg.finish"]
    assert host.root.installed() == host.ours() == {**undisturbed(host, OLD), "dkms": "3"}


def test_what_else_is_ours_goes_while_a_driver_is_half_of_one_version_and_half_of_another(host: Host) -> None:
    host.run(OLD)
    host.root.install("tool-of-his")
    half = host.driver.directory / ("nvidia-driver-cuda_%s-1_all.deb" % NEW)
    host.root.host.run([*running.dpkg(host.root.host), "--unpack", str(half)])
    assert "nmet dependencies" in host.root.apt("-y", "remove", "tool-of-his", check=False).stderr
    left = torn.unfinished(host.root.host, Journal(host.root.host), host.root.packages())
    step = packages_step(
        "toolkit", "a tool", {"tool-of-his": "1"}, {"tool-of-his": None}, "a test", manager="apt", purge=True,
        request={"tool-of-his": "1"}, **torn.removal_parameters(left.broken, left.ours, ["tool-of-his"]))
    assert APT.builtin_module(step.to_dict()) == "command"
    options = APT.builtin_options(step.to_dict())
    assert options is not None
    host.root.host.run([*running.dpkg(host.root.host), *options["argv"][1:]])
    assert "tool-of-his" not in host.root.installed()
    assert host.run(NEW) == ["dpkg.configure", "packages.install"]


@pytest.mark.parametrize("state", ["present", pytest.param("absent", marks=pytest.mark.variation)])
def test_a_torn_package_of_somebody_else_is_refused_before_anything_changes(host: Host, state: str) -> None:
    host.run(OLD)
    host.root.install("tool-of-his")
    tear(host.root, "tool-of-his", "libcuda1")
    plan = host.planned(NEW, state)
    assert plan.steps == () and "tool-of-his" in plan.refusals[0].found and "libcuda1" not in plan.refusals[0].found
    assert "apt-get install --reinstall tool-of-his" in plan.refusals[0].remedy


def withdraw(host: Host, *names: str) -> None:
    for name in names:
        for path in host.driver.directory.glob(name + "_*"):
            path.unlink()
    host.driver.publish()


@pytest.mark.variation
def test_what_apt_has_kept_serves_where_no_source_has_it_any_more(host: Host) -> None:
    host.run(OLD)
    tear(host.root, "libcuda1")
    withdraw(host, "libcuda1")
    assert host.run(OLD) == ["dpkg.unpack", "dpkg.finish"]
    assert host.root.installed()["libcuda1"] == OLD + "-1"


@pytest.mark.parametrize("kept", [pytest.param(False, marks=pytest.mark.variation), True])
def test_what_cannot_be_had_any_more_is_told_and_still_can_be_uninstalled(host: Host, kept: bool) -> None:
    """kept: apt's file is there and empty, as after a power cut."""
    host.run(OLD)
    tear(host.root, "libcuda1")
    withdraw(host, "libcuda1")
    for path in (host.root.path / "var/cache/apt/archives").glob("libcuda1_*.deb"):
        path.unlink()
        if kept:
            path.touch()
    plan = host.planned(OLD)
    if kept:
        step = step_of(plan, "dpkg.unpack")
        assert step is not None
        with pytest.raises(GpuOpsError, match="no package file of libcuda1 580.178.04-1 can be had"):
            torn.unpack(host.root.host, Journal(host.root.host), step)
    else:
        assert plan.steps == () and "libcuda1 580.178.04-1" in plan.refusals[0].found
        assert "put its .deb into /var/cache/apt/archives" in plan.refusals[0].remedy
    assert host.run(state="absent")[0] == "dpkg.unpack"
    assert host.root.packages() == {}


@pytest.mark.variation
def test_what_somebodys_package_needs_is_not_taken_away_by_force(host: Host) -> None:
    """It stays, so it has to be unpacked; where it cannot be had, nothing is taken away."""
    host.run(OLD)
    build(host.driver.directory, "builder", "1", depends="dkms")
    host.driver.publish()
    host.root.apt("update")
    host.root.install("builder")
    tear(host.root, "dkms", "libcuda1")
    withdraw(host, "dkms", "libcuda1")
    for path in (host.root.path / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    before = host.root.packages()
    with pytest.raises(GpuOpsError, match="no package file of dkms 3 can be had") as refused:
        host.run(state="absent")
    assert refused.value.code == "packages.torn_and_not_fetched" and host.root.packages() == before
    build(host.root.path / "var/cache/apt/archives", "dkms", "3")
    assert host.run(state="absent")[0] == "dpkg.unpack"
    assert host.root.installed() == {"builder": "1", "dkms": "3"}


def test_what_dpkg_alone_leaves_for_ever(host: Host) -> None:
    """Why apt and dpkg --configure -a do not do."""
    host.run(OLD)
    tear(host.root, "libcuda1")
    subprocess.run([*running.dpkg(host.root.host), "--configure", "-a"], check=True, capture_output=True)
    host.root.install("libcuda1=%s-1" % OLD)
    assert host.torn() == ["libcuda1"]
    assert host.root.apt("--purge", "remove", "libcuda1", check=False).returncode != 0


@pytest.mark.variation
def test_apt_is_shown_the_database_as_dpkg_has_it(host: Host) -> None:
    """A killed dpkg leaves what it has done beside its database, and apt reads that alone."""
    host.run(OLD)
    host.run(NEW, victim=MODULE)
    assert database.interrupted(host.root.host)
    there = {name: package.version for name, package in host.root.packages().items()}
    scratch = host.root.path / "tmp/status"
    scratch.write_text(database.status(host.root.host, {}))
    listed = subprocess.run(
        ["apt-cache", *database.own(host.root.host), "-o", "Dir::State::status=%s" % scratch, "policy", *there],
        capture_output=True, text=True, check=True).stdout
    told = dict(zip([line[:-1] for line in listed.splitlines() if line.endswith(":") and line[0] != " "],
                    [line.split()[1] for line in listed.splitlines() if line.startswith("  Installed:")]))
    assert told == there
