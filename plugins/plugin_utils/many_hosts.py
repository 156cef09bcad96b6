# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one task does for the Nodes of many hosts, as a fleet pays for every process that Ansible starts for a host."""
from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Callable, Collection, Dict, List, Mapping, Tuple

from ansible.utils.display import Display

from ..module_utils.cluster.client import NO_ANSWER, Client, Connection
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.secrets import without_passwords
from .clusters import PlayVariables, clusters_of
from .role_variables import defaults

HOSTS = "hosts"
# How many Nodes are asked about, or have a pod that is waited for, at a time
AT_ONCE = 16
# The library gives a file of a kubeconfig's certificate to whoever asks next, before it has written it
_CONNECTING = threading.Lock()


@dataclass(frozen=True)
class _Waiting:
    """A host whose turn comes. cluster: a number of it."""

    host: str
    options: Mapping[str, Any]
    node: str
    cluster: int


class Clients:
    """The connections of each thread, each made once.

    Ansible does each task in a process of its own, which lives on where ansible-playbook is killed. One that waits for
    its host's turn, or for a node, would say for an hour that its run is at work, and then take what nobody gives back:
    so it asks no cluster for anything any more.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()
        # By whoever began this process: it may have been left alone before it came to look
        begun_by = multiprocessing.parent_process()
        self._parent = os.getppid() if begun_by is None else begun_by.pid

    def to(self, access: Connection) -> Client:
        """Raises GpuOpsError where the connection cannot be one."""
        made: List[Tuple[Connection, Client]] = self._of_thread.__dict__.setdefault("made", [])
        for known, client in made:
            if known == access:
                return client
        with _CONNECTING:
            made.append((access, Client(access, proof=self._prove_the_run)))
        return made[-1][1]

    def _prove_the_run(self) -> None:
        """Of the process, whichever of its threads asks: a list is read by one of its own."""
        if os.getppid() != self._parent:
            raise GpuOpsError(
                "cluster.run_ended",
                found="the process that has begun this task, of ansible-playbook, is no more",
                wanted="a run that goes on with what it has asked for",
                remedy="run again: what was begun counts as left by a run that has died",
            )


def for_hosts(
    variables: PlayVariables, hosts: Collection[str], role: str, names: Collection[str],
    options_of: Callable[[str], Mapping[str, Any]], node_variable: str,
    do: Callable[[Dict[str, Any], str], Dict[str, Any]]
) -> Dict[str, Any]:
    """{'changed', 'of_hosts': {host: what became of it}} of those hosts that have a cluster.

    role:          whose variables say the options.
    names:         of the variables that do, those included that are none of the role's.
    options_of:    of a host, but for its connection. It is asked of one of those that have these variables alike.
    node_variable: which of the role's variables names the Node.
    do:            with the options and the Node's name, in a thread. One that fails does not keep the others back, and
                   a cluster that does not answer holds up no other: each has its turn, and it is not asked again.
    Raises GpuOpsError where a host is none of the play.
    """
    refuse_strange(variables, hosts, HOSTS)
    known = defaults(role)
    told: Dict[str, Dict[str, Any]] = {}
    waiting: List[List[_Waiting]] = []
    for cluster in clusters_of(variables):
        waiting.append([])
        for group in variables.alike([host for host in cluster.hosts if host in hosts], names, known):
            try:
                if cluster.refusals:
                    raise GpuOpsError.because(cluster.refusals)
                options = {**cluster.options, **options_of(group[0])}
            # What is wrong with one host, foreseen or not, is no reason to leave the others undone
            except Exception as error:
                told.update({host: _failed(error, host) for host in group})
                continue
            for host in group:
                try:
                    waiting[-1].append(_Waiting(
                        host, options, str(variables.value(host, node_variable, known) or host), len(waiting)))
                except Exception as error:
                    told[host] = _failed(error, host)

    dead: Dict[int, GpuOpsError] = {}

    def done(of_host: _Waiting) -> Dict[str, Any]:
        if of_host.cluster in dead:
            return failed(dead[of_host.cluster])
        try:
            return do(dict(of_host.options), of_host.node)
        except Exception as error:
            if isinstance(error, GpuOpsError) and error.refusals[0].code == NO_ANSWER:
                dead[of_host.cluster] = error
            return _failed(error, of_host.host)

    in_turn = [each for turn in zip_longest(*waiting) for each in turn if each is not None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told.update(zip([each.host for each in in_turn], pool.map(done, in_turn)))
    return {"changed": any(each["changed"] for each in told.values()),
            "of_hosts": {host: {"failed": False, **told[host]} for host in hosts if host in told}}


def refuse_strange(variables: PlayVariables, hosts: Collection[str], option: str) -> None:
    """Raises GpuOpsError where an option names hosts that are none of the play."""
    there = frozenset(variables.hosts)
    strange = [host for host in hosts if host not in there]
    if strange:
        raise GpuOpsError(
            "cluster.hosts_not_of_play",
            found="`%s` names %s, which the play does not have" % (option, ", ".join(strange)),
            wanted="hosts of the play, whose variables say which Nodes they are",
            remedy="correct the names, or have the play's own `hosts` name them too",
            option=option,
        )


def _failed(error: Exception, host: str) -> Dict[str, Any]:
    """The same of any error."""
    if isinstance(error, GpuOpsError):
        return failed(error)
    Display().vvv("".join(traceback.format_exception(type(error), error, error.__traceback__)), host=host)
    return failed(GpuOpsError(
        "cluster.host_not_understood",
        found="%s: %s" % (type(error).__name__, without_passwords(str(error))),
        wanted="variables of the forms that the roles' README.md describe",
        remedy="see whether one of %s has another form; where none has, report this with what `-vvv` shows" % host,
    ))


def failed(error: GpuOpsError) -> Dict[str, Any]:
    """What a task says of an error that ends it."""
    return dict(error.result(), failed=True, changed=False)
