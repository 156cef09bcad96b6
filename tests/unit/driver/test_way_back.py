# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The way back to the driver before, with the real apt and dpkg on a host below a directory."""
from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from apt_machine import NAMES, Machine, trusting
from gpu_hosts import A100, facts
from scratch_apt import Repository, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import archive, observing, record
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import KEPT_SOURCES_FILE, PIN_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")), reason="needs apt and gpg")
OLD, NEW = "580.178.04", "595.91.07"
# As the epoch of a repository may be; quoted in the names of files
OLD_PACKAGE, NEW_PACKAGE = "1:580.178.04-1", "1:595.91.07-1"
LOADED = facts(A100).but(driver_installed=OLD, driver_loaded=OLD, driver_userspace=OLD, module_installed="open",
                         module_loaded="open")
NEWER = LOADED.but(driver_installed=NEW, driver_userspace=NEW)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(running, "has_bindings", lambda host: True)
    monkeypatch.setattr(observing, "read_kernels", lambda *_words: (Kernel(LOADED.kernel, headers=True),))
    with Repository(tmp_path / "repository") as repository:
        for name in NAMES:
            for version in (OLD_PACKAGE, NEW_PACKAGE):
                depends = "libnvidia-new" if (name, version) == (NAMES[1], NEW_PACKAGE) else ""
                build(repository.directory, name, version, depends=depends)
        repository.add("libnvidia-new", NEW_PACKAGE)
        made = Machine(trusting(tmp_path / "host", repository), repository)
        made.apply(made.plan(facts(A100), version=OLD))
        yield made


def test_a_driver_is_back_package_for_package_and_byte_for_byte(machine: Machine) -> None:
    before, pin = machine.driver(), machine.host.read(PIN_FILE)
    upgrade = machine.plan(LOADED, version=NEW)
    (way,) = upgrade.returns_to.values()
    assert (way["version"], way["how"]) == (OLD, "archive")
    actions = [step.action for step in upgrade.steps]
    assert actions.index("driver.record") < actions.index("packages.install")
    machine.apply(upgrade)
    assert machine.driver() == dict.fromkeys([*NAMES, "libnvidia-new"], NEW_PACKAGE)
    machine.apply(machine.plan(NEWER, state="rolled_back"))
    assert machine.driver() == before and machine.host.read(PIN_FILE) == pin
    assert not machine.host.exists(KEPT_SOURCES_FILE)


def test_it_is_back_without_a_repository_and_after_apt_was_cleaned(machine: Machine) -> None:
    before = machine.driver()
    machine.apply(machine.plan(LOADED, version=NEW))
    machine.root.apt("clean")
    machine.repository.__exit__()
    plan = machine.plan(NEWER, state="rolled_back")
    machine.apply(plan)
    assert machine.driver() == before
    assert not [name for name in machine.host.list("/var/lib/apt/lists") if "gpuops" in name]
    again = machine.plan(LOADED, state="rolled_back")
    assert not again.refusals and [step.action for step in again.steps] in ([], ["dkms.build"])


def test_packages_that_nobody_has_are_named_before_and_after_the_exchange(machine: Machine) -> None:
    machine.root.apt("clean")
    for name in machine.host.list(archive.STORE):
        machine.host.remove("%s/%s" % (archive.STORE, name))
    for path in machine.repository.directory.glob("nvidia-modprobe_1%3a580*"):
        path.unlink()
    machine.repository.publish()
    upgrade = machine.plan(LOADED, version=NEW)
    (way,) = upgrade.returns_to.values()
    assert way["how"] == "none" and "nvidia-modprobe=%s" % OLD_PACKAGE in way["why"] and NAMES[0] not in way["why"]
    machine.apply(upgrade)
    (refusal,) = machine.plan(NEWER, state="rolled_back").refusals
    assert refusal.code == "driver.no_way_back" and "nvidia-modprobe=%s" % OLD_PACKAGE in refusal.found


def test_a_transaction_that_failed_half_way_is_taken_back(machine: Machine) -> None:
    """dpkg leaves the module's package half configured where its script fails, as where a module does not build."""
    before = machine.driver()
    plan = machine.plan(LOADED, version=NEW)
    for path in machine.repository.directory.glob(NAMES[0] + "_1%3a595*"):
        path.unlink()
    machine.repository.add(NAMES[0], NEW_PACKAGE, scripts={"postinst": "exit 10"})
    for name in machine.host.glob("/var/cache/apt/archives/%s_1%%3a595*" % NAMES[0]):
        machine.host.remove(name)
    with pytest.raises(AssertionError):
        machine.apply(plan)
    assert [name for name, package in machine.root.packages().items() if package.unfinished]
    machine.apply(machine.plan(LOADED, state="rolled_back"))
    assert machine.driver() == before
    assert not [name for name, package in machine.root.packages().items() if package.unfinished]


@pytest.mark.variation
def test_what_is_kept_is_of_two_drivers_at_most(machine: Machine) -> None:
    def versions() -> List[str]:
        return sorted({name.split("_")[1] for name in archive.kept(machine.host)})

    machine.apply(machine.plan(LOADED, version=NEW))
    assert versions() == ["1%3a580.178.04-1", "1%3a595.91.07-1"]
    for name in NAMES:
        build(machine.repository.directory, name, "1:610.57.04-1")
    machine.repository.publish()
    loaded = NEWER.but(driver_loaded=NEW)
    machine.apply(machine.plan(loaded, version="610.57.04"))
    assert versions() == ["1%3a595.91.07-1", "1%3a610.57.04-1"]


def test_what_is_kept_and_the_record_go_with_the_driver(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    machine.apply(machine.plan(NEWER, state="absent"))
    assert record.read(machine.journal) is None
    assert not machine.host.exists("/var/cache/gpuops") and machine.driver() == {}


@pytest.mark.variation
def test_a_kept_file_that_is_gone_when_apt_is_told_of_it_is_an_error(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    plan = machine.plan(NEWER, state="rolled_back")
    machine.root.apt("clean")
    for name in archive.kept(machine.host):
        machine.host.remove("%s/%s" % (archive.STORE, name))
    with pytest.raises(GpuOpsError) as failed:
        machine.apply(plan)
    assert failed.value.code == "driver.archive_lost" and not machine.host.exists(KEPT_SOURCES_FILE)


def test_a_record_of_a_newer_release_is_not_guessed_at(tmp_path: Path) -> None:
    journal = Journal(Host(str(tmp_path)))
    journal.remember(record.MEMORY, {"schema": 3})
    with pytest.raises(GpuOpsError) as failed:
        record.read(journal)
    assert failed.value.code == "driver.record_of_a_newer_release"


def cut(machine: Machine, length: int) -> None:
    """What a power cut leaves of files that had not reached the disk; apt has forgotten its own, and a network is no
    more."""
    machine.root.apt("clean")
    machine.repository.__exit__()
    for name in archive.kept(machine.host):
        os.truncate(machine.host.path("%s/%s" % (archive.STORE, name)), length)


@pytest.mark.parametrize("length", [pytest.param(0, marks=pytest.mark.variation), 400])
def test_files_that_were_cut_short_are_no_way_back(machine: Machine, length: int) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    cut(machine, length)
    assert archive.kept(machine.host) == ()
    (refusal,) = machine.plan(NEWER, state="rolled_back").refusals
    assert refusal.code == "driver.no_way_back" and "nvidia-modprobe=%s" % OLD_PACKAGE in refusal.found


def test_files_that_were_cut_short_are_kept_again_with_the_next_change(machine: Machine) -> None:
    for name in archive.kept(machine.host):
        whole = machine.host.path("/var/cache/apt/archives/" + name)
        shutil.copy(whole, whole + ".new")
        os.replace(whole + ".new", whole)
        os.truncate(machine.host.path("%s/%s" % (archive.STORE, name)), 0)
    machine.apply(machine.plan(LOADED, version=NEW))
    assert len(archive.kept(machine.host)) == 2 * len(NAMES) + 1


@pytest.mark.variation
def test_a_kept_file_that_cannot_be_unpacked_stops_the_way_back_before_the_transaction(machine: Machine) -> None:
    """Zeros in the middle of a file: dpkg would find them with half of the former driver gone."""
    machine.apply(machine.plan(LOADED, version=NEW))
    machine.root.apt("clean")
    before = machine.driver()
    (name,) = [each for each in archive.kept(machine.host) if each.startswith("nvidia-modprobe_1%3a580")]
    path = Path(machine.host.path("%s/%s" % (archive.STORE, name)))
    data = path.read_bytes()
    path.write_bytes(data[:-200] + bytes(200))
    with pytest.raises(GpuOpsError) as failed:
        machine.apply(machine.plan(NEWER, state="rolled_back"))
    assert failed.value.code == "driver.archive_lost" and "nvidia-modprobe" in failed.value.found
    assert machine.driver() == before
    machine.apply(machine.plan(NEWER, state="rolled_back"))
    assert set(machine.driver().values()) == {OLD_PACKAGE}, "what is lost comes from the repository"


@pytest.mark.variation
def test_a_fetched_file_that_cannot_be_unpacked_is_fetched_anew_once_the_transaction_has_failed(
    machine: Machine
) -> None:
    """apt takes what has the right size for what it would fetch."""
    upgrade = machine.plan(LOADED, version=NEW)
    fetched = next(number for number, step in enumerate(upgrade.steps, 1) if step.action == "packages.download")
    machine.apply(replace(upgrade, steps=upgrade.steps[:fetched]))
    for directory in (archive.STORE, "/var/cache/apt/archives"):
        (path,) = Path(machine.host.path(directory)).glob("nvidia-modprobe_*%s*" % NEW)
        data = path.read_bytes()
        if data[-200:] != bytes(200):
            path.write_bytes(data[:-200] + bytes(200))
    with pytest.raises(AssertionError, match="error processing archive"):
        machine.apply(replace(upgrade, steps=upgrade.steps[fetched:]))
    assert not list(Path(machine.host.path(archive.STORE)).glob("nvidia-modprobe_*%s*" % NEW))
    machine.apply(machine.plan(LOADED, version=NEW))
    assert set(machine.driver().values()) == {NEW_PACKAGE}


def test_where_apt_cannot_read_its_sources_nothing_is_said_to_be_back(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    (machine.root.path / "etc/apt/sources.list.d/broken.list").write_text("deb nonsense\n")
    (refusal,) = machine.plan(NEWER, state="rolled_back").refusals
    assert refusal.code == "driver.no_way_back" and "broken.list" in refusal.found


@pytest.mark.variation
def test_what_the_former_driver_needs_beside_its_packages_comes_from_its_repository(machine: Machine) -> None:
    """As where 'apt autoremove' has taken it away after the exchange, and no source of the host's own has it."""
    machine.apply(machine.plan(facts(A100), state="absent"))
    machine.root.apt("clean")
    build(machine.repository.directory, "nvidia-driver-cuda", OLD_PACKAGE, depends="helper")
    machine.repository.add("helper", "1.0")
    machine.apply(machine.plan(facts(A100), version=OLD))
    machine.apply(machine.plan(LOADED, version=NEW))
    machine.root.apt("autoremove")
    assert "helper" not in machine.root.installed()
    (machine.root.path / "etc/apt/sources.list.d/other.list").unlink()
    plan = machine.plan(NEWER, state="rolled_back")
    assert not plan.refusals and "helper" in {name for step in plan.steps for name in step.change["after"]}


@pytest.mark.variation
def test_no_room_is_asked_for_what_is_on_the_host_already(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    for clean in (False, True):
        if clean:
            machine.root.apt("clean")
        offer = observing.observe(machine.host, machine.journal, machine.wanted(state="rolled_back"), NEWER).offer
        assert offer and offer.transaction and offer.transaction.download == 0 < offer.transaction.unpacked


def test_what_a_stopped_run_left_of_the_store_goes_with_the_driver(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, state="absent"))
    machine.host.write(archive.STORE + "/.half_1_all.deb", "!<arch>")
    machine.apply(machine.plan(facts(A100), state="absent"))
    assert not machine.host.exists("/var/cache/gpuops")
    assert not machine.plan(facts(A100), state="absent").steps


def test_a_copy_that_fails_leaves_nothing_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system of its own that is full: hard links are impossible, and half a file would fill it for good."""
    for name in archive.kept(machine.host):
        machine.host.remove("%s/%s" % (archive.STORE, name))
    run = machine.host.run

    def on_a_full_disk(argv: Any, **more: Any) -> Any:
        if argv[0] == "cp":
            Path(argv[-1]).write_bytes(b"half")
        return run(["false"], **more) if argv[0] in ("ln", "cp") else run(argv, **more)

    monkeypatch.setattr(machine.host, "run", on_a_full_disk)
    with pytest.raises(GpuOpsError):
        archive.keep(machine.host, dict.fromkeys(NAMES, OLD_PACKAGE))
    assert machine.host.list(archive.STORE) == []


@pytest.mark.variation
def test_an_exchange_that_is_put_off_gives_up_no_way_back(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    kept = archive.kept(machine.host)
    loaded = NEWER.but(driver_loaded=NEW)
    for name in NAMES:
        build(machine.repository.directory, name, "1:610.57.04-1")
    machine.repository.publish()
    machine.apply(machine.plan(loaded, version="610.57.04"), Disruption.service_restart)
    there = record.read(machine.journal)
    assert there and there.version == OLD and set(kept) <= set(archive.kept(machine.host))
    machine.apply(machine.plan(loaded, state="rolled_back"))
    assert set(machine.driver().values()) == {OLD_PACKAGE}


@pytest.mark.variation
def test_a_way_back_that_is_put_off_changes_nothing(machine: Machine) -> None:
    machine.apply(machine.plan(LOADED, version=NEW))
    loaded = NEWER.but(driver_loaded=NEW)
    back = machine.plan(loaded, state="rolled_back")
    machine.apply(back, Disruption.service_restart)
    assert not machine.host.exists(KEPT_SOURCES_FILE)
    assert machine.plan(loaded, state="rolled_back").steps == back.steps
