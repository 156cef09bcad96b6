# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the CDI specification do to a host in memory: its device nodes, the file and the links."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi import boot, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi.observation import REFRESH_UNITS, Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi.spec import KIND, PATH, Spec, outdated, read_spec
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CONTROL_NODES, CUDA_NODES, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.versions import version_key
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import ROOT
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import Mig
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu

LINKS = {"links": "to NVIDIA's device nodes"}


@dataclass
class World(world.World):
    """
    path, spec:  where the specification is, and what it describes.
    made_with:   version of the toolkit that made it.
    generated:   whether we wrote it.
    mig:         {index of a GPU in MIG mode: UUIDs of its devices}.
    nodes:       device nodes in /dev.
    linked:      those of them that a link under /dev/char leads to.
    noted_links: whether we have noted that we made links.
    driver_root: where the environment of the toolkit's unit has the driver.
    """

    capability = CAPABILITY

    path: str = PATH
    spec: Optional[Spec] = None
    made_with: str = ""
    generated: bool = False
    mig: Dict[int, Tuple[str, ...]] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    linked: Set[str] = field(default_factory=set)
    noted_links: bool = False
    driver_root: str = ""

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        answers = policy.present and there.driver_loaded and there.driver_loaded == there.driver_userspace
        gpus = self._gpus() if answers else []
        others = {path: spec for path, spec in ((path, read_spec(text)) for path, text in self.files.items())
                  if spec.kind == KIND}
        return Observation(
            path=self.path, spec=self.spec, driver=there.driver_loaded if answers else "",
            reasons=self._stale(there, gpus) if self.spec else (), toolkit=there.toolkit,
            units=tuple((name, unit.known, unit.enabled, unit.active)
                        for name, unit in ((name, self.unit(name)) for name in REFRESH_UNITS)),
            elsewhere=tuple(others),
            conflicting=observation.conflicting(self.path, self.spec, others) if self.spec else (),
            generated=self.generated, enabled_by_us=() if policy.present else tuple(self.enabled),
            loaded=there.driver_loaded, module=there.module_loaded,
            made_before=self.spec is not None and self.made_with != _as_read(there.toolkit),
            undivided=bool(gpus) and all(gpu.is_divided and not gpu.mig_devices for gpu in gpus),
            unlinked=tuple(node for node in self.nodes if node not in self.linked),
            links=tuple(sorted(self.linked)) if self.noted_links and not policy.present else (),
            files=self.state((boot.UNIT_FILE, boot.RULE_FILE)), boot_enabled=self.unit(boot.UNIT).enabled,
            texts={path: self.files[path] for path in others} if policy.remove_others else {},
            restore=() if policy.present else tuple(
                restore_step("cdi", path, self.files.get(path), text) for path, text in self.originals.items()),
            driver_root=self.driver_root)

    def _stale(self, there: HostFacts, gpus: List[NvmlGpu]) -> Tuple[str, ...]:
        spec = self.spec
        assert spec is not None
        reasons = ["it names %s, which is not there" % node for node in spec.nodes if node not in self.nodes][:1]
        if not gpus:
            return tuple(reasons)
        if spec.driver != there.driver_loaded:
            reasons.append("it is for driver %s, %s is loaded" % (spec.driver, there.driver_loaded))
        return (*reasons, *outdated(spec, gpus), *observation.unnamed_nodes(spec, there.control_nodes))

    def _gpus(self) -> List[NvmlGpu]:
        on = [number in self.mig for number in range(len(self.facts.gpus))]
        return [NvmlGpu(index=number, uuid="GPU-%d" % number, mig=Mig(is_on, is_on, devices=self.mig.get(number, ())))
                for number, is_on in enumerate(on)]

    @property
    def is_touched(self) -> bool:
        return super().is_touched or self.generated or self.noted_links

    def of_others(self) -> Dict[str, Any]:
        return {**super().of_others(), "specification is ours": self.generated, "links": sorted(self.linked)}

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        """A driver that is loaded makes its nodes anew; a toolkit brings its units since 1.18."""
        before = self.facts
        super().come_true(foretold)
        if (before.driver_loaded, before.module_loaded) != (self.facts.driver_loaded, self.facts.module_loaded):
            self.linked = set()
        if self.facts.driver_loaded:
            # A node that an earlier load left is there too, and leads nowhere
            self.nodes = tuple(dict.fromkeys((
                *self.nodes, *("/dev/nvidia%d" % number for number, _gpu in enumerate(self.facts.gpus)),
                *self.facts.control_nodes)))
        if self.facts.toolkit != before.toolkit and version_key(self.facts.toolkit) >= planner.UNITS_SINCE:
            for name in REFRESH_UNITS:
                self.units[name] = replace(self.unit(name), known=True)

    def boot(self) -> None:
        """Nodes come with the driver; the units that a boot starts do what their files say."""
        super().boot()
        self.linked = set()
        if self.path.startswith(world.PASSING):
            self.spec = None
        ours = self.files.get(boot.UNIT_FILE, "") if self.unit(boot.UNIT).enabled else ""
        if self.facts.driver_loaded and "create-dev-char-symlinks" in ours:
            self.linked = set(self.nodes)
        if self.facts.driver_loaded and ("cdi generate" in ours or self.unit(boot.REFRESH_SERVICE).enabled):
            self._generate()

    def _have(self, nodes: Tuple[str, ...]) -> None:
        self.nodes = tuple(dict.fromkeys(self.nodes + nodes))
        self.facts = self.facts.but(control_nodes=tuple(node for node in CONTROL_NODES if node in self.nodes))

    def _generate(self, *without: str) -> None:
        gpus = self._gpus()
        whole = [gpu for gpu in gpus if not gpu.is_divided]
        parts = [("%d:%d" % (gpu.index, number), uuid) for gpu in gpus for number, uuid in enumerate(gpu.mig_devices)]
        self.spec = Spec(
            KIND, (*(name for gpu in whole for name in (str(gpu.index), gpu.uuid)),
                   *(name for part in parts for name in part), "all"),
            tuple(node for node in self.nodes if node not in without),
            ("/usr/lib/x86_64-linux-gnu/libcuda.so." + self.facts.driver_loaded, "/usr/bin/nvidia-smi"))
        self.made_with = _as_read(self.facts.toolkit)

    # verbs

    def cdi_generate(self, step: Step) -> None:
        assert self.facts.driver_loaded and self.facts.toolkit and step.subject == self.path
        assert step.change["after"] == {
            "driver": self.facts.driver_loaded, "gpus": len(self.facts.gpus), "fresh": True}
        self._have(CUDA_NODES)
        self._generate()
        self.generated = True

    def cdi_remove(self, step: Step) -> None:
        assert self.spec is not None
        self._shown(step, {"driver": self.spec.driver, "gpus": self.spec.gpus})
        self.spec, self.generated = None, False

    def cdi_discard(self, step: Step) -> None:
        self._shown(step, self.files.pop(step.subject))

    def links_create(self, step: Step) -> None:
        self.linked, self.noted_links = set(self.nodes), True

    def links_remove(self, step: Step) -> None:
        self._shown(step, LINKS)
        self.linked, self.noted_links = set(), False

    # what scenarios say

    def say_ready(self, driver: str = "580.178.04", toolkit: str = "1.20.1") -> None:
        """The driver is loaded, its nodes are there, and the toolkit is installed."""
        self.come_true({"driver_installed": driver, "driver_userspace": driver, "driver_loaded": driver,
                        "control_nodes": CONTROL_NODES, "toolkit": toolkit})

    def say_mig(self, index: str, *devices: str) -> None:
        """A GPU is in MIG mode, and has these devices."""
        self.mig[int(index)] = devices

    def say_gpus(self, number: str) -> None:
        """So many are there."""
        self.facts = self.facts.but(gpus=(self.facts.gpus * int(number))[:int(number)])
        self.come_true({})

    def say_written(self, *without: str) -> None:
        """The toolkit's unit writes the specification; these nodes it did not find."""
        self._generate(*without)

    def say_contained(self) -> None:
        """The specification was written with a driver container's file system as the driver's root."""
        assert self.spec is not None
        self.spec = replace(self.spec, sources=tuple(ROOT + path for path in self.spec.sources))

    def say_environment(self, root: str = "") -> None:
        """Where that of the toolkit's unit has the driver."""
        self.driver_root = root

    def say_unlinked(self, *nodes: str) -> None:
        self.linked -= set(nodes)

    def say_path(self, path: str) -> None:
        """Where the environment of the toolkit's unit has the specification."""
        self.path = path


def _as_read(version: str) -> str:
    """A toolkit's version as its program tells it, of that of its package."""
    return version.replace("~", "-")
