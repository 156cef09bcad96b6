# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module gpu_driver on a host of EL 9 with real dnf and rpm: what it plans is what dnf's history then shows."""
from __future__ import annotations

import base64
import contextlib
import http.server
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple, Type, TypeVar
from urllib.parse import quote

import pytest
import scratch_rpm
from rpm_machine import Quiet, RpmMachine, home, running, serve
from scratch_apt import keyring
from scratch_rpm import CLOSED, OLDER_580, OPEN, V580, V595, Root, module_of

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue, precompiled
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import PASSWORD_FILE, REPO_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boot import Module
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import others
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import asking, history, locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database


class Machine(RpmMachine[Root]):
    """A host of EL 9; each call of run() is one task, with the controller's part between calls of the module."""

    os_id, os_version = "rocky", "9.8"
    release, headers = "5.14.0-570.el9.x86_64", "kernel-devel-5.14.0-570.el9"
    user_space = "nvidia-driver-cuda-libs"

    def impatient(self) -> None:
        """dnf waits for seconds where it would wait for minutes (dnf.conf(5), timeout, retries)."""
        with (self.root.path / "etc/dnf/dnf.conf").open("a") as file:
            file.write("timeout=1\nminrate=1\nretries=1\n")

    def kernels(self, *_words: Any) -> Tuple[Kernel, ...]:
        """With the modules that came built for it, unless DKMS has built those of the source that is there; what it has
        built goes with its source."""
        if not self.source():
            self.built.clear()
        (kernel,) = super().kernels()
        there = self.root.host.read(module_of(self.release))
        open_ones = any(map(catalogue.is_of_red_hat, self.root.installed()))
        return (replace(kernel, module=there, license="Dual MIT/GPL" if open_ones else "NVIDIA"),) \
            if there and not kernel.module else (kernel,)

    def verify(self, host: Host, journal: Journal, step: Step) -> None:
        assert [kernel.module for kernel in self.kernels()] == [step.change["after"]["nvidia"]]

    def run(self, **options: Any) -> Tuple[Dict[str, Any], List[str]]:
        """(the first call's answer, ids of all steps that were done)."""
        first = told = self.call(**options)
        done: List[str] = list(told.get("applied", ()))
        while "awaiting" in told:
            step = told["awaiting"]
            carried = self.root.module(DNF.builtin_options(step) or {})
            assert carried.get("failed") is not True, carried
            told = self.call(**options, resumed_step=step["id"])
            done += told.get("applied", ())
        assert not told.get("failed"), told["msg"]
        return first, done


def alone(machine: Machine, **options: Any) -> List[str]:
    """Ids of the steps that the host has done by itself, without a controller."""
    given = {name: option.get("default") for name, option in CAPABILITY.arguments.items()}
    given.update({"version": V580, "repository_url": machine.url, "repository_key": keyring("one").public, **options})
    run = Run(CAPABILITY, given, machine.root.host, lambda _host: machine.facts(), carries_out_packages=True)
    outcome, _waited = apply_alone(run, HostLock(machine.root.host, "", "gpuops"), 0)
    assert outcome.awaiting is None
    return outcome.applied


class OfRhel(Machine):
    """A host of RHEL with a driver of its own."""

    os_id, os_version = "rhel", "10.1"


AMachine = TypeVar("AMachine", bound=Machine)


@contextlib.contextmanager
def made(kind: Type[AMachine], path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[AMachine]:
    home(path, monkeypatch)
    root = Root(path / "root")
    # The plugin's package brings it, and the plugin ends where it is not
    root.write(locks.LIST, "")
    root.dnf("install", "kernel-core-5.14.0-570.el9")
    with running(kind, root, scratch_rpm.nvidia(), capsys, monkeypatch) as host:
        executors: Any = CAPABILITY.executors
        monkeypatch.setitem(executors, "module.verify", host.verify)
        yield host


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Machine]:
    with made(Machine, tmp_path, monkeypatch, capsys) as host:
        yield host


@pytest.fixture
def rhel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[OfRhel]:
    with made(OfRhel, tmp_path, monkeypatch, capsys) as host:
        yield host


class _Closed(Quiet):
    """Lets one user in."""

    told = ""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Basic " + base64.b64encode(self.told.encode()).decode():
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
        self.send_header("Content-Length", "0")
        self.end_headers()


def transactions(machine: Machine, since: int) -> List[Mapping[str, Any]]:
    """What dnf's history has of each transaction, {package: version or None}; a mark is one without packages."""
    return [{locked(name, version or entry.before.get(name, "")): version for name, version in entry.after.items()}
            for entry in history.entries(machine.root.host)[since:] if entry.after]


def locked(name: str, version: str) -> str:
    return "%s-%s" % (name, version) if name == "kernel-devel" else name


def planned(answer: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [step["change"]["after"] for step in answer["plan"]["steps"]
            if step["action"] in ("packages.install", "packages.remove")]


def driver(machine: Machine) -> Dict[str, str]:
    return {name: catalogue.upstream(version) for name, version in catalogue.family(machine.root.installed()).items()}


def change(machine: Machine, **options: Any) -> List[str]:
    """A run whose transactions are those of its plan, in check mode and in the run; a second one has nothing to do."""
    foretold, since = machine.call(check=True, **options), len(history.entries(machine.root.host))
    assert not foretold.get("failed"), foretold["msg"]
    first, done = machine.run(**options)
    assert first["plan"]["steps"] == foretold["plan"]["steps"]
    assert transactions(machine, since) == planned(first)
    assert done == [step["id"] for step in first["plan"]["steps"]
                    if step["action"] not in ("module.verify", "dkms.forget_original")], (
        "the module looks again after a transaction, and finds the modules that came built, and no DKMS that keeps any")
    again, nothing = machine.run(**options)
    assert (again["changed"], nothing, again["plan"]["steps"]) == (False, [], [])
    return done


def test_installed_upgraded_and_downgraded_the_plan_is_what_the_history_shows(machine: Machine) -> None:
    before, updated = machine.root.installed(), {}
    done = change(machine)
    assert [each.split("/")[1] for each in done] == [
        "file.write", "rpm.import_key", "file.write", "packages.download", "file.write", "file.write",
        "packages.install", "dkms.build"]
    assert set(driver(machine).values()) == {V580} and machine.headers in machine.root.installed()
    # The plugin writes its list anew, and without comments
    machine.root.dnf("versionlock", "add", "kernel-core")
    machine.root.dnf("versionlock", "delete", "kernel-core")
    assert machine.run()[0]["changed"] is False
    for version in (V595, OLDER_580):
        change(machine, version=version)
        assert set(driver(machine).values()) == {version}
        assert "stream=%s-open" % version.split(".")[0] in (machine.root.host.read(
            "/etc/dnf/modules.d/nvidia-driver.module") or "")
        # dnf-automatic is a dnf as this one
        there = machine.root.installed()
        machine.root.dnf("update")
        updated.update((name, version) for name, version in machine.root.installed().items() if name not in there)
        assert set(driver(machine).values()) == {version}
    assert {name.rsplit("-", 2)[0] for name in updated} == {"kernel-core", "kernel-devel"}
    change(machine, version=OLDER_580, kernel_module="proprietary")
    assert CLOSED in driver(machine) and OPEN not in driver(machine)
    change(machine, version=OLDER_580, kernel_module="proprietary", state="absent")
    assert machine.root.installed() == {**before, **updated}
    assert DNF.trusted(machine.root.host).keys() == {
        name for name, prints in DNF.trusted(machine.root.host).items() if prints != (keyring("one").fingerprint,)}
    left = [path for path in machine.root.tree() if "gpuops" in path and path.startswith("etc/")]
    assert (left, machine.root.host.read(locks.LIST)) == ([], "")


@pytest.mark.variation
def test_what_an_administrator_has_chosen_since_stays(machine: Machine) -> None:
    change(machine)
    machine.root.dnf("mark", "install", "dkms")
    machine.root.dnf("install", "app")
    first, _done = machine.run(state="absent")
    (removed,) = planned(first)
    assert "nvidia-driver-cuda-libs" not in removed and "dkms" not in removed
    assert {"app", "dkms", "nvidia-driver-cuda-libs"} <= set(machine.root.installed())
    assert OPEN not in machine.root.installed()


@pytest.mark.variation
def test_what_is_staged_is_installed_without_the_repository(machine: Machine) -> None:
    first, done = machine.run(state="staged")
    assert done[-1].split("/")[1] == "packages.download"
    approved = machine.call(check=True)["plan"]
    machine.take_repository_away()
    assert change_of_files(machine, approved_plan=approved) == first["plan"]["steps"][-1]["parameters"]["request"]
    assert set(driver(machine).values()) == {V580} and machine.headers in machine.root.installed()
    assert DNF.automatic(machine.root.host).issuperset({"dkms", "nvidia-driver-cuda-libs"})


def change_of_files(machine: Machine, **options: Any) -> Mapping[str, str]:
    """What a run brings from files alone, in its one transaction, {package: version}."""
    since = len(history.entries(machine.root.host))
    done = change(machine, **options)
    assert "packages.download" not in [each.split("/")[1] for each in done]
    (coming,) = transactions(machine, since)
    return {name: version for name, version in coming.items() if version is not None}


def test_a_staged_file_that_no_key_has_signed_is_not_installed_without_the_repository(machine: Machine) -> None:
    machine.run(state="staged")
    machine.take_repository_away()
    (unsigned,) = (each for each in scratch_rpm.driver(V580) if each.name == "nvidia-persistenced")
    (staged,) = machine.root.path.glob("var/cache/gpuops/driver/nvidia-persistenced-*")
    staged.unlink()
    shutil.copy(scratch_rpm.built(unsigned), staged)
    told = machine.call(run_id="test 2")
    assert (told["code"], driver(machine)) == ("driver.repository_unreadable", {})


@pytest.mark.variation
def test_a_host_whose_dnf_keeps_all_elsewhere_is_staged_and_left_as_it_was(machine: Machine) -> None:
    """dnf.conf(5), cachedir and persistdir."""
    with (machine.root.path / "etc/dnf/dnf.conf").open("a") as file:
        file.write("cachedir=/srv/cache\npersistdir=/srv/state\n")
    before = machine.root.installed()
    machine.run(state="staged")
    assert machine.run(state="staged")[0]["changed"] is False
    machine.take_repository_away()
    change_of_files(machine)
    assert set(driver(machine).values()) == {V580}
    machine.run(state="absent")
    assert machine.root.installed() == before


def test_what_is_no_fault_of_the_repository_is_told_as_what_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_PYTHONS", (sys.executable,))
    (refusal,) = machine.call()["refusals"]
    assert (refusal["code"], refusal["remedy"]) == ("packages.no_dnf_bindings", "run `dnf install python3-dnf`")


@pytest.mark.parametrize("lacking, code", [
    ("nvidia-persistenced", "driver.version_incomplete"),
    pytest.param("dkms", "packages.unsolvable", marks=pytest.mark.variation),
    pytest.param("kernel-devel", "packages.unsolvable", marks=pytest.mark.variation)])
def test_a_package_that_no_mirror_has_is_named_before_anything_changes(
    machine: Machine, tmp_path: Path, lacking: str, code: str
) -> None:
    machine.mirror(scratch_rpm.publish(
        tmp_path / "mirror", scratch_rpm.without(scratch_rpm.OF_NVIDIA, lacking), modules=True))
    machine.root.configure("baseos", scratch_rpm.publish(
        tmp_path / "system", scratch_rpm.without(scratch_rpm.OF_SYSTEM, lacking), key="two"), "two")
    before = machine.system()
    for state in ("staged", "present"):
        (refusal,) = machine.call(state=state)["refusals"]
        assert refusal["code"] == code and lacking in refusal["found"]
    assert (machine.system(), driver(machine)) == (before, {})


@pytest.mark.variation
def test_a_file_that_the_mirror_has_lost_is_named_before_anything_changes(machine: Machine) -> None:
    machine.run()
    before, there = machine.system(), machine.root.installed()
    machine.mirror(scratch_rpm.nvidia(), lost="nvidia-persistenced-" + V595)
    for state in ("staged", "present"):
        told = machine.call(version=V595, state=state)
        assert told["code"] == "driver.packages_not_fetched", told
        assert "nvidia-persistenced-3:%s" % V595 in told["found"]
    assert (machine.system(), machine.root.installed()) == (before, there)
    machine.mirror(scratch_rpm.nvidia())
    change(machine, version=V595)
    assert set(driver(machine).values()) == {V595}


@pytest.mark.variation
def test_what_is_staged_is_exchanged_though_the_repository_never_answers(machine: Machine) -> None:
    machine.run()
    machine.run(state="staged", version=V595)
    machine.loaded = V580
    with machine.silenced():
        change(machine, version=V595)
    assert set(driver(machine).values()) == {V595}
    assert "stream=595-open" in (machine.root.host.read("/etc/dnf/modules.d/nvidia-driver.module") or "")


@pytest.mark.variation
def test_a_loaded_driver_keeps_its_stream_and_locks_until_it_may_be_exchanged(machine: Machine) -> None:
    machine.run()
    machine.loaded = V580
    before = machine.root.host.read(locks.LIST)
    machine.run(version=V595, allowed_disruption="none")
    assert machine.root.host.read(locks.LIST) == before
    assert set(driver(machine).values()) == {V580}


@pytest.mark.variation
def test_a_transaction_that_is_killed_in_rpm_is_finished_by_the_next_run(machine: Machine) -> None:
    killed_exchange(machine)
    first, done = machine.run(version=V595)
    assert [each.split("/")[1] for each in done if "dnf.finish" in each] == ["dnf.finish"]
    assert set(driver(machine).values()) == {V595}
    again, nothing = machine.run(version=V595)
    assert (nothing, again["plan"]["steps"]) == ([], [])


@pytest.mark.variation
def test_a_first_transaction_that_is_killed_in_rpm_has_its_scripts_run_though_dependencies_were_marked_since(
    machine: Machine
) -> None:
    machine.root.write("/killed-here-libs", "")
    told = machine.call(run_id="test 2")
    machine.root.module(DNF.builtin_options(told["awaiting"]) or {})
    (machine.root.path / "killed-here-libs").unlink()
    came = set(driver(machine))
    assert came and OPEN not in came
    machine.call(run_id="test 2", transaction_failed=True, resumed_step=told["awaiting"]["id"])
    # dnf mark(8) is a transaction of its own in dnf's history
    assert not history.entries(machine.root.host)[-1].after, "nothing was marked"
    _first, done = machine.run()
    assert [each.split("/")[1] for each in done if "dnf.finish" in each] == ["dnf.finish"]
    assert set(driver(machine).values()) == {V580}


@pytest.mark.variation
def test_what_was_killed_in_rpm_is_finished_though_somebody_has_installed_something_since(machine: Machine) -> None:
    """dnf-automatic comes between the kill and the next run: its transaction has an end, and ours has none all the
    same."""
    step = machine.call()["awaiting"]
    machine.root.write("/killed-here-kmod", "")
    machine.root.module(DNF.builtin_options(step) or {})
    (machine.root.path / "killed-here-kmod").unlink()
    machine.root.dnf("install", "tool-2.0")
    finish = machine.call(check=True)["plan"]["steps"][0]
    assert (finish["action"], OPEN in finish["change"]["after"]) == (history.FINISH, True), finish
    machine.run()
    assert set(driver(machine).values()) == {V580}
    assert machine.run()[0]["plan"]["steps"] == []


def killed_exchange(machine: Machine) -> None:
    machine.run()
    machine.loaded = V580
    killed(machine, "libs", version=V595)


def killed(machine: Machine, where: str, **options: Any) -> None:
    """A run whose transaction is killed in the script of a package."""
    machine.root.write("/killed-here-" + where, "")
    step = machine.call(run_id="test 2", **options)["awaiting"]
    machine.root.module(DNF.builtin_options(step) or {})
    (machine.root.path / ("killed-here-" + where)).unlink()
    machine.call(run_id="test 2", transaction_failed=True, resumed_step=step["id"], **options)


@pytest.mark.variation
@pytest.mark.parametrize("wish", [{"version": V595}, {"version": V595, "state": "rolled_back"}])
def test_what_is_killed_in_rpm_while_it_is_finished_is_finished_by_the_next_run(
    machine: Machine, wish: Mapping[str, Any]
) -> None:
    """Each package that came is there twice by then, in the same version."""
    killed_exchange(machine)
    machine.root.write("/killed-here-libs", "")
    assert machine.call(version=V595)["code"] == "packages.not_finished"
    (machine.root.path / "killed-here-libs").unlink()
    twice = database.twice(machine.root.packages())
    assert "nvidia-driver-cuda-libs" in twice and database.leftovers(machine.root.packages()) == ()
    (finish,) = [step for step in machine.call(check=True, **wish)["plan"]["steps"] if step["action"] == history.FINISH]
    assert finish["change"]["after"] == twice
    machine.run(**wish)
    assert set(driver(machine).values()) == {V580 if "state" in wish else V595}
    assert database.twice(machine.root.packages()) == {} and not DNF.interrupted(machine.root.host)
    again, nothing = machine.run(**wish)
    assert (nothing, again["plan"]["steps"]) == ([], [])


@pytest.mark.variation
def test_files_that_a_power_cut_has_emptied_after_the_last_word_of_rpm_and_dnf_come_once_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has brought them to the disk; the database and the history are there, and say that all is well. What
    somebody has marked since dnf has brought to the disk."""
    step = machine.call()["awaiting"]
    assert not machine.root.module(DNF.builtin_options(step) or {}).get("failed")
    torn = machine.root.path / "usr/share/nvidia-driver-cuda-libs/version"
    torn.write_text("")
    assert not DNF.interrupted(machine.root.host), "the same boot"
    assert "dkms" in DNF.automatic(machine.root.host)
    machine.root.dnf("mark", "install", "dkms")
    monkeypatch.setattr(Host, "boot", lambda self: "another boot")
    monkeypatch.setattr(Host, "booted", lambda self: time.time() + 9)
    coming = {name: version for name, version in step["change"]["after"].items() if version is not None}
    (finish,) = [each for each in machine.call(check=True)["plan"]["steps"] if each["action"] == history.FINISH]
    assert finish["change"]["after"] == coming
    with monkeypatch.context() as context:
        # The module dies, or the repository does not answer; the step of the transaction is closed by then
        context.setattr(history, "_reinstall", _fails)
        assert machine.call()["code"] == "packages.not_finished"
        assert step["id"] not in [each["step"]["id"] for each in Journal(machine.root.host).unfinished("driver")]
    _first, done = machine.run()
    assert done[0].split("/")[1] == "dnf.finish" and set(of_files(machine).values()) == {V580}
    again, nothing = machine.run()
    assert (nothing, again["plan"]["steps"]) == ([], []) and "dkms" not in DNF.automatic(machine.root.host)


def _fails(*_words: Any) -> None:
    raise GpuOpsError("packages.not_finished", found="", wanted="", remedy="")


def of_files(machine: Machine) -> Dict[str, str]:
    """{package of the driver: the version that its file is of}."""
    return {name: (machine.root.path / "usr/share" / name / "version").read_text().strip() for name in driver(machine)}


@pytest.mark.variation
@pytest.mark.parametrize("wish", [{"version": V595}, {"version": V595, "state": "rolled_back"}])
def test_a_way_back_that_is_killed_in_rpm_is_finished_in_the_version_that_came(
    machine: Machine, wish: Mapping[str, Any]
) -> None:
    """The older version is the one whose files are there, whatever is asked for next."""
    machine.run()
    machine.loaded = V580
    machine.run(version=V595)
    killed(machine, "libs", version=V595, state="rolled_back")
    assert driver(machine)["nvidia-driver-cuda-libs"] == V580
    _first, done = machine.run(**wish)
    assert done[0].split("/")[1] == "dnf.finish"
    wanted = V580 if "state" in wish else V595
    assert set(driver(machine).values()) == set(of_files(machine).values()) == {wanted}
    again, nothing = machine.run(**wish)
    assert (nothing, again["plan"]["steps"]) == ([], [])


def test_an_exchange_is_taken_back_without_the_repository_and_what_it_brought_beside_goes(machine: Machine) -> None:
    machine.run()
    machine.loaded, before = V580, machine.root.installed()
    machine.root.write(locks.LIST, (machine.root.host.read(locks.LIST) or "") + "tool-0:1.0-1.el9.*\n")
    held = machine.root.host.read(locks.LIST)
    first, _done = machine.run(version=V595, fabric_manager="present")
    assert (first["returns_to"]["version"], first["returns_to"]["how"]) == (V580, "archive")
    assert "nvidia-fabricmanager" in machine.root.installed()
    machine.loaded = ""
    machine.take_repository_away()
    with machine.beside_a_silent_one():
        done = change(machine, version=V595, state="rolled_back")
    assert [each.split("/")[1] for each in done] == [
        "file.write", "file.write", "archive.check", "packages.install", "dkms.build", "packages.remove"]
    assert machine.root.installed() == before
    assert machine.root.host.read(locks.LIST) == held
    assert "stream=580-open" in (machine.root.host.read("/etc/dnf/modules.d/nvidia-driver.module") or "")


@pytest.mark.variation
def test_files_that_are_damaged_do_not_count_and_the_repository_has_them(machine: Machine) -> None:
    machine.run()
    machine.loaded = V580
    machine.run(version=V595)
    for path in machine.root.path.glob("var/cache/gpuops/driver/*%s*" % V580):
        path.write_bytes(path.read_bytes()[:-100])
    machine.run(state="rolled_back", version=V595)
    assert set(driver(machine).values()) == {V580}


@pytest.mark.variation
def test_an_exchange_that_was_killed_in_rpm_is_taken_back(machine: Machine) -> None:
    killed_exchange(machine)
    machine.take_repository_away()
    _first, done = machine.run(state="rolled_back", version=V595)
    assert done[0].split("/")[1] == "dnf.finish"
    assert set(driver(machine).values()) == {V580}
    again, nothing = machine.run(state="rolled_back", version=V595)
    assert (nothing, again["plan"]["steps"]) == ([], [])


@pytest.mark.variation
def test_an_exchange_that_is_stopped_once_its_beginning_was_finished_still_leads_back_to_the_driver_before(
    machine: Machine
) -> None:
    killed_exchange(machine)
    there = driver(machine)
    assert set(there.values()) == {V580, V595} and there[OPEN] == V580, there
    planned_now = machine.call(check=True, version=V595)["plan"]["steps"]
    (finish,) = [each for each in planned_now if each["action"] == history.FINISH]
    history.finish(machine.root.host, Journal(machine.root.host), Step.from_dict(finish))
    # No package is unfinished any more, the old module is loaded, and some packages are the new driver's
    assert set(driver(machine).values()) == {V580, V595}
    machine.run(version=V595)
    machine.run(version=V595, state="rolled_back")
    assert set(driver(machine).values()) == {V580}


@pytest.mark.variation
def test_a_password_is_in_one_file_that_root_alone_reads_and_dnf_logs_in_with_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 'pa$$releasever\\w{%7}"\'#$'
    monkeypatch.setattr(_Closed, "told", "svc:" + secret)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Closed, directory=str(scratch_rpm.nvidia())))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = "http://svc:%s@127.0.0.1:%d/" % (quote(secret, safe=""), server.server_port)
    try:
        told = machine.call(check=True, repository_url="http://127.0.0.1:%d/" % server.server_port)
        assert told["code"] == "driver.repository_unreadable"
        done = change(machine, repository_url=url)
        assert [each.split("/")[1] for each in done][:1] == ["credentials.write"]
        assert set(driver(machine).values()) == {V580}
        machine.root.dnf("--refresh", "makecache")
        holders = [name for name, data in machine.root.tree().items() if secret.encode() in data]
        assert holders == [PASSWORD_FILE.lstrip("/")] == [
            name for name, data in machine.root.tree().items() if secret[:13].encode() in data]
        assert machine.root.host.mode(PASSWORD_FILE) == 0o600
        monkeypatch.setattr(_Closed, "told", "svc:another")
        other = url.replace(quote(secret, safe=""), "another")
        _first, done = machine.run(repository_url=other, version=V595)
        assert "credentials.write" in [each.split("/")[1] for each in done]
        change(machine, repository_url=other, version=V595, state="absent")
        assert not machine.root.host.exists(PASSWORD_FILE)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.variation
def test_the_way_back_to_another_repository_takes_no_password_of_this_one_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Closed, "told", "svc:one")
    handler = partial(_Closed, directory=str(scratch_rpm.nvidia()))
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _each in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    first, second = ("http://svc:one@127.0.0.1:%d/" % server.server_port for server in servers)
    try:
        machine.run(repository_url=first)
        machine.loaded = V580
        machine.run(repository_url=second, version=V595)
        machine.loaded = ""
        change(machine, repository_url=second, version=V595, state="rolled_back")
        assert set(driver(machine).values()) == {V580}
        there = machine.root.host.read(REPO_FILE) or ""
        assert "baseurl=http://127.0.0.1:%d/" % servers[0].server_port in there
        assert "password" not in there and "username" not in there
        machine.run(repository_url=first)
        assert "password=$" in (machine.root.host.read(REPO_FILE) or "")
        assert (machine.root.host.read(PASSWORD_FILE) or "").splitlines()[1].endswith(":%d/" % servers[0].server_port)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@pytest.mark.variation
def test_the_way_back_from_kept_files_does_not_ask_for_the_repository_of_then(machine: Machine) -> None:
    handler = partial(Quiet, directory=str(scratch_rpm.nvidia()))
    gone = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=gone.serve_forever, daemon=True).start()
    machine.run(repository_url="http://127.0.0.1:%d/" % gone.server_port)
    machine.loaded, before = V580, machine.root.installed()
    machine.run(version=V595)
    machine.loaded = ""
    gone.shutdown()
    gone.server_close()
    change(machine, version=V595, state="rolled_back")
    assert machine.root.installed() == before


@pytest.mark.variation
def test_without_a_controller_a_driver_comes_is_exchanged_and_goes_as_with_one(machine: Machine) -> None:
    before = machine.root.installed()
    first = [step["id"] for step in machine.call(check=True)["plan"]["steps"]]
    assert set(alone(machine)) <= set(first) and alone(machine) == []
    assert set(driver(machine).values()) == {V580} and machine.run()[1] == [], "a controller finds nothing to do"
    alone(machine, version=V595)
    assert set(driver(machine).values()) == {V595}
    alone(machine, version=V595, state="absent")
    assert machine.root.installed() == before and Journal(machine.root.host).packages("driver") == {}


@pytest.mark.variation
def test_a_driver_goes_without_any_repository(machine: Machine) -> None:
    before = machine.root.installed()
    machine.run()
    machine.take_repository_away()
    machine.root.dnf("clean", "all")
    change(machine, state="absent")
    assert machine.root.installed() == before


@pytest.mark.variation
def test_a_transaction_of_somebody_else_that_is_at_work_is_not_taken_for_one_that_was_stopped(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.root.write("/killed-here-libs", "")
    machine.root.dnf("install", "--disablerepo=*", *("--repofrompath=n,%s" % scratch_rpm.nvidia(), "--enablerepo=n"),
                     "--nogpgcheck", "nvidia-driver-cuda-libs", check=False)
    (machine.root.path / "killed-here-libs").unlink()
    monkeypatch.setattr(others, "LOCK_SECONDS", 1.0)
    held = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; held = open(sys.argv[1], 'a'); fcntl.lockf(held, fcntl.LOCK_EX); "
         "print('held', flush=True); sys.stdin.read()", str(machine.root.path / "var/lib/rpm/.rpm.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert held.stdout is not None and held.stdout.readline()
    told = machine.call(check=True)
    assert (told["code"], "process %d" % held.pid in told["found"]) == ("packages.manager_at_work", True), told["msg"]
    threading.Timer(3.0, held.communicate).start()
    monkeypatch.setattr(others, "LOCK_SECONDS", 60.0)
    assert machine.call(check=True)["code"] == "driver.transaction_unfinished"
    assert held.wait(10) == 0


def test_a_host_without_the_plugin_of_locks_is_refused_until_nothing_is_to_be_held(machine: Machine) -> None:
    machine.root.write("/etc/dnf/plugins/versionlock.conf", "[main]\nenabled = 0\n")
    told = machine.call(check=True)
    assert told["failed"] and told["code"] == "packages.no_versionlock"
    assert not machine.call(check=True, hold=False).get("failed")


@pytest.mark.variation
def test_a_host_whose_list_of_locks_is_gone_is_told_how_dnf_works_again(machine: Machine) -> None:
    machine.run()
    (machine.root.path / locks.LIST.lstrip("/")).unlink()
    assert "Unable to read" in machine.root.dnf("install", "app", check=False).stderr
    for hold in (True, False):
        told = machine.call(check=True, version=V595, hold=hold)
        assert told["failed"] and told["code"] == "packages.no_versionlock_list"
    machine.root.write(locks.LIST, "")
    change(machine, version=V595)


BUILT: Mapping[str, Any] = {"build": "precompiled", "kernel_module": "proprietary"}


def kmods(machine: Machine) -> List[str]:
    """Modules that are there and came built."""
    return sorted(filter(catalogue.EL_MODULES.match, machine.root.installed()))


def actions(done: List[str]) -> List[str]:
    return [each.split("/")[1] for each in done]


@pytest.mark.variation
def test_modules_that_nvidia_has_built_for_a_kernel_set_the_version_and_go_with_their_driver(machine: Machine) -> None:
    before = machine.root.installed()
    planned_ones = [step["action"] for step in machine.call(check=True, version="580", **BUILT)["plan"]["steps"]]
    assert planned_ones[-2:] == ["packages.install", "module.verify"]
    done = change(machine, version="580", **BUILT)
    assert actions(done) == ["file.write", "rpm.import_key", "file.write", "packages.download", "file.write",
                             "file.write", "packages.install"]
    assert kmods(machine) == ["kmod-nvidia-%s-5.14.0-570" % OLDER_580], "of the newer one there is none for this kernel"
    assert set(driver(machine).values()) == {OLDER_580}
    assert not {"dkms", machine.headers}.intersection(machine.root.installed())
    assert "stream=580\n" in (machine.root.host.read("/etc/dnf/modules.d/nvidia-driver.module") or "")
    there = driver(machine)
    machine.root.dnf("update")
    assert driver(machine) == there
    assert machine.run(version="580", kernel_module="proprietary")[0]["plan"]["steps"] == [], "'auto' leaves its kind"
    machine.loaded = OLDER_580
    done = change(machine, version=V595, **BUILT)
    assert actions(done)[-2:] == ["packages.install", "packages.remove"]
    assert kmods(machine) == ["kmod-nvidia-%s-5.14.0-570" % V595]
    assert "kmod-nvidia-%s" % OLDER_580 not in (machine.root.host.read(locks.LIST) or "")
    machine.loaded, there = V595, machine.root.installed()
    done = change(machine, version=V595, state="rolled_back")
    assert actions(done)[-2:] == ["packages.install", "packages.remove"]
    assert kmods(machine) == ["kmod-nvidia-%s-5.14.0-570" % OLDER_580]
    machine.loaded = OLDER_580
    change(machine, version="580", state="absent", **BUILT)
    assert {name for name in machine.root.installed() if not name.startswith("kernel-core")} == {
        name for name in before if not name.startswith("kernel-core")}


@pytest.mark.variation
def test_what_a_package_of_others_needs_while_modules_are_exchanged_goes_with_the_driver_once_they_are_gone(
    machine: Machine
) -> None:
    before = set(machine.root.installed())
    machine.run(version=OLDER_580, **BUILT)
    machine.root.dnf("install", "app")
    machine.loaded = OLDER_580
    _first, done = machine.run(version=V595, **BUILT)
    assert "packages.remove" in actions(done), "the modules of the driver before"
    machine.root.dnf("remove", "app")
    machine.loaded = ""
    machine.run(version=V595, state="absent", **BUILT)
    assert set(machine.root.installed()) == before


@pytest.mark.variation
@pytest.mark.parametrize("module, own", [("open", OPEN), ("proprietary", CLOSED)])
def test_modules_that_came_built_and_those_of_dkms_give_way_to_each_other(
    machine: Machine, module: str, own: str
) -> None:
    """One of the two kinds says itself that it excludes them."""
    wanted: Dict[str, Any] = {"version": V595, "build": "dkms", "kernel_module": module}
    change(machine, version=V595, **BUILT)
    machine.loaded = V595
    assert "dkms.build" in actions(change(machine, **wanted))
    assert (kmods(machine), own in machine.root.installed()) == ([], True)
    change(machine, version=V595, **BUILT)
    assert (len(kmods(machine)), own in machine.root.installed()) == (1, False)
    assert actions(change(machine, version=V595, state="rolled_back"))[-1] in ("dkms.build", "packages.remove")
    assert (kmods(machine), own in machine.root.installed()) == ([], True)


def test_a_kernel_for_which_nobody_has_built_them_is_refused_with_the_drivers_that_there_are(machine: Machine) -> None:
    before = machine.root.tree()
    told = machine.call(version=V580, **BUILT)
    assert [each["code"] for each in told["refusals"]] == ["driver.no_precompiled_module"]
    assert "is of driver %s, %s for kernel %s" % (OLDER_580, V595, machine.release) in told["msg"]
    assert "set `version` to %s" % OLDER_580 in told["msg"]
    told = machine.call(version=V580, build="precompiled")
    assert [each["code"] for each in told["refusals"]] == ["driver.build_not_offered"]
    after = machine.root.tree()
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)
            and not name.startswith(("run/gpuops/", "var/lib/gpuops/"))} == set()


@pytest.mark.variation
def test_modules_of_the_driver_before_go_with_the_next_run_where_one_was_stopped_before_that(machine: Machine) -> None:
    machine.run(version=OLDER_580, **BUILT)
    told = machine.call(version=V595, **BUILT)
    while told["awaiting"]["action"] != "packages.install":
        carried = machine.root.module(DNF.builtin_options(told["awaiting"]) or {})
        assert carried.get("failed") is not True
        told = machine.call(version=V595, **BUILT, resumed_step=told["awaiting"]["id"])
    machine.root.module(DNF.builtin_options(told["awaiting"]) or {})
    assert len(kmods(machine)) == 2
    first, done = machine.run(version=V595, run_id="test 2", **BUILT)
    assert actions(done)[-1] == "packages.remove"
    assert kmods(machine) == ["kmod-nvidia-%s-5.14.0-570" % V595]
    assert machine.root.host.read(module_of(machine.release)) == V595
    assert machine.run(version=V595, **BUILT)[0]["plan"]["steps"] == []


def looked_at(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is looked at as it is on a host; of its file the version alone is there."""
    executors: Any = CAPABILITY.executors
    monkeypatch.setitem(executors, "module.verify", precompiled.verify_module)
    monkeypatch.setattr(precompiled, "installed_module", lambda host, release: Module(
        module_of(release), host.read(module_of(release)) or "", "NVIDIA"))


def stopped_between_its_transactions(machine: Machine, **options: Any) -> None:
    """A run that ends where modules of both drivers are there, as one whose controller is killed."""
    told = machine.call(run_id="test 2", **options)
    while told["awaiting"]["action"] != "packages.remove":
        assert not machine.root.module(DNF.builtin_options(told["awaiting"]) or {}).get("failed")
        told = machine.call(run_id="test 2", **options, resumed_step=told["awaiting"]["id"])
    machine.others_gave_up()


@pytest.mark.variation
@pytest.mark.parametrize("wish, offline", [
    ({"version": V595, "state": "rolled_back"}, True),
    ({"version": OLDER_580}, False)])
def test_modules_whose_place_another_driver_s_have_taken_are_put_together_once_more_by_their_own_package(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, wish: Mapping[str, Any], offline: bool
) -> None:
    """Those of the driver before are installed still, so that nothing of dnf would bring their file back."""
    looked_at(machine, monkeypatch)
    machine.run(version=OLDER_580, **BUILT)
    machine.loaded = OLDER_580
    stopped_between_its_transactions(machine, version=V595, **BUILT)
    assert (len(kmods(machine)), machine.root.host.read(module_of(machine.release))) == (2, V595)
    if offline:
        machine.take_repository_away()
    else:
        for path in machine.root.path.glob("var/cache/gpuops/driver/kmod-*"):
            path.unlink()
    _first, done = machine.run(**{**BUILT, **wish})
    assert actions(done)[-1] == "module.verify"
    assert kmods(machine) == ["kmod-nvidia-%s-5.14.0-570" % OLDER_580]
    assert machine.root.host.read(module_of(machine.release)) == OLDER_580
    again, nothing = machine.run(**{**BUILT, **wish})
    assert (nothing, again["plan"]["steps"]) == ([], [])


@pytest.mark.variation
@pytest.mark.parametrize("wish", [BUILT, {"kernel_module": "proprietary"}])
def test_modules_of_the_other_kind_that_are_staged_come_without_the_repository(
    machine: Machine, wish: Mapping[str, Any]
) -> None:
    """The rest of the driver is there in that very version, and no repository has to have it once more."""
    machine.run(version=OLDER_580)
    machine.loaded = OLDER_580
    machine.run(state="staged", version=OLDER_580, **wish)
    machine.take_repository_away()
    since = len(history.entries(machine.root.host))
    first, _done = machine.run(version=OLDER_580, **wish)
    (step,) = [each for each in first["plan"]["steps"] if each["action"] == "packages.install"]
    assert OPEN not in step["parameters"]["request"], "it leaves"
    assert set(driver(machine).values()) == {OLDER_580} and OPEN not in machine.root.installed()
    assert len(history.entries(machine.root.host)) > since
    assert machine.run(version=OLDER_580, **wish)[0]["plan"]["steps"] == []


def test_a_package_that_somebody_has_locked_is_not_removed_for_modules_of_the_other_kind(machine: Machine) -> None:
    machine.run(version=OLDER_580)
    machine.root.write(locks.LIST, (machine.root.host.read(locks.LIST) or "") + OPEN + "-3:%s-1.el9.*\n" % OLDER_580)
    told = machine.call(check=True, version=OLDER_580, **BUILT)
    assert (told.get("code"), "dnf versionlock delete %s`" % OPEN in told.get("msg", "")) == ("packages.held", True)


def configure_dnf(machine: Machine, *lines: str) -> None:
    with (machine.root.path / "etc/dnf/dnf.conf").open("a") as file:
        file.write("".join(line + "\n" for line in lines))


def test_what_dnf_is_told_to_leave_out_is_no_lock_of_somebody(machine: Machine) -> None:
    configure_dnf(machine, "excludepkgs=kernel-devel* nvidia-persistenced*")
    told = machine.call(check=True)
    assert (told["failed"], told["code"]) == (True, "packages.excluded")
    assert "dnf leaves out kernel-devel, kernel-devel-matched, nvidia-persistenced (excludepkgs" in told["msg"]
    machine.root.write(locks.LIST, "nvidia-persistenced-0:1.0-1.*\n")
    told = machine.call(check=True)
    assert (told["code"], "dnf versionlock delete nvidia-persistenced`" in told["msg"]) == ("packages.held", True)


_PLUGIN = """
import dnf


class OfKernels(dnf.Plugin):
    name = "of-kernels"

    def sack(self):
        packages = self.base.sack.query().available()
        if not packages.filter(name__glob="kmod-nvidia-[0-9]*"):
            self.base.sack.add_excludes(packages.filter(name__glob="kernel-*"))
"""


@pytest.mark.variation
def test_what_a_plugin_leaves_out_under_the_stream_that_comes_is_refused_before_anything_changes(
    machine: Machine
) -> None:
    """As NVIDIA's does, which keeps kernels away for which it sees no module that came built."""
    change(machine, version=V595, **BUILT)
    machine.loaded = V595
    plugins = machine.root.path / "usr/lib/plugins"
    plugins.mkdir(parents=True)
    shutil.copy("/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py", plugins)
    (plugins / "of_kernels.py").write_text(_PLUGIN)
    configure_dnf(machine, "pluginpath=%s" % plugins)
    told = machine.call(check=True, version=V595, build="dkms", kernel_module="open")
    assert (told["failed"], told["code"]) == (True, "packages.excluded"), told
    assert "dnf leaves out kernel-devel, kernel-devel-matched (" in told["msg"]


OF_RED_HAT: Mapping[str, Any] = {"source": "distribution", "repository_url": "", "repository_key": ""}


@pytest.mark.variation
def test_red_hat_s_modules_come_from_its_own_repositories_and_what_another_source_has_brought_is_refused(
    rhel: OfRhel
) -> None:
    before = rhel.root.installed()
    told = rhel.call(version="580", **OF_RED_HAT)
    assert [each["code"] for each in told["refusals"]] == ["driver.version_not_offered"]
    assert "rhel-10-for-x86_64-extensions-rpms, rhel-10-for-x86_64-supplementary-rpms" in told["msg"]
    # NVIDIA's own, for CUDA, of EL 10 without streams: its user space has the same names, epochs and versions
    rhel.root.configure("cuda", scratch_rpm.nvidia_rebuilt())
    told = rhel.call(version="580", **OF_RED_HAT)
    assert [each["code"] for each in told["refusals"]] == ["driver.version_not_offered"]
    rhel.root.configure("extensions", scratch_rpm.extensions(), "two")
    done = change(rhel, version="580", **OF_RED_HAT)
    assert actions(done) == ["packages.download", "file.write", "packages.install"], "it has no repository of ours"
    assert vendors(rhel) == {"Red Hat, Inc."}
    assert kmods(rhel) == ["kmod-nvidia-open-%s-5.14.0-570" % OLDER_580]
    rhel.root.dnf("update")
    assert set(driver(rhel).values()) == {OLDER_580}
    rhel.loaded = OLDER_580
    told = rhel.call(version=OLDER_580)
    assert [each["code"] for each in told["refusals"]] == ["driver.packages_of_another_source"]
    change(rhel, version="595", **OF_RED_HAT)
    assert kmods(rhel) == ["kmod-nvidia-open-%s-5.14.0-570" % V595]
    rhel.loaded = V595
    change(rhel, version="595", state="rolled_back", **OF_RED_HAT)
    assert set(driver(rhel).values()) == {OLDER_580}
    rhel.loaded = ""
    change(rhel, version="580", state="absent", **OF_RED_HAT)
    assert {name for name in rhel.root.installed() if not name.startswith("kernel-core")} == {
        name for name in before if not name.startswith("kernel-core")}


def vendors(machine: Machine) -> Set[str]:
    """Whose the driver's packages say they are, '(none)' of NVIDIA's."""
    told = machine.root.rpm("--query", "--all", "--queryformat", "%{name} %{vendor}\\n").stdout
    return {vendor for name, _space, vendor in (line.partition(" ") for line in told.splitlines()) if "nvidia" in name}


def test_nvidia_s_driver_is_nvidia_s_in_every_package_beside_red_hat_s_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    home(tmp_path, monkeypatch)
    root = Root(tmp_path / "root")
    root.write(locks.LIST, "")
    root.dnf("install", "kernel-core-5.14.0-570.el9")
    root.configure("extensions", scratch_rpm.extensions(), "two")
    with running(OfRhel, root, scratch_rpm.nvidia(modules=False), capsys, monkeypatch) as machine:
        done = change(machine)
        assert "dkms.build" in actions(done)
        assert (set(driver(machine).values()), vendors(machine)) == ({V580}, {"(none)"})
        assert "nvidia-driver-cuda-libs" in DNF.automatic(root.host)


@pytest.mark.variation
def test_what_another_source_alone_has_of_a_driver_is_refused(rhel: OfRhel, tmp_path: Path) -> None:
    """One package that others need has been left out of Red Hat's."""
    some = tmp_path / "some"
    shutil.copytree(scratch_rpm.extensions(), some, ignore=shutil.ignore_patterns("repodata", "*-cuda-libs-*"))
    rhel.root.configure("cuda", scratch_rpm.nvidia_rebuilt())
    rhel.root.configure("extensions", scratch_rpm.publish(some, [], key="two"), "two")
    told = rhel.call(check=True, version="580", **OF_RED_HAT)
    assert (told["failed"], told["code"]) == (True, "driver.sources_mixed"), told
    assert "nvidia-driver-cuda-libs 3:%s-2.el9, from another source" % OLDER_580 in told["found"]


def served(root: Root, name: str, where: Path) -> http.server.HTTPServer:
    """A repository of the host's own, which may go."""
    server = serve(partial(Quiet, directory=str(where)))
    root.configure(name, "http://127.0.0.1:%d/" % server.server_port, "two")
    return server


@pytest.mark.variation
def test_what_is_staged_of_red_hat_s_is_installed_without_its_repositories(rhel: OfRhel) -> None:
    server = served(rhel.root, "extensions", scratch_rpm.extensions())
    rhel.run(state="staged", version="580", **OF_RED_HAT)
    server.shutdown()
    server.server_close()
    told = rhel.call(check=True, version="595", **OF_RED_HAT)
    assert [each["code"] for each in told["refusals"]] == ["driver.version_not_offered"]
    assert "not read: extensions: " in told["found"] and told["remedy"] == "mend the source that cannot be read"
    change(rhel, version="580", **OF_RED_HAT)
    assert kmods(rhel) == ["kmod-nvidia-open-%s-5.14.0-570" % OLDER_580]


@pytest.mark.variation
def test_what_lies_in_a_directory_of_this_host_is_staged_too(rhel: OfRhel) -> None:
    rhel.root.configure("extensions", scratch_rpm.extensions(), "two")
    rhel.run(state="staged", version="580", **OF_RED_HAT)
    rhel.root.configure("extensions", "file:///no/such/place", "two")
    change(rhel, version="580", **OF_RED_HAT)
    assert kmods(rhel) == ["kmod-nvidia-open-%s-5.14.0-570" % OLDER_580]


def test_the_repository_of_the_modules_is_named_where_only_that_of_user_space_is_enabled(
    rhel: OfRhel, tmp_path: Path
) -> None:
    some = tmp_path / "some"
    shutil.copytree(scratch_rpm.extensions(), some, ignore=shutil.ignore_patterns("repodata", "kmod-*"))
    rhel.root.configure("supplementary", scratch_rpm.publish(some, [], key="two"), "two")
    told = rhel.call(check=True, version="580", **OF_RED_HAT)
    assert told["code"] == "driver.no_precompiled_module"
    assert told["remedy"].startswith("enable the repositories that have them (rhel-10-for-x86_64-extensions-rpms, rhel")
