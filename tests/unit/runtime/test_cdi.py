# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CDI specifications as nvidia-ctk writes them, and when they are stale."""
from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cdi import (
    boot,
    executors,
    links,
    observation,
    planner,
    policy,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cdi.spec import PATH, Spec, outdated, read_spec

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
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
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


@pytest.mark.parametrize("text", [as_yaml(specification()), json.dumps(specification(), indent=2)])
def test_a_specification_is_read(text: str) -> None:
    spec = read_spec(text)
    assert spec.kind == "nvidia.com/gpu"
    assert spec.names == tuple(DEVICES)
    assert spec.nodes == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    assert spec.sources == tuple(LIBRARIES)
    assert (spec.driver, spec.gpus) == ("580.178.04", 2)


def gpu(index: int, uuid: str, *mig: str, **changes: Any) -> NvmlGpu:
    return NvmlGpu(index=index, uuid=uuid, mig_current=bool(mig), mig_devices=mig, **changes)


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
])
def test_names_by_index_alone_are_compared_too(spec: Spec, gpus: List[NvmlGpu], reasons: List[str]) -> None:
    assert outdated(spec, gpus) == reasons


def test_a_board_that_is_all_mig_has_devices_and_no_gpus() -> None:
    spec = Spec("nvidia.com/gpu", ("0:0", "0:1", "MIG-a", "MIG-b", "all"), (), ())
    assert (spec.devices, spec.gpus) == (2, 0)
    assert outdated(spec, [gpu(0, "GPU-a", "MIG-a", "MIG-b")]) == []


FACTS = HostFacts(
    gpus=(Gpu("0000:17:00.0", "26b9"), Gpu("0000:18:00.0", "26b9")), driver_loaded="580.178.04",
    driver_userspace="580.178.04", toolkit="1.20.1",
)
ENABLED = tuple((unit, True, True, True) for unit in observation.REFRESH_UNITS)
FRESH = observation.CdiObservation(
    path=PATH, spec=read_spec(as_yaml(specification())), driver="580.178.04", reasons=(), toolkit="1.20.1",
    units=ENABLED, elsewhere=(), generated=True, enabled_by_us=(), loaded="580.178.04",
    files={boot.UNIT_FILE: boot.unit_text("/usr/bin/nvidia-ctk", "", "", True), boot.RULE_FILE: boot.RULE},
    boot_enabled=True,
)
NO_UNITS = tuple((unit, False, False, False) for unit in observation.REFRESH_UNITS)
BARE = replace(FRESH, spec=None, driver="", toolkit="", generated=False, units=NO_UNITS, loaded="", files={},
               boot_enabled=False)
WISH = policy.CdiPolicy(True, True)


def test_a_fresh_specification_stays() -> None:
    assert planner.plan(FRESH, WISH, FACTS).steps == ()


def test_a_bare_host_is_planned_as_it_will_be() -> None:
    made = planner.plan(BARE, WISH, FACTS)
    assert [step.action for step in made.steps] == [
        "cdi.generate", "links.create", "service.enable", "service.start", "service.enable", "file.write", "file.write",
        "service.enable",
    ]
    assert "cdi generate" not in made.steps[5].change["after"]
    assert made.steps[0].change == {"before": None, "after": {"driver": "580.178.04", "gpus": 2}}


def test_a_driver_of_the_future_makes_the_specification_stale() -> None:
    facts = FACTS.but(driver_loaded="595.91.07", driver_userspace="595.91.07")
    step, link = planner.plan(FRESH, WISH, facts).steps
    assert link.action == "links.create"
    assert step.change["before"]["driver"] == "580.178.04"
    assert step.change["after"]["driver"] == "595.91.07"


def test_what_an_exchange_of_the_driver_is_planned_to_need_is_done_after_it() -> None:
    facts = FACTS.but(driver_loaded="595.91.07", driver_userspace="595.91.07")
    after = replace(FRESH, driver="595.91.07", loaded="595.91.07")
    assert planner.plan(after, WISH, facts).steps == planner.plan(FRESH, WISH, facts).steps
    waiting = replace(after, undivided=True)
    assert planner.plan(waiting, WISH, facts).steps == ()


def test_stale_devices_are_a_step() -> None:
    (step,) = planner.plan(replace(FRESH, reasons=("it lacks GPU-c",)), WISH, FACTS).steps
    assert "it lacks GPU-c" in step.why


@pytest.mark.parametrize(("changes", "told"), [
    ({"driver_loaded": ""}, "a loaded driver"),
    ({"toolkit": ""}, "the container toolkit"),
    ({"gpus": ()}, "a GPU"),
    ({"driver_userspace": "595.91.07"}, "the activation of driver 595.91.07"),
])
def test_it_waits_and_says_for_what(changes: Dict[str, Any], told: str) -> None:
    made = planner.plan(BARE, WISH, FACTS.but(**changes))
    assert made.steps == ()
    assert told in made.notes[-1]


def test_a_toolkit_of_the_future_makes_the_specification_stale_in_the_words_of_later() -> None:
    facts = FACTS.but(toolkit="1.21.0")
    (step,) = planner.plan(FRESH, WISH, facts).steps
    later = replace(FRESH, toolkit="1.21.0", made_before=True, reasons=("it names /usr/bin/x, which is not there",))
    assert planner.plan(later, WISH, facts).steps == (step,)
    assert planner.plan(replace(FRESH, toolkit="1.21.0-rc.1"), WISH, FACTS.but(toolkit="1.21.0~rc.1")).steps == ()


def test_a_toolkit_without_refresh_units_gets_a_unit_of_ours() -> None:
    seen = replace(FRESH, units=NO_UNITS, toolkit="1.17.9")
    (step,) = planner.plan(seen, WISH, FACTS.but(toolkit="1.17.9")).steps
    assert step.subject == boot.UNIT_FILE
    assert "/usr/bin/nvidia-ctk --quiet cdi generate --output=%s\n" % PATH in step.change["after"]
    upgraded = planner.plan(replace(seen, files={boot.UNIT_FILE: step.change["after"], boot.RULE_FILE: boot.RULE}),
                            WISH, FACTS)
    assert "service.enable" in [step.action for step in upgraded.steps]
    assert upgraded.steps[-1].change["after"] == FRESH.files[boot.UNIT_FILE]


def test_links_that_are_not_wanted_leave_no_unit() -> None:
    quiet = policy.CdiPolicy(True, True, device_links=False)
    assert [step.action for step in planner.plan(FRESH, quiet, FACTS).steps] == [
        "service.disable", "file.remove", "file.remove"]
    assert planner.plan(replace(FRESH, unlinked=("/dev/nvidia0",), files={}, boot_enabled=False), quiet, FACTS).steps \
        == ()


def test_gpus_in_mig_mode_without_devices_are_waited_for() -> None:
    made = planner.plan(replace(FRESH, spec=None, undivided=True), WISH, FACTS)
    assert made.steps == ()
    assert "waits for MIG devices" in made.notes[-1]


def test_other_specifications_go_when_asked_and_come_back() -> None:
    texts = dict.fromkeys(("/etc/cdi/old.yaml", "/var/run/cdi/old.yaml"), "kind: nvidia.com/gpu\n")
    seen = replace(FRESH, elsewhere=tuple(texts), texts=texts)
    assert len(planner.plan(seen, WISH, FACTS).notes) == 2
    made = planner.plan(seen, policy.CdiPolicy(True, True, remove_others=True), FACTS)
    assert ([step.id for step in made.steps], made.notes) == (
        ["cdi/file.remove//etc/cdi/old.yaml", "cdi/cdi.discard//var/run/cdi/old.yaml"], ())


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
    folder = tmp_path / "dev/char"
    folder.mkdir()
    assert links.unlinked(host) == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    for name, target in (("195:0", "../nvidia0"), ("195:255", "../nvidiactl"), ("510:0", "../nvidia-uvm"),
                         ("195:7", "../nvidia7"), ("1:3", "../null")):
        (folder / name).symlink_to(target)
    assert links.unlinked(host) == ("/dev/nvidia-uvm",)
    assert links.misleading(host) == ("/dev/char/510:0",)

    calls: List[Any] = []
    host.run = lambda argv, **_more: calls.append(list(argv))  # type: ignore
    (step,) = planner.plan(replace(FRESH, unlinked=("/dev/nvidia-uvm",)), WISH, FACTS).steps
    executors.EXECUTORS[step.action](host, Journal(host), step)
    assert calls == [["nvidia-ctk", "--quiet", "system", "create-dev-char-symlinks", "--create-all"]]
    assert links.ours(host) == ("/dev/char/195:0", "/dev/char/195:255", "/dev/char/195:7")
    assert Journal(host).recall("cdi") == {"linked": True}

    gone = planner.plan(replace(FRESH, generated=False, links=links.ours(host)), policy.CdiPolicy(False, True), FACTS)
    executors.EXECUTORS[gone.steps[0].action](host, Journal(host), gone.steps[0])
    assert sorted(path.name for path in folder.iterdir()) == ["1:3"]
    assert Journal(host).recall("cdi") == {}


def test_a_specification_older_than_the_program_is_seen(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write(PATH, "")
    host.write("/usr/bin/nvidia-ctk", "", mode=0o755)
    os.utime(tmp_path / PATH.lstrip("/"), (1, 1))
    assert observation._made_before(host, PATH, "/usr/bin/nvidia-ctk")
    host.write(PATH, "")
    assert not observation._made_before(host, PATH, "/usr/bin/nvidia-ctk")
    assert not observation._made_before(host, PATH, None)


def test_only_what_is_ours_goes() -> None:
    absent = policy.CdiPolicy(False, True)
    assert planner.plan(replace(FRESH, generated=False), absent, FACTS).steps == ()
    seen = replace(FRESH, enabled_by_us=("nvidia-cdi-refresh.path",), boot_enabled=False)
    assert [step.action for step in planner.plan(seen, absent, FACTS).steps] == ["service.disable", "cdi.remove"]


def test_a_hook_of_another_toolkit_is_seen() -> None:
    assert read_spec(as_yaml(specification())).hooks == ("/usr/bin/nvidia-cdi-hook",)


def test_a_second_file_conflicts_in_the_same_folder_alone(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    text = as_yaml(specification())
    for path in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/copy.json", PATH):
        host.write(path, text)
    host.write("/var/run/cdi/other.yaml", text.replace("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"))
    others = observation.elsewhere(host, PATH)
    assert list(others) == ["/etc/cdi/nvidia.yaml", "/var/run/cdi/copy.json"]
    assert observation.conflicting(PATH, read_spec(text), others) == ("/var/run/cdi/copy.json",)
    seen = replace(FRESH, elsewhere=tuple(others), conflicting=("/var/run/cdi/copy.json",))
    stay, conflict = planner.plan(seen, WISH, FACTS).notes
    assert "stay in use" in stay and "none of them" in conflict


def test_units_are_enabled_without_a_reload_of_systemd(tmp_path: Path) -> None:
    calls: List[Any] = []

    class Recorder(Host):
        def systemctl(self, *words: str, timeout: float = 180) -> Any:
            calls.append(words)

    host = Recorder(str(tmp_path))
    enabled = planner.plan(BARE, WISH, FACTS).steps[2]
    dict(generic_executors(), **executors.EXECUTORS)[enabled.action](host, Journal(host), enabled)
    assert calls == [("enable", "--no-reload", "nvidia-cdi-refresh.path")]


def test_the_environment_of_the_refresh_unit_is_respected(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert (observation.spec_path(host), observation.refresh_environment(host)) == (PATH, {})
    host.write(observation.REFRESH_ENVIRONMENT, "# ours\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.json\n"
                                                'NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES="uuid"\nPATH=/x\n')
    assert observation.spec_path(host) == "/etc/cdi/nvidia.json"
    assert observation.refresh_environment(host) == {"NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": "uuid"}
    (step,) = planner.plan(replace(FRESH, path="/etc/cdi/nvidia.json", spec=None), WISH, FACTS).steps[:1]
    assert step.subject == "/etc/cdi/nvidia.json"
