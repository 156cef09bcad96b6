# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The first run of site does what the plan said, and the second one nothing."""
from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

import accounts
import pytest
from laboratory import DEMO_HOSTS, Fleet, Played, assert_journal_is_plan, new_lab

from gpulab.lab import Lab


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


def _probed(fleet: Fleet) -> Counter[str]:
    """{host: how many pods of the validation have been sent to it}."""
    told = fleet.lab.kubectl(["get", "events", "--namespace=default", "-o", "jsonpath={.items[*].message}",
                              "--field-selector=reason=Scheduled,involvedObject.kind=Pod"]).stdout
    return Counter(re.findall(r"default/gpuops-validation-[0-9a-f]+ to (\S+)", told))


@pytest.mark.variation
def test_a_pod_is_sent_only_where_something_has_changed(demo: Fleet, installed: Played) -> None:
    demo.play("gpuops.nvidia.site")
    before = _probed(demo)
    assert set(before) == set(DEMO_HOSTS)
    again = demo.play("gpuops.nvidia.site")
    assert _probed(demo) == before
    told = again.of_many("gpu_validation")
    assert all("not probed again" in told[host]["checks"][-1]["evidence"] for host in DEMO_HOSTS)
    demo.lab.kubectl(["delete", "pod", "--namespace=gpuops", "--selector=app.kubernetes.io/name=nvidia-device-plugin",
                      "--field-selector=spec.nodeName=h100"])
    demo.play("gpuops.nvidia.site")
    assert _probed(demo) - before == Counter(h100=1)
    demo.play("gpuops.nvidia.validate")
    # Nobody but the playbook `site` trusts what was proved, unless it is told to
    assert _probed(demo) - before == Counter(h100=2, a100=1)


def test_what_an_older_release_left_behind_goes(demo: Fleet, installed: Played) -> None:
    kinds = "serviceaccounts,configmaps,services,roles,rolebindings,deployments,daemonsets"
    accounts.leave_behind(demo.lab)
    demo.play("gpuops.nvidia.site", "--tags", "components")
    left = demo.lab.kubectl(["get", kinds, "--namespace=gpuops", "-o", "name"]).stdout
    assert left and accounts.LEFT_BEHIND not in left


@pytest.fixture
def second() -> Iterator[Lab]:
    """Another cluster, of which a host of the first one is a node too, by its object alone: it is not ready."""
    lab = new_lab("second")
    lab.up("cluster")
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    lab.kubectl(["create", "--filename=-"], feed=json.dumps({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "h100"},
        "status": {"capacity": room, "allocatable": room}}))
    yield lab
    lab.down()


def test_two_clusters_a_host_that_is_down_and_a_node_that_is_not_ready(
    demo: Fleet, installed: Played, second: Lab, tmp_path: Path
) -> None:
    down = tmp_path / "down.json"
    down.write_text(json.dumps({"all": {"hosts": {"dead": {"ansible_host": "127.0.0.1", "ansible_port": 1}}}}))
    played = demo.run(
        "gpuops.nvidia.site", "--inventory", str(down), gpu_hosts="dead:all", gpu_validation_timeout=20,
        # Those that need no node that is ready
        gpu_components=["gpu_feature_discovery", "device_plugin", "dcgm_exporter"],
        gpu_cluster_kubeconfig="{{ '%s' if inventory_hostname == 'h100' else '%s' }}" % (
            second.kubeconfig, demo.accounts["site"]))
    stats = played.report["stats"]
    assert stats["dead"]["unreachable"] == 1 and stats["a100"]["failures"] == 0, played.failures()
    brought = [result for host in DEMO_HOSTS for result in played.results(host, "gpu_components")][-1]
    found = {tuple(cluster["hosts"]): cluster for cluster in brought["clusters"]}
    assert set(found) == {("a100",), ("h100",)}
    assert not any(cluster["failed"] for cluster in found.values())
    assert found["h100",]["not_ready"] == ["h100"] and found["h100",]["changed"]
    assert not found["a100",]["changed"] and found["a100",]["not_ready"] == []
    # What it is not well with is its own
    told = played.failures()
    # The control plane gives a kubelet that it has never heard most of a minute before it calls the node not ready
    assert "node h100 fails allocatable" in told or "h100 is not ready" in told, told
    there = second.kubectl(["--namespace=gpuops", "get", "daemonsets", "-o", "name"]).stdout
    assert "daemonset.apps/nvidia-device-plugin" in there
