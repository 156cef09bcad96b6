# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The first run of site does what the plan said, and the second one nothing."""
from __future__ import annotations

from typing import Any

import accounts
from laboratory import DEMO_HOSTS, Fleet, Played, assert_journal_is_plan


def test_the_first_run_does_exactly_the_plan(demo: Fleet, bare: Any, installed: Played) -> None:
    for host in DEMO_HOSTS:
        assert_journal_is_plan(demo.events(host), bare.plans[host])
        assert demo.say(host, "cat", "/sys/module/nvidia/version") == "580.178.04"
        assert len(demo.say(host, "nvidia-smi", "-L").splitlines()) == 8
    assert demo.say("h100", "systemctl", "is-active", "nvidia-fabricmanager") == "active"


def test_the_second_run_changes_nothing_in_one_call(demo: Fleet, installed: Played) -> None:
    trees = {host: demo.fingerprint(host, "/etc", "/usr", "/boot", "/var/lib/gpuops") for host in DEMO_HOSTS}
    again = demo.play("gpuops.nvidia.site")
    assert again.changes() == []
    assert again.changed == dict.fromkeys(DEMO_HOSTS, 0)
    assert again.calls == dict.fromkeys(DEMO_HOSTS, ["gpu_plan"])
    for host, tree in trees.items():
        assert demo.fingerprint(host, "/etc", "/usr", "/boot", "/var/lib/gpuops") == tree


def test_the_plan_of_a_converged_host_is_empty(demo: Fleet, installed: Played) -> None:
    planned = demo.play("gpuops.nvidia.plan", gpu_mig_labels=True)
    for host in DEMO_HOSTS:
        plan = planned.result(host, "gpu_plan")["plan"]
        assert (plan["steps"], plan["refusals"]) == ([], [])


def test_nodes_offer_their_gpus_and_are_schedulable(demo: Fleet, installed: Played) -> None:
    for host in DEMO_HOSTS:
        node = demo.node(host)
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert "unschedulable" not in node["spec"]
        assert node["metadata"]["labels"]["nvidia.com/gpu.count"] == "8"
        assert node["metadata"]["labels"]["nvidia.com/cuda.driver-version.full"] == "580.178.04"


def test_what_an_older_release_left_behind_goes(demo: Fleet, installed: Played) -> None:
    kinds = "serviceaccounts,configmaps,services,roles,rolebindings,deployments,daemonsets"
    accounts.leave_behind(demo.lab)
    demo.play("gpuops.nvidia.site", "--tags", "components")
    left = demo.lab.kubectl(["get", kinds, "--namespace=gpuops", "-o", "name"]).stdout
    assert left and accounts.LEFT_BEHIND not in left
