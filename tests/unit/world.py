# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host in memory: what plans are made for, and what their steps make of it.

Each kind of step is carried out by the method that is named as its action, 'file.write' by file_write(); each
capability adds the methods of its own actions, and observe(), in <capability>_world.py. A method holds the step to what
it says: what it takes for there before is there, and it disturbs no more than it was said to.
"""
from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional

from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import NEVER_READ, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step

# What a boot empties
PASSING = ("/run/", "/var/run/", "/tmp/", "/dev/")


@dataclass(frozen=True)
class Unit:
    """A unit of systemd: whether its file is there, whether a boot starts it, whether it runs, and whether it ran since
    the boot and failed."""

    known: bool = False
    enabled: bool = False
    active: bool = False
    died: bool = False


@dataclass
class World:
    """What every capability changes alike.

    options:   options of the module that scenarios do not tell.
    facts:     what the host's programs would tell now.
    files:     {path: text}.
    originals: {path: text before our first change of it, None where there was none}.
    units:     {name of a unit: its state}.
    enabled:   units that we enabled.
    """

    capability: ClassVar[Capability[Any, Any]]
    options: ClassVar[Mapping[str, str]] = {}

    facts: HostFacts = field(default_factory=lambda: facts(A100))
    files: Dict[str, str] = field(default_factory=dict)
    originals: Dict[str, Optional[str]] = field(default_factory=dict)
    units: Dict[str, Unit] = field(default_factory=dict)
    enabled: List[str] = field(default_factory=list)

    def observe(self, policy: Any, there: HostFacts) -> Any:
        """The capability's observation of this host, whose facts are these."""
        raise NotImplementedError

    def plan(self, policy: Any, foretold: Optional[Mapping[str, Any]] = None) -> Plan:
        """foretold: facts that a capability before this one will have made others by then."""
        return self.capability.plan(self.observe(policy, self.facts), policy, self.facts.but(**(foretold or {})))

    def apply(self, plan: Plan) -> None:
        for step in plan.steps:
            disturbed = getattr(self, step.action.replace(".", "_"))(step)
            assert (disturbed or Disruption.none) <= step.disruption, "%s disturbs more: %s" % (step.id, disturbed)

    def copy(self: Any) -> Any:
        return copy.deepcopy(self)

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        """What a capability before this one was to bring is there now."""
        self.facts = self.facts.but(**{name: value for name, value in foretold.items() if name not in NEVER_READ})

    def suppose(self, policy: Any) -> None:
        """What the policy says will have happened when its plan is carried out, has happened."""

    def shortcoming(self, policy: Any) -> str:
        """What is wanted and not there although the plan for it was carried out, '' if nothing."""
        return ""

    @property
    def is_touched(self) -> bool:
        """Whether a plan of ours was carried out here, in part at least."""
        return bool(self.originals or self.enabled)

    def of_others(self) -> Dict[str, Any]:
        """What must be as it was once all of ours is taken back."""
        return {"files": dict(self.files), "units that a boot starts": sorted(
            name for name, unit in self.units.items() if unit.enabled)}

    def boot(self) -> None:
        self.facts = self.facts.but(kernel=self.facts.boot_kernel or self.facts.kernel)
        self.files = {path: text for path, text in self.files.items() if not path.startswith(PASSING)}
        self.units = {name: replace(unit, active=unit.known and unit.enabled, died=False)
                      for name, unit in self.units.items()}

    def confirm(self) -> None:
        """Somebody confirms at the console of the next boot what waits for it."""

    def unit(self, name: str) -> Unit:
        return self.units.get(name, Unit())

    def state(self, names: Iterable[str]) -> Dict[str, Optional[str]]:
        """{path: its text, None where there is none}."""
        return {name: self.files.get(name) for name in names}

    # files

    def file_write(self, step: Step) -> None:
        self._replace(step)
        self.files[step.subject] = step.change["after"]

    def file_remove(self, step: Step) -> None:
        self._replace(step)
        del self.files[step.subject]

    def file_restore(self, step: Step) -> None:
        self._shown(step, self.files.get(step.subject))
        before = self.originals.pop(step.subject)
        assert step.change["after"] == before, "%s says that something else comes back" % step.id
        self.files.pop(step.subject, None)
        if before is not None:
            self.files[step.subject] = before

    def _replace(self, step: Step) -> None:
        self._shown(step, self.files.get(step.subject))
        self.originals.setdefault(step.subject, self.files.get(step.subject))

    @staticmethod
    def _shown(step: Step, there: Any) -> None:
        assert step.change["before"] == there, "%s says that another thing is there: %r" % (step.id, there)

    # units

    def service_start(self, step: Step) -> None:
        self.units[step.subject] = replace(self._there(step), active=True, died=False)

    def service_stop(self, step: Step) -> Optional[Disruption]:
        ran = self._there(step).active
        self.units[step.subject] = replace(self._there(step), active=False)
        return Disruption.service_restart if ran else None

    def service_enable(self, step: Step) -> None:
        self.units[step.subject] = replace(self._there(step), enabled=True)
        self.enabled = [name for name in self.enabled if name != step.subject] + [step.subject]

    def service_disable(self, step: Step) -> None:
        self.units[step.subject] = replace(self._there(step), enabled=False)
        self.enabled = [name for name in self.enabled if name != step.subject]

    def service_forget(self, step: Step) -> None:
        assert not self.unit(step.subject).enabled
        self.enabled = [name for name in self.enabled if name != step.subject]

    def _there(self, step: Step) -> Unit:
        """A unit whose file we have just written is there too."""
        unit = self.unit(step.subject)
        if "/etc/systemd/system/" + step.subject in self.files:
            unit = replace(unit, known=True)
        assert unit.known, "%s: there is no such unit" % step.id
        return unit
