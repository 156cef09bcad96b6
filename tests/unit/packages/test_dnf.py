# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dnf: what is simulated is what ansible.builtin.dnf then does, as dnf's own history shows it."""
from __future__ import annotations

import ast
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import pytest
import rpm_changes
import scratch_rpm
from rpm_changes import LIBRARIES, asked, evr, nvidias, write
from rpm_machine import Quiet, home, serve, silent
from scratch_rpm import CLOSED, MODULE, OLDER_580, OPEN, RELEASE, V580, V595, V610, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandTimedOut
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import package_manager_works, package_managers
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import asking, history, locks, program
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.index import Index, index
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Package, Repository, Simulation

trust = partial(rpm_changes.trust, DNF)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    home(tmp_path, monkeypatch)
    return Root(tmp_path / "root")


def nvidia(where: Optional[Path] = None, **more: Any) -> Repository:
    return nvidias(where or scratch_rpm.nvidia(), **more)


def planned(
    root: Root, repository: Repository, request: Mapping[str, str], stream: str = "", down: bool = False
) -> Tuple[Simulation, Step, Mapping[str, Optional[str]]]:
    return rpm_changes.planned(
        DNF, root, repository, request, down, DNF.choose({MODULE: stream} if stream else {}))


def change(root: Root, request: Mapping[str, str], stream: str = "", down: bool = False,
           repository: Optional[Repository] = None) -> Simulation:
    """Simulate, carry out by ansible.builtin.dnf, and hold dnf's history against the simulation."""
    done, step, files = planned(root, repository or nvidia(), request, stream, down)
    assert done.problem == ""
    trust(root, repository or nvidia())
    write(root, files)
    opened = {"known": DNF.known(root.host, step), "there": root.installed()}
    told = carried_out(root, step)
    assert told.get("failed") is not True, told
    if not done.installs and not done.removes:
        assert told["changed"] is False
        return done
    entry = history.entries(root.host)[-1]
    assert entry.ended
    assert dict(entry.after) == done.change[1]
    assert {name: entry.before.get(name) for name in entry.after} == done.change[0]
    came = DNF.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in came.items()} == done.change[1]
    assert {name: each.before for name, each in came.items()} == done.change[0]
    return done


def carried_out(root: Root, step: Step) -> Dict[str, Any]:
    options = DNF.builtin_options(step.to_dict())
    assert options is not None
    return root.module(options)


@pytest.fixture
def opened(root: Root) -> Iterator[Index]:
    with index(root.host, [nvidia()], beside_system=True) as made:
        yield made


def test_the_program_is_python_of_el_8() -> None:
    ast.parse(program.TEXT, feature_version=(3, 6))


# installed as simulated


def test_an_install_is_what_the_history_then_shows(root: Root) -> None:
    done = change(root, asked(V580), "580-open")
    assert done.installs == {**asked(V580), "dkms": "3.2.2-1.el9"}
    assert root.installed() == done.installs
    assert done.download > 1000 and done.unpacked > 0


def test_what_is_there_is_left_alone(root: Root) -> None:
    change(root, asked(V580), "580-open")
    again = change(root, asked(V580), "580-open")
    assert (again.installs, again.removes, again.problem) == ({}, (), "")


def test_from_580_to_595_to_610_and_back(root: Root) -> None:
    for version, down in ((V580, False), (V595, False), (V610, False), (OLDER_580, True)):
        before = {name: root.installed().get(name) for name in asked(version)}
        done = change(root, asked(version), "%s-open" % version.split(".")[0], down)
        assert {name: done.change[0].get(name) for name in asked(version)} == before
        assert {name: root.installed()[name] for name in asked(version)} == asked(version)
        enabled = root.dnf("--disablerepo=baseos", "--quiet", "module", "list", "--enabled").stdout
        assert [line.split()[:2] for line in enabled.splitlines() if line.startswith(MODULE + " ")] == [
            [MODULE, "%s-open" % version.split(".")[0]]]


def test_without_the_option_a_newer_package_stays_and_the_simulation_says_so(root: Root) -> None:
    change(root, asked(V595), "595-open")
    done = change(root, asked(V580), "580-open")
    assert (done.installs, done.removes) == ({}, ())
    assert root.installed()["nvidia-driver-cuda"] == evr(V595)


def test_the_other_kernel_module_takes_the_place_of_the_first(root: Root) -> None:
    change(root, asked(V580, OPEN), "580-open")
    done = change(root, asked(V580, CLOSED), "580-dkms")
    assert (done.installs, done.removes) == ({CLOSED: evr(V580)}, (OPEN,))
    assert OPEN not in root.installed()


def test_where_there_are_no_streams_the_exact_version_is_enough(root: Root) -> None:
    flat = nvidia(scratch_rpm.nvidia(modules=False))
    for version in (V580, V595):
        change(root, asked(version), repository=flat)
    with index(root.host, [flat]) as made:
        assert made.streams(MODULE) == {}


def test_a_lock_keeps_the_version_that_an_update_would_replace(root: Root) -> None:
    flat = nvidia(scratch_rpm.nvidia(modules=False))
    change(root, asked(V580), repository=flat)
    root.dnf("update")
    assert {name: root.installed()[name] for name in asked(V580)} == asked(V580)
    write(root, DNF.hold_files("driver", {}, {locks.LIST: root.host.read(locks.LIST)}))
    root.dnf("update")
    assert root.installed()["nvidia-driver-cuda"] == evr(V610)


# what is refused


def test_what_cannot_be_is_told_in_the_words_of_the_solver(opened: Index) -> None:
    opened.hold(DNF.choose({MODULE: "580-open"}))
    mixed = {**asked(V580), "nvidia-persistenced": evr(OLDER_580)}
    told = opened.simulate(mixed)
    assert told.installs == {}
    assert "nvidia-persistenced = 3:%s" % V580 in told.problem


def test_a_version_of_another_stream_is_not_to_be_had(opened: Index) -> None:
    opened.hold(DNF.choose({MODULE: "580-open"}))
    assert "nvidia-driver-cuda-3:%s" % V595 in opened.simulate(asked(V595)).problem


def test_a_stream_that_is_not_there_is_a_problem(opened: Index) -> None:
    opened.hold(DNF.choose({MODULE: "620-open"}))
    assert "nvidia-driver:620-open" in opened.simulate(asked(V580)).problem


def test_what_somebody_has_locked_is_named_and_stays(root: Root) -> None:
    flat = nvidia(scratch_rpm.nvidia(modules=False))
    change(root, asked(V580), repository=flat)
    write(root, DNF.hold_files("driver", {}, {locks.LIST: root.host.read(locks.LIST)}))
    root.write(locks.LIST, "# mine\n%s-3:%s-%s.*\n" % (LIBRARIES, V580, RELEASE))
    assert [name for name, package in DNF.installed(root.host).items() if package.held] == [LIBRARIES]
    done, _step, files = planned(root, flat, asked(V595))
    # Two locks of one package leave both versions to choose from
    assert files[locks.LIST] is not None and "# mine" in (files[locks.LIST] or "")
    with DNF.open(root.host, [flat], beside_system=True) as made:
        told = made.simulate(asked(V595))
    assert told.held == (LIBRARIES,) and told.problem
    assert done.problem == ""


# one library for all questions


def test_what_comes_to_the_host_between_two_questions_is_seen(root: Root) -> None:
    with DNF.open(root.host, [nvidia()], beside_system=True) as made:
        made.hold(DNF.choose({MODULE: "580-open"}))
        assert set(made.simulate(asked(V580)).installs) > set(asked(V580))
        change(root, asked(V580), "580-open")
        assert made.simulate(asked(V580)).installs == {}
        assert set(made.simulate_removal(["dkms"]).removes) > {"dkms"}


@pytest.mark.parametrize("hook", ("sack", "resolved"))
def test_a_process_of_it_that_is_killed_is_told_of(root: Root, hook: str) -> None:
    plugins = root.path / "plugins"
    plugins.mkdir()
    (plugins / "killer.py").write_text(
        "import dnf, os\nclass Killer(dnf.Plugin):\n    name = 'killer'\n    def %s(self): os.kill(os.getpid(), 9)\n"
        % hook)
    configuration = root.path / "etc/dnf/dnf.conf"
    configuration.write_text("%s\npluginpath=%s\n" % (configuration.read_text(), plugins))
    with DNF.open(root.host, [nvidia()], beside_system=True) as made, \
            pytest.raises(GpuOpsError, match="killed by signal 9") as told:
        made.simulate(asked(V580))
    assert told.value.code == "packages.dnf_failed"


def test_a_file_that_is_none_is_named(root: Root, opened: Index) -> None:
    (root.path / "none.rpm").write_text("none")
    with pytest.raises(GpuOpsError, match="Could not open: .*/none.rpm"):
        opened.simulate(asked(V580), files={name: str(root.path / "none.rpm") for name in asked(V580)})


# nothing is touched


def test_nothing_of_the_host_changes_by_looking(root: Root) -> None:
    change(root, asked(V580), "580-open")
    before = root.tree()
    planned(root, nvidia(), asked(V595), "595-open")
    with DNF.open(root.host, [nvidia()], beside_system=True) as made:
        made.simulate_removal(root.installed())
    DNF.interrupted(root.host)
    after = root.tree()
    assert {name for name in after if before.get(name) != after[name] and not name.startswith("run/gpuops/")} == set()
    assert set(before).difference(after) == set()


def test_every_version_of_every_stream_is_told_newest_first(opened: Index) -> None:
    told = opened.versions(["nvidia-driver-cuda", "nvidia-fabricmanager", "dkms", "no-such"])
    assert told == {
        "nvidia-driver-cuda": [evr(version) for version in (V610, V595, V580, OLDER_580)],
        "nvidia-fabricmanager": [evr(version, 0) for version in (V610, V595, V580, OLDER_580)],
        "dkms": ["3.2.2-1.el9"], "no-such": []}
    assert opened.versions(["dkms"], nvidia().uri) == {"dkms": []}


def test_streams_are_told_with_the_default_and_what_they_have(opened: Index) -> None:
    told = opened.streams(MODULE)
    assert set(told) == {branch + flavour for branch in ("580", "595", "610") for flavour in ("-open", "-dkms", "")
                         } | {"open-dkms", "latest-dkms", "latest"}
    assert [name for name, stream in told.items() if stream.default] == ["open-dkms"]
    assert told["580-dkms"].packages[CLOSED] == [evr(V580), evr(OLDER_580)]
    assert OPEN not in told["580-dkms"].packages


# what is of another architecture


def beside(tmp_path: Path, *more: scratch_rpm.Made) -> Repository:
    """The driver's libraries for 32 bits lie in NVIDIA's repository too, and are the first of their name there."""
    libraries = next(each for each in scratch_rpm.driver(V580) if each.name == LIBRARIES)
    return nvidia(scratch_rpm.publish(tmp_path / "beside", [
        *scratch_rpm.driver(V580), replace(libraries, arch="i686"), *more]))


def test_fetched_and_named_is_what_the_system_itself_is_made_of(root: Root, tmp_path: Path) -> None:
    both = beside(tmp_path)
    trust(root, both)
    DNF.download(root.host, packages_step("driver", "driver", {}, {}, "a test", manager="dnf", request=asked(V580)))
    assert DNF.archives(root.host) == tuple(
        "%s-%s-%s.x86_64.rpm" % (name, V580, RELEASE) for name in sorted(asked(V580)))
    root.write(locks.LIST, "%s-3:%s-%s.*\n" % (LIBRARIES, V595, RELEASE))
    with index(root.host, [both], beside_system=True) as made:
        assert made.simulate(asked(V580)).held == (LIBRARIES,)


def test_fetched_for_32_bits_is_what_is_asked_for_so(root: Root, tmp_path: Path) -> None:
    trust(root, beside(tmp_path))
    DNF.download(root.host, packages_step("driver", "driver", {}, {}, "a test", manager="dnf", request={
        LIBRARIES + ".i686": evr(V580)}))
    assert DNF.archives(root.host) == ("%s-%s-%s.i686.rpm" % (LIBRARIES, V580, RELEASE),)


def test_what_this_machine_cannot_install_is_no_offer(root: Root, tmp_path: Path) -> None:
    other = scratch_rpm.Made("tool", "4.0", arch="aarch64")
    with index(root.host, [beside(tmp_path, other)], beside_system=True) as made:
        assert made.versions(["tool"])["tool"][0] == "2.0-" + RELEASE


# repositories of others


def address(server: socket.socket) -> str:
    """Of a repository that asks for a password and a token."""
    return "http://bob:hunter2@127.0.0.1:%d/el9?token=hunter3" % server.getsockname()[1]


@pytest.mark.variation
def test_those_that_never_answer_take_no_time_from_ours_and_no_password_is_shown(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may be silent for as long as it takes, and all together for longer than that."""
    monkeypatch.setattr(asking, "SILENCE_SECONDS", 12)
    with silent() as one, silent() as other:
        root.configure("a-partner", address(one), timeout=2, retries=1)
        root.configure("another", "", metalink=address(other), timeout=2, retries=1)
        begun = time.monotonic()
        with index(root.host, [nvidia()], beside_system=True) as made:
            assert time.monotonic() - begun > asking.SILENCE_SECONDS
            assert (made.without, made.simulate(asked(V580)).problem) == (("a-partner", "another"), "")
            assert "127.0.0.1" in " ".join(made.unread) and "hunter" not in " ".join(made.unread)


def test_one_that_is_left_out_is_not_asked_when_lists_are_renewed(root: Root) -> None:
    trust(root, nvidia())
    step = packages_step("driver", "driver", {}, {}, "a test", manager="dnf", request=asked(V580), update_cache=True,
                         without=["a-partner"])
    with silent() as partner:
        root.configure("a-partner", address(partner), timeout=100)
        begun = time.monotonic()
        DNF.prepare(root.host, step, {}, is_fetched=False)
        assert time.monotonic() - begun < 100


def test_who_is_silent_for_too_long_is_named(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SILENCE_SECONDS", 5)
    with silent() as partner, pytest.raises(CommandTimedOut) as told:
        root.configure("a-partner", address(partner), timeout=100)
        with index(root.host, [nvidia()], beside_system=True):
            pass
    assert "it said last: 'reading repository a-partner'" in told.value.found


class Slow(Quiet):
    def copyfile(self, source: Any, outputfile: Any) -> None:
        for part in iter(lambda: source.read(600), b""):
            outputfile.write(part)
            time.sleep(0.5 if self.path.endswith(".rpm") else 0)


@pytest.mark.variation
def test_what_comes_slowly_comes_all_the_same(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than anything may be silent."""
    slow = replace(nvidia(), uri="http://127.0.0.1:%d/" % serve(
        partial(Slow, directory=str(scratch_rpm.nvidia()))).server_port)
    trust(root, slow)
    monkeypatch.setattr(asking, "SILENCE_SECONDS", 5)
    monkeypatch.setattr(asking, "TEXT", program.TEXT.replace("SECONDS = 10", "SECONDS = 1"))
    begun = time.monotonic()
    DNF.download(root.host, packages_step("driver", "driver", {}, {}, "a test", manager="dnf", request={
        LIBRARIES: evr(V580)}))
    assert time.monotonic() - begun > asking.SILENCE_SECONDS
    assert DNF.archives(root.host) == ("%s-%s-%s.x86_64.rpm" % (LIBRARIES, V580, RELEASE),)


def test_another_dnf_is_waited_for_and_named(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though dnf's own settings would have it end."""
    root.write("/etc/dnf/dnf.conf", "[main]\nexit_on_lock=1\n")
    monkeypatch.setattr(asking, "SILENCE_SECONDS", 5)
    with pytest.raises(CommandTimedOut) as told, index(root.host, [nvidia()], beside_system=True) as made:
        (root.path / "run/gpuops/dnf/metadata_lock.pid").write_text(str(os.getpid()))
        made.versions(["tool"])
    assert "it said last: 'Waiting for process with pid %d to finish.'" % os.getpid() in told.value.found


def test_no_agent_of_gnupg_is_left(root: Root, tmp_path: Path) -> None:
    signed = scratch_rpm.publish(tmp_path / "signed", scratch_rpm.driver(V580))
    scratch_rpm.sign_index(signed, "one")
    with index(root.host, [nvidia(signed, metadata_signed=True)]):
        assert list(root.path.glob("run/gpuops/dnf/*/pubring"))
        # It ends when it has read that it is to
        _left, gone = wait_for(lambda: agents(root), lambda left: not left, 20, 0.1)
        assert gone


def agents(root: Root) -> List[str]:
    found = subprocess.run(["ps", "-e", "-o", "args="], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in found.splitlines() if "gpg-agent" in line and str(root.path) in line]


# the library


def test_why_a_library_that_is_there_cannot_be_loaded_is_told(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "librepo.so.0").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(GpuOpsError) as told, index(root.host, [nvidia()]):
        pass
    assert told.value.code == "packages.no_dnf_bindings" and "librepo.so.0" in told.value.found
    assert told.value.remedy == "see why `/usr/bin/python3 -I -c 'import dnf'` fails"


def test_no_library_is_told_as_such(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_PYTHONS", (sys.executable,))
    with pytest.raises(GpuOpsError) as told, index(root.host, [nvidia()]):
        pass
    assert told.value.found == "no library of dnf for " + sys.executable
    assert told.value.remedy == "run `dnf install python3-dnf`"


def test_what_is_set_for_our_python_is_not_for_dnf(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write(locks.LIST, "")
    root.dnf("install", "tool")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    DNF.mark_automatic(root.host, ["tool"])
    assert "tool" in DNF.automatic(root.host)


def test_a_python_that_takes_files_for_ascii_heeds_locks_too(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of EL 8 does in the C locale: the plugin's list of locks is one that its administrator has described."""
    python = tmp_path / "python3.6"
    python.write_text('#!/bin/sh\nshift\nexec /usr/bin/python3 -X utf8=0 "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(asking, "_PYTHONS", (str(python),))
    root.write(locks.LIST, "# das Gerät bleibt\ntool-0:1.0-%s.*\n" % RELEASE)
    with index(root.host, [nvidia()], beside_system=True) as made:
        assert made.simulate({"tool": "2.0-" + RELEASE}).held == ("tool",)


def test_a_stream_that_nobody_knows_any_more_is_not_chosen_already(root: Root) -> None:
    with index(root.host, [], beside_system=True) as made:
        made.hold(dict.fromkeys(DNF.choose({MODULE: "580-open"})))
        done = made.simulate({"tool": "1.0-" + RELEASE})
    assert (done.problem, done.installs) == ("", {"tool": "1.0-" + RELEASE})


def test_a_repository_of_somebody_else_that_is_gone_stops_nobody(root: Root) -> None:
    root.configure("gone", "file:///no/such/place")
    done, step, files = planned(root, nvidia(), asked(V580), "580-open")
    assert done.problem == "" and step.parameters["without"] == ["gone"]
    trust(root, nvidia())
    write(root, files)
    assert carried_out(root, step).get("failed") is not True
    assert root.installed()["nvidia-driver-cuda"] == evr(V580)


def test_one_of_ours_that_is_gone_is_named(root: Root, tmp_path: Path) -> None:
    with pytest.raises(GpuOpsError) as told, index(root.host, [nvidia(tmp_path / "none")], beside_system=True):
        pass
    assert str(tmp_path / "none") in told.value.found


def test_an_index_that_another_key_signed_is_not_read(root: Root, tmp_path: Path) -> None:
    signed = scratch_rpm.publish(tmp_path / "signed", scratch_rpm.driver(V580))
    scratch_rpm.sign_index(signed, "one")
    with index(root.host, [nvidia(signed, metadata_signed=True)]) as made:
        assert made.versions([OPEN])[OPEN] == [evr(V580)]
    scratch_rpm.sign_index(signed, "two")
    with pytest.raises(GpuOpsError), index(root.host, [nvidia(signed, metadata_signed=True)]):
        pass


def test_a_package_that_another_key_signed_is_not_installed(root: Root, tmp_path: Path) -> None:
    foreign = nvidia(scratch_rpm.publish(tmp_path / "foreign", scratch_rpm.driver(V580), key="three"))
    _done, step, files = planned(root, foreign, asked(V580))
    trust(root, foreign)
    write(root, files)
    assert carried_out(root, step)["failed"] is True
    assert root.installed() == {}


def test_lists_are_renewed_until_they_name_what_was_planned(root: Root, tmp_path: Path) -> None:
    growing = scratch_rpm.publish(tmp_path / "growing", scratch_rpm.driver(V580))
    trust(root, nvidia(growing))
    DNF.refresh(root.host, asked(V580))
    with pytest.raises(GpuOpsError) as told:
        DNF.refresh(root.host, asked(V595))
    assert "nvidia-driver-cuda-3:" + V595 in told.value.found
    scratch_rpm.publish(growing, scratch_rpm.driver(V595))
    DNF.refresh(root.host, asked(V595))


# removal


def test_a_removal_says_what_of_others_would_go_with_it_and_what_dnf_would_leave(root: Root) -> None:
    change(root, asked(V580), "580-open")
    with DNF.open(root.host, [nvidia()], beside_system=True) as made:
        assert made.simulate_removal(asked(V580)).removes == tuple(sorted(asked(V580)))
    root.dnf("--enablerepo=*", "install", "app")
    with DNF.open(root.host, [nvidia()], beside_system=True) as made:
        assert made.simulate_removal(asked(V580)).removes == tuple(sorted([*asked(V580), "app"]))
        assert made.simulate_removal([LIBRARIES, "no-such"]).removes == ("app", "nvidia-driver-cuda", LIBRARIES)
    with (root.path / "etc/dnf/dnf.conf").open("a") as settings:
        settings.write("excludepkgs=app nvidia-persistenced*\n")
    assert DNF.hidden(root.host, root.packages(), asked(V580)) == ("nvidia-persistenced",)


def test_a_removal_takes_what_it_names_and_nothing_else(root: Root) -> None:
    change(root, asked(V580), "580-open")
    with DNF.open(root.host, [], beside_system=True) as made:
        done = made.simulate_removal(asked(V580))
    step = packages_step("driver", "driver", done.before, dict.fromkeys(done.removes), "a test", manager="dnf",
                         request=dict(done.request))
    known = {"known": DNF.known(root.host, step), "there": root.installed()}
    assert carried_out(root, step)["changed"] is True
    assert dict(history.entries(root.host)[-1].after) == done.change[1]
    assert root.installed() == {"dkms": "3.2.2-1.el9"}
    came = DNF.evidence(root.host, step, known, root.packages())
    assert {name: (each.before, each.after) for name, each in came.items()} == {
        name: (version, None) for name, version in asked(V580).items()}


# what is ours, what was stopped, and who is at work


def test_a_dnf_that_fetches_its_packages_is_at_work(root: Root) -> None:
    """rpm's own lock is not held then."""
    root.write(locks.LIST, "")
    fetching, go_on = threading.Event(), threading.Event()

    class Slow(Quiet):
        def do_GET(self) -> None:
            if self.path.endswith(".rpm"):
                fetching.set()
                go_on.wait(60)
            super().do_GET()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=str(scratch_rpm.nvidia())))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root.configure("nvidia", "http://127.0.0.1:%d/" % server.server_port)
    dnf = threading.Thread(target=root.dnf, args=("install", LIBRARIES))
    dnf.start()
    try:
        assert fetching.wait(60) and package_manager_works(root.host)
        assert package_managers(root.host).startswith("dnf (process ")
    finally:
        go_on.set()
        dnf.join(60)
        server.shutdown()
        server.server_close()
    assert LIBRARIES in root.installed() and not package_manager_works(root.host)


def test_what_an_administrator_did_meanwhile_is_not_ours(root: Root) -> None:
    done, step, files = planned(root, nvidia(), asked(V580), "580-open")
    opened = {"known": DNF.known(root.host, step), "there": root.installed()}
    trust(root, nvidia())
    write(root, files)
    root.dnf("install", "dkms", "tool")
    assert DNF.evidence(root.host, step, opened, root.packages()) == {}
    carried_out(root, step)
    assert set(DNF.evidence(root.host, step, opened, root.packages())) == set(done.installs).difference({"dkms"})


def test_a_dependency_that_comes_in_a_newer_version_than_was_planned_leaves_the_transaction_ours(
    root: Root, tmp_path: Path
) -> None:
    """The repository of the system has moved on while the driver's packages were fetched."""
    root.configure("baseos", scratch_rpm.publish(tmp_path / "base", scratch_rpm.OF_SYSTEM, key="two"), "two")
    done, step, files = planned(root, nvidia(), asked(V580), "580-open")
    opened = {"known": DNF.known(root.host, step), "there": root.installed()}
    scratch_rpm.publish(tmp_path / "base", [
        replace(each, version="3.2.3") for each in scratch_rpm.OF_SYSTEM if each.name == "dkms"], key="two")
    trust(root, nvidia())
    write(root, files)
    assert carried_out(root, step)["changed"] is True
    came = DNF.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in came.items()} == {**done.installs, "dkms": "3.2.3-1.el9"}


def test_a_transaction_is_ours_that_nobody_typed_and_that_makes_what_was_asked_for_of_what_was_asked_for() -> None:
    step = packages_step("driver", "driver", {}, {"driver": "2", "libs": "2", "dkms": "3"}, "a test",
                         request={"driver": "2", "libs": "2"})
    gone = packages_step("driver", "driver", {"driver": "2"}, {"driver": None}, "a test", request={"driver": "2"})

    def of(wanted: Step, command: str = "", **after: Optional[str]) -> bool:
        return history.is_of(history.Entry("1", True, after, {}, command), wanted)

    assert of(step, driver="2", libs="2", dkms="4", more="1") and of(step, libs="2")
    assert not of(step, dkms="3") and not of(step, driver="1", libs="2") and not of(step, driver=None)
    assert not of(step, "install driver", driver="2", libs="2", dkms="3")
    assert of(gone, driver=None, app=None) and not of(gone, driver="2")


@pytest.mark.parametrize("where", [pytest.param("libs", marks=pytest.mark.variation), "kmod"])
def test_a_transaction_that_is_killed_in_rpm_is_known_and_finished(root: Root, where: str) -> None:
    change(root, asked(V580), "580-open")
    assert not DNF.interrupted(root.host)
    done, step, files = planned(root, nvidia(), asked(V595), "595-open")
    write(root, files)
    opened = {"known": DNF.known(root.host, step), "there": root.installed()}
    root.write("/killed-here-" + where, "")
    carried_out(root, step)
    (root.path / ("killed-here-" + where)).unlink()
    left = history.unfinished(root.host, root.packages())
    assert left and DNF.interrupted(root.host)
    killed = {"libs": LIBRARIES, "kmod": OPEN}[where]
    assert killed in left.doubtful
    finish = history.finish_step("driver", left)
    DNF.executors[finish.action](root.host, Journal(root.host), finish)
    assert not DNF.interrupted(root.host)
    rest = change(root, asked(V595), "595-open")
    assert {name: root.installed()[name] for name in asked(V595)} == asked(V595)
    assert set(rest.installs) <= set(done.installs)
    came = DNF.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in came.items()} == asked(V595)
    assert {name: each.before for name, each in came.items()} == asked(V580)


def test_what_dnf_leaves_out_of_what_it_is_to_finish_is_named_and_not_forgotten(root: Root, tmp_path: Path) -> None:
    """The dependency has a newer version in its repository by then; dnf says so, and ends well."""
    root.configure("baseos", scratch_rpm.publish(tmp_path / "base", scratch_rpm.OF_SYSTEM, key="two"), "two")
    done, step, files = planned(root, nvidia(), asked(V580), "580-open")
    trust(root, nvidia())
    write(root, files)
    root.write("/killed-here-kmod", "")
    carried_out(root, step)
    (root.path / "killed-here-kmod").unlink()
    Journal(root.host).set_packages("driver", {name: PackageChange(None, each) for name, each in done.installs.items()})
    left = history.unfinished(root.host, root.packages())
    assert {"dkms", OPEN} <= set(left.doubtful)
    (root.path / "var/cache/dnf").rename(root.path / "var/cache/dnf-before")
    shutil.rmtree(tmp_path / "base")
    scratch_rpm.publish(tmp_path / "base", [
        replace(each, version="3.2.3") if each.name == "dkms" else each for each in scratch_rpm.OF_SYSTEM], key="two")
    finish = history.finish_step("driver", left)
    with pytest.raises(GpuOpsError, match="dkms-0:3.2.2-1.el9") as told:
        DNF.executors[finish.action](root.host, Journal(root.host), finish)
    assert (told.value.code, OPEN in told.value.found) == ("packages.left_unfinished", False)
    root.dnf("install", "tool")
    assert dict(history.unfinished(root.host, root.packages()).doubtful) == {"dkms": "3.2.2-1.el9"}
    root.dnf("upgrade", "dkms")
    assert not DNF.interrupted(root.host)


def test_what_a_transaction_without_an_end_has_brought_is_in_doubt_until_one_with_an_end_changes_it() -> None:
    packages = {name: Package(name, "x86_64", "1", "install", "installed") for name in ("ours", "theirs", "again")}
    stopped = history.Entry("1", False, {"ours": "1", "theirs": "1", "again": "1", "gone": "1"}, {})
    mark, other = history.Entry("2", True, {}, {}), history.Entry("3", True, {"again": "1"}, {"again": "1"})
    assert set(history.doubtful([stopped, mark], packages, ())) == {"ours", "theirs", "again"}
    assert set(history.doubtful([stopped, mark, other], packages, ("ours", "again"))) == {"ours"}
    assert history.doubtful([stopped, replace(other, after={"ours": "1"}, before={})], packages, ("ours",)) == {}
    once_more = replace(stopped, number="4", after={"theirs": "1"})
    assert set(history.doubtful([stopped, other, once_more], packages, ("ours", "again"))) == {"ours", "theirs"}
