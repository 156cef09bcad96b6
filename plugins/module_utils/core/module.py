# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an Ansible module to a capability and back: options in, result out, errors mapped once."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible.module_utils.basic import AnsibleModule

from . import kept
from .applying import WRITER_ARGUMENTS, apply_alone, writer_result
from .capability import Capability, Run
from .errors import GpuOpsError
from .facts import HostFacts
from .host import Host
from .lock import HostLock, unlooked
from .plan import Disruption, readable
from .rights import TO_READ, asked_by, not_root, require_root
from .secrets import masked, passwords


class Module(AnsibleModule):
    """Whose options may be URLs with a password, which no result shows; Ansible hides options only as a whole.

    What an error tells is hidden wherever it reads like the password. A plan is compared later, and a password may be
    any word of it: there it is hidden only where it stands in a URL, and a plan has no other place for it.
    """

    def exit_json(self, **result: Any) -> None:
        result.setdefault("invocation", {"module_args": self.params})
        super().exit_json(**readable(masked(result, self.params)))

    def fail_json(self, msg: str, **result: Any) -> None:
        self.no_log_values.update(passwords(self.params))
        super().fail_json(readable(msg), **readable(result))


def no_secrets(parameters: Mapping[str, Any]) -> Iterable[str]:
    """The `hidden` of a module whose secrets are options of its own."""
    return ()


def run_reader(
    arguments: Dict[str, Any], read: Callable[[Host, Dict[str, Any]], Dict[str, Any]],
    hidden: Callable[[Mapping[str, Any]], Iterable[str]] = no_secrets,
) -> None:
    """Main function of a module that changes nothing: read(host, parameters) gives the result's keys.

    hidden: secrets among the parameters, beside those that Ansible hides.

    Without root's eyes it is asked with a warning; where the answer would be wrong, it is to refuse (see require_root).
    """
    module = Module(argument_spec=arguments, supports_check_mode=True)
    module.no_log_values.update(hidden(module.params))
    host = Host()
    if not host.is_root():
        module.warn(str(not_root(TO_READ)))
    finish(module, lambda: dict(read(host, module.params), changed=False))


def run_writer(capability: Capability[Any, Any], read_facts: Callable[[Host, Dict[str, Any]], HostFacts]) -> None:
    """Main function of a capability's module. read_facts: the facts of a host, for the module's parameters."""
    module = Module(argument_spec=dict(capability.arguments, **WRITER_ARGUMENTS), supports_check_mode=True)
    approved = module.params["approved_plan"]

    def write() -> Dict[str, Any]:
        host = Host()
        require_root(host)
        run = Run(
            capability,
            {name: module.params[name] for name in capability.arguments},
            host,
            lambda host: read_facts(host, module.params),
            Disruption[module.params["allowed_disruption"]],
            None if approved is None else kept.approved(host, approved, capability.name),
            module.params["resumed_step"],
            module.params["transaction_failed"],
        )
        if module.check_mode:
            with unlooked(host):
                return writer_result(run.preview(), module._diff)
        run_id = module.params["run_id"]
        lock = HostLock(host, run_id, "%s for %s" % (module._name, _wanted_by(run_id)))
        outcome, waited = apply_alone(run, lock, module.params["lock_timeout"])
        if waited:
            module.warn("Waited for another run: %s." % waited)
        return writer_result(outcome, module._diff)

    finish(module, write)


def _wanted_by(run_id: str) -> str:
    """'user@controller' as the action plugin names it, else who logged in here."""
    return run_id.rpartition(" ")[0] or asked_by()


def finish(module: AnsibleModule, work: Callable[[], Dict[str, Any]], as_root: bool = False) -> None:
    """Do the work and end the module: its result, or what the error says."""
    try:
        if as_root:
            require_root(Host(), TO_READ)
        result = work()
    except GpuOpsError as error:
        module.fail_json(**error.result())
    else:
        module.exit_json(**result)
