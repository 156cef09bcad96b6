# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a role's variables to the options of a module, in one step.

A variable is the role's own word for an option: `container_runtime_handler` is the option `handler` of the module
container_runtime. A task that says `from_variables` has every option that it does not give itself from there: as the
task sees the variable, else as the role's defaults have it. So a play need not run a role to plan with its variables.
"""
from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import AbstractSet, Any, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

import ansible.errors
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.validation import check_type_dict
from ansible.module_utils.common.yaml import yaml_load

from ..module_utils.activation import policy as activation
from ..module_utils.agent import policy as agent
from ..module_utils.cdi import policy as cdi
from ..module_utils.core.arguments import complaints
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.secrets import without_passwords
from ..module_utils.driver import policy as driver
from ..module_utils.fabric import policy as fabric
from ..module_utils.imex import policy as imex
from ..module_utils.mig import policy as mig
from ..module_utils.nouveau import policy as nouveau
from ..module_utils.repair import policy as repair
from ..module_utils.runtime import policy as runtime
from ..module_utils.settings import policy as settings
from ..module_utils.toolkit import policy as toolkit
from ..module_utils.validation import arguments as validation
from ..module_utils.vgpu import policy as vgpu

try:
    from ansible.template import trust_as_template
except ImportError:
    # Before ansible-core 2.19 every text is a template
    def trust_as_template(value: str) -> str:
        return value

ROLES = Path(__file__).resolve().parents[2] / "roles"
# What a variable is that is set to {{ omit }}, since ansible-core 2.19
OMITTED: Tuple[Any, ...] = tuple(
    getattr(ansible.errors, name) for name in ("AnsibleValueOmittedError",) if hasattr(ansible.errors, name))
# Options that every module has which changes a host, as far as they are variables
OF_WRITERS = ("allowed_disruption", "approved_plan")
VALIDATION = "gpu_validation"
# Whose option it is what all others are to do
AGENT, ITS_POLICY = "node_agent", "policy"
# Of gpu_plan: the capabilities that are planned, without others
ONLY = "only"
# How alike names are of which one is the other with a slip in it (difflib's ratio)
ALIKE = 0.9


@dataclass(frozen=True)
class Source:
    """Where a module's options come from.

    capability: what the module plans and applies: its option of gpu_plan.
    role:       whose variables they are.
    prefix:     what stands before an option in the name of the variable that is the option's alone. An option that has
                none of that name shares one with other modules of the role.
    options:    the module's options, as an Ansible argument specification.
    read_as:    {option: {value of the shared variable: what that is for this module}}
    """

    capability: str
    role: str
    prefix: str
    options: Mapping[str, Any]
    read_as: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def variable(self, option: str, specified: AbstractSet[str]) -> str:
        """The variable behind an option, among those that the role specifies; '' where the option is none."""
        for name in (self.prefix + option, "%s_%s" % (self.role, option)):
            if name in specified:
                return name
        return ""


SOURCES: Dict[str, Source] = {
    "gpu_driver": Source("driver", "gpu_driver", "gpu_driver_", driver.ARGUMENTS),
    "gpu_driver_activation": Source("activation", "gpu_driver", "gpu_driver_", activation.ARGUMENTS, {
        "state": {"staged": "present", "rolled_back": "present"}, "fabric_manager": {"present": "auto"}}),
    "gpu_repair": Source("repair", "gpu_repair", "gpu_repair_", repair.ARGUMENTS),
    "fabric_manager": Source("fabric", "fabric_manager", "fabric_manager_", fabric.ARGUMENTS),
    "imex": Source("imex", "imex", "imex_", imex.ARGUMENTS),
    "nouveau": Source("nouveau", "gpu_driver", "gpu_driver_", nouveau.ARGUMENTS, {
        "state": {"staged": "present", "rolled_back": "present"}}),
    "container_toolkit": Source("toolkit", "container_toolkit", "container_toolkit_", toolkit.ARGUMENTS),
    "gpu_settings": Source("settings", "gpu_settings", "gpu_settings_", settings.ARGUMENTS),
    "mig": Source("mig", "mig", "mig_", mig.ARGUMENTS),
    "container_runtime": Source("runtime", "container_runtime", "container_runtime_", runtime.ARGUMENTS),
    "cdi_spec": Source("cdi", "container_runtime", "container_runtime_cdi_", cdi.ARGUMENTS),
    "vgpu_license": Source("vgpu", "vgpu_license", "vgpu_license_", vgpu.ARGUMENTS),
    "node_agent": Source("agent", "node_agent", "node_agent_", agent.ARGUMENTS),
    VALIDATION: Source("validation", "gpu_validation", "gpu_validation_", validation.ARGUMENTS),
}


@functools.lru_cache(maxsize=None)
def specified(role: str) -> Mapping[str, Any]:
    """{variable: its specification} of a role, whichever of its entry points it is of."""
    points = yaml_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {name: option for point in points.values() for name, option in point["options"].items()}


@functools.lru_cache(maxsize=None)
def defaults(role: str) -> Mapping[str, Any]:
    """{variable: its default} of a role, templates as they are written."""
    found: Mapping[str, Any] = _trusted(yaml_load((ROLES / role / "defaults" / "main.yml").read_text()))
    return found


def _trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _trusted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


class RoleVariables:
    """The variables of one role as a task sees them. Raises GpuOpsError where one is not what the role specifies.

    sources: the modules whose options they may be; without them, those of hosts.
    only:    which of them count; without it, all.
    """

    def __init__(
        self, role: str, task_vars: Mapping[str, Any], templar: Any, sources: Optional[Mapping[str, Source]] = None,
        only: Optional[Collection[str]] = None
    ) -> None:
        self.role = role
        self.task_vars = task_vars
        self.sources = SOURCES if sources is None else sources
        self.specified = {name: said for name, said in specified(role).items() if only is None or name in only}
        self.defaults = defaults(role)
        self.templar = templar.copy_with_new_env(available_variables={**self.defaults, **task_vars})
        self.values = dict(self._values())
        self._check()

    def options(self, module: str, others: Tuple[str, ...] = ()) -> Dict[str, Any]:
        """{option: value} of a module, and of those options that it shares with others."""
        source, found = self.sources[module], {}
        for option in (*source.options, *others):
            variable = source.variable(option, self.specified.keys())
            if variable in self.values:
                value = self.values[variable]
                found[option] = source.read_as.get(option, {}).get(value, value) if isinstance(value, str) else value
        return found

    def misspelt(self) -> Iterator[Tuple[str, str]]:
        """(variable, the one that may be meant) of variables that are one of the role's with a slip in it.

        A variable that is set under its right name too is not meant by another one.
        """
        unset = [name for name in self.specified
                 if name not in self.task_vars or self.task_vars[name] == self.defaults.get(name)]
        for name in self.task_vars:
            if name.startswith(self.role + "_") and name not in self.specified:
                for near in difflib.get_close_matches(name, unset, 1, ALIKE):
                    yield name, near

    def _values(self) -> Iterator[Tuple[str, Any]]:
        """What is set to nothing, or to {{ omit }}, is left out: the module's own default counts."""
        for name in self.specified:
            value = worked_out(name, self.task_vars.get(name, self.defaults.get(name)), self.templar)
            value = _without(value, self.task_vars.get("omit"))
            if value is not None:
                yield name, value

    def _check(self) -> None:
        known = ("type", "elements", "choices")
        specification = {name: {key: option[key] for key in known if key in option}
                         for name, option in self.specified.items()}
        # What is inside a variable is told here by its name; the host knows only the option
        for source in self.sources.values():
            for option, of_module in source.options.items() if source.role == self.role else ():
                if "options" in of_module:
                    specification[source.variable(option, self.specified.keys())]["options"] = of_module["options"]
        messages = complaints(ArgumentSpecValidator(specification).validate(self.values))
        if messages:
            raise GpuOpsError(
                "variables.malformed",
                found="; ".join(messages),
                wanted="the variables of role gpuops.nvidia.%s" % self.role,
                remedy="correct them; roles/%s/README.md describes each" % self.role,
            )


def worked_out(name: str, value: Any, templar: Any) -> Any:
    """The value of a variable whose templates are worked out, None where it is {{ omit }}. Raises GpuOpsError."""
    try:
        return templar.template(value)
    # Before ansible-core 2.19 what a filter or a test raises comes as it is
    except Exception as error:
        if isinstance(error, OMITTED):
            return None
        raise GpuOpsError(
            "variables.not_worked_out",
            found="variable `%s` cannot be worked out: %s" % (name, without_passwords(str(error))),
            wanted="a value, or a template of variables that this host has",
            remedy="correct `%s`, or what it refers to" % name,
        ) from error


def _without(value: Any, omit: Any) -> Any:
    """The value without what is set to {{ omit }}, at any depth; None where that is all of it.

    Since ansible-core 2.19 templates leave it out themselves; before, it is a word that only a task's own options lose.
    """
    if isinstance(value, Mapping):
        return {key: _without(each, omit) for key, each in value.items() if not _is_omitted(each, omit)}
    if isinstance(value, (list, tuple)):
        return [_without(each, omit) for each in value if not _is_omitted(each, omit)]
    return None if _is_omitted(value, omit) else value


def _is_omitted(value: Any, omit: Any) -> bool:
    return omit is not None and isinstance(value, str) and value == omit


def options_of(
    module: str, given: Mapping[str, Any], task_vars: Mapping[str, Any], templar: Any
) -> Tuple[Dict[str, Any], List[Tuple[str, str]]]:
    """(options of a module, misspelt variables): those that a task gives, the others from variables."""
    roles = _Roles(task_vars, templar)
    options = {**roles.options(module), **given}
    misspelt = roles.misspelt()
    if module == AGENT and _keeps_policy(options):
        options[ITS_POLICY] = _policy_of_host(roles)
    return options, misspelt


def options_of_plan(
    given: Mapping[str, Any], task_vars: Mapping[str, Any], templar: Any
) -> Tuple[Dict[str, Any], List[Tuple[str, str]]]:
    """The same of gpu_plan, which has the options of all other modules; the host is checked where that is asked for."""
    options, roles = dict(given), _Roles(task_vars, templar)
    only = given.get(ONLY)
    for module, source in SOURCES.items():
        if module != VALIDATION and only is not None and source.capability not in only:
            options.pop(source.capability, None)
        elif module != VALIDATION or given.get("validation") is not None:
            options[source.capability] = {**_of_plan(roles, module), **options_given(given, module)}
    misspelt = roles.misspelt()
    own = options.get(SOURCES[AGENT].capability, {})
    if _keeps_policy(own):
        own[ITS_POLICY] = _policy_of_host(roles)
    return options, misspelt


class _Roles:
    """The variables of those roles that are asked for."""

    def __init__(self, task_vars: Mapping[str, Any], templar: Any) -> None:
        self._task_vars = task_vars
        self._templar = templar
        self._read: Dict[str, RoleVariables] = {}

    def options(self, module: str, others: Tuple[str, ...] = OF_WRITERS) -> Dict[str, Any]:
        """others: options that all modules have which change a host."""
        role = SOURCES[module].role
        if role not in self._read:
            self._read[role] = RoleVariables(role, self._task_vars, self._templar)
        return self._read[role].options(module, () if module == VALIDATION else others)

    def misspelt(self) -> List[Tuple[str, str]]:
        return [slip for variables in self._read.values() for slip in variables.misspelt()]


def _of_plan(roles: _Roles, module: str) -> Dict[str, Any]:
    """As gpu_plan takes them."""
    found = roles.options(module, OF_WRITERS[:1])
    return found if module != VALIDATION else {
        name: value for name, value in found.items() if name in validation.OF_HOST}


def _keeps_policy(options: Mapping[str, Any]) -> bool:
    return options.get("state") == "present" and ITS_POLICY not in options


def _policy_of_host(roles: _Roles) -> str:
    """What variables say of all other modules, and no task: the host is to do the same without one.

    As one text: Ansible hides it whole then, and nothing else that reads like a part of it.
    """
    policy = {source.capability: _of_plan(roles, module) for module, source in SOURCES.items() if module != AGENT}
    # What Ansible has decrypted is text of another kind
    return json.dumps(policy, sort_keys=True, default=str)


def options_given(given: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The options of a module among those of gpu_plan: a dictionary in any form that Ansible takes for one."""
    name = SOURCES[module].capability
    try:
        found: Mapping[str, Any] = check_type_dict(given.get(name) or {})
    except TypeError as error:
        raise GpuOpsError(
            "variables.not_a_dictionary",
            found="option `%s` of gpu_plan is no dictionary: %s" % (name, without_passwords(str(error))),
            wanted="the options of the module behind it",
            remedy="correct `%s`; `ansible-doc` shows the module's options" % name,
            option=name,
        ) from error
    return found


def variables_behind(given: Mapping[str, Mapping[str, Any]]) -> Dict[str, Dict[str, str]]:
    """{capability: {option: variable}} of the options that come from variables.

    given: {module: the options that a task gives it itself}
    """
    found: Dict[str, Dict[str, str]] = {}
    for module, own in given.items():
        source = SOURCES[module]
        names = specified(source.role).keys()
        variables = {option: source.variable(option, names) for option in (*source.options, *OF_WRITERS)}
        found[source.capability] = {option: name for option, name in variables.items() if name and option not in own}
    return found
