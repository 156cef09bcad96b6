# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a simulated host makes of its board: files of sysfs and procfs, boots, kernel modules, faults."""
from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Dict, List

import pytest
from gpusim import boot, commands, files, modules
from gpusim.board import Board, BoardError, opened, read

from gpulab import silicon

KERNEL = "6.1.0-56-amd64"
NVIDIA_KO = "/lib/modules/%s/updates/dkms/nvidia.ko" % KERNEL


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "host" / "silicon"


def write(directory: Path, profile: str, gpus: int = 2) -> None:
    silicon.write_board(directory, profile, gpus, seed="test")


def test_boards_are_deterministic_and_differ_by_host(tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        silicon.write_board(tmp_path / name / "silicon", "a100-80gb-sxm", 8)
    boards = [read(tmp_path / name / "silicon") for name in ("a", "b")]
    uuids = [[board.gpu(index, "uuid") for index in range(8)] for board in boards]
    assert len(set(uuids[0] + uuids[1])) == 16
    silicon.write_board(tmp_path / "a" / "silicon", "a100-80gb-sxm", 8)
    again = read(tmp_path / "a" / "silicon")
    assert [again.gpu(index, "uuid") for index in range(8)] == uuids[0]


def test_unknown_profiles_and_numbers_are_refused(directory: Path) -> None:
    with pytest.raises(silicon.SiliconError, match="there are: a100-40gb-sxm"):
        silicon.write_board(directory, "a1000", 1)
    with pytest.raises(silicon.SiliconError, match="0 to 8 GPUs"):
        silicon.write_board(directory, "t4", 9)
    with pytest.raises(BoardError, match="no board"):
        read(directory)


@pytest.mark.parametrize("profile", silicon.PROFILES)
def test_tables_are_whole(profile: str) -> None:
    table = silicon.profile_table(profile)
    assert table["profile"] == profile
    assert table["sources"]
    assert table["assumed"]
    assert len(set(table["slots"])) == len(table["slots"])
    for row in table.get("mig", {}).get("profiles", []):
        units = table["mig"]["units"]
        assert all(start + row["size"] <= units for start in row["starts"])
        assert row["memory_mib"] <= table["gpu"]["memory_mib"]


@pytest.mark.parametrize("profile", [name for name in silicon.PROFILES if "mig" in silicon.profile_table(name)])
def test_profile_names_follow_from_memory_as_nvidias_programs_compute_them(profile: str) -> None:
    """The device plugin and mig-parted do not ask for names: they derive them from the sizes."""
    table = silicon.profile_table(profile)
    total = table["gpu"]["memory_mib"]
    for row in table["mig"]["profiles"]:
        eighths = math.ceil(8 * row["memory_mib"] / total) / 8
        size = math.floor(eighths * math.ceil(total / 1024) + 0.5)
        assert re.match(r"\d+g\.%dgb" % size, row["name"])


def test_pci_tree(directory: Path) -> None:
    write(directory, "h100-sxm-hgx", 8)
    files.write_pci(directory, read(directory))
    devices = directory / "sys" / "bus" / "pci" / "devices"
    found: Dict[str, List[str]] = {}
    for path in devices.iterdir():
        key = "%s %s" % ((path / "vendor").read_text().strip(), (path / "class").read_text().strip())
        found.setdefault(key, []).append(path.name)
    assert len(found["0x10de 0x030200"]) == 8
    assert len(found["0x10de 0x068000"]) == 4
    gpu = devices / sorted(found["0x10de 0x030200"])[0]
    assert (gpu / "device").read_text() == "0x2330\n"
    assert (gpu / "modalias").read_text() == "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
    assert (gpu / "config").read_bytes()[:4] == bytes.fromhex("de103023")


def test_nvlink_5_is_known_by_a_bridge_that_manages_switches(directory: Path) -> None:
    write(directory, "b200-hgx", 8)
    files.write_pci(directory, read(directory))
    pages = [path.read_bytes() for path in (directory / "sys" / "bus" / "pci" / "devices").glob("*/vpd")]
    assert len(pages) == 4
    assert all(b"SW_MNG" in page for page in pages)


def test_a_lost_gpu_reads_as_ones_and_an_absent_one_is_not_there(directory: Path) -> None:
    write(directory, "a100-80gb-sxm", 2)
    files.write_pci(directory, read(directory))
    devices = directory / "sys" / "bus" / "pci" / "devices"
    silicon.inject_fault(directory, "lost", 0)
    assert (devices / "0000:07:00.0" / "config").read_bytes()[:4] == b"\xff" * 4
    silicon.inject_fault(directory, "absent", 1)
    files.write_pci(directory, read(directory))
    assert not (devices / "0000:0f:00.0").exists()
    assert silicon.clear_faults(directory) == ["absent", "lost"]
    assert (devices / "0000:07:00.0" / "config").read_bytes()[:4] == bytes.fromhex("de10b220")


def test_faults_name_what_there_is(directory: Path) -> None:
    write(directory, "t4")
    with pytest.raises(silicon.SiliconError, match="there are: lost"):
        silicon.inject_fault(directory, "tired")
    with pytest.raises(silicon.SiliconError, match="no GPU 5; this host has 2"):
        silicon.inject_fault(directory, "lost", 5)
    with pytest.raises(silicon.SiliconError, match="name of an NVML function"):
        silicon.inject_fault(directory, "call")
    silicon.inject_fault(directory, "slow", None, ms=5)
    assert silicon.list_faults(directory) == [{"kind": "slow", "ms": "5"}]


@pytest.mark.parametrize(("profile", "mode"), [("a100-80gb-sxm", "1"), ("h100-sxm-hgx", "0")])
def test_what_a_power_cycle_leaves(directory: Path, profile: str, mode: str) -> None:
    """Ampere keeps the MIG mode in its InfoROM, Hopper does not; instances and volatile settings never survive."""
    write(directory, profile)
    with opened(directory) as board:
        for key, value in (("mig", "1"), ("mig_pending", "1"), ("gi.1.profile", "9"), ("persistence", "1"),
                           ("compute_mode", "3"),
                           ("ecc_errors.uncorrected.volatile", "2"), ("ecc_errors.uncorrected.aggregate", "3")):
            board.set("gpu.0.%s" % key, value)
        board.set("module.nvidia.version", "580.126.09")
        boot.power_cycle(board)
    board = read(directory)
    assert board.gpu(0, "mig") == mode
    assert board.below("gpu.0.gi") == []
    assert [board.gpu(0, name) for name in ("persistence", "compute_mode")] == ["0", "0"]
    assert board.text("gpu.0.ecc_errors.uncorrected.volatile") == ""
    assert board.text("gpu.0.ecc_errors.uncorrected.aggregate") == "3"
    assert files.loaded_modules(board) == []


@pytest.mark.parametrize(("images", "trees", "chosen"), [
    (["6.1.0-9-amd64", "6.1.0-56-amd64"], ["6.1.0-9-amd64", "6.1.0-56-amd64"], "6.1.0-56-amd64"),
    (["6.1.0-56-amd64", "6.12.1-amd64"], ["6.1.0-56-amd64"], "6.1.0-56-amd64"),
    ([], ["6.1.0-56-amd64"], "6.1.0-56-amd64"),
    ([], [], ""),
])
def test_the_newest_complete_kernel_boots(tmp_path: Path, images: List[str], trees: List[str], chosen: str) -> None:
    (tmp_path / "boot").mkdir()
    for name in images:
        (tmp_path / "boot" / ("vmlinuz-" + name)).touch()
    for name in trees:
        (tmp_path / "lib" / "modules" / name).mkdir(parents=True)
    assert boot.choose_kernel(tmp_path) == chosen


# ---- modules: kmod's answers and the device nodes are faked, the kernel's decisions are not ----

@pytest.fixture
def host(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    information: Dict[str, Dict[str, str]] = {
        NVIDIA_KO: {"name": "nvidia", "version": "580.126.09", "license": "Dual MIT/GPL", "vermagic": KERNEL + " SMP",
                    "depends": ""},
        "nvidia-uvm.ko": {"name": "nvidia_uvm", "version": "580.126.09", "license": "Dual MIT/GPL",
                          "vermagic": KERNEL + " SMP", "depends": "nvidia"},
        "other/nvidia-uvm.ko": {"name": "nvidia_uvm", "version": "595.91.07", "license": "Dual MIT/GPL",
                                "vermagic": KERNEL + " SMP", "depends": "nvidia"},
        "closed.ko": {"name": "nvidia", "version": "580.126.09", "license": "NVIDIA", "vermagic": KERNEL + " SMP"},
        "newer.ko": {"name": "nvidia", "version": "580.126.09", "license": "NVIDIA", "vermagic": "6.12.1-amd64 SMP"},
        "nouveau.ko": {"name": "nouveau", "license": "GPL and additional rights", "vermagic": KERNEL + " SMP"},
    }
    release = os.uname()[:2] + (KERNEL,) + os.uname()[3:]
    monkeypatch.setenv("GPUSIM_DIR", str(directory))
    monkeypatch.setattr(modules, "module_info", lambda path, field: information[path].get(field, ""))
    monkeypatch.setattr(modules.os.path, "getsize", lambda path: 20480)
    monkeypatch.setattr(modules.os, "uname", lambda: os.uname_result(release))
    monkeypatch.setattr(files, "make_nodes", lambda board: None)
    monkeypatch.setattr(modules, "file_users", dict)
    return directory


def ready(host: Path, profile: str) -> None:
    write(host, profile)
    with opened(host) as board:
        files.write_pci(host, board)
        files.write_modules(host, board, {})


def refusal(path: str) -> str:
    with pytest.raises(modules.Refused) as refused:
        modules.load_file(path, [])
    return refused.value.reason


def test_loading_shows_in_the_files(host: Path) -> None:
    ready(host, "a100-80gb-sxm")
    modules.load_file(NVIDIA_KO, ["NVreg_EnableGpuFirmware=0"])
    modules.load_file("nvidia-uvm.ko", [])
    text = (host / "proc" / "modules").read_text().splitlines()
    assert text[0].startswith("nvidia_uvm 20480 0 - Live")
    assert text[1].startswith("nvidia 20480 1 nvidia_uvm, Live")
    assert (host / "sys" / "module" / "nvidia" / "version").read_text() == "580.126.09\n"
    assert (host / "sys" / "module" / "nvidia" / "holders" / "nvidia_uvm").is_symlink()
    assert "Open Kernel Module for x86_64  580.126.09" in (host / "proc/driver/nvidia/version").read_text()
    assert "EnableGpuFirmware: 0\n" in (host / "proc/driver/nvidia/params").read_text()
    assert "195 nvidia\n" in (host / "proc" / "devices").read_text()
    assert files.bound_driver(host, read(host)) == "nvidia"
    assert len(list((host / "proc/driver/nvidia/gpus").iterdir())) == 2


def test_removing_needs_the_right_order_and_no_users(host: Path) -> None:
    ready(host, "a100-80gb-sxm")
    modules.load_file(NVIDIA_KO, [])
    modules.load_file("nvidia-uvm.ko", [])
    with pytest.raises(modules.Refused, match="in use by: nvidia_uvm"):
        modules.remove("nvidia")
    modules.remove("nvidia_uvm")
    silicon.inject_fault(host, "module-in-use")
    with pytest.raises(modules.Refused, match="is in use"):
        modules.remove("nvidia")
    silicon.clear_faults(host)
    modules.remove("nvidia")
    assert (host / "proc" / "modules").read_text() == ""
    assert not (host / "proc" / "driver" / "nvidia").exists()
    assert files.bound_driver(host, read(host)) == ""
    with pytest.raises(modules.Refused, match="not currently loaded"):
        modules.remove("nvidia")


def test_what_a_kernel_refuses(host: Path) -> None:
    ready(host, "a100-80gb-sxm")
    assert refusal("newer.ko") == "Exec format error"
    assert refusal("nvidia-uvm.ko").startswith("Unknown symbol")
    modules.load_file(NVIDIA_KO, [])
    assert refusal("other/nvidia-uvm.ko") == "Invalid argument"


@pytest.mark.parametrize(("profile", "path", "fits"), [
    ("v100", "closed.ko", True), ("v100", NVIDIA_KO, False), ("b200-hgx", "closed.ko", False),
    ("b200-hgx", NVIDIA_KO, True), ("t4", "closed.ko", True), ("t4", NVIDIA_KO, True),
])
def test_kind_of_module_and_generation_of_gpu(host: Path, profile: str, path: str, fits: bool) -> None:
    ready(host, profile)
    if fits:
        modules.load_file(path, [])
    else:
        assert refusal(path) == "No such device"


def test_nouveau_has_the_gpus(host: Path) -> None:
    ready(host, "t4")
    modules.load_file("nouveau.ko", [])
    assert refusal(NVIDIA_KO) == "No such device"
    modules.remove("nouveau")
    modules.load_file(NVIDIA_KO, [])


def test_secure_boot_wants_a_signature(host: Path) -> None:
    ready(host, "t4")
    with opened(host) as board:
        board.set("secure_boot", "1")
    assert refusal(NVIDIA_KO) == "Key was rejected by service"


def test_a_board_survives_writers_in_between(directory: Path) -> None:
    write(directory, "t4")
    generations = []
    for number in range(3):
        with opened(directory) as board:
            board.set("gpu.0.persistence", number)
        generations.append(int((directory / "board").read_text().split("\n", 1)[0].split("=")[1]))
    assert generations == sorted(set(generations))
    assert isinstance(read(directory), Board)


def test_a_rack_registers_its_gpus_when_the_driver_comes(host: Path) -> None:
    ready(host, "gb200-nvl72")
    assert read(host).gpu(0, "fabric.state") == "1"
    modules.load_file(NVIDIA_KO, [])
    assert [read(host).gpu(gpu, "fabric.state") for gpu in range(2)] == ["3", "3"]


def test_infiniband_is_loaded_by_name_and_seen(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(host, "b200-hgx")
    monkeypatch.setattr(modules, "resolve", lambda *_words: (1, [], "not found"))
    for _time in "12":
        modules.load_name("ib-umad", [], [])
    assert (host / "sys/module/ib_umad").is_dir() and not (host / "sys/module/mlx5_ib").exists()
    assert commands.modprobe(["--dry-run", "mlx5_ib"]) == 0


def test_capability_files_of_instances(host: Path) -> None:
    ready(host, "a100-80gb-sxm")
    with opened(host) as board:
        board.set("gpu.1.gi.2.profile", 9)
        board.set("gpu.1.gi.2.ci.0.profile", 2)
    modules.load_file(NVIDIA_KO, [])
    minors = dict(line.split(" ") for line in (host / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
    for name in ("gpu1/gi2", "gpu1/gi2/ci0"):
        path = host / "proc/driver/nvidia/capabilities" / name.replace("gpu1/", "gpu1/mig/") / "access"
        assert path.read_text().splitlines()[0] == "DeviceFileMinor: " + minors[name + "/access"]
