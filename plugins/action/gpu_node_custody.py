# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, Dict, FrozenSet, Mapping, Optional, Sequence

from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.cluster.budget import prove_place, prove_unchanged
from ..module_utils.cluster.client import Client
from ..module_utils.cluster.components.common import SHARED_ARGUMENTS
from ..module_utils.cluster.custody.custody import (
    ADMITTED,
    HELD,
    RELEASED,
    Custody,
    Drain,
    Proof,
    Returning,
    Taking,
    still_to_take,
)
from ..module_utils.cluster.custody.holding import Holding
from ..module_utils.cluster.custody.leases import name_of
from ..module_utils.cluster.custody.run import Run
from ..module_utils.cluster.drain import policy as drains
from ..module_utils.cluster.drain.carrying_out import NodeDrain
from ..module_utils.cluster.labels import NodePolicy
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.quantities import whole
from ..module_utils.rollout.budget import DEFAULT_POOL
from ..plugin_utils.cluster_action import FROM_VARIABLES, ClusterAction, checked
from ..plugin_utils.clusters import PlayVariables
from ..plugin_utils.following import on_screen
from ..plugin_utils.many_hosts import HOSTS, Clients, for_hosts, refuse_strange
from ..plugin_utils.node_labels import label_texts
from ..plugin_utils.role_variables import Source, defaults
from ..plugin_utils.run_identity import this_run

ROLE = "node_maintenance"
PREFIX = ROLE + "_"
NODE_NAME = PREFIX + "node_name"
TAKEN, RENEWED, RETURNED = "taken", "renewed", "returned"
TOGETHER = "together"
# What the role's variable says of pods that are not named
ALL_PODS = "all"
# Options of many hosts, each of which has its own; the rest is what a task is for, and said by it
OF_HOST = ("labels", "choices", "purge_labels", "keep_labels", "take_over", "startup_taint")


class ActionModule(ClusterAction):
    """Takes nodes out of service, lets the components back to them, and gives them back."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "name": {"type": "str"},
        HOSTS: {"type": "list", "elements": "str"},
        "state": {"type": "str", "choices": [TAKEN, RENEWED, HELD, ADMITTED, RETURNED, RELEASED], "required": True},
        "uid": {"type": "str", "default": ""},
        "reason": {"type": "str", "default": ""},
        "failures": {"type": "list", "elements": "str", "default": []},
        "offers": {"type": "dict", "default": {}},
        "offer_timeout": {"type": "int", "default": 300},
        "was_taken": {"type": "bool", "default": False},
        "opens": {"type": "bool", "default": True},
        "run": {"type": "str", "default": ""},
        "namespace": {"type": "str", "default": SHARED_ARGUMENTS["namespace"]["default"]},
        "lease_seconds": {"type": "int", "default": 600},
        "wait_timeout": {"type": "int", "default": 900},
        "labels": {"type": "dict", "default": {}},
        "choices": {"type": "dict", "default": {}},
        "unset_labels": {"type": "list", "elements": "str", "default": []},
        "purge_labels": {"type": "bool", "default": False},
        "keep_labels": {"type": "list", "elements": "str", "default": []},
        "take_over": {"type": "bool", "default": False},
        "startup_taint": {"type": "str", "default": ""},
        "drain": {"type": "bool", "default": True},
        TOGETHER: {"type": "list", "elements": "str", "default": []},
        "place": {"type": "dict", "options": {
            "pool": {"type": "str", "default": DEFAULT_POOL},
            "namespace": {"type": "str", "default": SHARED_ARGUMENTS["namespace"]["default"]},
            "since": {"type": "str", "default": ""},
        }},
        "known": {"type": "list", "elements": "dict", "default": []},
        **drains.ARGUMENTS,
    }

    # Of the task's host
    _variables: Mapping[str, Any] = {}
    # {(address of a cluster, namespace): names of its Leases}, where one task is about many hosts
    _leases: Optional[Dict[Any, FrozenSet[str]]] = None
    # {Node: how it is drained} of the hosts that are taken in the same breath
    _beside: Mapping[str, drains.DrainPolicy] = {}
    _listing = threading.Lock()

    def _in_words(self, error: GpuOpsError) -> GpuOpsError:
        """Whose hosts say where their cluster is has set the role's variables, too: its tasks give them as options."""
        given = self._task.args
        if given.get(HOSTS) is None and not boolean(given.get(FROM_VARIABLES, False)):
            return error
        return error.named({variable[len(PREFIX):]: variable for variable in defaults(ROLE)})

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        self._variables = task_vars
        given = {name: value for name, value in self._task.args.items() if name != FROM_VARIABLES}
        task = checked(given, self.ARGUMENTS, self._name())
        if task["lease_seconds"] < 1 or task["wait_timeout"] < 0:
            raise GpuOpsError(
                "cluster.custody_seconds_malformed",
                found="`lease_seconds` is %d and `wait_timeout` is %d" % (task["lease_seconds"], task["wait_timeout"]),
                wanted="a Lease of at least one second, and a wait of none or some",
                remedy="correct `lease_seconds` or `wait_timeout`", option="lease_seconds")
        hosts = task[HOSTS]
        if (hosts is None) == (given.get("name") is None):
            raise GpuOpsError(
                "cluster.custody_of_one_or_many",
                found=", ".join("`%s`" % name for name in ("name", HOSTS) if given.get(name)) or "nothing",
                wanted="`name`, for one Node, or `hosts`, for those of many hosts",
                remedy="set one of the two",
            )
        if task[TOGETHER]:
            self._beside = _drains_of(PlayVariables(task_vars, self._templar, self._task), task[TOGETHER])
        if hosts is None:
            return super().answer(task_vars)
        del given[HOSTS]
        source = Source("", ROLE, PREFIX, {name: self.ARGUMENTS[name] for name in OF_HOST if name not in given})
        names = [PREFIX + name for name in source.options]
        variables, clients = PlayVariables(task_vars, self._templar, self._task), Clients()
        self._leases = {}
        result = for_hosts(
            variables, hosts, ROLE, names,
            lambda host: {**variables.of_role(host, ROLE, {ROLE: source}, names).options(ROLE), **given,
                          **_place_of(task["known"], host)},
            NODE_NAME, lambda options, node: self.ask({**options, "name": node}, clients))
        result["diff"] = [{"before_header": host, "after_header": host, **each.pop("diff")}
                          for host, each in result["of_hosts"].items() if "diff" in each]
        return result

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        run, name = this_run(options["run"], self._variables), options["name"]
        if options["state"] in (RENEWED, HELD, RELEASED) and check_mode:
            return {"changed": False, "custody": options["state"], "run": run.identity, "notes": []}
        custody = Custody(cluster, run, options["namespace"], options["lease_seconds"], options["wait_timeout"],
                          on_screen)
        if options["state"] == RENEWED:
            return custody.renew(name, options["uid"])
        if options["state"] == HELD:
            return custody.hold(name, options["uid"])
        if options["state"] == RELEASED:
            return custody.release(name, options["uid"])
        labels = label_texts(options["labels"], options["choices"])
        without = NodePolicy(
            unset_labels=[*options["labels"], *options["choices"], *options["unset_labels"]],
            purge_labels=options["purge_labels"], keep_labels=options["keep_labels"],
            features={} if options["purge_labels"] else None,
            startup_taint=options["startup_taint"],
            tainted=True if options["failures"] and options["startup_taint"] else None)
        if options["state"] == TAKEN:
            # The components have its times too, where pods stay
            policy = drains.policy_of(options)
            taking = Taking(options["reason"], without, timeout=options["timeout"], uid=options["uid"],
                            skip_after=options["skip_wait_for_delete_timeout"], was_taken=options["was_taken"])
            if options["drain"]:
                drain = NodeDrain(cluster, name, policy, on_screen)
                taking = replace(taking, drain=self._with_those_beside(cluster, run, name, drain), follow=drain.follow)
            place = options["place"]
            if place is not None:
                taking = replace(taking, place=functools.partial(
                    prove_place, cluster, place["namespace"], place["pool"], name, run.identity))
            return custody.take(name, taking, check_mode)
        back = NodePolicy(
            labels=labels.there, unset_labels=labels.gone, purge_labels=options["purge_labels"],
            keep_labels=options["keep_labels"], take_over=options["take_over"],
            startup_taint=options["startup_taint"],
            tainted=False if options["startup_taint"] and options["state"] == RETURNED else None)
        act = Returning(back, without, options["failures"], options["uid"], _counts(options["offers"]),
                        options["offer_timeout"], options["was_taken"], opens=options["opens"])
        place = options["place"]
        if place is not None and place["since"]:
            act = replace(act, unchanged=functools.partial(
                prove_unchanged, cluster, place["namespace"], name, run.identity, _instant(place["since"]),
                not options["failures"]))
        if options["state"] == ADMITTED:
            return custody.admit(name, act, check_mode)
        return custody.give_back(name, act, self._lease_was_seen(cluster, run, options), check_mode)

    def _with_those_beside(self, cluster: Client, run: Run, name: str, node_drain: NodeDrain) -> Drain:
        """With the others before it begins: once a node is cordoned, those beside it have been looked at."""
        others = [each for each in self._beside if each != name]

        def drain(dry_run: bool, proof: Proof) -> Dict[str, Any]:
            beside = still_to_take(cluster, others, run) if dry_run else []
            return node_drain.go(dry_run, proof, {each: self._beside[each] for each in beside})

        return drain

    def _lease_was_seen(self, cluster: Client, run: Any, options: Mapping[str, Any]) -> Optional[bool]:
        """By one list for all nodes of a cluster; None where there is only one node to ask about."""
        if self._leases is None:
            return None
        with self._listing:
            key = (cluster.url, options["namespace"])
            if key not in self._leases:
                holding = Holding(cluster, run, options["namespace"], 0, on_screen)
                self._leases[key] = frozenset(holding.all_names())
        return name_of(options["name"]) in self._leases[key]


def _drains_of(variables: PlayVariables, hosts: Sequence[str]) -> Dict[str, drains.DrainPolicy]:
    """{Node: how it is drained}, by what each host's variables say. Raises GpuOpsError for hosts that are none."""
    refuse_strange(variables, hosts, TOGETHER)
    source = Source("", ROLE, PREFIX, drains.ARGUMENTS)
    found = {}
    for host in hosts:
        options = variables.of_role(host, ROLE, {ROLE: source}, [PREFIX + name for name in source.options])
        said = {option: value for option, value in options.options(ROLE).items()
                if not (option == "pods" and value == ALL_PODS)}
        node = str(variables.value(host, NODE_NAME, defaults(ROLE)) or host)
        found[node] = drains.policy_of(said)
    return found


def _place_of(known: Sequence[Mapping[str, Any]], host: str) -> Dict[str, Any]:
    """Where what is known of a host may have been overtaken."""
    found = next((each for each in known if each.get("since") and host in each.get("hosts", ())), None)
    if found is None:
        return {}
    return {"place": {"namespace": found["namespace"], "since": (found.get("since_of") or {}).get(
        host, found["since"])}}


def _instant(text: str) -> datetime:
    """Raises GpuOpsError for one that is none, or has no zone."""
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    raise GpuOpsError(
        "cluster.custody_instant_malformed", found="`since` of `place` is %r" % text,
        wanted="an instant with its zone, as 2026-07-01T12:00:00+00:00", remedy="correct `place`", option="place")


def _counts(given: Mapping[str, Any]) -> Dict[str, int]:
    """Raises GpuOpsError for what counts nothing."""
    counts = {name: whole(count) for name, count in given.items()}
    wrong = sorted(name for name, count in counts.items() if count is None)
    if wrong:
        raise GpuOpsError(
            "cluster.offers_malformed", found="`offers` has no number for %s" % ", ".join(wrong),
            wanted="how many of each resource, as {nvidia.com/gpu: 8}", remedy="correct `offers`", option="offers")
    return {name: count for name, count in counts.items() if count}
