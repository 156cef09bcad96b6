# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host tells of its GPUs on its own Node: what node.py says, said.

  /var/lib/gpuops/node.json  {'schema': 1, 'nodes': [{'node', 'kubeconfig', 'server', 'machine'}]}: of which Nodes
                             something was said, by what it is taken back, and which machine has said it. A host that
                             is called otherwise now, or joined elsewhere, takes back what it said before; what another
                             machine has said, whose disk was copied, is that one's to take back
  /run/gpuops/node.json      {'schema': 1, 'said', 'at', 'error', 'others'}: digest of what was said last, and when, in
                             seconds of the boot's clock: a round that has nothing new asks nobody; and when other Nodes
                             were last looked for

Nothing of it keeps the host from its work: who tells in passing is told by an error that it was not said.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ..cluster.custody.claims import Apply
from ..cluster.labels import HEALTH_MANAGER
from ..core import boot_record
from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import DIRECTORY as LASTING
from ..core.lock import DIRECTORY as PASSING
from ..core.lock import GUARD
from ..core.startup import BOOT_UNIT
from ..core.times import since_boot
from ..health.state import SUMMARY
from . import api
from .boot import WANTS
from .node import (
    HEARTBEAT_SECONDS,
    Report,
    is_ours,
    last_claim,
    next_claim,
    report_of,
    status_patch,
    status_without,
)

SAID, LATEST = LASTING + "/node.json", PASSING + "/node.json"
# Locked by who tells
TELLING = PASSING + "/node.lock"
SCHEMA = 1
# After one that has failed
RETRY_SECONDS = 15.0
# Of requests that another writer came before
_ATTEMPTS = 5
# In which a boot's own unit begins
_STARTING_SECONDS = 900.0

Object = Dict[str, Any]


def tell(host: Host, kubeconfig: str, stale_seconds: float, cordons: bool, name: str = "",
         in_passing: bool = False) -> Dict[str, Any]:
    """Say what is to be said; {'changed', 'node', 'conditions', 'cordoned'}. Raises GpuOpsError where it cannot be.

    cordons:    whether the host may cordon its node.
    name:       of the Node, where its credential does not say it and it is not called as the host.
    in_passing: whether nobody is asked where nothing is new; the result has then no 'node'.
    """
    with _alone(host):
        return _tell(host, kubeconfig, stale_seconds, cordons, name, in_passing)


@contextlib.contextmanager
def _alone(host: Host) -> Iterator[None]:
    """Of two at once, the one that has read less would have the last word. Who cannot lock tells all the same."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(GpuOpsError):
            host.make_directory(PASSING, 0o700)
            stack.enter_context(host.guard(TELLING, api.WHOLE_SECONDS))
        yield


def _tell(
    host: Host, kubeconfig: str, stale_seconds: float, cordons: bool, name: str, in_passing: bool
) -> Dict[str, Any]:
    report = _report(host, stale_seconds)
    said = _digest(report, cordons, [kubeconfig, host.stamps(kubeconfig)], name)
    # A Node may have been made anew, by its kubelet: one that is sick is looked at each time
    if in_passing and not _is_due(host, said, bool(report.sick)):
        return {"changed": False}
    try:
        found = api.within(api.WHOLE_SECONDS, kubeconfig, lambda: _said(
            host, kubeconfig, name, lambda node, now: status_patch(node, report, now),
            lambda node: next_claim(node, report, cordons)))
    except GpuOpsError as error:
        _remember(host, said=said, at=since_boot(), error=error.found)
        raise
    _remember(host, said=said, at=since_boot(), error="")
    mine = Said(found["node"], kubeconfig, found.pop("server"))
    if not in_passing or _others_are_due(host):
        _remember(host, others=since_boot())
        _take_back_of_others(host, mine)
    return {**found, "conditions": [
        {"type": name, "status": each.status, "reason": each.reason, "message": each.message}
        for name, each in report.conditions.items()]}


def take_back(host: Host) -> None:
    """What was said, where the cluster still knows this node. Raises GpuOpsError where nobody answers."""
    _take_back_of_others(host, None)
    forget(host)


def _take_back_of_others(host: Host, mine: Optional[Said]) -> None:
    """What was said of any Node but this one. Raises GpuOpsError for the first where that cannot be.

    Of one whose kubeconfig is gone nobody here can take anything back. Where it is not known of whom something was
    said, that stays known.
    """
    failed: List[Tuple[Said, GpuOpsError]] = []
    for each in said_before(host):
        if (mine is not None and each.is_of(mine)) or each == _OF_SOMEBODY:
            continue
        try:
            if host.exists(each.kubeconfig):
                api.within(api.WHOLE_SECONDS, each.kubeconfig, functools.partial(
                    _said, host, each.kubeconfig, each.node, lambda node, _now: status_without(node), last_claim))
        except GpuOpsError as error:
            if not isinstance(error, api.ApiRefused) or error.status != api.GONE:
                failed.append((each, error))
                continue
        _note(host, without=each)
    for each, why in failed:
        raise GpuOpsError(
            "agent.not_taken_back",
            found="what was said of node %s is not taken back: %s" % (each.node, why.found),
            wanted="a Node without the conditions and the cordon of a host that tells of it no more",
            remedy="make the API server reachable from this host and run again; or uncordon that node, or delete it, "
                   "and remove %s here" % SAID,
        ) from why


def forget(host: Host) -> None:
    """Where nothing is to be taken back."""
    for path in (SAID, LATEST, TELLING):
        host.remove(path)


@dataclass(frozen=True)
class Said:
    """A Node of which something was said, and by what.

    server:  URL of the API server that was told.
    machine: which has said it, '' where that cannot be told.
    """

    node: str
    kubeconfig: str
    server: str = ""
    machine: str = ""

    def is_of(self, other: Said) -> bool:
        """Whether both are of one Node: a server may be called otherwise now, and a kubeconfig lie elsewhere."""
        return self.node == other.node and (self.kubeconfig == other.kubeconfig or self.server == other.server)


_OF_SOMEBODY = Said("?", "/nonexistent")


def said_before(host: Host) -> List[Said]:
    text = host.read(SAID)
    if text is None:
        return []
    try:
        known = [Said(str(each["node"]), str(each["kubeconfig"]), str(each["server"]), str(each.get("machine") or ""))
                 for each in json.loads(text)["nodes"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        # Somebody has; of whom is not known any more, and nothing can be taken back
        return [_OF_SOMEBODY]
    mine = host.machine()
    return [each for each in known if not mine or each.machine in ("", mine)]


def _report(host: Host, stale_seconds: float) -> Report:
    data = None
    with contextlib.suppress(GpuOpsError, ValueError):
        data = json.loads(host.read(SUMMARY) or "null")
    return report_of(data, host.boot(), _of_boot(host), time.time(), stale_seconds)


def _of_boot(host: Host) -> Mapping[str, Any]:
    found = boot_record.read(host)
    if not found and since_boot() < _STARTING_SECONDS and host.link(WANTS) is not None:
        return {"state": boot_record.WORKING}
    # A process that hangs in the driver outlives the unit that it is of
    if found.get("state") == boot_record.WORKING and host.unit(BOOT_UNIT).get("ActiveState") in (
            "deactivating", "failed"):
        return {**found, **boot_record.CUT_OFF}
    return found


def _said(host: Host, kubeconfig: str, name: str, status: Callable[[Object, float], Optional[Object]],
          claim: Callable[[Object], Optional[Apply]]) -> Dict[str, Any]:
    """The cordon first: pods that come meanwhile would be the ones to lose."""
    with api.conversation(host, kubeconfig, time.monotonic() + api.WHOLE_SECONDS) as server:
        name = name or server.node or os.uname().nodename.lower()
        path = api.node_path(name)
        node = server.get(path)
        _note(host, Said(name, kubeconfig, server.url, host.machine()))
        changed, node = _claimed(server, path, node, claim)
        patch = status(node, time.time())
        if patch is not None:
            node = server.patch(path + "/status", patch, api.STRATEGIC_MERGE_PATCH, fieldManager=HEALTH_MANAGER)
        return {"changed": changed or patch is not None, "node": name, "cordoned": is_ours(node),
                "server": server.url}


def _claimed(server: api.Api, path: str, node: Object, claim: Callable[[Object], Optional[Apply]]) -> Any:
    """(whether anything was said, the Node after it)."""
    changed = False
    for attempt in range(_ATTEMPTS):
        step = claim(node)
        if step is None:
            break
        try:
            if step.by_name:
                node = server.patch(path, step.body, api.MERGE_PATCH, fieldManager=HEALTH_MANAGER)
            else:
                node = server.patch(path, step.body, api.SERVER_SIDE_APPLY, fieldManager=step.manager, force="true")
            changed = True
        except api.ApiRefused as error:
            if error.status != api.CONFLICT or attempt == _ATTEMPTS - 1:
                raise
            node = server.get(path)
    return changed, node


def _note(host: Host, new: Optional[Said] = None, without: Optional[Said] = None) -> None:
    """Before the first word: what is not known to have been said cannot be taken back."""
    with contextlib.suppress(GpuOpsError):
        host.make_directory(LASTING, 0o700)
        host.make_directory(PASSING, 0o700)
        with host.guard(GUARD):
            known = [each for each in said_before(host) if each != without and not (new and each.is_of(new))]
            nodes = [asdict(each) for each in (*known, *([new] if new else []))]
            text = json.dumps({"schema": SCHEMA, "nodes": nodes}, sort_keys=True) + "\n"
            if host.read(SAID) != text:
                host.write(SAID, text, 0o600)


def _digest(report: Report, cordons: bool, kubeconfig: Any, name: str) -> str:
    parts: List[Any] = [cordons, kubeconfig, name, sorted(report.sick), report.is_known, sorted(
        (key, each.status, each.reason, each.message) for key, each in report.conditions.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_due(host: Host, said: str, always: bool) -> bool:
    """Whether this is new, or has to be said again, or was not said when it was tried, a little while ago.

    always: whether it is to be said in any case, but where that has just failed.
    """
    try:
        before = _latest(host)
        passed = since_boot() - before["at"]
        if before["error"]:
            return not 0 <= passed < RETRY_SECONDS
        return always or bool(before["said"] != said) or not 0 <= passed < HEARTBEAT_SECONDS
    except (TypeError, KeyError):
        return True


def _others_are_due(host: Host) -> bool:
    """One that cannot be reached is not asked in each round."""
    try:
        return not 0 <= since_boot() - _latest(host)["others"] < HEARTBEAT_SECONDS
    except (TypeError, KeyError):
        return True


def _latest(host: Host) -> Dict[str, Any]:
    with contextlib.suppress(GpuOpsError, ValueError):
        found = json.loads(host.read(LATEST) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _remember(host: Host, **said: Any) -> None:
    """What cannot be remembered is said again."""
    with contextlib.suppress(GpuOpsError):
        host.make_directory(PASSING, 0o700)
        with host.guard(GUARD):
            latest = {**_latest(host), "schema": SCHEMA, **said}
            host.write(LATEST, json.dumps(latest) + "\n", 0o600)
