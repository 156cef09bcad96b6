# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module gpu_driver on a host of SLES 15 with real zypper and rpm: what it plans is what zypper's history shows."""
from __future__ import annotations

import http.server
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import pytest
import scratch_rpm
import scratch_zypper
from rpm_machine import Quiet, RpmMachine, home, running, serve
from scratch_apt import keyring
from scratch_rpm import OLDER_580, V580, V595, V610
from scratch_zypper import KERNELS, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm.versions import newest_first
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

    def kernels(self, *_words: Any) -> Tuple[Kernel, ...]:
        """With the modules that SUSE has built and signed for it, which weak-updates has for every kernel."""
        there = self.root.installed()
        signed = [version for name, version in there.items() if catalogue.serves(name, self.release)]
        if not signed:
            return super().kernels()
        # In the same place, so that the last one counts
        module = catalogue.upstream(newest_first(signed)[0])
        return (Kernel(self.release, self.headers in there, module, "Dual MIT/GPL"),)

    def verify(self, host: Host, journal: Journal, step: Step) -> None:
        assert [kernel.module for kernel in self.kernels()] == [step.change["after"]["nvidia"]]

    def run(self, **options: Any) -> Dict[str, Any]:
        told = self.call(**options)
        assert not told.get("failed"), told["msg"]
        assert "awaiting" not in told
        return told


@pytest.fixture
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Iterator[Machine]:
    """By its parameter, where it has one, with modules of SUSE's that may be there in several versions."""
    home(tmp_path, monkeypatch)
    root = Root(tmp_path / "root")
    # As SUSE's own file has it: kernels and their headers stay beside those that come
    root.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:multiversion(kernel)\n")
    (root.path / "etc/zypp/repos.d/baseos.repo").unlink(missing_ok=True)
    root.configure("suse", scratch_zypper.system(getattr(request, "param", False)), "two")
    root.zypper("install", "kernel-default=6.4.0-%s.1" % KERNELS[0])
    with running(Machine, root, scratch_zypper.nvidia(), capsys, monkeypatch) as made:
        executors: Any = CAPABILITY.executors
        monkeypatch.setitem(executors, "module.verify", made.verify)
        yield made


def transactions(machine: Machine, since: int) -> List[Dict[str, Optional[str]]]:
    """What zypper's history has of each command of ours, {package: version or None}."""
    found: List[Dict[str, Optional[str]]] = []
    for line in history.lines(machine.root.host)[since:]:
        if line.kind == "command":
            found.append({})
        elif line.after is not None or line.name not in found[-1]:
            has_version = line.name.startswith("kernel-") or "-kmp-" in line.name
            name = database.long_name(line.name, line.version) if has_version else line.name
            found[-1][name] = line.after
    return [told_of(each) for each in found]


def told_of(change: Mapping[str, Optional[str]]) -> Dict[str, Optional[str]]:
    """Without what gives way to modules of SUSE's that replace it: rpm takes it away, and the history does not tell."""
    coming = {name.split("-signed-")[0] for name, version in change.items() if "-kmp-" in name and version is not None}
    return {name: version for name, version in change.items()
            if version is not None or name.split("-signed-")[0] not in coming}


def planned(answer: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """As the database has them then: of what comes along zypper does not tell what may be there in several versions."""
    return [told_of({"%s-%s" % (name, version) if name == "kernel-devel" else name: version
                     for name, version in step["change"]["after"].items()}) for step in answer["plan"]["steps"]
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


@pytest.mark.variation
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


@pytest.mark.parametrize("lacking, code, told", [
    pytest.param("nvidia-persistenced", "driver.version_incomplete",
                 "has no nvidia-persistenced in version " + V580, marks=pytest.mark.variation),
    pytest.param("dkms", "packages.unsolvable", "nothing provides dkms", marks=pytest.mark.variation),
    ("kernel-default-devel", "driver.no_kernel_headers", "no headers for kernel 6.4.0-%s-default" % KERNELS[0])])
def test_a_package_that_no_mirror_has_is_named_before_anything_changes(
    machine: Machine, tmp_path: Path, lacking: str, code: str, told: str
) -> None:
    machine.mirror(scratch_rpm.publish(tmp_path / "mirror", scratch_rpm.without(scratch_zypper.OF_NVIDIA, lacking)))
    machine.root.configure("suse", scratch_rpm.publish(
        tmp_path / "system", scratch_rpm.without(scratch_zypper.OF_SYSTEM, lacking), key="two"), "two")
    before = machine.system()
    for state in ("staged", "present"):
        (refusal,) = machine.call(state=state)["refusals"]
        assert refusal["code"] == code and told in refusal["found"]
    assert (machine.system(), driver(machine)) == (before, {})


@pytest.mark.variation
def test_a_file_that_the_mirror_has_lost_is_named_before_anything_changes(machine: Machine) -> None:
    machine.run()
    before, there = machine.system(), machine.root.installed()
    machine.mirror(scratch_zypper.nvidia(), lost="nvidia-persistenced-" + V595)
    for state in ("staged", "present"):
        told = machine.call(version=V595, state=state)
        assert told["code"] == "driver.packages_not_fetched", told
        assert "nvidia-persistenced-%s-1.el9.x86_64.rpm' not found" % V595 in told["found"]
    assert (machine.system(), machine.root.installed()) == (before, there)
    machine.mirror(scratch_zypper.nvidia())
    change(machine, version=V595)
    assert set(driver(machine).values()) == {V595}


@pytest.mark.variation
def test_what_is_staged_is_exchanged_though_the_repository_never_answers(machine: Machine) -> None:
    machine.run()
    machine.run(state="staged", version=V595)
    machine.loaded = V580
    with machine.silenced():
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
    for module, code in (("open", "driver.no_precompiled_module"), ("proprietary", "driver.not_packaged")):
        told = machine.call(version="570", hold=False, kernel_module=module)
        assert [each["code"] for each in told["refusals"]] == [code]
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
    with machine.beside_a_silent_one():
        assert change(machine, version=V595, state="rolled_back") == [
            "file.write", "archive.check", "packages.install", "dkms.build"]
    assert (machine.root.installed(), machine.root.host.read(locks.PATH)) == (before, held)


def killed(machine: Machine, code: str = "packages.zypper_failed", **options: Any) -> None:
    """A run whose transaction is killed in a script."""
    machine.root.write("/killed-here-compute", "")
    told = machine.call(**options)
    (machine.root.path / "killed-here-compute").unlink()
    assert told["code"] == code, told["msg"]


@pytest.mark.variation
def test_what_is_killed_in_rpm_while_it_is_finished_is_finished_by_the_next_run(machine: Machine) -> None:
    """The package is there twice by then, in the same version."""
    machine.run()
    machine.loaded = V580
    killed(machine, version=V595)
    killed(machine, "packages.zypper_not_finished", version=V595)
    assert database.twice(machine.root.packages()) == {"nvidia-compute-G07": "3:%s-1.el9" % V595}
    assert database.leftovers(machine.root.packages()) == ()
    done = change(machine, version=V595)
    assert done[0] == "zypper.finish" and not ZYPPER.interrupted(machine.root.host)
    assert set(driver(machine).values()) == {V595}


@pytest.mark.variation
def test_a_way_back_that_is_killed_in_rpm_is_finished_in_the_version_that_came(machine: Machine) -> None:
    """Within a generation, so that both versions of a package are there: the older one is the one whose files are."""
    machine.run(version=OLDER_580)
    machine.loaded = OLDER_580
    machine.run(version=V580)
    machine.loaded = V580
    killed(machine, version=V580, state="rolled_back")
    assert driver(machine)["nvidia-compute-G06"] == OLDER_580
    done = change(machine, version=V580)
    assert done[0] == "zypper.finish" and "packages.install" in done
    assert set(driver(machine).values()) == {V580}
    assert (machine.root.path / "usr/share/nvidia-compute/version").read_text().strip() == V580


def _killed(*_words: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["at work", "killed"])
def test_the_note_of_a_transaction_goes_with_it_and_a_history_that_is_lost_later_says_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Somebody else's package manager begins as ours has ended; or the module is killed in that moment."""
    with monkeypatch.context() as context:
        if where == "at work":
            context.setattr(history, "package_manager_works", lambda host: True)
            machine.run()
        else:
            context.setattr(history, "end", _killed)
            with pytest.raises(KeyboardInterrupt):
                machine.call()
            assert Journal(machine.root.host).recall(history.MEMORY)
    machine.capsys.readouterr()
    if where == "killed":
        assert "zypper.finish" not in [step["action"] for step in machine.run()["plan"]["steps"]]
    assert Journal(machine.root.host).recall(history.MEMORY) == {}
    monkeypatch.setattr(Host, "boot", lambda self: "another boot")
    machine.root.host.remove("/var/log/zypp/history")
    assert machine.run()["plan"]["steps"] == [] and set(driver(machine).values()) == {V580}


def test_files_that_a_power_cut_has_emptied_after_the_last_word_of_zypper_come_once_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(history, "end", _killed)
        with pytest.raises(KeyboardInterrupt):
            machine.call()
    machine.capsys.readouterr()
    machine.root.host.write("/usr/share/libnvidia-ml/version", "")
    monkeypatch.setattr(Host, "boot", lambda self: "another boot")
    foretold = machine.call(check=True)["plan"]["steps"]
    assert foretold[0]["action"] == "zypper.finish" and machine.run()["plan"]["steps"] == foretold
    assert machine.run()["plan"]["steps"] == [] and Journal(machine.root.host).recall(history.MEMORY) == {}
    assert machine.root.host.read("/usr/share/libnvidia-ml/version") == V580 + "\n"


@pytest.mark.variation
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


SIGNED = "nvidia-open-driver-%s-signed-cuda-kmp-default"
# With modules of SUSE's as they are, and as they were (scratch_zypper.signed())
IN_BOTH_FORMS = pytest.mark.parametrize("machine", [
    False, pytest.param(True, marks=pytest.mark.variation)], indirect=True, ids=["replaced", "several"])


def signed(machine: Machine) -> List[str]:
    """Modules of SUSE's that are there, as the database calls them."""
    return sorted(name for name in machine.root.installed() if "-kmp-" in name)


@pytest.mark.variation
@IN_BOTH_FORMS
def test_modules_that_suse_has_signed_set_the_version_and_are_exchanged_in_one_transaction(machine: Machine) -> None:
    wanted: Dict[str, Any] = {"build": "precompiled"}
    before = machine.root.installed()
    assert change(machine, version="580", **wanted) == ["file.write", "rpm.import_key", "file.write",
                                                        "packages.download", "file.write", "packages.install",
                                                        "module.verify"]
    newest = scratch_zypper.signed(OLDER_580, build="150700.3.4")
    assert signed(machine) == [database.long_name(newest.name, newest.evr)], "the newest build"
    assert set(driver(machine).values()) == {OLDER_580}, "SUSE has no newer one"
    assert machine.headers not in machine.root.installed() and "dkms" not in machine.root.installed()
    there = driver(machine)
    machine.root.zypper("update")
    assert driver(machine) == there, "neither NVIDIA's nor SUSE's newer ones come"
    machine.release = "6.4.0-%s-default" % KERNELS[1]
    machine.headers = "kernel-default-devel-6.4.0-%s.1" % KERNELS[1]
    assert machine.run(version="580", **wanted)["plan"]["steps"] == [], "they serve the kernel that came"
    for build in ("auto", "precompiled"):
        assert machine.run(version="580", build=build)["plan"]["steps"] == []
    machine.loaded = OLDER_580
    change(machine, version=V595, **wanted)
    assert set(driver(machine).values()) == {V595} and len(signed(machine)) == 1
    assert signed(machine)[0].startswith(SIGNED % "G07")
    machine.loaded = V595
    assert "dkms.build" in change(machine, version="595", build="dkms")
    assert signed(machine) == [] and driver(machine)["nvidia-open-driver-G07"] == V595, "the same driver"
    machine.loaded = V595
    assert change(machine, version="595", state="rolled_back")[-1] == "module.verify"
    assert len(signed(machine)) == 1 and "nvidia-open-driver-G07" not in driver(machine)
    assert "dkms.build" in change(machine, version="595", build="dkms")
    assert change(machine, version="595", **wanted)[-1] == "module.verify"
    assert "nvidia-open-driver-G07" not in driver(machine)
    machine.loaded = ""
    change(machine, version="595", state="absent")
    updated = {name for name in machine.root.installed() if KERNELS[1] in name}
    assert set(machine.root.installed()) == {*before, *updated}


@pytest.mark.variation
def test_suse_s_repository_that_cannot_be_read_is_not_taken_for_one_without_modules(machine: Machine) -> None:
    server = serve(partial(Quiet, directory=str(scratch_zypper.system(False))))
    machine.root.configure("suse", "http://127.0.0.1:%d/" % server.server_port, "two")
    machine.run(version="580", build="precompiled")
    machine.loaded = OLDER_580
    close(server)
    assert machine.run(version="580")["plan"]["steps"] == []
    told = machine.call(check=True, version=V595)
    assert told.get("code") == "driver.no_precompiled_module", "DKMS does not build it instead"
    assert "not read: suse: " in told["found"] and "mend the source that cannot be read, or " in told["remedy"]
    server = serve(server.RequestHandlerClass, server.server_port)
    machine.run(state="staged", version=V595)
    close(server)
    change(machine, version=V595)
    assert signed(machine)[0].startswith(SIGNED % "G07")


def close(server: http.server.HTTPServer) -> None:
    server.shutdown()
    server.server_close()


def test_a_driver_that_suse_has_not_signed_is_refused_with_those_that_it_has(machine: Machine) -> None:
    before = machine.root.tree()
    told = machine.call(version=V580, build="precompiled")
    assert [each["code"] for each in told["refusals"]] == ["driver.no_precompiled_module"]
    assert "%s is of driver 580.95.05, %s for kernel %s" % (SIGNED % "G06", OLDER_580, machine.release) in told["msg"]
    assert "set `version` to %s, or update the kernel" % OLDER_580 in told["msg"], "the other one is NVIDIA's no more"
    told = machine.call(version=V610, build="precompiled")
    assert "is of driver %s for kernel %s" % (V595, machine.release) in told["msg"], "610 is of another service pack"
    told = machine.call(version=V580, build="precompiled", kernel_module="proprietary")
    assert [each["code"] for each in told["refusals"]] == ["driver.build_not_offered"]
    after = machine.root.tree()
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)
            and not name.startswith(("run/gpuops/", "var/lib/gpuops/"))} == set()


@pytest.mark.variation
@pytest.mark.parametrize("machine, several, returns", [
    pytest.param(False, False, True, marks=pytest.mark.variation), (True, False, True),
    pytest.param(False, True, True, marks=pytest.mark.variation),
    pytest.param(True, True, False, marks=pytest.mark.variation)], indirect=["machine"])
def test_modules_of_suse_give_way_to_those_of_the_next_driver_and_come_back(
    machine: Machine, several: bool, returns: bool
) -> None:
    """Of the same generation, so that both have one name; some are from before SUSE had the newer replace the older.
    Of two such zypper takes none from a file in the place of the other: their files conflict for it."""
    wanted: Dict[str, Any] = {"build": "precompiled"}
    before = machine.root.installed()
    change(machine, version="580", **wanted)
    (older,) = signed(machine)
    machine.root.configure("updates", scratch_zypper.updates(several), "two")
    machine.loaded = OLDER_580
    assert machine.run(version="580", **wanted)["plan"]["steps"] == [], "it is of the branch"
    there = machine.root.installed()
    change(machine, version=V580, **wanted)
    assert set(driver(machine).values()) == {V580}
    (newer,) = signed(machine)
    assert newer != older and set(Journal(machine.root.host).packages("driver")) == {
        *there, newer}.difference(before, {older}), "every one of them came by us"
    assert (machine.root.host.read(locks.PATH) or "").count("solvable_name: " + SIGNED % "G06") == 1
    machine.root.zypper("update")
    assert signed(machine) == [newer]
    machine.loaded = V580
    if not returns:
        return
    assert change(machine, version=V580, state="rolled_back", **wanted)[-1] == "module.verify"
    assert {name: version for name, version in machine.root.installed().items() if KERNELS[1] not in name} == there
    machine.loaded = ""
    change(machine, version="580", state="absent", **wanted)
    assert {name for name in machine.root.installed() if KERNELS[1] not in name} == set(before)


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.variation)])
def test_what_has_not_been_erased_of_modules_of_suse_is_a_leftover_unless_it_may_be_there(
    machine: Machine, several: bool
) -> None:
    machine.run(version="580", build="precompiled")
    older = scratch_zypper.signed("580.95.05", several=several)
    newer = scratch_zypper.signed(OLDER_580, build="150700.3.4")
    machine.root.rpm("-e", "--nodeps", "--justdb", database.long_name(newer.name, newer.evr))
    for each in (older, newer):
        machine.root.rpm("-i", "--force", "--nodeps", "--justdb", str(scratch_rpm.built(each)))
    assert database.leftovers(machine.root.packages()) == (
        () if several else (database.long_name(older.name, older.evr),))
    told = machine.call(version="580", build="precompiled")
    if several:
        assert not told.get("failed"), told["msg"]
        assert len(signed(machine)) == 1
    else:
        assert told["code"] == "driver.transaction_unfinished" and older.name in told["msg"]


@pytest.mark.variation
@IN_BOTH_FORMS
def test_what_an_administrator_has_of_suse_s_modules_is_taken_over(machine: Machine) -> None:
    older = scratch_zypper.signed("580.95.05")
    machine.root.zypper("install", "%s=%s" % (older.name, older.evr))
    change(machine, version="580")
    assert [name.rsplit("_k", 1)[0] for name in signed(machine)] == ["%s-%s" % (SIGNED % "G06", OLDER_580)]
    change(machine, version=V580)
    assert signed(machine) == [], "SUSE has none of this driver, so that DKMS builds it"


@pytest.mark.variation
def test_an_update_takes_no_modules_of_suse_for_those_that_are_built_here(machine: Machine) -> None:
    wanted = {"version": OLDER_580, "repository_url": "file://%s" % scratch_zypper.without_epochs()}
    change(machine, **wanted)
    there = driver(machine)
    assert there["nvidia-open-driver-G06"] == OLDER_580, "SUSE's package of this version names it as what it replaces"
    machine.root.zypper("update")
    assert (driver(machine), signed(machine)) == (there, [])
    change(machine, build="precompiled", **wanted)
    assert len(signed(machine)) == 1 and "nvidia-open-driver-G06" not in driver(machine)
    change(machine, build="dkms", **wanted)
    machine.root.zypper("update")
    assert driver(machine) == there


@pytest.mark.variation
@pytest.mark.parametrize("there, wanted, stays", [
    (OLDER_580, {"version": V580, "build": "dkms"}, False),
    pytest.param(OLDER_580, {"version": "580", "build": "precompiled"}, True, marks=pytest.mark.variation),
    pytest.param(OLDER_580, {"version": V595, "build": "precompiled"}, False, marks=pytest.mark.variation),
    pytest.param(V595, {"version": OLDER_580}, False, marks=pytest.mark.variation),
    (V595, {"version": V595, "build": "precompiled"}, True),
])
def test_what_prefers_modules_of_suse_stays_and_leaves_with_them(
    machine: Machine, there: str, wanted: Mapping[str, Any], stays: bool
) -> None:
    """As SUSE's documentation has its modules installed: by an empty package that requires them."""
    prefers, modules = scratch_zypper.prefers_signed(there).name, scratch_zypper.signed(there)
    machine.root.zypper("install", prefers, "%s=%s" % (modules.name, modules.evr))
    before = machine.root.installed()
    change(machine, **wanted)
    assert (prefers in machine.root.installed()) is stays
    change(machine, state="absent", **wanted)
    assert (prefers in machine.root.installed()) is stays and set(machine.root.installed()) <= set(before)
