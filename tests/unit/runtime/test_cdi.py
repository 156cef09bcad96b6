# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CDI specifications as nvidia-ctk writes them, and when they are stale."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cdi import executors, observation, planner, policy
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


@pytest.mark.parametrize(("required", "known", "count", "reasons"), [
    ({"GPU-a", "GPU-b"}, {"GPU-a", "GPU-b"}, 2, []),
    ({"GPU-a", "GPU-c"}, {"GPU-a", "GPU-b", "GPU-c"}, 3, ["it lacks GPU-c"]),
    ({"GPU-a"}, {"GPU-a"}, 1, ["it names GPU-b, which is not there"]),
    ({"GPU-a", "MIG-1"}, {"GPU-a", "GPU-b", "MIG-1"}, 2, ["it lacks MIG-1"]),
])
def test_what_does_not_fit_is_named(required: Any, known: Any, count: int, reasons: List[str]) -> None:
    assert outdated(read_spec(as_yaml(specification())), required, known, count) == reasons


def test_names_by_index_alone_are_counted() -> None:
    assert outdated(Spec("nvidia.com/gpu", ("0", "1", "all"), (), ()), {"GPU-a"}, {"GPU-a"}, 1) == [
        "it names 2 GPUs, there are 1"
    ]


FACTS = HostFacts(
    gpus=(Gpu("0000:17:00.0", "26b9"), Gpu("0000:18:00.0", "26b9")), driver_loaded="580.178.04",
    driver_userspace="580.178.04", toolkit="1.20.1",
)
ENABLED = tuple((unit, True, True, True) for unit in observation.REFRESH_UNITS)
FRESH = observation.CdiObservation(
    path=PATH, spec=read_spec(as_yaml(specification())), driver="580.178.04", reasons=(), toolkit=True, units=ENABLED,
    elsewhere=(), generated=True, enabled_by_us=(),
)
BARE = replace(FRESH, spec=None, driver="", toolkit=False, generated=False,
               units=tuple((unit, False, False, False) for unit in observation.REFRESH_UNITS))
WISH = policy.CdiPolicy(True, True)


def test_a_fresh_specification_stays() -> None:
    assert planner.plan(FRESH, WISH, FACTS).steps == ()


def test_a_bare_host_is_planned_as_it_will_be() -> None:
    made = planner.plan(BARE, WISH, FACTS)
    assert [step.action for step in made.steps] == [
        "cdi.generate", "service.enable", "service.start", "service.enable",
    ]
    assert made.steps[0].change == {"before": None, "after": {"driver": "580.178.04", "gpus": 2}}


def test_a_driver_of_the_future_makes_the_specification_stale() -> None:
    facts = FACTS.but(driver_loaded="595.91.07", driver_userspace="595.91.07")
    (step,) = planner.plan(FRESH, WISH, facts).steps
    assert step.change["before"]["driver"] == "580.178.04"
    assert step.change["after"]["driver"] == "595.91.07"


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


def test_a_toolkit_without_refresh_units_is_left_as_it_is() -> None:
    seen = replace(FRESH, units=tuple((unit, False, False, False) for unit in observation.REFRESH_UNITS))
    assert planner.plan(seen, WISH, FACTS).steps == ()


def test_only_what_is_ours_goes() -> None:
    absent = policy.CdiPolicy(False, True)
    assert planner.plan(replace(FRESH, generated=False), absent, FACTS).steps == ()
    seen = replace(FRESH, enabled_by_us=("nvidia-cdi-refresh.path",))
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
    enabled = planner.plan(BARE, WISH, FACTS).steps[1]
    executors.EXECUTORS[enabled.action](host, Journal(host), enabled)
    assert calls == [("enable", "--no-reload", "nvidia-cdi-refresh.path")]


def test_the_environment_of_the_refresh_unit_is_respected(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert (observation.spec_path(host), observation.refresh_environment(host)) == (PATH, {})
    host.write(observation.REFRESH_ENVIRONMENT, "# ours\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.json\n"
                                                'NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES="uuid"\nPATH=/x\n')
    assert observation.spec_path(host) == "/etc/cdi/nvidia.json"
    assert observation.refresh_environment(host) == {"NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": "uuid"}
    (step,) = planner.plan(replace(FRESH, path="/etc/cdi/nvidia.json", spec=None), WISH, FACTS).steps
    assert step.subject == "/etc/cdi/nvidia.json"
