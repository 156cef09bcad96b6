# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An administrator locks a package between a plan and its execution, in dnf's list and in zypper's file."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step, restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.managers import DNF, ZYPPER

VERSIONS = {"nvidia-driver-cuda": "3:580.178.04-1.el9"}


@dataclass(frozen=True)
class Locks:
    """manager: whose; first, second: locks of an administrator, as he writes them down."""

    manager: Any
    first: str
    second: str

    @property
    def path(self) -> str:
        (path,) = self.manager.hold_paths("driver")
        return str(path)


BOTH = pytest.mark.parametrize("locks", [
    Locks(DNF, "kernel-core-0:5.14.0-570.el9.*\n", "tool-0:1.0-1.el9.*\n"),
    Locks(ZYPPER, *("type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: %s\n\n" % name
                    for name in ("kernel-default", "tool")))], ids=["dnf", "zypper"])


def with_ours(locks: Locks, there: Optional[str]) -> str:
    text = locks.manager.hold_files("driver", VERSIONS, {locks.path: there})[locks.path]
    assert text
    return str(text)


def without_ours(locks: Locks, there: Optional[str]) -> Optional[str]:
    text: Optional[str] = locks.manager.hold_files("driver", {}, {locks.path: there})[locks.path]
    return text


def carry_out(host: Host, step: Step) -> None:
    CAPABILITY.executors[step.action](host, Journal(host), step)


@BOTH
@pytest.mark.parametrize("there", [None, "first"])
def test_a_lock_that_was_added_since_the_plan_stays_and_ours_come_and_go_beside_it(
    tmp_path: Path, locks: Locks, there: Optional[str]
) -> None:
    host, before = Host(str(tmp_path)), there and locks.first
    if before is not None:
        host.write(locks.path, before)
    write = file_step("driver", locks.path, before, with_ours(locks, before), "a test")
    host.write(locks.path, (before or "") + locks.second)
    carry_out(host, write)
    now = host.read(locks.path)
    assert now == with_ours(locks, (before or "") + locks.second)
    assert without_ours(locks, now) == (before or "") + locks.second
    carry_out(host, write)
    assert host.read(locks.path) == now


@BOTH
def test_a_lock_that_was_added_since_an_uninstallation_was_planned_stays(tmp_path: Path, locks: Locks) -> None:
    host = Host(str(tmp_path))
    host.write(locks.path, locks.first)
    carry_out(host, file_step("driver", locks.path, locks.first, with_ours(locks, locks.first), "a test"))
    there = host.read(locks.path) or ""
    restore = restore_step("driver", locks.path, there, locks.first)
    host.write(locks.path, there + locks.second)
    carry_out(host, restore)
    assert host.read(locks.path) == locks.first + locks.second
    host.write(locks.path, there)
    carry_out(host, restore)
    assert (host.read(locks.path), Journal(host).originals("driver")) == (locks.first, [])


def test_a_file_that_is_ours_whole_is_written_as_it_was_planned(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    carry_out(host, file_step("driver", "/etc/modprobe.d/gpuops.conf", None, "options nvidia\n", "a test"))
    assert host.read("/etc/modprobe.d/gpuops.conf") == "options nvidia\n"
    carry_out(host, restore_step("driver", "/etc/modprobe.d/gpuops.conf", "options nvidia\n", None))
    assert not host.exists("/etc/modprobe.d/gpuops.conf")
