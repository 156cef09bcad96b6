# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import List, Tuple

import pytest
from driver_world import A100, facts
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.nouveau import executors, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.nouveau.observation import (
    FILE,
    Initramfs,
    Observation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.nouveau.policy import Policy

PRESENT, ABSENT = Policy("present"), Policy("absent")
KERNEL = "6.1.0-50-amd64"
IMAGE = "/boot/initrd.img-" + KERNEL


def image(nouveau: bool = False, ours: bool = False, older: bool = True) -> Initramfs:
    return Initramfs(KERNEL, IMAGE, nouveau, ours, older)


def planned(seen: Observation, policy: Policy = PRESENT) -> List[Tuple[str, str]]:
    return [(step.action, step.subject) for step in planner.plan(seen, policy, facts(A100)).steps]


def applied(seen: Observation, plan: Plan) -> Observation:
    """What is there once the steps are done."""
    for step in plan.steps:
        if step.action == "file.write":
            seen = replace(seen, text=step.change["after"], original=True)
        elif step.action == "file.restore":
            seen = replace(seen, text=step.change["after"], original=False)
        elif step.action == "initramfs.rebuild":
            images = tuple(replace(each, older=False, ours=seen.text is not None) for each in seen.initramfs)
            seen = replace(seen, initramfs=images)
        else:
            seen = replace(seen, users=-1)
    return replace(seen, users=-1) if plan.reboot_required else seen


class TestPlanner:
    @pytest.mark.parametrize("seen, steps", [
        (Observation(), [("file.write", FILE)]),
        (Observation(elsewhere=True), []),
        (Observation(text=planner.TEXT), []),
        (Observation(text="# old\n", elsewhere=True), [("file.write", FILE)]),
        (Observation(initramfs=(image(nouveau=True),)), [("file.write", FILE), ("initramfs.rebuild", KERNEL)]),
        (Observation(initramfs=(image(nouveau=False),)), [("file.write", FILE)]),
        (Observation(text=planner.TEXT, initramfs=(image(nouveau=True),)), [("initramfs.rebuild", KERNEL)]),
        (Observation(text=planner.TEXT, initramfs=(image(True, True, older=False),)), []),
        (Observation(text=planner.TEXT, users=0), [("module.unload", "nouveau")]),
        (Observation(text=planner.TEXT, users=2), []),
    ])
    def test_what_is_missing_is_planned(self, seen: Observation, steps: list) -> None:
        assert planned(seen) == steps

    def test_nouveau_in_use_needs_a_reboot_and_says_why(self) -> None:
        plan = planner.plan(Observation(users=1), PRESENT, facts(A100))
        assert plan.disruption is Disruption.reboot
        assert "console or a display" in plan.requirements[0].why
        assert planner.facts_after(PRESENT, facts(A100, nouveau_loaded=True)).nouveau_loaded is False

    def test_the_tool_of_the_distribution_makes_the_initramfs(self) -> None:
        for tool, argv in (("update-initramfs", ["update-initramfs", "-u", "-k", KERNEL]),
                           ("dracut", ["dracut", "--force", "--kver", KERNEL])):
            steps = planner.plan(Observation(tool=tool, initramfs=(image(True),)), PRESENT, facts(A100)).steps
            assert steps[1].parameters["argv"] == argv

    def test_absent_takes_back_only_what_was_ours(self) -> None:
        ours = Observation(text=planner.TEXT, original=True, before_us=None, initramfs=(image(True, True, False),))
        assert planned(ours, ABSENT) == [("file.restore", FILE), ("initramfs.rebuild", KERNEL)]
        users = Observation(text=planner.TEXT, original=False, initramfs=(image(True, True, False),))
        assert planned(users, ABSENT) == []

    @given(st.booleans(), st.integers(-1, 2), st.lists(st.booleans(), max_size=3), st.none() | st.just("# theirs\n"))
    def test_the_planner_is_content_with_its_own_result(
        self, elsewhere: bool, users: int, images: list, text: str
    ) -> None:
        seen = Observation(text=text, elsewhere=elsewhere, users=users, tool="update-initramfs",
                           initramfs=tuple(image(nouveau) for nouveau in images))
        after = applied(seen, planner.plan(seen, PRESENT, facts(A100)))
        assert planned(after) == []
        back = applied(after, planner.plan(after, ABSENT, facts(A100)))
        assert planned(back, ABSENT) == []
        assert back.text == (text if not after.original else None)


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
        assert observation.observe(host, Journal(host), PRESENT).elsewhere is elsewhere

    @pytest.mark.parametrize("count, users", [("0\n", 0), ("3\n", 3), (None, -1)])
    def test_use_of_the_loaded_module(self, host: Host, count: str, users: int) -> None:
        if count is not None:
            host.write("/sys/module/nouveau/refcnt", count)
        assert observation.observe(host, Journal(host), PRESENT).users == users

    def test_without_a_tool_there_is_no_initramfs_to_make(self, host: Host) -> None:
        host.write(IMAGE, "an image")
        assert observation.observe(host, Journal(host), PRESENT).initramfs == ()

    def test_an_initramfs_newer_than_the_blacklist_is_not_opened(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "usr/sbin/update-initramfs").touch(mode=0o755)
        host.write(FILE, planner.TEXT)
        host.write(IMAGE, "an image")
        found = observation.observe(host, Journal(host), PRESENT).initramfs
        assert found == (Initramfs(KERNEL, IMAGE, nouveau=True, ours=True, older=False),)

    def test_what_was_seen_inside_is_not_looked_up_again(self, host: Host) -> None:
        host.write(IMAGE, "an image")
        known = {IMAGE: {"stamp": observation.stamp(host, IMAGE), "nouveau": False, "ours": False}}
        assert observation.look_inside(host, "update-initramfs", IMAGE, known) == (False, False)
        known[IMAGE]["stamp"] = [1, 2]
        assert observation.look_inside(host, "update-initramfs", IMAGE, known) == (True, True), "not an image at all"

    def test_the_blacklist_is_written_and_put_back(self, host: Host) -> None:
        host.write(FILE, "# theirs\n")
        journal = Journal(host)
        step = planner.plan(observation.observe(host, journal, PRESENT), PRESENT, facts(A100)).steps[0]
        executors.write_blacklist(host, journal, step)
        seen = observation.observe(host, journal, ABSENT)
        assert (seen.text, seen.original, seen.before_us) == (planner.TEXT, True, "# theirs\n")


def test_every_action_of_the_planner_has_an_executor() -> None:
    generic = {"file.restore", "file.write"}
    for text, users, policy in itertools.product((None, "x"), (-1, 0, 1), (PRESENT, ABSENT)):
        seen = Observation(text=text, users=users, original=True, tool="dracut", initramfs=(image(True, True),))
        for step in planner.plan(seen, policy, facts(A100)).steps:
            assert step.action in executors.executors() or step.action in generic
