# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the cluster offers of a node is looked at before the node is opened, and what is found there counts."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

import pytest
from canned import WAY, Hosts
from object_store import Store
from sites import CHANGE, NOTHING, Site, names

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
BEFORE, PROOF = {"changes": "1"}, {"changes": "1", "of": "state", "at": 1, "evidence": "it computes"}
# Writes down what it is asked, and how the node is then; 'broken' is what fails in a container
VALIDATION = '''
import json, pathlib
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        asked, name = dict(self._task.args), task_vars["inventory_hostname"]
        node = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"])).get("/api/v1/nodes/" + name)
        asked.update(cordoned=bool(node["spec"].get("unschedulable")),
                     has_plugin=%(plugin)r in node["metadata"]["labels"])
        if asked.get("scope") == ["cluster"]:
            asked["proof"] = self._templar.template(task_vars["gpu_validation_proof"])
        with open(pathlib.Path(task_vars["inventory_dir"]) / "validations", "a") as log:
            log.write(json.dumps({"host": name, **asked}) + "\\n")
        if "scope" not in asked:
            return {"changed": False, "checks": [], "proof": %(before)r,
                    "devices": {"whole": 1, "divided": 0, "empty": 0, "mig": {}}}
        if "hosts" in asked:
            return {"changed": False, "of_hosts": {}}
        if task_vars.get("broken"):
            return {"failed": True, "code": task_vars["broken"], "msg": "no container gets a device", "checks": []}
        return {"changed": False, "checks": [], "proof": %(proof)r, "proof_is_new": True}
''' % {"plugin": PLUGIN, "before": BEFORE, "proof": PROOF}
# How the driver comes and goes, with the node as it is then
DRIVER = '''
import pathlib
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        name = task_vars["inventory_hostname"]
        node = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"])).get("/api/v1/nodes/" + name)
        if self._task.args.get("state") == "rolled_back":
            (pathlib.Path(task_vars["inventory_dir"]) / "rolled-back").write_text(
                "under the plugin" if %r in node["metadata"]["labels"] else "alone")
        return {"changed": True, "reboot_required": False, "applied": []}
''' % PLUGIN


@pytest.fixture
def watched(in_words: Hosts) -> Hosts:
    in_words.put(gpu_validation=VALIDATION, gpu_driver=DRIVER)
    return in_words


def asked(hosts: Hosts) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in (hosts.controller.directory / "validations").read_text().splitlines()]


def in_cluster(hosts: Hosts) -> List[Dict[str, Any]]:
    return [each for each in asked(hosts) if each.get("scope") == ["cluster"]]


def test_a_canary_on_which_no_container_gets_a_gpu_stays_out_and_the_others_are_untouched(watched: Hosts) -> None:
    site = Site(watched, names(3))
    done = site.run({"gpu_plan": dict(CHANGE, returns_to=WAY)}, "--forks", "1", gpu_rollout_limit=3,
                    broken="validation.check_failed")
    (failed,) = site.changed()
    told = " ".join(done.stdout.split())
    assert done.returncode == 2 and "no container gets a device. Rolled back to driver 580.178.04" in told, told
    assert site.cordoned() == [failed] and site.held() == {failed: "failed"}
    (gate,) = in_cluster(watched)
    assert gate["host"] == failed and gate["cordoned"] and gate["has_plugin"]
    assert (watched.controller.directory / "rolled-back").read_text() == "alone"
    labels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in watched.api.state.nodes}
    assert PLUGIN not in labels[failed] and "[rollout.canary_failed]" in told


@pytest.mark.variation
def test_a_node_whose_gpus_are_not_on_offer_again_returns_to_the_driver_with_which_they_were(watched: Hosts) -> None:
    site = Site(watched, names(1), gpu_1={"ready": False})
    done = site.run({"gpu_plan": dict(CHANGE, returns_to=WAY)}, gpu_rollout_canaries="none",
                    node_maintenance_offer_timeout=0)
    assert "offers nothing while it is not Ready" in done.stdout and site.cordoned() == names(1), done.stdout
    assert (watched.controller.directory / "rolled-back").read_text() == "alone" and in_cluster(watched) == []


@pytest.mark.variation
def test_a_cluster_that_could_not_be_asked_is_no_fault_of_the_driver(watched: Hosts) -> None:
    site = Site(watched, names(1))
    done = site.run({"gpu_plan": dict(CHANGE, returns_to=WAY)}, broken="cluster.rights_missing")
    assert done.returncode == 2 and "no container gets a device" in done.stdout and site.cordoned() == names(1)
    assert not (watched.controller.directory / "rolled-back").exists()


@pytest.mark.parametrize("tags, expected", [
    ((), None), pytest.param(("--tags", "hosts"), {"nvidia.com/gpu": 1}, marks=pytest.mark.variation)])
def test_what_a_pod_has_proved_of_a_cordoned_node_is_remembered_and_not_asked_for_again(
    watched: Hosts, tags: Sequence[str], expected: Any
) -> None:
    """What is to be on offer the components say, where the run leaves them as they are."""
    watched.api.state.store = Store(has_controllers=True)
    site = Site(watched, names(1))
    done = site.run({"gpu_plan": CHANGE}, tags=tags)
    assert done.returncode == 0 and site.cordoned() == [], done.stdout
    host, gate, *rest = asked(watched)
    assert "scope" not in host and host["cordoned"] and not host["has_plugin"]
    assert gate["scope"] == ["cluster"] and gate["cordoned"] and gate["has_plugin"]
    assert gate["proof"] == BEFORE and gate.get("expected_resources") == expected
    assert rest[0]["state"] == "proved" and rest[0]["proof"] == PROOF and rest[0]["cordoned"]
    assert [(each["hosts"], each["proof"]) for each in rest[1:]] == ([] if tags else [(names(1), PROOF)])


@pytest.mark.parametrize("is_ready", [False, pytest.param(True, marks=pytest.mark.variation)])
def test_a_node_with_another_layout_is_opened_once_it_is_ready(watched: Hosts, is_ready: bool) -> None:
    """What it offers then, components tell that are changed later in the run."""
    site = Site(watched, names(1), gpu_1={"ready": is_ready})
    done = site.run({"gpu_plan": CHANGE, "mig": {"changed": True, "reboot_required": False}},
                    gpu_rollout_canaries="none", node_maintenance_offer_timeout=0)
    assert ("offers nothing while it is not Ready" in done.stdout) != is_ready, done.stdout
    assert (site.cordoned() == []) == is_ready and in_cluster(watched) == []


@pytest.mark.variation
def test_a_layout_that_the_components_offer_by_themselves_is_waited_for(watched: Hosts) -> None:
    """Not what was on offer before, and for as long as GPUs are waited for."""
    watched.api.state.store = Store(has_controllers=True)
    site = Site(watched, names(1))
    done = site.run({"gpu_plan": CHANGE, "mig": {"changed": True, "reboot_required": False}}, tags=(),
                    gpu_validation_timeout=100, node_maintenance_offer_timeout=200)
    assert done.returncode == 0 and site.cordoned() == [], done.stdout
    gate = in_cluster(watched)[0]
    assert gate["cordoned"] and "expected_resources" not in gate and int(gate["timeout"]) == 200


@pytest.mark.variation
def test_a_node_that_is_new_waits_for_components_that_come_later(watched: Hosts) -> None:
    site = Site(watched, names(1))
    watched.api.state.nodes[0]["status"]["allocatable"].pop("nvidia.com/gpu")
    done = site.run({"gpu_plan": CHANGE})
    assert done.returncode == 0 and site.cordoned() == [] and in_cluster(watched) == [], done.stdout


def test_a_node_that_is_out_of_service_still_is_looked_at_before_the_next_run_opens_it(watched: Hosts) -> None:
    """As one whose run was killed: nothing is left to be done to its host, and nobody knows what containers get."""
    site = Site(watched, names(1))
    broken = {"broken": "validation.check_failed", "gpu_cordon_unwell": False}
    assert site.run({"gpu_plan": CHANGE}, **broken).returncode == 2 and site.held() == {"gpu-1": "failed"}
    site.tell(state="ended", name="gpu-1", outcome="freed")

    done = site.run({"gpu_plan": NOTHING}, **broken)
    (node,) = watched.api.state.nodes
    assert done.returncode == 2 and "no container gets a device" in done.stdout, done.stdout
    assert site.cordoned() == ["gpu-1"] and PLUGIN not in node["metadata"]["labels"]

    (watched.controller.directory / "validations").unlink()
    done = site.run({"gpu_plan": NOTHING})
    assert done.returncode == 0 and site.cordoned() == [], done.stdout
    assert [(gate["cordoned"], gate["has_plugin"]) for gate in in_cluster(watched)] == [(True, True)]
