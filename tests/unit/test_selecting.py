# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/selecting.md: each example is run by Ansible on results of the modules' code, and gives what the page says."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest
import yaml
from workspace import REPOSITORY, collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.observation import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.mains import gpu_info

for name in ("cluster", "driver"):
    sys.path.insert(0, str(Path(__file__).parent / name))

from cluster_api import Api  # noqa: E402
from cluster_objects import h100_labels, h100_node  # noqa: E402
from driver_world import World, made, policy  # noqa: E402
from gpu_hosts import A100, facts  # noqa: E402

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (REPOSITORY / "docs" / "selecting.md").read_text()
ADDRESSES = ("0000:17:00.0", "0000:3d:00.0", "0000:52:00.0")


def examples() -> List[Tuple[Any, Optional[Any]]]:
    """(what is to be run, what it gives): the YAML blocks of the page, each with the JSON block that follows it."""
    blocks = BLOCK.findall(PAGE)
    found = []
    for (kind, text), (next_kind, next_text) in zip(blocks, [*blocks[1:], ("", "")]):
        if kind == "yaml":
            found.append((yaml.safe_load(text), json.loads(next_text) if next_kind == "json" else None))
    return found


def told(tasks: bool) -> List[Tuple[Any, Any]]:
    return [(code, given) for code, given in examples() if given is not None and isinstance(code, list) == tasks]


def reading(directory: Path) -> Dict[str, Any]:
    """What gpu_info returns of a host with three GPUs, as NVML would describe them."""
    (directory / "usr").mkdir(parents=True)
    host = Host(str(directory))
    host.write("/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    for address in ADDRESSES:
        for name, value in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}.items():
            host.write("/sys/bus/pci/devices/%s/%s" % (address, name), value + "\n")
    result = gpu_info.read(host, {})
    trouble: Tuple[Dict[str, Any], ...] = (
        {"processes": (4711, 4712)}, {"ecc_uncorrected": 2}, {"ecc_uncorrected": 0, "remap_pending": True})
    result["observation"]["nvml"] = NvmlReading(gpus=tuple(
        NvmlGpu(index=index, uuid="GPU-" + address[5:7], name="NVIDIA H100 80GB HBM3", pci_address=address,
                memory_mib=81559, **more) for index, (address, more) in enumerate(zip(ADDRESSES, trouble)))).to_dict()
    return result


def planned() -> Dict[str, Any]:
    """What gpu_plan returns of a host whose driver is to be exchanged."""
    world = World()
    before, after = policy(version="580.126.09"), policy(version="580.178.04")
    world.apply(made(world, before, facts(A100)))
    there = facts(A100, driver_installed="580.126.09", driver_userspace="580.126.09", driver_loaded="580.126.09")
    return {"plan": made(world, after, there).to_dict()}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    server = Api(tmp_path_factory.mktemp("api"))
    in_zone = {**h100_labels(), "topology.kubernetes.io/zone": "eu-1"}
    server.state.nodes = [h100_node("gpu-1"), h100_node("gpu-2", unschedulable=True, labels=in_zone),
                          h100_node("gpu-3", allocatable={"nvidia.com/gpu": "7"}, ready=False)]
    yield server
    server.close()


def ansible(directory: Path, program: str, *arguments: str) -> str:
    """Output of one of Ansible's programs, with this checkout and what the package `ansible` carries."""
    done = subprocess.run(
        [sys.executable, "-m", "ansible.cli." + program, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "ANSIBLE_HOME": str(directory / "ansible"),
             "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_DEPRECATION_WARNINGS": "false",
             "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_JINJA2_NATIVE": "true", "LC_ALL": "C.UTF-8"},
        cwd=directory, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configuration(directory: Path, api: Api, **more: Any) -> str:
    path = directory / "of.gpu_nodes.yml"
    path.write_text(json.dumps({**more, "plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(api.kubeconfig)}))
    return str(path)


def test_the_examples_on_hosts_plans_and_nodes_give_what_the_page_says(tmp_path: Path, api: Api) -> None:
    found = observe(Client(Connection(kubeconfig=str(api.kubeconfig))), "", "", "")
    data = {"gpu": reading(tmp_path / "host"), "planned": planned(), "cluster": found}
    # What no JSON block follows is run too, unless it is the module that the data came from.
    tasks = [task for code, _given in examples() if isinstance(code, list) for task in code
             if not any(key.startswith("gpuops.nvidia.") for key in task)]
    play = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]
    (tmp_path / "play.json").write_text(json.dumps(play))
    (tmp_path / "data.json").write_text(json.dumps(data))
    report = json.loads(ansible(tmp_path, "playbook", "--inventory", configuration(tmp_path, api), "play.json",
                                "--extra-vars", "@data.json"))
    given = {task["task"]["name"]: task["hosts"]["localhost"] for task in report["plays"][0]["tasks"]}
    assert len(told(tasks=True)) == 9 and len(given) == len(tasks)
    assert {code[-1]["name"]: given[code[-1]["name"]]["msg"] for code, _ in told(tasks=True)} == {
        code[-1]["name"]: result for code, result in told(tasks=True)}


@pytest.mark.parametrize("options, groups", told(tasks=False))
def test_the_groups_of_an_inventory_have_the_nodes_that_the_page_says(
    tmp_path: Path, api: Api, options: Dict[str, Any], groups: Dict[str, List[str]],
) -> None:
    listing = json.loads(ansible(tmp_path, "inventory", "--inventory", configuration(tmp_path, api, **options),
                                 "--list"))
    assert {name: listing[name]["hosts"] for name in groups} == groups


def test_the_modules_that_the_data_comes_from_are_there() -> None:
    modules = [key for code, given in examples() if given is None for task in code for key in task
               if key.startswith("gpuops.nvidia.")]
    assert modules == ["gpuops.nvidia.gpu_info", "gpuops.nvidia.gpu_plan", "gpuops.nvidia.gpu_cluster_info"]
    assert all((REPOSITORY / "plugins" / "modules" / (name.rsplit(".", 1)[-1] + ".py")).is_file() for name in modules)


def test_what_json_query_needs_is_declared() -> None:
    declared = (REPOSITORY / "meta" / "ee-requirements.txt").read_text().split()
    assert any(word.startswith("jmespath") for word in declared)
    image = yaml.safe_load((REPOSITORY / "execution-environment.yml").read_text())
    assert "community.general" in [each["name"] for each in image["dependencies"]["galaxy"]["collections"]]
    assert "jmespath" in (REPOSITORY / "README.md").read_text()
