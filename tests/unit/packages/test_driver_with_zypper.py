# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module gpu_driver on a host of SLES 15 with real zypper and rpm: what it plans is what zypper's history shows."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest
import scratch_rpm
import scratch_zypper
from rpm_machine import RpmMachine, address, home, is_asked, running, silent
from scratch_apt import keyring
from scratch_rpm import OLDER_580, V580, V595
from scratch_zypper import KERNELS, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import (
    asking,
    carrying_out,
    history,
    locks,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper.manager import ZYPPER

THEIRS = "type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: tool\n\n"


class Machine(RpmMachine[Root]):
    """A host of SLES 15; zypper is called on the host by the module itself."""

    os_id, os_version = "sles", "15.7"
    release, headers = "6.4.0-%s-default" % KERNELS[0], "kernel-default-devel-6.4.0-%s.1" % KERNELS[0]
    user_space = "libnvidia-ml"

    def impatient(self) -> None:
        """zypper is waited for seconds, and not for a quarter of an hour."""
        self.patch.setattr(asking, "TIMEOUT_SECONDS", 20)

    def run(self, **options: Any) -> Dict[str, Any]:
        told = self.call(**options)
        assert not told.get("failed"), told["msg"]
        assert "awaiting" not in told
        return told


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Machine]:
    home(tmp_path, monkeypatch)
    root = Root(tmp_path / "root")
    # As SUSE's own file has it: kernels and their headers stay beside those that come
    root.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:multiversion(kernel)\n")
    (root.path / "etc/zypp/repos.d/baseos.repo").unlink(missing_ok=True)
    root.configure("suse", scratch_zypper.system(), "two")
    root.zypper("install", "kernel-default=6.4.0-%s.1" % KERNELS[0])
    with running(Machine, root, scratch_zypper.nvidia(), capsys, monkeypatch) as made:
        yield made


def transactions(machine: Machine, since: int) -> List[Dict[str, Optional[str]]]:
    """What zypper's history has of each command of ours, {package: version or None}."""
    found: List[Dict[str, Optional[str]]] = []
    for line in history.lines(machine.root.host)[since:]:
        if line.kind == "command":
            found.append({})
        elif line.after is not None or line.name not in found[-1]:
            name = database.long_name(line.name, line.version) if line.name.startswith("kernel-") else line.name
            found[-1][name] = line.after
    return found


def planned(answer: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """As the database has them then: of what comes along zypper does not tell what may be there in several versions."""
    return [{"%s-%s" % (name, version) if name == "kernel-devel" else name: version
             for name, version in step["change"]["after"].items()} for step in answer["plan"]["steps"]
            if step["action"] in ("packages.install", "packages.remove")]


def driver(machine: Machine) -> Dict[str, str]:
    return {name: catalogue.upstream(version) for name, version in catalogue.family(machine.root.installed()).items()}


def change(machine: Machine, **options: Any) -> List[str]:
    """Actions of a run whose transactions are those of its plan, in check mode and in the run; a second one has nothing
    to do."""
    foretold, since = machine.call(check=True, **options), len(history.lines(machine.root.host))
    assert not foretold.get("failed"), foretold["msg"]
    told = machine.run(**options)
    assert told["plan"]["steps"] == foretold["plan"]["steps"]
    assert transactions(machine, since) == planned(told)
    assert told["applied"] == [step["id"] for step in told["plan"]["steps"]]
    again = machine.run(**options)
    assert (again["changed"], again["plan"]["steps"]) == (False, [])
    return [step["action"] for step in told["plan"]["steps"]]


def test_installed_upgraded_and_downgraded_the_plan_is_what_the_history_shows(machine: Machine) -> None:
    before = machine.root.installed()
    machine.root.write(locks.PATH, THEIRS)
    (machine.root.path / "lib/modprobe.d").mkdir(parents=True)
    machine.root.write("/lib/modprobe.d/10-unsupported-modules.conf", "# of SUSE\nallow_unsupported_modules 0\n")
    assert "allow_unsupported_modules" in str(machine.call(check=True)["plan"]["notes"])
    (machine.root.path / "etc/modprobe.d").mkdir()
    machine.root.write("/etc/modprobe.d/10-unsupported-modules.conf", "allow_unsupported_modules 1\n")
    assert machine.call(check=True)["plan"]["notes"] == []
    assert change(machine) == ["file.write", "rpm.import_key", "file.write", "packages.download", "file.write",
                               "packages.install", "dkms.build"]
    assert set(driver(machine).values()) == {V580} and machine.headers in machine.root.installed()
    machine.root.zypper("install", "nvidia-settings=3:%s-1.el9" % V580)
    for version in (V595, OLDER_580):
        change(machine, version=version)
        assert set(driver(machine).values()) == {version} and "nvidia-settings" in driver(machine)
        assert {catalogue.generation_of(name) for name in driver(machine)} == {
            "", scratch_zypper.generation(version)}
        there = driver(machine)
        machine.root.zypper("update")
        assert driver(machine) == there
    change(machine, version=OLDER_580, kernel_module="proprietary")
    assert "nvidia-driver-G06" in driver(machine) and "nvidia-open-driver-G06" not in driver(machine)
    updated = {name for name in machine.root.installed() if KERNELS[1] in name}
    assert {name.rsplit("-", 2)[0] for name in updated} == {"kernel-default", "kernel-default-devel", "kernel-devel"}
    change(machine, version=OLDER_580, kernel_module="proprietary", state="absent")
    assert set(machine.root.installed()) == {*before, *updated, "nvidia-settings"}
    assert machine.root.host.read(locks.PATH) == THEIRS
    assert keyring("one").fingerprint not in str(ZYPPER.trusted(machine.root.host))
    assert [path for path in machine.root.tree() if "gpuops" in path and path.startswith("etc/")] == []


def test_what_is_staged_is_installed_without_the_repository_and_what_others_have_locked_stays(
    machine: Machine
) -> None:
    fetched = machine.run(state="staged")["plan"]["steps"][-1]
    assert fetched["action"] == "packages.download"
    machine.take_repository_away()
    since = len(history.lines(machine.root.host))
    assert change(machine) == ["file.write", "packages.install", "dkms.build"]
    (coming,) = transactions(machine, since)
    assert {database.without_version(name, version or ""): version for name, version in coming.items()} == {
        database.without_version(name, version): version for name, version in fetched["parameters"]["request"].items()}
    assert "dkms" in ZYPPER.automatic(machine.root.host)
    machine.bring_repository_back()
    machine.loaded = V580
    before = machine.root.host.read(locks.PATH)
    machine.run(version=V595, allowed_disruption="none")
    assert (machine.root.host.read(locks.PATH), set(driver(machine).values())) == (before, {V580})
    machine.root.zypper("addlock", "nvidia-persistenced")
    refused = machine.call(check=True, version=V595)
    assert (refused["failed"], refused["code"]) == (True, "packages.held")
    assert "zypper removelock nvidia-persistenced" in refused["msg"]


@pytest.mark.variation
def test_what_is_staged_is_exchanged_though_the_repository_never_answers(machine: Machine) -> None:
    machine.run()
    machine.run(state="staged", version=V595)
    machine.loaded = V580
    machine.take_repository_away()
    machine.impatient()
    with silent(machine.server.server_port):
        machine.run(version=V595)
    assert set(driver(machine).values()) == {V595}


def test_what_would_not_be_heeded_and_what_is_there_twice_is_refused_before_anything_changes(machine: Machine) -> None:
    before = machine.root.tree()
    machine.root.write("/etc/zypp/repos.d/cuda.repo", "[cuda]\nenabled=1\nbaseurl=%s\n" % machine.url)
    machine.root.write("/etc/zypp/zypp.conf", "[main]\nlocksfile.path = /srv/locks\n")
    told = machine.call()
    assert [each["code"] for each in told["refusals"]] == ["driver.repository_named_twice", "packages.other_locks"]
    machine.root.host.remove("/etc/zypp/repos.d/cuda.repo")
    assert [each["code"] for each in machine.call(version="570")["refusals"]] == ["packages.other_locks"]
    assert [each["code"] for each in machine.call(version="570", hold=False)["refusals"]] == [
        "driver.build_not_offered"]
    after = machine.root.tree()
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)
            and not name.startswith(("run/gpuops/", "var/lib/gpuops/"))} == {"etc/zypp/zypp.conf"}


def test_what_was_stopped_is_ended_and_the_driver_before_comes_back_without_the_repository(machine: Machine) -> None:
    machine.run()
    before, held = machine.root.installed(), machine.root.host.read(locks.PATH)
    machine.loaded = V580
    machine.root.write("/killed-here-compute", "")
    told = machine.call(version=V595)
    assert told["failed"] and told["code"] == "packages.zypper_failed"
    (machine.root.path / "killed-here-compute").unlink()
    told = machine.run(version=V595)
    assert [step["action"] for step in told["plan"]["steps"]][0] == "zypper.finish"
    assert set(driver(machine).values()) == {V595}
    assert machine.run(version=V595)["plan"]["steps"] == []
    machine.loaded = ""
    machine.take_repository_away()
    with silent() as listening:
        machine.impatient()
        machine.root.configure("silent", address(listening), "two")
        assert change(machine, version=V595, state="rolled_back") == [
            "file.write", "archive.check", "packages.install", "dkms.build"]
        assert not is_asked(listening)
    assert (machine.root.installed(), machine.root.host.read(locks.PATH)) == (before, held)


def test_a_transaction_that_outlasts_the_waiting_for_it_is_ours_once_it_has_ended(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step stays open and the host locked; nobody else works on it meanwhile."""
    slow = 'while posix.access("/wait-here") do posix.sleep(1) end'
    packages = [replace(each, script=slow) if each.name == "nvidia-compute-G06" else each
                for each in scratch_zypper.OF_NVIDIA]
    machine.url = "file://%s" % scratch_rpm.publish(machine.root.path / "tmp/slow", packages)
    machine.root.write("/wait-here", "")
    monkeypatch.setattr(carrying_out, "_SECONDS", 10)
    before = machine.root.installed()
    told = machine.call()
    assert (told["code"], "zypper (process " in told["left_at_work"]) == ("packages.configuring_takes_long", True)
    journal = Journal(machine.root.host)
    (event,) = journal.unfinished("driver")
    assert event["step"]["action"] == "packages.install" and journal.packages("driver") == {}
    assert machine.call(run_id="test 2", lock_timeout=0)["code"] == "host.another_run"
    (machine.root.path / "wait-here").unlink()
    monkeypatch.setattr(carrying_out, "_SECONDS", 600)
    told = machine.run()
    assert event["step"]["id"] in told["applied"]
    assert set(driver(machine).values()) == {V580} and driver(machine).keys() <= journal.packages("driver").keys()
    machine.run(state="absent")
    assert machine.root.installed() == before
