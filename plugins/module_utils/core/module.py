# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an Ansible module to a capability and back: options in, result out, errors mapped once."""
from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

from . import libraries
from .approval import read_approved
from .capability import Capability, Outcome, Run, Transactions
from .errors import GpuOpsError, LibraryMissing
from .facts import HostFacts
from .host import Host
from .lock import HostLock
from .plan import Disruption, render
from .secrets import passwords

LIBRARY_ARGUMENTS: Dict[str, Any] = {"libraries": {"type": "path"}}

WRITER_ARGUMENTS: Dict[str, Any] = dict(
    LIBRARY_ARGUMENTS,
    allowed_disruption={"type": "str", "default": "driver_reload", "choices": Disruption.names()},
    approved_plan={"type": "dict"},
    lock_timeout={"type": "int", "default": 600},
    resumed_step={"type": "str", "default": ""},
    run_id={"type": "str", "default": ""},
    transaction_failed={"type": "bool", "default": False},
)


def run_reader(
    arguments: Dict[str, Any], read: Callable[[Host, Dict[str, Any]], Dict[str, Any]]
) -> None:
    """Main function of a module that changes nothing: read(host, parameters) gives the result's keys."""
    module = AnsibleModule(argument_spec=dict(arguments, **LIBRARY_ARGUMENTS), supports_check_mode=True)
    _hide_passwords(module)
    finish(module, lambda: dict(read(Host(), module.params), changed=False))


def run_writer(
    capability: Capability[Any, Any],
    read_facts: Callable[[Host], HostFacts],
    transactions: Optional[Transactions] = None,
) -> None:
    """Main function of a capability's module."""
    module = AnsibleModule(argument_spec=dict(capability.arguments, **WRITER_ARGUMENTS), supports_check_mode=True)
    _hide_passwords(module)
    approved = module.params["approved_plan"]

    def write() -> Dict[str, Any]:
        host = Host()
        require_root(host)
        run = Run(
            capability,
            {name: module.params[name] for name in capability.arguments},
            host,
            read_facts,
            Disruption[module.params["allowed_disruption"]],
            None if approved is None else read_approved(approved, capability.name),
            module.params["resumed_step"],
            transactions,
            module.params["transaction_failed"],
        )
        if module.check_mode:
            return writer_result(run.preview(), module._diff)
        run_id = module.params["run_id"]
        lock = HostLock(host, run_id, "%s for %s" % (module._name, _wanted_by(run_id)))
        outcome, waited = apply_alone(run, lock, module.params["lock_timeout"])
        if waited:
            module.warn("Waited for another run: %s." % waited)
        return writer_result(outcome, module._diff)

    finish(module, write)


def apply_alone(run: Run, lock: HostLock, timeout: float) -> Tuple[Outcome, str]:
    """(what the run did, another run that it waited for); the lock is held from before it observes.

    Where the controller has to go on, the lock is its own until the next call of the same run.
    """
    with lock.held(timeout) as waited:
        outcome = run.apply()
        if outcome.awaiting is not None:
            lock.hand_over()
    return outcome, waited


def require_root(host: Host) -> None:
    """Raises GpuOpsError unless this process may change the host."""
    if not host.is_root():
        raise GpuOpsError(
            found="a module that runs as uid %d" % os.geteuid(),
            wanted="the rights of root: it changes drivers, services and files of the system",
            remedy="set 'become: true' on the play or the task (ansible_become in the inventory); nothing was changed",
        )


def _wanted_by(run_id: str) -> str:
    """'user@controller' as the action plugin names it, else who logged in here."""
    return run_id.rpartition(" ")[0] or os.environ.get("SUDO_USER") or "uid %d" % os.geteuid()


def _hide_passwords(module: AnsibleModule) -> None:
    """A URL may carry a password, and is no secret as a whole: the password alone leaves every result."""
    module.no_log_values.update(passwords(module.params))


def writer_result(outcome: Outcome, with_diff: bool) -> Dict[str, Any]:
    """The keys of a writer's result, the same in check mode."""
    result: Dict[str, Any] = {
        "changed": bool(outcome.applied) or outcome.awaiting is not None,
        "plan": outcome.plan.to_dict(),
        "text": render(outcome.plan),
        "applied": outcome.applied,
        "put_off": [step.to_dict() for step in outcome.put_off],
        "reboot_required": outcome.plan.reboot_required,
    }
    if outcome.awaiting is not None:
        result["awaiting"] = outcome.awaiting.to_dict()
    if with_diff:
        result["diff"] = outcome.plan.diff()
    return result


def finish(module: AnsibleModule, work: Callable[[], Dict[str, Any]]) -> None:
    """Do the work and end the module: its result, or what the error says."""
    libraries.use_archive(module.params["libraries"] or "")
    try:
        result = work()
    except LibraryMissing as missing:
        module.fail_json(msg="The library archive %s is not on this host." % missing, libraries_missing=True)
    except GpuOpsError as error:
        module.fail_json(**error.result())
    else:
        module.exit_json(**result)
