# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver upgrade of four hosts whose GPUs are in use, by a service with a disruption budget. Tests follow each other.

Four hosts with all that is installed on each: `make slow`, not part of `make test`.
"""
from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from typing import Any, Dict, Iterator, List, Set

import gpu_pods
import pytest
from laboratory import Fleet, new_lab

from gpulab.topology import parse

OLD, NEW = "580.178.04", "595.91.07"
HOSTS = tuple("gpu%d" % number for number in range(1, 5))
REPLICAS, AT_LEAST = 4, 3
RULE = "/etc/modprobe.d/not-this-driver.conf"
SERVICE = "service"
EVENT = "|".join(("{.type}", "{.object.metadata.name}", "{.object.metadata.deletionTimestamp}",
                  '{.object.status.conditions[?(@.type=="Ready")].status}')) + '{"\\n"}'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All of them with the older driver, and two GPUs each: the service has one on every host."""
    lab = new_lab("fleet")
    lab.up(parse({"name": "fleet", "control_plane": True, "hosts": [
        {"name": host, "board": "l40s", "gpus": 2} for host in HOSTS]}, "test_fleet.py"))
    made = Fleet(lab, tmp_path_factory.mktemp("fleet"))
    made.play("gpuops.nvidia.site", gpu_rollout_limit=len(HOSTS))
    template = gpu_pods.pod(SERVICE, "", 1)
    del template["spec"]["nodeSelector"]
    template["spec"]["topologySpreadConstraints"] = [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": template["metadata"]["labels"]}}]
    deployment = gpu_pods.deployment(template)
    deployment["spec"]["replicas"] = REPLICAS
    lab.kubectl(["create", "--filename=-"], feed=json.dumps({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": SERVICE},
        "spec": {"minAvailable": AT_LEAST, "selector": {"matchLabels": template["metadata"]["labels"]}}}))
    assert {pod["spec"]["nodeName"] for pod in gpu_pods.run(made, [deployment])} == set(HOSTS)
    yield made
    lab.down()


@contextlib.contextmanager
def fewest_replicas(fleet: Fleet) -> Iterator[List[int]]:
    """How many replicas there are after each change of one, as the disruption controller counts them: those that are
    Ready and not about to go."""
    counts: List[int] = []
    command = fleet.lab.kubectl_command(["get", "pods", "--selector=app=" + SERVICE, "--watch", "--output-watch-events",
                                         "--output=jsonpath=" + EVENT])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        def follow() -> None:
            ready: Set[str] = set()
            assert watch.stdout is not None
            for line in watch.stdout:
                kind, name, going, is_ready = line.rstrip("\n").split("|")
                (ready.add if kind != "DELETED" and not going and is_ready == "True" else ready.discard)(name)
                # Those that were there come first, one by one
                if counts or len(ready) == REPLICAS:
                    counts.append(len(ready))

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            yield counts
        finally:
            watch.terminate()
            follower.join()


def state(fleet: Fleet, host: str) -> Dict[str, Any]:
    """What an upgrade would change of a host."""
    return {"packages": fleet.packages(host), "boot": fleet.lab.host(host).boot_id(),
            "loaded": fleet.say(host, "cat", "/sys/module/nvidia/version"),
            "steps": [event["step"]["id"] for event in fleet.events(host) if event["event"] == "done"
                      and event["step"]["disruption"] != "none"]}


def out_of_service(fleet: Fleet) -> Set[str]:
    return {host for host in HOSTS if fleet.node(host)["spec"].get("unschedulable")}


def test_a_canary_that_fails_is_rolled_back_and_the_others_are_untouched(fleet: Fleet) -> None:
    """A driver that does not load, on none of them."""
    before = {host: state(fleet, host) for host in HOSTS}
    for host in HOSTS:
        fleet.say(host, "sh", "-c", 'echo "$1" > %s' % RULE, "sh",
                  "install nvidia test \"$(modinfo -F version nvidia)\" != %s && "
                  "modprobe --ignore-install nvidia" % NEW)
    with fewest_replicas(fleet) as replicas:
        failed = fleet.run("gpuops.nvidia.site", gpu_driver_version=NEW, gpu_rollout_limit=2)
    assert failed.code != 0
    assert "Rolled back to driver %s" % OLD in failed.failures(), failed.failures()
    (canary,) = out_of_service(fleet)
    assert {host: state(fleet, host) for host in HOSTS if host != canary} == {
        host: before[host] for host in HOSTS if host != canary}
    there = state(fleet, canary)
    assert {name: there[name] for name in ("packages", "boot", "loaded")} == {
        name: before[canary][name] for name in ("packages", "boot", "loaded")}
    assert "rollout.canary_failed" in failed.output and min(replicas) >= AT_LEAST
    for host in HOSTS:
        fleet.say(host, "rm", RULE)
        fleet.say(host, "systemctl", "reset-failed", "nvidia-cdi-refresh.service")


def test_a_service_never_has_fewer_replicas_than_its_budget(fleet: Fleet) -> None:
    """Once somebody has seen to the canary; two hosts at once are let, and their evictions wait for each other."""
    (canary,) = out_of_service(fleet)
    fleet.free(canary)
    with fewest_replicas(fleet) as replicas:
        upgraded = fleet.play("gpuops.nvidia.site", gpu_driver_version=NEW, gpu_rollout_limit=2)
    assert {state(fleet, host)["loaded"] for host in HOSTS} == {NEW}
    assert out_of_service(fleet) == set() and upgraded.report["stats"][canary]["failures"] == 0
    assert AT_LEAST <= min(replicas) < REPLICAS, replicas
    again = fleet.play("gpuops.nvidia.site", gpu_driver_version=NEW, gpu_rollout_limit=2)
    assert again.changes() == []
