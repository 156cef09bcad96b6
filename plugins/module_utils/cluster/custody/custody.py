# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node taken out of service and given back, as acts that unwind.

Custody says which run has a node, from the moment that it is taken out of service until it is given back.

Lease   says who works on a node: one object a node in our namespace, owned by the Node, held by a run (leases.py). It
        is followed as client-go's leader election does: whoever waits measures with his own clock from when he has
        seen the record change.
Claim   is what a run says of a Node by server-side apply, as a field manager of its own (claims.py): the cordon, its
        reason, the opt-outs of machine managers. The API server counts who says a field: it goes with the last of
        them. So a run withdraws its claim, and whatever others have cordoned stays cordoned.
Mark    is what another manager has written that is at work on the node (marks.py). It is never written by us.
Hold    is the annotation by which an admin says that the node stays cordoned whatever becomes of our claim.

Taken: marks, Lease, preview of the drain, claim, marks again, drain, components off the node, drain of what has come to
its GPUs meanwhile. What fails on the way is followed by the way back, in reverse order. Admitted: Lease, marks, labels,
GPUs on offer; the node is cordoned still, so that it can be looked at with its components before anybody else's pods
come. Returned: Lease, marks, labels and start-up taint, claims withdrawn, Lease gone. Held: Lease and marks alone, for
who looks anew at what another run has left before one of these. Each of them can be killed at any
request: what is there then is a Lease that runs out and claims that the next run finds on the Node, which takes the
node over and completes it.

Between our tasks nobody renews a Lease, as each task of Ansible is a process of its own. So a Lease is as long as a
task may take, and each of our tasks about the node renews it. A run may be stopped at any moment for longer than that,
and find its node in the hands of another, or completed by it. So it evicts nobody before the API server has taken its
renewal of the Lease, and writes to the Node in this order: it reads it, renews the Lease, and writes the version that
it has read. Another run that has the Lease since then changes that version, and the write is refused. Whoever has lost
the Lease changes nothing more but to withdraw what he himself has said.

Never touched: cordons, labels and annotations of others, and a node that somebody has uncordoned on purpose.
"""
from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.quantities import is_gpu, nvidia_resources
from ...core.waiting import wait_for
from ..client import ApiError, Client, is_outage
from ..drain.carrying_out import for_anybody
from ..drain.observation import state_of
from ..drain.preview import silent_refusal
from ..labels import CORDONED_BY, KEPT, NodePolicy, cordoned_by_its_host, plan_node_change, snapshot
from ..node_changes import MOST_WRITES, change_node, path_of, read_node
from ..nodes import is_ready
from ..observation import components_leaving, wait_for_components_gone
from . import claims as says
from . import surroundings
from .claims import Apply, Claim
from .holding import CONFLICT, PAUSE_SECONDS, Holding, Tell, Waiting
from .leases import name_of
from .run import Run

# Of a run whose node another one has, or may have
LOST = "cluster.custody_lost"
# What has become of a node that has its components again and is cordoned still
ADMITTED = "admitted"
# Of one whose Lease a run has, and of one whose Lease it has let go, with nothing else done to it
HELD, RELEASED = "held", "released"
# Of one that another run has, or has left, and that is not to be opened
LEFT = "left"
# Beyond what the drain and the components may take
MARGIN_SECONDS = 60

Object = Dict[str, Any]
# Raises GpuOpsError where a node is not this run's any more
Proof = Callable[[], None]
# What the drain does, or in a dry run would do: the keys of its result. It raises GpuOpsError. The proof is asked for
# before each eviction.
Drain = Callable[[bool, Proof], Dict[str, Any]]
# What the drain has done, with what is done about pods that have got GPUs since
Follow = Callable[[Dict[str, Any], Proof], Dict[str, Any]]


@dataclass(frozen=True)
class Taking:
    """What a node is taken for.

    reason:     for people who find it cordoned.
    without:    the labels that admit our components, as those to unset.
    drain:      frees it of pods; None where they stay.
    timeout:    seconds that the drain may take, and the components to leave the node.
    uid:        of the Node that is meant; '' for whichever has the name.
    skip_after: seconds past their grace after which components that nobody ends are left behind; 0: never.
    place:      raises GpuOpsError where the run has lost the place among those out of service that it takes the node
                for. Asked for before the cordon, and after it: whoever counts them from then on sees the cordon.
    was_taken:  whether this run has taken it before. It has to have it still then, and cordoned.
    follow:     frees its GPUs of pods that tolerate the cordon and have come since the drain; None where nobody drains
                it. Asked once the components have left, and no pod gets GPUs any more.
    """

    reason: str = ""
    without: NodePolicy = field(default_factory=NodePolicy)
    drain: Optional[Drain] = None
    timeout: int = 300
    uid: str = ""
    skip_after: float = 0
    place: Proof = lambda: None
    was_taken: bool = False
    follow: Optional[Follow] = None


@dataclass(frozen=True)
class Met:
    """What a run has met of others at a node once it has its Lease.

    shown:  when they have shown themselves there, by their clocks.
    is_out: whether the node is out of service by them still.
    ended:  whether one of them was at work there when this run came, and has let the node go.
    had:    whether this run had the Lease before, so that nobody was.
    """

    shown: Collection[str] = ()
    is_out: bool = False
    ended: bool = False
    had: bool = False


@dataclass(frozen=True)
class Returning:
    """How a node is given back, or its components are let back to it.

    labels:    to have again, and the start-up taint to be without.
    offers:    {resource: count} that it is to offer before it is open to pods. timeout: seconds in which it is to.
    without:   as of Taking, for a node that is not given back.
    failures:  checks that have failed, in words; then it stays out of service, and they are its reason.
    uid:       as of Taking; of the Node that was checked.
    was_taken: whether this run has taken it. It has to have it still then; else any run gives back a node that nobody
               else has, or lets the components back to it, and it is to offer then what it did when it was taken.
    unchanged: raises GpuOpsError where what is known of its host may be so no more; asked of a node that this run has
               not taken, once it has it, as nobody begins with it then.
    opens:     whether a node is given back that another run has out of service, or has left so. Else it stays as it is.
    """

    labels: NodePolicy = field(default_factory=NodePolicy)
    without: NodePolicy = field(default_factory=NodePolicy)
    failures: Sequence[str] = ()
    uid: str = ""
    offers: Mapping[str, int] = field(default_factory=dict)
    timeout: int = 300
    was_taken: bool = False
    unchanged: Callable[[Met], None] = lambda met: None
    opens: bool = True


class Custody:
    """What one run does with nodes. The rest is as of Holding.

    lease_seconds: how long a Lease counts between two of our tasks about its node.
    now:           seconds since the epoch. By default those of the API server for what others have written, whose
                   clocks are the cluster's, and the controller's for what passes between two acts of its own.
    """

    def __init__(self, cluster: Client, run: Run, namespace: str, lease_seconds: int, wait: float, tell: Tell,
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
                 now: Optional[Callable[[], float]] = None) -> None:
        self._cluster, self._run, self._lease_seconds, self._wait, self._tell = cluster, run, lease_seconds, wait, tell
        self._clock, self._sleep, self._now = clock, sleep, now or (lambda: cluster.now().timestamp())
        self._holding = Holding(cluster, run, namespace, wait, tell, clock, sleep, now or time.time)

    # The acts

    def take(self, name: str, act: Taking, dry_run: bool = False) -> Dict[str, Any]:
        """Take a node out of service. Taken already, it stays so, with its Lease renewed.

        A failure on the way puts back what was done; what could not be is told in `remains` of the error.
        """
        node = read_node(self._cluster, name, act.uid)
        self._refuse_uncordoned(node)
        if dry_run:
            return self._foretell_taking(node, act)
        before, way_back = snapshot(node), _WayBack()
        try:
            node = self._await_end_of_marks(name, act.uid, act.was_taken)
            self._refuse_uncordoned(node, act.was_taken)
            node, drained = self._go(node, act, way_back)
        except Exception as error:
            done, remains = way_back.go()
            if isinstance(error, GpuOpsError):
                error.details.setdefault("put_back", done)
                error.details.setdefault("remains", remains)
            raise
        told = self._result("taken", node, before, drained["notes"])
        return {**drained, **told, "changed": told["changed"] or drained.get("changed", False)}

    def renew(self, name: str, uid: str = "") -> Dict[str, Any]:
        """Have a node for longer, and stop where it is not this run's any more, or somebody has uncordoned it."""
        node = self._check(name, uid, self._lease_seconds)
        return self._result("renewed", node, snapshot(node), ())

    def hold(self, name: str, uid: str = "") -> Dict[str, Any]:
        """Have the Lease of a node once no other run and no other manager is at work there, and leave it as it is."""
        node = read_node(self._cluster, name, uid)
        before = snapshot(node)
        self._holding.acquire(node, self._lease_seconds)
        try:
            node = self._await_end_of_marks(name, uid, holding=True)
        except GpuOpsError:
            # Whoever tries next is not to wait until it runs out
            self._leave(name)
            raise
        return self._result(HELD, node, before, _of_others(node))

    def release(self, name: str, uid: str = "") -> Dict[str, Any]:
        """Let the Lease of a node go where this run has it."""
        node = read_node(self._cluster, name, uid)
        self._holding.release(name)
        return self._result(RELEASED, node, snapshot(node), ())

    def _leave(self, name: str) -> None:
        _WayBack([("", lambda: self._holding.release(name))]).go()

    def admit(self, name: str, act: Returning, dry_run: bool = False) -> Dict[str, Any]:
        """Let the components back to a node that this run has taken, or one that is dead, and wait until it is Ready
        and offers what it is to. It stays cordoned, and this run's."""
        node = read_node(self._cluster, name, act.uid)
        before = snapshot(node)
        if dry_run:
            done = change_node(self._cluster, name, act.labels, True, act.uid)
            told = self._result(ADMITTED, node, done["diff"]["before"], done["notes"], done["diff"]["after"])
            return {**told, "offers": offers_of(node)}
        if act.was_taken:
            return self._admitted(name, act, before)
        self._holding.acquire(node, self._lease_seconds)
        try:
            return self._admitted(name, replace(act, offers=act.offers or _offers(node)), before)
        except GpuOpsError:
            # Whoever tries next is not to wait until it runs out
            self._leave(name)
            raise

    def _admitted(self, name: str, act: Returning, before: Object) -> Dict[str, Any]:
        renew = functools.partial(self._holding.renew, name, self._lease_seconds)
        node = self._await_end_of_marks(name, act.uid, holding=True)
        self._refuse_uncordoned(node, act.was_taken)
        notes = change_node(self._cluster, name, act.labels, False, act.uid, node, renew)["notes"]
        self._await_offers(name, act)
        node = self._proven(name, act.uid, self._lease_seconds)
        self._refuse_uncordoned(node, act.was_taken)
        return {**self._result(ADMITTED, node, before, [*notes, *_of_others(node)]), "offers": offers_of(node)}

    def give_back(self, name: str, act: Returning, lease_is_there: Optional[bool] = None,
                  dry_run: bool = False) -> Dict[str, Any]:
        """Put a node into service again, or keep it out of it where checks have failed.

        A node that nobody has taken gets its labels, and is cordoned where checks have failed.
        lease_is_there: whether a Lease of the node was seen; None where nobody has looked.
        """
        node = read_node(self._cluster, name, act.uid)
        before = snapshot(node)
        if lease_is_there is None and not act.was_taken:
            lease_is_there = self._holding.is_there(name)
        stays = not (act.opens or act.failures or act.was_taken)
        if stays and _is_had(node, bool(lease_is_there)):
            return self._left(node)
        taken = bool(lease_is_there) or (_is_taken(node) and not stays)
        # What a run that is no more has said of a node in service, or of its Machine, keeps nobody from it
        forgotten = not (taken or act.failures or act.was_taken) and (_is_taken(node) or surroundings.is_claimed(
            surroundings.machine_of(self._cluster, node)))
        if forgotten and stays and surroundings.marks_of(self._cluster, node, self._now):
            # To be put right once nobody else is at work there, which who opens nothing has no reason to wait for
            forgotten = False
        if says.was_cordoned_without_claim(node) and not (taken or act.failures):
            act.unchanged(Met(says.claimed_at(node, self._run), True))
        if act.failures and not act.was_taken and self._is_wanted(node):
            return self._wanted(node)
        if dry_run:
            return self._foretell_return(node, act, taken or forgotten, forgotten)
        if not forgotten and (stays or not (taken or act.failures or act.was_taken)):
            with contextlib.suppress(_Taken):
                # To one that is in service labels do no harm, whoever is about to take it: he takes them off again
                proof = functools.partial(self._refuse_taken, name, act.uid, stays)
                done = change_node(self._cluster, name, _back(node, act), False, act.uid, node, proof)
                return self._result("returned", node, before, done["notes"], done["diff"]["after"])
            if stays:
                return self._left(read_node(self._cluster, name, act.uid))
        had = act.was_taken or self._holding.acquire(node, self._lease_seconds)
        try:
            if not act.was_taken:
                there = read_node(self._cluster, name, act.uid)
                if act.failures and self._is_wanted(there):
                    self._leave(name)
                    return self._wanted(there)
                if stays and _is_had(there, False):
                    self._leave(name)
                    return self._left(there)
                act.unchanged(Met(
                    (*self._holding.others_renewed(name), *says.claimed_at(there, self._run)),
                    _is_taken(there) or says.was_cordoned_without_claim(there),
                    self._holding.met_one_that_ended(name) or (_is_taken(node) and not _is_taken(there)), had))
            state, node, notes = (self._keep if act.failures else self._open)(name, act)
        except GpuOpsError:
            # Whoever tries next is not to wait until it runs out; the claims keep the node cordoned. A run that could
            # not open its node is to say why.
            if act.failures or not act.was_taken:
                self._leave(name)
            raise
        told = self._result(state, node, before, [*notes, *self._let_go(node, state)])
        return {**told, "changed": told["changed"] or forgotten}

    def _left(self, node: Object) -> Dict[str, Any]:
        why = "node %s is left as it is: another run has it out of service, or has left it so"
        return self._result(LEFT, node, snapshot(node), [why % node["metadata"]["name"]])

    def _is_wanted(self, node: Object) -> bool:
        """Whether somebody has uncordoned a Node since another run has cordoned it, and means it."""
        return not (node.get("spec") or {}).get("unschedulable") and self._run.manager not in says.claims(
            node) and CORDONED_BY in (node["metadata"].get("annotations") or {})

    def _wanted(self, node: Object) -> Dict[str, Any]:
        return self._result("uncordoned", node, snapshot(node), [
            "node %s was uncordoned by somebody since a run has cordoned it, and stays in service" % (
                node["metadata"]["name"])])

    def _let_go(self, node: Object, state: str) -> List[str]:
        """Take away what there is beside a node that is what it is to be. Nothing that fails makes it another: it is
        told, and left to the next run, which finds the Lease as that of one that has died."""
        name = str(node["metadata"]["name"])
        try:
            if state != "kept":
                self._unprotect(node)
            self._holding.release(name)
        except GpuOpsError as error:
            return ["the Lease of node %s is left to run out, and to the next run: %s" % (name, error.found)]
        return []

    def _refuse_taken(self, name: str, uid: str, stays: bool) -> None:
        node, is_held = read_node(self._cluster, name, uid), self._holding.is_there(name)
        if _is_had(node, is_held) if stays else (_is_taken(node) or is_held):
            raise _Taken

    # On the way out of service

    def _go(self, node: Object, act: Taking, way_back: _WayBack) -> Tuple[Object, Dict[str, Any]]:
        name, while_it_drains = str(node["metadata"]["name"]), max(self._lease_seconds, act.timeout + MARGIN_SECONDS)
        if not act.was_taken and not self._holding.acquire(node, while_it_drains):
            way_back.add("Lease of node %s released" % name, lambda: self._holding.release(name))
        renew = functools.partial(self._holding.renew, name, while_it_drains)
        proof = functools.partial(self._holding.prove, name, while_it_drains)
        foreseen = {} if act.drain is None else act.drain(True, proof)
        self._refuse_silent(node, act)
        act.place()
        node = self._proven(name, act.uid, while_it_drains)
        before, offers = says.claims(node), _offers(node)
        is_new = self._run.manager not in before
        if is_new:
            way_back.add("cordon of node %s withdrawn" % name,
                         lambda: _still_cordoned(self._step_back(name, act.uid, before)))
        node = self._bring(name, act.uid, lambda there: self._claimed(there, act.reason, offers), while_it_drains, node)
        if is_new and surroundings.names_machine(node):
            way_back.add("opt-out of the Machine of node %s unset" % name, lambda: self._unprotect(node, self._run))
        self._bring_machine(node, lambda machine: surroundings.protected(machine, self._run), while_it_drains)
        self._refuse_marks(name, surroundings.marks_of(self._cluster, node, self._now), 0)
        act.place()
        renew()
        drained = foreseen if act.drain is None else act.drain(False, proof)
        node = self._check(name, act.uid, while_it_drains)
        gone = _labels_off(node, act.without)
        if gone:
            way_back.add("labels %s of node %s set again" % (", ".join(sorted(gone)), name),
                         lambda: self._labels_back(name, act.uid, gone))
        done = change_node(self._cluster, name, act.without, False, act.uid, node, renew)
        left = wait_for_components_gone(
            self._cluster, name, act.timeout, act.skip_after, self._clock, self._sleep, self._now)
        if act.follow is not None:
            # Of the Lease the components may have used nearly all, and pods that are only waited for renew none
            renew()
            drained = act.follow(drained, renew)
        node = self._check(name, act.uid, self._lease_seconds)
        return node, {**drained, "notes": [*done["notes"], *_of_others(node), *(
            "pod %s of node %s should have ended by %s, and was not waited for any longer" % (
                pod, name, pod.terminating) for pod in left)], "offers": offers}

    def _refuse_silent(self, node: Object, act: Taking) -> None:
        """Components that nobody would end. The drain has looked at the pods of others."""
        state = state_of(node)
        if not state.is_silent or act.skip_after:
            return
        name, labels = str(node["metadata"]["name"]), plan_node_change(node, act.without).after["labels"]
        held = components_leaving(self._cluster, name, {"metadata": {**node["metadata"], "labels": labels}})
        if held:
            raise GpuOpsError.because([silent_refusal({name: state}, {name: held})])

    def _claimed(self, node: Object, reason: str, offers: Mapping[str, int]) -> Optional[Apply]:
        self._refuse_uncordoned(node)
        return says.claim(node, self._run, reason, offers)

    def _step_back(self, name: str, uid: str, before: Mapping[str, Claim]) -> Object:
        """What runs that are dead have said is put right only while no other run has the node: it says its own."""
        try:
            return self._bring(
                name, uid, lambda there: says.next_step_back(there, self._run, before), self._lease_seconds)
        except GpuOpsError as error:
            if error.code != LOST:
                raise
            return self._bring(name, uid, lambda there: says.next_step_back(there, self._run, {}))

    def _check(self, name: str, uid: str, seconds: int) -> Object:
        """The Node. Raises GpuOpsError where it is not this run's any more."""
        node = self._proven(name, uid, seconds)
        self._refuse_uncordoned(node, True)
        return node

    def _proven(self, name: str, uid: str, seconds: Optional[int]) -> Object:
        """The Node, which is this run's still when it has been read. Raises GpuOpsError where it is not.

        What is written to the version that was read then is refused where another run has written since. seconds: as
        of _bring.
        """
        node = read_node(self._cluster, name, uid)
        self._renew_if(name, seconds)
        return node

    def _labels_back(self, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """Where another run has the node by now, they are its own affair."""
        renew = functools.partial(self._holding.renew, name, self._lease_seconds)
        change_node(self._cluster, name, NodePolicy(labels=labels), False, uid, None, renew)

    def _unprotect(self, node: Object, run: Optional[Run] = None) -> None:
        """Withdraw what our runs, or only this one, have said of the Machine."""
        self._bring_machine(node, lambda machine: surroundings.next_unprotected(machine, run),
                            self._lease_seconds if run is None else None)

    def _bring_machine(self, node: Object, following: Callable[[Object], Optional[Apply]],
                       seconds: Optional[int]) -> None:
        """As _bring, of the Machine behind a Node, where it can be read."""
        if not surroundings.names_machine(node):
            return

        def read() -> Optional[Object]:
            machine = surroundings.machine_of(self._cluster, node)
            self._renew_if(str(node["metadata"]["name"]), seconds)
            return machine

        self._say_all(surroundings.machine_path, read(), following, read)

    # On the way back into service

    def _open(self, name: str, act: Returning) -> Tuple[str, Object, List[str]]:
        renew = functools.partial(self._holding.renew, name, self._lease_seconds)
        node = self._await_end_of_marks(name, act.uid, holding=True)
        notes = []
        if says.was_uncordoned(node, self._run, act.was_taken):
            notes.append("node %s was uncordoned by somebody else before it was given back" % name)
        notes += change_node(self._cluster, name, _back(node, act), False, act.uid, node, renew)["notes"]
        if act.offers:
            self._await_offers(name, act)
        node = self._bring(name, act.uid, says.next_withdrawal, self._lease_seconds)
        return "returned", node, [*notes, *_of_others(node)]

    def _await_offers(self, name: str, act: Returning) -> None:
        """Raises GpuOpsError where the node is not Ready in time, or does not offer what it is to offer."""
        self._holding.renew(name, max(self._lease_seconds, act.timeout + MARGIN_SECONDS))

        def missing() -> List[str]:
            node = read_node(self._cluster, name, act.uid)
            if not is_ready(node):
                return ["nothing while it is not Ready"]
            there = offers_of(node)
            if there.keys() - act.offers.keys():
                # A run that is dead had divided its GPUs in another way
                return []
            return ["%d of %d %s" % (there.get(resource, 0), count, resource)
                    for resource, count in sorted(act.offers.items()) if there.get(resource, 0) < count]

        lacks, _there = wait_for(missing, lambda each: not each, act.timeout, PAUSE_SECONDS, self._clock, self._sleep)
        if lacks:
            raise GpuOpsError(
                "cluster.gpus_not_offered",
                found="node %s offers %s after %d s" % (name, ", ".join(lacks), act.timeout),
                wanted="a node that is Ready and offers what it did before it was taken, before pods may come to it",
                remedy="look at the node's kubelet and at its device plugin's pod, or give it more time "
                "(`offer_timeout`). Where it is to offer less from now on: kubectl annotate node %s "
                "gpuops.nvidia.com/offers-" % name,
                option="offer_timeout")

    def _keep(self, name: str, act: Returning) -> Tuple[str, Object, List[str]]:
        renew = functools.partial(self._holding.renew, name, self._lease_seconds)
        node = self._proven(name, act.uid, self._lease_seconds)
        offers = _offers(node)
        notes = change_node(self._cluster, name, act.without, False, act.uid, node, renew)["notes"]
        node = self._proven(name, act.uid, self._lease_seconds)
        if says.was_uncordoned(node, self._run, act.was_taken):
            notes.append("node %s was uncordoned by somebody else, and is not cordoned again" % name)
            return "uncordoned", self._bring(name, act.uid, says.next_withdrawal, self._lease_seconds, node), notes
        reason = KEPT + "; ".join(act.failures)

        def following(there: Object) -> Optional[Apply]:
            return says.claim(there, self._run, reason, offers, True) or says.next_of_others(there, self._run)

        return "kept", self._bring(name, act.uid, following, self._lease_seconds, node), notes

    # What both need

    def _bring(self, name: str, uid: str, following: Callable[[Object], Optional[Apply]],
               seconds: Optional[int] = None, node: Optional[Object] = None) -> Object:
        """Say of a Node, one after another, what is to be said next; the Node after which that is nothing.

        seconds: for how long its Lease is renewed, and shown to be this run's, whenever it is read; None for what a run
                 may say that has lost it.
        node:    as _proven() has it.
        """
        def read() -> Object:
            return self._proven(name, uid, seconds)

        return self._say_all(lambda _node: path_of(name), read() if node is None else node, following, read)

    def _say_all(self, path: Callable[[Object], str], item: Any, following: Callable[[Object], Optional[Apply]],
                 read: Callable[[], Any]) -> Any:
        """The same of any object; None where it is gone. read: it again, and proves the Lease then."""
        called = ""
        for _attempt in range(MOST_WRITES):
            step = None if item is None else following(item)
            if step is None:
                return item
            called = "%s %s" % (item["kind"], item["metadata"]["name"])
            try:
                item = self._sent(path(item), step)
            except GpuOpsError as error:
                came_second = isinstance(error, ApiError) and error.status == CONFLICT
                if not (came_second or is_outage(error)):
                    raise
                item = read()
                # Of a request without an answer the object says whether it was carried out
                if not came_second and item is not None and following(item) == step:
                    raise
        raise GpuOpsError(
            "cluster.node_contended",
            found="%s was changed by others each of the %d times that run %s wrote to it" % (
                called, MOST_WRITES, self._run.identity),
            wanted="a Node, and its Machine, that stay as they are between reading and writing",
            remedy="see who writes to it: kubectl get %s --show-managed-fields --output yaml, with `--namespace` where "
            "it has one" % called)

    def _renew_if(self, name: str, seconds: Optional[int]) -> None:
        if seconds is not None:
            self._holding.renew(name, seconds)

    def _sent(self, path: str, step: Apply, dry_run: bool = False) -> Object:
        if step.by_name:
            return self._cluster.patch(path, step.body, dry_run)
        return self._cluster.apply(path, step.body, dry_run, step.manager)

    def _await_end_of_marks(self, name: str, uid: str, holding: bool = False) -> Object:
        """The Node, when nobody else is at work on it. holding: whether it is to be this run's, as _proven() has it."""
        waiting, renewed = Waiting(self._tell, self._clock), [-math.inf]

        def look() -> Tuple[Object, List[Any]]:
            node = read_node(self._cluster, name, uid)
            found = surroundings.marks_of(self._cluster, node, self._now)
            if found:
                waiting.is_for("node %s is in the hands of %s" % (name, ", ".join(map(str, found))))
            if holding and (not found or self._clock() - renewed[0] > self._lease_seconds / 3):
                self._holding.renew(name, self._lease_seconds)
                renewed[0] = self._clock()
            return node, found

        (node, found), _free = wait_for(look, lambda seen: not seen[1], self._wait, PAUSE_SECONDS, self._clock,
                                        self._sleep)
        self._refuse_marks(name, found, waiting.seconds)
        return node

    def _refuse_marks(self, name: str, found: Sequence[Any], waited: int) -> None:
        if found:
            raise GpuOpsError(
                "cluster.node_of_others",
                found="node %s is in the hands of %s; waited for %d s" % (name, ", ".join(map(str, found)), waited),
                wanted="a node that nobody else is changing",
                remedy="let them finish, or give them more time (`wait_timeout`). What a manager has left that is gone "
                "is taken away by kubectl%s" % "".join(": " + mark.left for mark in found if mark.left),
                option="wait_timeout")

    def _refuse_uncordoned(self, node: Object, had_claimed: bool = False) -> None:
        if says.was_uncordoned(node, self._run, had_claimed):
            name = node["metadata"]["name"]
            raise GpuOpsError(
                "cluster.uncordoned_by_others",
                found="somebody uncordoned node %s while run %s had it" % (name, self._run.identity),
                wanted="a node that stays out of service until it is given back",
                remedy="find out who wants it in service; then run again, or leave it as it is: kubectl get events "
                "--field-selector involvedObject.name=%s" % name)

    # Check mode

    def _foretell_taking(self, node: Object, act: Taking) -> Dict[str, Any]:
        """No Lease is waited for, as nobody can tell the living from the dead at one look."""
        name = str(node["metadata"]["name"])
        self._refuse_marks(name, surroundings.marks_of(self._cluster, node, self._now), 0)
        notes, holder = list(_of_others(node)), self._holding.holder(name)
        if holder not in ("", self._run.identity):
            notes.append("node %s is held by run %s, whose end is waited for" % (name, holder))
        drained = {} if act.drain is None else act.drain(True, for_anybody)
        self._refuse_silent(node, act)
        step = self._tried_out(node, lambda node: says.claim(node, self._run, act.reason, _offers(node)))
        done = change_node(self._cluster, name, act.without, True, act.uid)
        told = self._result("taken", node, done["diff"]["before"], [*notes, *done["notes"]], done["diff"]["after"])
        return {**drained, **told, "offers": _offers(node),
                "changed": told["changed"] or step is not None or drained.get("changed", False)}

    def _foretell_return(self, node: Object, act: Returning, taken: bool, forgotten: bool) -> Dict[str, Any]:
        name = str(node["metadata"]["name"])
        if not act.failures:
            if taken and not act.was_taken:
                act.unchanged(Met(says.claimed_at(node, self._run), True))
            self._refuse_marks(name, surroundings.marks_of(self._cluster, node, self._now) if taken else (), 0)
        step = None
        if act.failures or taken or act.was_taken:
            step = self._tried_out(node, lambda node: says.next_withdrawal(node) if not act.failures else says.claim(
                node, self._run, KEPT + "; ".join(act.failures), _offers(node), True))
        done = change_node(self._cluster, name, act.without if act.failures else _back(node, act), True, act.uid)
        told = self._result("kept" if act.failures else "returned", node, done["diff"]["before"], done["notes"],
                            done["diff"]["after"])
        return {**told, "changed": told["changed"] or step is not None or forgotten}

    def _tried_out(self, node: Object, following: Callable[[Object], Optional[Apply]]) -> Optional[Apply]:
        """What would be sent, once the server has said that it would take it: of the Node as it is then, which others
        write to since it was read."""
        name, uid = str(node["metadata"]["name"]), str(node["metadata"].get("uid", ""))
        step = following(node)
        for attempt in range(MOST_WRITES):
            if step is None:
                break
            try:
                self._sent(path_of(name), step, True)
                break
            except ApiError as error:
                if error.status != CONFLICT or attempt == MOST_WRITES - 1:
                    raise
                step = following(read_node(self._cluster, name, uid))
        return step

    # What is told

    def _result(self, state: str, node: Object, before: Object, notes: Sequence[str],
                after: Optional[Object] = None) -> Dict[str, Any]:
        after = snapshot(node) if after is None else after
        return {
            "changed": before != after,
            "custody": state,
            "run": self._run.identity,
            "lease": name_of(str(node["metadata"]["name"])),
            "node": {"name": node["metadata"]["name"], "uid": node["metadata"].get("uid", ""), **after},
            "cordoned_by_others": list(says.cordoned_by_others(node)),
            "held": says.is_held(node),
            "notes": list(notes),
            "diff": {"before": before, "after": after},
        }


class _Taken(Exception):
    """A run has come to a node that nobody had."""


class _WayBack:
    """What is to be done, the last first, to put a node back as it was."""

    def __init__(self, steps: Sequence[Tuple[str, Callable[[], Optional[Sequence[str]]]]] = ()) -> None:
        self._steps: List[Tuple[str, Callable[[], Optional[Sequence[str]]]]] = list(steps)

    def add(self, done: str, undo: Callable[[], Optional[Sequence[str]]]) -> None:
        """done: what has happened when it was undone, in words. undo: gives what is to be said beside it."""
        self._steps.append((done, undo))

    def go(self) -> Tuple[List[str], List[str]]:
        """What was put back, and what was not, with the reason. One that fails keeps no other back."""
        done: List[str] = []
        remains: List[str] = []
        for words, undo in reversed(self._steps):
            try:
                done.append("; ".join([words, *(undo() or ())]))
            except Exception as error:
                remains.append("not done: %s (%s)" % (words, error))
        return done, remains


def offers_of(node: Object) -> Dict[str, int]:
    """The GPUs that a node offers, by resource."""
    there = nvidia_resources((node.get("status") or {}).get("allocatable"))
    return {name: count for name, count in there.items() if count and is_gpu(name)}


def still_to_take(cluster: Client, names: Sequence[str], run: Run) -> List[str]:
    """Those of some nodes that a run has not cordoned yet. What is drained already, or has been rebooted since, says
    nothing against the others."""
    there = ((name, cluster.find(path_of(name))) for name in names)
    return [name for name, node in there if node is not None and run.manager not in says.claims(node)]


def _offers(node: Object) -> Dict[str, int]:
    """What a node is to offer when it is given back: what it offers, or did before a run took it that is dead.

    What that run had divided in another way and let its components offer, it is not to offer as it did before.
    """
    there, before = offers_of(node), says.offers_before(node)
    if there.keys() - before.keys():
        return there
    return {name: max(there.get(name, 0), before.get(name, 0)) for name in sorted(there.keys() | before.keys())}


def _is_taken(node: Object) -> bool:
    """Whether a Node shows that a run of ours has it, or had it when it died."""
    return bool(says.claims(node)) or says.is_let_go(node)


def _is_had(node: Object, has_lease: bool) -> bool:
    """Whether a run of ours has a Node out of service, or left it so. What somebody has opened since, and no run is at
    work with any more, is in service."""
    is_out = has_lease or bool((node.get("spec") or {}).get("unschedulable"))
    return is_out and (_is_taken(node) or says.was_cordoned_without_claim(node))


def _labels_off(node: Object, policy: NodePolicy) -> Dict[str, str]:
    """The labels that a policy takes off a Node."""
    change = plan_node_change(node, policy)
    return {key: value for key, value in change.before["labels"].items() if key not in change.after["labels"]}


def _back(node: Object, act: Returning) -> NodePolicy:
    is_opened = says.was_cordoned_without_claim(node) and not says.is_held(node)
    return replace(act.labels, uncordoned=True) if is_opened else act.labels


def _still_cordoned(node: Object) -> List[str]:
    """What a person is told of a cordon that does not go with ours."""
    others, why = says.cordoned_by_others(node), cordoned_by_its_host(node)
    return ["node %s is cordoned by %s, and stays so%s" % (
        node["metadata"]["name"], ", ".join(others), ": %s" % why if why else "")] if others else []


def _of_others(node: Object) -> List[str]:
    """The same, and of what works against us."""
    return _still_cordoned(node) + ["annotation %s of node %s was set by others and stays" % (
        each, node["metadata"]["name"]) for each in says.opposite_opt_outs(node)]
