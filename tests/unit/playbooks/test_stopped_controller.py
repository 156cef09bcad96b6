# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A controller that stands still in the midst of a host's change for longer than its Lease counts, and goes on."""
from __future__ import annotations

from typing import Any, Dict

import pytest
from canned import WAY, Hosts, planned
from cluster_api import Api
from cluster_objects import node
from controller import Controller
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import Slot, read_record

STEP = Step("driver", "packages.install", "driver 595.91.07", "Driver 595.", Disruption.driver_reload)
LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}
# What happens to the node in the midst of a task, and what comes of the task then. By its own clock the other run sees
# the Lease run out.
MEANWHILE = '''
import pathlib
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Returning, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        now = [0.0]

        def sleep(seconds):
            now[0] += 100 * seconds

        cluster = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"]))
        name = task_vars["inventory_hostname"]
        if %(uncordons)r:
            cluster.patch("/api/v1/nodes/" + name, {"spec": {"unschedulable": None}})
        else:
            other = Custody(cluster, Run("other", "c2"), "gpuops", 600, 5000, print, lambda: now[0], sleep)
            other.take(name, Taking("the other's change", NodePolicy(), None, 5))
        if %(completes)r:
            other.give_back(name, Returning(NodePolicy(labels=%(labels)r), was_taken=True))
        return %(result)r
'''
FINE = {"changed": True, "reboot_required": False, "applied": []}
FAILED = {"failed": True, "msg": "level 1 fails", "changed": False}


class Stopped(Hosts):
    """One host, which is a node."""

    def meanwhile(self, module: str, result: Dict[str, Any], completes: bool = False, uncordons: bool = False) -> None:
        self.put(**{module: MEANWHILE % {
            "result": result, "completes": completes, "uncordons": uncordons, "labels": LABELS}})

    def change(self, **canned: Any) -> str:
        plan = Plan(host="gpu-1", steps=(STEP,), returns_to={STEP.id: WAY})
        return self.site({"gpu_plan": planned(plan), "gpu_driver": FINE, **canned}, gpu_components=[],
                         gpu_startup_taint="gpuops.nvidia.com/not-ready", gpu_startup_taint_on_failure=True)

    @property
    def node(self) -> Dict[str, Any]:
        return self.cluster.get("/api/v1/nodes/gpu-1")

    @property
    def cluster(self) -> Client:
        return Client(Connection(kubeconfig=str(self.api.kubeconfig)))

    @property
    def slots(self) -> Dict[str, Slot]:
        found = self.cluster.get("/api/v1/namespaces/gpuops/configmaps/gpuops-rollout")
        return dict(read_record(found["data"]["record"]).pool("gpus").slots)

    def holder(self) -> str:
        lease = self.cluster.find("/apis/coordination.k8s.io/v1/namespaces/gpuops/leases/custody-gpu-1")
        return str(lease["spec"]["holderIdentity"]) if lease else ""


@pytest.fixture
def stopped(controller: Controller, api: Api) -> Stopped:
    made = Stopped(controller, api)
    store = api.state.store = Store(more={"Node": ("v1", "nodes", False)})
    for name in ("gpuops", "default"):
        store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.put(node("gpu-1", labels={"nvidia.com/gpu.present": "true"}), "kubelet")
    return made


def test_a_node_that_another_run_has_completed_stays_as_that_left_it(stopped: Stopped) -> None:
    stopped.meanwhile("gpu_driver_activation", FINE, completes=True)
    told = stopped.change()
    there = stopped.node
    assert "failed=1" in told and "cluster.custody_lost" in told, told
    assert "Nothing more was done to the host or its node" in told, told
    assert not there["spec"].get("unschedulable") and not there["spec"].get("taints"), told
    assert there["metadata"]["labels"].items() >= LABELS.items()
    assert stopped.slots == {} and stopped.holder() == ""


def test_a_driver_is_not_rolled_back_under_the_run_that_has_the_node(stopped: Stopped) -> None:
    stopped.meanwhile("gpu_validation", FAILED)
    told = stopped.change()
    # Staged twice, and installed
    assert stopped.calls("gpu_driver") == 3 and "failed=1" in told, told
    assert "level 1 fails" in told and "run other@c2" not in told.partition("PLAY RECAP")[2]
    there = stopped.node
    assert stopped.holder() == "other@c2" and there["spec"]["unschedulable"] and not there["spec"].get("taints")
    assert there["metadata"]["annotations"]["gpuops.nvidia.com/cordon-reason"].startswith("the other's change"), told
    assert stopped.slots == {}


@pytest.mark.variation
def test_nor_under_the_pods_of_an_admin_who_uncordoned_the_node(stopped: Stopped) -> None:
    stopped.meanwhile("gpu_validation", FAILED, uncordons=True)
    told = stopped.change()
    assert stopped.calls("gpu_driver") == 3 and "failed=1" in told, told
    assert not stopped.node["spec"].get("unschedulable") and stopped.holder() == ""
    assert stopped.slots["gpu-1"].state == "failed" and "level 1 fails" in stopped.slots["gpu-1"].reason


@pytest.mark.variation
def test_one_that_another_run_has_when_its_turn_comes_is_left_to_it(stopped: Stopped) -> None:
    stopped.meanwhile("gpu_driver", FINE)
    told = stopped.site({"gpu_plan": planned(Plan(host="gpu-1", steps=(STEP,)))}, gpu_components=[],
                        node_maintenance_wait_timeout=0)
    assert "failed=1" in told and "cluster.node_held" in told, told
    assert stopped.holder() == "other@c2" and stopped.slots == {}
