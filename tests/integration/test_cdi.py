# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The CDI specification of a real host: stale ones are renewed, twins are named, and systemd is not reloaded for it."""
from __future__ import annotations

from typing import Any, Dict, Iterator

import pytest
from laboratory import Fleet, new_lab

from gpulab.topology import parse

HOST = "gpu"
SPEC = "/run/cdi/nvidia.yaml"
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("cdi")
    lab.up(parse({"name": "cdi", "control_plane": False, "hosts": [{"name": HOST, "board": "l40s", "gpus": 2}]},
                 "test_cdi.py"))
    fleet = Fleet(lab, tmp_path_factory.mktemp("cdi"))
    fleet.play("gpuops.nvidia.site")
    yield fleet
    lab.down()


def module(fleet: Fleet, name: str) -> Dict[str, Any]:
    return fleet.tasks(HOST, [{"gpuops.nvidia." + name: {}}]).result(HOST, name)


def test_a_specification_of_another_driver_or_of_lost_programs_is_renewed(fleet: Fleet) -> None:
    fresh = fleet.say(HOST, "cat", SPEC)
    for stale in ("s/\\.so\\.[0-9.]*$/.so.580.1/", "s,/usr/bin/nvidia-cdi-hook,/opt/nvidia-cdi-hook,", "s/GPU-/GPU-0/"):
        fleet.say(HOST, "sed", "-i", stale, SPEC)
        assert module(fleet, "cdi_spec")["applied"] == ["cdi/cdi.generate//var/run/cdi/nvidia.yaml"], stale
        assert fleet.say(HOST, "cat", SPEC) == fresh
    assert module(fleet, "cdi_spec")["changed"] is False


def test_a_second_file_with_the_same_devices_is_named_and_left(fleet: Fleet) -> None:
    fleet.say(HOST, "cp", SPEC, "/run/cdi/copy.yaml")
    assert "copy.yaml" in module(fleet, "cdi_spec")["plan"]["notes"][0]
    verdict = module(fleet, "gpu_validation")
    assert verdict["failed"] and "copy.yaml" in verdict["msg"]
    fleet.say(HOST, "rm", "/run/cdi/copy.yaml")
    assert not module(fleet, "gpu_validation").get("failed")


def test_a_unit_is_enabled_without_a_reload_of_systemd(fleet: Fleet) -> None:
    count = "journalctl -b _PID=1 | grep -c Reloading"
    fleet.say(HOST, "systemctl", "disable", "nvidia-cdi-refresh.path")
    before = fleet.say(HOST, "sh", "-c", count)
    assert module(fleet, "cdi_spec")["applied"] == ["cdi/service.enable/nvidia-cdi-refresh.path"]
    assert fleet.say(HOST, "sh", "-c", count) == before
    assert int(before) > 0
    assert fleet.say(HOST, "systemctl", "is-enabled", "nvidia-cdi-refresh.path") == "enabled"


def test_names_that_the_refresh_unit_is_told_to_write_are_ours_too(fleet: Fleet) -> None:
    fleet.lab.host(HOST).ssh(["sh", "-c", "cat > " + ENVIRONMENT],
                             feed="NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=uuid\n")
    fleet.say(HOST, "rm", SPEC)
    assert not module(fleet, "cdi_spec").get("failed")
    names = fleet.say(HOST, "nvidia-ctk", "--quiet", "cdi", "list").split()
    assert "nvidia.com/gpu=0" not in names
    assert len([name for name in names if "GPU-" in name]) == 2


def test_uninstall_leaves_nothing_in_run(fleet: Fleet) -> None:
    assert fleet.say(HOST, "ls", "/run/nvidia/validations") == "driver-ready\ntoolkit-ready"
    fleet.play("gpuops.nvidia.uninstall")
    assert fleet.say(HOST, "sh", "-c", "ls -d /run/nvidia /run/cdi/*") == ""
