# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the pod of a validation runs, run as it is: the shell's words and the program, by nobody, on a simulated GPU."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import pytest
from simulated_board import SimulatedBoard

from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.carried import line_of, proof_in
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.in_container import lacking
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof, Wrong
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import (
    NOBODY,
    PROBE,
    pod_computed,
    pod_got_its_device,
    probe_pod,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.probe_program import probe_program

# Of a termination message, what the kubelet keeps
KEPT = 4096
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
needs_silicon = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


class Container:
    """A GPU with the driver's libraries, and a directory with the nodes that the runtime has made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.board = SimulatedBoard(directory, "v100", 1)
        self.log = directory / "termination-log"
        self.nodes = directory / "dev"
        self.nodes.mkdir()
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
            (self.nodes / name).touch()

    def ran(self, program: Optional[Sequence[str]] = None, **environment: str) -> Dict[str, Any]:
        """The pod, once what it runs has ended."""
        self.log.write_text("")
        self.log.chmod(0o666)
        script = PROBE.replace("/dev/termination-log", str(self.log)).replace("ls /dev ", "ls %s " % self.nodes)
        given = probe_program(0) if program is None else program
        ended = subprocess.run(
            ["/bin/sh", "-c", script, "probe", *given], cwd="/", check=False, timeout=120,
            env={"PATH": SYSTEM, "GPUSIM_DIR": str(self.board.directory), "LD_LIBRARY_PATH": str(self.board.libraries),
                 **environment}, **self.as_nobody())
        return {"status": {"phase": "Succeeded", "containerStatuses": [{"name": "probe", "state": {"terminated": {
            "exitCode": ended.returncode, "message": self.log.read_text()[-KEPT:]}}}]}}

    @staticmethod
    def as_nobody() -> Dict[str, Any]:
        if os.geteuid() != 0:
            return {}

        def become() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        return {"preexec_fn": become}

    def computed(self, program: Optional[Sequence[str]] = None, **environment: str) -> Check:
        pod = self.ran(program, **environment)
        assert pod_got_its_device(pod, 1.0, False).status == "passed", pod
        return pod_computed(pod, "quick", "an-image")


@pytest.fixture
def container() -> Iterator[Container]:
    # pytest's own directories are for their owner alone
    directory = Path(tempfile.mkdtemp(prefix="gpuops-probe-"))
    directory.chmod(0o755)
    yield Container(directory)
    shutil.rmtree(str(directory))


@needs_silicon
class TestInAContainer:
    def test_a_device_that_is_well_computes(self, container: Container) -> None:
        check = container.computed()
        assert (check.status, check.evidence) == (
            "passed", "80 multiprocessors compute; Tesla V100-SXM2-16GB"), check

    def test_a_library_that_is_not_there_is_named(self, container: Container) -> None:
        (container.board.libraries / "libcuda.so.1").unlink()
        check = container.computed()
        assert check.status == "failed" and "libcuda.so.1: cannot open shared object" in check.evidence, check
        assert "update-ldcache" in check.remedy

    def test_a_compiler_that_is_not_there_is_named(self, container: Container) -> None:
        (container.board.libraries / "libnvidia-ptxjitcompiler.so.1").unlink()
        check = container.computed()
        assert check.status == "failed" and "(221)" in check.evidence, check
        assert "libnvidia-ptxjitcompiler.so.1" in check.remedy and "cdi_spec" in check.remedy

    def test_a_library_of_another_version_than_the_module_is_the_specifications(self, container: Container) -> None:
        container.board.load("595.91.07")
        check = container.computed()
        assert check.status == "failed" and "(803)" in check.evidence and "cdi_spec" in check.remedy, check

    @pytest.mark.parametrize("code, remedy", [
        (999, "/dev/nvidia-uvm"), (34, "stub"), (101, "CUDA_VISIBLE_DEVICES"), (804, "cuda-compat")])
    def test_what_the_library_says_at_once_has_its_remedy(self, container: Container, code: int, remedy: str) -> None:
        container.board.fault("call", None, call="cuInit", code=code, times=0)
        check = container.computed()
        assert check.status == "failed" and "cuInit: " in check.evidence and "(%d)" % code in check.evidence, check
        assert remedy in check.remedy
        # Of this machine's own, which has no driver
        assert os.path.exists("/dev/nvidiactl") or "; the container has no /dev/nvidiactl, " in check.evidence, check

    def test_an_environment_that_switches_the_compiler_off_is_named(self, container: Container) -> None:
        """It is the container's own, as that of all pods may be."""
        check = container.computed(CUDA_DISABLE_JIT="1")
        assert check.status == "unknown" and "(223)" in check.evidence and "CUDA_DISABLE_JIT" in check.remedy, check

    def test_an_environment_that_hides_the_device_is_named(self, container: Container) -> None:
        check = container.computed(CUDA_VISIBLE_DEVICES="GPU-none")
        assert check.status == "failed" and "CUDA_VISIBLE_DEVICES" in check.remedy, check

    def test_a_wrong_multiprocessor_is_named(self, container: Container) -> None:
        container.board.fault("wrong-result", 0, sm=17)
        check = container.computed()
        assert check.status == "failed" and "prove at multiprocessor 17, " in check.evidence, check

    def test_a_multiprocessor_that_gets_no_work_is_no_proof(self, container: Container) -> None:
        container.board.fault("idle-sm", 0, sm=3)
        check = container.computed()
        assert (check.status, check.evidence) == ("unknown", "79 of 80 multiprocessors were seen to compute")

    def test_a_hang_is_the_finding_in_time(self, container: Container) -> None:
        container.board.fault("slow", 0, call="cuLaunchKernel", ms=3600 * 1000)
        begun = time.monotonic()
        check = container.computed()
        assert check.status == "failed" and check.evidence.startswith("cuLaunchKernel had not answered after 1"), check
        assert time.monotonic() - begun < 60

    def test_somebody_elses_device_is_in_use(self, container: Container) -> None:
        """Where replicas of one device are offered, others may compute on it."""
        container.board.fault("call", 0, call="cuMemAlloc_v2", code=2, times=0)
        check = container.computed()
        assert check.status == "skipped" and check.evidence.startswith("in use: cuMemAlloc_v2"), check

    def test_a_program_that_its_python_does_not_load_is_the_images_matter(self, container: Container) -> None:
        loader, _packed, *others = probe_program(0)
        check = container.computed([loader, "bm90aGluZw==", *others])
        assert check.status == "skipped" and "does not load the program" in check.evidence, check

    def test_an_image_without_python_still_shows_its_device(self, container: Container) -> None:
        programs = container.directory / "programs"
        programs.mkdir()
        for name in ("ls", "grep", "sort", "tr"):
            (programs / name).symlink_to(str(shutil.which(name, path=SYSTEM)))
        check = container.computed(PATH=str(programs))
        assert check.status == "skipped" and "an-image: it has no python3" in check.evidence
        assert "gpu_validation_pod_image" in check.remedy

    def test_a_python_that_ends_by_itself_tells_nothing_of_the_node(self, container: Container) -> None:
        check = container.computed(["raise SystemExit(3)"])
        assert (check.status, check.evidence) == ("unknown", "the pod said of its computing: python3 ended with 3")

    def test_without_a_program_it_only_shows_its_device(self, container: Container) -> None:
        pod = container.ran([])
        assert pod_got_its_device(pod, 1.0, False).status == "passed"
        assert container.log.read_text() == "nvidia0 \n"


# Two GPU instances, the second of which is shared by two compute instances, and the minors of their nodes
DIVIDED = {"gi1": 300, "gi1/ci0": 301, "gi2": 309, "gi2/ci0": 310, "gi2/ci1": 311}
WHOLE, CAP = ("nvidiactl", "nvidia-uvm", "nvidia3"), "nvidia-caps/nvidia-cap%d"


def given(root: Path, *nodes: str, divided: bool) -> Path:
    """A container with these nodes on a host whose GPU 3 is divided, or is not."""
    for name in nodes:
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).touch()
    for name, minor in DIVIDED.items() if divided else ():
        instance = root / "proc/driver/nvidia/capabilities/gpu3/mig" / name
        instance.mkdir(parents=True)
        (instance / "access").write_text("DeviceFileMinor: %d\nDeviceFileMode: 292\n" % minor)
    return root


@pytest.mark.parametrize("nodes", [(300, 301), (309, 311)])
def test_a_container_that_was_given_a_mig_device_lacks_nothing(tmp_path: Path, nodes: Sequence[int]) -> None:
    assert lacking(str(given(tmp_path, *WHOLE, *map(CAP.__mod__, nodes), divided=True))) == []
    assert lacking(str(given(tmp_path / "whole", *WHOLE, divided=False))) == []


@pytest.mark.parametrize("node, told", [
    ("nvidiactl", "/dev/nvidiactl"), ("nvidia-uvm", "/dev/nvidia-uvm"),
    ("nvidia3", "node of a GPU (/dev/nvidia0 or another)")])
def test_each_node_that_a_container_was_not_given_is_named(tmp_path: Path, node: str, told: str) -> None:
    there = [each for each in WHOLE if each != node]
    assert lacking(str(given(tmp_path, *there, divided=False))) == [told]


@pytest.mark.parametrize("node, told", [
    (301, "{0}300"), (309, "{0}310 or {0}311"),
    (1, "node of a MIG device ({0}300 with {0}301 or {0}309 with {0}310 or {0}309 with {0}311)")])
def test_each_node_of_a_mig_device_that_a_container_was_not_given_is_named(
    tmp_path: Path, node: int, told: str
) -> None:
    root = given(tmp_path, *WHOLE, CAP % node, divided=True)
    assert lacking(str(root)) == [told.format("/dev/nvidia-caps/nvidia-cap")]


def test_an_instance_of_which_the_driver_tells_nothing_is_not_said_to_lack(tmp_path: Path) -> None:
    root = given(tmp_path, *WHOLE, divided=True)
    for file in root.rglob("access"):
        file.write_text("")
    assert lacking(str(root)) == []


def test_what_is_handed_over_fits_into_an_argument() -> None:
    """execve(2): 128 KiB for each."""
    pod = probe_pod("p", "default", "n", "nvidia.com/gpu", "i", None, 90, program=probe_program(120))
    command: List[str] = pod["spec"]["containers"][0]["command"]
    assert max(map(len, command)) < 64 << 10 and command[-2:] == ["60", "120"]
    # Kubernetes puts variables in the place of these
    assert not any("$(" in word for word in command)


def test_a_board_that_is_wrong_all_over_fits_into_a_termination_message() -> None:
    wrong = tuple(Wrong("prove", "multiprocessor %d" % each, "12345678", "87654321") for each in range(264))
    proof = Proof(Device("", ""), board="NVIDIA H100", multiprocessors=132, seen=132, wrong=wrong,
                  call="cuLaunchKernel", code=700, error="é" * 5000, log='"\n' * 5000)
    line = line_of(proof, lacks=["/dev/nvidiactl", "/dev/nvidia-uvm"])
    assert len(line) < KEPT - 100
    found = proof_in(json.loads(line))
    assert found is not None and found.wrong[:2] == wrong[:2] and found.wrong[2].where == "262 more places"


@pytest.mark.parametrize("proof", [
    Proof(Device("", ""), board="NVIDIA H100", multiprocessors=132, seen=131, seconds=1.5, started=0.5),
    Proof(Device("", ""), call="cuInit", hung=60.0, left=7),
    Proof(Device("", ""), unstarted="Resource temporarily unavailable"),
    Proof(Device("", ""), multiprocessors=2, seen=2, wrong=(Wrong("copy", "byte 7", "01", "02"),))])
def test_what_was_found_arrives_as_it_was(proof: Proof) -> None:
    found = proof_in(json.loads(line_of(proof)))
    assert found is not None
    assert {**vars(found), "device": None} == {**vars(proof), "device": None}


@pytest.mark.parametrize("line", [
    "", "{", "[]", "7", "{}", '{"x": 1}', '{"seen": "many"}', '{"seen": 1, "wrong": 7}', '{"seen": 1, "wrong": [[]]}',
    '{"seen": 1, "wrong": [["prove"]]}', "Traceback (most recent call last):"])
def test_what_is_not_understood_is_unknown(line: str) -> None:
    pod = {"status": {"containerStatuses": [{"name": "probe", "state": {"terminated": {
        "exitCode": 0, "message": "nvidia0 \n" + line}}}]}}
    assert pod_computed(pod, "quick", "i").status == "unknown"


def test_a_library_that_is_mounted_and_not_found_is_told_with_its_file() -> None:
    line = '{"call": "libcuda.so.1", "error": "cannot open", "there": ["/usr/lib64/libcuda.so.580.126.09"]}'
    pod = {"status": {"containerStatuses": [{"name": "probe", "state": {"terminated": {
        "exitCode": 0, "message": "nvidia0 \n" + line}}}]}}
    check = pod_computed(pod, "quick", "i")
    assert check.status == "failed"
    assert "it has /usr/lib64/libcuda.so.580.126.09, which its loader does not find" in check.evidence
