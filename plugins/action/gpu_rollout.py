# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import contextlib
import functools
import socket
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import zip_longest
from typing import Any, Callable, ClassVar, Collection, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ansible.module_utils.common.validation import check_type_dict
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.display import Display

from ..module_utils.cluster.budget import OUTAGE_SECONDS, Budget, NodeReading, Read
from ..module_utils.cluster.client import Client, Connection
from ..module_utils.cluster.components.common import SHARED_ARGUMENTS
from ..module_utils.cluster.custody import leases
from ..module_utils.cluster.custody.run import run_called
from ..module_utils.cluster.custody.surroundings import MarksInLists
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal, as_result
from ..module_utils.rollout import budget as records
from ..module_utils.rollout.budget import Answer, Asking, NodeState, Pool, Record, Slot, checked_pool
from ..module_utils.rollout.change import REPAIR, repairs
from ..module_utils.rollout.hosts import Known, aim_of, allowed_later, host_of
from ..module_utils.rollout.model import Cause, Decision, Host, Rollout, Unit, some
from ..module_utils.rollout.planner import closed_now, decide, failed_before, plan
from ..module_utils.rollout.policy import COLLECTIONS, OPTIONS, policy_of
from ..module_utils.rollout.text import head, render
from ..plugin_utils.agreement import Opinion, disagreement
from ..plugin_utils.cluster_action import FROM_VARIABLES, ClusterAction, checked, connection_of_environment
from ..plugin_utils.clusters import NODE_NAME, PlayCluster, PlayVariables, clusters_of
from ..plugin_utils.many_hosts import failed
from ..plugin_utils.reader_words import people_read, typed
from ..plugin_utils.role_variables import worked_out
from ..plugin_utils.run_identity import this_run

PLANNED, START, ENDED, SETTLED, CLOSED = STATES = ("planned", "start", "ended", "settled", "closed")
PREFIX = "gpu_rollout_"
# Options that are one word for a cluster, and which its hosts' variables say where the task does not
OF_CLUSTER = (*OPTIONS, "pool", "namespace", "lease_namespace", "label_selector", "domain_label", "job_labels", "aim")
# Those that say where the record is
OF_RECORD = ("pool", "namespace", "lease_namespace")
# {option that another variable says: that variable}
ALSO_SAID = {"startup_taint": "gpu_startup_taint"}
# {option that a repair says by a variable of its own: that variable}
OF_REPAIR = {"max_failures": "gpu_repair_max_failures"}
DOMAIN = PREFIX + "domain"
_COLLECTED = tuple(PREFIX + name for name in COLLECTIONS)
NAMESPACE = str(SHARED_ARGUMENTS["namespace"]["default"])
NO_CLUSTER = ""
# Options of a connection that a command may show, and those that it may not
SHOWN = ("kubeconfig", "context", "host", "username", "validate_certs", "ca_cert", "client_cert", "client_key",
         "no_proxy", "impersonate_user", "impersonate_groups")
NOT_SHOWN = ("api_key", "password", "proxy")
# How often a run says that it is at work, in the time for which that counts
SIGNS_OF_LIFE = 4


class ActionModule(ClusterAction):
    """Orders a fleet's changes, and lets a host begin, by the record that all controllers share."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "state": {"type": "str", "choices": list(STATES), "required": True},
        "run": {"type": "str"},
        "hosts": {"type": "list", "elements": "str"},
        "plan_variable": {"type": "str", "default": "gpu_planned"},
        "aim": {"type": "str", "default": ""},
        "planned": {"type": "dict"},
        "unprepared": {"type": "list", "elements": "str", "default": []},
        "name": {"type": "str"},
        "timeout": {"type": "int", "default": 3600},
        "interval": {"type": "int", "default": 10},
        "lease_seconds": {"type": "int", "default": 600},
        "unreachable": {"type": "list", "elements": "str", "default": []},
        "unwell": {"type": "list", "elements": "str", "default": []},
        "was_small": {"type": "bool"},
        "untold": {"type": "list", "elements": "str", "default": []},
        "signs": {"type": "dict", "default": {}},
        "outcome": {"type": "str", "choices": list(records.OUTCOMES)},
        "reason": {"type": "str", "default": ""},
        "dead_runs": {"type": "list", "elements": "str", "default": []},
        "read_at": {"type": "float"},
        "read_again_at": {"type": "dict", "default": {}},
        "pool": {"type": "str", "default": records.DEFAULT_POOL},
        "namespace": {"type": "str", "default": NAMESPACE},
        "lease_namespace": {"type": "str", "default": NAMESPACE},
        "label_selector": {"type": "str", "default": ""},
        "startup_taint": {"type": "str", "default": ""},
        "domain_label": {"type": "str", "default": NodeReading().domain_label},
        "job_labels": {"type": "list", "elements": "str", "default": []},
        "limit": {"type": "raw"},
        "domain_limit": {"type": "raw"},
        "canaries": {"type": "str"},
        "soak": {"type": "raw"},
        "expected_duration": {"type": "raw"},
        "unit_mode": {"type": "str"},
        "unit_modes": {"type": "raw"},
        "max_failures": {"type": "raw"},
        "max_unreachable": {"type": "raw"},
        "seed": {"type": "str"},
        "windows": {"type": "raw"},
        "freezes": {"type": "raw"},
    }

    # Of the cluster that is planned
    _known: Sequence[Known] = ()
    # {node: its host} of the cluster that is settled
    _hosts: Mapping[str, str] = {}
    # Names of those of the whole inventory, whatever hosts the run is limited to
    _groups: Collection[str] = ()
    _host = _run = ""
    # {option that the task does not give: the variable that the reader sets for it}
    _variables: Mapping[str, str] = {}

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        self._host = str(task_vars["inventory_hostname"])
        given = {name: value for name, value in self._task.args.items() if name != FROM_VARIABLES}
        options = checked(given, self.ARGUMENTS, self._name())
        own = OF_REPAIR if boolean(task_vars.get("gpu_run_repairs", False), strict=False) else {}
        self._variables = {name: own.get(name, PREFIX + name) for name in OF_CLUSTER if name not in given}
        _refuse_missing(options)
        self._run = _identity(options["run"] or "", task_vars)
        if options["state"] == PLANNED:
            self._groups = frozenset(map(str, task_vars["groups"]))
            return self._plan_all(PlayVariables(task_vars, self._templar, self._task), given, options)
        if options["state"] == CLOSED and options["planned"] is not None:
            return self._close_all(PlayVariables(task_vars, self._templar, self._task), options["planned"])
        if options["state"] == SETTLED:
            return self._settle_all(PlayVariables(task_vars, self._templar, self._task), given, options["hosts"])
        planned = _planned_of(options["planned"] or {}, self._host)
        if planned is not None and planned["name"] == NO_CLUSTER:
            return self._without_cluster(options, planned)
        said = planned["options"] if planned is not None else self._said(
            lambda name: worked_out(name, task_vars.get(name), self._templar), (*OF_RECORD, *ALSO_SAID))
        return self.ask({**said, **self._given(task_vars)})

    def _plan_all(
        self, variables: PlayVariables, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Dict[str, Any]:
        """One rollout for each cluster, and one for hosts that are in none; what is wrong with one keeps none back."""
        hosts = options["hosts"] if options["hosts"] is not None else variables.hosts
        told: List[Dict[str, Any]] = []
        refusals: List[Refusal] = []
        access = {name: given[name] for name in Connection.__dataclass_fields__ if given.get(name)}
        clusters = [PlayCluster(access, tuple(variables.hosts))] if access else clusters_of(variables, named_only=True)
        inside = {host for cluster in clusters for host in cluster.hosts}
        outside = PlayCluster({}, tuple(host for host in variables.hosts if host not in inside), is_known=False)
        for there, has_nodes in (*((each, True) for each in clusters), (outside, False)):
            cluster = replace(there, hosts=tuple(host for host in there.hosts if host in hosts))
            if not cluster.hosts:
                continue
            try:
                found = self._plan_one(variables, cluster, given, options, has_nodes)
            except GpuOpsError as error:
                found = failed(self._in_words(error))
            found.pop("changed", None)
            refusals += map(Refusal.from_dict, found.get("refusals", ()))
            told.append({"failed": False, **found, "name": str(cluster) if has_nodes else NO_CLUSTER,
                         "hosts": list(cluster.hosts)})
        for each in told:
            each["alone"] = len(told) == 1
        result = {
            "changed": False,
            "clusters": told,
            "warnings": [*(warning for each in told for warning in each.pop("warnings", ())), *_of_no_group(
                told, self._variables.get("unit_modes", "unit_modes"))],
            "of_hosts": {name: what for each in told for name, what in each.pop("of_hosts", {}).items()},
            "order": _order([each for each in told if not each["failed"]]),
            "text": "\n".join(("%s: " % each["name"] if each["name"] else "") + each["text"]
                              for each in told if not each["failed"]),
        }
        return {**result, **as_result(refusals), "failed": True} if refusals else result

    def _plan_one(
        self, variables: PlayVariables, cluster: PlayCluster, given: Mapping[str, Any], options: Mapping[str, Any],
        has_nodes: bool
    ) -> Dict[str, Any]:
        if cluster.refusals:
            raise GpuOpsError.because(cluster.refusals)
        said = self._agreed(variables, cluster)
        self._known = [_known(variables, host, options, has_nodes) for host in cluster.hosts]
        if has_nodes:
            return self.ask({**said, **given, **cluster.options})
        return self._planned(checked({**said, **given}, self.ARGUMENTS, self._name()), Record(), {}, {}, {},
                             datetime.now(timezone.utc))

    def _close_all(self, variables: PlayVariables, planned: Mapping[str, Any]) -> Dict[str, Any]:
        """Of every cluster that was planned; one that does not answer keeps no other open."""
        told = []
        for cluster in clusters_of(variables, named_only=True):
            of_one = next((found for found in (_planned_of(planned, host) for host in cluster.hosts) if found), None)
            if of_one is not None:
                found = self.ask({**of_one["options"], "state": CLOSED, **cluster.options})
                if found.get("failed"):
                    found["told"] = "What is out of service in %s is not known: %s" % (cluster, found["msg"])
                told.append({"name": str(cluster), "failed": False, "changed": False, **found})
        return {"changed": any(each["changed"] for each in told), "clusters": told}

    def _settle_all(
        self, variables: PlayVariables, given: Mapping[str, Any], hosts: Sequence[str]
    ) -> Dict[str, Any]:
        """Of every cluster that has one of these hosts."""
        told = []
        for there in clusters_of(variables, named_only=True):
            cluster = replace(there, hosts=tuple(host for host in there.hosts if host in hosts))
            if cluster.hosts:
                self._hosts = {_node_of(variables, host): host for host in cluster.hosts}
                try:
                    said = self._agreed(variables, cluster, OF_RECORD)
                    found = self.ask({**said, **given, **cluster.options})
                except GpuOpsError as error:
                    found = failed(self._in_words(error))
                untold = self._untold(variables, cluster, given, found) if found.get("failed") else [
                    {"hosts": list(cluster.hosts)}]
                told += [{"name": str(cluster), "failed": False, "changed": False, "nodes": [], **found, **each}
                         for each in untold]
        return {"changed": any(each["changed"] for each in told), "clusters": told,
                "warnings": list(dict.fromkeys(
                    "What runs hold of nodes of %s stays theirs, and none that is out of service is opened: %s" % (
                        each["name"], each["msg"]) for each in told if each["failed"])),
                "of_hosts": {name: what for each in told for name, what in each.pop("of_hosts", {}).items()}}

    def _untold(
        self, variables: PlayVariables, cluster: PlayCluster, given: Mapping[str, Any], found: Mapping[str, Any]
    ) -> List[Dict[str, Any]]:
        """Of hosts of which nobody knows whether their nodes may be opened: who has the Lease of one asks once more,
        where each says that the record is."""
        of_namespaces: Dict[str, List[str]] = {}
        for host in cluster.hosts:
            namespace = str(given.get("namespace") or NAMESPACE)
            with contextlib.suppress(GpuOpsError):
                namespace = str(self._said(functools.partial(_value, variables, host), ("namespace",)).get(
                    "namespace", namespace))
            of_namespaces.setdefault(namespace, []).append(host)
        return [{"hosts": hosts, **_known_since(given, namespace, datetime.now(timezone.utc)),
                 "of_hosts": {host: {"place": "unknown", "unit": "", "why": found["msg"]} for host in hosts}}
                for namespace, hosts in of_namespaces.items()]

    def _agreed(
        self, variables: PlayVariables, cluster: PlayCluster, only: Sequence[str] = (*OF_CLUSTER, *ALSO_SAID)
    ) -> Dict[str, Any]:
        """What the hosts of a cluster say of its rollout. Raises GpuOpsError where they do not agree."""
        groups = variables.alike(cluster.hosts, list(self._variables_of(only).values()))
        said = [self._said(functools.partial(_value, variables, group[0]), only) for group in groups]
        refusals = []
        for option in {name: None for each in said for name in each}:
            variable = {**self._variables, **ALSO_SAID}[option]
            refused = disagreement(str(cluster) if cluster.is_known else "hosts of no cluster", variable, [
                Opinion(each.get(option), group) for each, group in zip(said, groups)])
            refusals += [refused] if refused else []
        if refusals:
            raise GpuOpsError.because(refusals)
        return said[0] if said else {}

    def _variables_of(self, options: Sequence[str]) -> Dict[str, str]:
        found = {option: PREFIX + option for option in self._variables if option in options}
        found.update((option, variable) for option, variable in ALSO_SAID.items()
                     if option in options and option not in self._task.args)
        return found

    def _said(self, value: Callable[[str], Any], only: Sequence[str]) -> Dict[str, Any]:
        """{option: what its variable says} of these which the task does not give."""
        found = {option: value(variable) for option, variable in self._variables_of(only).items()}
        # An empty text is what a form gives where nobody has answered; of a collection the policy refuses it
        return {option: each for option, each in found.items()
                if each is not None and (each != "" or option in COLLECTIONS)}

    def _in_words(self, error: GpuOpsError) -> GpuOpsError:
        return error.named(self._variables)

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        is_alive = _Living(cluster, options["lease_namespace"], options["dead_runs"], options["lease_seconds"])
        reading = NodeReading(options["label_selector"], options["startup_taint"], options["domain_label"],
                              MarksInLists(cluster).of, options["aim"] == REPAIR)
        pool = checked_pool(options["pool"])
        budget = Budget(cluster, options["namespace"], pool, reading, is_alive)
        if options["state"] == PLANNED:
            return self._plan_nodes(budget, options)
        if options["state"] == START:
            return self._start(budget, options, check_mode, is_alive)
        if options["state"] == ENDED:
            return self._ended(budget, options, check_mode)
        if options["state"] == SETTLED:
            return self._settled(budget, options, check_mode, is_alive)
        record = budget.read()
        closed = records.closed(record, pool, self._run)
        is_none = closed == record
        if not check_mode:
            closed = budget.change(lambda record: records.closed(record, pool, self._run))
        result = {"changed": closed != record, **self._holders(closed.pool(pool), options)}
        # A run closes what it has planned, and one that is named is what a person takes to be open
        if is_none and options["run"]:
            result["warnings"] = ["Nothing was closed: run %s has no open rollout in pool %s (namespace %s). Open "
                                  "there: %s" % (self._run, pool, options["namespace"], ", ".join(
                                      each["run"] for each in result["open"].get("runs", ())) or "none")]
        return result

    # What is to be done

    def _plan_nodes(self, budget: Budget, options: Mapping[str, Any]) -> Dict[str, Any]:
        record = budget.read()
        nodes = budget.nodes([known.node for known in self._known], record.pool(options["pool"]))
        jobs, groups = budget.jobs(options["job_labels"])
        return self._planned(options, record, nodes, jobs, groups, budget.now())

    def _planned(
        self, options: Mapping[str, Any], record: Record, nodes: Mapping[str, NodeState],
        jobs: Mapping[str, Sequence[str]], groups: Mapping[str, str], now: datetime
    ) -> Dict[str, Any]:
        policy = policy_of({**{name: options[name] for name in OPTIONS},
                            "unit_modes": _mapping(options["unit_modes"])}, self._groups)
        name = options["pool"]
        pool = record.pool(name)
        dead = frozenset(options["dead_runs"])

        def is_alive(run: str) -> bool:
            return run not in dead

        hosts = [host_of(replace(known, jobs=frozenset(jobs.get(known.node, ())),
                                 job_group=known.job_group or groups.get(known.node, "")),
                         nodes.get(known.node), pool, policy, is_alive) for known in self._known]
        silent = sorted(known.name for known in self._known if known.planned is None)
        ours = {host.node for host in hosts}
        others = [records.beside(state, pool) for state in nodes.values()
                  if state.name not in ours]
        aim = options["aim"] or aim_of(hosts)
        asking = Asking("", self._run, socket.gethostname(), aim, now,
                        frozenset((*options["unreachable"], *silent)), options["signs"])
        joins = pool.rollout is not None and pool.rollout.aim == aim and not dead.issuperset(pool.rollout.runs)
        # Who opens a rollout brings its limits, and has changed nothing in it, whatever is open still
        runs = pool.rollout.runs if pool.rollout is not None else {}
        current, present = records.standing(
            record, pool if joins else records.as_opened(pool, aim, now, runs), name, asking,
            plan([*hosts, *others], policy, now), nodes, is_alive)
        rollout = plan([*hosts, *others], policy, now, present.passed)
        rollout = replace(rollout, refused={host: self._told_whole(each, options, rollout.hosts[host].node)
                                            for host, each in rollout.refused.items()})
        # For people; a host that asks brings the limits of its run, and finds what counts by then
        current = replace(rollout, policy=current.policy, hosts=current.hosts, limits=current.limits)
        decision = decide(current, present)
        decision = replace(decision, stopped=tuple(each.named(self._variables) for each in decision.stopped))
        if pool.rollout is not None and not joins:
            decision = _behind_others(decision, current, lambda host: records.asked(
                record, name, replace(asking, host=host), current, nodes, is_alive))
        return {
            "changed": False,
            "warnings": [*(records.notes_of(pool, rollout.policy) if joins else ()), *_caps_of_others(record, name),
                         *_of_no_pool(hosts, nodes, self._variables.get("label_selector", "label_selector"))],
            "rollout": rollout.to_dict(),
            "options": {"aim": aim, **{each: options[each] for each in (
                "pool", "namespace", "lease_namespace", "label_selector", "startup_taint", "domain_label")}},
            "decision": decision.to_dict(),
            "text": render(current, decision),
            "head": head(current, decision),
            "silent": silent,
            "of_hosts": _of_hosts(rollout, nodes),
            **self._holders(pool, options),
        }

    def _holders(self, pool: Pool, options: Mapping[str, Any]) -> Dict[str, Any]:
        """Who holds a place, and whose rollout is open, for people."""
        own = {known.node: known.name for known in self._known}
        slots = [{"node": node, "host": slot.host, "own": own.get(node, ""), "run": slot.run, "state": slot.state,
                  "since": slot.since.isoformat(), "reason": slot.reason, "repairs": repairs(slot.policy),
                  "told": self._left(node, slot, options)}
                 for node, slot in sorted(pool.slots.items())]
        return {"held": slots, "open": {} if pool.rollout is None else {
            "aim": pool.rollout.aim, "since": pool.rollout.since.isoformat(),
            "runs": [{"run": name, "controller": run.controller, "since": run.since.isoformat()}
                     for name, run in sorted(pool.rollout.runs.items())]}}

    def _left(self, node: str, slot: Slot, options: Mapping[str, Any]) -> str:
        """Who has to do what about a place that is kept; '' where another run is at work, or was."""
        since = slot.since.isoformat()
        if slot.state == records.FAILED:
            # Not each was out of service, and some were put back
            return "The change of %s has failed (%s): %s. It keeps its place. When it was looked at: %s" % (
                slot.host or node, since, slot.reason.rstrip("."), _freeing(options, node))
        if slot.run == self._run:
            return ("%s was begun with (%s), and what became of it is not known. Do: see to it that it can be reached, "
                    "and run this again, which goes on with it first" % (slot.host or node, since))
        return ""

    def _told_whole(self, refusal: Refusal, options: Mapping[str, Any], node: str) -> Refusal:
        """In the reader's words, with the command that he types where it is for a person to say that he has looked."""
        named = refusal.named(self._variables)
        if named.code != "rollout.failed_before":
            return named
        return replace(named, remedy="%s. To free it: %s" % (named.remedy, _freeing(options, node)))

    # A host begins

    def _start(
        self, budget: Budget, options: Mapping[str, Any], check_mode: bool, is_alive: _Living
    ) -> Dict[str, Any]:
        rollout = self._rollout(options)
        planned = _planned_of(options["planned"], self._host) or {}
        unreachable = frozenset((*options["unreachable"], *planned.get("silent", ())))

        def asking(read: Read, now: datetime) -> Asking:
            is_alive.look(lambda: read().pool(options["pool"]))
            return Asking(self._host, self._run, socket.gethostname(), options["aim"], now,
                          unreachable, options["signs"],
                          beat=timedelta(seconds=options["lease_seconds"] // SIGNS_OF_LIFE),
                          seconds=options["lease_seconds"], untold=frozenset(options["untold"]),
                          unwell=frozenset(options["unwell"]))

        began = datetime.now(timezone.utc)
        if check_mode:
            record = budget.read()
            nodes = budget.nodes([host.node for host in rollout.of_run.values()], record.pool(options["pool"]))
            answer = records.asked(record, options["pool"], asking(lambda: record, budget.now()), rollout, nodes,
                                   is_alive)
        else:
            answer = budget.wait(asking, rollout, options["timeout"], options["interval"], self._tell)
        # Those of the plan were told whole with it
        refusals = [each if each in rollout.refused.values() else
                    self._told_whole(each, options, rollout.hosts[self._host].node) for each in answer.refusals]
        unit = rollout.unit_of(self._host)
        has_place = answer.may_start and unit is not None
        state = budget.seen(rollout.hosts[self._host].node)
        return {
            "changed": answer.may_start and bool(answer.before),
            "started": answer.may_start,
            "waiting": answer.waiting.to_dict() if answer.waiting is not None else {},
            "refusals": [each.to_dict() for each in refusals],
            "place": {name: options[name] for name in ("pool", "namespace")} if has_place else {},
            "taken": has_place and state is not None and state.ours,
            "small": unit is None or rollout.hosts[self._host].is_out_anyway,
            "allowed_later": allowed_later(
                rollout.hosts[self._host].node, state, rollout.hosts[self._host].loaded).name,
            "together": self._together(budget, options["pool"], rollout, unit, answer) if has_place else [],
            "slots": str(answer.slots or ""),
            "waited": int((datetime.now(timezone.utc) - began).total_seconds()),
            "notes": list(answer.notes),
        }

    def _together(
        self, budget: Budget, pool_name: str, rollout: Rollout, unit: Optional[Unit], answer: Answer
    ) -> List[str]:
        """The others of its unit that have their places by the same word, or would have in check mode.

        It has its own by now, and others may be at work: so it outlives a short outage as the question before it.
        """
        others = [name for name in unit.hosts if name != self._host] if unit is not None else []
        pool = budget.read(OUTAGE_SECONDS, self._tell).pool(pool_name) if others else Pool()
        return [name for name in others for node in [rollout.hosts[name].node]
                if node in answer.before or records.is_held(pool, node, self._run)]

    def _tell(self, why: str) -> None:
        if people_read():
            Display().display("%s: waits: %s" % (self._host, why))

    def _rollout(self, options: Mapping[str, Any]) -> Rollout:
        try:
            planned = _planned_of(options["planned"], self._host)
            if planned is None:
                raise ValueError("it has no host %s" % self._host)
            return Rollout.from_dict(planned["rollout"])
        except (KeyError, TypeError, ValueError) as broken:
            raise GpuOpsError(
                "cluster.rollout_not_planned",
                found="`planned` has no rollout of host %s (%s: %s)" % (self._host, type(broken).__name__, broken),
                wanted="the result of this module with `state: planned` and this host among its hosts",
                remedy="register it in one task of the same run, and give it as `planned`",
                option="planned",
            ) from broken

    # And ends

    def _ended(self, budget: Budget, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        host = None
        if options["planned"] is not None:
            host = self._rollout(options).hosts.get(self._host)
        node = options["name"] or (host.node if host is not None else "") or self._host

        met: List[Record] = []

        def what(record: Record) -> Record:
            met.append(record)
            return records.ended(record, options["pool"], node, self._run, options["outcome"],
                                 options["reason"], budget.now().replace(microsecond=0), host,
                                 options["signs"].get(self._host, ()))

        # What is not written down, others go on without; a person sees it, and says it again
        patience = 0.0 if options["outcome"] == records.FREED else OUTAGE_SECONDS
        changed = what(budget.read()) if check_mode else budget.change(what, patience, self._tell)
        there = met[0].pool(options["pool"])
        before = there.slots
        result: Dict[str, Any] = {"changed": changed.pool(options["pool"]).slots != before, "node": node}
        if options["outcome"] == records.FREED and node not in {**before, **there.signs}:
            failed_ones = sorted(name for name, slot in before.items() if slot.state == records.FAILED)
            result["warnings"] = ["Nothing was freed: no change of a Node %s has failed in pool %s (namespace %s). "
                                  "Failed there: %s" % (node, options["pool"], options["namespace"],
                                                        ", ".join(failed_ones) or "none")]
        if records.is_late(changed.pool(options["pool"]), node, self._run, options["outcome"]):
            result["warnings"] = ["It is not written down that Node %s is %s: another run has changed it since, and "
                                  "what that found counts" % (node, options["outcome"])]
        elif options["outcome"] == records.FAILED:
            result["frees"] = _freeing(options, node)
        return result

    def _settled(
        self, budget: Budget, options: Mapping[str, Any], check_mode: bool, is_alive: _Living
    ) -> Dict[str, Any]:
        name = options["pool"]
        record = budget.read()
        slots = record.pool(name).slots
        held = {node: slots[node] for node in self._hosts if node in slots}
        known = _known_since(options, options["namespace"], budget.now())
        if not held:
            return {"changed": False, "nodes": [], "of_hosts": {}, **known}
        at_work = {self._run, *is_alive.heard_of(record.pool(name), budget.now())}
        over = {node: slot for node, slot in held.items() if slot.run not in at_work and not (
            known and records.was_at_work(record.pool(name), slot, datetime.fromisoformat(
                known["since_of"].get(self._hosts[node], known["since"]))))}
        settled = records.settled(record, name, over)
        if not check_mode:
            settled = budget.change(lambda there: records.settled(there, name, over))
        stays = {node: settled.pool(name).slots.get(node) for node in held}
        refused = {self._hosts[node]: self._told_whole(
            failed_before(Host(self._hosts[node], node), slot.reason), options, node)
            for node, slot in stays.items() if slot is not None and slot.state == records.FAILED}
        return {"changed": settled != record,
                "nodes": sorted(node for node, slot in held.items() if stays[node] != slot),
                "of_hosts": {host: _refused(refusal) for host, refusal in refused.items()}, **known}

    def _without_cluster(self, options: Mapping[str, Any], planned: Mapping[str, Any]) -> Dict[str, Any]:
        """A host of no cluster has no Node and no record: it is done in its order, so many at once as the play has,
        once its window is open."""
        if options["state"] != START:
            return {"changed": False}
        rollout, began = Rollout.from_dict(planned["rollout"]), datetime.now(timezone.utc)
        refusal, closed = rollout.refused.get(self._host), closed_now(rollout, self._host, began)
        # There is nothing but its window that it could have had to wait for
        is_small = self._host in rollout.beside and closed is not None and options["was_small"] is not False
        waiting = None if refusal is not None or is_small else closed
        last = began + timedelta(seconds=0 if self._task.check_mode else options["timeout"])
        while waiting is not None and waiting.until is not None and waiting.until <= last:
            self._tell(waiting.why)
            time.sleep(max(0.0, min(options["interval"],
                                    (waiting.until - datetime.now(timezone.utc)).total_seconds())))
            waiting = closed_now(rollout, self._host, datetime.now(timezone.utc))
        return {"changed": False, "started": refusal is None and waiting is None, "place": {}, "taken": False,
                "small": is_small,
                "allowed_later": allowed_later("", None, rollout.hosts[self._host].loaded).name,
                "together": [],
                "waiting": waiting.to_dict() if waiting is not None else {},
                "refusals": [refusal.named(self._variables).to_dict()] if refusal is not None else [],
                "slots": "", "waited": int((datetime.now(timezone.utc) - began).total_seconds()),
                "notes": ["host %s is in no cluster: no budget limits it" % self._host]}


class _Living:
    """Which runs are at work yet, as one sees who looks again and again: see custody/leases.py.

    A run shows it by the Leases of its nodes, and in the record of the rollout, where it asks for a host. One that was
    killed between the two has no Lease.

    dead:    runs that somebody knows to be no more.
    seconds: how long what the record says of a run counts, where it does not say that itself.
    """

    def __init__(self, cluster: Client, namespace: str, dead: Sequence[str], seconds: int) -> None:
        self._cluster, self._namespace, self._known, self._seconds = cluster, namespace, frozenset(dead), seconds
        self._watches: Dict[str, leases.Watch] = {}
        self._silent: FrozenSet[str] = frozenset()

    def look(self, read: Callable[[], Pool]) -> None:
        """While the API server is away nobody can show that he is at work: of that time none counts."""
        try:
            said = self._said(read())
        except GpuOpsError:
            self._watches.clear()
            raise
        now = time.monotonic()
        living: Set[str] = set()
        silent: Set[str] = set()
        for name, record in said.items():
            has_run_out = self._watches.setdefault(name, leases.Watch()).has_run_out(record, now)
            (silent if has_run_out else living).add(record.holder)
        self._silent = frozenset(silent - living)

    def heard_of(self, pool: Pool, now: datetime) -> FrozenSet[str]:
        """Runs that have shown themselves within the time for which that counts, by what they have written: of those
        nobody has to see that they are silent, who needs no place."""
        return frozenset(record.holder for record in self._said(pool).values()
                         if record.renewed and abs(now - datetime.fromisoformat(record.renewed.replace("Z", "+00:00")))
                         <= timedelta(seconds=record.seconds)) - self._known

    def _said(self, pool: Pool) -> Dict[str, leases.Record]:
        """{where: what a run says of itself}."""
        said = {str(lease["metadata"]["name"]): leases.record_of(lease) for lease in self._cluster.items(
            leases.path_of(self._namespace), labelSelector=leases.SELECTOR)}
        runs = {} if pool.rollout is None else pool.rollout.runs
        said.update(("/" + name, leases.Record(name, run.seconds or self._seconds, "", run.seen.isoformat(), 0, "", ""))
                    for name, run in runs.items())
        return said

    def __call__(self, run: str) -> bool:
        return run not in self._known and run not in self._silent


def _known_since(options: Mapping[str, Any], namespace: str, now: datetime) -> Dict[str, Any]:
    """What who opens nodes is told of when their hosts were read; {} where nobody says when.

    now: by the clock of the API server, which tells the time in whole seconds.
    """
    if options.get("read_at") is None:
        return {}

    def there(at: Any) -> str:
        return (now - timedelta(seconds=int(time.time() - float(at)) + 2)).isoformat()

    return {"namespace": namespace, "since": there(options["read_at"]),
            "since_of": {host: there(at) for host, at in (options.get("read_again_at") or {}).items()}}


def _identity(named: str, task_vars: Mapping[str, Any]) -> str:
    """Of a run as Leases have it. named: by its name, of this controller then, or by name and controller."""
    name, at, controller = named.partition("@")
    return run_called(name, controller).identity if at else this_run(named, task_vars).identity


def _refuse_missing(options: Mapping[str, Any]) -> None:
    needed: Tuple[str, ...] = {START: ("planned",), ENDED: ("outcome",), SETTLED: ("hosts",)}.get(options["state"], ())
    if options["state"] == ENDED and options["outcome"] == records.FAILED:
        needed += ("reason",)
    missing = [name for name in needed if not options[name]]
    if missing:
        raise GpuOpsError(
            "cluster.rollout_option_missing",
            found="`state: %s` without %s" % (options["state"], ", ".join("`%s`" % name for name in missing)),
            wanted=", ".join("`%s`" % name for name in needed),
            remedy="set %s" % ", ".join("`%s`" % name for name in missing),
        )


def _known(variables: PlayVariables, host: str, options: Mapping[str, Any], has_nodes: bool) -> Known:
    """Raises GpuOpsError where one of its variables cannot be worked out."""
    own = variables.of(host)
    told = own.get(options["plan_variable"])
    found: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    planned: Optional[Mapping[str, Any]] = found
    if found.get("unreachable") or host in options["unreachable"]:
        planned = None
    elif found.get("failed") or "converged" not in found:
        planned = {"refusals": [_not_to_be_changed(host, "no plan was made for it").to_dict()]}
    elif host in options["unprepared"]:
        # What its own plan is refused for says more
        planned = {**found, "refusals": [*found.get("refusals", ()), _not_to_be_changed(
            host, "it is refused, or has failed before its turn").to_dict()]}
    return Known(
        host, _node_of(variables, host) if has_nodes else "", planned,
        tuple(own.get("group_names") or ()), str(variables.value(host, DOMAIN) or ""))


def _value(variables: PlayVariables, host: str, name: str) -> Any:
    """What a host says by a variable. A collection that is there and null is one that somebody has left empty."""
    found = variables.value(host, name)
    return "" if found is None and name in _COLLECTED and name in variables.of(host) else found


def _mapping(given: Any) -> Any:
    """Of a text the mapping that it is, as Ansible takes an option; what is none is left to the policy to refuse."""
    if not isinstance(given, str) or not given.strip():
        return given
    try:
        return check_type_dict(given)
    except TypeError:
        return given


def _node_of(variables: PlayVariables, host: str) -> str:
    return str(variables.value(host, NODE_NAME) or host)


def _not_to_be_changed(host: str, why: str) -> Refusal:
    return Refusal(
        "cluster.rollout_host_failed", found="host %s: %s" % (host, why), wanted="a host that is ready for its change",
        remedy="see to what this run has said of it, and run again")


def _behind_others(decision: Decision, rollout: Rollout, ask: Callable[[str], Answer]) -> Decision:
    """With what is told to every host that asks while others have another rollout open."""
    settled = {unit.name for unit in (*decision.under_way, *decision.over)}
    units = [unit for unit in rollout.units if unit.name not in settled]
    waiting = ask(units[0].hosts[0]).waiting if units else None
    if waiting is None or waiting.cause is not Cause.rollout:
        return decision
    return replace(decision, may_start=(), waiting=tuple(replace(waiting, unit=unit) for unit in units))


def _caps_of_others(record: Record, pool: str) -> List[str]:
    """Who caps a pool by another name than its runs have caps nothing, and would not see it."""
    if not record.caps or pool in record.caps:
        return []
    return ["the caps in the cluster are of %s, and of pool %s there is none: nothing but its own limits holds for "
            "this rollout" % (", ".join("pool %s" % each for each in sorted(record.caps)), pool)]


def _of_no_pool(hosts: Sequence[Host], nodes: Mapping[str, NodeState], option: str) -> List[str]:
    """A slip in a selector leaves out all other nodes of the pool, and nobody would see it."""
    left_out = sorted(host.name for host in hosts if host.node in nodes and not nodes[host.node].of_pool)
    return ["`%s` does not name the Nodes of hosts of this run, which count all the same: %s" % (
        option, some(left_out))] if left_out else []


def _of_no_group(clusters: Sequence[Mapping[str, Any]], option: str) -> List[str]:
    """A mode for a clique or job group that no host of the run is in has no effect. The hosts of several clusters may
    say the same, so that one of them has to have it."""
    if any(each["failed"] for each in clusters):
        return []
    rollouts = [each["rollout"] for each in clusters]
    there = {host.get(of) for rollout in rollouts for host in rollout["hosts"].values()
             for of in ("clique", "job_group")}
    unknown = sorted({str(name) for rollout in rollouts for name in rollout["policy"].get("unit_modes") or ()} - there)
    if not unknown:
        return []
    return ["`%s` has %s, and no host of this run is in a clique or job group of that name; that of a job is "
            "NAMESPACE/NAME. There are: %s" % (option, ", ".join(unknown), some(sorted(filter(None, there))) or "none")]


def _freeing(options: Mapping[str, Any], node: str) -> str:
    """The command by which a person says that a failure was looked at, and what it needs beside: no secret is in it."""
    access = {name: value for name, value in options.items()
              if name in Connection.__dataclass_fields__ and value not in (None, "", [], {})}
    said = connection_of_environment()
    # One that is given as data has its users' secrets, and a file that the environment names may be gone with its job
    hidden = [name for name in (*SHOWN, *NOT_SHOWN) if name in access and (
        name in NOT_SHOWN or isinstance(access[name], dict) or access[name] == said[name][1])]
    given = {"state": ENDED, "outcome": records.FREED, "name": node,
             **{name: access[name] for name in SHOWN if name in access and name not in hidden},
             **{name: options[name] for name, default in (("pool", records.DEFAULT_POOL), ("namespace", NAMESPACE))
                if options[name] != default}}
    beside = ["%s set" % " and ".join(said[name][0] for name in hidden)] if hidden else []
    # No variable of the environment says these
    beside += ["the option `proxy_headers`"] if "proxy_headers" in access else []
    return "ansible localhost -m gpuops.nvidia.gpu_rollout -a %s%s" % (
        typed(given), ", with %s" % " and ".join(beside) if beside else "")


def _planned_of(planned: Mapping[str, Any], host: str) -> Optional[Mapping[str, Any]]:
    """What was planned for the cluster of a host, None where there is none."""
    return next((each for each in planned.get("clusters") or () if host in each["hosts"] and "rollout" in each), None)


def _order(clusters: Sequence[Mapping[str, Any]]) -> List[str]:
    """Of the hosts of all clusters: those first that wait for nobody. After them the clusters take turns, as hosts of
    one that have to wait would keep all forks from the others else.

    In each those come first that have a place, whoever began with them: others wait for it, and would keep all forks
    from them, too. Whether a run that was at work a moment ago is no more is not known yet.
    """
    in_turn: List[List[Mapping[str, Any]]] = []
    for cluster in clusters:
        held = {slot["host"] for slot in cluster.get("held", ()) if slot["state"] == records.WORKING}
        in_turn.append(sorted(cluster["rollout"]["units"], key=lambda unit: held.isdisjoint(unit["hosts"])))
    return [*(name for cluster in clusters for name in cluster["rollout"]["beside"]),
            *(name for turn in zip_longest(*in_turn) for unit in turn if unit for name in unit["hosts"])]


def _of_hosts(rollout: Rollout, nodes: Mapping[str, NodeState]) -> Dict[str, Dict[str, Any]]:
    told: Dict[str, Dict[str, Any]] = {name: {"place": "beside", "unit": "", "why": "it disturbs nobody"}
                                       for name in rollout.beside}
    told.update((name, _refused(refusal)) for name, refusal in rollout.refused.items())
    told.update((name, {"place": unit.place.name, "unit": unit.name, "why": unit.why,
                        **({"kept": True} if rollout.hosts[name].kept else {})})
                for unit in rollout.units for name in unit.hosts)
    for name in rollout.order:
        node = rollout.hosts[name].node
        told[name]["allowed_later"] = allowed_later(node, nodes.get(node), rollout.hosts[name].loaded).name
    return told


def _refused(refusal: Refusal) -> Dict[str, Any]:
    return {"place": "refused", "unit": "", "why": str(refusal)}
