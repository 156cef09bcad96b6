# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MIG layouts on booted hosts: from bare to divided GPUs in one run, kept over changes and boots, and taken back.

Two GPU hosts in this order, of the generation whose MIG mode takes a reset and of one whose mode a boot forgets.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, List

import pytest
from laboratory import Fleet, new_lab

from gpulab.topology import parse

A100, H100 = "a100", "h100"
HOSTS = (A100, H100)
UNIT = "gpuops-nvidia-mig.service"
# Opens a device as a CUDA program does, as far as others see
HOLD = "import os, time; os.open(%r, os.O_PATH); time.sleep(3600)"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("mig")
    lab.up(parse({"name": "mig", "control_plane": False, "hosts": [
        {"name": A100, "board": "a100-80gb-sxm", "gpus": 2}, {"name": H100, "board": "h100-sxm-hgx", "gpus": 2},
    ]}, "test_mig.py"))
    yield Fleet(lab, tmp_path_factory.mktemp("mig"))
    lab.down()


def shell(fleet: Fleet, words: str, host: str) -> str:
    return fleet.say(host, "sh", "-c", words)


def instances(fleet: Fleet, host: str) -> List[str]:
    """'PROFILE ID at START' of the GPU instances."""
    listed = shell(fleet, "nvidia-smi mig -lgi || true", host).splitlines()
    rows = [line.split() for line in listed if line.startswith("|") and "Instance" not in line]
    return ["%s:%s at %s" % (row[1], row[2], row[-2].split(":")[0]) for row in rows]


def mig_devices(fleet: Fleet, host: str) -> List[str]:
    return [word.rstrip(")") for word in fleet.say(host, "nvidia-smi", "-L").split() if word.startswith("MIG-")]


def in_specification(fleet: Fleet, host: str) -> List[str]:
    names = fleet.say(host, "nvidia-ctk", "--quiet", "cdi", "list").split()
    return sorted(name.split("=")[1] for name in names if "MIG-" in name or "GPU-" in name)


def module(fleet: Fleet, name: str, host: str, **options: Any) -> Dict[str, Any]:
    return fleet.tasks(host, [{"gpuops.nvidia." + name: options}]).result(host, name)


def test_a_bare_host_is_divided_in_the_run_that_brings_its_driver(fleet: Fleet) -> None:
    fleet.play("gpuops.nvidia.site", gpu_serial=2, mig_config="all-balanced")
    for host in HOSTS:
        assert len(mig_devices(fleet, host)) == 8
        assert in_specification(fleet, host) == sorted(mig_devices(fleet, host))
        assert not module(fleet, "gpu_validation", host).get("failed")


def test_a_divided_host_needs_nothing(fleet: Fleet) -> None:
    assert fleet.play("gpuops.nvidia.site", gpu_serial=2, mig_config="all-balanced").changes() == []


def test_another_layout_goes_round_what_is_in_use(fleet: Fleet) -> None:
    before = mig_devices(fleet, H100)
    used = shell(fleet, "sed -n 's/^DeviceFileMinor: //p' /proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access",
                 H100).strip()
    shell(fleet, "setsid python3 -c \"%s\" >/dev/null 2>&1 &" % (HOLD % ("/dev/nvidia-caps/nvidia-cap" + used)), H100)
    refused = module(fleet, "mig", H100, config="all-disabled")
    assert refused["failed"] and "python3 (pid" in refused["msg"] and refused["code"] == "mig.busy"
    assert mig_devices(fleet, H100) == before
    done = module(fleet, "mig", H100, layout=[{"gpus": ["0"], "instances": [
        {"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 4}]}])
    assert done["applied"][0] == "mig/mig.divide/0000:1b:00.0"
    assert len(set(mig_devices(fleet, H100)) & set(before)) >= 3 + 4
    shell(fleet, "pkill -f O_PATH", H100)
    fleet.play("gpuops.nvidia.site", gpu_serial=2, mig_config="all-balanced")
    assert in_specification(fleet, H100) == sorted(mig_devices(fleet, H100))


def test_a_boot_brings_the_layout_back_before_containers_start(fleet: Fleet) -> None:
    before = {host: instances(fleet, host) for host in HOSTS}
    for host in HOSTS:
        fleet.lab.reboot(host)
        shell(fleet, "systemctl is-system-running --wait || true", host)
        before_what = fleet.say(host, "systemctl", "show", UNIT, "--property", "Before", "--value").split()
        assert {"kubelet.service", "containerd.service", "gpuops-nvidia-cdi.service"} <= set(before_what)
        assert fleet.say(host, "systemctl", "is-active", UNIT) == "active"
        assert instances(fleet, host) == before[host] and len(before[host]) == 8
        assert in_specification(fleet, host) == sorted(mig_devices(fleet, host))
    changed = fleet.play("gpuops.nvidia.site", gpu_serial=2, mig_config="all-balanced").changes()
    assert [task for _host, task in changed if not task.endswith("Validate the host")] == [], "but what lies in /run"


def test_it_is_taken_back(fleet: Fleet) -> None:
    fleet.play("gpuops.nvidia.site", gpu_serial=2, mig_state="absent")
    for host in HOSTS:
        assert mig_devices(fleet, host) == []
        assert shell(fleet, "nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader", host) \
            .split() == ["Disabled,", "Disabled"] * 2
        assert shell(fleet, "ls /var/lib/gpuops/mig-restore /etc/systemd/system/*mig* 2>/dev/null || true", host) == ""
        assert len(in_specification(fleet, host)) == 2
