# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Without a controller dnf's own library carries package steps out: what a step says, and nothing more."""
from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Iterator, Mapping, Optional, Tuple

import pytest
import rpm_changes
import scratch_rpm
from rpm_changes import LIBRARIES, asked, evr, nvidias, write
from rpm_machine import home
from scratch_apt import keyring
from scratch_rpm import CLOSED, MODULE, OLDER_580, OPEN, V580, V595, Made, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import package_manager_works
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import PACKAGES_INSTALL, packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import carrying_out, history, locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository, Simulation

LIMIT_SECONDS = 60.0
trust = partial(rpm_changes.trust, DNF)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    home(tmp_path, monkeypatch)
    return Root(tmp_path / "root")


def nvidia() -> Repository:
    return nvidias(scratch_rpm.nvidia())


def carry_out(root: Root, step: Step) -> None:
    DNF.carry_out(root.host, Journal(root.host), step)


def ready(
    root: Root, request: Mapping[str, str], stream: str = "", down: bool = False,
    repository: Optional[Repository] = None
) -> Tuple[Simulation, Step]:
    """A step that was planned, on a host where all is written that comes before it."""
    done, step, files = rpm_changes.planned(
        DNF, root, repository or nvidia(), request, down, DNF.choose({MODULE: stream} if stream else {}))
    assert done.problem == ""
    trust(root, repository or nvidia())
    write(root, files)
    return done, step


def change(root: Root, request: Mapping[str, str], stream: str, down: bool = False) -> Simulation:
    """Simulate, carry out, and hold dnf's history against the simulation."""
    done, step = ready(root, request, stream, down)
    opened = {"known": DNF.known(root.host, step), "there": root.installed()}
    carry_out(root, step)
    entry = history.entries(root.host)[-1]
    assert (entry.ended, dict(entry.after)) == (True, done.change[1])
    came = DNF.evidence(root.host, step, opened, root.packages())
    assert {name: (each.before, each.after) for name, each in came.items()} == {
        name: (done.change[0][name], version) for name, version in done.change[1].items()}
    assert DNF.has_marked(root.host, step, opened)
    return done


def of_one(root: Root, directory: Path, package: Made) -> Step:
    """A step that installs this one, of a repository of its own."""
    root.configure("more", scratch_rpm.publish(directory, [package]))
    root.write(locks.LIST, "")
    step = packages_step("driver", "driver", {package.name: None}, {package.name: package.evr}, "a test",
                         manager="dnf")
    return replace(step, action=PACKAGES_INSTALL)


def test_a_driver_comes_changes_goes_back_and_goes(root: Root) -> None:
    before = root.installed()
    change(root, asked(V580), "580-open")
    assert "dkms" in DNF.automatic(root.host) and "nvidia-driver-cuda" not in DNF.automatic(root.host)
    change(root, asked(V595), "595-open")
    change(root, asked(OLDER_580), "580-open", down=True)
    done = change(root, asked(OLDER_580, CLOSED), "580-dkms")
    assert (done.installs, done.removes) == ({CLOSED: evr(OLDER_580)}, (OPEN,))
    there = root.installed()
    gone = packages_step("driver", "driver", there, dict.fromkeys(there), "a test", manager="dnf")
    root.configure("gone", "file:///no/such/place")
    for _time in range(2):
        carry_out(root, gone)
        assert root.installed() == before
    assert len(history.entries(root.host)) == 5, "the second time nothing is to be done"


def test_nobody_asks_a_second_time_for_what_is_there(root: Root) -> None:
    change(root, asked(V580), "580-open")
    _done, step = ready(root, asked(V580), "580-open")
    carry_out(root, step)
    assert len(history.entries(root.host)) == 1


def test_more_than_the_step_says_is_not_done(root: Root) -> None:
    _done, step = ready(root, asked(V580), "580-open")
    less = {name: version for name, version in step.change["after"].items() if name != "dkms"}
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, replace(step, change={"before": step.change["before"], "after": less}))
    assert told.value.code == "packages.would_do_more"
    assert told.value.found == "dnf would change dkms (nothing -> 3.2.2-1.el9)"
    assert root.installed() == {} and history.entries(root.host) == []


def test_a_removal_takes_along_nothing_that_it_does_not_name(root: Root) -> None:
    change(root, asked(V580), "580-open")
    root.dnf("--enablerepo=*", "install", "app")
    there = root.installed()
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, packages_step("driver", "driver", {LIBRARIES: evr(V580)}, {LIBRARIES: None}, "a test",
                                      manager="dnf"))
    assert "app (1.0-1.el9 -> nothing)" in told.value.found and root.installed() == there


def test_what_dnf_would_do_is_judged_again_where_it_is_another_thing_by_then(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the question and the transaction somebody installs a part of it."""
    _done, step = ready(root, asked(V580), "580-open")
    judge = carrying_out.refuse_unforeseen

    def meanwhile(*words: object) -> None:
        judge(*words)  # type: ignore[arg-type]
        root.dnf("install", "dkms")

    monkeypatch.setattr(carrying_out, "refuse_unforeseen", meanwhile)
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.dnf_changed_meanwhile" and set(root.installed()) == {"dkms"}
    monkeypatch.setattr(carrying_out, "refuse_unforeseen", judge)
    carry_out(root, step)
    assert root.installed() == step.change["after"]


def test_a_package_that_another_key_signed_is_not_installed(root: Root, tmp_path: Path) -> None:
    foreign = nvidias(scratch_rpm.publish(tmp_path / "foreign", scratch_rpm.driver(V580), key="three"))
    _done, step = ready(root, asked(V580), repository=foreign)
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.dnf_transaction_failed" and root.installed() == {}


def test_a_file_on_the_host_needs_a_key_that_rpm_trusts(root: Root) -> None:
    tool = Made("tool", "2.0")
    path = str(scratch_rpm.built(tool))
    root.write(locks.LIST, "")
    step = packages_step("driver", "driver", {"tool": None}, {"tool": tool.evr}, "a test", manager="dnf",
                         files={"tool": path}, without=["*"])
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert "tool-2.0" in told.value.found and root.installed() == {}
    signed = root.path / "tmp/tool.rpm"
    signed.write_bytes(Path(path).read_bytes())
    scratch_rpm.sign(keyring("two"), [signed])
    carry_out(root, replace(step, parameters={**step.parameters, "files": {"tool": str(signed)}}))
    assert root.installed() == {"tool": tool.evr}


def test_a_repository_of_somebody_else_that_is_gone_stops_nobody(root: Root) -> None:
    root.configure("gone", "file:///no/such/place")
    _done, step = ready(root, asked(V580), "580-open")
    assert step.parameters["without"] == ["gone"]
    carry_out(root, step)
    assert root.installed()["nvidia-driver-cuda"] == evr(V580)


def test_a_script_that_fails_is_told_in_its_words_and_what_came_is_there(root: Root, tmp_path: Path) -> None:
    failing = Made("failing", "1.0", script='error("no compiler")')
    step = of_one(root, tmp_path / "more", failing)
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.dnf_script_failed" and "rpm package failing" in told.value.found
    assert "no compiler" in told.value.details["stdout"]
    assert root.installed() == {"failing": failing.evr} and history.entries(root.host)[-1].ended
    carry_out(root, step)


class Unwilling(Made):
    """A package whose script runs before anything of it is there."""

    @property
    def spec(self) -> str:
        return super().spec.replace("%post", "%pre")


def test_a_package_that_does_not_come_is_a_failure(root: Root, tmp_path: Path) -> None:
    step = of_one(root, tmp_path / "more", Unwilling("unwilling", "1.0", script='error("no compiler")'))
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.dnf_transaction_failed"
    assert "PREIN scriptlet in rpm package unwilling" in told.value.found and root.installed() == {}


@pytest.mark.parametrize("where", ["libs", pytest.param("kmod", marks=pytest.mark.variation)])
def test_one_that_is_killed_in_rpm_is_known_and_finished(root: Root, where: str) -> None:
    change(root, asked(V580), "580-open")
    _done, step = ready(root, asked(V595), "595-open")
    root.write("/killed-here-" + where, "")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert "killed by signal 9" in told.value.found
    (root.path / ("killed-here-" + where)).unlink()
    left = history.unfinished(root.host, root.packages())
    assert left and DNF.interrupted(root.host)
    finish = history.finish_step("driver", left)
    DNF.executors[finish.action](root.host, Journal(root.host), finish)
    change(root, asked(V595), "595-open")
    assert {name: root.installed()[name] for name in asked(V595)} == asked(V595)


@contextmanager
def sleeping() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


@pytest.mark.parametrize("lock", ["var/lib/dnf/rpmdb_lock.pid", "var/cache/dnf/metadata_lock.pid"])
def test_who_holds_a_lock_is_waited_for_and_named(root: Root, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying_out, "LOCK_SECONDS", 2)
    _done, step = ready(root, asked(V580), "580-open")
    with sleeping() as holder:
        (root.path / lock).write_text(str(holder.pid))
        with pytest.raises(GpuOpsError) as told:
            carry_out(root, step)
        assert told.value.code == "packages.dnf_locked"
        assert "(process %d, there for " % holder.pid in told.value.found
        assert root.installed() == {}
    carry_out(root, step)
    assert root.installed()["nvidia-driver-cuda"] == evr(V580)


@pytest.mark.variation
def test_when_time_is_up_the_waiting_ends_and_dnf_does_not(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Made("slow", "1.0", script='while posix.access("/wait-here") do posix.sleep(1) end')
    step = of_one(root, tmp_path / "more", slow)
    root.write("/wait-here", "")
    monkeypatch.setattr(carrying_out, "_SECONDS", 8)
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.configuring_takes_long"
    assert told.value.found.startswith("'dnf install slow-0:1.0-1.el9' had not ended after 8 s; it goes on")
    assert "slow-1.0-1.el9" in told.value.found, "what it is at"
    assert package_manager_works(root.host)
    (root.path / "wait-here").unlink()
    deadline = time.monotonic() + LIMIT_SECONDS
    while package_manager_works(root.host):
        assert time.monotonic() < deadline, "it has no end"
        time.sleep(0.1)
    assert root.installed() == {"slow": slow.evr} and history.entries(root.host)[-1].ended


def test_what_the_host_excludes_since_the_plan_stays_away(root: Root) -> None:
    _done, step = ready(root, asked(V580), "580-open")
    with (root.path / "etc/dnf/dnf.conf").open("a") as settings:
        settings.write("excludepkgs=nvidia-persistenced\n")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.refused_by_now" and "nvidia-persistenced" in told.value.found
    assert root.installed() == {}


def test_signatures_are_checked_whatever_the_settings_of_the_host_say(root: Root, tmp_path: Path) -> None:
    root.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\nexit_on_lock=0\n")
    foreign = scratch_rpm.publish(tmp_path / "foreign", [Made("tool", "3.0")], key="three")
    root.write("/etc/yum.repos.d/foreign.repo", "[foreign]\nname=foreign\nbaseurl=file://%s\n" % foreign)
    root.write(locks.LIST, "")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, packages_step("driver", "driver", {"tool": None}, {"tool": "3.0-1.el9"}, "a test",
                                      manager="dnf"))
    assert told.value.code == "packages.dnf_transaction_failed" and root.installed() == {}
