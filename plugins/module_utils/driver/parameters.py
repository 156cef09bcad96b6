# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which parameters NVIDIA's kernel modules are loaded with: the policy's, and what a coherent board needs. Pure."""
from __future__ import annotations

from typing import Dict, List

from ..core.facts import OPEN, HostFacts
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import file_step, managed, restore_step
from ..hardware.boards import is_coherent
from ..hardware.parameters import COHERENT_MODE, PARAMETERS_FILE, differing, is_same, parameters_in
from . import catalogue
from .observation import Observation
from .policy import Policy
from .target import Target

NAME = "driver"


def wanted_parameters(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Dict[str, str]:
    """{parameter: value}. The memory of a coherent board is the driver's own, where it can be: as NUMA nodes of the
    host it would be given to any program, Kubernetes' own included. An administrator's file that says whose it is
    counts where the policy does not say it."""
    wanted = dict(policy.module_parameters)
    if policy.coherent_memory != "auto":
        wanted[COHERENT_MODE] = policy.coherent_memory
    elif COHERENT_MODE not in observation.set_elsewhere and not _objection(facts, target):
        wanted.setdefault(COHERENT_MODE, "driver")
    return wanted


def _objection(facts: HostFacts, target: Target) -> str:
    """Why the mode of a coherent memory cannot be chosen, '' where it can."""
    if not facts.gpus or not all(is_coherent(gpu.device_id) for gpu in facts.gpus):
        return "GPUs whose memory is not coherent with the processor's (%s)" % (", ".join(
            "10de:" + gpu.device_id for gpu in facts.gpus) or "none")
    if catalogue.branch_wanted(target.version) < catalogue.FIRST_COHERENT_MODE:
        return "driver %s, which has no such mode before branch %d" % (
            target.version, catalogue.FIRST_COHERENT_MODE)
    return ""


def refusals(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    found = []
    objection = _objection(facts, target) if policy.coherent_memory != "auto" else ""
    if objection:
        found.append(Refusal(
            "driver.memory_not_coherent", objection, "`coherent_memory` %s" % policy.coherent_memory,
            "set `coherent_memory` to `auto`", option="coherent_memory"))
    wanted = wanted_parameters(observation, policy, facts, target)
    others = ["%s sets %s=%s" % (path, name, value)
              for name in sorted(wanted) for path, value in sorted(observation.set_elsewhere.get(name, {}).items())
              if not is_same(value, wanted[name])]
    if others:
        found.append(Refusal(
            "driver.parameter_set_elsewhere", "; ".join(others),
            ", ".join("%s=%s" % (name, wanted[name]) for name in sorted(wanted)),
            "take it out of that file, or give `module_parameters` the same value", option="module_parameters"))
    return found


def steps(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Step]:
    """The file of modprobe.d that is ours; without parameters it is as it was before us."""
    wanted = wanted_parameters(observation, policy, facts, target)
    before = observation.files.get(PARAMETERS_FILE)
    if not wanted:
        return [restore_step(NAME, PARAMETERS_FILE, before, observation.originals[PARAMETERS_FILE])] \
            if PARAMETERS_FILE in observation.originals else []
    text = parameters_text(wanted, policy, facts, target)
    return [] if before == text else [file_step(
        NAME, PARAMETERS_FILE, before, text, "The kernel modules are loaded with these parameters.")]


def parameters_text(wanted: Dict[str, str], policy: Policy, facts: HostFacts, target: Target) -> str:
    lines = []
    for name, value in sorted(wanted.items()):
        module, _dot, parameter = name.partition(".")
        lines.append("options %s %s=%s\n" % (_module(module, policy, facts, target), parameter, value))
    return managed("".join(lines))


def _module(module: str, policy: Policy, facts: HostFacts, target: Target) -> str:
    """The name by which a package has it: options(5) go by that of the file, and Debian's own is an alternative."""
    if facts.os_id != "debian" or not policy.comes_from.of_distribution:
        return module.replace("_", "-")
    name = "nvidia-current-open" if target.module == OPEN else "nvidia-current"
    return module.replace("nvidia", name, 1).replace("_", "-")


def notes(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[str]:
    """What is loaded and comes back to the driver's own value only with the next load."""
    if not facts.driver_loaded:
        return []
    gone = sorted(set(parameters_in(observation.files.get(PARAMETERS_FILE) or "")).difference(
        wanted_parameters(observation, policy, facts, target)))
    return ["The loaded driver keeps %s until it is loaded anew." % ", ".join(gone)] if gone else []


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> HostFacts:
    differ = differing(wanted_parameters(observation, policy, facts, target), observation.loaded_parameters)
    return facts.but(parameters_differ=differ if facts.driver_loaded else ())
