# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one task does for the Nodes of many hosts, as a fleet pays for every process that Ansible starts for a host."""
from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Mapping, Tuple

from ..module_utils.cluster.client import Client, Connection
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.secrets import without_passwords
from .clusters import PlayVariables, clusters_of
from .role_variables import defaults, specified

HOSTS = "hosts"
# How many Nodes are asked about, or have a pod that is waited for, at a time
AT_ONCE = 16


class Clients(threading.local):
    """The connections of one thread, each made once."""

    def __init__(self) -> None:
        self._made: List[Tuple[Connection, Client]] = []

    def to(self, access: Connection) -> Client:
        """Raises GpuOpsError where the connection cannot be one."""
        for known, client in self._made:
            if known == access:
                return client
        self._made.append((access, Client(access)))
        return self._made[-1][1]


def for_hosts(
    variables: PlayVariables, hosts: Collection[str], role: str, more: Iterable[str],
    options_of: Callable[[str], Mapping[str, Any]], node_variable: str,
    do: Callable[[Dict[str, Any], str], Dict[str, Any]]
) -> Dict[str, Any]:
    """{'changed', 'of_hosts': {host: what became of it}} of those hosts that have a cluster.

    role:          whose variables say the options, with those that `more` names.
    options_of:    of a host, but for its connection. It is asked of one of those that have these variables alike.
    node_variable: which of the role's variables names the Node.
    do:            with the options and the Node's name, in a thread. One that fails does not keep the others back.
    Raises GpuOpsError where a host is none of the play.
    """
    strange = [host for host in hosts if host not in variables.hosts]
    if strange:
        raise GpuOpsError(
            "cluster.hosts_not_of_play",
            found="`hosts` names %s, which the play does not have" % ", ".join(strange),
            wanted="hosts of the play, whose variables say which Nodes they are",
            remedy="correct the names, or have the play's own `hosts` name them too",
            option=HOSTS,
        )
    known = defaults(role)
    names = [*(name for name in specified(role) if name != node_variable), *more]
    told: Dict[str, Dict[str, Any]] = {}
    waiting: List[Tuple[str, Dict[str, Any], str]] = []
    for cluster in clusters_of(variables):
        for group in variables.alike([host for host in cluster.hosts if host in hosts], names, known):
            try:
                if cluster.refusals:
                    raise GpuOpsError.because(cluster.refusals)
                with _told():
                    options = {**cluster.options, **options_of(group[0])}
            except GpuOpsError as error:
                told.update(dict.fromkeys(group, failed(error)))
                continue
            for host in group:
                try:
                    waiting.append((host, options, str(variables.value(host, node_variable, known) or host)))
                except GpuOpsError as error:
                    told[host] = failed(error)

    def done(of_host: Tuple[str, Dict[str, Any], str]) -> Dict[str, Any]:
        try:
            with _told():
                return do(*of_host[1:])
        except GpuOpsError as error:
            return failed(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        told.update(zip([host for host, *_rest in waiting], pool.map(done, waiting)))
    return {"changed": any(each["changed"] for each in told.values()),
            "of_hosts": {host: {"failed": False, **told[host]} for host in hosts if host in told}}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What would end a host's own task with a traceback ends it here in words: the others' work is done all the same.

    Raises GpuOpsError for every error.
    """
    try:
        yield
    except GpuOpsError:
        raise
    except Exception as error:
        raise GpuOpsError(
            "cluster.host_not_done",
            found="%s: %s" % (type(error).__name__, without_passwords(str(error))),
            wanted="variables of this host that are of the kind that their roles say",
            remedy="look for one that is a text in place of a dictionary, or the like; where all are right, report it",
        ) from error


def failed(error: GpuOpsError) -> Dict[str, Any]:
    """What a task says of an error that ends it."""
    return dict(error.result(), failed=True, changed=False)
