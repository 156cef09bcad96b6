# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of all capabilities whose models there are, planned as gpu_plan does: each with the facts that those before it
will leave, and carried out on one set of files, units and facts."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterator, List, Mapping, Tuple

import activation_world
import cdi_world
import driver_world
import nouveau_world
import toolkit_world
import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

KINDS = (nouveau_world.World, driver_world.World, toolkit_world.World, activation_world.World, cdi_world.World)
CAPABILITIES: Dict[str, Capability[Any, Any]] = {kind.capability.name: kind.capability for kind in KINDS}
# What the parts have in common
SHARED = ("facts", "files", "units")


@dataclass(frozen=True)
class Seen:
    """What each capability has observed, by its name."""

    parts: Mapping[str, Any]

    def to_dict(self) -> Dict[str, Any]:
        return {name: part.to_dict() for name, part in self.parts.items()}


def chained(
    seen: Seen, policy: Mapping[str, Any], facts: HostFacts
) -> Iterator[Tuple[Plan, HostFacts]]:
    """(plan, facts once it is done) of each capability, as the one before it leaves them."""
    for name, wanted in policy.items():
        capability, observation = CAPABILITIES[name], seen.parts[name]
        made = capability.plan(observation, wanted, facts)
        facts = capability.facts_after(observation, wanted, facts, made)
        yield made, facts


def whole(seen: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
    total = Plan()
    for made, _facts in chained(seen, policy, facts):
        total = total.merged(made)
    return total


def policies(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Policies by capability, of options that are named as 'driver.version'; in the order in which they are planned. A
    host is taken back in the other direction, as the playbook uninstall does it."""
    names = reversed(CAPABILITIES) if options["driver.state"] == "absent" else CAPABILITIES
    return {name: CAPABILITIES[name].policy_of(
        {option: options["%s.%s" % (name, option)] for option in CAPABILITIES[name].arguments}) for name in names}


@dataclass
class World(world.World):
    """parts: the models of the capabilities, in the order in which they are planned."""

    capability: ClassVar[Capability[Any, Any]] = Capability(
        "host", {"%s.%s" % (capability.name, name): option for capability in CAPABILITIES.values()
                 for name, option in capability.arguments.items()},
        policies, lambda *_words: None, whole,
        facts_after=lambda seen, policy, facts, plan: list(chained(seen, policy, facts))[-1][1])
    options: ClassVar[Mapping[str, str]] = {
        "%s.%s" % (kind.capability.name, name): value for kind in KINDS for name, value in kind.options.items()}

    parts: Dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = {kind.capability.name: kind(self.facts, self.files) for kind in KINDS}

    def observe(self, policy: Mapping[str, Any], there: HostFacts) -> Seen:
        self._lend()
        return Seen({name: part.observe(policy[name], there) for name, part in self.parts.items()})

    @property
    def is_touched(self) -> bool:
        return any(part.is_touched for part in self.parts.values())

    def of_others(self) -> Dict[str, Any]:
        self._lend()
        return {"%s, %s" % (name, what): value for name, part in self.parts.items()
                for what, value in part.of_others().items()}

    def apply(self, plan: Plan) -> None:
        assert not plan.reboot_required, "what comes after a reboot is another run"
        for step in plan.steps:
            self._act(step.capability, lambda part, step=step: part.apply(Plan(steps=(step,))))

    def suppose(self, policy: Mapping[str, Any]) -> None:
        for name in self.parts:
            self._act(name, lambda part, name=name: part.suppose(policy[name]))

    def boot(self) -> None:
        for name in self.parts:
            self._act(name, lambda part: part.boot())

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        raise AssertionError("nobody comes before a whole host")

    def _lend(self) -> None:
        for part in self.parts.values():
            vars(part).update({name: getattr(self, name) for name in SHARED})

    def _act(self, name: str, act: Any) -> None:
        """One part acts; the others learn which facts it has changed."""
        self._lend()
        before = vars(self.facts)
        act(self.parts[name])
        self._take(self.parts[name])
        changed = {fact: value for fact, value in vars(self.facts).items() if before[fact] != value}
        for other in self.parts.values() if changed else ():
            if other is not self.parts[name]:
                other.files, other.units = self.files, self.units
                other.come_true({**changed, "driver_by_runfile": self.parts["driver"].of_installer})
                assert other.facts == self.facts, "two parts of a host tell different facts"
                self._take(other)

    def _take(self, part: Any) -> None:
        for name in SHARED:
            setattr(self, name, getattr(part, name))

    def say_container(self, *words: str) -> None:
        """The driver finds whose driver is loaded, the activation what is left of it."""
        for name in ("driver", "activation"):
            self._act(name, lambda part: part.say_container(*words))

    def __getattr__(self, name: str) -> Any:
        """What scenarios say is said to the part that knows the word."""
        known: List[str] = [kind.capability.name for kind in KINDS if hasattr(kind, name)]
        if not name.startswith("say_") or not known:
            raise AttributeError(name)
        return lambda *words: self._act(known[0], lambda part: getattr(part, name)(*words))
