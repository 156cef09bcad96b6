# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module gpu_driver on a host of SLES 15 with real zypper and rpm: what it plans is what zypper's history shows."""
from __future__ import annotations

import http.server
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import pytest
import scratch_zypper
from ansible.module_utils import basic
from gpu_hosts import A100, facts
from scratch_apt import keyring
from scratch_rpm import OLDER_580, V580, V595
from scratch_zypper import KERNELS, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import module as module_room
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import building, catalogue, observing
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import history, locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper.manager import ZYPPER

RELEASE = "6.4.0-%s-default" % KERNELS[0]
HEADERS = "kernel-default-devel-6.4.0-%s.1" % KERNELS[0]
THEIRS = "type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: tool\n\n"


class Machine:
    """A host of SLES 15; each call of run() is one task, and zypper is called on the host by the module itself.

    built: {kernel: (package of the module's source, version of the driver) that DKMS has built for it}: no compiler
           runs here, and what another package takes the place of goes with it.
    """

    def __init__(
        self, root: Root, server: http.server.HTTPServer, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.root, self.server, self.capsys, self.patch = root, server, capsys, monkeypatch
        self.url = "http://127.0.0.1:%d/" % server.server_port
        self.built: Dict[str, Tuple[str, str]] = {}
        self.loaded = ""

    def take_repository_away(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def kernels(self, *_words: Any) -> Tuple[Kernel, ...]:
        there, module = self.root.installed(), self.source()
        source, built = self.built.get(RELEASE, ("", ""))
        fits = bool(module) and (module, catalogue.upstream(there[module])) == (source, built)
        return (Kernel(RELEASE, HEADERS in there, built if fits else "",
                       ("Dual MIT/GPL" if "open" in module else "NVIDIA") if fits else ""),)

    def source(self) -> str:
        return next((name for name in self.root.installed() if building.loses([name])), "")

    def build(self, host: Host, journal: Journal, step: Step) -> None:
        self.built[step.subject] = (self.source(), step.change["after"]["nvidia"])

    def facts(self) -> HostFacts:
        (kernel,) = self.kernels()
        kind = "" if not kernel.module else "open" if kernel.license != "NVIDIA" else "proprietary"
        return facts(A100, os_id="sles", os_version="15.7", kernel=RELEASE, boot_kernel=RELEASE,
                     driver_installed=kernel.module, driver_boots=kernel.module,
                     driver_userspace=catalogue.upstream(self.root.installed().get("libnvidia-ml", "")),
                     module_installed=kind, driver_loaded=self.loaded, module_loaded=kind if self.loaded else "")

    def call(self, check: bool = False, **options: Any) -> Dict[str, Any]:
        """The module's main function; its answer."""
        given = {"version": V580, "repository_url": self.url, "repository_key": keyring("one").public,
                 "run_id": "test 1", **options, "_ansible_check_mode": check}
        self.patch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": given}).encode())
        self.patch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            module_room.run_writer(CAPABILITY, lambda host, parameters: self.facts())
        answer: Dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return answer

    def run(self, **options: Any) -> Dict[str, Any]:
        told = self.call(**options)
        assert not told.get("failed"), told["msg"]
        assert "awaiting" not in told
        return told


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Machine]:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = Root(tmp_path / "root")
    # As SUSE's own file has it: kernels and their headers stay beside those that come
    root.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:multiversion(kernel)\n")
    (root.path / "etc/zypp/repos.d/baseos.repo").unlink(missing_ok=True)
    root.configure("suse", scratch_zypper.system(), "two")
    root.zypper("install", "kernel-default=6.4.0-%s.1" % KERNELS[0])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(scratch_zypper.nvidia())))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Machine(root, server, capsys, monkeypatch)
    monkeypatch.setattr(module_room, "Host", lambda: root.host)
    monkeypatch.setattr(observing, "read_kernels", made.kernels)
    executors: Any = CAPABILITY.executors
    monkeypatch.setitem(executors, "dkms.build", made.build)
    yield made
    made.take_repository_away()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        """Not among what the tests print."""


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
    assert set(driver(machine).values()) == {V580} and HEADERS in machine.root.installed()
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


def test_what_is_staged_is_installed_and_what_others_have_locked_stays(machine: Machine) -> None:
    assert machine.run(state="staged")["plan"]["steps"][-1]["action"] == "packages.download"
    told = machine.run()
    assert "packages.download" not in [step["action"] for step in told["plan"]["steps"]]
    machine.loaded = V580
    before = machine.root.host.read(locks.PATH)
    machine.run(version=V595, allowed_disruption="none")
    assert (machine.root.host.read(locks.PATH), set(driver(machine).values())) == (before, {V580})
    machine.root.zypper("addlock", "nvidia-persistenced")
    refused = machine.call(check=True, version=V595)
    assert (refused["failed"], refused["code"]) == (True, "packages.held")
    assert "zypper removelock nvidia-persistenced" in refused["msg"]


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
    assert change(machine, version=V595, state="rolled_back") == [
        "file.write", "archive.check", "packages.install", "dkms.build"]
    assert (machine.root.installed(), machine.root.host.read(locks.PATH)) == (before, held)
