# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The simulated NVML library, called through NVIDIA's own Python bindings, each time in a process of its own."""
from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from gpulab import silicon
from gpulab.cache import Workshop
from gpulab.parts.silicon import PARTS

VERSION = "580.126.09"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: file modes do not bind it, mounts do")

PRELUDE = """
import json, sys
from pynvml import *
def answer(value): print(json.dumps(value))
def error(call, *arguments):
    try:
        call(*arguments)
    except NVMLError as problem:
        return problem.value
    return 0
def instances(device):
    found = []
    for number in range(16):
        try:
            instance = nvmlDeviceGetGpuInstanceById(device, number)
        except NVMLError:
            continue
        found.append(nvmlGpuInstanceGetInfo(instance))
    return found
def create(device, *profiles):
    starts = []
    for profile in profiles:
        info = nvmlGpuInstanceGetInfo(nvmlDeviceCreateGpuInstance(device, profile))
        starts.append(info.placement.start)
    return starts
"""
OPEN = "nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)\n"


@pytest.fixture(scope="session")
def built() -> Path:
    return Workshop(PARTS).build("silicon")


class Silicon:
    """A board in a directory, and the library installed under a version beside it."""

    def __init__(self, built: Path, directory: Path) -> None:
        self.built = built
        self.directory = directory / "host" / "silicon"
        self.libraries = directory / "lib"
        self.libraries.mkdir()
        self.install(VERSION)

    def install(self, version: str) -> None:
        """What a driver package does: the library under its version, and the link that programs load."""
        target = self.libraries / ("libnvidia-ml.so.%s" % version)
        shutil.copyfile(str(self.built / "pkg" / "libnvidia-ml.so"), str(target))
        link = self.libraries / "libnvidia-ml.so.1"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(target.name)

    def board(self, profile: str, gpus: int = 1) -> "Silicon":
        silicon.write_board(self.directory, profile, gpus, seed="test")
        self.load(VERSION)
        return self

    def load(self, version: str) -> None:
        with silicon.board_file.opened(self.directory) as board:
            board.remove("module")
            if version:
                board.set("module.nvidia.version", version)

    def environment(self) -> Dict[str, str]:
        return dict(os.environ, GPUSIM_DIR=str(self.directory), LD_LIBRARY_PATH=str(self.libraries))

    def start(self, script: str) -> "subprocess.Popen[str]":
        source = PRELUDE + textwrap.dedent(script)
        return subprocess.Popen([sys.executable, "-c", source], env=self.environment(), stdout=subprocess.PIPE,
                                stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def python(self, script: str) -> Any:
        process = self.start(script)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return json.loads(out.splitlines()[-1])

    def smi(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([str(self.built / "pkg" / "nvidia-smi"), *arguments], env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)

    def compute_modes(self) -> List[str]:
        return self.smi("--query-gpu=compute_mode", "--format=csv,noheader").stdout.split()

    def log(self) -> List[str]:
        return (self.directory / "calls.log").read_text().splitlines()


@pytest.fixture
def simulated(built: Path, tmp_path: Path) -> Silicon:
    return Silicon(built, tmp_path)


def test_every_name_of_the_interface_is_there(built: Path) -> None:
    library = ctypes.CDLL(str(built / "pkg" / "libnvidia-ml.so"))
    names = (silicon.SILICON_SOURCES / "nvml-names.txt").read_text().split()
    assert len(names) > 400
    assert [name for name in names if not hasattr(library, name)] == []


@pytest.mark.parametrize("profile", silicon.PROFILES)
def test_identity_of_each_board(simulated: Silicon, profile: str) -> None:
    table = silicon.profile_table(profile)
    gpus = min(2, len(table["slots"]))
    seen = simulated.board(profile, gpus).python("""
        nvmlInit()
        gpu = nvmlDeviceGetHandleByIndex(nvmlDeviceGetCount() - 1)
        pci = nvmlDeviceGetPciInfo(gpu)
        answer(dict(count=nvmlDeviceGetCount(), name=nvmlDeviceGetName(gpu), uuid=nvmlDeviceGetUUID(gpu),
                    memory=nvmlDeviceGetMemoryInfo(gpu).total,
                    reserved=nvmlDeviceGetMemoryInfo(gpu, nvmlMemory_v2).reserved,
                    device=pci.pciDeviceId, subsystem=pci.pciSubSystemId, bus=pci.busId, capability=
                    nvmlDeviceGetCudaComputeCapability(gpu), minor=nvmlDeviceGetMinorNumber(gpu),
                    driver=nvmlSystemGetDriverVersion(), cuda=nvmlSystemGetCudaDriverVersion_v2()))
    """)
    gpu = table["gpu"]
    assert seen["count"] == gpus
    assert seen["name"] == gpu["name"]
    assert seen["memory"] == gpu["memory_mib"] << 20
    assert seen["reserved"] == gpu["reserved_mib"] << 20
    assert seen["device"] == int(gpu["pci_device"], 16) << 16 | 0x10de
    assert seen["subsystem"] == int(gpu["pci_subsystem"], 16)
    assert seen["bus"].lower().endswith(table["slots"][gpus - 1])
    assert ".".join(str(part) for part in seen["capability"]) == gpu["compute_capability"]
    assert (seen["minor"], seen["driver"], seen["cuda"]) == (gpus - 1, VERSION, 13000)
    assert seen["uuid"].startswith("GPU-")


def test_module_not_loaded(simulated: Silicon) -> None:
    simulated.board("t4").load("")
    assert simulated.python("answer(error(nvmlInit))") == 9
    shown = simulated.smi()
    assert shown.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in shown.stdout


def test_library_and_module_of_different_versions(simulated: Silicon) -> None:
    simulated.board("t4").install("595.91.07")
    assert simulated.python("answer(error(nvmlInit))") == 18
    shown = simulated.smi("-L")
    assert shown.returncode == 18
    assert "Driver/library version mismatch" in shown.stdout
    assert "595.91.07" in shown.stdout
    simulated.load("595.91.07")
    assert simulated.smi("-L").returncode == 0


# NVIDIA's MIG guide shows these sequences of creates with the places that the driver chose.
@pytest.mark.parametrize(("profiles", "starts"), [
    ([19, 14, 5], [6, 4, 0]),
    ([9, 19, 14, 19], [4, 0, 2, 1]),
    ([14, 19, 19, 19, 19, 19], [4, 6, 0, 1, 2, 3]),
    ([19, 19, 19, 19, 19, 19, 19], [6, 4, 5, 0, 1, 2, 3]),
])
def test_places_that_the_driver_chooses(simulated: Silicon, profiles: List[int], starts: List[int]) -> None:
    simulated.board("a100-80gb-sxm")
    assert simulated.python(OPEN + "nvmlDeviceSetMigMode(gpu, 1); answer(create(gpu, *%r))" % profiles) == starts


def test_fragmentation_is_answered_with_insufficient_resources(simulated: Silicon) -> None:
    seen = simulated.board("a100-40gb-sxm").python(OPEN + """
nvmlDeviceSetMigMode(gpu, 1)
starts = create(gpu, 19, 19, 14)
answer([starts, error(nvmlDeviceCreateGpuInstance, gpu, 9)])
""")
    assert seen == [[6, 4, 0], 23]


@pytest.mark.parametrize("profile", [name for name in silicon.PROFILES if "mig" in silicon.profile_table(name)])
def test_each_profile_up_to_its_limit(simulated: Silicon, profile: str) -> None:
    rows = silicon.profile_table(profile)["mig"]["profiles"]
    seen = simulated.board(profile).python(OPEN + """
nvmlDeviceSetMigMode(gpu, 1)
counts = {}
for number in range(18):
    try:
        info = nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, version=2)
    except NVMLError:
        continue
    made = []
    while len(made) < 16:
        try:
            made.append(nvmlDeviceCreateGpuInstance(gpu, info.id))
        except NVMLError as problem:
            assert problem.value == 23, problem
            break
    for instance in made:
        nvmlGpuInstanceDestroy(instance)
    counts[info.id] = [len(made), info.instanceCount, info.memorySizeMB, info.multiprocessorCount, info.name]
answer(counts)
""")
    assert seen == {str(row["id"]): [row["max"], row["max"], row["memory_mib"], row["sms"], "MIG " + row["name"]]
                    for row in rows}


def test_placements_are_checked(simulated: Silicon) -> None:
    seen = simulated.board("h100-sxm-hgx").python(OPEN + """
nvmlDeviceSetMigMode(gpu, 1)
def place(profile, start, size):
    where = byref(c_nvmlGpuInstancePlacement_t(start, size))
    return error(nvmlDeviceCreateGpuInstanceWithPlacement, gpu, profile, where)
answer([place(14, 1, 2), place(14, 2, 2), place(14, 2, 2), place(9, 0, 4), place(9, 4, 4), place(99, 0, 1)])
""")
    assert seen == [2, 0, 23, 23, 0, 2]


def test_instances_need_the_mode_and_a_capable_gpu(simulated: Silicon) -> None:
    calls = OPEN + "answer([error(nvmlDeviceCreateGpuInstance, gpu, 19), error(nvmlDeviceSetMigMode, gpu, 1)])"
    assert simulated.board("h100-sxm-hgx").python(calls) == [3, 0]
    assert simulated.board("t4").python(calls) == [3, 3]


def test_compute_instances_and_mig_devices(simulated: Silicon) -> None:
    seen = simulated.board("a30").python(OPEN + """
nvmlDeviceSetMigMode(gpu, 1)
instance = nvmlDeviceCreateGpuInstance(gpu, 0)
first = nvmlGpuInstanceCreateComputeInstance(instance, 1)
nvmlGpuInstanceCreateComputeInstance(instance, 1)
full = error(nvmlGpuInstanceCreateComputeInstance, instance, 0)
busy = error(nvmlGpuInstanceDestroy, instance)
device = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
uuid = nvmlDeviceGetUUID(device)
attributes = nvmlDeviceGetAttributes_v2(device)
same = nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID(uuid)) == uuid
nvmlComputeInstanceDestroy(first)
gone = error(nvmlDeviceGetName, device)
nvmlGpuInstanceCreateComputeInstance(instance, 1)
again = nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
answer([full, busy, nvmlDeviceGetName(device), same, gone, uuid != again, attributes.memorySizeMB,
        attributes.multiprocessorCount, attributes.computeInstanceSliceCount,
        error(nvmlDeviceGetMigDeviceHandleByIndex, gpu, 3), nvmlDeviceGetMaxMigDeviceCount(gpu)])
""")
    assert seen == [23, 19, "NVIDIA A30 MIG 2c.4g.24gb", True, 2, True, 24000, 28, 2, 6, 4]


def test_two_processes_see_one_board(simulated: Silicon) -> None:
    simulated.board("h100-sxm-hgx", 2)
    first = simulated.start(OPEN + """
nvmlDeviceSetMigMode(gpu, 1)
nvmlDeviceCreateGpuInstance(gpu, 9)
print("made", flush=True)
sys.stdin.readline()
answer([info.placement.start for info in instances(gpu)])
""")
    assert first.stdout is not None
    assert first.stdout.readline() == "made\n"
    assert simulated.python(OPEN + "answer(create(gpu, 9))") == [0]
    out, errors = first.communicate("go\n", timeout=60)
    assert json.loads(out) == [4, 0] or json.loads(out) == [0, 4], errors


def test_many_writers_lose_nothing(simulated: Silicon) -> None:
    """Seven processes race for seven slices of each GPU; every slice is given to exactly one."""
    simulated.board("h100-sxm-hgx", 2)
    simulated.python("nvmlInit()\nfor i in range(2): nvmlDeviceSetMigMode(nvmlDeviceGetHandleByIndex(i), 1)\nanswer(0)")
    racer = """
nvmlInit()
made = []
for index in range(2):
    made += create(nvmlDeviceGetHandleByIndex(index), 19)
answer(made)
"""
    racers = [simulated.start(racer) for _number in range(7)]
    places = [json.loads(process.communicate(timeout=120)[0]) for process in racers]
    assert sorted(place[0] for place in places) == list(range(7))
    assert sorted(place[1] for place in places) == list(range(7))


def test_threads_share_a_session(simulated: Silicon) -> None:
    seen = simulated.board("h100-sxm-hgx").python("""
        import threading
        nvmlInit()
        gpu = nvmlDeviceGetHandleByIndex(0)
        nvmlDeviceSetMigMode(gpu, 1)
        wrong = []
        def work(number):
            for _round in range(30):
                instance = nvmlDeviceCreateGpuInstance(gpu, 19)
                if nvmlGpuInstanceGetInfo(instance).profileId != 19:
                    wrong.append(number)
                nvmlGpuInstanceDestroy(instance)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(7)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        answer([wrong, len(instances(gpu))])
    """)
    assert seen == [[], 0]


# ---- faults ----

def test_lost_gpu(simulated: Silicon) -> None:
    simulated.board("a100-80gb-sxm", 2)
    watcher = simulated.start(OPEN + """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
data = nvmlEventSetWait_v2(events, 20000)
answer([data.eventType, data.eventData, error(nvmlDeviceGetName, gpu)])
""")
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "ready\n"
    silicon.inject_fault(simulated.directory, "lost", 0)
    out, errors = watcher.communicate(timeout=60)
    assert json.loads(out) == [8, 79, 15], errors
    seen = simulated.python("""
        nvmlInit()
        answer([nvmlDeviceGetCount(), error(nvmlDeviceGetHandleByIndex, 0), error(nvmlDeviceGetHandleByIndex, 1)])
    """)
    assert seen == [2, 15, 0]
    shown = simulated.smi()
    assert shown.returncode == 15
    assert "GPU is lost" in shown.stdout
    silicon.clear_faults(simulated.directory)
    assert simulated.smi().returncode == 0


def test_a_call_fails_the_nth_time(simulated: Silicon) -> None:
    simulated.board("a100-80gb-sxm")
    silicon.inject_fault(simulated.directory, "call", 0, call="nvmlDeviceGetName", nth=2, times=2, code=999)
    seen = simulated.python(OPEN + "answer([error(nvmlDeviceGetName, gpu) for _round in range(5)])")
    assert seen == [0, 999, 999, 0, 0]


def test_a_slow_call(simulated: Silicon) -> None:
    simulated.board("t4")
    silicon.inject_fault(simulated.directory, "slow", 0, call="nvmlDeviceGetName", ms=300)
    seen = simulated.python(OPEN + """
import time
def took(call):
    start = time.monotonic(); call(gpu); return time.monotonic() - start
answer([took(nvmlDeviceGetName), took(nvmlDeviceGetUUID)])
""")
    assert seen[0] >= 0.3 > seen[1]


def test_an_uncorrectable_error_and_its_cure(simulated: Silicon) -> None:
    simulated.board("a100-80gb-sxm")
    silicon.inject_fault(simulated.directory, "ecc", 0)
    script = OPEN + """
answer([nvmlDeviceGetTotalEccErrors(gpu, 1, 0), nvmlDeviceGetTotalEccErrors(gpu, 1, 1),
        list(nvmlDeviceGetRemappedRows(gpu))])
"""
    assert simulated.python(script) == [1, 1, [0, 1, 1, 0]]
    assert simulated.smi("-r", "-i", "0").returncode == 0
    assert simulated.python(script) == [0, 1, [0, 1, 0, 0]]


@pytest.mark.parametrize(("kind", "status"), [("mig-in-use", 19), ("mig-pending", 16), ("busy", 19)])
def test_mig_mode_that_does_not_become_active(simulated: Silicon, kind: str, status: int) -> None:
    simulated.board("a100-80gb-sxm")
    silicon.inject_fault(simulated.directory, kind, 0)
    seen = simulated.python(OPEN + "answer([nvmlDeviceSetMigMode(gpu, 1), list(nvmlDeviceGetMigMode(gpu))])")
    assert seen == [status, [0, 1]]
    assert simulated.smi("-r", "-i", "0").returncode == (255 if kind == "busy" else 0)
    silicon.clear_faults(simulated.directory)
    assert simulated.smi("-r", "-i", "0").returncode == 0
    assert simulated.python(OPEN + "answer(list(nvmlDeviceGetMigMode(gpu)))") == [1, 1]


def test_a_reset_forgets_instances(simulated: Silicon) -> None:
    simulated.board("h100-sxm-hgx")
    simulated.python(OPEN + "nvmlDeviceSetMigMode(gpu, 1); answer(create(gpu, 9))")
    assert simulated.smi("--gpu-reset", "-i", "0").returncode == 0
    assert simulated.python(OPEN + "answer([len(instances(gpu)), list(nvmlDeviceGetMigMode(gpu))])") == [0, [1, 1]]


def test_processes_on_a_gpu(simulated: Silicon) -> None:
    simulated.board("l40s")
    silicon.inject_fault(simulated.directory, "busy", 0, mib=2048, pid=4242)
    seen = simulated.python(OPEN + """
process = nvmlDeviceGetComputeRunningProcesses(gpu)[0]
answer([process.pid, process.usedGpuMemory, nvmlDeviceGetUtilizationRates(gpu).gpu])
""")
    assert seen == [4242, 2048 << 20, 98]


def test_only_gpus_with_a_node_are_visible(simulated: Silicon) -> None:
    """In a container the nodes of other GPUs are missing; the index is then counted over those that are there."""
    simulated.board("a100-80gb-sxm", 4)
    nodes = simulated.directory / "dev"
    nodes.mkdir()
    for name in ("nvidiactl", "nvidia2"):
        (nodes / name).touch()
    seen = simulated.python("nvmlInit(); answer([nvmlDeviceGetCount(), nvmlDeviceGetMinorNumber("
                            "nvmlDeviceGetHandleByIndex(0))])")
    assert seen == [1, 2]


READ_ONLY = "mount --bind {0} {0} && mount -o remount,ro,bind {0} && exec \"$@\""


@needs_root
@pytest.mark.parametrize(("bounds", "answered"), [
    pytest.param(["setpriv", "--bounding-set=-sys_admin"], 4, id="pod"), pytest.param([], 0, id="privileged-pod")])
def test_of_a_board_handed_to_a_container_who_may_mount_may_write(
        simulated: Silicon, bounds: List[str], answered: int) -> None:
    """The container toolkit mounts it read-only; a driver asks a process for the same capability."""
    simulated.board("h100-sxm-hgx")
    script = PRELUDE + OPEN + "answer([nvmlDeviceGetCount(), error(nvmlDeviceSetComputeMode, gpu, 3)])"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", READ_ONLY.format(simulated.directory / "board"), "sh", *bounds,
         sys.executable, "-c", script], env=simulated.environment(), stdout=subprocess.PIPE, check=True, text=True)
    assert json.loads(done.stdout) == [1, answered]
    assert simulated.compute_modes() == ["Exclusive_Process" if answered == 0 else "Default"]


def test_every_write_is_logged(simulated: Silicon) -> None:
    simulated.board("a100-80gb-sxm")
    simulated.python(OPEN + "nvmlDeviceSetMigMode(gpu, 1); create(gpu, 9)\n"
                     "answer(error(nvmlDeviceCreateGpuInstance, gpu, 0))")
    words = [line.split(" ", 3)[3] for line in simulated.log()]
    assert words == ["nvmlDeviceSetMigMode gpu=0 mode=1 status=0 -> 0",
                     "nvmlDeviceCreateGpuInstance gpu=0 profile=9 start=-1 gi=2 -> 0",
                     "nvmlDeviceCreateGpuInstance gpu=0 profile=0 start=-1 gi=-1 -> 23"]


# ---- nvidia-smi ----

def test_nvidia_smi_queries(simulated: Silicon) -> None:
    simulated.board("h100-sxm-hgx", 2)
    shown = simulated.smi("--query-gpu=index,name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
    assert shown.stdout.splitlines() == ["%d, NVIDIA H100 80GB HBM3, 81559, Disabled" % index for index in range(2)]
    listed = simulated.smi("-L").stdout.splitlines()
    assert len(listed) == 2
    assert listed[1].startswith("GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    assert simulated.smi("-i", "9").returncode == 6
    assert simulated.smi("--nonsense").returncode == 2


def test_the_fabric_manager_of_nvlink_5_wants_infiniband(simulated: Silicon, tmp_path: Path) -> None:
    simulated.board("b200-hgx")
    (tmp_path / "fm.cfg").write_text("LOG_FILE_NAME=%s/fm.log\n" % tmp_path)
    with silicon.board_file.opened(simulated.directory) as board:
        board.set("module.nvidia.version", "unpackaged")
        board.set("module.mlx5_ib.version", "-")
    program = str(simulated.built / "pkg" / "nv-fabricmanager")
    done = subprocess.run([program, "-c", str(tmp_path / "fm.cfg")], env=simulated.environment(), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and "Pre-NVL5" in done.stdout and "NOTHING_TO_DO" in done.stdout
    told = subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert told == "Fabric Manager version is : unpackaged\n"


def test_nvidia_smi_tells_the_fabric(simulated: Silicon) -> None:
    simulated.board("h100-sxm-hgx", 1)
    assert "Not Started" in simulated.smi("-q").stdout
    with silicon.board_file.opened(simulated.directory) as board:
        board.set("gpu.0.fabric.state", 3)
    text = simulated.smi("-q").stdout
    assert "Completed" in text
    assert "Success" in text
    assert simulated.python(OPEN + """
old, new = c_nvmlGpuFabricInfo_t(), c_nvmlGpuFabricInfo_v3_t()
new.version = nvmlGpuFabricInfo_v3
nvmlDeviceGetGpuFabricInfo(gpu, byref(old))
nvmlDeviceGetGpuFabricInfoV(gpu, byref(new))
answer([old.state & 255, old.status, new.state & 255, new.healthMask, new.healthSummary])
""") == [3, 0, 3, 0, 0]


def test_nvidia_smi_makes_a_layout(simulated: Silicon) -> None:
    simulated.board("a30")
    assert simulated.smi("-mig", "1").returncode == 0
    assert simulated.smi("mig", "-cgi", "14,2g.12gb", "-C").returncode == 0
    assert [line.split()[1] for line in simulated.smi("-L").stdout.splitlines()[1:]] == ["2g.12gb", "1g.6gb"]
    assert simulated.smi("mig", "-dgi").returncode == 19
    assert simulated.smi("mig", "-dci").returncode == 0
    assert simulated.smi("mig", "-dgi").returncode == 0
    assert len(simulated.smi("-L").stdout.splitlines()) == 1


def test_capability_files_come_and_go_with_instances(simulated: Silicon) -> None:
    simulated.board("a30", 2)
    assert simulated.smi("-mig", "1", "-i", "1").returncode == 0
    assert simulated.smi("mig", "-i", "1", "-cgi", "14", "-C").returncode == 0
    root = simulated.directory / "proc/driver/nvidia/capabilities/gpu1/mig"
    texts = [path.read_text().splitlines()[0] for path in sorted(root.glob("gi*/**/access"))]
    instance = int(next(root.iterdir()).name[2:])
    first = 3 + (15 + instance) * 9
    assert sorted(texts) == ["DeviceFileMinor: %d" % first, "DeviceFileMinor: %d" % (first + 1)]
    simulated.smi("mig", "-i", "1", "-dci")
    simulated.smi("mig", "-i", "1", "-dgi")
    assert list(root.iterdir()) == []


# ---- MPS ----

class Mps:
    """A control daemon's directories, and the program by its two names of use, as NVIDIA's mps-control-daemon runs it:
    with no other variables."""

    def __init__(self, simulated: Silicon, directory: Path) -> None:
        self.simulated = simulated
        self.pipe, self.log = directory / "pipe", directory / "log"

    def control(self, *arguments: str, commands: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.simulated.built / "pkg" / "nvidia-cuda-mps-control"), *arguments], input=commands, text=True,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)},
            stdout=subprocess.PIPE, check=False)

    def said(self, commands: str) -> str:
        done = self.control(commands=commands)
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def pid(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())


@pytest.fixture
def mps(simulated: Silicon, tmp_path: Path) -> Iterator[Mps]:
    mps = Mps(simulated.board("a30"), tmp_path)
    yield mps
    mps.control(commands="quit")


NOBODY_THERE = (1, "Cannot find MPS control daemon process\n")


def test_a_daemon_of_mps_answers_until_it_is_told_to_quit(mps: Mps) -> None:
    assert (mps.control(commands="get_server_list").returncode, mps.control().stdout) == NOBODY_THERE
    assert mps.control("-d").returncode == 0
    assert mps.said("get_default_active_thread_percentage") == "100.0\n"
    assert mps.said("set_default_active_thread_percentage 25\n") == "25.0\n"
    assert mps.said("set_default_device_pinned_mem_limit 0 5956M\nget_default_device_pinned_mem_limit 0") == "5956M\n"
    assert mps.said("get_default_active_thread_percentage") == "25.0\n"
    assert mps.said("what is this") == "Unrecognized command: what\n"
    assert "Starting control daemon using socket %s/control" % mps.pipe in (mps.log / "control.log").read_text()
    assert mps.said("quit") == ""
    done = mps.control(commands="get_server_list")
    assert (done.returncode, done.stdout) == NOBODY_THERE


def test_of_two_daemons_of_mps_in_one_place_the_first_stays(mps: Mps) -> None:
    mps.control("-d")
    first = mps.pid
    second = mps.control("-d")
    assert (second.returncode, second.stdout) == (1, "An instance of this daemon is already running\n")
    assert mps.said("get_server_list") == "" and mps.pid == first


def test_after_a_daemon_of_mps_that_was_killed_another_one_starts(mps: Mps) -> None:
    """Which mode the GPUs are in is the driver's to keep, and nobody has set it back."""
    mps.simulated.smi("-i", "0", "-c", "EXCLUSIVE_PROCESS")
    mps.control("-d")
    os.kill(mps.pid, signal.SIGKILL)
    while mps.control(commands="get_server_list").returncode == 0:
        time.sleep(0.01)
    assert mps.control("-d").returncode == 0
    assert mps.said("get_default_active_thread_percentage") == "100.0\n"
    assert mps.simulated.compute_modes() == ["Exclusive_Process"]
    mps.simulated.smi("-i", "0", "-c", "DEFAULT")
    assert mps.simulated.compute_modes() == ["Default"]
