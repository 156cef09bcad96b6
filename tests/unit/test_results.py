# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every key of every module's result is documented: their own code makes results, RETURN is held against them."""
from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Mapping, Set

import pytest
from documentation import OF_ANSIBLE, READERS, WRITERS, returned, undocumented
from workspace import REPOSITORY, collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils import registry
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.carrying_out import drain_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.observation import read_users
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.node_changes import change_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.observation import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import writer_result
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Outcome
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    REBOOT,
    Disruption,
    Plan,
    Requirement,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu
from ansible_collections.gpuops.nvidia.plugins.module_utils.mains import gpu_info
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import (
    CAPABILITIES,
    deferred_of,
    plan_host,
    told_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.capability_action import CapabilityAction

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

from cluster_api import Api  # noqa: E402
from cluster_objects import h100_node, pod  # noqa: E402

PLUGINS = REPOSITORY / "plugins"
MODULES: List[str] = sorted(path.stem for path in (PLUGINS / "modules").glob("*.py") if path.stem != "__init__")
# Between module and action plugin; the action plugin takes them out of the result.
INTERNAL = {"awaiting", "libraries_missing"}
# A filter's errors end the task as text and have no result.
NO_MODULES = {"cluster/device_plugin.py"}
# Attributes of HostFailed that are no keys of the result
ATTRIBUTES = {"number", "reason"}
ADDRESS = "/sys/bus/pci/devices/0000:17:00.0/"
STEP = Step("runtime", "file.write", "/etc/x", "It is wanted.")


def missing(result: Mapping[str, Any], documented: Mapping[str, Any]) -> List[str]:
    """What RETURN promises of every success and the result has not."""
    return [key for key, value in documented.items()
            if value["returned"].startswith(("success", "always")) and key not in result]


def raised(path: Path) -> Set[str]:
    """Keys beside found, wanted and remedy that errors made in a file carry into the result."""
    keys: Set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name.endswith(("Error", "Failed")):
            keys.update(word.arg for word in node.keywords if word.arg)
        of_error = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "attr", "") == "details"
        if of_error and name == "setdefault" and isinstance(node.args[0], ast.Constant):
            keys.add(str(node.args[0].value))
        if name == "__init__" and isinstance(node.func, ast.Attribute) and path.name in ("client.py", "errors.py"):
            keys.update(word.arg for word in node.keywords if word.arg)
    return keys


def utils(of_cluster: bool) -> List[Path]:
    directory = PLUGINS / "module_utils"
    return [path for path in sorted(directory.rglob("*.py"))
            if (path.relative_to(directory).parts[0] == "cluster") == of_cluster
            and path.relative_to(directory).as_posix() not in NO_MODULES]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "usr").mkdir()
    host = Host(str(tmp_path))
    host.write("/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    for name, value in {"vendor": "0x10de", "device": "0x20b7", "class": "0x030200"}.items():
        host.write(ADDRESS + name, value + "\n")
    host.write("/sys/module/nvidia/version", "580.178.04\n")
    return host


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Client]:
    server = Api(tmp_path)
    server.state.nodes = [h100_node()]
    server.state.pods = [pod()]
    yield Client(Connection(kubeconfig=str(server.kubeconfig)))
    server.close()


@pytest.mark.parametrize("module", WRITERS)
def test_what_a_writer_returns(module: str) -> None:
    result = writer_result(Outcome(Plan(steps=(STEP,)), [STEP.id], (STEP,), awaiting=STEP), with_diff=True)
    assert set(undocumented(result, returned(module))) == INTERNAL & set(result)
    assert missing(result, returned(module)) == []


@pytest.mark.parametrize("name", sorted(
    path.stem for path in (PLUGINS / "action").glob("*.py") if "(CapabilityAction)" in path.read_text()))
def test_only_what_writes_is_told_whose_run_it_is(name: str) -> None:
    """Any other module would refuse the option."""
    action: Any = SimpleNamespace(_module=lambda: name)
    assert CapabilityAction._writes(action) == (name in WRITERS)


def test_what_a_plan_holds(host: Host) -> None:
    result = plan_host(host, {})
    documented = returned("gpu_plan")
    refused = Refusal("a.b", "b", "c", "d", "e")
    full = dict(result, plan=Plan(steps=(STEP,), refusals=(refused,), notes=("n",)).to_dict())
    assert list(undocumented(result, documented)) == [] and missing(result, documented) == []
    assert list(undocumented(full, documented)) == []


@pytest.mark.parametrize("allowed, most", [
    ({}, "gpu_reset"), ({"allowed_disruption": "reboot"}, "reboot"), ({"allowed_disruption": "none"}, "none")])
def test_what_waits_may_come_to_all_that_is_allowed_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, allowed: Dict[str, str], most: str
) -> None:
    loads = Step("activation", "module.load", "nvidia", "It is not loaded.")

    def having(brings: Mapping[str, Any] = {"driver_loaded": "580.1"}, **plans: Plan) -> None:
        monkeypatch.setattr(registry, "CAPABILITIES", [
            replace(each, plan=lambda *_given, name=each.name: plans[name], facts_after=(
                lambda _observed, _policy, facts, plan: facts.but(**brings) if plan.steps else facts))
            if each.name in plans else each for each in CAPABILITIES])

    def told(**more: Any) -> Dict[str, Any]:
        return plan_host(host, {"activation": {}, "settings": allowed, "cdi": {"allowed_disruption": "reboot"}, **more})

    waits = Plan(complete=False)
    asks = replace(waits, may_come=(Disruption.gpu_reset, Disruption.reboot))
    having(activation=Plan(steps=(loads,)), settings=asks, cdi=waits)
    kept = told(keep=True)
    assert (kept["waiting"], kept["may_disturb"], kept["drain"]) == (["settings", "cdi"], most, "none")
    assert kept["capabilities"] == ["activation"]
    assert told(approved_plan=kept["kept_as"])["may_disturb"] == "none", "nothing is added to what was approved"
    having({"driver_changes": True}, activation=Plan(steps=(loads,)), settings=asks, cdi=waits)
    assert told()["may_disturb"] == most, "the loaded driver answers once its libraries are there"
    having(activation=Plan(steps=(loads,)), settings=replace(asks, may_come=(Disruption.runtime_restart,)), cdi=waits)
    assert told()["may_disturb"] == "runtime_restart", "pods leave for it, whatever is allowed"
    having(activation=Plan(steps=(loads,)), settings=waits, cdi=waits)
    assert told()["may_disturb"] == "none", "what is missing disturbs nobody, or waits for a person"
    having(activation=Plan(), settings=asks, cdi=waits)
    assert told()["may_disturb"] == "none", "it waits for something else"
    boots = Requirement("imex", REBOOT, "4096 IMEX channels", "It has 2048.", Disruption.reboot)
    having({}, imex=Plan(requirements=(boots,)), activation=Plan(), settings=asks, cdi=waits)
    assert told(imex={})["may_disturb"] == "none", "nobody reboots the host"
    assert told(imex={"allowed_disruption": "reboot"})["may_disturb"] == most, "its GPUs forget with the boot"
    approved = told(imex={"allowed_disruption": "reboot"}, keep=True)["kept_as"]
    monkeypatch.setattr(registry, "CAPABILITIES", [
        each if each.name != "settings" else replace(each, plan=lambda _observed, _policy, facts: (
            asks if facts.driver_reloads else Plan(steps=(loads,)))) for each in registry.CAPABILITIES])
    assert told(imex={}, approved_plan=approved)["refusals"] == [], "less may be done of it than was approved"
    monkeypatch.setattr(registry, "CAPABILITIES", [
        replace(each, plan=lambda *_given: Plan()) if each.name == "imex" else each for each in registry.CAPABILITIES])
    again = told(imex={}, approved_plan=approved)
    assert [each["code"] for each in again["refusals"]] == ["approval.step_not_approved"], "the boot is over"
    having({"driver_reloads": False}, nouveau=Plan(requirements=(replace(boots, capability="nouveau"),)),
           activation=Plan(steps=(loads,)), settings=asks, cdi=waits)
    assert told(nouveau={"allowed_disruption": "reboot"})["may_disturb"] == most, "whatever comes after it"
    having(activation=Plan(steps=(replace(loads, disruption=Disruption.reboot),)), settings=asks, cdi=waits)
    assert told()["may_disturb"] == "none", "what it waits for is put off"
    assert told()["capabilities"] == []


def test_a_host_that_needs_nothing_is_checked_in_the_call_that_plans_it(host: Host) -> None:
    asked = {"validation": {"expected_gpus": "2"}}
    told = plan_host(host, asked)
    assert [check["status"] for check in told["checks"]][0] == "failed" and not told["validated"]
    assert list(undocumented({"checks": told["checks"]}, returned("gpu_validation"))) == []
    Journal(host).note("started", STEP, "a plan", policy="a policy")
    assert plan_host(host, dict(asked, runtime={"state": "absent"}))["checks"] == []
    with pytest.raises(GpuOpsError, match="expected_gpus"):
        plan_host(host, {"validation": {"expected_gpus": "many"}, "nouveau": {}})


def test_a_host_without_a_gpu_may_be_left_alone(host: Host) -> None:
    wanted = {"nouveau": {}, "gpus_only": True}
    assert plan_host(host, wanted)["plan"]["steps"]
    host.write(ADDRESS + "vendor", "0x8086\n")
    assert plan_host(host, wanted)["plan"]["steps"] == []
    assert plan_host(host, dict(wanted, gpus_only=False))["plan"]["policies"]


def test_a_plan_with_work_is_kept_where_that_is_asked_for(host: Host) -> None:
    told = plan_host(host, {"nouveau": {}, "keep": True})
    assert told["kept_as"].endswith("/%s.json" % told["digest"])
    assert list(undocumented(told, returned("gpu_plan"))) == []
    again = plan_host(host, {"nouveau": {}, "approved_plan": told["kept_as"]})
    assert again["refusals"] == [] and "kept_as" not in again
    other = plan_host(host, {"nouveau": {"state": "absent"}, "approved_plan": told["kept_as"], "keep": True})
    assert other["refusals"] and "kept_as" not in other
    assert "kept_as" not in plan_host(host, {"keep": True}), "nothing is to be done"


@pytest.mark.parametrize("allowed, deferred", [("service_restart", False), ("none", True)])
def test_a_plan_says_what_of_it_is_put_off(allowed: str, deferred: bool) -> None:
    first = replace(STEP, disruption=Disruption.service_restart)
    plan = Plan(steps=(first, replace(STEP, subject="/etc/y", depends_on=(first.id,))))
    told = told_of([(plan, deferred_of(plan, Disruption[allowed]))])
    assert [part["id"] for part in told["deferred"]] == ([step.id for step in plan.steps] if deferred else [])
    assert told["disruption"] == ("none" if deferred else "service_restart")


def test_a_plan_names_what_a_killed_run_has_left_open(host: Host) -> None:
    Journal(host).note("started", STEP, "a plan", policy="a policy")
    assert plan_host(host, {})["unfinished"] == []
    assert plan_host(host, {"runtime": {"state": "absent"}})["unfinished"] == [STEP.id]


def test_what_is_read_of_a_host(host: Host) -> None:
    result = gpu_info.read(host, {})
    assert [gpu["device_id"] for gpu in result["observation"]["pci"]["gpus"]] == ["20b7"]
    result["observation"]["nvml"]["gpus"] = [asdict(NvmlGpu(index=0))]
    assert list(undocumented(result, returned("gpu_info"))) == []
    assert missing(result, returned("gpu_info")) == []


def test_what_a_validation_says() -> None:
    checks = [Check("gpus_on_bus", "passed", "one GPU", "").to_dict()]
    assert list(undocumented({"changed": False, "checks": checks}, returned("gpu_validation"))) == []


def test_what_is_read_of_a_cluster(cluster: Client) -> None:
    result = observe(cluster, "", "gpuops", "nvidia")
    assert result["nodes"] and list(undocumented(result, returned("gpu_cluster_info"))) == []
    assert missing(result, returned("gpu_cluster_info")) == []


def test_what_is_told_of_a_node_that_changes(cluster: Client) -> None:
    result = change_node(cluster, "gpu-1", NodePolicy(labels={"of": "ours"}), dry_run=True)
    assert list(undocumented(result, returned("gpu_node"))) == [] and missing(result, returned("gpu_node")) == []


def test_what_is_told_of_pods(cluster: Client) -> None:
    found = [dict(pod.result(), uses=list(ways)) for pod, ways in read_users(cluster, "gpu-1", policy_of({}))]
    assert found and list(undocumented({"pods": found}, returned("gpu_pods"))) == []
    for dry_run in (True, False):
        evicted = drain_node(cluster, "gpu-1", policy_of({"force": True}), dry_run)
        assert list(undocumented(evicted, returned("gpu_pod_eviction"))) == []
        assert missing(evicted, returned("gpu_pod_eviction")) == []


def test_what_reaches_the_task_through_the_action_plugins(tmp_path: Path) -> None:
    """On this machine, whatever it is: the modules read, in check mode."""
    tasks = [{"name": name, "gpuops.nvidia." + name: options, "ignore_errors": True, "check_mode": True}
             for name, options in {
                 "gpu_info": {}, "gpu_plan": {"nouveau": {}}, "nouveau": {}, "gpu_driver": {"source": "runfile"},
                 "gpu_validation": {"scope": ["cluster"], "node_name": "n", "expected_gpus": 1, "kubeconfig": "/none"},
                 "gpu_cluster_info": {"kubeconfig": "/none"}}.items()]
    play = tmp_path / "play.json"
    play.write_text(json.dumps([{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        [sys.executable, "-m", "ansible.cli.playbook", "--inventory", "localhost,", str(play)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ANSIBLE_HOME": str(tmp_path / "ansible"),
             "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
             "ANSIBLE_PYTHON_INTERPRETER": sys.executable, "LC_ALL": "C.UTF-8"},
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {task["task"]["name"]: task["hosts"]["localhost"]
               for task in json.loads(done.stdout)["plays"][0]["tasks"]}
    assert {name: list(undocumented(result, returned(name))) for name, result in results.items()} == {
        name: [] for name in results}
    assert {name for name, result in results.items() if result.get("failed")} >= {"gpu_driver", "gpu_cluster_info"}


@pytest.mark.parametrize("module", MODULES)
def test_a_failure_is_documented_by_every_module(module: str) -> None:
    assert {"code", "found", "wanted", "remedy", "option", "refusals"} <= set(returned(module))


def test_what_errors_carry_is_documented() -> None:
    of_host = {key for module in (*WRITERS, *READERS) for key in returned(module)}
    of_cluster = {key for module in MODULES if module not in (*WRITERS, *READERS) for key in returned(module)}
    strays = {(path.name, key) for known, of in ((of_host, False), (of_cluster, True)) for path in utils(of)
              for key in raised(path) if key not in known | OF_ANSIBLE | INTERNAL | ATTRIBUTES}
    assert strays == set()
