# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host's whole way with one release of ansible-core, by a user without root's rights who may use sudo."""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Sequence

from laboratory import Fleet, assert_journal_is_plan, changed_by_us, different, release

from gpulab.hosts import ADMIN
from gpulab.lab import Lab
from gpulab.topology import Topology, parse

OLD, NEW = "580.178.04", "595.91.07"


def topology(host: str) -> Topology:
    return parse({"name": "cores", "control_plane": False,
                  "hosts": [{"name": host, "board": "h100-sxm-hgx", "gpus": 2}]}, __file__)


def whole_way(lab: Lab, scratch: Path, host: str, name: str, pipelining: bool,
              versions: Sequence[str] = (OLD, NEW)) -> Dict[str, int]:
    """Plan, install, validate, upgrade, uninstall with ansible-core `name`; {what: how many} of what was done.

    versions: those of the driver, one after the other.

    Raises AssertionError where the plan was not kept, validation is not green or the host is not what it was.
    """
    fleet = Fleet(lab, scratch, release(name, ADMIN, pipelining))
    tree, packages = fleet.fingerprint(host), fleet.packages(host)
    done = {}
    for version in versions:
        events = len(fleet.events(host))
        plan = fleet.play("gpuops.nvidia.plan", gpu_driver_version=version).result(host, "gpu_plan")["plan"]
        assert plan["refusals"] == []
        fleet.play("gpuops.nvidia.site", gpu_driver_version=version)
        assert_journal_is_plan(fleet.events(host)[events:], plan)
        assert fleet.say(host, "cat", "/sys/module/nvidia/version") == version
        fleet.play("gpuops.nvidia.validate", gpu_driver_version=version)
        done["steps to " + version] = len(plan["steps"])
    assert fleet.play("gpuops.nvidia.site", gpu_driver_version=versions[-1]).changes() == []
    fleet.play("gpuops.nvidia.uninstall")
    left = {**changed_by_us(tree, fleet.fingerprint(host)), **different(packages, fleet.packages(host))}
    assert not left, left
    return done
