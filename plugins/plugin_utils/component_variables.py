# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From variables of hosts to the options of a cluster's components, of which all hosts of the cluster have one word."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from ..module_utils.cluster.components.model import argument_spec, objects
from ..module_utils.cluster.components.registry import COMPONENTS
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal
from .agreement import Opinion, disagreement, named_in
from .cluster_action import checked
from .clusters import PlayCluster, PlayVariables
from .plugin_configuration import unknown_choice
from .role_variables import RoleVariables, Source, defaults, specified

# {module: where its options come from}
SOURCES: Dict[str, Source] = {
    name: Source(name, name, name + "_", argument_spec(component)) for name, component in COMPONENTS.items()}
# {the option that has what can be chosen: the variable by which a host chooses one of it by name}
CHOICES = {
    "device_plugin": ("configs", "device_plugin_config_name"),
    "gpu_feature_discovery": ("configs", "device_plugin_config_name"),
    "dcgm_exporter": ("metric_sets", "dcgm_exporter_metric_set_name"),
}
# The variable that says which components a cluster has
COMPONENTS_NAMED = "gpu_components"
# A role's variables as these hosts have them
Said = Tuple[RoleVariables, Tuple[str, ...]]


class ClusterWord:
    """What the hosts of one cluster say of its components, each group of hosts that say it alike asked once."""

    def __init__(self, cluster: PlayCluster, variables: PlayVariables) -> None:
        self._cluster = cluster
        self._variables = variables
        self.misspelt: Set[Tuple[str, str]] = set()

    def options(self, module: str, given: Mapping[str, Any]) -> Dict[str, Any]:
        """The options of a component: those that a task gives, the others from variables.

        Raises GpuOpsError where hosts disagree on one that the task does not give, or one of theirs is malformed.
        """
        source = SOURCES[module]
        behind = variables_behind(module, given)
        said: List[Said] = []
        for hosts in self._variables.alike(self._cluster.hosts, specified(source.role), defaults(source.role)):
            said.append((self._variables.of_role(hosts[0], source.role, SOURCES), hosts))
            self.misspelt.update(said[-1][0].misspelt())
        refusals = {refusal.option: refusal for variable in behind.values()
                    for refusal in self._disagreements(variable, said)}
        _raise(list(refusals.values()))
        return {**said[0][0].options(module), **given}

    def components(self, default: Any) -> Any:
        """Which components the cluster is to have. Raises GpuOpsError where hosts disagree on it."""
        found = [(self._variables.value(hosts[0], COMPONENTS_NAMED), hosts)
                 for hosts in self._variables.alike(self._cluster.hosts, [COMPONENTS_NAMED])]
        said = [Opinion(default if value is None else value, hosts) for value, hosts in found]
        refusal = disagreement(str(self._cluster), COMPONENTS_NAMED, said)
        _raise([refusal] if refusal else [])
        return said[0].value if said else default

    def _disagreements(self, variable: str, said: Sequence[Said]) -> List[Refusal]:
        """Why hosts do not agree on a variable: of one that nobody sets, those that its default follows."""
        refusal = disagreement(str(self._cluster), variable, [
            Opinion(role.values.get(variable), hosts) for role, hosts in said])
        if refusal is None:
            return []
        default = said[0][0].defaults.get(variable)
        if any(role.task_vars.get(variable, default) != default for role, _hosts in said):
            return [refusal]
        followed = [disagreement(str(self._cluster), name, [
            Opinion(self._variables.value(hosts[0], name), hosts) for _role, hosts in said])
            for name in sorted(named_in(default))]
        return [each for each in followed if each] or [refusal]

    def refuse_unknown_choices(self, module: str, parameters: Mapping[str, Any]) -> None:
        """Refuse hosts that choose by a name what the component does not have. parameters: checked ones."""
        if module not in CHOICES or parameters["state"] == "absent":
            return
        option, variable = CHOICES[module]
        chosen: Dict[str, List[str]] = {}
        for hosts in self._variables.alike(self._cluster.hosts, [variable]):
            name = str(self._variables.value(hosts[0], variable) or "")
            if name and name not in parameters[option]:
                chosen.setdefault(name, []).extend(hosts)
        _raise([unknown_choice(variable, name, hosts, "%s_%s" % (module, option), parameters[option])
                for name, hosts in chosen.items()])


def pods_on_nodes(module: str, task_vars: Mapping[str, Any], templar: Any) -> List[Mapping[str, Any]]:
    """The specs of the pods that a component's DaemonSets have, as one host's variables make them; none of a component
    that is absent. Raises GpuOpsError where it cannot be made of them."""
    options = RoleVariables(SOURCES[module].role, task_vars, templar, SOURCES).options(module)
    component = COMPONENTS[module]
    parameters = checked(options, argument_spec(component), module)
    made = [] if parameters["state"] == "absent" else objects(component, parameters)
    return [each["spec"]["template"]["spec"] for each in made if each["kind"] == "DaemonSet"]


def variables_behind(module: str, given: Mapping[str, Any]) -> Dict[str, str]:
    """{option: variable} of the options that come from variables."""
    source = SOURCES[module]
    names = specified(source.role).keys()
    found = {option: source.variable(option, names) for option in source.options if option not in given}
    return {option: variable for option, variable in found.items() if variable}


def _raise(refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise GpuOpsError.because(refusals)
