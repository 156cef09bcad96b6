# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole of a module that brings components to clusters: one task for all clusters of a play, planned, then applied.

Each cluster is observed once and planned once, with the options that its hosts agree on. What goes wrong with one does
not keep the others back: the task fails at its end, and names each.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.display import Display

from ..module_utils.cluster.client import Client, Connection, auth_argument_spec, secrets
from ..module_utils.cluster.components.carrying_out import apply, await_rollout
from ..module_utils.cluster.components.common import shared_of
from ..module_utils.cluster.components.model import Component, argument_spec, objects
from ..module_utils.cluster.components.observation import Live, ServerDryRun, observe
from ..module_utils.cluster.components.planner import plan_component
from ..module_utils.cluster.components.registry import BY_DEFAULT, COMPONENTS
from ..module_utils.cluster.components.rights import require_rights
from ..module_utils.cluster.observation import refuse_other_managers, wait_for_resources
from ..module_utils.core.approval import differences
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.plan import Plan, digest, render
from ..module_utils.core.refusal import Refusal, as_result
from ..module_utils.fleet.model import ClusterNote
from .cluster_action import FROM_VARIABLES, ClusterAction, checked
from .clusters import NAMING, PlayCluster, PlayVariables, clusters_of
from .collected import Collected
from .component_variables import ClusterWord, variables_behind
from .many_hosts import Clients
from .plan_files import (
    APPROVED_FLEET,
    APPROVED_FROM,
    approved_plan_of_cluster,
    cluster_path,
    refuse_without_plans,
    save,
)
from .reader_words import people_read

ABSENT = "absent"
# Options of the task, beside those of components and of the connection
OF_TASK: Dict[str, Any] = {
    "show": {"type": "bool", "default": False},
    "require_rights": {"type": "bool", "default": False},
    "save_to": {"type": "path"},
    APPROVED_FROM: {"type": "path"},
    APPROVED_FLEET: {"type": "str"},
    "for_fleet": {"type": "bool", "default": False},
}
# Of a task of several components, each with its own options
CHOSEN = "components"
SEVERAL: Dict[str, Any] = {
    CHOSEN: {"type": "list", "elements": "str", "choices": list(COMPONENTS), "default": list(BY_DEFAULT)},
    **{name: {"type": "dict", "default": {}} for name in COMPONENTS},
}
# A cluster is the one whose namespace kube-system has this uid, whatever its kubeconfig is called: no other object
# lives as long as it
IDENTITY = "/api/v1/namespaces/kube-system"
# In what is told of a cluster meanwhile: its identity, and what an approval of its plan covers
_APPROVAL = "approval"
# Components with nodes that must offer something in the end
EXPECTED = "expected_allocatable"


@dataclass(frozen=True)
class Wanted:
    """A component as one cluster is to have it. parameters: checked; variables: {option: the one behind it}."""

    component: Component
    parameters: Mapping[str, Any]
    variables: Mapping[str, str]

    @property
    def is_absent(self) -> bool:
        return bool(self.parameters["state"] == ABSENT)


class ComponentAction(ClusterAction):
    """Base of the action plugins. The module of one component has its name; gpu_components has all of them."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = OF_TASK
    # Of the play's hosts, where the task wants those
    variables: Optional[PlayVariables] = None

    def given(self, task: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
        """{component: the options that the task gives it}, in the order in which they are brought."""
        return {self._name(): {name: value for name, value in task.items() if name not in OF_TASK}}

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        connecting = auth_argument_spec(None)
        known = {name for name, spec in connecting.items() for name in (name, *spec.get("aliases", ()))}
        access = {name: value for name, value in self._task.args.items() if name in known}
        task = {name: value for name, value in self._task.args.items() if name not in (*known, FROM_VARIABLES)}
        self._show = boolean(task.get("show") or False)
        self._is_to_be_done = not self._task.check_mode or boolean(task.get("require_rights") or False)
        self._save_to, self._approved_from = task.get("save_to"), task.get(APPROVED_FROM)
        self._approved_fleet = str(task.get(APPROVED_FLEET) or "")
        self._is_for_fleet = boolean(task.get("for_fleet") or False)
        given = self.given(task)
        self.variables = None
        clusters = [PlayCluster(access, ())]
        if boolean(self._task.args.get(FROM_VARIABLES) or False):
            self.variables = PlayVariables(task_vars, self._templar, self._task)
            clusters = ([PlayCluster(access, tuple(self.variables.hosts))] if any(access.get(name) for name in NAMING)
                        else [replace(cluster, options={**cluster.options, **access})
                              for cluster in self.clusters(self.variables)])
        return self._together([self._asked(cluster, given) for cluster in clusters])

    def clusters(self, variables: PlayVariables) -> List[PlayCluster]:
        """Those of the play's that are asked."""
        return clusters_of(variables)

    def _asked(self, cluster: PlayCluster, given: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
        """What becomes of one cluster, without its secrets; a failure is a part of it."""
        told: Dict[str, Any] = {"name": str(cluster), "hosts": list(cluster.hosts), "changed": False, "failed": False}
        access = Connection()
        try:
            if cluster.refusals:
                raise GpuOpsError.because(cluster.refusals)
            access = Connection.from_options(checked(cluster.options, {}, self._name()))
            self._carry(access, self._wanted(cluster, given), told)
        except GpuOpsError as error:
            told.update(error.result(), failed=True)
        approval = told.pop(_APPROVAL, {})
        result: Dict[str, Any] = remove_values(told, secrets(access))
        if self._is_for_fleet:
            Collected().cluster(_note(result, approval, bool(self._task.no_log)))
        return result

    def _carry(self, access: Connection, wanted: Sequence[Wanted], told: Dict[str, Any]) -> None:
        """Have one cluster as it is wanted. told: takes up what is known by then. Raises GpuOpsError."""
        self._serve(Clients().to(access), wanted, told, secrets(access))

    def chosen(self, word: Optional[ClusterWord]) -> Optional[Sequence[str]]:
        """Which components a cluster is to have, where that is not all that the task gives options for."""
        return None

    def _wanted(self, cluster: PlayCluster, given: Mapping[str, Mapping[str, Any]]) -> List[Wanted]:
        """The components as this cluster is to have them: those that come in order, then those that go in reverse."""
        word = ClusterWord(cluster, self.variables) if self.variables else None
        chosen = self.chosen(word)
        wanted: List[Wanted] = []
        for name in given if chosen is None else chosen:
            own = given[name]
            component, behind = COMPONENTS[name], variables_behind(name, own) if word else {}
            options = word.options(name, own) if word else own
            with_access = checked(options, argument_spec(component), name)
            parameters = {option: with_access[option] for option in argument_spec(component)}
            wanted.append(Wanted(component, parameters, behind))
            if word:
                word.refuse_unknown_choices(name, parameters)
        _refuse_disagreement([each for each in wanted if not each.is_absent])
        for misspelt, near in sorted(word.misspelt) if word else ():
            Display().warning("variable %s of %s is read by nothing; perhaps %s is meant" % (misspelt, cluster, near))
        return [*(each for each in wanted if not each.is_absent),
                *(each for each in reversed(wanted) if each.is_absent)]

    def _serve(
        self, client: Client, wanted: Sequence[Wanted], told: Dict[str, Any], hidden: Sequence[str]
    ) -> None:
        """Plan, and apply what was planned. Raises GpuOpsError.

        told: takes up what is known by then. hidden: what is not to be shown.
        """
        if not all(each.is_absent for each in wanted):
            refuse_other_managers(client)
        dry_run = ServerDryRun(client, only_looks=not self._is_to_be_done)
        live, plans = _planned(client, wanted, dry_run)
        whole = _merged(plans)
        whole = replace(whole, host=told["name"], notes=(*whole.notes, *(
            "the server would refuse: %s" % error.message for error in dry_run.forbidden)))
        told.update(plan=whole.to_dict(), text=render(whole), diff=whole.diff())
        is_shown = self._show and not self._task.no_log and people_read()
        if is_shown:
            Display().display(remove_values(told["text"], hidden))
        elif not whole.complete and not self._is_for_fleet:
            for note in whole.notes:
                Display().warning(remove_values("%s: %s" % (whole.host, note), hidden))
        if self._save_to:
            uid = _identity(client)
            told["saved_as"] = cluster_path(self._save_to, uid)
            told[_APPROVAL] = {"uid": uid, "promise": digest(replace(whole, host="").promise())}
            save(told["plan"], told["saved_as"])
        if whole.refusals:
            raise GpuOpsError.because(whole.refusals)
        if whole.steps:
            self._hold(whole, client)
        if self._is_to_be_done and (self._task.check_mode or dry_run.forbidden):
            # All that is missing; what else is forbidden, as what admission denies, the server has said itself
            require_rights(client, whole)
            for error in dry_run.forbidden:
                raise error
        if self._task.check_mode:
            told["changed"] = bool(whole.steps)
            return
        if whole.steps:
            # What a step that fails half-way has done is a change all the same
            told["changed"] = True
            # All of it at once, as what is missing of rights is to be told before the first write
            apply(client, whole, max(each.parameters["wait_timeout"] for each in wanted))
        self._await(client, wanted, None if whole.steps else live, told)

    def _hold(self, plan: Plan, client: Client) -> None:
        """Raises GpuOpsError where more is needed than was approved; by what name the cluster goes says nothing."""
        if self._approved_fleet and not self._approved_from:
            refuse_without_plans(self._approved_fleet)
        if self._approved_from:
            approved = approved_plan_of_cluster(self._approved_from, _identity(client), self._approved_fleet)
            differing = differences(plan, replace(approved, host=plan.host))
            if differing:
                raise GpuOpsError.because(differing)

    def _await(self, client: Client, wanted: Sequence[Wanted], seen: Optional[Live], told: Dict[str, Any]) -> None:
        """Wait until everything runs. seen: what was observed, where nothing was written since."""
        not_ready: Set[str] = set()
        for each in wanted:
            timeout = each.parameters["wait_timeout"]
            not_ready.update(await_rollout(client, each.component, each.parameters, timeout, seen))
            told["not_ready"] = sorted(not_ready)
            if each.parameters.get(EXPECTED) and not each.is_absent:
                wait_for_resources(client, each.parameters[EXPECTED], timeout)

    def _together(self, clusters: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
        """The task's result, of all clusters."""
        diff = [part for cluster in clusters for part in _named_diff(cluster, len(clusters) > 1)]
        result: Dict[str, Any] = {
            "changed": any(cluster["changed"] for cluster in clusters),
            "clusters": list(clusters),
            "text": "\n".join(cluster["text"] for cluster in clusters if "text" in cluster),
            "diff": diff,
        }
        refusals = [_of(cluster, Refusal.from_dict(refusal), len(clusters) > 1) for cluster in clusters
                    for refusal in cluster.get("refusals", ())]
        return {**result, **as_result(refusals), "failed": True} if refusals else result


class SeveralComponents(ComponentAction):
    """Base of those that have all of them. Which, the task says, else the hosts of each cluster."""

    def given(self, task: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
        options = checked(task, self.ARGUMENTS, self._name())
        self._components = options[CHOSEN]
        self._said = task.get(CHOSEN) is not None
        return {name: self.given_to(name, options) for name in COMPONENTS}

    def given_to(self, name: str, options: Mapping[str, Any]) -> Dict[str, Any]:
        """The options that the task gives a component. options: of the task, checked."""
        return dict(options[name])

    def chosen(self, word: Optional[ClusterWord]) -> Sequence[str]:
        if self._said or word is None:
            return list(self._components)
        said = word.components(self._components)
        return list(checked({CHOSEN: said}, {CHOSEN: SEVERAL[CHOSEN]}, self._name())[CHOSEN])


def _planned(client: Client, wanted: Sequence[Wanted], dry_run: ServerDryRun) -> Tuple[Live, List[Plan]]:
    """(what is there, a plan for each), made one after another from one observation, in the words of the reader."""
    parameters = {each.component.name: each.parameters for each in wanted}
    for each in wanted:
        _refuse_contradictions(each)
    live = seen = observe(client, [each.component for each in wanted], parameters)
    plans: List[Plan] = []
    for each in wanted:
        plan = plan_component(each.component, each.parameters, live, dry_run)
        live = live.after(plan)
        plans.append(replace(plan, refusals=tuple(refusal.named(each.variables) for refusal in plan.refusals)))
    return seen, plans


def _identity(client: Client) -> str:
    """What tells a cluster from all others."""
    return str(client.get(IDENTITY)["metadata"]["uid"])


def _note(told: Mapping[str, Any], approval: Mapping[str, str], is_hidden: bool) -> ClusterNote:
    """What is said of a cluster with all others. is_hidden: whether what is done to it may not be seen."""
    refusals = tuple(map(Refusal.from_dict, told.get("refusals", ()))) if told["failed"] else ()
    plan = Plan.from_dict(told["plan"]) if "plan" in told and not is_hidden else None
    return ClusterNote(told["name"], approval.get("uid", ""), "" if refusals else approval.get("promise", ""), plan,
                       refusals)


def _refuse_disagreement(wanted: Sequence[Wanted]) -> None:
    """Refuse the first component that says something else of what all share than those before it."""
    said: Dict[str, Mapping[str, Any]] = {}
    for each in wanted:
        said[each.component.name] = each.parameters
        try:
            shared_of(said)
        except GpuOpsError as error:
            raise error.named(each.variables) from error


def _refuse_contradictions(wanted: Wanted) -> None:
    """Have a component made of its options before the cluster is asked, so that a refusal names what the reader set."""
    try:
        if not wanted.is_absent:
            objects(wanted.component, wanted.parameters)
    except GpuOpsError as error:
        raise error.named(wanted.variables) from error


def _merged(plans: Sequence[Plan]) -> Plan:
    whole = Plan()
    for plan in plans:
        whole = whole.merged(plan)
    return whole


def _named_diff(cluster: Dict[str, Any], several: bool) -> List[Dict[str, str]]:
    """The diff of a cluster, which stands in the task's result alone; of several, each entry says whose it is."""
    parts: List[Dict[str, str]] = cluster.pop("diff", [])
    return [{name: "%s: %s" % (cluster["name"], text) if several and name.endswith("_header") else text
             for name, text in part.items()} for part in parts]


def _of(cluster: Mapping[str, Any], refusal: Refusal, several: bool) -> Refusal:
    """A refusal that says of which cluster it is, where there are several."""
    return replace(refusal, found="%s: %s" % (cluster["name"], refusal.found)) if several else refusal
