# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The clusters of a play: which hosts are nodes of which, and the variables of each as a task of its own has them.

What is the cluster's is done by one task for all of them (`run_once`), which Ansible gives the variables of one host.
A host says where its cluster is by `gpu_cluster_kubeconfig` with `gpu_cluster_context`; what it does not say is the
environment's, K8S_AUTH_*.
"""
from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple

from ..module_utils.cluster.client import Connection
from ..module_utils.core.plan import canonical
from .role_variables import worked_out

# {variable of a host: the option of a connection that it is}
VARIABLES = {
    "gpu_cluster_kubeconfig": "kubeconfig",
    "gpu_cluster_context": "context",
}
# Where these name no cluster, and no host of the play does, the usual search for a kubeconfig counts
OF_ENVIRONMENT = ("K8S_AUTH_KUBECONFIG", "K8S_AUTH_HOST")


@dataclass(frozen=True)
class PlayCluster:
    """A cluster, and those of the play's hosts that are its nodes, in the order of the play.

    options: of its Connection, as its hosts' variables give them; what they lack is the environment's.
    """

    options: Mapping[str, Any]
    hosts: Tuple[str, ...]

    def __str__(self) -> str:
        access = Connection.from_options(self.options)
        place = access.kubeconfig if isinstance(access.kubeconfig, str) else ""
        return " ".join(filter(None, (place or "the cluster of the environment", access.context)))


class PlayVariables:
    """The variables of every host of a play, out of a task that Ansible runs for one of them.

    What the play and its roles say beats a host's own, as it does for this one: it is what the task's variables have
    beside, or instead of, those of its host.
    """

    def __init__(self, task_vars: Mapping[str, Any], templar: Any) -> None:
        self._task_vars = task_vars
        self._templar = templar
        here = self._own(str(task_vars["inventory_hostname"]))
        self._of_play = {name: value for name, value in task_vars.items()
                         if name not in here or (here[name] is not value and here[name] != value)}

    @property
    def hosts(self) -> List[str]:
        """Of the play, those too that could not be reached: their nodes are the cluster's all the same."""
        return [str(name) for name in self._task_vars["ansible_play_hosts_all"]]

    def of(self, host: str) -> Mapping[str, Any]:
        """The variables of a task that runs for this host; templates are not worked out."""
        if host == self._task_vars["inventory_hostname"]:
            return self._task_vars
        return {**self._own(host), **self._of_play}

    def value(self, host: str, name: str) -> Any:
        """One variable, worked out; None where the host has none."""
        variables = self.of(host)
        if name not in variables:
            return None
        return worked_out(name, variables[name], self._templar.copy_with_new_env(available_variables=variables))

    def _own(self, host: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._task_vars["hostvars"].raw_get(host)
        return found


def clusters_of(variables: PlayVariables) -> List[PlayCluster]:
    """Every cluster of the play's hosts, in the order of its first host.

    A host that names none, while another one does and the environment does not, is in none.
    """
    named: Dict[str, Dict[str, Any]] = {}
    for host in variables.hosts:
        named[host] = connection(functools.partial(variables.value, host))
    environment = any(os.environ.get(name) for name in OF_ENVIRONMENT)
    everywhere = environment or not any(map(_names_one, named.values()))
    return _grouped({host: options for host, options in named.items() if everywhere or _names_one(options)}.items())


def connection(value: Callable[[str], Any]) -> Dict[str, Any]:
    """The options of a connection that a host's variables give. value: of a variable, None where there is none."""
    told = {option: value(name) for name, option in VARIABLES.items()}
    return {option: each for option, each in told.items() if each not in (None, "", {})}


def _names_one(options: Mapping[str, Any]) -> bool:
    return "kubeconfig" in options


def _grouped(named: Iterable[Tuple[str, Mapping[str, Any]]]) -> List[PlayCluster]:
    hosts: Dict[str, List[str]] = {}
    options: Dict[str, Mapping[str, Any]] = {}
    for host, told in named:
        key = canonical(told)
        hosts.setdefault(key, []).append(host)
        options[key] = told
    return [PlayCluster(options[key], tuple(members)) for key, members in hosts.items()]
