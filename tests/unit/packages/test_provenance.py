# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is ours, after real transactions of apt and dpkg in a scratch root, with an administrator at work in between."""
from __future__ import annotations

import gzip
import os
import re
import threading
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import provenance
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database, running, sources
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.index import index
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.removal import removable
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

BOOKS = Provenance()
FIRST = {"driver": "1.0", "libdriver": "1.0"}
SECOND = {"driver": "2.0", "libdriver": "2.0"}


@pytest.fixture(autouse=True)
def packages(repository: Repository, root: Root) -> None:
    """A driver of two packages that needs another one; and what an administrator installs."""
    for name, version, depends in (
        ("driver", "1.0", "libdriver (= 1.0), dkms"), ("libdriver", "1.0", ""),
        ("driver", "2.0", "libdriver (= 2.0), dkms"), ("libdriver", "2.0", ""), ("dkms", "3", ""),
        ("docker-ce", "27", "containerd.io"), ("containerd.io", "1.7", ""), ("linux-image-6.1.0-50-amd64", "6.1.1", ""),
        ("builder", "1", "dkms"),
    ):
        build(repository.directory, name, version, depends=depends)
    repository.publish()
    root.trust(repository)
    root.apt("update")


def planned(root: Root, request: Mapping[str, str], **parameters: Any) -> Step:
    """The step, as a planner makes it of apt's simulation."""
    with index(root.host, [], beside_system=True) as opened:
        simulation = opened.simulate(request, parameters.get("allow_downgrade", False))
    assert not simulation.problem
    before, after = simulation.change
    return packages_step("driver", "driver", before, after, "a test", manager="apt", request=dict(request),
                         update_cache=True, **parameters)


def removal(root: Root, *names: str, **parameters: Any) -> Step:
    there = {name: package.version for name, package in root.packages().items()}
    return packages_step("driver", "driver", {name: there[name] for name in names}, dict.fromkeys(names), "a test",
                         manager="apt", request={name: there[name] for name in names}, purge=True, **parameters)


def started(root: Root, step: Step) -> Mapping[str, Any]:
    opened = BOOKS.opened(root.host, step)
    Journal(root.host).note("started", step, "plan", policy="p", transaction=opened)
    return opened


def transacted(root: Root, step: Step) -> int:
    """ansible.builtin.apt's own words."""
    words = install_words(step.parameters["request"], step.parameters.get("allow_downgrade", False))
    if step.action == "packages.remove":
        words = ["--purge", "remove", *sorted(step.parameters["request"])]
    return root.apt("-o", "Dpkg::Options::=--force-confdef", *words, check=False).returncode


def settled(root: Root, step: Step, opened: Mapping[str, Any], event: str = "done") -> Dict[str, PackageChange]:
    journal = Journal(root.host)
    BOOKS.settle(root.host, journal, step, opened)
    journal.note(event, step, "plan")
    return journal.packages("driver")


def killed(root: Root) -> None:
    """The last apt did not live to see its end."""
    history = root.path / "var/log/apt/history.log"
    history.write_text(history.read_text().rpartition("End-Date:")[0])


def ours(root: Root) -> Dict[str, str]:
    return provenance.installed_by_us(root.host, Journal(root.host), "driver", root.packages())


def test_the_week_of_an_administrator(root: Root, repository: Repository) -> None:
    """apt fails on Monday; he installs docker-ce and a kernel on Tuesday; we succeed on Wednesday; ours alone goes."""
    monday = planned(root, FIRST)
    opened = started(root, monday)
    library = repository.directory / "libdriver_1.0_all.deb"
    library.rename(library.with_suffix(".gone"))
    assert transacted(root, monday) != 0
    assert settled(root, monday, opened, "failed") == {}

    root.install("docker-ce", "linux-image-6.1.0-50-amd64")
    before = root.installed()
    library.with_suffix(".gone").rename(library)

    wednesday = planned(root, FIRST)
    opened = started(root, wednesday)
    assert transacted(root, wednesday) == 0
    assert settled(root, wednesday, opened) == {
        "dkms": PackageChange(None, "3"), "driver": PackageChange(None, "1.0"), "libdriver": PackageChange(None, "1.0")}

    absent = removal(root, *removable(root.host, root.packages(), ours(root)))
    opened = started(root, absent)
    assert transacted(root, absent) == 0
    assert settled(root, absent, opened) == {}
    assert root.installed() == before


def test_a_dead_controllers_transaction_that_never_began_owns_nothing(root: Root) -> None:
    """He asks for the very same packages himself, in the same versions: they are his."""
    started(root, planned(root, FIRST))
    time.sleep(1.1)
    root.install("builder", "libdriver=1.0")
    assert ours(root) == {}
    step = planned(root, FIRST)
    opened = started(root, step)
    assert transacted(root, step) == 0
    assert settled(root, step, opened) == {"driver": PackageChange(None, "1.0")}


def test_what_an_earlier_transaction_could_not_mark_is_foretold_to_be_marked_with_the_next_one(root: Root) -> None:
    """The plan that is made before a dead controller's transaction is settled is held to after that."""
    first = planned(root, FIRST)
    opened = started(root, first)
    transacted(root, first)
    settled(root, first, opened)
    root.host.run(["apt-mark", *database.own(root.host), "manual", "dkms"])
    Journal(root.host).remember(provenance.UNMARKED, {"driver": ["dkms"]})
    second = planned(root, SECOND)
    opened = started(root, second)
    transacted(root, second)
    foretold = provenance.followers(root.host, Journal(root.host), "driver"), ours(root)
    settled(root, second, opened)
    assert foretold == (provenance.followers(root.host, Journal(root.host), "driver"), ours(root))
    assert "dkms" in foretold[0]


def test_a_dead_controllers_transaction_that_ran_owns_what_it_brought(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    assert transacted(root, step) == 0
    time.sleep(1.1)
    root.install("docker-ce")
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"], "before anybody has settled it"
    assert sorted(settled(root, step, opened)) == ["dkms", "driver", "libdriver"]


def test_the_books_of_a_transaction_are_kept_once(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    assert settled(root, step, opened) == settled(root, step, opened)
    away = removal(root, "driver", "libdriver")
    opened = started(root, away)
    transacted(root, away)
    assert settled(root, away, opened) == settled(root, away, opened) == {"dkms": PackageChange(None, "3")}


def test_a_transaction_that_stopped_half_way_owns_the_half_that_came(root: Root, repository: Repository) -> None:
    repository.add("driver", "3.0", depends="dkms", script="exit 1")
    root.apt("update")
    step = planned(root, {"driver": "3.0"})
    opened = started(root, step)
    assert transacted(root, step) != 0
    assert list(settled(root, step, opened, "failed")) == ["dkms"]
    root.install("docker-ce")
    assert list(ours(root)) == ["dkms"]


# Wants nothing of the driver; its runs account for what others began.
NOTHING = Capability("driver", {}, dict, lambda host, journal, policy, facts: Plan(),
                     lambda observation, policy, facts: Plan(), transactions=BOOKS)


def test_an_apt_that_outlives_its_killed_module_is_accounted_for_when_it_has_ended(
    root: Root, repository: Repository
) -> None:
    begun, go_on = root.path / "tmp/begun", root.path / "tmp/go_on"
    repository.add("driver", "3.0", depends="dkms",
                   script="touch %s; while [ ! -e %s ]; do sleep 0.1; done" % (begun, go_on))
    root.apt("update")
    step = planned(root, {"driver": "3.0"})
    started(root, step)

    def call(token: str, **more: Any) -> None:
        apply_alone(Run(NOTHING, {}, root.host, lambda _host: HostFacts(hostname="h"), **more),
                    HostLock(root.host, token, "gpu_driver for ada@a"), 0)

    apt = threading.Thread(target=transacted, args=(root, step))
    apt.start()
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        call("one", resumed=step.id, transaction_failed=True)
        assert Journal(root.host).unfinished("driver") and not Journal(root.host).packages("driver")
        with pytest.raises(GpuOpsError, match="package transaction of its controller"):
            call("two")
    finally:
        go_on.touch()
        apt.join(60)
    call("one")
    assert sorted(Journal(root.host).packages("driver")) == ["dkms", "driver"]
    assert Journal(root.host).unfinished("driver") == []


def test_what_a_killed_apt_has_brought_and_not_marked_is_ours(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    killed(root)
    (root.path / "var/lib/apt/extended_states").unlink()
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"], "before anybody has settled it"
    settled(root, step, opened, "failed")
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"]


def test_what_could_not_be_marked_is_his_once_he_has_asked_for_it(root: Root) -> None:
    """A power cut has left the marks from before, and dpkg is interrupted, so that apt marks nothing; what follows then
    must not stay ours for good."""
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = cut(root, step, (root.path / MARKS).read_bytes())
    journal = root.path / "var/lib/dpkg/updates/0001"
    journal.touch()
    settled(root, step, opened, "failed")
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"], "nobody has asked for it"
    journal.unlink()
    again = planned(root, SECOND)
    opened = started(root, again)
    transacted(root, again)
    settled(root, again, opened)
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"]
    root.install("dkms")
    assert sorted(ours(root)) == ["driver", "libdriver"]


def test_a_dependency_that_has_gone_with_us_and_come_again_is_his_once_he_has_asked_for_it(root: Root) -> None:
    """A removal names what it removes, and does not choose it."""
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    away = removal(root, *removable(root.host, root.packages(), ours(root)))
    assert "dkms" in away.parameters["request"]
    opened = started(root, away)
    transacted(root, away)
    assert settled(root, away, opened) == {}
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"]
    root.install("dkms")
    assert sorted(ours(root)) == ["driver", "libdriver"]


def test_what_stays_for_a_package_of_his_when_all_of_ours_goes_is_his(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    root.install("builder")
    away = removal(root, *removable(root.host, root.packages(), ours(root)), all_of_ours=True)
    assert sorted(away.change["after"]) == ["driver", "libdriver"]
    opened = started(root, away)
    transacted(root, away)
    assert settled(root, away, opened) == {}
    root.apt("purge", "builder")
    assert ours(root) == {}, "as it would be without us"


def test_what_stays_for_a_package_of_his_when_a_part_of_ours_goes_stays_ours(root: Root) -> None:
    """An exchange takes away what the driver before needed alone."""
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    root.install("builder")
    away = removal(root, "driver")
    opened = started(root, away)
    transacted(root, away)
    assert sorted(settled(root, away, opened)) == ["dkms", "libdriver"]
    root.apt("purge", "builder")
    assert sorted(ours(root)) == ["dkms", "libdriver"]


@pytest.mark.variation
def test_what_was_upgraded_is_remembered_with_the_version_before_and_is_not_removed(root: Root) -> None:
    root.install("driver=1.0", "libdriver=1.0")
    step = planned(root, SECOND)
    opened = started(root, step)
    assert transacted(root, step) == 0
    assert settled(root, step, opened) == {
        "driver": PackageChange("1.0", "2.0"), "libdriver": PackageChange("1.0", "2.0")}
    assert ours(root) == {}
    back = planned(root, FIRST, allow_downgrade=True)
    opened = started(root, back)
    assert transacted(root, back) == 0
    assert settled(root, back, opened) == {}, "it is as it was before us"


def test_two_transactions_that_ask_for_the_same_within_one_second_are_two(root: Root) -> None:
    root.install("driver=1.0", "libdriver=1.0")
    step = planned(root, SECOND)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    history = root.path / "var/log/apt/history.log"

    def within_one_second() -> None:
        """All that there is, as a fast machine would have written it."""
        begun = re.findall("Start-Date: (.*)", history.read_text())[0]
        history.write_text(re.sub("Start-Date: .*", "Start-Date: " + begun, history.read_text()))

    within_one_second()
    back = planned(root, FIRST, allow_downgrade=True)
    opened = started(root, back)
    assert transacted(root, back) == 0
    within_one_second()
    assert settled(root, back, opened) == {}


@pytest.mark.parametrize("clock", ["one second", "set forward meanwhile"])
def test_what_was_there_before_is_his_whatever_the_times_of_the_logs(root: Root, clock: str) -> None:
    """His installation and our upgrade in one second; and a host without a battery whose clock is set in the midst."""
    root.install("driver=1.0", "libdriver=1.0")
    step = planned(root, SECOND)
    opened = started(root, step)
    assert transacted(root, step) == 0
    history, log = root.path / "var/log/apt/history.log", root.path / "var/log/dpkg.log"
    begun = "1970-01-01  00:00:09" if clock != "one second" else re.findall("Start-Date: (.*)", history.read_text())[0]
    head, _start, tail = history.read_text().rpartition("Start-Date: ")
    history.write_text("%sStart-Date: %s\n%s" % (head, begun, tail.split("\n", 1)[1]))
    assert " install driver:all <none> 1.0" in log.read_text()
    assert settled(root, step, opened) == {
        "driver": PackageChange("1.0", "2.0"), "libdriver": PackageChange("1.0", "2.0")}
    assert ours(root) == {}


@pytest.mark.parametrize("ended", [True, False])
def test_a_clock_that_is_set_back_in_the_midst_takes_nothing_from_us(root: Root, ended: bool) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    assert transacted(root, step) == 0
    history = root.path / "var/log/apt/history.log"
    told, _end, _time = history.read_text().rpartition("End-Date: ")
    early = "%s: 1970-01-01  00:00:09\n"
    history.write_text(told + (early % "End-Date" if ended else "\n\n" + early % "Start-Date"))
    assert sorted(settled(root, step, opened)) == ["dkms", "driver", "libdriver"]


@pytest.mark.variation
def test_removed_and_brought_again_in_one_second_it_is_ours(root: Root) -> None:
    log, history = root.path / "var/log/dpkg.log", root.path / "var/log/apt/history.log"
    step = planned(root, FIRST)
    opened = started(root, step)
    assert transacted(root, step) == 0
    settled(root, step, opened)
    first = log.read_text()
    away = removal(root, "driver", "libdriver", "dkms")
    opened = started(root, away)
    assert transacted(root, away) == 0
    settled(root, away, opened)
    # Transactions are told apart by the second of their beginning; rounds of a run are further apart
    time.sleep(1.1)
    again = planned(root, FIRST)
    opened = started(root, again)
    assert transacted(root, again) == 0
    begun = re.findall("Start-Date: (.*)", history.read_text())[-1]
    since = log.read_text()[len(first):]
    assert " remove driver:all 1.0 " in since
    log.write_text(first + re.sub(r"(?m)^\S+ \S+", " ".join(begun.split()), since))
    assert settled(root, again, opened) == {
        "dkms": PackageChange(None, "3"), "driver": PackageChange(None, "1.0"), "libdriver": PackageChange(None, "1.0")}


def test_what_he_removes_and_installs_again_is_not_ours_any_more(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    root.apt("--purge", "remove", "driver", "libdriver")
    again = planned(root, {"docker-ce": "27"})
    opened = started(root, again)
    transacted(root, again)
    assert sorted(settled(root, again, opened)) == ["containerd.io", "dkms", "docker-ce"]


def test_a_dependency_stays_automatic_and_goes_only_when_nobody_needs_it(root: Root) -> None:
    step = planned(root, FIRST, automatic=["libdriver"])
    opened = started(root, step)
    transacted(root, step)
    assert root.automatic() == ["dkms"], "what is asked for counts as chosen by hand"
    settled(root, step, opened)
    assert root.automatic() == ["dkms", "libdriver"]
    root.install("builder")
    assert removable(root.host, root.packages(), ours(root)) == ("driver", "libdriver")


def test_what_he_chooses_before_a_transaction_that_never_began_stays_his_choice(root: Root) -> None:
    root.install("driver=1.0", "libdriver=1.0")
    root.host.run(["apt-mark", *database.own(root.host), "auto", "libdriver"])
    step = planned(root, SECOND, automatic=["libdriver"])
    opened = started(root, step)
    manual(root, "libdriver")
    foretold = provenance.followers(root.host, Journal(root.host), "driver")
    settled(root, step, opened, "failed")
    assert root.automatic() == sorted(foretold) == ["dkms"]


@pytest.mark.parametrize("end", ["a hook of his", "never begun"])
def test_what_follows_stays_automatic_where_apt_fails_and_changes_nothing(
    root: Root, repository: Repository, end: str
) -> None:
    """ansible.builtin.apt marks all that it was asked for as chosen by hand then too."""
    followers = ["libdriver", "librest"]
    for version in ("1.0", "2.0"):
        repository.add("librest", version)
    root.apt("update")
    root.install("driver=1.0", "libdriver=1.0", "librest=1.0")
    root.host.run(["apt-mark", *database.own(root.host), "auto", *followers])
    step = planned(root, {**SECOND, "librest": "2.0"}, automatic=followers)
    opened = started(root, step)
    if end == "a hook of his":
        words = install_words(step.parameters["request"], False)
        assert root.apt("-o", "DPkg::Pre-Install-Pkgs::=exit 1", *words, check=False).returncode != 0
        manual(root, *step.parameters["request"])
    else:
        manual(root, "librest")
    foretold = provenance.followers(root.host, Journal(root.host), "driver")
    assert settled(root, step, opened, "failed") == {}
    assert root.automatic() == sorted(foretold) == ["dkms", "libdriver"] + ["librest"] * (end == "a hook of his")


def test_a_dependency_that_he_asks_for_himself_is_his_from_then_on(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    root.install("dkms")
    assert sorted(ours(root)) == ["driver", "libdriver"]


def transacted_before_a_power_cut(root: Root, step: Step) -> None:
    """Of what is written meanwhile the logs are lost: dpkg syncs its database, and nobody these."""
    logs = [root.path / "var/log" / name for name in ("apt/history.log", "dpkg.log")]
    as_synced = [log.read_bytes() for log in logs]
    transacted(root, step)
    for log, content in zip(logs, as_synced):
        log.write_bytes(content)


MARKS = "var/lib/apt/extended_states"
LEFT_BY_A_CUT = {"nothing": None, "an empty file": b"", "a file of zeros": b"\0" * 4096}


def cut(root: Root, step: Step, content: Optional[bytes] = None) -> Mapping[str, Any]:
    """A transaction, and a power cut at its end that takes the marks; what was noted when it was opened."""
    opened = opened_before(root, step)
    transacted(root, step)
    boot(root, content)
    return opened


def opened_before(root: Root, step: Step) -> Mapping[str, Any]:
    """Another boot follows."""
    opened = dict(BOOKS.opened(root.host, step), boot="the boot before")
    Journal(root.host).note("started", step, "plan", policy="p", transaction=opened)
    return opened


def boot(root: Root, content: Optional[bytes]) -> None:
    """What the marks are then, None: they are not there; nothing was written since."""
    if content is None:
        (root.path / MARKS).unlink(missing_ok=True)
    else:
        (root.path / MARKS).write_bytes(content)
    for path in (*(root.path / "var/lib/dpkg/info").glob("*.list"), *(root.path / "var/lib/apt").glob(MARKS[-15:])):
        os.utime(path, (1, 1))


@pytest.mark.parametrize("dpkg", ["whole", "interrupted"])
@pytest.mark.parametrize("left", LEFT_BY_A_CUT)
def test_a_power_cut_that_takes_the_marks_makes_nothing_chosen_by_hand(root: Root, left: str, dpkg: str) -> None:
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = cut(root, step, LEFT_BY_A_CUT[left])
    assert root.automatic() == []
    if dpkg == "interrupted":
        (root.path / "var/lib/dpkg/updates/0001").touch()
    foretold = provenance.followers(root.host, Journal(root.host), "driver")
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"], "before anybody has settled it"
    settled(root, step, opened, "failed")
    (root.path / "var/lib/dpkg/updates/0001").unlink(missing_ok=True)
    assert root.automatic() == sorted(foretold) == ["containerd.io", "dkms"]
    assert root.apt("-s", "autoremove").stdout.count("Remv") == 0
    assert sorted(ours(root)) == ["dkms", "driver", "libdriver"]
    assert not Journal(root.host).recall(provenance.MARKED)
    removed = removal(root, *removable(root.host, root.packages(), ours(root)), all_of_ours=True)
    opened = started(root, removed)
    transacted(root, removed)
    assert settled(root, removed, opened) == {} and root.automatic() == ["containerd.io"]


def test_marks_are_put_back_before_another_capability_has_apt_write_its_own(root: Root) -> None:
    root.install("docker-ce")
    step = replace(planned(root, FIRST), capability="toolkit")
    toolkits = cut(root, step)
    root.apt("update")
    other = planned(root, {"builder": "1"})
    opened = started(root, other)
    transacted(root, other)
    settled(root, other, opened)
    settled(root, step, toolkits)
    assert root.automatic() == ["containerd.io", "dkms"]


def test_an_administrator_who_has_chosen_since_the_power_cut_is_heard(root: Root) -> None:
    """apt has written the marks anew by then: what they say counts, and nothing is put back."""
    root.install("builder")
    step = planned(root, FIRST)
    opened = cut(root, step)
    root.install("docker-ce")
    assert root.automatic() == ["containerd.io"]
    settled(root, step, opened)
    assert root.automatic() == ["containerd.io"]


def manual(root: Root, *names: str) -> None:
    """apt-mark, as an administrator calls it."""
    root.host.run(["apt-mark", *database.own(root.host), "manual", *names])


def brought(root: Root) -> None:
    """The driver came by us."""
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)


def test_what_he_installs_by_name_after_a_power_cut_is_his(root: Root, repository: Repository) -> None:
    """Without marks apt takes the name for a choice already, and writes nothing of it. The list of the package's files
    is called by its architecture, as the package may be there for several of them."""
    repository.add("dkms", "4", same=sources.architecture(root.host))
    root.apt("update")
    brought(root)
    step = planned(root, SECOND)
    opened = cut(root, step, b"")
    repository.add("dkms", "5", same=sources.architecture(root.host))
    root.apt("update")
    root.install("dkms=5")
    assert database.came_since(root.host, ["dkms", "libdriver"], root.host.booted()) == {"dkms"}
    assert "dkms" not in ours(root), "before anybody has settled it"
    settled(root, step, opened)
    assert root.automatic() == [] and "dkms" not in ours(root)


def test_what_he_takes_away_and_installs_by_name_after_a_power_cut_is_his(root: Root) -> None:
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = cut(root, step)
    root.apt("purge", "docker-ce", "containerd.io")
    root.install("containerd.io")
    settled(root, step, opened, "failed")
    assert "containerd.io" not in root.automatic()


def test_who_chooses_all_by_hand_before_a_boot_is_heard_where_no_transaction_was_at_work(root: Root) -> None:
    """A controller died before apt began: apt's file is empty by his choice, and as a power cut leaves it."""
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = opened_before(root, step)
    manual(root, "containerd.io")
    boot(root, (root.path / MARKS).read_bytes())
    settled(root, step, opened, "failed")
    assert root.automatic() == []


def test_who_chooses_all_by_hand_after_a_boot_is_heard(root: Root) -> None:
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = opened_before(root, step)
    transacted(root, step)
    boot(root, (root.path / MARKS).read_bytes())
    manual(root, "containerd.io", "dkms")
    assert (root.path / MARKS).read_bytes() == b""
    settled(root, step, opened, "failed")
    assert root.automatic() == [] and sorted(ours(root)) == ["driver", "libdriver"]


def test_who_asks_for_a_dependency_before_a_boot_that_takes_nothing_is_heard(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks were written after the step was opened, so they are those of its transaction, or newer."""
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = opened_before(root, step)
    transacted(root, step)
    root.install("dkms")
    monkeypatch.setattr(Host, "booted", lambda _host: time.time() + 9)
    settled(root, step, opened, "failed")
    assert root.automatic() == ["containerd.io"] and sorted(ours(root)) == ["driver", "libdriver"]


# A script of a package, once: apt and dpkg are killed as by the kernel that is out of memory
KILLS = """once="$DPKG_ROOT/tmp/killed"; apt=$(cut -d' ' -f4 /proc/$PPID/stat)
[ -e "$once" ] || ! grep -q apt-get /proc/$apt/comm || {
touch "$once"; kill -STOP $apt; kill -9 $PPID
until grep -q "^$PPID (dpkg) Z" /proc/$PPID/stat; do :; done; kill -9 $apt
}"""


def configured(root: Root) -> None:
    """He ends what was stopped."""
    root.host.run([*running.dpkg(root.host), "--force-not-root", "--force-script-chrootless", "--configure", "-a"])


def test_who_asks_for_a_dependency_after_apt_was_killed_is_heard(root: Root, repository: Repository) -> None:
    """apt marks what is to come before it starts dpkg: what is not marked any more, somebody has chosen."""
    repository.add("driver", "3.0", depends="libdriver (= 1.0), dkms", scripts={"postinst": KILLS})
    root.apt("update")
    step = planned(root, {"driver": "3.0", "libdriver": "1.0"})
    opened = started(root, step)
    assert transacted(root, step) == -9 and root.automatic() == ["dkms"]
    configured(root)
    root.install("dkms")
    foretold = ours(root), provenance.followers(root.host, Journal(root.host), "driver")
    settled(root, step, opened, "failed")
    assert root.automatic() == [] and sorted(ours(root)) == ["driver", "libdriver"]
    assert foretold == (ours(root), provenance.followers(root.host, Journal(root.host), "driver"))


@pytest.mark.parametrize("where, left", [("begun", ["dkms", "driver"]), ("half way", ["dkms"])])
def test_a_power_cut_in_a_removal_leaves_nothing_of_ours_for_good(
    root: Root, repository: Repository, where: str, left: List[str]
) -> None:
    """A removal names dependencies too, and does not choose them. Its first act is a package's script."""
    repository.add("driver", "3.0", depends="dkms", scripts={"prerm": KILLS} if where == "begun" else {})
    root.apt("update")
    root.install("docker-ce")
    step = planned(root, {"driver": "3.0"})
    opened = started(root, step)
    transacted(root, step)
    settled(root, step, opened)
    away = removal(root, *removable(root.host, root.packages(), ours(root)), all_of_ours=True)
    opened = opened_before(root, away)
    if where == "begun":
        assert transacted(root, away) == -9
    else:
        root.apt("--purge", "remove", "driver")
    boot(root, b"")
    assert sorted(ours(root)) == left, "before anybody has settled it"
    settled(root, away, opened, "failed")
    assert root.automatic() == ["containerd.io", "dkms"] and sorted(ours(root)) == left
    configured(root)
    again = removal(root, *removable(root.host, root.packages(), ours(root)), all_of_ours=True)
    opened = started(root, again)
    transacted(root, again)
    assert settled(root, again, opened) == {} and "dkms" not in root.installed()


def test_a_step_that_was_opened_long_ago_overrides_no_choice_made_since(root: Root) -> None:
    """The driver's run died before apt began, and nobody has run it again; then comes a cut in the toolkit's."""
    root.install("docker-ce")
    opened_before(root, planned(root, FIRST))
    manual(root, "containerd.io")
    root.install("builder")
    other = replace(planned(root, {"libdriver": "1.0"}), capability="toolkit")
    opened = cut(root, other, b"")
    BOOKS.settle(root.host, Journal(root.host), other, opened)
    assert root.automatic() == ["dkms"]


@pytest.mark.parametrize("capability", ["driver", "toolkit"])
def test_zeros_that_a_power_cut_has_left_for_marks_stop_apt_no_more(root: Root, capability: str) -> None:
    """Nothing was automatic, and whoever's step comes first mends it; what is planned before that is planned all the
    same."""
    step = planned(root, {"libdriver": "1.0"})
    opened = cut(root, step, b"\0" * 4096)
    assert root.apt("-s", "install", "builder", check=False).returncode == 100
    with index(root.host, [], beside_system=True) as lists:
        assert lists.simulate(FIRST).installs and not lists.simulate_removal(["libdriver"]).problem
    if capability == "driver":
        settled(root, step, opened)
    else:
        BOOKS.opened(root.host, replace(planned(root, {"builder": "1"}), capability=capability))
    assert (root.path / MARKS).read_bytes() == b""
    assert root.apt("-s", "install", "builder", check=False).returncode == 0


@pytest.mark.variation
@pytest.mark.parametrize("rest", ["cut short", "zeros"])
def test_a_power_cut_that_takes_the_end_of_the_marks_takes_nothing(root: Root, rest: str) -> None:
    root.install("docker-ce", "builder")
    step = planned(root, {"libdriver": "1.0"})
    whole = (root.path / MARKS).read_bytes()
    kept = whole[:whole.rindex(b"Package") + 12]
    opened = cut(root, step, kept if rest == "cut short" else kept.ljust(4096, b"\0"))
    assert len(root.automatic()) == 1
    foretold = provenance.automatic(root.host, Journal(root.host))
    settled(root, step, opened)
    assert root.automatic() == sorted(foretold) == ["containerd.io", "dkms"]
    assert root.apt("-s", "install", "driver", check=False).returncode == 0


def test_what_can_go_is_told_without_a_trace(root: Root) -> None:
    brought(root)
    before = root.tree()
    assert removable(root.host, root.packages(), ours(root)) == ("dkms", "driver", "libdriver")
    assert root.tree() == before


def test_a_removal_of_what_somebody_needs_by_now_is_refused_before_anything_is_done(root: Root) -> None:
    brought(root)
    away = removal(root, *removable(root.host, root.packages(), ours(root)), all_of_ours=True)
    root.install("builder")
    before = root.tree()
    with pytest.raises(GpuOpsError, match="others need by now: dkms") as refused:
        BOOKS.opened(root.host, away)
    assert refused.value.code == "packages.needed_by_others" and root.tree() == before


def test_a_power_cut_that_takes_the_logs_does_not_take_the_evidence(root: Root) -> None:
    """Another boot, and no newer transaction of anybody: it was ours."""
    root.install("docker-ce")
    time.sleep(1.1)
    step = planned(root, FIRST)
    opened = dict(started(root, step), boot="the boot before")
    transacted_before_a_power_cut(root, step)
    assert settled(root, step, dict(opened, boot=root.host.boot())) == {}, "the same boot: nobody was seen doing it"
    assert sorted(settled(root, step, opened)) == ["dkms", "driver", "libdriver"]


@pytest.mark.variation
def test_a_power_cut_that_takes_the_logs_of_an_upgrade_leaves_no_old_versions_in_the_books(root: Root) -> None:
    root.install("dkms")
    first = planned(root, FIRST)
    opened = started(root, first)
    transacted(root, first)
    account = settled(root, first, opened)
    assert account == {name: PackageChange(None, "1.0") for name in FIRST}
    time.sleep(1.1)
    second = planned(root, SECOND)
    opened = dict(started(root, second), boot="the boot before")
    transacted_before_a_power_cut(root, second)
    assert settled(root, second, opened) == {name: PackageChange(None, "2.0") for name in SECOND}
    assert ours(root) == SECOND


@pytest.mark.variation
@pytest.mark.parametrize("kept", ["", " install libdriver:"], ids=["nothing", "its beginning"])
def test_a_power_cut_that_takes_of_the_logs_what_dpkg_said_does_not_take_the_evidence(root: Root, kept: str) -> None:
    """Each is written at its own time: apt's history has our transaction, without its end."""
    root.install("docker-ce")
    time.sleep(1.1)
    step = planned(root, FIRST)
    opened = dict(started(root, step), boot="the boot before")
    told = root.path / "var/log/dpkg.log"
    before = told.read_text()
    transacted(root, step)
    lines = told.read_text()[len(before):].splitlines(True)
    stays = 1 + next(number for number, line in enumerate(lines) if kept in line) if kept else 0
    told.write_text(before + "".join(lines[:stays]))
    history = root.path / "var/log/apt/history.log"
    history.write_text(history.read_text().rpartition("End-Date:")[0])
    assert sorted(settled(root, step, opened)) == ["dkms", "driver", "libdriver"]


@pytest.mark.parametrize("year", [
    "", *(pytest.param(year, marks=pytest.mark.variation) for year in ("2025", "none"))],
    ids=["as it is", "with an earlier clock", "logs emptied"])
def test_after_a_boot_what_he_installs_is_his(root: Root, year: str) -> None:
    """Logs are emptied where an image is made of a host."""
    root.install("docker-ce")
    step = planned(root, FIRST)
    opened = dict(started(root, step), boot="the boot before")
    time.sleep(1.1)
    history = root.path / "var/log/apt/history.log"
    before = history.read_text()
    root.install("builder", "libdriver=1.0", "driver=1.0")
    if year == "none":
        for name in ("apt/history.log", "dpkg.log"):
            (root.path / "var/log" / name).write_text("")
    elif year:
        history.write_text(before + re.sub(r"Date: \d{4}", "Date: " + year, history.read_text()[len(before):]))
    assert settled(root, step, opened) == {}


def test_logs_that_were_rotated_are_read(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    for name in ("apt/history.log", "dpkg.log"):
        log = root.path / "var/log" / name
        log.with_name(log.name + ".1.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.write_bytes(b"")
    assert sorted(settled(root, step, opened)) == ["dkms", "driver", "libdriver"]


def test_without_logs_nothing_is_ours(root: Root) -> None:
    step = planned(root, FIRST)
    opened = started(root, step)
    transacted(root, step)
    (root.path / "var/log/dpkg.log").unlink()
    assert settled(root, step, opened) == {}


def test_lists_that_lack_what_was_planned_stop_it_before_the_hand_over(root: Root, repository: Repository) -> None:
    step = planned(root, FIRST)
    (repository.directory / "driver_1.0_all.deb").unlink()
    repository.publish()
    with pytest.raises(GpuOpsError, match="package lists have no driver=1.0"):
        BOOKS.opened(root.host, step)


def test_a_database_that_dpkg_cannot_read_is_not_an_empty_one(root: Root) -> None:
    """What is ours is told from it: taken for empty, it made the record forget every package that we brought."""
    step = planned(root, FIRST)
    opened = started(root, step)
    assert transacted(root, step) == 0
    account = settled(root, step, opened)
    assert sorted(account) == ["dkms", "driver", "libdriver"]
    status = root.path / "var/lib/dpkg/status"
    whole = status.read_bytes()
    status.write_bytes(whole[:-40] + b"\nVersi")
    with pytest.raises(GpuOpsError) as refused:
        BOOKS.settle(root.host, Journal(root.host), step, opened)
    assert "parsing file" in str(refused.value) and "status-old" in refused.value.remedy
    assert Journal(root.host).packages("driver") == account
    status.write_bytes(whole)
    assert settled(root, step, opened) == account


@pytest.mark.parametrize("content", [b"", b"\0" * 4096], ids=["emptied", "zeroed"])
def test_lists_that_a_power_cut_has_torn_are_fetched_again(root: Root, content: bytes) -> None:
    step = planned(root, FIRST)
    lists = [path for path in (root.path / "var/lib/apt/lists").iterdir() if "_Packages" in path.name]
    assert lists
    for path in lists:
        path.write_bytes(content)
    BOOKS.opened(root.host, step)
    assert transacted(root, step) == 0


def test_of_two_that_serve_somebodys_package_one_stays(root: Root, repository: Repository) -> None:
    """Each can go, both cannot; and what he needs otherwise makes apt be asked for each."""
    for name, depends in (("first", ""), ("second", ""), ("third", ""), ("his", "first | second"), ("more", "third")):
        build(repository.directory, name, "1", depends=depends)
    repository.publish()
    root.apt("update")
    root.install("first", "second", "third", "his", "more")
    assert removable(root.host, root.packages(), ("first", "second", "third")) == ("first",)
    root.apt("remove", "first")
    assert "his" in root.installed()
