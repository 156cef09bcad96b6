# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The CDI specification of a host follows driver, MIG layout, toolkit and boots, and systemd is not reloaded for it.

Two GPU hosts in this order: what a converged run leaves alone, what makes a specification stale, boots, and the way
back. Each test leaves the hosts converged.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, List

import pytest
from laboratory import Fleet, new_lab

from gpulab import silicon
from gpulab.topology import parse

HOST, MIG = "gpu", "mig"
SPEC = "/run/cdi/nvidia.yaml"
GENERATE = "cdi/cdi.generate//var/run/cdi/nvidia.yaml"
LINK = "cdi/links.create//dev/char"
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
LEFTOVER = "/etc/cdi/nvidia.yaml"
CONTAINERD = "/etc/containerd/config.toml"
OTHER_DRIVER = "595.91.07"

# A container that is given the first GPU, its control groups kept by systemd; it needs no image
PROBE = """
import json, subprocess
subprocess.run(["runc", "spec"], check=True)
with open("config.json") as file:
    spec = json.load(file)
process, linux = spec["process"], spec["linux"]
process.update(terminal=False, args=["sleep", "60"], rlimits=[])
spec["root"] = {"path": "rootfs"}
spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
linux["cgroupsPath"] = "system.slice:gpu:probe"
linux["maskedPaths"] = linux["readonlyPaths"] = []
linux["resources"]["devices"].append({"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"})
with open("config.json", "w") as file:
    json.dump(spec, file)
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("cdi")
    lab.up(parse({"name": "cdi", "control_plane": False, "hosts": [
        {"name": HOST, "board": "l40s", "gpus": 2}, {"name": MIG, "board": "a100-80gb-sxm", "gpus": 2},
    ]}, "test_cdi.py"))
    fleet = Fleet(lab, tmp_path_factory.mktemp("cdi"))
    fleet.play("gpuops.nvidia.site", gpu_rollout_limit=2)
    yield fleet
    lab.down()


def module(fleet: Fleet, name: str, host: str = HOST, **options: Any) -> Dict[str, Any]:
    return fleet.tasks(host, [{"gpuops.nvidia." + name: options}]).result(host, name)


def shell(fleet: Fleet, words: str, host: str = HOST) -> str:
    return fleet.say(host, "sh", "-c", words)


def reloads(fleet: Fleet, host: str = HOST) -> int:
    """How often systemd has read its units again since the boot."""
    return int(shell(fleet, "journalctl -b _PID=1 | grep -c Reloading", host))


def nodes(fleet: Fleet, host: str = HOST) -> List[str]:
    return shell(fleet, "ls /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools "
                        "/dev/nvidia-caps/nvidia-cap* 2>/dev/null", host).split()


def linked(fleet: Fleet, host: str = HOST) -> List[str]:
    """Device nodes that a link of their own numbers leads to."""
    return shell(fleet, "for node in %s; do [ \"$(readlink -f /dev/char/$((0x$(stat -c %%t $node))):"
                        "$((0x$(stat -c %%T $node))))\" = $node ] && echo $node; done"
                 % " ".join(nodes(fleet, host)), host).split()


def devices(fleet: Fleet, host: str = HOST) -> List[str]:
    """Devices by UUID that container runtimes see in the specification."""
    names = fleet.say(host, "nvidia-ctk", "--quiet", "cdi", "list").split()
    return [name.split("=")[1] for name in names if "GPU-" in name or "MIG-" in name]


def test_a_converged_run_changes_nothing_and_does_not_reload_systemd(fleet: Fleet) -> None:
    before = {host: reloads(fleet, host) for host in (HOST, MIG)}
    assert fleet.play("gpuops.nvidia.site").changes() == []
    assert {host: reloads(fleet, host) for host in (HOST, MIG)} == before
    assert all(before.values())


def test_every_device_node_has_its_link(fleet: Fleet) -> None:
    assert len(nodes(fleet)) >= 5
    assert linked(fleet) == nodes(fleet)
    shell(fleet, "rm $(find /dev/char -lname /dev/nvidiactl); ln -sf /dev/nvidia-uvm /dev/char/400:0")
    assert module(fleet, "cdi_spec")["applied"] == [LINK]
    assert linked(fleet) == nodes(fleet)
    assert shell(fleet, "ls /dev/char/400:0") == ""
    assert module(fleet, "cdi_spec")["changed"] is False


def device_rules(fleet: Fleet) -> str:
    """What systemd allows a container that is given /dev/nvidia0."""
    return shell(fleet, "cd /root/probe && runc --systemd-cgroup run --detach probe < /dev/null > log 2>&1 || cat log;"
                        " systemctl show gpu-probe.scope --property DeviceAllow; runc delete --force probe")


def test_systemd_knows_a_containers_gpu_by_the_link(fleet: Fleet) -> None:
    """runc 1.1.5, which Debian 12 has: what systemd does not know is gone after its next reload."""
    assert fleet.say(HOST, "runc", "--version").startswith("runc version 1.1.5")
    shell(fleet, "mkdir -p /root/probe/rootfs && mount --bind / /root/probe/rootfs")
    fleet.lab.host(HOST).ssh(["sh", "-c", "cd /root/probe && python3 -"], feed=PROBE)
    try:
        assert "/dev/char/195:0 rw" in device_rules(fleet)
        shell(fleet, "rm /dev/char/195:0")
        rules = device_rules(fleet)
        assert "/dev/char/1:3" in rules and "/dev/char/195:0" not in rules
        assert module(fleet, "cdi_spec")["applied"] == [LINK]
        assert "/dev/char/195:0 rw" in device_rules(fleet)
    finally:
        shell(fleet, "umount /root/probe/rootfs && rm -r /root/probe")


def test_udev_reads_the_rule_without_complaint(fleet: Fleet) -> None:
    said = shell(fleet, "udevadm test --action=add /sys/class/net/lo 2>&1 | grep gpuops").splitlines()
    assert said == ["Reading rules file: /etc/udev/rules.d/71-gpuops-nvidia.rules"]


@pytest.mark.variation
def test_a_specification_of_another_driver_or_of_lost_programs_is_renewed(fleet: Fleet) -> None:
    fresh = fleet.say(HOST, "cat", SPEC)
    for stale in ("s/\\.so\\.[0-9.]*$/.so.580.1/", "s,/usr/bin/nvidia-cdi-hook,/opt/nvidia-cdi-hook,", "s/GPU-/GPU-0/"):
        fleet.say(HOST, "sed", "-i", stale, SPEC)
        assert "cdi_spec" in module(fleet, "gpu_validation")["msg"]
        # One of another driver stands for an exchange, which may have given the device nodes other numbers
        assert module(fleet, "cdi_spec")["applied"] == [GENERATE, LINK][:2 if "580.1" in stale else 1], stale
        assert fleet.say(HOST, "cat", SPEC) == fresh
    assert module(fleet, "cdi_spec")["changed"] is False


@pytest.mark.variation
def test_a_specification_from_before_the_device_nodes_is_renewed(fleet: Fleet) -> None:
    """As the toolkit's unit writes it at the boot after a power cut, when nobody has made the nodes of uvm yet."""
    fresh = fleet.say(HOST, "cat", SPEC)
    for node in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        assert "path: /dev/%s\n" % node in fresh
    shell(fleet, "rm /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset; systemctl restart nvidia-cdi-refresh")
    assert "nvidia-uvm" not in fleet.say(HOST, "cat", SPEC)
    verdict = module(fleet, "gpu_validation")
    assert "it lacks /dev/nvidia-uvm, /dev/nvidia-uvm-tools" in verdict["msg"]
    fleet.play("gpuops.nvidia.site")
    assert fleet.say(HOST, "cat", SPEC) == fresh
    assert not module(fleet, "gpu_validation").get("failed")


def test_a_library_that_came_later_makes_the_specification_stale(fleet: Fleet) -> None:
    fresh = fleet.say(HOST, "cat", SPEC)
    fleet.say(HOST, "sed", "-i", "/libnvidia-ptxjitcompiler/d", SPEC)
    assert "libnvidia-ptxjitcompiler" in module(fleet, "gpu_validation")["msg"]
    assert module(fleet, "cdi_spec")["applied"] == [GENERATE]
    assert fleet.say(HOST, "cat", SPEC) == fresh


def test_a_specification_from_before_the_toolkit_is_renewed(fleet: Fleet) -> None:
    shell(fleet, "cp -p /usr/bin/nvidia-ctk /usr/bin/copy && mv /usr/bin/copy /usr/bin/nvidia-ctk")
    done = module(fleet, "cdi_spec")
    assert done["applied"] == [GENERATE]
    assert "before container toolkit 1.20.1" in done["text"]
    assert module(fleet, "cdi_spec")["changed"] is False


@pytest.mark.variation
def test_names_by_index_alone_are_judged_alike(fleet: Fleet) -> None:
    fleet.lab.host(HOST).ssh(["sh", "-c", "cat > " + ENVIRONMENT],
                             feed="NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=index\n")
    fleet.say(HOST, "rm", SPEC)
    assert module(fleet, "cdi_spec")["applied"] == [GENERATE]
    assert devices(fleet) == []
    assert not module(fleet, "gpu_validation").get("failed")
    assert module(fleet, "cdi_spec")["changed"] is False
    fleet.say(HOST, "sed", "-i", 's/name: "1"/name: "7"/', SPEC)
    assert "it lacks 1" in module(fleet, "gpu_validation")["msg"]
    assert module(fleet, "cdi_spec")["applied"] == [GENERATE]
    shell(fleet, "rm %s %s" % (ENVIRONMENT, SPEC))
    assert module(fleet, "cdi_spec")["applied"] == [GENERATE]
    assert len(devices(fleet)) == 2


@pytest.mark.variation
def test_a_second_file_with_the_same_devices_is_named_and_left(fleet: Fleet) -> None:
    fleet.say(HOST, "cp", SPEC, "/run/cdi/copy.yaml")
    assert "copy.yaml" in module(fleet, "cdi_spec")["plan"]["notes"][0]
    verdict = module(fleet, "gpu_validation")
    assert verdict["failed"] and "copy.yaml" in verdict["msg"]
    assert module(fleet, "cdi_spec", remove_others=True)["applied"] == ["cdi/cdi.discard//var/run/cdi/copy.yaml"]
    assert not module(fleet, "gpu_validation").get("failed")


def test_a_unit_is_enabled_without_a_reload_of_systemd(fleet: Fleet) -> None:
    fleet.say(HOST, "systemctl", "disable", "nvidia-cdi-refresh.path")
    before = reloads(fleet)
    assert module(fleet, "cdi_spec")["applied"] == ["cdi/service.enable/nvidia-cdi-refresh.path"]
    assert reloads(fleet) == before
    assert fleet.say(HOST, "systemctl", "is-enabled", "nvidia-cdi-refresh.path") == "enabled"


def test_validation_asks_the_daemon_and_not_the_file(fleet: Fleet) -> None:
    assert not module(fleet, "gpu_validation").get("failed")
    shell(fleet, "cp -p %s /root/with-the-handler" % CONTAINERD)
    assert module(fleet, "container_runtime", state="absent")["changed"] is True
    # Older than the daemon, so that nothing but the daemon's own word tells that it does not know the file
    shell(fleet, "cp -p /root/with-the-handler %s; touch -d '1 hour ago' %s" % (CONTAINERD, CONTAINERD))
    verdict = module(fleet, "gpu_validation")
    assert verdict["failed"] and "handlers runc in effect" in verdict["msg"], verdict["msg"]
    fleet.say(HOST, "systemctl", "restart", "containerd")
    assert not module(fleet, "gpu_validation").get("failed")
    shell(fleet, "rm /root/with-the-handler")
    assert not module(fleet, "container_runtime").get("failed")


def test_after_a_mig_change_the_mig_devices_are_in_it(fleet: Fleet) -> None:
    before = reloads(fleet, MIG)
    shell(fleet, "nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 14,14,19 -C", MIG)
    made = [word.rstrip(")") for word in fleet.say(MIG, "nvidia-smi", "-L").split() if word.startswith("MIG-")]
    assert len(made) == 3
    assert made[0] in module(fleet, "gpu_validation", MIG)["msg"]
    assert module(fleet, "cdi_spec", MIG)["applied"] == [GENERATE]
    assert set(made) < set(devices(fleet, MIG))
    assert len(devices(fleet, MIG)) == 4
    assert linked(fleet, MIG) == nodes(fleet, MIG) and any("nvidia-cap" in node for node in nodes(fleet, MIG))
    assert not module(fleet, "gpu_validation", MIG).get("failed")
    assert module(fleet, "cdi_spec", MIG)["changed"] is False

    shell(fleet, "nvidia-smi -i 1 -mig 1 && nvidia-smi mig -i 1 -cgi 9 -C", MIG)
    assert module(fleet, "cdi_spec", MIG)["applied"] == [GENERATE]
    assert len(devices(fleet, MIG)) == 4 and not [name for name in devices(fleet, MIG) if name.startswith("GPU-")]
    assert not module(fleet, "gpu_validation", MIG).get("failed")
    assert reloads(fleet, MIG) == before


def test_gpus_in_mig_mode_without_devices_are_waited_for(fleet: Fleet) -> None:
    shell(fleet, "nvidia-smi mig -dci; nvidia-smi mig -dgi; rm " + SPEC, MIG)
    waiting = module(fleet, "cdi_spec", MIG)
    assert waiting["changed"] is False and "waits for MIG devices" in waiting["plan"]["notes"][-1]
    shell(fleet, "nvidia-smi mig -i 0 -cgi 9,9 -C; nvidia-smi -i 1 -mig 0", MIG)
    assert module(fleet, "cdi_spec", MIG)["applied"] == [GENERATE]
    assert len(devices(fleet, MIG)) == 3


def test_after_a_boot_it_describes_what_is_left(fleet: Fleet) -> None:
    """Ampere keeps the MIG mode over a power cycle, and no board keeps its MIG devices."""
    fleet.lab.reboot(MIG)
    shell(fleet, "systemctl is-system-running --wait", MIG)
    order = fleet.say(MIG, "systemctl", "show", "nvidia-cdi-refresh.service", "--property", "After")
    assert "gpuops-nvidia-devices.service" in order
    assert devices(fleet, MIG) == shell(fleet, "nvidia-smi --query-gpu=uuid --format=csv,noheader -i 1", MIG).split()
    assert linked(fleet, MIG) == nodes(fleet, MIG)
    assert module(fleet, "cdi_spec", MIG)["changed"] is False
    assert not module(fleet, "gpu_validation", MIG).get("failed")


# What containerd finds at its start: the specification itself is written anew by the toolkit's unit later
WITNESS = "/run/seen-by-containerd.yaml"
DROP_IN = "/etc/systemd/system/containerd.service.d/witness.conf"
OURS = "gpuops-nvidia-cdi.service"


@pytest.fixture
def witness(fleet: Fleet) -> Iterator[None]:
    shell(fleet, "mkdir -p %s" % DROP_IN.rpartition("/")[0])
    fleet.lab.host(HOST).ssh(["sh", "-c", "cat > " + DROP_IN],
                             feed="[Service]\nExecStartPre=-/bin/cp %s %s\n" % (SPEC, WITNESS))
    yield
    shell(fleet, "rm -r %s" % DROP_IN.rpartition("/")[0])


def booted(fleet: Fleet) -> str:
    fleet.lab.reboot(HOST)
    return shell(fleet, "systemctl is-system-running --wait")


def moment(fleet: Fleet, unit: str, name: str) -> int:
    """Microseconds since the boot, 0 for never."""
    return int(fleet.say(HOST, "systemctl", "show", unit, "--property", name, "--value"))


def in_journal(fleet: Fleet, *words: str) -> List[int]:
    """Lines of the boot's journal in which systemd says these words."""
    lines = shell(fleet, "journalctl -b _PID=1 --output cat").splitlines()
    return [next(number for number, line in enumerate(lines) if line.startswith(each)) for each in words]


def test_at_a_boot_nodes_have_the_minors_that_the_driver_gave(fleet: Fleet, witness: None) -> None:
    directory = fleet.lab.host(HOST).silicon
    with silicon.board_file.opened(directory) as board:
        board.set("gpu.1.minor", 10)
    assert booted(fleet) == "running"
    assert {"/dev/nvidia0", "/dev/nvidia10"} <= set(nodes(fleet)) and "/dev/nvidia1" not in nodes(fleet)
    assert "path: /dev/nvidia10\n" in fleet.say(HOST, "cat", WITNESS)
    assert linked(fleet) == nodes(fleet)
    assert module(fleet, "gpu_driver_activation")["changed"] is False
    assert module(fleet, "cdi_spec")["changed"] is False
    assert not module(fleet, "gpu_validation").get("failed")
    with silicon.board_file.opened(directory) as board:
        board.set("gpu.1.minor", 1)
    assert booted(fleet) == "running"


def test_at_a_boot_the_specification_is_there_before_containers_start(fleet: Fleet, witness: None) -> None:
    """The toolkit's own unit comes after multi-user.target, and writes the same once more."""
    fresh = fleet.say(HOST, "cat", SPEC)
    before = booted(fleet)
    assert before == "running"
    finished, containerd, toolkits = in_journal(
        fleet, "Finished %s" % OURS, "Starting containerd.service", "Starting nvidia-cdi-refresh.service")
    assert finished < containerd and finished < toolkits
    assert moment(fleet, "nvidia-cdi-refresh.service", "ExecMainExitTimestampMonotonic") > \
        moment(fleet, "containerd.service", "ActiveEnterTimestampMonotonic")
    assert fleet.say(HOST, "cat", WITNESS) == fleet.say(HOST, "cat", SPEC) == fresh
    assert module(fleet, "cdi_spec")["changed"] is False


@pytest.mark.variation
def test_at_a_boot_a_masked_unit_of_the_toolkit_is_not_missed(fleet: Fleet, witness: None) -> None:
    fresh = fleet.say(HOST, "cat", SPEC)
    fleet.say(HOST, "systemctl", "mask", "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
    assert module(fleet, "cdi_spec")["changed"] is False
    assert booted(fleet) == "running"
    assert fleet.say(HOST, "cat", WITNESS) == fleet.say(HOST, "cat", SPEC) == fresh
    assert module(fleet, "cdi_spec")["changed"] is False
    fleet.say(HOST, "systemctl", "unmask", "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
    assert module(fleet, "cdi_spec")["applied"] == ["cdi/service.start/nvidia-cdi-refresh.path"]


@pytest.mark.variation
def test_at_a_boot_the_module_may_have_debians_name(fleet: Fleet, witness: None) -> None:
    """With nvidia-current-open.ko, which the toolkit's unit does not take for a driver."""
    fresh = fleet.say(HOST, "cat", SPEC)
    directory = "/usr/lib/modules/$(uname -r)/updates/dkms"
    shell(fleet, "cd %s && mv nvidia.ko nvidia-current-open.ko && echo 'alias nvidia nvidia-current-open' > "
                 "/etc/modprobe.d/debian.conf && depmod" % directory)
    assert booted(fleet) == "running"
    assert fleet.say(HOST, "systemctl", "show", "nvidia-cdi-refresh.service", "--property", "Result", "--value") == \
        "exec-condition"
    assert fleet.say(HOST, "cat", WITNESS) == fleet.say(HOST, "cat", SPEC) == fresh
    shell(fleet, "cd %s && mv nvidia-current-open.ko nvidia.ko && rm /etc/modprobe.d/debian.conf && depmod" % directory)
    assert module(fleet, "cdi_spec")["changed"] is False


def test_a_boot_goes_on_without_a_specification(fleet: Fleet, witness: None) -> None:
    shell(fleet, "mv /usr/bin/nvidia-ctk /root")
    assert booted(fleet) == "degraded"
    assert fleet.say(HOST, "systemctl", "is-failed", OURS) == "failed"
    assert fleet.say(HOST, "systemctl", "is-active", "containerd") == "active"
    shell(fleet, "mv /root/nvidia-ctk /usr/bin; systemctl reset-failed")
    assert GENERATE in module(fleet, "cdi_spec")["applied"]
    assert linked(fleet) == nodes(fleet)


@pytest.mark.variation
def test_a_toolkit_without_units_has_ours_and_it_is_right_after_a_boot(fleet: Fleet) -> None:
    shell(fleet, "systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service;"
                 " mkdir /root/units; mv $(find /lib/systemd/system -name 'nvidia-cdi-refresh.*') /root/units;"
                 " systemctl daemon-reload")
    assert module(fleet, "cdi_spec")["changed"] is False
    fresh = fleet.say(HOST, "cat", SPEC)
    assert booted(fleet) == "running"
    assert fleet.say(HOST, "systemctl", "show", OURS, "--property", "Result") == "Result=success"
    assert fleet.say(HOST, "cat", SPEC) == fresh
    assert linked(fleet) == nodes(fleet)
    assert module(fleet, "cdi_spec")["changed"] is False
    assert not module(fleet, "gpu_validation").get("failed")
    shell(fleet, "mv /root/units/* /lib/systemd/system; rmdir /root/units; systemctl daemon-reload")
    assert module(fleet, "cdi_spec")["applied"] == [
        "cdi/service.enable/nvidia-cdi-refresh.path", "cdi/service.start/nvidia-cdi-refresh.path",
        "cdi/service.enable/nvidia-cdi-refresh.service"]


@pytest.mark.variation
def test_a_specification_is_stale_after_the_exchange_of_the_driver(fleet: Fleet) -> None:
    fleet.say(HOST, "systemctl", "stop", "nvidia-cdi-refresh.path")
    exchange = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.gpu_driver", "tasks_from": part}}
                for part in ("main", "activate")]
    played = fleet.tasks(HOST, exchange, gpu_driver_version=OTHER_DRIVER)
    assert played.code == 0, played.failures()
    told = module(fleet, "gpu_validation")["msg"]
    assert "cdi_spec" in told and "is stale" in told
    assert GENERATE in module(fleet, "cdi_spec")["applied"]
    assert "libcuda.so." + OTHER_DRIVER in fleet.say(HOST, "cat", SPEC)
    assert linked(fleet) == nodes(fleet)
    assert not module(fleet, "gpu_validation").get("failed")


@pytest.mark.variation
def test_names_that_the_refresh_unit_is_told_to_write_are_ours_too(fleet: Fleet) -> None:
    fleet.lab.host(HOST).ssh(["sh", "-c", "cat > " + ENVIRONMENT],
                             feed="NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES=uuid\n")
    fleet.say(HOST, "rm", SPEC)
    assert not module(fleet, "cdi_spec").get("failed")
    names = fleet.say(HOST, "nvidia-ctk", "--quiet", "cdi", "list").split()
    assert "nvidia.com/gpu=0" not in names
    assert len(devices(fleet)) == 2


@pytest.mark.variation
def test_a_leftover_in_the_other_directory_goes_when_asked(fleet: Fleet) -> None:
    shell(fleet, "mkdir -p /etc/cdi; sed s/GPU-/GPU-9/ %s > %s" % (SPEC, LEFTOVER))
    assert LEFTOVER in [kept["subject"] for kept in module(fleet, "cdi_spec")["plan"]["kept"]]
    assert module(fleet, "cdi_spec", remove_others=True)["applied"] == ["cdi/file.remove/" + LEFTOVER]
    assert shell(fleet, "ls " + LEFTOVER) == ""


@pytest.mark.variation
def test_uninstall_leaves_nothing_behind(fleet: Fleet) -> None:
    assert fleet.say(HOST, "ls", "/run/nvidia/validations") == "driver-ready\ntoolkit-ready"
    before = reloads(fleet)
    assert "cdi/links.remove//dev/char" in module(fleet, "cdi_spec", state="absent")["applied"]
    assert reloads(fleet) == before
    assert fleet.say(HOST, "ls", LEFTOVER) == LEFTOVER
    fleet.play("gpuops.nvidia.uninstall", gpu_serial=2)
    for host in (HOST, MIG):
        assert shell(fleet, "ls -d /run/nvidia /run/cdi/*; find /dev/char -lname '*nvidia*';"
                            " find /etc/systemd /etc/udev -name 'gpuops-nvidia*' -o -name '*gpuops-nvidia.rules'",
                     host) == ""
        assert fleet.say(host, "systemctl", "is-system-running") == "running"
