# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of rollouts in a cluster: one ConfigMap, written by compare and swap. What it says is rollout/budget.py's.

A ConfigMap, since a Lease is of one holder and has no place for data; it has 1 MiB, which is thousands of nodes. Each
write is a merge patch that names the resourceVersion that was read: the API server answers it with 409 where somebody
was faster (a failed `test` of a JSON patch would be a 422 that does not say which).
"""
from __future__ import annotations

import contextlib
import functools
import math
import random
import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from ..core.errors import GpuOpsError
from ..core.quantities import is_gpu
from ..core.times import epoch
from ..core.waiting import wait_for
from ..rollout.budget import (
    Answer,
    Asking,
    IsAlive,
    NodeState,
    Pool,
    Record,
    asked,
    begun,
    confirmed,
    given_back,
    goes_on,
    is_held,
    read_record,
    was_at_work,
    without_the_gone,
    written,
)
from ..rollout.hosts import job_groups
from ..rollout.model import Cause, Rollout, Waiting
from ..rollout.windows import instant_text
from .client import ApiError, Client, is_outage
from .components.common import SHARED_ARGUMENTS, selector, shared_objects
from .custody.custody import Met
from .custody.marks import Mark
from .labels import (
    HEALTH_MANAGER,
    HOLD,
    TAINTED,
    cordoned_by,
    cordoned_by_its_host,
    cordoned_by_managers,
    is_kept,
    is_nvidias,
)
from .nodes import node_facts
from .playbook_rights import RECORD as NAME
from .pods import pod_of
from .selectors import Requirements, is_met, parsed

RECORD, CAPS = "record", "caps"
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
CONFLICT, NOT_FOUND, FORBIDDEN = 409, 404, 403
# Bytes of an object that etcd takes, with what is beside the record
MOST_BYTES = 1000 * 1000
# How often at least, and for how many seconds, a write is tried again while others are faster, and the pauses between:
# one who has stood still for these seconds has not tried
WRITE_ATTEMPTS = 10
WRITE_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
# Seconds for which an API server that is away is asked again by who has no more time than that, and the pauses between
OUTAGE_SECONDS = 300.0
OUTAGE_PAUSE_SECONDS = 10.0
# Seconds after which a host that waits for canaries no longer waits for those that do not ask; half of the time that it
# has, where that is less, but no fewer than a canary needs that only has no process yet
PATIENCE_SECONDS, LEAST_PATIENCE_SECONDS = 300.0, 30.0
# For so many pauses, and seconds at most, a host that has to wait goes by the Nodes as it has listed them
PAUSES_OF_A_LIST = 6
LIST_SECONDS = 60.0
# Nodes that are asked for each by its name, and no more of them
FEW_BY_NAME = 20
OTHERS = "somebody else"
# By which training frameworks and Kubernetes name the job that a pod is of
JOB_LABELS = ("jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name", "training.kubeflow.org/job-name",
              "ray.io/cluster", "batch.kubernetes.io/job-name", "job-name")

# Marks of other managers on a Node
MarksOf = Callable[[Mapping[str, Any]], Sequence[Mark]]
# The record, read once for one question
Read = Callable[[], Record]
# Says what is waited for
Tell = Callable[[str], None]
Said = TypeVar("Said")


class NodeReading(NamedTuple):
    """How Nodes are read.

    selector:      of labels, '' for all Nodes of the cluster.
    startup_taint: key of the taint that nodes join with, '' none.
    domain_label:  that which names the failure domain.
    marks:         those of other managers.
    mends:         whether it is for a repair: a node that its own host has cordoned waits for that.
    """

    selector: str = ""
    startup_taint: str = ""
    domain_label: str = "topology.kubernetes.io/zone"
    marks: MarksOf = lambda node: ()
    mends: bool = False


class _Seen(NamedTuple):
    """Nodes as a question has found them.

    at:   when they were listed, by the clock of whoever asks.
    held: names of those that had a place then, whether they were there or not.
    """

    at: float = -math.inf
    nodes: Mapping[str, NodeState] = {}
    held: FrozenSet[str] = frozenset()


class Budget:
    """The record of one cluster, and one pool of it.

    is_alive: whether a run is still at work, as far as anybody can tell.
    now:      by default the API server's time, since what is written down is compared by other controllers.
    """

    def __init__(
        self, client: Client, namespace: str, pool: str, reading: NodeReading, is_alive: IsAlive,
        now: Optional[Callable[[], datetime]] = None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._path = _path_of(namespace)
        self._pool = pool
        self._reading = reading
        self._is_alive = is_alive
        self.now = now or client.now
        self._clock = clock
        self._sleep = sleep
        # What a question that was cut short may have reserved, and did not confirm
        self._unsure: Optional[Tuple[Answer, Asking]] = None
        self._seen = _Seen()

    def read(self, patience: float = 0.0, tell: Tell = lambda why: None) -> Record:
        """The record as it is; an empty one where there is none yet. The rest is as of change()."""
        return self._persistently(lambda: self._read()[0], patience, tell)

    def nodes(self, names: Collection[str], pool: Pool) -> Dict[str, NodeState]:
        """The Nodes with GPUs, and those of these names, by one list; and those that hold a place of the pool."""
        return self._with_held(self._listed(names), pool)

    def seen(self, node: str) -> Optional[NodeState]:
        """A node as it was when the Nodes were last listed for a question; None where there was none."""
        return self._seen.nodes.get(node)

    def _listed(self, names: Collection[str]) -> Dict[str, NodeState]:
        found = list(self._client.items(NODES, keep=lambda node: node_state(node, self._reading, names),
                                        labelSelector=self._reading.selector))
        if self._reading.selector:
            wanted = parsed(self._reading.selector, "label_selector")
            found += self._not_selected(wanted)
            found += self._by_name(frozenset(filter(None, names)).difference(state.name for state in found), wanted)
        return {state.name: state for state in found}

    def _not_selected(self, wanted: Requirements) -> List[NodeState]:
        """Nodes that our runs keep out of service, and of which custody may have taken what they are listed by."""
        def kept(node: Mapping[str, Any]) -> Optional[NodeState]:
            return node_state(node, self._reading) if _may_be_of_pool(
                node, wanted) and cordoned_by(node) is not None else None

        found = list(self._client.items(NODES, keep=kept, fieldSelector="spec.unschedulable=true"))
        elsewhere = self._held_elsewhere() if found else frozenset()
        return [state for state in found if state.name not in elsewhere]

    def _by_name(self, names: Collection[str], wanted: Requirements) -> List[NodeState]:
        """Those of hosts that the selector does not name: only one that has no Node has not joined yet, and takes no
        place. In a large cluster all Nodes are many more than a few hosts."""
        def named(node: Mapping[str, Any]) -> Optional[NodeState]:
            state = node_state(node, self._reading, names)
            return None if state is None or state.name not in names else replace(
                state, of_pool=_may_be_of_pool(node, wanted))

        selectors = ["metadata.name=" + name for name in sorted(names)] if len(names) <= FEW_BY_NAME else [""]
        return [state for each in selectors for state in self._client.items(NODES, keep=named, fieldSelector=each)]

    def _held_elsewhere(self) -> FrozenSet[str]:
        """Nodes of other pools, which may be told from this one's by a label alone that custody has taken."""
        pools = self._read()[0].pools
        return frozenset(node for name, pool in pools.items() if name != self._pool for node in pool.slots)

    def _with_held(self, nodes: Mapping[str, NodeState], pool: Pool) -> Dict[str, NodeState]:
        """With the Nodes that hold a place, each of which is asked for where it is not among them.

        A node that is being changed may have lost what the others are known by: a label that the selector wants and
        that is taken off with our components, or its GPUs, which go with the device plugin. It is gone where there is
        no Node.
        """
        held = sorted(set(pool.slots) - set(nodes))
        # By lists of one, as a plan needs no further right then
        found = (state for name in held for state in self._client.items(
            NODES, keep=lambda node: node_state(node, self._reading, held), fieldSelector="metadata.name=" + name))
        return {**nodes, **{state.name: state for state in found}}

    def change(
        self, what: Callable[[Record], Record], patience: float = 0.0, tell: Tell = lambda why: None
    ) -> Record:
        """The record once it is changed, by whatever others have made of it meanwhile.

        what:     pure, may raise.
        patience: seconds for which an API server that is away is asked again.
        """
        return self._persistently(lambda: self._changed(what), patience, tell)

    def _changed(self, what: Callable[[Record], Record]) -> Record:
        began = self._clock()
        for attempt in range(10 ** 6):
            record, version = self._read()
            changed = what(record)
            if changed == record or self._write(changed, version):
                return changed
            self._pause(attempt, began)
        raise AssertionError("attempts do not end")

    def ask(self, asking: Asking, rollout: Rollout) -> Answer:
        """Whether a host may start now; its places are reserved then, and were found free after that.

        Reserved by compare and swap, so that no other reservation was made beside it; then all Nodes are listed again,
        and where others have taken so many out of service meanwhile that they are too many, the places are given back.
        """
        names = [host.node for host in rollout.of_run.values()]
        # As the record has it, so that a slot is known again
        asking = replace(asking, now=asking.now.replace(microsecond=0))
        if self._unsure is not None:
            self._give_back(*self._unsure)
            self._unsure = None
        again = self._ask_again(asking, rollout)
        if again is not None:
            return again
        listed_at = self._clock()
        listed = self._listed(names)
        began = self._clock()
        tried: Optional[Answer] = None
        for attempt in range(10 ** 6):
            record, version = self._read()
            lost = tried is not None and _was_written(tried, record, self._pool)
            if tried is not None and lost:
                answer = replace(tried, record=record)
                break
            nodes = self._with_held(listed, record.pool(self._pool))
            self._seen = _Seen(listed_at, nodes, frozenset(record.pool(self._pool).slots))
            pool = without_the_gone(record.pool(self._pool), nodes)
            answer = asked(record.but(self._pool, pool), self._pool, asking, rollout, nodes, self._is_alive)
            self._unsure = (answer, asking) if answer.may_start and answer.before else self._unsure
            if answer.record is None or self._write(answer.record, version):
                break
            tried = answer if answer.before else tried
            self._pause(attempt, began)
        if answer.may_start and answer.before:
            try:
                answer = self._confirmed(answer, asking, rollout)
            except Exception:
                # Nobody would know of these places else whether they are too many
                with contextlib.suppress(GpuOpsError):
                    self._give_back(answer, asking)
                raise
        self._unsure = None
        return answer

    def _ask_again(self, asking: Asking, rollout: Rollout) -> Optional[Answer]:
        """The answer to a host that has its place already, without a list of all Nodes; None where it has none."""
        node, began = rollout.hosts[asking.host].node, self._clock()
        for attempt in range(10 ** 6):
            record, version = self._read()
            if not goes_on(record.pool(self._pool), node, asking.run):
                return None
            nodes = self._with_held({}, record.pool(self._pool))
            self._seen = self._seen._replace(nodes={**self._seen.nodes, **nodes})
            pool = without_the_gone(record.pool(self._pool), nodes)
            if not goes_on(pool, node, asking.run):
                return None
            answer = asked(record.but(self._pool, pool), self._pool, asking, rollout, nodes, self._is_alive)
            if answer.record is None or self._write(answer.record, version):
                return answer
            self._pause(attempt, began)
        raise AssertionError("attempts do not end")

    def _confirmed(self, answer: Answer, asking: Asking, rollout: Rollout) -> Answer:
        """The answer, if it is true of the Nodes as they are since its places are reserved."""
        pool = (answer.record or Record()).pool(self._pool)
        nodes = self.nodes([host.node for host in rollout.of_run.values()], pool)
        again = confirmed(answer, self._pool, asking, rollout, nodes, self._is_alive)
        if not again.may_start:
            self._give_back(answer, asking)
            return replace(again, record=None)
        if len(answer.before) == 1:
            return answer
        node = rollout.hosts[asking.host].node
        known = self.change(lambda record: begun(record, self._pool, asking.run, node, answer.before))
        if is_held(known.pool(self._pool), node, asking.run):
            return answer
        return replace(answer, record=None, before={}, waiting=Waiting(
            rollout.waits_as(asking.host), Cause.run,
            "its places were given to others before they were confirmed", asking.now))

    def _give_back(self, answer: Answer, asking: Asking) -> None:
        self.change(lambda record: given_back(record, self._pool, asking.run, answer.before))

    def wait(
        self, asking_at: Callable[[Read, datetime], Asking], rollout: Rollout, limit: float, pause: float,
        tell: Tell = lambda why: None,
    ) -> Answer:
        """The same, asked again until the host may start, asking is of no use, or the time is over.

        An API server that is away meanwhile is waited for as well, for OUTAGE_SECONDS where there is less time left.

        asking_at:    of the record and the instant; how long it has waited is known here.
        limit, pause: seconds.
        tell:         what the host waits for, whenever that is something else than before.
        """
        began = self._clock()
        told: List[Tuple[str, str]] = []
        since: Dict[Cause, datetime] = {}
        patience = timedelta(seconds=min(PATIENCE_SECONDS, max(LEAST_PATIENCE_SECONDS, limit / 2)))

        def asked_once() -> Answer:
            read = functools.lru_cache(maxsize=None)(self.read)
            waited = timedelta(seconds=self._clock() - began)
            asking = replace(asking_at(read, self.now()), waited=waited, patience=patience)
            is_last = self._clock() - began >= limit
            as_seen = None if is_last else self._as_seen(
                read, asking, rollout, min(LIST_SECONDS, PAUSES_OF_A_LIST * pause))
            return as_seen if as_seen is not None and not settled(as_seen) else self.ask(asking, rollout)

        def ask() -> Answer:
            answer = self._persistently(asked_once, max(OUTAGE_SECONDS, limit - (self._clock() - began)), tell)
            waiting = answer.waiting
            if waiting is not None:
                # Of one cause it waits since it has met it first
                waiting = replace(waiting, since=min(waiting.since, since.setdefault(waiting.cause, waiting.since)))
                answer = replace(answer, waiting=waiting)
                if told[-1:] != [(waiting.cause.value, waiting.why)]:
                    told.append((waiting.cause.value, waiting.why))
                    tell(waiting.why)
            return answer

        def settled(answer: Answer) -> bool:
            if answer.may_start or answer.is_final:
                return True
            if answer.waiting is None:
                return False
            until, left = answer.waiting.until, limit - (self._clock() - began)
            if until is None:
                return answer.waiting.cause is Cause.window
            return until > self.now() + timedelta(seconds=left)

        return wait_for(ask, settled, limit, pause, self._clock, self._sleep)[0]

    def _as_seen(self, read: Read, asking: Asking, rollout: Rollout, seconds: float) -> Optional[Answer]:
        """What a host waits for even by the Nodes of its last question; None where they have to be listed anew.

        Hosts ask often, and many at a time: what hundreds of Nodes say of themselves would be most of what the API
        server is asked for meanwhile. The record is read each time, so that a place which becomes free is seen at once:
        its node may have been seen in the middle of its change, and is looked at anew. Whoever begins does so by a new
        list.

        seconds: for which Nodes count as they were seen.
        """
        seen = self._seen
        if self._unsure is not None or self._clock() - seen.at > seconds:
            return None
        record = read()
        pool = record.pool(self._pool)
        if not (seen.held <= pool.slots.keys() <= {*seen.nodes, *seen.held}):
            return None
        answer = asked(record.but(self._pool, without_the_gone(pool, seen.nodes)), self._pool,
                       replace(asking, now=asking.now.replace(microsecond=0)), rollout, seen.nodes, self._is_alive)
        return answer if answer.record is None and not answer.may_start else None

    def _persistently(self, ask: Callable[[], Said], seconds: float, tell: Tell) -> Said:
        """What the API server says; it may be away for so many seconds. Raises GpuOpsError where that is longer."""
        outages: List[GpuOpsError] = []

        def attempt() -> List[Said]:
            try:
                return [ask()]
            except GpuOpsError as error:
                if not is_outage(error):
                    raise
                if not outages:
                    tell("%s; it is asked again for up to %d s" % (error.found, seconds))
                outages.append(error)
                return []

        said, _in_time = wait_for(attempt, bool, seconds, OUTAGE_PAUSE_SECONDS, self._clock, self._sleep)
        if not said:
            raise outages[-1]
        return said[0]

    def jobs(self, job_labels: Sequence[str]) -> Tuple[Dict[str, List[str]], Mapping[str, str]]:
        """({node: names of the jobs that have pods with GPUs or claims there}, {node: its job group}), by one list of
        all pods.

        job_labels: of pods, whose values name jobs that restart as a whole.
        """
        of_nodes: Dict[str, Dict[str, None]] = {}
        together: Dict[str, List[str]] = {}
        for node, job, group in self._client.items(PODS, keep=lambda pod: _job(pod, job_labels)):
            of_nodes.setdefault(node, {})[job] = None
            if group:
                together.setdefault(group, []).append(node)
        return {node: list(jobs) for node, jobs in of_nodes.items()}, job_groups(together)

    def _read(self) -> Tuple[Record, str]:
        return _read(self._client, self._path)

    def _write(self, record: Record, version: str) -> bool:
        """False where somebody was faster."""
        text = written(record)
        if len(text.encode()) > MOST_BYTES:
            raise GpuOpsError(
                "cluster.rollout_record_full",
                found="the record of rollouts would have %d bytes" % len(text.encode()),
                wanted="%d at most, as an object of Kubernetes may have" % MOST_BYTES,
                remedy="have several pools, each in a namespace of its own (`namespace`)",
                option="namespace",
            )
        if not version:
            self._create()
            return False
        try:
            self._client.patch(self._path, {"metadata": {"resourceVersion": version}, "data": {RECORD: text}})
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        return True

    def _create(self) -> None:
        """An object without a record: whoever writes first then writes into it, and the others are told so."""
        # Not labelled as managed by us: it is no component's, and goes with none
        body = {"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": self._namespace, "labels": selector(NAME)}}
        try:
            self._client.apply(self._path, body)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._create_namespace()
            self._client.apply(self._path, body)

    def _create_namespace(self) -> None:
        """As the components have it."""
        options = {name: option.get("default") for name, option in SHARED_ARGUMENTS.items()}
        body = shared_objects({**options, "namespace": self._namespace})[0]
        try:
            self._client.apply("/api/v1/namespaces/" + self._namespace, body)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            raise GpuOpsError(
                "cluster.rollout_without_namespace",
                found="there is no namespace %s, and this user may not make it" % self._namespace,
                wanted="a place for the record that all controllers share",
                remedy="have it made (`docs/rbac/namespace.yaml`), or name another by `namespace`",
                option="namespace",
            ) from error

    def _pause(self, attempt: int, began: float) -> None:
        if attempt >= WRITE_ATTEMPTS and self._clock() - began > WRITE_SECONDS:
            raise GpuOpsError(
                "cluster.rollout_record_busy",
                found="for %d seconds others have been faster to write the record of rollouts, %s" % (
                    WRITE_SECONDS, self._path),
                wanted="one write of ours",
                remedy="see who writes it (its `managedFields`), and run again",
            )
        # The more have met, the longer: one of them always gets through
        self._sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10))))


def prove_place(client: Client, namespace: str, pool: str, node: str, run: str) -> None:
    """Raises GpuOpsError where a run has the place of a node in a pool no more.

    A run that waited, or stood still, for longer than it may be silent has lost it to others, who may have begun with
    another node in its place.
    """
    record, _version = _read(client, _path_of(namespace))
    slot = record.pool(pool).slots.get(node)
    if goes_on(record.pool(pool), node, run):
        return
    raise GpuOpsError(
        "cluster.rollout_place_lost",
        found="run %s no longer has the place of node %s in pool %s: %s" % (
            run, node, pool, "nobody has it" if slot is None else "run %s has it, and the node is %s" % (
                slot.run or "of nobody", slot.state)),
        wanted="the place with which it began, kept by a run that is not silent for longer than its Lease counts",
        remedy="run again: it asks for a place anew; with a `lease_seconds` that is longer than the longest task",
        option="lease_seconds")


def prove_unchanged(
    client: Client, namespace: str, node: str, run: str, since: datetime, is_opened: bool, met: Met
) -> None:
    """Raises GpuOpsError where another run was at work with a node after an instant, so that of its host is known what
    was so before, or in the middle of that.

    Who has the Lease of the node asks. A node that is opened is not to have failed in any pool, nor to be in the middle
    of what another run has begun; a change that began earlier is of a run that is no more: where that was so at the
    instant already, it was seen with its host. One that is kept for its checks is not to have been given back since.
    """
    record, _version = _read(client, _path_of(namespace))
    found = _why_not_opened(record, node, run, since, met) if is_opened else _why_not_kept(record, node, since, met)
    if found:
        raise GpuOpsError(
            "cluster.node_changed_since", found=found, wanted="what becomes of a node to go by what its host is now",
            remedy="run again, which looks at the host anew; what failed is seen to, and freed, first")


def _why_not_kept(record: Record, node: str, since: datetime, met: Met) -> str:
    if met.had:
        return ""
    if met.ended:
        return "a run had node %s when its host failed, and has let it go since" % node
    for name, pool in record.pools.items():
        rollouts = [opened.done for opened in (pool.rollout, pool.last) if opened is not None]
        at = max((over[node] for over in (*rollouts, pool.returned) if node in over), default=since)
        if at > since:
            return "node %s was changed in pool %s, and given back at %s, after its host was looked at" % (
                node, name, instant_text(at))
    return ""


def _why_not_opened(record: Record, node: str, run: str, since: datetime, met: Met) -> str:
    was_held = any(epoch(each) > since.timestamp() for each in met.shown)
    found = "a run had node %s after its host was looked at" % node if was_held and met.is_out else ""
    for pool, slot in sorted((name, pool.slots[node]) for name, pool in record.pools.items() if node in pool.slots):
        failure = slot.earlier_failure
        if failure is not None:
            return "run %s has failed with node %s in pool %s (%s)" % (
                failure.run or "of nobody", node, pool, failure.reason)
        whose = "run %s" % (slot.run or "of nobody")
        if slot.run != run and (was_held or was_at_work(record.pool(pool), slot, since)):
            found = "%s began with node %s in pool %s at %s, was at work after its host was looked at, and has not " \
                "ended it" % (whose, node, pool, instant_text(slot.since))
    return found


def _may_be_of_pool(node: Mapping[str, Any], wanted: Requirements) -> bool:
    """Whether a selector names a Node, but for labels that may have gone with our components."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return all(is_met(each, labels) or (each["key"] not in labels and is_nvidias(each["key"])) for each in wanted)


def _path_of(namespace: str) -> str:
    return "/api/v1/namespaces/%s/configmaps/%s" % (namespace, NAME)


def _read(client: Client, path: str) -> Tuple[Record, str]:
    """(record, the version that it is of; '' where there is no object)."""
    found = client.find(path)
    if found is None:
        return Record(), ""
    data = found.get("data") or {}
    return read_record(data.get(RECORD, ""), data.get(CAPS, "")), str(found["metadata"]["resourceVersion"])


def node_state(node: Mapping[str, Any], reading: NodeReading, names: Collection[str] = ()) -> Optional[NodeState]:
    """What a rollout wants to know of a Node; None for one without GPUs, unless it has one of these names, or is out of
    service by a run of ours: what shows its GPUs may have gone with our components."""
    facts = node_facts(node)
    ours = cordoned_by(node) is not None
    if not (facts["present"] or ours or facts["name"] in names):
        return None
    is_theirs = bool(facts["unschedulable"]) and not ours
    # Of an admin's cordon nothing can be seen there, but of his mark
    held = facts["annotations"].get(HOLD)
    by_itself = is_theirs and reading.mends and held is None and cordoned_by_managers(node) == [HEALTH_MANAGER]
    taint = reading.startup_taint
    joins = bool(taint) and any(each.get("key") == taint for each in facts["taints"]) and facts["annotations"].get(
        TAINTED) != taint
    marks = reading.marks(node)
    # Of a node that our runs have, they answer themselves
    taken_away = "" if ours else ", ".join(str(mark) for mark in marks if mark.is_out)
    unhealthy = next((each["found"] for each in facts["findings"] if each["code"] == "cluster.unhealthy_devices"), "")
    return NodeState(
        name=str(facts["name"]), ready=facts["ready"], ours=ours, kept=is_kept(node),
        cordoned_by=_who_cordoned(node, held) if is_theirs and not by_itself else taken_away, by_itself=by_itself,
        marks=tuple(map(str, marks)),
        # A taint that we have set ourselves is of a node that had been in service
        in_service=not joins, domain=str(facts["labels"].get(reading.domain_label) or ""),
        clique=str(facts["clique"] or ""), unhealthy=unhealthy,
        # Its version is told by a loaded driver alone, and our components are let come once a node is validated
        had_gpus=bool(facts["driver_version"]) or any(map(is_gpu, facts["capacity"]))
        or any(name.startswith("nvidia.com/gpu.deploy.") for name in facts["our_labels"]))


def _who_cordoned(node: Mapping[str, Any], held: Optional[str]) -> str:
    why = cordoned_by_its_host(node)
    if why and held is not None:
        return "%s (%s: %s)" % (OTHERS, HOLD, held or "no reason given")
    return "its own host (%s)" % why if why else OTHERS


def _was_written(tried: Answer, record: Record, pool: str) -> bool:
    """Whether a write was done whose answer was lost: what it reserved is there."""
    ours, there = (tried.record or Record()).pool(pool).slots, record.pool(pool).slots
    return all(node in there and (there[node].run, there[node].since) == (ours[node].run, ours[node].since)
               for node in tried.before)


def _job(pod: Mapping[str, Any], job_labels: Sequence[str]) -> Optional[Tuple[str, str, str]]:
    """(node, job, the job's name where it restarts as a whole); None for what is no work with GPUs.

    What a claim is of, only the claim tells: devices that are no GPUs count as well.
    """
    holder = pod_of(pod)
    has_devices = bool(holder.resources or holder.claims)
    if not has_devices or holder.is_finished or not holder.node or holder.daemonset or holder.mirror:
        return None
    known = holder.labels
    name = next((known[label] for label in (*job_labels, *JOB_LABELS) if known.get(label)), holder.owner or holder.name)
    group = next((known[label] for label in job_labels if known.get(label)), "")
    return (holder.node, "%s/%s" % (holder.namespace, name), "%s/%s" % (holder.namespace, group) if group else "")
