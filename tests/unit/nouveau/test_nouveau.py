# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, List, Tuple

import pytest
from gpu_hosts import A100, facts
from hypothesis import given
from hypothesis import strategies as st
from nouveau_world import World

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau import executors, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.observation import (
    FILE,
    NOUVEAU,
    NOVA,
    Initramfs,
    Observation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.policy import Policy

PRESENT, ABSENT = Policy("present"), Policy("absent")
KERNEL = "6.1.0-50-amd64"
IMAGE = "/boot/initrd.img-" + KERNEL


TEXT_BEFORE = """\
# Managed by the Ansible collection gpuops.nvidia: changes made here are lost.
# nouveau and NVIDIA's driver cannot share a GPU.
blacklist nouveau
options nouveau modeset=0
"""


def image(nouveau: bool = False, ours: bool = False, older: bool = True, kernel: str = KERNEL) -> Initramfs:
    return Initramfs(kernel, "/boot/initrd.img-" + kernel, nouveau, ours, older)


def planned(seen: Observation, policy: Policy = PRESENT) -> List[Tuple[str, str]]:
    return [(step.action, step.subject) for step in planner.plan(seen, policy, facts(A100)).steps]


class Tools(Host):
    """A scratch root whose programs are run from there."""

    def run(self, argv: Any, *words: Any, **options: Any) -> CommandResult:
        return super().run([self.path(self.which(argv[0]) or argv[0]), *argv[1:]], *words, **options)


class TestPlanner:
    def test_nouveau_in_use_needs_a_reboot_and_says_why(self) -> None:
        plan = planner.plan(Observation(loaded={"nouveau": 1}), PRESENT, facts(A100))
        assert plan.disruption is Disruption.reboot
        assert "console or a display" in plan.requirements[0].why
        loaded = facts(A100, nouveau_loaded=True)
        assert planner.facts_after(Observation(), PRESENT, loaded, plan).nouveau_loaded is True, "until the reboot"
        assert planner.facts_after(Observation(), PRESENT, loaded, Plan()).nouveau_loaded is False

    def test_both_drivers_of_the_kernel_are_kept_away(self) -> None:
        assert {"blacklist nouveau", "options nouveau modeset=0", "blacklist nova_core", "blacklist nova_drm"} <= set(
            planner.TEXT.splitlines())

    @given(st.booleans(), st.dictionaries(st.sampled_from(NOUVEAU + NOVA), st.integers(0, 2)),
           st.lists(st.booleans(), max_size=3), st.none() | st.just("# theirs\n"))
    def test_the_planner_is_content_with_its_own_result(
        self, elsewhere: bool, loaded: dict, images: list, text: str
    ) -> None:
        host = World(elsewhere=elsewhere, loaded=loaded, files={} if text is None else {FILE: text}, images={
            str(number): image(nouveau, kernel=str(number)) for number, nouveau in enumerate(images)})
        host.apply(host.plan(PRESENT))
        host.boot()
        assert host.plan(PRESENT).steps == ()
        host.apply(host.plan(ABSENT))
        assert host.plan(ABSENT).steps == ()
        assert host.files.get(FILE) == text


class TestHost:
    @pytest.fixture
    def host(self, tmp_path: Path) -> Host:
        for name in ("boot", "lib/modules/" + KERNEL, "usr/sbin", "etc/modprobe.d", "usr/lib/modprobe.d"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "boot" / ("vmlinuz-" + KERNEL)).touch()
        return Host(str(tmp_path))

    @pytest.mark.parametrize("texts, elsewhere", [
        ({}, False),
        ({"nvidia.conf": "blacklist nouveau\noptions nouveau modeset=0\n"}, True),
        ({"a.conf": "blacklist nouveau\n", "b.conf": "options nouveau debug=1 modeset=0\n"}, True),
        ({"a.conf": "blacklist nouveau\n"}, False),
        ({"a.conf": "# blacklist nouveau\n# options nouveau modeset=0\n"}, False),
        ({"a.disabled": "blacklist nouveau\noptions nouveau modeset=0\n"}, False),
    ])
    def test_a_blacklist_of_others_counts(self, host: Host, texts: dict, elsewhere: bool) -> None:
        for name, text in texts.items():
            host.write("/usr/lib/modprobe.d/" + name, text)
        assert observation.observe(host, Journal(host), PRESENT, HostFacts()).elsewhere is elsewhere

    @pytest.mark.parametrize("count, users", [("0\n", {"nouveau": 0}), ("3\n", {"nouveau": 3}), (None, {})])
    def test_use_of_the_loaded_module(self, host: Host, count: str, users: dict) -> None:
        if count is not None:
            host.write("/sys/module/nouveau/refcnt", count)
        assert observation.observe(host, Journal(host), PRESENT, HostFacts()).loaded == users

    def test_use_of_nova_without_its_own_modules(self, host: Host) -> None:
        host.write("/sys/module/nova_core/refcnt", "1\n")
        host.write("/sys/module/nova_core/holders/nova_drm", "")
        host.write("/sys/module/nova_drm/refcnt", "2\n")
        assert observation.observe(host, Journal(host), PRESENT, HostFacts()).loaded == {"nova_drm": 2, "nova_core": 0}

    def test_a_blacklist_of_others_must_know_nova_where_a_kernel_has_it(self, host: Host) -> None:
        host.write("/etc/modprobe.d/nvidia.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
        host.write("/lib/modules/%s/modules.dep" % KERNEL, "kernel/drivers/gpu/nova-core/nova-core.ko.xz:\n")
        assert not observation.observe(host, Journal(host), PRESENT, HostFacts()).elsewhere
        host.write("/usr/lib/modprobe.d/nova.conf", "blacklist nova-core\n")
        assert observation.observe(host, Journal(host), PRESENT, HostFacts()).elsewhere

    @pytest.mark.parametrize("listed, rebuilt", [
        ("usr/lib/modules/%s/kernel/drivers/gpu/drm/nouveau/nouveau.ko\netc/modprobe.d/other.conf\n", True),
        ("usr/lib/modules/%s/kernel/drivers/gpu/drm/nouveau/nouveau.ko\nusr/lib/modprobe.d/nvidia.conf\n", False),
        ("usr/lib/modules/%s/kernel/drivers/gpu/nova-core/nova-core.ko.xz\n", True),
        ("usr/lib/modules/%s/kernel/drivers/gpu/drm/ast/ast.ko\n", False),
    ])
    def test_a_blacklist_of_others_reaches_an_old_initramfs(
        self, tmp_path: Path, host: Host, listed: str, rebuilt: bool
    ) -> None:
        """Without, nouveau comes back at each boot, and each run asks for another reboot."""
        class Tools(Host):
            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                return CommandResult(argv, 0, listed % KERNEL, "")

        host = Tools(host.root)
        (tmp_path / "usr/sbin/update-initramfs").touch(mode=0o755)
        host.write(IMAGE, "an image")
        os.utime(host.path(IMAGE), (1000, 1000))
        # A package's file has the time of its build, long before the initramfs was made
        host.write("/usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
        os.utime(host.path("/usr/lib/modprobe.d/nvidia.conf"), (500, 500))
        host.write("/sys/module/nouveau/refcnt", "1\n")
        seen = observation.observe(host, Journal(host), PRESENT, HostFacts())
        plan = planner.plan(seen, PRESENT, facts(A100))
        assert plan.reboot_required
        assert [step.action for step in plan.steps] == (["initramfs.rebuild"] if rebuilt else [])
        os.utime(host.path(IMAGE))
        assert planned(observation.observe(host, Journal(host), PRESENT, HostFacts())) == []

    @pytest.mark.parametrize("instead", ["", "# bumblebee is gone\n"])
    def test_a_blacklist_that_an_administrator_switched_off_does_not_count(self, host: Host, instead: str) -> None:
        """A file of the same name in an earlier directory is read in its place (modprobe.d(5))."""
        host.write("/usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
        assert planned(observation.observe(host, Journal(host), PRESENT, HostFacts())) == []
        host.write("/etc/modprobe.d/nvidia.conf", instead)
        assert planned(observation.observe(host, Journal(host), PRESENT, HostFacts())) == [("file.write", FILE)]

    @pytest.mark.parametrize("of_future", ["image", "blacklist", "both"])
    @pytest.mark.parametrize("holds", [True, False])
    def test_times_of_the_future_are_no_reason_for_a_rebuild_and_none_against_it(
        self, host: Host, tmp_path: Path, of_future: str, holds: bool
    ) -> None:
        """The clock was ahead when one of them was written; what the image holds tells the truth."""
        host = Tools(host.root)
        host.write("/usr/sbin/update-initramfs", "#!/bin/sh\n", mode=0o755)
        host.write("/usr/bin/lsinitramfs", "#!/bin/sh\nprintf 'usr/lib/modules/6.1/nouveau.ko\\n%s'\n" % (
            "etc/modprobe.d/%s\\n" % os.path.basename(FILE) if holds else ""), mode=0o755)
        host.write(FILE, planner.TEXT)
        host.write(IMAGE, "an image")
        ahead = 2 ** 32
        if of_future != "blacklist":
            os.utime(host.path(IMAGE), (ahead, ahead))
        if of_future != "image":
            os.utime(host.path(FILE), (ahead + 1, ahead + 1))
        assert planned(observation.observe(host, Journal(host), PRESENT, HostFacts())) == (
            [] if holds else [("initramfs.rebuild", KERNEL)])

    def test_what_an_earlier_release_remembered_is_looked_up_again(self, host: Host) -> None:
        host.write(IMAGE, "an image")
        known = {IMAGE: {"stamp": observation.stamp(host, IMAGE), "nouveau": False, "ours": False}}
        assert observation.look_inside(host, "update-initramfs", IMAGE, known) == (True, None)

    def test_without_a_tool_there_is_no_initramfs_to_make(self, host: Host) -> None:
        host.write(IMAGE, "an image")
        assert observation.observe(host, Journal(host), PRESENT, HostFacts()).initramfs == ()

    def test_an_initramfs_newer_than_the_blacklist_is_not_opened(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "usr/sbin/update-initramfs").touch(mode=0o755)
        host.write(FILE, planner.TEXT)
        host.write(IMAGE, "an image")
        found = observation.observe(host, Journal(host), PRESENT, HostFacts()).initramfs
        assert found == (Initramfs(KERNEL, IMAGE, nouveau=True, ours=True, older=False, theirs=True),)

    def test_the_file_of_the_release_before_costs_no_rebuild_where_there_is_no_nouveau(
        self, host: Host, tmp_path: Path
    ) -> None:
        (tmp_path / "usr/sbin/update-initramfs").touch(mode=0o755)
        host.write(FILE, TEXT_BEFORE)
        host.write(IMAGE, "an image")
        Journal(host).remember("nouveau", {"initramfs": {
            IMAGE: {"stamp": observation.stamp(host, IMAGE), "nouveau": False, "files": []}}})
        assert planned(observation.observe(host, Journal(host), PRESENT, HostFacts())) == [("file.write", FILE)]

    def test_an_initramfs_of_dracut_is_read_where_update_initramfs_is_its_wrapper(
        self, host: Host, tmp_path: Path
    ) -> None:
        host = Tools(host.root)
        host.write("/usr/sbin/update-initramfs", "#!/bin/sh\n", mode=0o755)
        host.write("/usr/bin/lsinitrd", "#!/bin/sh\necho -rw-r--r-- 1 root root 9 Jan 1 "
                                        "usr/lib/modules/6.17/kernel/drivers/gpu/drm/ast/ast.ko.zst\n", mode=0o755)
        host.write(IMAGE, "an image")
        assert observation.look_inside(host, "update-initramfs", IMAGE, {}) == (False, ())

    def test_an_initramfs_that_cannot_be_read_is_made_anew_once(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "usr/sbin/update-initramfs").touch(mode=0o755)
        host.write(IMAGE, "an image")
        journal = Journal(host)
        executors.write_blacklist(host, journal, planner.plan(
            observation.observe(host, journal, PRESENT, HostFacts()), PRESENT, facts(A100)).steps[0])
        plan = planner.plan(observation.observe(host, journal, ABSENT, HostFacts()), ABSENT, facts(A100))
        assert [step.action for step in plan.steps] == ["file.restore", "initramfs.rebuild"]
        generic_executors()["file.restore"](host, journal, plan.steps[0])
        assert planned(observation.observe(host, journal, ABSENT, HostFacts()), ABSENT) == []

    def test_what_was_seen_inside_is_not_looked_up_again(self, host: Host) -> None:
        host.write(IMAGE, "an image")
        known = {IMAGE: {"stamp": observation.stamp(host, IMAGE), "nouveau": False, "files": ["a.conf"]}}
        assert observation.look_inside(host, "update-initramfs", IMAGE, known) == (False, ("a.conf",))
        known[IMAGE]["stamp"] = [1, 2]
        assert observation.look_inside(host, "update-initramfs", IMAGE, known) == (True, None), "not an image at all"

    def test_the_blacklist_is_written_and_put_back(self, host: Host) -> None:
        host.write(FILE, "# theirs\n")
        journal = Journal(host)
        step = planner.plan(observation.observe(host, journal, PRESENT, HostFacts()), PRESENT, facts(A100)).steps[0]
        executors.write_blacklist(host, journal, step)
        seen = observation.observe(host, journal, ABSENT, HostFacts())
        assert (seen.text, seen.original, seen.before_us) == (planner.TEXT, True, "# theirs\n")


def test_every_action_of_the_planner_has_an_executor() -> None:
    generic = {"file.restore", "file.write"}
    for text, loaded, policy in itertools.product((None, "x"), ({}, {"nouveau": 0}, {"nouveau": 1}), (PRESENT, ABSENT)):
        seen = Observation(text=text, loaded=loaded, original=True, tool="dracut", initramfs=(image(True, True),))
        for step in planner.plan(seen, policy, facts(A100)).steps:
            assert step.action in executors.EXECUTORS or step.action in generic
