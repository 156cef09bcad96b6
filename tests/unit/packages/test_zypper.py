# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""zypper: what is simulated is what is then carried out, as rpm's database and zypper's own history show it."""
from __future__ import annotations

import base64
import functools
import http.server
import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Set, Tuple

import pytest
import rpm_changes
import scratch_rpm
from rpm_changes import LIBRARIES, asked, evr, nvidias, write
from rpm_machine import home
from scratch_rpm import CLOSED, OLDER_580, OPEN, RELEASE, V580, V595, V610, Made
from scratch_zypper import Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import provenance
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import (
    Credentials,
    Package,
    Repository,
    Simulation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import (
    asking,
    configuration,
    history,
    locks,
    transaction,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import index as indexes
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper.manager import ZYPPER

trust = functools.partial(rpm_changes.trust, ZYPPER)
# A package at whose script a transaction stands still for as long as a file is there
SLOW = Made("slow", "1.0", script='while posix.access("/wait-here") do posix.sleep(1) end')
_KILLS = """if posix.access("/killed-whole-%s") then
posix.kill(posix.getprocessid("ppid"), 9)
posix.kill(posix.getprocessid("pid"), 9)
end"""


class Failing(Made):
    """A package whose script is a program that fails."""

    @property
    def spec(self) -> str:
        return super().spec.replace("-p <lua>", "-p /bin/fails")


FAILING = Failing("failing", "1.0", relations=("Provides: /bin/fails",), script="nothing")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    home(tmp_path, monkeypatch)
    return Root(tmp_path / "root")


def nvidia(where: Optional[Path] = None, **more: Any) -> Repository:
    return nvidias(where or scratch_rpm.nvidia(modules=False), **more)


def planned(
    root: Root, repository: Repository, request: Mapping[str, str], down: bool = False
) -> Tuple[Simulation, Step, Mapping[str, Optional[str]]]:
    return rpm_changes.planned(ZYPPER, root, repository, request, down, {})


def opened_step(root: Root, step: Step) -> Dict[str, Any]:
    return {"known": ZYPPER.known(root.host, step), "there": root.installed()}


def carry_out(root: Root, step: Step) -> None:
    ZYPPER.carry_out(root.host, Journal(root.host), step)


def change(
    root: Root, request: Mapping[str, str], down: bool = False, repository: Optional[Repository] = None
) -> Simulation:
    """Simulate, carry out, and hold rpm's database and zypper's history against the simulation."""
    done, step, files = planned(root, repository or nvidia(), request, down)
    assert done.problem == ""
    trust(root, repository or nvidia())
    write(root, files)
    ZYPPER.refresh(root.host, request)
    before, opened, earlier = root.installed(), opened_step(root, step), history.lines(root.host)
    carry_out(root, step)
    lines = history.lines(root.host)[len(earlier):]
    came = {line.name: line.version for line in lines if line.kind == "install"}
    gone = {line.name for line in lines if line.kind == "remove"}.difference(came)
    assert (came, gone) == (dict(done.installs), set(done.removes))
    assert root.installed() == {
        **{name: version for name, version in before.items() if name not in done.removes}, **done.installs}
    assert done.change[0] == {name: before.get(name) for name in done.change[1]}
    evidence = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in evidence.items()} == done.change[1]
    assert {name: each.before for name, each in evidence.items()} == done.change[0]
    assert not ZYPPER.interrupted(root.host)
    return done


# installed as simulated


def test_an_install_is_what_database_and_history_then_show(root: Root) -> None:
    done = change(root, asked(V580))
    assert done.installs == {**asked(V580), "dkms": "3.2.2-1.el9"}
    assert root.installed() == done.installs
    assert done.download > 1000 and done.unpacked > 0


def test_what_is_there_is_left_alone(root: Root) -> None:
    change(root, asked(V580))
    before = history.lines(root.host)
    again = change(root, asked(V580))
    assert (again.installs, again.removes, again.problem) == ({}, (), "")
    assert history.lines(root.host) == before


def test_from_580_to_595_to_610_and_back(root: Root) -> None:
    for version, down in ((V580, False), (V595, False), (V610, False), (OLDER_580, True)):
        before = {name: root.installed().get(name) for name in asked(version)}
        done = change(root, asked(version), down)
        assert {name: done.change[0].get(name) for name in asked(version)} == before
        assert {name: root.installed()[name] for name in asked(version)} == asked(version)


def test_without_the_option_a_newer_package_stays_and_the_simulation_says_so(root: Root) -> None:
    change(root, asked(V595))
    done = change(root, asked(V580))
    assert (done.installs, done.removes) == ({}, ())
    assert root.installed()["nvidia-driver-cuda"] == evr(V595)


def test_the_other_kernel_module_takes_the_place_of_the_first(root: Root) -> None:
    change(root, asked(V580, OPEN))
    done = change(root, asked(V580, CLOSED))
    assert (done.installs, done.removes) == ({CLOSED: evr(V580)}, (OPEN,))
    assert OPEN not in root.installed()


# holds, and what they hide


def test_a_lock_keeps_the_version_that_an_update_would_replace(root: Root) -> None:
    change(root, asked(V580))
    root.zypper("update")
    assert {name: root.installed()[name] for name in asked(V580)} == asked(V580)
    write(root, ZYPPER.hold_files("driver", {}, {locks.PATH: root.host.read(locks.PATH)}))
    root.zypper("update")
    assert root.installed()["nvidia-driver-cuda"] == evr(V610)


def test_a_lock_of_the_version_before_hides_the_new_one(root: Root) -> None:
    change(root, asked(V580))
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as opened:
        told = opened.simulate(asked(V595))
        assert told.installs == {} and "conflicting requests" in told.problem
        assert told.held == ()
        assert opened.versions([LIBRARIES])[LIBRARIES] == [evr(version) for version in (V610, V595, V580, OLDER_580)]
        opened.hold(ZYPPER.hold_files("driver", asked(V595), {locks.PATH: root.host.read(locks.PATH)}))
        assert opened.simulate(asked(V595)).installs == asked(V595)


def test_locks_of_others_stay_to_the_byte_and_ours_outlive_what_zypper_writes(root: Root) -> None:
    mine = "\n# mine\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: tool\n"
    held = locks.text("driver", asked(V580), mine)
    assert held is not None and held.endswith(mine)
    assert locks.text("driver", asked(V580), held) == held
    assert locks.text("driver", {}, held) == mine
    both = locks.text("toolkit", {"nvidia-container-toolkit": "1.17.8-1"}, held)
    assert locks.text("toolkit", {}, both) == held
    root.write(locks.PATH, held)
    root.zypper("addlock", "other")
    written = root.host.read(locks.PATH)
    assert written is not None and written != held
    assert locks.text("driver", asked(V580), written) == written
    left = locks.text("driver", {}, written)
    assert [lock["solvable_name"] for lock in locks.of_others(left)] == [["other"], ["tool"]]
    root.write(locks.PATH, left or "")
    listed = root.zypper("locks").stdout
    assert "tool" in listed and "other" in listed and "nvidia" not in listed


def test_what_somebody_has_locked_is_named_and_stays(root: Root) -> None:
    change(root, asked(V580))
    write(root, ZYPPER.hold_files("driver", {}, {locks.PATH: root.host.read(locks.PATH)}))
    root.zypper("addlock", LIBRARIES)
    assert [name for name, package in ZYPPER.installed(root.host).items() if package.held] == [LIBRARIES]
    assert set(ZYPPER.removable(root.host, root.packages(), asked(V580))) == set(asked(V580)), "nobody needs it"
    done, step, files = planned(root, nvidia(), asked(V595))
    assert done.held == (LIBRARIES,) and done.problem and done.installs == {}
    assert "solvable_name: %s\n\n" % LIBRARIES in (files[locks.PATH] or "")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.refused_by_now"
    assert root.installed()[LIBRARIES] == evr(V580)


LOCKS = (
    ("match_type: glob\nsolvable_name: nvidia-driver*", True),
    ("match_type: exact\ncase_sensitive: on\nsolvable_name: Nvidia-driver-cuda", False),
    ("match_type: exact\nsolvable_name: Nvidia-driver-cuda", True),
    ("solvable_name: driver", True),
    ("match_type: regex\nsolvable_name: ^nvidia-.*cuda$", True),
    ("match_type: glob\nsolvable_name: nvidia-driver-cuda\nversion: < 3:595", True),
    ("match_type: glob\nsolvable_name: nvidia-driver-cuda\nversion: > 3:595", False),
    ("match_type: glob\nsolvable_name: nvidia-driver-cuda\ninstall_status: not-installed", False),
    ("match_type: glob\nsolvable_name: nvidia-driver-cuda\nrepo: somewhere", False),
    ("type: patch\nmatch_type: glob\nsolvable_name: nvidia-driver-cuda", False),
)


def test_a_lock_is_read_as_zypper_reads_it(root: Root) -> None:
    """zypper itself says so: it would not remove what is locked."""
    change(root, {LIBRARIES: evr(V580), "nvidia-driver-cuda": evr(V580)})
    for lock, held in LOCKS:
        root.write(locks.PATH, "\n%s\n\n" % lock)
        read = locks.of_others(root.host.read(locks.PATH))
        assert locks.holds(read, "nvidia-driver-cuda", evr(V580)) is held, lock
        done = root.zypper("--no-refresh", "remove", "--dry-run", "--no-force-resolution", "nvidia-driver-cuda",
                           check=False)
        assert (done.returncode != 0) is held, lock + done.stdout


# what is refused


def test_what_cannot_be_is_told_in_the_words_of_the_solver(root: Root) -> None:
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as opened:
        told = opened.simulate({**asked(V580), "nvidia-persistenced": evr(OLDER_580)})
    assert told.installs == {}
    assert "nvidia-persistenced = 3:%s" % V580 in told.problem and "Solution" not in told.problem


def test_what_is_not_on_offer_is_named(root: Root) -> None:
    done, step, _files = planned(root, nvidia(), asked(V580))
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as opened:
        told = opened.simulate({**asked(V580), "nvidia-persistenced": evr("999.1"), "no-such": "1-1"})
    assert told.installs == {}
    assert "nvidia-persistenced=3:999.1-1.el9" in told.problem and "no-such=1-1" in told.problem
    with pytest.raises(GpuOpsError) as refused:
        ZYPPER.refresh(root.host, asked(V580))
    assert refused.value.code == "packages.zypper_lists_incomplete"
    assert "nvidia-driver-cuda=" + evr(V580) in refused.value.found
    with pytest.raises(GpuOpsError) as refused:
        carry_out(root, step)
    assert LIBRARIES in refused.value.found and root.installed() == {}


def test_more_than_the_step_says_is_not_done(root: Root) -> None:
    """A repository of the host has become another one since the plan."""
    done, step, files = planned(root, nvidia(), asked(V580))
    trust(root, nvidia())
    ZYPPER.refresh(root.host, asked(V580))
    less = {name: version for name, version in step.change["after"].items() if name != "dkms"}
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, replace(step, change={"before": step.change["before"], "after": less}))
    assert told.value.code == "packages.would_do_more"
    assert told.value.found == "zypper would change dkms (nothing -> 3.2.2-1.el9)"
    assert root.installed() == {} and history.lines(root.host) == []


def test_another_file_of_locks_is_refused(root: Root) -> None:
    assert ZYPPER.hold_refusals(root.host) == []
    root.write("/etc/zypp/zypp.conf", "[main]\n## locksfile.path = {configdir}/locks\n")
    assert ZYPPER.hold_refusals(root.host) == []
    (root.path / "etc/zypp/zypp.conf.d").mkdir()
    root.write("/etc/zypp/zypp.conf.d/mine.conf", "[main]\nlocksfile.path = /srv/locks\n")
    assert [each.code for each in ZYPPER.hold_refusals(root.host)] == ["packages.other_locks"]
    root.write("/etc/zypp/zypp.conf.d/mine.conf", "[main]\nlocksfile.apply = no\n")
    assert [each.code for each in ZYPPER.hold_refusals(root.host)] == ["packages.locks_not_applied"]
    root.write("/etc/zypp/zypp.conf.d/mine.conf", "[main]\nlocksfile.apply = yes\n")
    assert ZYPPER.hold_refusals(root.host) == []


def test_what_is_fetched_is_looked_for_where_the_host_has_it(root: Root) -> None:
    for text, place in (("", "/var/cache/zypp/packages"), ("cachedir = /srv/zypp\n", "/srv/zypp/packages"),
                        ("cachedir = /srv/zypp\npackagesdir = /srv/packages\n", "/srv/packages")):
        root.write("/etc/zypp/zypp.conf", "[main]\n" + text)
        directory = root.path / (place[1:] + "/a/x86_64")
        directory.mkdir(parents=True)
        shutil.copy(scratch_rpm.built(Made("tool", "1.0")), directory)
        assert len(ZYPPER.archives(root.host)) == 1
        shutil.rmtree(directory)


def test_of_the_vendors_configuration_what_lies_below_etc_counts(root: Root) -> None:
    for path, value in (("usr/etc/zypp/zypp.conf", "1"), ("usr/etc/zypp/zypp.conf.d/10-a.conf", "2"),
                        ("usr/etc/zypp/zypp.conf.d/20-b.conf", "3"), ("etc/zypp/zypp.conf.d/20-b.conf", "")):
        (root.path / path).parent.mkdir(parents=True, exist_ok=True)
        root.write(path, "[main]\nan.option = %s\n" % value if value else "")
    assert configuration.option(root.host, "an.option", "0") == "2"
    assert configuration.text(root.host, {"an.option": "9"}).endswith("[main]\nan.option = 9\n")


# nothing is touched


def test_nothing_of_the_host_changes_by_looking(root: Root) -> None:
    change(root, asked(V580))
    before = root.tree()
    planned(root, nvidia(), asked(V595))
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as made:
        made.simulate_removal(root.installed())
    ZYPPER.installed(root.host)
    ZYPPER.interrupted(root.host)
    after = root.tree()
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)
            and not name.startswith("run/gpuops/")} == set()


def test_every_version_is_told_newest_first_and_by_its_repository(root: Root) -> None:
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as opened:
        assert opened.versions(["nvidia-driver-cuda", "nvidia-fabricmanager", "dkms", "no-such"]) == {
            "nvidia-driver-cuda": [evr(version) for version in (V610, V595, V580, OLDER_580)],
            "nvidia-fabricmanager": [evr(version, 0) for version in (V610, V595, V580, OLDER_580)],
            "dkms": ["3.2.2-1.el9"], "no-such": []}
        assert opened.versions(["dkms", OPEN], nvidia().uri + "/") == {
            "dkms": [], OPEN: [evr(version) for version in (V610, V595, V580, OLDER_580)]}
        assert opened.versions(["tool"])["tool"] == ["2.0-1.el9", "2.0~rc1-1.el9", "1.0-1.el9"]
    with ZYPPER.open(root.host, [nvidia()]) as opened:
        assert opened.versions(["dkms"]) == {"dkms": []}
    with ZYPPER.open(root.host, []) as opened:
        assert opened.versions(["dkms"]) == {"dkms": []}


# repositories


def test_a_repository_of_somebody_else_that_is_gone_stops_nobody(root: Root) -> None:
    root.configure("gone", "file:///no/such/place")
    done, step, files = planned(root, nvidia(), asked(V580))
    assert done.problem == "" and step.parameters["without"] == ["gone"]
    trust(root, nvidia())
    write(root, files)
    ZYPPER.refresh(root.host, asked(V580))
    carry_out(root, step)
    assert root.installed() == dict(done.installs)
    assert not root.host.exists("/etc/zypp/repos.d/all.repo")


def test_one_of_ours_that_is_gone_is_named(root: Root, tmp_path: Path) -> None:
    with pytest.raises(GpuOpsError) as told, ZYPPER.open(root.host, [nvidia(tmp_path / "none")], beside_system=True):
        pass
    assert str(tmp_path / "none") in told.value.found


def test_an_index_that_another_key_signed_is_not_read(root: Root, tmp_path: Path) -> None:
    signed = scratch_rpm.publish(tmp_path / "signed", scratch_rpm.driver(V580))
    with pytest.raises(GpuOpsError) as told, ZYPPER.open(root.host, [nvidia(signed, metadata_signed=True)]):
        pass
    assert "not signed" in told.value.found
    scratch_rpm.sign_index(signed, "one")
    before = ZYPPER.trusted(root.host)
    with ZYPPER.open(root.host, [nvidia(signed, metadata_signed=True)]) as made:
        assert made.versions([OPEN])[OPEN] == [evr(V580)]
    assert ZYPPER.trusted(root.host) == before
    scratch_rpm.publish(signed, scratch_rpm.driver(V595))
    scratch_rpm.sign_index(signed, "two")
    with pytest.raises(GpuOpsError) as told, ZYPPER.open(root.host, [nvidia(signed, metadata_signed=True)]):
        pass
    assert "has not signed" in told.value.found


def test_a_package_that_another_key_signed_is_not_installed(root: Root, tmp_path: Path) -> None:
    foreign = nvidia(scratch_rpm.publish(tmp_path / "foreign", scratch_rpm.driver(V580), key="three"))
    _done, step, files = planned(root, foreign, asked(V580))
    trust(root, foreign)
    write(root, files)
    ZYPPER.refresh(root.host, asked(V580))
    trusted = ZYPPER.trusted(root.host)
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert "Signature verification failed" in told.value.found
    assert root.installed() == {} and ZYPPER.trusted(root.host) == trusted


def test_a_key_that_rpm_does_not_trust_yet_is_not_taken(root: Root) -> None:
    """zypper would import the key of the repository's own entry, if it were told to."""
    _done, step, files = planned(root, nvidia(), asked(V580))
    write(root, {**ZYPPER.repository_files(nvidia()), **files})
    ZYPPER.refresh(root.host, asked(V580))
    with pytest.raises(GpuOpsError):
        carry_out(root, step)
    assert root.installed() == {} and len(ZYPPER.trusted(root.host)) == 1
    assert not ZYPPER.interrupted(root.host)
    trust(root, nvidia())
    carry_out(root, step)
    assert root.installed()["nvidia-driver-cuda"] == evr(V580)


def test_lists_are_renewed_until_they_name_what_was_planned(root: Root, tmp_path: Path) -> None:
    growing = scratch_rpm.publish(tmp_path / "growing", scratch_rpm.driver(V580))
    trust(root, nvidia(growing))
    ZYPPER.refresh(root.host, asked(V580))
    with pytest.raises(GpuOpsError) as told:
        ZYPPER.refresh(root.host, asked(V595))
    assert "nvidia-driver-cuda=" + evr(V595) in told.value.found
    with ZYPPER.open(root.host, [nvidia(growing)]) as opened:
        assert opened.versions([OPEN])[OPEN] == [evr(V580)]
    scratch_rpm.publish(growing, scratch_rpm.driver(V595))
    ZYPPER.refresh(root.host, asked(V595))
    with ZYPPER.open(root.host, [nvidia(growing)]) as opened:
        assert opened.versions([OPEN])[OPEN] == [evr(V595), evr(V580)]


class _Closed(http.server.SimpleHTTPRequestHandler):
    """A repository for those alone who say who they are."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Basic " + base64.b64encode(b"me:s3cret").decode():
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


def test_credentials_are_told_to_zypper_and_to_nobody_else(root: Root) -> None:
    handler = functools.partial(_Closed, directory=str(scratch_rpm.nvidia(modules=False)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        closed = replace(nvidia(), uri="http://127.0.0.1:%d" % server.server_port)
        with ZYPPER.open(root.host, [replace(closed, credentials=Credentials("me", "s3cret"))]) as opened:
            assert opened.versions([OPEN], closed.uri)[OPEN][0] == evr(V610)
        with pytest.raises(GpuOpsError) as told, ZYPPER.open(
                root.host, [replace(closed, credentials=Credentials("me", "wrong-one"))]):
            pass
        server.shutdown()
    assert "wrong-one" not in str(told.value) and closed.uri in told.value.found


# removal


def test_a_removal_says_what_of_others_would_go_with_it(root: Root) -> None:
    change(root, asked(V580))
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as made:
        assert made.simulate_removal(asked(V580)).removes == tuple(sorted(asked(V580)))
    root.zypper("install", "app")
    with ZYPPER.open(root.host, [nvidia()], beside_system=True) as made:
        assert made.simulate_removal(asked(V580)).removes == tuple(sorted([*asked(V580), "app"]))
        assert made.simulate_removal([LIBRARIES, "no-such"]).removes == ("app", "nvidia-driver-cuda", LIBRARIES)
        assert made.simulate_removal(["no-such"]) == Simulation({}, ())


def test_a_removal_takes_what_it_names_and_nothing_else(root: Root) -> None:
    change(root, asked(V580))
    with ZYPPER.open(root.host, [], beside_system=True) as made:
        done = made.simulate_removal(asked(V580))
    step = packages_step("driver", "driver", done.before, dict.fromkeys(done.removes), "a test", manager="zypper",
                         request=dict(done.request))
    opened = opened_step(root, step)
    carry_out(root, step)
    assert root.installed() == {"dkms": "3.2.2-1.el9"}
    came = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert {name: (each.before, each.after) for name, each in came.items()} == {
        name: (version, None) for name, version in asked(V580).items()}
    assert {line.name for line in history.lines(root.host) if line.kind == "remove"} == set(asked(V580))


def test_of_several_kernels_the_one_that_is_named_goes(root: Root) -> None:
    root.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:installonlypkg(kernel)\n")
    for number in (570, 611):
        root.rpm("-i", "--nodeps", "--justdb", str(scratch_rpm.built(Made(
            "kernel-core", "5.14.0", "%d.el9" % number, relations=(
                "Provides: kernel = 5.14.0-%d.el9" % number, "Provides: installonlypkg(kernel)")))))
    assert set(root.installed()) == {"kernel-core-5.14.0-611.el9", "kernel-core-5.14.0-570.el9"}
    with ZYPPER.open(root.host, [], beside_system=True) as made:
        done = made.simulate_removal(["kernel-core-5.14.0-570.el9"])
        assert made.simulate({"kernel-core": "5.14.0-640.el9"}).change == (
            {"kernel-core-5.14.0-640.el9": None}, {"kernel-core-5.14.0-640.el9": "5.14.0-640.el9"})
    assert done.removes == ("kernel-core-5.14.0-570.el9",)


# what is ours, what was stopped, who is at work


def test_what_an_administrator_did_meanwhile_is_not_ours(root: Root) -> None:
    done, step, files = planned(root, nvidia(), asked(V580))
    opened = opened_step(root, step)
    trust(root, nvidia())
    write(root, files)
    root.zypper("install", "dkms", "tool")
    assert ZYPPER.evidence(root.host, step, opened, root.packages()) == {}
    carry_out(root, step)
    assert set(ZYPPER.evidence(root.host, step, opened, root.packages())) == set(done.installs).difference({"dkms"})
    again = opened_step(root, step)
    assert again["known"] and ZYPPER.evidence(root.host, step, again, root.packages()) == {}
    root.zypper("install", "--force", "nvidia-persistenced=" + evr(V580))
    assert "nvidia-persistenced" not in ZYPPER.evidence(root.host, step, opened, root.packages())


@pytest.mark.parametrize("where", ["libs", "kmod", "whole"])
def test_a_transaction_that_is_killed_is_known_and_finished(root: Root, tmp_path: Path, where: str) -> None:
    """In a script of the first package or of a later one, rpm alone; and zypper together with rpm."""
    repository = nvidia()
    if where == "whole":
        packages = [replace(each, script=_KILLS % "libs") if each.name == LIBRARIES else each
                    for version in (V580, V595) for each in scratch_rpm.driver(version)]
        repository = nvidia(scratch_rpm.publish(tmp_path / "killing", packages))
    change(root, asked(V580), repository=repository)
    done, step, files = planned(root, repository, asked(V595))
    write(root, files)
    opened = opened_step(root, step)
    kills = "/killed-whole-libs" if where == "whole" else "/killed-here-" + where
    root.write(kills, "")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.zypper_failed"
    root.host.remove(kills)
    left = history.unfinished(root.host, root.packages())
    assert left and ZYPPER.interrupted(root.host)
    killed = OPEN if where == "kmod" else LIBRARIES
    assert dict(left.doubtful) == {killed: evr(V595)}
    assert list(left.leftovers) == ["%s-%s-%s" % (killed, V580, RELEASE)]
    finish = history.finish_step("driver", left)
    ZYPPER.executors[finish.action](root.host, Journal(root.host), finish)
    assert not ZYPPER.interrupted(root.host)
    assert list(root.path.glob("usr/share/%s/of-*" % killed)) == [
        root.path / "usr/share" / killed / ("of-" + V595)]
    came = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert came[killed].before == evr(V580) and came[killed].after == evr(V595)
    rest = change(root, asked(V595), repository=repository)
    assert {**{name: each.after for name, each in came.items()}, **rest.installs} == asked(V595)
    assert set(came).isdisjoint(rest.installs)


def test_what_came_before_a_power_cut_is_ours_and_has_its_scripts_run_though_the_history_is_lost(root: Root) -> None:
    done, step, files = planned(root, nvidia(), asked(V580))
    trust(root, nvidia())
    write(root, files)
    ZYPPER.refresh(root.host, asked(V580))
    opened = opened_step(root, step)
    root.write("/killed-here-kmod", "")
    with pytest.raises(GpuOpsError):
        carry_out(root, step)
    root.host.remove("/killed-here-kmod")
    came = root.installed()
    assert {"dkms", OPEN} <= set(came)
    log, journal = root.path / "var/log/zypp/history", Journal(root.host)
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "|gpuops." not in line))
    assert not history.unfinished(root.host, root.packages())
    assert ZYPPER.evidence(root.host, step, opened, root.packages()) == {}
    journal.remember(history.MEMORY, {**journal.recall(history.MEMORY), "boot": "the one before"})
    shown = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in shown.items()} == came
    assert not ZYPPER.interrupted(root.host), "nobody has a step open"
    journal.note("started", step, "a plan", policy="", transaction={**opened, "boot": "the one before"})
    left = history.unfinished(root.host, root.packages())
    assert dict(left.doubtful) == came
    # What somebody has installed since is his
    root.zypper("install", "--force", "dkms")
    shown = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert set(shown) == set(came).difference({"dkms"})
    ZYPPER.mend(root.host, step, shown)
    journal.note("done", step, "a plan")
    left = history.unfinished(root.host, root.packages())
    assert set(left.doubtful) == set(shown)
    finish = history.finish_step("driver", left)
    ZYPPER.executors[finish.action](root.host, journal, finish)
    assert not ZYPPER.interrupted(root.host)


@pytest.mark.parametrize("program, name", [
    ("xz", "history-20261125.xz"), ("gzip", "history.1.gz"), ("", "history-20261125")])
def test_a_history_that_was_rotated_since_is_read_before_the_new_one(
    tmp_path: Path, program: str, name: str
) -> None:
    host, line = Host(str(tmp_path)), "2026-11-24 06:19:2%d|command|root@gpu1|'zypper'|gpuops.%d\n"
    host.write("/var/log/zypp/history-20251001", line % (0, 0))
    os.utime(tmp_path / "var/log/zypp/history-20251001", (1, 1))
    host.write("/var/log/zypp/history", line % (2, 2))
    data = (line % (1, 1)).encode()
    if program:
        data = subprocess.run([program, "--stdout"], input=data, capture_output=True, check=True).stdout
    (tmp_path / "var/log/zypp" / name).write_bytes(data)
    assert [each.word for each in history.lines(host)] == ["gpuops.1", "gpuops.2"]
    (tmp_path / "var/log/zypp" / name).write_bytes(data[:8] if program else b"")
    assert [each.word for each in history.lines(host)] == ["gpuops.2"]


def test_a_package_whose_script_fails_is_named(root: Root, tmp_path: Path) -> None:
    repository = nvidia(scratch_rpm.publish(tmp_path / "failing", [FAILING]))
    _done, step, files = planned(root, repository, {"failing": FAILING.evr})
    trust(root, repository)
    ZYPPER.refresh(root.host, {"failing": FAILING.evr})
    opened = opened_step(root, step)
    (root.path / "bin").mkdir()
    subprocess.run(["gcc", "-static", "-xc", "-", "-o", str(root.path / "bin/fails")], check=True, text=True,
                   input="int main(void) { return 1; }")
    with pytest.raises(GpuOpsError) as told:
        carry_out(root, step)
    assert told.value.code == "packages.zypper_script_failed"
    assert root.installed() == {"failing": FAILING.evr}
    assert set(ZYPPER.evidence(root.host, step, opened, root.packages())) == {"failing"}


def test_who_holds_the_lock_is_waited_for_and_named(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = scratch_rpm.publish(tmp_path / "slow", [SLOW])
    root.configure("slow", slow)
    done, step, files = planned(root, nvidia(), asked(V580))
    trust(root, nvidia())
    write(root, files)
    ZYPPER.refresh(root.host, asked(V580))
    root.write("/wait-here", "")
    with subprocess.Popen(root.zypper_words(["install", "slow"]), stdout=subprocess.DEVNULL,
                          env=root.environment) as other:
        _until(lambda: "slow" in root.installed())
        with pytest.raises(GpuOpsError) as told:
            asking.unlocked(root.host, lambda: root.host.run(
                asking.argv(root.host, *transaction.words(step, database.installed(root.host))), check=False,
                env=asking.own_environment(root.host)), lock_seconds=0)
        assert told.value.code == "packages.zypper_locked"
        assert "zypper (process %d" % other.pid in told.value.found
        # Who only looks does not wait
        with ZYPPER.open(root.host, [nvidia()], beside_system=True) as made:
            assert made.simulate(asked(V580)).problem == ""
        threading.Timer(1.0, (root.path / "wait-here").unlink).start()
        carry_out(root, step)
        assert other.wait() == 0
    assert root.installed() == {**done.installs, "slow": SLOW.evr}


def _until(true: Any) -> None:
    for _attempt in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about in a minute")


# pure


def test_the_history_is_read_by_its_fields() -> None:
    text = (
        "# 2026-11-24 06:19:24 nvidia-driver-cuda-libs-580.178.04-1.el9.x86_64.rpm installed ok\n"
        "2026-11-24 06:19:23|command|root@gpu1|'zypper' 'install' 'a|b'|gpuops.1\n"
        "2026-11-24 06:19:24|install|libdrm|2.4-1|i686|root@gpu1|baseos|7fe7|gpuops.1\n"
        "2026-11-24 06:19:25|remove |tool|1.0-1|x86_64|root@gpu1|\n"
        "2026-11-24 06:19:26|radd   |baseos|http://a|\n")
    assert history.parse(text) == [
        history.Line("command", "gpuops.1"), history.Line("install", "gpuops.1", "libdrm.i686", "2.4-1"),
        history.Line("remove", "", "tool", "1.0-1")]


def test_an_answer_is_read_as_far_as_it_goes() -> None:
    whole = ("<?xml version='1.0'?>\n<stream>\n<message type=\"error\">first\n  thing</message>\n"
             "<install-summary download-size=\"5\" space-usage-diff=\"-7\"><to-upgrade><solvable type=\"package\" "
             "name=\"a\" edition=\"2-1\" arch=\"x86_64\" edition-old=\"1-1\"/></to-upgrade><to-remove>"
             "<solvable type=\"patch\" name=\"p\" edition=\"1\" arch=\"noarch\"/></to-remove></install-summary>\n")
    for more in ("</stream>", "rpm: a < b & c", "\x1b[0m<message type=\"err"):
        said = asking.parse("a plugin says\n" + whole + more)
        assert said.errors == ("first thing",)
        assert said.items == (asking.Item(asking.COMES, "a", "x86_64", "2-1", "1-1"),)
        assert (said.download, said.unpacked) == (5, 0)
    assert asking.parse("") == asking.Answer()


def test_a_package_that_comes_in_the_place_of_another_is_no_removal() -> None:
    there = {"a": Package("a", "x86_64", "1-1", "install", "installed")}
    done = indexes.simulation([asking.Item(asking.COMES, "b", "x86_64", "1-1"),
                               asking.Item(asking.GOES, "a", "x86_64", "1-1")], there)
    assert (done.installs, done.removes, done.before) == ({"b": "1-1"}, ("a",), {"a": "1-1"})


def test_zypper_is_asked_with_the_epoch_and_the_second_architecture() -> None:
    assert transaction.specs({"nvidia-driver-cuda": evr(V580), "libdrm.i686": "2.4-1", "tool": None,
                              "kernel-core-5.14.0-570.el9": "5.14.0-570.el9"}) == [
        "kernel-core=5.14.0-570.el9", "libdrm.i686=2.4-1", "nvidia-driver-cuda=" + evr(V580), "tool"]


def test_nothing_is_left_to_a_module_of_ansible() -> None:
    step = packages_step("driver", "driver", {}, {"tool": "1.0-1.el9"}, "a test", manager="zypper")
    assert (ZYPPER.builtin_module(step.to_dict()), ZYPPER.builtin_options(step.to_dict())) == ("", None)
    assert ZYPPER.choose({"nvidia-driver": "580-open"}) == {}


# what a capability asks besides


def test_what_came_as_a_dependency_is_told_and_what_is_marked_counts_as_such_for_zypper(root: Root) -> None:
    root.rpm("-i", "--nodeps", "--justdb", *(str(scratch_rpm.built(Made(name, "1.0"))) for name in ("one", "two")))
    root.write("/var/lib/zypp/AutoInstalled", "# generated\none\nno-such\n")
    assert ZYPPER.automatic(root.host) == {"one"}
    ZYPPER.mark_automatic(root.host, ["two", "one"])
    assert ZYPPER.automatic(root.host) == {"one", "two"}
    told = root.zypper("--no-refresh", "search", "--installed-only", check=False).stdout
    assert set(re.findall(r"(?m)^i +\| (\S+)", told)) == {"one", "two"}, told


def left_open(root: Root, marks: str) -> Tuple[Provenance, Journal, Step, Dict[str, Any]]:
    """A transaction that was opened with these marks of two packages, and in which the power was cut."""
    root.rpm("-i", "--nodeps", "--justdb", *(str(scratch_rpm.built(Made(name, "1.0"))) for name in ("one", "two")))
    root.write("/var/lib/zypp/AutoInstalled", marks)
    books, journal = Provenance(), Journal(root.host)
    step = packages_step("driver", "driver", {}, {"three": "1.0-1.el9"}, "a test", manager="zypper",
                         request={"three": "1.0-1.el9"})
    opened = {**books.opened(root.host, step), "boot": "the one before"}
    journal.note("started", step, "a plan", policy="", transaction=opened)
    return books, journal, step, opened


@pytest.mark.parametrize("left", ["", "\0" * 4096])
def test_a_power_cut_in_a_transaction_takes_nothing_of_what_was_automatic(
    root: Root, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzypp writes the file anew with each transaction, and syncs it no more than apt does."""
    books, journal, step, opened = left_open(root, "one\n")
    root.write("/var/lib/zypp/AutoInstalled", left)
    monkeypatch.setattr(Host, "booted", lambda _host: time.time() + 9)
    assert provenance.automatic(root.host, journal, ZYPPER) == {"one"}, "before anybody has settled it"
    books.settle(root.host, journal, step, opened)
    assert ZYPPER.automatic(root.host) == {"one"}
    assert (root.path / "var/lib/zypp/AutoInstalled").read_text() == (
        "# AutoInstalled generated by gpuops.nvidia\n##\none\n")


def test_whoever_chooses_the_last_automatic_one_after_a_power_cut_is_heard(root: Root) -> None:
    """libzypp writes its heading then, a power cut leaves none."""
    books, journal, step, opened = left_open(root, "# generated\n##\none\n")
    root.write("/var/lib/zypp/AutoInstalled", "# generated\n##\n")
    books.settle(root.host, journal, step, opened)
    assert ZYPPER.automatic(root.host) == set()


def test_a_power_cut_in_a_removal_leaves_what_is_automatic_of_ours_to_go_later(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal names dependencies too, and does not choose them; what somebody has brought since is his."""
    root.rpm("-i", "--nodeps", "--justdb", *(str(scratch_rpm.built(Made(name, "1.0"))) for name in ("one", "two")))
    root.write("/var/lib/zypp/AutoInstalled", "# generated\n##\none\n")
    there = {name: package.version for name, package in ZYPPER.installed(root.host).items()}
    books, journal = Provenance(), Journal(root.host)
    journal.set_packages("driver", {name: PackageChange(None, version) for name, version in there.items()})
    journal.remember(provenance.MEMORY, {"driver": ["two"]})
    step = packages_step("driver", "driver", there, dict.fromkeys(there), "a test", manager="zypper",
                         request=dict(there), all_of_ours=True)
    opened = {**books.opened(root.host, step), "boot": "the one before"}
    journal.note("started", step, "a plan", policy="", transaction=opened)
    root.write("/var/lib/zypp/AutoInstalled", "")

    def ours() -> Set[str]:
        return set(provenance.installed_by_us(root.host, journal, "driver", ZYPPER.installed(root.host), ZYPPER))

    with monkeypatch.context() as patched:
        patched.setattr(Host, "booted", lambda _host: 1.0)
        assert ours() == {"two"}, "both have come since"
    monkeypatch.setattr(Host, "booted", lambda _host: time.time() + 9)
    assert ours() == {"one", "two"}, "before anybody has settled it"
    books.settle(root.host, journal, step, opened)
    journal.note("failed", step, "a plan")
    assert ours() == {"one", "two"}


def test_a_repository_is_found_under_an_address_with_variables(root: Root) -> None:
    (root.path / "etc/zypp/vars.d").mkdir()
    root.write("/etc/zypp/vars.d/where", "mirror\n")
    root.write("/etc/zypp/repos.d/theirs.repo",
               "[theirs]\nenabled=1\nbaseurl=https://example.com/${where}/$releasever/$releasever_major\n")
    found = ZYPPER.configured_in(root.host, "https://example.com/mirror/15.6/15", "/etc/zypp/repos.d/ours.repo")
    assert found == ("/etc/zypp/repos.d/theirs.repo",)


def test_one_of_several_versions_is_locked_by_its_name_and_held_by_that(root: Root) -> None:
    root.rpm("-i", "--nodeps", "--justdb", str(scratch_rpm.built(Made(
        "kernel-core", "5.14.0", "611.el9", relations=("Provides: installonlypkg(kernel)",)))))
    root.write("/etc/zypp/locks",
               "type: package\nmatch_type: exact\ncase_sensitive: on\nsolvable_name: kernel-core\n\n")
    assert ZYPPER.installed(root.host)["kernel-core-5.14.0-611.el9"].wanted == "hold"
