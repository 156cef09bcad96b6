# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`make demo`: plan, site, a table of nodes, and a pod that lists the GPU it got."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import workspace

from .cache import BuildError
from .lab import Lab
from .processes import LabError

LABORATORY = Path(__file__).resolve().parents[1]
POD = "gpu-pod"
TOOLS_IMAGE = "docker.io/library/gpulab-tools:1"


class DemoFailed(RuntimeError):
    """A stage of the demo did not end well; the message says which."""


def main() -> int:
    """Run the demo; 0 when every stage ended well."""
    started = time.monotonic()
    lab = Lab("demo")
    try:
        stage("A laboratory: two GPU hosts, delivered bare, joined to a Kubernetes cluster")
        if lab.is_up:
            lab.down()
        lab.up("demo")
        stage("The plan: exactly what would be done; nothing is changed")
        playbook(lab, "plan")
        stage("Site: driver, toolkit, container runtime, validation, then the cluster components")
        playbook(lab, "site")
        stage("The nodes")
        print(node_table(lab))
        stage("A pod with nvidia.com/gpu: 1 and what it sees")
        run_pod(lab)
    except (LabError, BuildError, DemoFailed) as error:
        print("demo: %s" % error, file=sys.stderr)
        return 1
    stage("Done in %.0f s. Look around: tests/lab/lab --name demo kubectl get nodes; "
          "end it: tests/lab/lab --name demo down"
          % (time.monotonic() - started))
    return 0


def stage(title: str) -> None:
    print("\n\033[1m== %s\033[0m" % title if sys.stdout.isatty() else "\n== %s" % title, flush=True)


def playbook(lab: Lab, name: str) -> None:
    """Run one of the collection's playbooks against the laboratory, its output shown as it comes."""
    command = [str(workspace.venv() / "bin" / "ansible-playbook"), "--inventory", str(lab.inventory),
               "--extra-vars", "@%s" % (LABORATORY / "policy.yml"), "gpuops.nvidia.%s" % name]
    done = subprocess.run(command, env=ansible_environment(), check=False)
    if done.returncode != 0:
        raise DemoFailed("gpuops.nvidia.%s ended with %d" % (name, done.returncode))


def ansible_environment() -> Dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return dict(
        environment,
        ANSIBLE_COLLECTIONS_PATH=str(workspace.collections_root()),
        ANSIBLE_PIPELINING="1",
        ANSIBLE_DISPLAY_SKIPPED_HOSTS="0",
        ANSIBLE_HOME=str(workspace.work_root() / "ansible-home"),
        PATH="%s:%s" % (workspace.venv() / "bin", os.environ.get("PATH", os.defpath)),
    )


def node_table(lab: Lab) -> str:
    """Driver, GPUs on offer and the host's own validation, a row a node."""
    nodes = json.loads(lab.kubectl(["get", "nodes", "-o", "json"]).stdout)["items"]
    rows = [["NODE", "GPU", "DRIVER", "ALLOCATABLE", "VALIDATION"]]
    rows += [_node_row(lab, node) for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"]))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _node_row(lab: Lab, node: Dict[str, Any]) -> List[str]:
    name, labels = node["metadata"]["name"], node["metadata"]["labels"]
    ready = lab.ssh(name, ["ls", "/run/nvidia/validations"], check=False).stdout.split()
    return [
        name,
        labels.get("nvidia.com/gpu.product", "?"),
        labels.get("nvidia.com/cuda.driver-version.full", "?"),
        node["status"]["allocatable"].get("nvidia.com/gpu", "0"),
        "passed" if {"driver-ready", "toolkit-ready"} <= set(ready) else "FAILED",
    ]


def run_pod(lab: Lab) -> None:
    """Schedule a pod for one GPU and print the devices in its container."""
    lab.kubectl(["delete", "pod", POD, "--ignore-not-found", "--now"])
    lab.kubectl(["apply", "-f", "-"], feed=json.dumps(pod_manifest()))
    done = lab.kubectl(["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/" + POD, "--timeout=60s"], check=False)
    if done.returncode != 0:
        raise DemoFailed("the pod did not succeed: %s" % lab.kubectl(["describe", "pod", POD]).stdout[-2000:])
    print(lab.kubectl(["get", "pod", POD, "-o", "wide"]).stdout)
    print(lab.kubectl(["logs", POD]).stdout)


def pod_manifest() -> Dict[str, Any]:
    script: Sequence[str] = ("/bin/sh", "-c", "ls -l /dev/nvidia[0-9]*; nvidia-smi -L")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "restartPolicy": "Never",
            "runtimeClassName": "nvidia",
            "containers": [{
                "name": "main",
                "image": TOOLS_IMAGE,
                "imagePullPolicy": "Never",
                "command": list(script),
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        },
    }
