# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an Ansible module to a capability and back: options in, result out, errors mapped once."""
from __future__ import annotations

import os
from typing import Any, Callable, Dict

from ansible.module_utils.basic import AnsibleModule

from . import libraries
from .capability import Capability, Outcome, Run
from .errors import GpuOpsError, LibraryMissing
from .facts import HostFacts
from .host import Host
from .plan import Disruption, Step, render

LIBRARY_ARGUMENTS: Dict[str, Any] = {"libraries": {"type": "path"}}

WRITER_ARGUMENTS: Dict[str, Any] = dict(
    LIBRARY_ARGUMENTS,
    allowed_disruption={"type": "str", "default": "driver_reload", "choices": Disruption.names()},
    approved_steps={"type": "list", "elements": "dict"},
    resumed_step={"type": "str", "default": ""},
)


def run_reader(
    arguments: Dict[str, Any], read: Callable[[Host, Dict[str, Any]], Dict[str, Any]], as_root: bool = False
) -> None:
    """Main function of a module that changes nothing: read(host, parameters) gives the result's keys.

    as_root: whether an answer without root's eyes would be wrong; else it is given with a warning.
    """
    module = AnsibleModule(argument_spec=dict(arguments, **LIBRARY_ARGUMENTS), supports_check_mode=True)
    if not as_root and os.geteuid() != 0:
        module.warn(str(_without_root()))
    finish(module, lambda: dict(read(Host(), module.params), changed=False), as_root)


def run_writer(capability: Capability[Any, Any], read_facts: Callable[[Host], HostFacts]) -> None:
    """Main function of a capability's module."""
    module = AnsibleModule(argument_spec=dict(capability.arguments, **WRITER_ARGUMENTS), supports_check_mode=True)
    approved = module.params["approved_steps"]

    def write() -> Dict[str, Any]:
        run = Run(
            capability,
            {name: module.params[name] for name in capability.arguments},
            Host(),
            read_facts,
            Disruption[module.params["allowed_disruption"]],
            None if approved is None else [Step.from_dict(step) for step in approved
                                           if step.get("capability") == capability.name],
            module.params["resumed_step"],
        )
        return writer_result(run.preview() if module.check_mode else run.apply(), module._diff)

    finish(module, write)


def writer_result(outcome: Outcome, with_diff: bool) -> Dict[str, Any]:
    """The keys of a writer's result, the same in check mode."""
    result: Dict[str, Any] = {
        "changed": bool(outcome.applied) or outcome.awaiting is not None,
        "plan": outcome.plan.to_dict(),
        "text": render(outcome.plan),
        "applied": outcome.applied,
        "put_off": [step.to_dict() for step in outcome.put_off],
        "reboot_required": any(step.disruption is Disruption.reboot for step in outcome.put_off),
    }
    if outcome.awaiting is not None:
        result["awaiting"] = outcome.awaiting.to_dict()
    if with_diff:
        result["diff"] = outcome.plan.diff()
    return result


def finish(module: AnsibleModule, work: Callable[[], Dict[str, Any]], as_root: bool = False) -> None:
    """Do the work and end the module: its result, or what the error says."""
    libraries.use_archive(module.params["libraries"] or "")
    try:
        if as_root and os.geteuid() != 0:
            raise _without_root()
        result = work()
    except LibraryMissing as missing:
        module.fail_json(msg="The library archive %s is not on this host." % missing, libraries_missing=True)
    except GpuOpsError as error:
        module.fail_json(**error.result())
    else:
        module.exit_json(**result)


def _without_root() -> GpuOpsError:
    return GpuOpsError(
        found="the module runs as user %d on the host" % os.geteuid(),
        wanted="root: what others may not read looks to them as if it were not there",
        remedy="set 'become: true' for the task or the play, or 'ansible_become: true' in the inventory",
    )
