# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.fabric_health import decoded
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import (
    ComputeInstance,
    GpuInstance,
    Mig,
    Profile,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading, _understood
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import (
    CHAIN,
    Check,
    Evidence,
    run_chain,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.devices import devices_to_prove
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof, Wrong
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import (
    allocatable,
    pod_got_its_device,
    probe_pod,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.verdict import (
    raise_if_unhealthy,
    remove_status_files,
    write_status_files,
)

VERSION = "580.178.04"
ADDRESSES = ("0000:07:00.0", "0000:0f:00.0")


def gpu(index: int, **changes: Any) -> NvmlGpu:
    return replace(
        NvmlGpu(index=index, uuid="GPU-%d" % index, name="NVIDIA A100-SXM4-80GB", pci_address=ADDRESSES[index],
                minor=index, fabric_state="completed", remap_pending=False, remap_failed=False, recovery_action=0),
        **changes,
    )


def proof(index: int, **changes: Any) -> Proof:
    return replace(Proof(Device("GPU-%d" % index, "GPU %d" % index), board="NVIDIA A100-SXM4-80GB", multiprocessors=108,
                         seen=108), **changes)


def evidence(**changes: Any) -> Evidence:
    """A healthy host with two GPUs and NVSwitches."""
    whole = Evidence(
        facts=HostFacts(
            hostname="h", gpus=tuple(Gpu(address, "20b2") for address in ADDRESSES), nvswitches=6,
            fabric="fabric_manager",
            driver_loaded=VERSION, driver_installed=VERSION, driver_userspace=VERSION,
        ),
        nvml=NvmlReading(driver_version=VERSION, gpus=(gpu(0), gpu(1))),
        device_nodes=("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"),
        cdi_spec="/var/run/cdi/nvidia.yaml",
        cdi_devices=2,
        cdi_version=VERSION,
        runtime="containerd 1.7.24",
        handlers=("runc", "nvidia"),
        handler="nvidia",
        expected_gpus=2,
        proofs=(proof(0), proof(1)),
    )
    facts = {name: changes.pop(name) for name in list(changes) if hasattr(whole.facts, name)}
    return replace(whole, facts=whole.facts.but(**facts), **changes)


NO_STATE = NvmlReading(gpus=(gpu(0, fabric_state="not_supported"), gpu(1, fabric_state="not_supported")))


def healthy(checks: Tuple[Check, ...]) -> bool:
    return all(check.status == "passed" for check in checks)


def verdicts(seen: Evidence) -> Dict[str, str]:
    return {check.name: check.status for check in run_chain(seen)}


def test_a_healthy_host_passes_everything() -> None:
    checks = run_chain(evidence())
    assert healthy(checks) and len(checks) == len(CHAIN)
    raise_if_unhealthy(checks, "h")


@pytest.mark.parametrize(
    "failing, changes",
    [
        ("gpus_on_bus", {"gpus": ()}),
        ("gpus_on_bus", {"expected_gpus": 8}),
        ("driver_versions", {"driver_loaded": ""}),
        ("driver_versions", {"driver_loaded": "595.91.07"}),
        ("driver_versions", {"driver_userspace": "595.91.07"}),
        ("gpus_answer", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, error="GPU is lost")))}),
        ("gpus_answer", {"nvml": NvmlReading(gpus=(gpu(0),))}),
        ("gpus_answer", {"nvml": NvmlReading(error="Driver/library version mismatch")}),
        ("memory_health", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, remap_failed=True)))}),
        ("memory_health", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, sram_exceeded=True)))}),
        *(("recovery", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, recovery_action=action)))}) for action in range(1, 9)),
        ("compute", {"proofs": (proof(0), proof(1, wrong=(Wrong("prove", "multiprocessor 3", "00", "01"),)))}),
        ("compute", {"proofs": (proof(0), proof(1, call="cuLaunchKernel", hung=60.0))}),
        ("compute", {"proofs": (proof(0), proof(1, call="cuCtxSynchronize", code=214))}),
        ("compute", {"proofs": (proof(0), proof(1, rates={"memory": 300.0}))}),
        ("fabric", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, fabric_state="in_progress")))}),
        ("fabric", {"nvml": NvmlReading(gpus=(gpu(0), gpu(1, fabric_status=999)))}),
        ("fabric", {"nvml": NO_STATE, "fabric_manager": "inactive"}),
        ("fabric", {"fabric": "", "nvml": NvmlReading(gpus=(gpu(0), gpu(1, fabric_state="in_progress")))}),
        ("gpus_answer", {"nvml": NvmlReading(gpus=(gpu(0),), hung="nvmlDeviceGetMemoryInfo of GPU 1", error="hangs")}),
        ("device_nodes", {"device_nodes": ("nvidia0", "nvidiactl", "nvidia-uvm")}),
        ("cdi_spec", {"cdi_spec": ""}),
        ("cdi_spec", {"cdi_stale": ("it lacks GPU-1",)}),
        ("cdi_spec", {"cdi_conflicts": ("/var/run/cdi/copy.yaml",)}),
        ("runtime_handler", {"handlers": ("runc",)}),
        ("runtime_handler", {"runtime": ""}),
    ],
)
def test_each_fault_fails_its_check_with_a_remedy(failing: str, changes: Dict[str, Any]) -> None:
    checks = {check.name: check for check in run_chain(evidence(**changes))}
    assert checks[failing].status == "failed"
    assert checks[failing].remedy and checks[failing].evidence
    with pytest.raises(GpuOpsError, match=failing):
        raise_if_unhealthy(tuple(checks.values()), "h")


@pytest.mark.parametrize("changes, remedy", [
    ({"boot_kernel": "6.2", "driver_boots": VERSION}, "reboot into kernel 6.2, which boots next and has the module"),
    ({"boot_kernel": "6.2"}, "build the module for kernel 6.2, which boots next (gpu_driver), then reboot"),
    ({"boot_kernel": "6.1"}, "build the module for kernel 6.1 (gpu_driver)"),
    ({"boot_kernel": "", "driver_userspace": "595.91.07"}, "build the module for kernel 6.1 (gpu_driver)"),
])
def test_a_driver_without_its_files_is_not_to_be_reloaded(changes: Dict[str, Any], remedy: str) -> None:
    """The running kernel's package is gone and its driver still loaded: nothing could be loaded again."""
    seen = evidence(driver_installed="", kernel="6.1", **changes)
    check = next(check for check in run_chain(seen) if check.name == "driver_versions")
    assert (check.status, check.remedy[:len(remedy)]) == ("failed", remedy)
    assert "reload" not in check.remedy


def test_the_other_module_of_the_same_version_is_not_the_installed_one() -> None:
    kinds = {"module_loaded": "proprietary", "module_installed": "open"}
    check = next(check for check in run_chain(evidence(**kinds)) if check.name == "driver_versions")
    assert check.status == "failed" and "reload the driver" in check.remedy
    assert "loaded %s (proprietary), module on disk %s (open)" % (VERSION, VERSION) in check.evidence
    assert healthy(run_chain(evidence(module_loaded="open", module_installed="open")))


def test_a_lost_gpu_is_named_with_its_address() -> None:
    seen = evidence(nvml=NvmlReading(gpus=(gpu(0), gpu(1, error="GPU is lost"))))
    check = next(check for check in run_chain(seen) if check.name == "gpus_answer")
    assert "GPU 1 at 0000:0f:00.0 (GPU is lost)" in check.evidence
    assert "1 of 2 GPUs answer" in check.evidence
    assert "reset" in check.remedy


def test_what_needs_nvml_is_not_judged_without_it() -> None:
    assert verdicts(evidence(nvml=NvmlReading(error="no driver")))["fabric"] == "skipped"


def test_status_files_follow_the_checks(tmp_path: Any) -> None:
    host = Host(str(tmp_path))
    assert len(write_status_files(host, run_chain(evidence()))) == 2
    assert write_status_files(host, run_chain(evidence())) == []
    assert write_status_files(host, run_chain(evidence(handlers=()))) == ["/run/nvidia/validations/toolkit-ready"]
    assert host.list("/run/nvidia/validations") == ["driver-ready"]


def test_allocatable_names_both_numbers() -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "7"}}}
    check = allocatable(node, {"nvidia.com/gpu": 8}, False)
    assert (check.status, "nvidia.com/gpu: 7 allocatable, 8 expected" in check.evidence) == ("failed", True)
    assert allocatable(node, {"nvidia.com/gpu": 7}, False).status == "passed"


@pytest.mark.parametrize(
    "phase, code, message, status",
    [
        ("Succeeded", 0, "nvidia3 ", "passed"),
        ("Succeeded", 0, "nvidia0 nvidia1 ", "failed"),
        ("Failed", 1, "", "failed"),
        ("Pending", None, "", "failed"),
    ],
)
def test_the_pod_must_see_exactly_one_gpu(phase: str, code: Any, message: str, status: str) -> None:
    states = [] if code is None else [
        {"name": "probe", "state": {"terminated": {"exitCode": code, "message": message}}}]
    pod = {"status": {"phase": phase, "containerStatuses": states}}
    assert pod_got_its_device(pod, 3.0, False).status == status


def test_the_probe_asks_for_one_device_without_privileges() -> None:
    pod = probe_pod("p", "default", "n", "nvidia.com/gpu", "busybox:1", "nvidia", 90)
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["activeDeadlineSeconds"] == 90
    assert "runtimeClassName" not in probe_pod("p", "d", "n", "r", "i", None, 90)["spec"]
    startup = {"key": "gpuops.nvidia.com/not-ready", "operator": "Exists"}
    assert probe_pod("p", "d", "n", "r", "i", None, 90, [startup])["spec"]["tolerations"][-1] == startup


def test_only_status_files_of_ours_are_withdrawn(tmp_path: Any) -> None:
    host = Host(str(tmp_path))
    write_status_files(host, run_chain(evidence()))
    assert len(remove_status_files(host, check_mode=True)) == 2
    assert host.list("/run/nvidia/validations") == ["driver-ready", "toolkit-ready"]
    assert len(remove_status_files(host, check_mode=False)) == 2
    assert not host.exists("/run/nvidia")
    host.write("/run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=false\n")
    assert remove_status_files(host, check_mode=False) == []
    assert host.exists("/run/nvidia/validations/driver-ready")


def test_a_second_file_with_the_same_devices_is_named() -> None:
    seen = evidence(cdi_conflicts=("/var/run/cdi/copy.yaml",))
    check = next(check for check in run_chain(seen) if check.name == "cdi_spec")
    assert (check.status, "/var/run/cdi/copy.yaml" in check.evidence) == ("failed", True)


def test_a_plugin_that_keeps_a_mended_gpu_back_is_to_be_restarted() -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "7"}}}
    assert "delete the device plugin's pod" in allocatable(node, {"nvidia.com/gpu": 8}, False).remedy


def test_a_runtime_that_is_older_than_its_files_is_told_apart() -> None:
    def judged(older: bool) -> str:
        checks = run_chain(evidence(handlers=("runc",), runtime_older=older))
        return next(check for check in checks if check.name == "runtime_handler").evidence

    assert "older than its configuration" in judged(True)
    assert "older" not in judged(False)


def check_named(name: str, seen: Evidence) -> Check:
    return next(check for check in run_chain(seen) if check.name == name)


@pytest.mark.parametrize("board, fabric, remedy", [
    ("2901", "fabric_manager_nvlsm", "nvlsm"), ("2330", "fabric_manager", "nvidia-fabricmanager runs"),
    ("2941", "", "NMX"), ("2901", "", "virtual machine"),
])
def test_a_gpu_that_waits_for_its_fabric_fails_on_every_board(board: str, fabric: str, remedy: str) -> None:
    waiting = NvmlReading(gpus=(gpu(0, fabric_state="in_progress"), gpu(1, fabric_state="in_progress")))
    check = check_named("fabric", evidence(
        nvml=waiting, fabric=fabric, nvswitches=0, gpus=tuple(Gpu(address, board) for address in ADDRESSES)))
    assert (check.status, remedy in check.remedy) == ("failed", True), check
    assert "GPU 0 (0000:07:00.0): in_progress" in check.evidence


def test_gpus_that_are_not_registered_are_counted_and_named() -> None:
    half = NvmlReading(gpus=(gpu(0), gpu(1, fabric_state="in_progress", fabric_health=decoded(0x10))))
    check = check_named("fabric", evidence(nvml=half))
    assert check.evidence == ("1 of 2 GPUs are not registered with their fabric: "
                              "GPU 1 (0000:0f:00.0): in_progress, status 0, route unhealthy")


def test_a_fabric_that_is_not_healthy_fails_in_words_with_its_remedy() -> None:
    sick = NvmlReading(gpus=(gpu(0, fabric_health=decoded(0x411)), gpu(1, fabric_health=decoded(0x1AA))))
    check = check_named("fabric", evidence(nvml=sick))
    assert (check.status, check.evidence) == ("failed", (
        "GPU 0 (0000:07:00.0): route unhealthy; "
        "GPU 0 (0000:07:00.0): incorrect configuration: no partition"))
    assert "nvlink -e" in check.remedy and "chassis" in check.remedy


def test_a_fabric_that_works_on_with_less_passes_with_a_word() -> None:
    less = NvmlReading(gpus=(gpu(0, fabric_health=decoded(0x1A9)), gpu(1, fabric_health=decoded(0x1AA))))
    check = check_named("fabric", evidence(nvml=less))
    assert (check.status, check.evidence) == (
        "passed", "no GPU waits for the fabric; GPU 0 (0000:07:00.0): bandwidth degraded")


def test_a_board_that_reports_no_fabric_is_judged_by_its_fabric_manager() -> None:
    assert check_named("fabric", evidence(nvml=NO_STATE, fabric_manager="active")).status == "passed"
    assert check_named("fabric", evidence(nvml=NO_STATE, fabric="", nvswitches=0)).status == "passed"


def test_a_driver_that_hangs_is_told_with_its_call() -> None:
    reading = NvmlReading(hung="nvmlInit", error="nvmlInit had not answered after 60 s")
    check = check_named("gpus_answer", evidence(nvml=reading))
    assert "nvmlInit had not answered after 60 s" in check.evidence and "reboot" in check.remedy


def test_a_driver_that_answers_slowly_is_not_told_to_be_rebooted() -> None:
    reading = _understood([{"call": "nvmlDeviceGetName of GPU 3"}], 1.0, 60.0, 0)
    check = check_named("gpus_answer", evidence(nvml=reading))
    assert check.status == "failed" and "nvidia-persistenced" in check.remedy


def test_a_gpu_that_the_driver_was_told_to_leave_out_is_not_missed() -> None:
    check = check_named("gpus_answer", evidence(nvml=NvmlReading(gpus=(gpu(0),), excluded=(ADDRESSES[1],))))
    assert check.status == "passed"
    assert check.evidence == "NVML sees all 1 GPUs of the PCI bus, without %s, left out by the driver's options" % (
        ADDRESSES[1])


def test_gpus_of_others_are_counted_nowhere() -> None:
    others = (Gpu("0000:65:00.0", "128b", "display"), Gpu("0000:66:00.0", "20b2", "passed_through"))
    assert healthy(run_chain(evidence(other_gpus=others)))
    check = check_named("gpus_on_bus", evidence(gpus=(), other_gpus=others[1:]))
    assert "0000:66:00.0 (10de:20b2) is passed through" in check.evidence


def test_what_is_contained_lets_work_go_on() -> None:
    """NVIDIA's A100 GPU Memory Error Management: what waits for a reset, and what was corrected by it, hurts nobody."""
    sick = evidence(nvml=NvmlReading(gpus=(gpu(0, remap_pending=True), gpu(1, ecc_uncorrected=3))))
    check = check_named("memory_health", sick)
    assert check.status == "passed"
    assert check.evidence == ("GPU 0 (0000:07:00.0): a row or a page of memory is taken out of use at the next reset; "
                              "GPU 1 (0000:0f:00.0): 3 uncorrected ECC errors since the driver was loaded")


def divided(index: int, **changes: Any) -> NvmlGpu:
    compute = ComputeInstance(0, 0, 1, "MIG-1", processes=(7,)), ComputeInstance(1, 1, 1, "MIG-2")
    profile = Profile(19, "1g.10gb", "", 1, 9856, 7, 1, (0, 1))
    return gpu(index, memory_mib=81920, remap_pending=None, remap_failed=None, mig=Mig(
        True, True, (profile,), (GpuInstance(3, 19, 0, 1, compute),), ("MIG-1", "MIG-2")), **changes)


def test_what_cannot_be_read_is_unknown_and_neither_takes_out_nor_clears(tmp_path: Any) -> None:
    seen = evidence(nvml=NvmlReading(gpus=(gpu(0), divided(1))))
    checks = run_chain(seen)
    check = next(check for check in checks if check.name == "memory_health")
    assert (check.status, "GPU 1 (0000:0f:00.0)" in check.evidence) == ("unknown", True)
    raise_if_unhealthy(checks, "h")
    host = Host(str(tmp_path))
    assert len(write_status_files(host, checks)) == 2
    failing = run_chain(evidence(nvml=NvmlReading(gpus=(gpu(0), gpu(1, remap_failed=True)))))
    assert write_status_files(host, failing) == ["/run/nvidia/validations/driver-ready"]


def test_that_nobody_knows_whether_devices_compute_brings_no_status_file(tmp_path: Any) -> None:
    host, untold = Host(str(tmp_path)), evidence(proofs=(proof(0), proof(1, seen=107)))
    assert check_named("compute", untold).status == "unknown"
    assert write_status_files(host, run_chain(untold)) == ["/run/nvidia/validations/toolkit-ready"]
    write_status_files(host, run_chain(evidence()))
    assert write_status_files(host, run_chain(untold)) == [], "what is there stays"


def test_a_driver_that_does_not_tell_its_recovery_action_is_unknown() -> None:
    check = check_named("recovery", evidence(nvml=NvmlReading(gpus=(gpu(0), gpu(1, recovery_action=None)))))
    assert check.status == "unknown"


def test_devices_in_use_are_left_alone_and_named() -> None:
    used = proof(1, multiprocessors=0, seen=0, device=Device("GPU-1", "GPU 1", in_use=("pod ml/train-0",)))
    check = check_named("compute", evidence(proofs=(proof(0), used)))
    assert (check.status, check.evidence) == ("passed", "1 of 2 devices compute; GPU 1: in use by pod ml/train-0")
    check = check_named("compute", evidence(proofs=(used,)))
    assert (check.status, check.remedy) == ("skipped", "")


def test_computing_is_not_blamed_for_the_reason_of_another_check() -> None:
    check = check_named("compute", evidence(proofs=(), device_nodes=("nvidia0", "nvidia1", "nvidiactl")))
    assert (check.status, check.remedy) == ("skipped", "mend device_nodes first")
    assert check_named("compute", evidence(proofs=(), compute="none")).evidence == "not asked for"


def test_who_has_a_device_is_told_by_processes_and_by_what_pods_were_given() -> None:
    reading = NvmlReading(gpus=(gpu(0, processes=(9,)), divided(1)))
    found = devices_to_prove(reading, {9: "python (pid 9)", 7: "train (pid 7)"}, {"MIG-2": ["ml/infer"]})
    assert [(device.uuid, device.name, device.whole, device.in_use) for device in found] == [
        ("GPU-0", "GPU 0 (0000:07:00.0)", True, ("python (pid 9)",)),
        ("MIG-1", "1g.10gb 3/0 of GPU 1 (0000:0f:00.0)", False, ("train (pid 7)",)),
        ("MIG-2", "1g.10gb 3/1 of GPU 1 (0000:0f:00.0)", False, ("pod ml/infer",))]
