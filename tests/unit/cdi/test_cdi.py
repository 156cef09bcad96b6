# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CDI specifications as nvidia-ctk writes them, and when they are stale."""
from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi import (
    boot,
    executors,
    links,
    observation,
    planner,
    policy,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi.spec import (
    PATH,
    Spec,
    missing_from,
    outdated,
    read_spec,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CONTROL_NODES, Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import Mig
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading

DEVICES = ["0", "1", "GPU-a", "GPU-b", "all"]
LIBRARIES = ["/usr/lib/x86_64-linux-gnu/libcuda.so.580.178.04", "/usr/bin/nvidia-smi"]


def specification() -> Dict[str, Any]:
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia%d" % (number % 2), "major": 195}],
                "hooks": [{"hookName": "createRuntime", "path": "/usr/bin/nvidia-cdi-hook",
                           "args": ["nvidia-cdi-hook", "--driver-root", "", "--name", "x"]}],
            }} for number, name in enumerate(DEVICES)
        ],
        "containerEdits": {
            "deviceNodes": [{"path": path} for path in CONTROL_NODES],
            "mounts": [{"hostPath": path, "containerPath": path, "options": ["ro"]} for path in LIBRARIES],
        },
    }


def as_yaml(value: Any, indent: int = 0) -> str:
    """Block style YAML, as nvidia-ctk writes it."""
    pad = "    " * indent
    if isinstance(value, dict):
        return "".join(
            "%s%s:%s" % (pad, key, "\n" + as_yaml(inner, indent + 1) if isinstance(inner, (dict, list))
                         else " %s\n" % scalar(inner))
            for key, inner in value.items()
        )
    lines: List[str] = []
    for item in value:
        text = as_yaml(item, indent) if isinstance(item, (dict, list)) else pad + scalar(item) + "\n"
        lines.append(pad + "- " + text[len(pad):].replace("\n" + pad, "\n" + pad + "  ").rstrip(" "))
    return "".join(lines)


def scalar(value: Any) -> str:
    return json.dumps(value) if value in ("", "0", "1") else str(value)


@pytest.mark.parametrize("text", [
    as_yaml(specification()), json.dumps(specification(), indent=2),
    # As nvidia-ctk writes it where the output's name ends in .json
    json.dumps(specification(), separators=(",", ":")),
])
def test_a_specification_is_read(text: str) -> None:
    spec = read_spec(text)
    assert spec.kind == "nvidia.com/gpu"
    assert spec.names == tuple(DEVICES)
    assert spec.nodes == ("/dev/nvidia0", "/dev/nvidia1", *CONTROL_NODES)
    assert spec.sources == tuple(LIBRARIES)
    assert (spec.driver, spec.gpus) == ("580.178.04", 2)


def gpu(index: int, uuid: str, *mig: str, **changes: Any) -> NvmlGpu:
    return NvmlGpu(index=index, uuid=uuid, mig=Mig(bool(mig), bool(mig), devices=mig), **changes)


@pytest.mark.parametrize(("gpus", "reasons"), [
    ([gpu(0, "GPU-a"), gpu(1, "GPU-b")], []),
    ([gpu(0, "GPU-a"), gpu(1, "GPU-b"), gpu(2, "GPU-c")], ["it lacks GPU-c"]),
    ([gpu(0, "GPU-a")], ["it names GPU-b, which is not there"]),
    ([gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1")], ["it lacks MIG-1"]),
])
def test_what_does_not_fit_is_named(gpus: List[NvmlGpu], reasons: List[str]) -> None:
    assert outdated(read_spec(as_yaml(specification())), gpus) == reasons


def by_index(*names: str) -> Spec:
    return Spec("nvidia.com/gpu", (*names, "all"), (), ())


@pytest.mark.parametrize(("spec", "gpus", "reasons"), [
    (by_index("0", "1"), [gpu(0, "GPU-a"), gpu(1, "GPU-b")], []),
    (by_index("gpu0", "gpu1"), [gpu(0, "GPU-a"), gpu(1, "GPU-b")], []),
    (by_index("0", "1"), [gpu(0, "GPU-a")], ["it names 1, which is not there"]),
    (by_index("0"), [gpu(0, "GPU-a"), gpu(1, "GPU-b")], ["it lacks 1"]),
    (by_index("0", "1:0", "1:1"), [gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1", "MIG-2")], []),
    (by_index("0", "mig1:0"), [gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1", "MIG-2")], ["it lacks 1:1"]),
    (by_index("0", "1"), [gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1")], ["it lacks 1:0"]),
    # A MIG device in the middle has gone, and NVML does not move the others up
    (by_index("0", "1:0", "1:2"), [gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1", "MIG-3")], []),
    (by_index("0", "1:0", "1:1", "1:2"), [gpu(0, "GPU-a"), gpu(1, "GPU-b", "MIG-1", "MIG-3")],
     ["it names 1:2, which is not there"]),
])
def test_names_by_index_alone_are_compared_too(spec: Spec, gpus: List[NvmlGpu], reasons: List[str]) -> None:
    assert outdated(spec, gpus) == reasons


def test_a_board_that_is_all_mig_has_devices_and_no_gpus() -> None:
    spec = Spec("nvidia.com/gpu", ("0:0", "0:1", "MIG-a", "MIG-b", "all"), (), ())
    assert (spec.devices, spec.gpus) == (2, 0)
    assert outdated(spec, [gpu(0, "GPU-a", "MIG-a", "MIG-b")]) == []


FACTS = HostFacts(
    gpus=(Gpu("0000:17:00.0", "26b9"), Gpu("0000:18:00.0", "26b9")), driver_loaded="580.178.04",
    driver_userspace="580.178.04", toolkit="1.20.1", control_nodes=CONTROL_NODES,
)
ENABLED = tuple((unit, True, True, True) for unit in observation.REFRESH_UNITS)
FRESH = observation.Observation(
    path=PATH, spec=read_spec(as_yaml(specification())), driver="580.178.04", reasons=(), toolkit="1.20.1",
    units=ENABLED, elsewhere=(), generated=True, enabled_by_us=(), loaded="580.178.04",
    files={boot.UNIT_FILE: boot.unit_text("/usr/bin/nvidia-ctk", True, True), boot.RULE_FILE: boot.RULE},
    boot_enabled=True,
)
NO_UNITS = tuple((unit, False, False, False) for unit in observation.REFRESH_UNITS)
BARE = replace(FRESH, spec=None, driver="", toolkit="", generated=False, units=NO_UNITS, loaded="", files={},
               boot_enabled=False)
POLICY = policy.Policy(True, True)


def the(action: str, plan: Plan) -> Step:
    """The first such step."""
    return next(step for step in plan.steps if step.action == action)


def test_what_the_toolkits_unit_writes_meanwhile_makes_no_other_plan() -> None:
    """It may at any moment between an approval and its run: after a boot, and whenever a driver or a toolkit comes."""
    approved = the(planner.GENERATE, planner.plan(BARE, POLICY, FACTS))
    seen = replace(FRESH, spec=read_spec(as_yaml(too_early(*CONTROL_NODES[1:]))))
    assert the(planner.GENERATE, planner.plan(seen, POLICY, FACTS)).promise() == approved.promise()


@pytest.mark.parametrize("installed_by_us, state, is_ours", [
    ({"nvidia-container-toolkit": PackageChange(None, "1.20.1-1")}, "absent", True),
    ({"nvidia-container-toolkit": PackageChange(None, "1.20.1-1")}, "present", False), ({}, "absent", False)])
def test_what_units_of_our_toolkit_wrote_goes_with_it(
    tmp_path: Path, installed_by_us: Dict[str, PackageChange], state: str, is_ours: bool
) -> None:
    """A boot in the middle of an uninstallation: its units are still there, and ours is gone."""
    host = Host(str(tmp_path))
    host.write(PATH, as_yaml(specification()))
    journal = Journal(host)
    journal.set_packages("toolkit", installed_by_us)
    assert observation.observe(host, journal, policy.Policy(state == "present", True), HostFacts()).generated == is_ours


@pytest.mark.parametrize(("units", "toolkit"), [(ENABLED, "1.20.0"), (ENABLED, "1.20.1"), (NO_UNITS, "1.17.9"), (
    tuple((unit, unit != boot.REFRESH_SERVICE, False, True) for unit in observation.REFRESH_UNITS), "1.20.0")])
def test_our_unit_generates_at_boot_whatever_the_toolkits_does(units: Any, toolkit: str) -> None:
    """Also where an administrator has masked the toolkit's, and where there is none."""
    seen = replace(FRESH, toolkit=toolkit, units=units, files={}, boot_enabled=False)
    unit, rule, enabled = planner.plan(seen, POLICY, FACTS.but(toolkit=toolkit)).steps
    assert (unit.subject, rule.subject, enabled.subject) == (boot.UNIT_FILE, boot.RULE_FILE, boot.UNIT)
    assert "cdi generate" in unit.change["after"]
    step = the("file.write", planner.plan(seen, replace(POLICY, refresh_at_boot=False), FACTS.but(toolkit=toolkit)))
    assert "cdi generate" not in step.change["after"] and "create-dev-char-symlinks" in step.change["after"]


def sections(text: str) -> Dict[str, List[str]]:
    """{key of a unit file: its values}."""
    found: Dict[str, List[str]] = {}
    for key, _equals, value in (line.partition("=") for line in text.splitlines() if not line.startswith("#")):
        found.setdefault(key, []).append(value)
    return found


def test_our_unit_comes_before_everything_that_starts_containers_and_holds_up_nothing() -> None:
    unit = sections(boot.unit_text("/usr/bin/nvidia-ctk", True, True))
    (before,), (after,) = unit["Before"], unit["After"]
    assert {"containerd.service", "crio.service", "docker.service", "kubelet.service", "k3s-agent.service",
            "rke2-server.service", boot.REFRESH_SERVICE} <= set(before.split())
    assert "gpuops-nvidia-devices.service" in after.split()
    assert not {"Requires", "BindsTo", "Requisite", "RequiredBy"} & set(unit)
    assert unit["JobRunningTimeoutSec"] and unit["TimeoutStartSec"]


def test_our_unit_writes_what_the_toolkits_would_in_its_environment() -> None:
    """What stands in the file beats what stands in the unit (systemd.exec(5), EnvironmentFile)."""
    unit = sections(boot.unit_text("/usr/bin/nvidia-ctk", True, False))
    assert unit["Environment"] == ["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=" + PATH]
    assert unit["EnvironmentFile"] == ["-" + boot.REFRESH_ENVIRONMENT]
    assert unit["ExecStart"][-1].endswith("cdi generate --output=${NVIDIA_CTK_CDI_OUTPUT_FILE_PATH}")


def test_gpus_in_mig_mode_without_devices_are_waited_for() -> None:
    made = planner.plan(replace(FRESH, spec=None, undivided=True), POLICY, FACTS)
    assert made.steps == ()
    assert "waits for MIG devices" in made.notes[-1]
    assert not made.complete, "that nothing is generated does not mean that the specification is there"


def character_devices(host: Host, numbers: Dict[str, str]) -> None:
    """A host that takes these plain files for device nodes."""
    class Status:
        def __init__(self, number: str) -> None:
            major, minor = number.split(":")
            self.st_mode, self.st_rdev = stat.S_IFCHR | 0o666, os.makedev(int(major), int(minor))

    for node in numbers:
        host.write(node, "")
    host.stat = lambda name: Status(numbers[name]) if name in numbers else None  # type: ignore


def test_links_are_judged_by_the_numbers_of_the_nodes(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    numbers = {"/dev/nvidia0": "195:0", "/dev/nvidiactl": "195:255", "/dev/nvidia-uvm": "511:0"}
    character_devices(host, numbers)
    directory = tmp_path / "dev/char"
    directory.mkdir()
    assert links.unlinked(host) == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    for name, target in (("195:0", "../nvidia0"), ("195:255", "../nvidiactl"), ("510:0", "../nvidia-uvm"),
                         ("195:7", "../nvidia7"), ("1:3", "../null")):
        (directory / name).symlink_to(target)
    assert links.unlinked(host) == ("/dev/nvidia-uvm",)
    assert links.misleading(host) == ("/dev/char/510:0",)

    calls: List[Any] = []
    host.run = lambda argv, **_more: calls.append(list(argv))  # type: ignore
    (step,) = planner.plan(replace(FRESH, unlinked=("/dev/nvidia-uvm",)), POLICY, FACTS).steps
    executors.EXECUTORS[step.action](host, Journal(host), step)
    assert calls == [["nvidia-ctk", "--quiet", "system", "create-dev-char-symlinks", "--create-all"],
                     ["nvidia-ctk", "--quiet", "system", "create-dev-char-symlinks"]]
    assert links.ours(host) == ("/dev/char/195:0", "/dev/char/195:255", "/dev/char/195:7")
    assert Journal(host).recall("cdi") == {"linked": True}

    gone = planner.plan(replace(FRESH, generated=False, links=links.ours(host)), policy.Policy(False, True), FACTS)
    executors.EXECUTORS[planner.UNLINK](host, Journal(host), the(planner.UNLINK, gone))
    assert sorted(path.name for path in directory.iterdir()) == ["1:3"]
    assert Journal(host).recall("cdi") == {}


def test_capabilities_of_the_fabric_need_no_link(tmp_path: Path) -> None:
    """The fabric manager makes a node for its own beside those of MIG; nvidia-ctk links what mig-minors lists alone,
    so that every run would plan a link, and end without it."""
    host = Host(str(tmp_path))
    host.write("/proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\n")
    character_devices(host, {"/dev/nvidia-caps/nvidia-cap%d" % minor: "238:%d" % minor for minor in (1, 3, 4322)})
    assert links.unlinked(host) == ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap3")
    host.remove("/proc/driver/nvidia-caps/mig-minors")
    assert links.unlinked(host) == ()


def test_a_specification_older_than_the_program_is_seen(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write(PATH, "")
    host.write("/usr/bin/nvidia-ctk", "", mode=0o755)
    os.utime(tmp_path / PATH.lstrip("/"), (1, 1))
    assert observation._made_before(host, PATH, "/usr/bin/nvidia-ctk", "")
    host.write(PATH, "")
    assert not observation._made_before(host, PATH, "/usr/bin/nvidia-ctk", "")
    assert not observation._made_before(host, PATH, None, "")


def test_a_clock_that_jumped_makes_no_specification_fresh_and_none_stale_for_ever(tmp_path: Path) -> None:
    """The toolkit was installed, or the specification written, while the clock was ahead."""
    program = "/usr/bin/nvidia-ctk"
    host = Host(str(tmp_path))
    host.write(program, "", mode=0o755)
    host.write(PATH, "")
    used = observation.generator_id(host, program)
    for time in (1, 2 ** 32):
        os.utime(host.path(PATH), (time, time))
        assert observation._made_before(host, PATH, program, "")
        assert not observation._made_before(host, PATH, program, used)
    host.write(program, "another", mode=0o755)
    assert observation._made_before(host, PATH, program, used)


def test_a_hook_of_another_toolkit_is_seen() -> None:
    assert read_spec(as_yaml(specification())).hooks == ("/usr/bin/nvidia-cdi-hook",)


def test_a_second_file_conflicts_in_the_same_directory_alone(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    text = as_yaml(specification())
    for path in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/copy.json", PATH):
        host.write(path, text)
    host.write("/var/run/cdi/other.yaml", text.replace("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"))
    others = observation.elsewhere(host, PATH)
    assert list(others) == ["/etc/cdi/nvidia.yaml", "/var/run/cdi/copy.json"]
    assert observation.conflicting(PATH, read_spec(text), others) == ("/var/run/cdi/copy.json",)
    seen = replace(FRESH, elsewhere=tuple(others), conflicting=("/var/run/cdi/copy.json",))
    made = planner.plan(seen, POLICY, FACTS)
    assert [kept.subject for kept in made.kept] == ["/etc/cdi/nvidia.yaml"] and "stay in use" in made.kept[0].why
    assert [note for note in made.notes if "copy.json" in note and "none of them" in note] == list(made.notes)


def test_units_are_enabled_without_a_reload_of_systemd(tmp_path: Path) -> None:
    calls: List[Any] = []

    class Recorder(Host):
        def systemctl(self, *words: str, timeout: float = 180) -> Any:
            calls.append(words)

    host = Recorder(str(tmp_path))
    enabled = the("service.enable", planner.plan(BARE, POLICY, FACTS))
    dict(generic_executors(), **executors.EXECUTORS)[enabled.action](host, Journal(host), enabled)
    assert calls == [("enable", "--no-reload", "nvidia-cdi-refresh.path")]


def test_the_environment_of_the_refresh_unit_is_respected(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert (observation.spec_path(host), observation.refresh_environment(host)) == (PATH, {})
    host.write(boot.REFRESH_ENVIRONMENT, "# ours\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.json\n"
                                                'NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES="uuid"\nPATH=/x\n')
    assert observation.spec_path(host) == "/etc/cdi/nvidia.json"
    assert observation.refresh_environment(host) == {"NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": "uuid"}
    step = the(planner.GENERATE, planner.plan(replace(FRESH, path="/etc/cdi/nvidia.json", spec=None), POLICY, FACTS))
    assert step.subject == "/etc/cdi/nvidia.json"


def too_early(*gone: str) -> Dict[str, Any]:
    """A specification that was written before these nodes were there."""
    early = specification()
    early["containerEdits"]["deviceNodes"] = [{"path": path} for path in CONTROL_NODES if path not in gone]
    return early


@pytest.mark.parametrize("gone", [
    CONTROL_NODES[1:2], CONTROL_NODES[2:3], CONTROL_NODES[3:], CONTROL_NODES[1:],
])
def test_a_specification_from_before_the_nodes_is_renewed(gone: Tuple[str, ...]) -> None:
    """After a power cut the toolkit's unit writes it at the boot, and the nodes come with the next run."""
    seen = replace(FRESH, spec=read_spec(as_yaml(too_early(*gone))))
    (step,) = planner.plan(seen, POLICY, FACTS).steps
    assert (step.action, step.change["before"]["fresh"]) == ("cdi.generate", False)
    assert "it lacks " + ", ".join(gone) in step.why


def test_the_nodes_without_which_cuda_fails_are_wanted_wherever_they_are() -> None:
    """Where nobody has made them, the step makes them."""
    seen = replace(FRESH, spec=read_spec(as_yaml(too_early(*CONTROL_NODES[1:]))))
    (step,) = planner.plan(seen, POLICY, FACTS.but(control_nodes=("/dev/nvidiactl",))).steps
    assert step.why.endswith("it lacks /dev/nvidia-uvm, /dev/nvidia-uvm-tools.")


def test_what_changes_in_words_alone_is_the_same_promise() -> None:
    early = replace(FRESH, spec=read_spec(as_yaml(too_early("/dev/nvidia-uvm"))))
    before = planner.plan(early, POLICY, FACTS.but(driver_changes=True)).steps
    after = planner.plan(replace(early, reasons=("it lacks /dev/nvidia-uvm, /usr/lib/x.so.580.178.04",)), POLICY, FACTS)
    assert [(step.id, step.change) for step in before] == [(step.id, step.change) for step in after.steps]


def test_the_bytes_of_our_files_are_those_that_hosts_have() -> None:
    """Other ones are a change of every host that is converged."""
    says = "# Managed by the Ansible collection gpuops.nvidia: changes made here are lost.\n"
    assert boot.RULE == says + (
        'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia_uvm", TAG+="systemd", '
        'ENV{SYSTEMD_WANTS}+="gpuops-nvidia-cdi.service"\n')
    text = boot.unit_text("/usr/bin/nvidia-ctk", True, False)
    assert text.startswith(says + "[Unit]\nDescription=CDI specification and /dev/char links of NVIDIA GPUs\n")
    assert text.endswith("cdi generate --output=${NVIDIA_CTK_CDI_OUTPUT_FILE_PATH}\n\n"
                         "[Install]\nWantedBy=multi-user.target\n")


def test_our_unit_makes_the_nodes_before_it_generates() -> None:
    lines = boot.unit_text("/usr/bin/nvidia-ctk", True, True).splitlines()
    nodes = next(number for number, line in enumerate(lines) if "create-device-nodes --control-devices" in line)
    assert lines[nodes].startswith("ExecStart=-/usr/bin/nvidia-ctk")
    assert nodes < next(number for number, line in enumerate(lines) if "cdi generate" in line)


@pytest.mark.parametrize("program", [["nvidia-cdi-hook"], ["nvidia-ctk", "hook"]])
@pytest.mark.parametrize("as_text", [as_yaml, lambda value: json.dumps(value, indent=2)], ids=["yaml", "json"])
def test_a_hook_that_a_new_one_would_have_is_missed(program: List[str], as_text: Any) -> None:
    old, new = specification(), specification()
    hooks = [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": [*program, action, "--x"]}
             for action in ("update-ldcache", "enable-cuda-compat")]
    old["containerEdits"]["hooks"], new["containerEdits"]["hooks"] = hooks[:1], hooks
    assert missing_from(read_spec(as_text(old)), read_spec(as_text(new))) == ["it lacks the hook enable-cuda-compat"]


class Toolkit:
    """A host with a driver, whose nvidia-ctk prints what is in a file; and NVML's answer."""

    reading = NvmlReading(driver_version="580.178.04", gpus=(gpu(0, "GPU-a"), gpu(1, "GPU-b")))

    def __init__(self, root: Path) -> None:
        self.prints = root / "prints"

        class Laid(Host):
            def run(self, argv: Sequence[str], *more: Any, **options: Any) -> Any:
                return super().run([self.which(argv[0]) and self.path(self.which(argv[0])) or argv[0], *argv[1:]],
                                   *more, **options)

        self.host = Laid(str(root))
        self.host.write("/usr/bin/nvidia-ctk", "#!/bin/sh\nexec cat %s\n" % self.prints, mode=0o755)
        for path in ("/dev/nvidia0", "/dev/nvidia1", "/usr/bin/nvidia-cdi-hook", "/usr/lib/libnew.so.580.178.04",
                     *CONTROL_NODES, *LIBRARIES):
            self.host.write(path, "")

    def stale(self, spec: Dict[str, Any], new: Dict[str, Any]) -> Tuple[str, ...]:
        self.prints.write_text(as_yaml(new))
        return observation.stale(self.host, read_spec(as_yaml(spec)), self.reading)


def test_a_specification_is_held_to_a_new_one(tmp_path: Path) -> None:
    host = Toolkit(tmp_path)
    assert host.stale(specification(), specification()) == ()
    new = specification()
    new["containerEdits"]["mounts"].append({"hostPath": "/usr/lib/libnew.so.580.178.04"})
    assert host.stale(specification(), new) == ("it lacks /usr/lib/libnew.so.580.178.04",)
    new["containerEdits"]["deviceNodes"].append({"path": "/dev/dri/card1"})
    assert host.stale(specification(), new) == ("it lacks /dev/dri/card1, /usr/lib/libnew.so.580.178.04",)


def test_the_place_of_a_mig_device_is_that_of_a_new_specification() -> None:
    assert missing_from(by_index("0", "1:0", "1:1"), by_index("0", "1:0", "1:2")) == ["it lacks 1:2"]
    assert missing_from(by_index("gpu0", "mig1:0"), by_index("0", "1:0")) == []
    assert missing_from(Spec("nvidia.com/gpu", ("GPU-a", "all"), (), ()), by_index("0")) == []


def test_what_a_new_one_would_leave_out_may_stay(tmp_path: Path) -> None:
    more = specification()
    more["containerEdits"]["mounts"].append({"hostPath": "/usr/lib/libnew.so.580.178.04"})
    assert Toolkit(tmp_path).stale(more, specification()) == ()


def test_devices_that_the_administrator_chose_are_all_that_is_wanted(tmp_path: Path) -> None:
    """Otherwise each run would make the same specification anew, and end with a step that is still needed."""
    host, some = Toolkit(tmp_path), specification()
    some["devices"] = [device for device in some["devices"] if device["name"] in ("0", "GPU-a", "all")]
    assert host.stale(some, some) == ("it lacks GPU-b",)
    host.host.write(boot.REFRESH_ENVIRONMENT, "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS=0\n")
    assert host.stale(some, some) == ()
    assert host.stale(some, specification()) == ("it lacks 1, GPU-b, /dev/nvidia1",), "another choice"


def test_sockets_of_daemons_come_and_go(tmp_path: Path) -> None:
    new = specification()
    new["containerEdits"]["mounts"].append({"hostPath": "/run/nvidia-persistenced/socket"})
    assert Toolkit(tmp_path).stale(specification(), new) == ()


def test_a_node_that_is_there_and_not_named_is_seen_without_the_program(tmp_path: Path) -> None:
    host = Toolkit(tmp_path)
    host.host.remove("/usr/bin/nvidia-ctk")
    assert host.stale(too_early("/dev/nvidia-uvm"), specification()) == ("it lacks /dev/nvidia-uvm",)


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    host = Toolkit(tmp_path)
    host.host.write("/usr/bin/nvidia-ctk", "#!/bin/sh\necho no driver >&2; exit 1\n")
    (reason,) = host.stale(specification(), specification())
    assert "a new one cannot be made" in reason and "no driver" in reason


def test_units_that_we_enabled_are_remembered_before_they_are(tmp_path: Path) -> None:
    class Dying(Host):
        def systemctl(self, *words: str, timeout: float = 180) -> Any:
            raise GpuOpsError("cdi.any", "killed", "", "")

    host, run = Host(str(tmp_path)), dict(generic_executors(), **executors.EXECUTORS)
    enable = the("service.enable", planner.plan(BARE, POLICY, FACTS))
    with pytest.raises(GpuOpsError):
        run[enable.action](Dying(str(tmp_path)), Journal(host), enable)
    assert Journal(host).recall("cdi") == {"enabled": [enable.subject]}


def test_a_specification_of_a_run_that_is_killed_is_ours_to_remove_and_one_that_was_refused_is_not(
    tmp_path: Path
) -> None:
    toolkit = Toolkit(tmp_path)
    toolkit.prints.write_text(as_yaml(specification()))
    toolkit.host.write("/usr/bin/nvidia-ctk", "#!/bin/sh\ncase $* in *list*) echo %s;; *) exec cat %s; esac\n" % (
        " ".join("nvidia.com/gpu=" + name for name in DEVICES), toolkit.prints))
    generate = the(planner.GENERATE, planner.plan(BARE, POLICY, FACTS))
    path = toolkit.host.path(generate.subject)

    class Killed(BaseException):
        """No handler sees it."""

    class Dying(type(toolkit.host)):  # type: ignore[misc]
        def unit(self, name: str) -> Any:
            raise Killed

    os.makedirs(path)
    with pytest.raises(GpuOpsError, match="cannot be replaced|cannot be written"):
        executors.generate(toolkit.host, Journal(toolkit.host), generate)
    assert Journal(toolkit.host).recall("cdi") == {}
    os.rmdir(path)
    with pytest.raises(Killed):
        executors.generate(Dying(toolkit.host.root), Journal(toolkit.host), generate)
    assert os.path.exists(path) and Journal(toolkit.host).recall("cdi")["generated"] is True
