# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The example inventories are read by Ansible, and name variables and options that exist."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Set

import documentation
import yaml
from workspace import REPOSITORY, collections_root

EXAMPLES = REPOSITORY / "inventories"


def listing(name: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ansible.cli.inventory", "--inventory", str(EXAMPLES / name), "--list"],
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "ANSIBLE_HOME": str(directory / "ansible"),
             "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
             "ANSIBLE_DEPRECATION_WARNINGS": "false", "LC_ALL": "C.UTF-8"},
        cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def variables() -> Set[str]:
    names = set(documentation.declared())
    for path in (REPOSITORY / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            names.update(entry.get("options") or {})
    return names


def test_the_static_inventory_gives_each_host_its_driver(tmp_path: Path) -> None:
    done = listing("static", tmp_path)
    assert done.returncode == 0, done.stderr
    hosts = json.loads(done.stdout)["_meta"]["hostvars"]
    assert {name: host["gpu_driver_version"] for name, host in hosts.items()} == {
        "gpu1.example.com": "595", "gpu2.example.com": "580"}
    assert {(host["ansible_user"], host["ansible_become"]) for host in hosts.values()} == {("admin", True)}


def test_the_inventory_of_a_cluster_is_read_as_far_as_the_cluster(tmp_path: Path) -> None:
    done = listing("cluster", tmp_path)
    told = " ".join(done.stderr.split())
    assert done.returncode != 0 and "cannot be used: there is no file" in told and ".kube/config" in told, told


def test_the_examples_name_variables_that_there_are() -> None:
    known = variables()
    for path in EXAMPLES.glob("*/group_vars/*.yml"):
        assert set(yaml.safe_load(path.read_text())) <= known, path
