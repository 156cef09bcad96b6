# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's own NVIDIA driver, the real one: resolved, compiled by DKMS against a real kernel, held, taken back.

Minutes of compilation: `make slow`, not part of `make test`. The silicon is simulated, so the module is built and
accounted for, and user space is compared by version; NVIDIA's real library finds no GPU behind it.
"""
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import pytest
from workspace import collections_root, venv

from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

SOURCES = "/etc/apt/sources.list.d/debian-nvidia.sources"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab("debiandriver")
    lab.down()
    lab.up(parse({"name": "debian-driver", "control_plane": False,
                  "hosts": [{"name": "gpu", "board": "t4", "gpus": 1}]}, "test_debian_driver.py"))
    lab.serve("debian-nvidia", "apt-debian-nvidia")
    yield lab
    lab.down()


def module(lab: Lab, directory: Path, name: str, **options: Any) -> Dict[str, Any]:
    """Run one module of the collection on the host."""
    play = directory / "play.json"
    tasks = [{"gpuops.nvidia." + name: options}]
    play.write_text(json.dumps([{"hosts": "gpu", "gather_facts": False, "tasks": tasks}]))
    bundle = next((venv() / "lib").glob("python3*/site-packages"))
    done = subprocess.run(
        [str(venv() / "bin" / "ansible-playbook"), "-i", str(lab.inventory), str(play)],
        env=dict(os.environ, ANSIBLE_COLLECTIONS_PATH="%s:%s" % (collections_root(), bundle),
                 ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_PIPELINING="true", ANSIBLE_HOME=str(directory)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
    )
    result: Dict[str, Any] = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]["gpu"]
    assert not result.get("failed"), result
    return result


def ids(steps: List[Mapping[str, Any]]) -> List[str]:
    return [step["id"] for step in steps]


def test_debians_driver_is_planned_built_and_taken_back(lab: Lab, tmp_path: Path) -> None:
    policy = {"source": "distribution", "version": "535", "kernel_module": "proprietary"}
    lab.ssh("gpu", ["sh", "-c", 'sed "s,/debian$,/debian-nvidia,; s,/debian/$,/debian-nvidia/,; '
                                's/^Suites:.*/Suites: bookworm/; s/^Components:.*/Components: non-free/" '
                                '$(ls /etc/apt/sources.list.d/*.sources | head -n 1) > ' + SOURCES])
    packages = set(lab.ssh("gpu", ["dpkg-query", "-W", "-f", "${Package}\n"]).stdout.split())
    planned = module(lab, tmp_path, "gpu_plan", driver=policy)
    assert planned["plan"]["refusals"] == []
    module(lab, tmp_path, "nouveau")
    installed = module(lab, tmp_path, "gpu_driver", **policy)
    assert installed["applied"] == ids(planned["plan"]["steps"])
    seen = module(lab, tmp_path, "gpu_info")["observation"]["host"]
    assert seen["driver_installed"].startswith("535.") and seen["driver_installed"] == seen["driver_userspace"]
    assert module(lab, tmp_path, "gpu_driver", **policy)["changed"] is False
    module(lab, tmp_path, "gpu_driver", state="absent")
    assert set(lab.ssh("gpu", ["dpkg-query", "-W", "-f", "${Package}\n"]).stdout.split()) == packages
