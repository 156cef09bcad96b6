# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What runs on the controller needs neither root nor sudo there, whatever the inventory says about the hosts."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import yaml
from cluster_api import Api
from cluster_objects import node
from controller import Controller
from workspace import REPOSITORY

TASK_FILES = [*sorted(REPOSITORY.glob("roles/*/tasks/*.yml")), *sorted(REPOSITORY.glob("playbooks/**/*.yml"))]


def tasks(content: Any) -> Iterator[Dict[str, Any]]:
    """Every task of a task file or playbook, those in blocks and handlers too."""
    for entry in content or ():
        if isinstance(entry, dict):
            yield entry
            for part in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from tasks(entry.get(part))


def delegated() -> List[Tuple[Path, Dict[str, Any]]]:
    return [(path, task) for path in TASK_FILES for task in tasks(yaml.safe_load(path.read_text()))
            if "delegate_to" in task]


def test_every_delegated_task_says_so_in_variables_as_only_these_beat_those_of_the_inventory() -> None:
    found = delegated()
    assert len(found) > 10
    strays = ["%s: %s" % (path.relative_to(REPOSITORY), task["name"]) for path, task in found
              if (task["delegate_to"], task.get("vars", {}).get("ansible_become"),
                  task.get("vars", {}).get("ansible_python_interpreter"))
              != ("localhost", False, "{{ ansible_playbook_python }}")]
    assert strays == []


def test_become_of_the_inventory_stays_on_the_hosts(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("host-1")]
    play = controller.directory / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [
        {"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "{{ item }}"},
         "loop": ["check", "cordon", "drain", "label", "unlabel", "uncordon"]}]}]))
    done = controller.play(str(play), variables={
        "gpu_cluster_kubeconfig": str(api.kubeconfig), "ansible_user": "admin", "ansible_become": True,
        "ansible_become_exe": "/nonexistent/sudo", "ansible_connection": "ssh"},
        # Else a root that runs these tests becomes root by doing nothing.
        environment={"ANSIBLE_BECOME_ALLOW_SAME_USER": "true"})
    assert done.returncode == 0, done.stdout
    assert api.state.nodes[0]["metadata"]["labels"] == {"kubernetes.io/hostname": "host-1"}
    assert len([request for request in api.state.requests if request.method == "PATCH"]) == 4
