# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The clusters of a play: which hosts are nodes of which, and the variables of each as a task of its own has them.

What is the cluster's is done by one task for all of them (`run_once`), which Ansible gives the variables of one host.
A host says where its cluster is by `gpu_cluster_kubeconfig` with `gpu_cluster_context`, or by `gpu_cluster_host` with a
credential; what it does not say is the environment's, K8S_AUTH_*.
"""
from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Tuple

from ..module_utils.cluster.client import Connection
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.plan import canonical
from ..module_utils.core.refusal import Refusal
from .agreement import Opinion, disagreement, written_alike
from .role_variables import ROLES, RoleVariables, Source, defaults, worked_out

# {variable of a host: the option of a connection that it is}
VARIABLES = {
    "gpu_cluster_kubeconfig": "kubeconfig",
    "gpu_cluster_context": "context",
    "gpu_cluster_host": "host",
    "gpu_cluster_api_key": "api_key",
    "gpu_cluster_ca_cert": "ca_cert",
    "gpu_cluster_validate_certs": "validate_certs",
    "gpu_cluster_client_cert": "client_cert",
    "gpu_cluster_client_key": "client_key",
    "gpu_cluster_impersonate_user": "impersonate_user",
}
# That which names a host's Node; without it, it is the host's own name
NODE_NAME = "gpu_cluster_node_name"
# Those that say which cluster it is; the others say who we are there
NAMING = ("kubeconfig", "context", "host")
# What may not be shown where hosts disagree on it
SECRET = ("api_key",)
# What the environment says of the server that it names, and of who we are there
OF_SERVER = ("api_key", "username", "password", "client_cert", "client_key", "ca_cert", "validate_certs")
# Where these name no cluster, and no host of the play does, the usual search for a kubeconfig counts
OF_ENVIRONMENT = ("K8S_AUTH_KUBECONFIG", "K8S_AUTH_HOST")


@dataclass(frozen=True)
class PlayCluster:
    """A cluster, and those of the play's hosts that are its nodes, in the order of the play.

    options:  of its Connection, as its hosts' variables give them; what they lack is the environment's.
    refusals: why it must not be asked: its hosts do not agree on who we are there, or cannot say which it is.
    is_known: whether they can.
    """

    options: Mapping[str, Any]
    hosts: Tuple[str, ...]
    refusals: Tuple[Refusal, ...] = ()
    is_known: bool = True

    def __str__(self) -> str:
        if not self.is_known:
            return "the cluster of %s" % self.hosts[0]
        access = Connection.from_options(self.options)
        place = access.kubeconfig if isinstance(access.kubeconfig, str) else access.host
        return " ".join(filter(None, (place or "the cluster of the environment", access.context)))


class PlayVariables:
    """The variables of every host of a play, out of a task that Ansible runs for one of them.

    What the play and its roles say beats a host's own, as it does for this one: it is what the task's variables have
    beside, or instead of, those of its host, and what task and play say just as this host does.
    """

    def __init__(self, task_vars: Mapping[str, Any], templar: Any, task: Any = None) -> None:
        self._task_vars = task_vars
        self._templar = templar
        self._here = str(task_vars["inventory_hostname"])
        # Ansible puts a host's variables together anew each time that it is asked for them
        self._known: Dict[str, Mapping[str, Any]] = {}
        here = self._own(self._here)
        said = {} if task is None else {**task.get_play().vars, **task.get_vars()}
        beside = {name: value for name, value in task_vars.items()
                  if name not in here or (here[name] is not value and here[name] != value)
                  or (name in said and said[name] == value)}
        # All that a host says beats the default of a role that the play has
        known = _defaults_here(task_vars)
        self._of_roles = {name: value for name, value in beside.items() if name in known and known[name] == value}
        self._of_play = {name: value for name, value in beside.items() if name not in self._of_roles}

    @property
    def hosts(self) -> List[str]:
        """Of the play, those too that could not be reached: their nodes are the cluster's all the same."""
        return [str(name) for name in self._task_vars["ansible_play_hosts_all"]]

    def of(self, host: str) -> Mapping[str, Any]:
        """The variables of a task that runs for this host; templates are not worked out."""
        if host == self._here:
            return self._task_vars
        if host not in self._known:
            self._known[host] = {**self._of_roles, **self._own(host), **self._of_play}
        return self._known[host]

    def value(self, host: str, name: str, defaults: Optional[Mapping[str, Any]] = None) -> Any:
        """One variable, worked out; where the host has none, that of the defaults, else None."""
        variables = self.of(host)
        if name not in variables:
            variables = {**(defaults or {}), **variables}
        if name not in variables:
            return None
        return worked_out(name, variables[name], self._templar.copy_with_new_env(available_variables=variables))

    def of_role(
        self, host: str, role: str, sources: Mapping[str, Source], only: Optional[Collection[str]] = None
    ) -> RoleVariables:
        """The variables of a role, or those of them that count, worked out for this host.

        Raises GpuOpsError where one is malformed.
        """
        return RoleVariables(role, self.of(host), self._templar, sources, only)

    def alike(
        self, hosts: Iterable[str], names: Iterable[str], defaults: Optional[Mapping[str, Any]] = None
    ) -> List[Tuple[str, ...]]:
        """The hosts in groups for whose members these variables come to the same: one may stand for its group.

        defaults: what counts where a host has no variable of a name.
        """
        return written_alike({host: self.of(host) for host in hosts}, tuple(names), defaults or {})

    def _own(self, host: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._task_vars["hostvars"].raw_get(host)
        return found


def _defaults_here(task_vars: Mapping[str, Any]) -> Dict[str, Any]:
    """The defaults of those of our roles whose defaults a task of this play may see."""
    names = (*task_vars.get("ansible_play_role_names", ()), *task_vars.get("ansible_parent_role_names", ()),
             task_vars.get("ansible_role_name", ""))
    ours = {str(name).rpartition(".")[2] for name in names}
    return {name: value for role in ours if role and (ROLES / role / "defaults").is_dir()
            for name, value in defaults(role).items()}


def clusters_of(variables: PlayVariables, named_only: bool = False) -> List[PlayCluster]:
    """Every cluster of the play's hosts, in the order of its first host.

    A host that names none, while another one does and the environment does not, is in none. What a host says of its
    cluster that cannot be worked out keeps no other host back: those that say it have a cluster that is refused.

    named_only: whether there is none where nobody names one.
    """
    named: Dict[str, Dict[str, Any]] = {}
    unknown: List[PlayCluster] = []
    for group in variables.alike(variables.hosts, VARIABLES):
        try:
            named.update(dict.fromkeys(group, connection(functools.partial(variables.value, group[0]))))
        except GpuOpsError as error:
            unknown.append(PlayCluster({}, group, tuple(error.refusals), is_known=False))
    environment = any(os.environ.get(name) for name in OF_ENVIRONMENT)
    everywhere = environment or not (named_only or unknown or any(map(_names_one, named.values())))
    return [*_grouped([(host, named[host]) for host in variables.hosts
                       if host in named and (everywhere or _names_one(named[host]))]), *unknown]


def connection(value: Callable[[str], Any]) -> Dict[str, Any]:
    """The options of a connection that a host's variables give. value: of a variable, None where there is none.

    What the environment says of another cluster is none of them, said as None: a host that names its kubeconfig is not
    led elsewhere, no credential goes where it does not belong, and no authority vouches for another's server.
    """
    told = {option: value(name) for name, option in VARIABLES.items()}
    given = {option: each for option, each in told.items() if each not in (None, "", {})}
    server = os.environ.get("K8S_AUTH_HOST", "").rstrip("/")
    others: Tuple[str, ...] = ()
    if "host" in given:
        others = ("kubeconfig", "context", *(OF_SERVER if server not in ("", str(given["host"]).rstrip("/")) else ()))
    elif "kubeconfig" in given:
        others = ("host", *(OF_SERVER if server else ()))
    return {**dict.fromkeys(others), **given}


def _names_one(options: Mapping[str, Any]) -> bool:
    return bool(options.get("kubeconfig") or options.get("host"))


def _grouped(named: Iterable[Tuple[str, Mapping[str, Any]]]) -> List[PlayCluster]:
    members: Dict[str, List[Tuple[str, Mapping[str, Any]]]] = {}
    for host, told in named:
        members.setdefault(canonical([told.get(name) for name in NAMING]), []).append((host, told))
    return [_cluster(each) for each in members.values()]


def _cluster(members: List[Tuple[str, Mapping[str, Any]]]) -> PlayCluster:
    """One cluster of hosts that name it alike, refused where they do not come to it alike."""
    options = members[0][1]
    cluster = PlayCluster(options, tuple(host for host, _told in members))
    refusals = []
    for variable, option in VARIABLES.items():
        refused = disagreement(str(cluster), variable, [
            Opinion(told.get(option), (host,)) for host, told in members], option in SECRET)
        refusals += [refused] if refused else []
    return PlayCluster(options, cluster.hosts, tuple(refusals))
