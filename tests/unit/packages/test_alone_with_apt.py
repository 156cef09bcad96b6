# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Without a controller the host's own apt carries package steps out: what a step says, and nothing more."""
from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import pytest
from scratch_apt import Repository, Root, build, held

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Outcome, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import carrying_out, history
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import BY_DPKG, builtin_options
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

LIMIT_SECONDS = 60.0
WANTED = {"driver": "1.0", "libdriver": "1.0"}


@pytest.fixture
def alone(root: Root, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A host whose own apt changes it; its repository has a driver with a library, in two versions."""
    (tmp_path / "apt.conf").write_text(
        'Dir "%(path)s"; APT::Sandbox::User "root"; DPkg::Chroot-Directory "";\n'
        'DPkg::Options { "--root=%(path)s"; "--log=%(path)s/var/log/dpkg.log"; "--force-not-root"; '
        '"--force-script-chrootless"; };\n' % {"path": root.path})
    for version in ("1.0", "2.0"):
        build(repository.directory, "libdriver", version)
        build(repository.directory, "driver", version, depends="libdriver (= %s)" % version,
              files={"etc/driver.conf": b"a setting\n"})
    offered(root, repository)
    return root


def offered(root: Root, repository: Repository) -> None:
    repository.publish()
    root.trust(repository)
    root.apt("update")


def step(before: Mapping[str, Optional[str]], after: Mapping[str, Optional[str]], **parameters: Any) -> Step:
    return packages_step("driver", "driver", before, after, "It is wanted.", manager="apt", **parameters)


def carry_out(root: Root, wanted: Step) -> None:
    APT.carry_out(root.host, Journal(root.host), wanted)


class Seen:
    def __init__(self, installed: Dict[str, str]) -> None:
        self.installed = installed

    def to_dict(self) -> Dict[str, str]:
        return self.installed


def call(root: Root, wanted: Optional[Mapping[str, str]]) -> Outcome:
    """A run of the host's own, of a capability that wants these packages; None: that none of ours is there."""
    def plan(observation: Seen, policy: Any, facts: HostFacts) -> Plan:
        there = observation.installed
        after: Mapping[str, Optional[str]] = dict.fromkeys(there) if wanted is None else wanted
        if there == (wanted or {}):
            return Plan()
        return Plan(steps=(step({name: there.get(name) for name in after}, after, purge=True, allow_downgrade=True),))

    def observe(host: Host, journal: Journal, policy: Any, facts: HostFacts) -> Seen:
        return Seen(root.installed())

    capability = Capability("driver", {}, dict, observe, plan, transactions=Provenance())
    run = Run(capability, {}, root.host, lambda _host: HostFacts(hostname="h"), carries_out_packages=True)
    return apply_alone(run, HostLock(root.host, "one", "gpuops"), 0)[0]


def test_a_driver_comes_changes_and_goes_and_is_booked_as_with_a_controller(alone: Root) -> None:
    journal = Journal(alone.host)
    assert (call(alone, WANTED).awaiting, alone.installed()) == (None, WANTED)
    assert journal.packages("driver") == dict.fromkeys(WANTED, PackageChange(None, "1.0"))
    assert call(alone, WANTED).applied == []
    newer = dict.fromkeys(WANTED, "2.0")
    call(alone, newer)
    assert journal.packages("driver") == dict.fromkeys(WANTED, PackageChange(None, "2.0"))
    call(alone, WANTED)
    assert alone.installed() == WANTED
    call(alone, None)
    assert (alone.packages(), journal.packages("driver"), journal.unfinished("driver")) == ({}, {}, [])


def test_apt_is_asked_in_the_words_of_ansible(alone: Root) -> None:
    install = step(dict.fromkeys(WANTED), WANTED, allow_downgrade=True)
    carry_out(alone, install)
    options = builtin_options(install.to_dict())
    (line,) = [each for each in (alone.host.read(history.HISTORY) or "").splitlines() if "Commandline" in each]
    assert line.endswith(" install " + " ".join(options["name"]))
    for word in ("-y", "--allow-downgrades", "APT::Install-Recommends=no", "DPkg::Lock::Timeout=600",
                 *("Dpkg::Options::=--" + option for option in options["dpkg_options"].split(","))):
        assert word in line
    assert "--allow-change-held-packages" not in line


def test_what_a_package_asks_of_its_environment_is_answered(alone: Root, repository: Repository) -> None:
    build(repository.directory, "curious", "1", scripts={
        "postinst": "echo $DEBIAN_FRONTEND $NEEDRESTART_SUSPEND >%s/tmp/told" % alone.path})
    offered(alone, repository)
    carry_out(alone, step({"curious": None}, {"curious": "1"}))
    assert alone.host.read("/tmp/told") == "noninteractive 1\n"


def test_more_than_the_step_says_is_not_done(alone: Root, repository: Repository) -> None:
    """The sources of the host have moved on since the plan."""
    build(repository.directory, "driver", "1.0", depends="libdriver, more")
    build(repository.directory, "more", "3")
    offered(alone, repository)
    with pytest.raises(GpuOpsError) as told:
        carry_out(alone, step(dict.fromkeys(WANTED), WANTED))
    assert told.value.code == "packages.would_do_more"
    assert told.value.found == "apt would change more (nothing -> 3)"
    assert alone.installed() == {} and alone.host.read(history.HISTORY) is None


def test_a_removal_takes_along_nothing_that_it_does_not_name(alone: Root) -> None:
    alone.install("driver=1.0", "libdriver=1.0")
    with pytest.raises(GpuOpsError) as told:
        carry_out(alone, step({"libdriver": "1.0"}, {"libdriver": None}))
    assert "driver (1.0 -> nothing)" in told.value.found and alone.installed() == WANTED


@pytest.mark.parametrize("purge", [False, True])
def test_a_removal_leaves_configuration_unless_it_is_to_go_and_is_done_in_vain(alone: Root, purge: bool) -> None:
    alone.install("driver=1.0", "libdriver=1.0")
    # What apt has never heard of is gone as well
    gone = step({**WANTED, "unknown": "1"}, dict.fromkeys([*WANTED, "unknown"]), purge=purge)
    for _time in range(2):
        carry_out(alone, gone)
        assert alone.installed() == {}
        assert alone.host.exists("/etc/driver.conf") is not purge
    if not purge:
        carry_out(alone, step(WANTED, dict.fromkeys(WANTED), purge=True))
        assert not alone.host.exists("/etc/driver.conf")


def test_what_apt_would_not_remove_beside_a_broken_package_dpkg_does(alone: Root, repository: Repository) -> None:
    build(repository.directory, "broken", "1", scripts={"postinst": "exit 1"})
    offered(alone, repository)
    alone.install("driver=1.0", "libdriver=1.0")
    alone.install("broken", check=False)
    carry_out(alone, step(WANTED, dict.fromkeys(WANTED), purge=True, **{BY_DPKG: True}))
    assert set(alone.packages()) == {"broken"}


def test_one_goes_as_another_comes(alone: Root, repository: Repository) -> None:
    alone.install("driver=1.0", "libdriver=1.0")
    build(repository.directory, "other", "1", conflicts="driver")
    offered(alone, repository)
    exchange = {"other": "1", "driver": None}
    carry_out(alone, step({"driver": "1.0", "other": None}, exchange))
    assert alone.installed() == {"libdriver": "1.0", "other": "1"}


def test_what_somebody_holds_stays(alone: Root) -> None:
    alone.install("driver=1.0", "libdriver=1.0")
    alone.hold("libdriver")
    with pytest.raises(GpuOpsError) as told:
        carry_out(alone, step(WANTED, dict.fromkeys(WANTED, "2.0")))
    assert told.value.code == "packages.refused_by_now" and "Held packages" in told.value.found
    assert alone.installed() == {"driver": "1.0", "libdriver": "1.0"}


def test_what_is_there_already_is_no_error_and_nobody_chooses_it(alone: Root) -> None:
    alone.install("driver=1.0", "libdriver=1.0")
    alone.host.run(["apt-mark", "auto", "libdriver"])
    before = alone.host.read(history.HISTORY)
    carry_out(alone, step(dict.fromkeys(WANTED), WANTED))
    assert (alone.automatic(), alone.host.read(history.HISTORY)) == (["libdriver"], before)


def test_a_package_that_does_not_configure_is_named_and_what_came_is_booked(
    alone: Root, repository: Repository
) -> None:
    build(repository.directory, "driver", "1.0", depends="libdriver", scripts={"postinst": "echo no compiler; exit 7"})
    offered(alone, repository)
    with pytest.raises(GpuOpsError) as told:
        call(alone, WANTED)
    assert told.value.code == "packages.apt_failed"
    assert "dpkg: error processing package driver (--configure): " in told.value.found
    assert "post-installation script subprocess returned error exit status 7" in told.value.found
    assert "no compiler" in told.value.details["stdout"]
    journal = Journal(alone.host)
    assert journal.packages("driver").keys() == WANTED.keys() and journal.unfinished("driver") == []


@pytest.mark.parametrize("lock", ["var/lib/dpkg/lock-frontend", "var/cache/apt/archives/lock"])
def test_who_holds_a_lock_is_waited_for_and_named(alone: Root, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying_out, "LOCK_SECONDS", 2)
    install = step(dict.fromkeys(WANTED), WANTED)
    with held(alone.path / lock) as holder:
        with pytest.raises(GpuOpsError) as told:
            carry_out(alone, install)
        assert told.value.code == "packages.manager_locked"
        assert "(process %d, there for " % holder.pid in told.value.found
    assert alone.installed() == {}
    carry_out(alone, install)
    assert alone.installed() == WANTED


def test_a_failure_after_the_wait_for_a_lock_is_no_lock(alone: Root, repository: Repository) -> None:
    build(repository.directory, "driver", "1.0", depends="libdriver", script="exit 7")
    offered(alone, repository)
    install = step(dict.fromkeys(WANTED), WANTED)
    with held(alone.path / "var/lib/dpkg/lock-frontend") as holder:
        assert holder.stdin is not None
        threading.Timer(3, holder.stdin.close).start()
        with pytest.raises(GpuOpsError) as told:
            carry_out(alone, install)
    assert "Waiting for cache lock" in told.value.details["stdout"]
    assert told.value.code == "packages.apt_failed"


def test_a_transaction_that_outlasts_the_waiting_for_it_is_ours_once_it_has_ended(
    alone: Root, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = alone.path / "tmp/go-on"
    build(repository.directory, "driver", "1.0", depends="libdriver",
          script="until [ -e %s ]; do sleep 0.1; done" % go_on)
    offered(alone, repository)
    monkeypatch.setattr(carrying_out, "_SECONDS", 3)
    with pytest.raises(GpuOpsError) as told:
        call(alone, WANTED)
    assert told.value.code == "packages.configuring_takes_long" and "left_at_work" in told.value.details
    journal = Journal(alone.host)
    (event,) = journal.unfinished("driver")
    assert journal.packages("driver") == {}
    with pytest.raises(GpuOpsError, match="another run"), HostLock(alone.host, "two", "eve").held(0):
        raise AssertionError("the lock was given away")
    go_on.touch()
    deadline = time.monotonic() + LIMIT_SECONDS
    while alone.installed() != WANTED:
        assert time.monotonic() < deadline, "it was killed"
        time.sleep(0.1)
    assert call(alone, WANTED).applied == [event["step"]["id"]]
    assert journal.packages("driver") == dict.fromkeys(WANTED, PackageChange(None, "1.0"))
