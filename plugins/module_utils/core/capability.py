# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a capability is, and the one way from a wish to a verified change.

    parameters -> policy -> observe -> plan -> refuse or apply -> journal -> verify

Every capability package (driver, runtime, ...) supplies the first four as a Capability; the rest is here, once.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, TypeVar

from .errors import GpuOpsError
from .facts import HostFacts
from .host import Host
from .journal import Journal
from .plan import REBOOT, Disruption, Plan, Refusal, Step, digest, split_by_disruption
from .steps import CONTROLLER_ACTIONS, Executor, generic_executors

Policy = TypeVar("Policy")
Observation = TypeVar("Observation")


class Capability(Generic[Policy, Observation]):
    """One thing that is observed, planned and applied as a whole.

    name:      the capability's word in plans and in the journal.
    arguments: its options, as an Ansible argument specification.
    """

    name: str = ""
    arguments: Dict[str, Any] = {}

    def policy(self, parameters: Mapping[str, Any]) -> Policy:
        """The policy of checked parameters. Raises GpuOpsError when they contradict each other."""
        raise NotImplementedError

    def observe(self, host: Host, journal: Journal, policy: Policy) -> Observation:
        """Read what is there. Changes nothing. The observation is a dataclass with to_dict()."""
        raise NotImplementedError

    def plan(self, observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
        """Pure: the steps from the observation to the policy on a host with these facts, or refusals."""
        raise NotImplementedError

    def facts_after(self, observation: Observation, policy: Policy, facts: HostFacts, plan: Plan) -> HostFacts:
        """Pure: the facts once the plan is done. A capability that changes none of them keeps this."""
        return facts

    def executors(self) -> Dict[str, Executor]:
        """Executors of the capability's own actions, beside the generic ones."""
        return {}


@dataclass
class Outcome:
    """What a run of a capability did.

    applied:  ids of the steps done in this run, in order.
    put_off:  steps that disturb more than was allowed, or come after one that does.
    awaiting: a step that the controller must carry out before the run goes on, None when the run is over.
    """

    plan: Plan
    applied: List[str] = field(default_factory=list)
    put_off: Tuple[Step, ...] = ()
    awaiting: Optional[Step] = None


def plan_of(
    capability: Capability[Any, Any], parameters: Mapping[str, Any], host: Host, facts: HostFacts
) -> Tuple[Plan, HostFacts]:
    """(plan, facts once it is done) of a capability on this host; reads, never writes."""
    policy = capability.policy(parameters)
    observation = capability.observe(host, Journal(host), policy)
    made = capability.plan(observation, policy, facts)
    plan = Plan(
        host=facts.hostname,
        policy=digest(dict(parameters)),
        observation=digest([observation.to_dict(), facts.to_dict()]),
        steps=made.steps,
        requirements=made.requirements,
        refusals=made.refusals,
        notes=made.notes,
    )
    return plan, capability.facts_after(observation, policy, facts, made)


def changed_since(plan: Plan, approved: Sequence[Step]) -> Tuple[Refusal, ...]:
    """What is needed now and was not approved. Steps that were approved and are not needed any more are done."""
    known = {step.id: step for step in approved}
    refusals = []
    for step in plan.steps:
        if step.id not in known:
            refusals.append(_unapproved(step, "the approved plan has no such step"))
        elif (dict(step.change), dict(step.parameters)) != (
            dict(known[step.id].change), dict(known[step.id].parameters)
        ):
            refusals.append(_unapproved(step, "the approved plan changes it in another way"))
    return tuple(refusals)


def _unapproved(step: Step, how: str) -> Refusal:
    return Refusal(
        capability=step.capability,
        found="step %s is needed now, and %s" % (step.id, how),
        wanted="a host that is as it was when the plan was approved",
        remedy="make a new plan, read it and approve that one",
    )


class Run:
    """One run of a capability's writer on a host."""

    def __init__(
        self,
        capability: Capability[Any, Any],
        parameters: Mapping[str, Any],
        host: Host,
        read_facts: Any,
        allowed: Disruption = Disruption.reboot,
        approved: Optional[Sequence[Step]] = None,
        resumed: str = "",
    ) -> None:
        self.capability = capability
        self.parameters = parameters
        self.host = host
        self.journal = Journal(host)
        self.read_facts = read_facts
        self.allowed = allowed
        self.approved = approved
        self.resumed = resumed

    def preview(self) -> Outcome:
        """What apply() would do; changes nothing.

        An approved plan was made for the host as the capabilities before this one leave it. In check mode they leave
        it as it is, so a plan made now would be another one: what was approved is what would be done.
        """
        plan = self._plan()
        if self.approved is None:
            _refuse(plan.refusals)
        else:
            plan = replace(plan, steps=tuple(self.approved), refusals=())
        done, put_off = split_by_disruption(plan.steps, self.allowed)
        return Outcome(plan, [step.id for step in done], put_off)

    def apply(self) -> Outcome:
        """Carry the plan out, step by step, and verify it."""
        plan = self._plan()
        self._compare_with_approved(plan)
        _refuse(plan.refusals)
        _refuse_unmet(plan)
        plan_name = digest(plan.to_dict())
        applied = self._settle(plan, plan_name)
        to_do, put_off = split_by_disruption(plan.steps, self.allowed)
        executors = dict(generic_executors(), **self.capability.executors())
        for step in to_do:
            if step.action in CONTROLLER_ACTIONS:
                self._hand_over(step, plan)
                return Outcome(plan, applied, put_off, awaiting=step)
            self.journal.note("started", step, plan_name, policy=plan.policy)
            try:
                executors[step.action](self.host, self.journal, step)
            except GpuOpsError as error:
                self.journal.note("failed", step, plan_name, error=str(error))
                error.details.setdefault("failed_step", step.to_dict())
                error.details.setdefault("applied", applied)
                error.details.setdefault("changed", bool(applied))
                raise
            self.journal.note("done", step, plan_name)
            applied.append(step.id)
        if to_do:
            self._verify(put_off)
        return Outcome(plan, applied, put_off)

    def _plan(self) -> Plan:
        return plan_of(self.capability, self.parameters, self.host, self.read_facts(self.host))[0]

    def _settle(self, plan: Plan, plan_name: str) -> List[str]:
        """Close what an earlier process left open, and what was approved but has its effect already.

        An open step that is not needed any more was done, unless another policy has made it needless.
        """
        pending = {step.id for step in plan.steps}
        settled = []
        for event in self.journal.unfinished(self.capability.name):
            step = Step.from_dict(event["step"])
            if step.id in pending:
                if step.id == self.resumed:
                    raise _without_effect(step)
                continue
            if step.action in CONTROLLER_ACTIONS:
                self._account_packages(event["packages_before"])
            if event["policy"] != plan.policy:
                self.journal.note("superseded", step, event["plan"])
                continue
            self.journal.note("done", step, event["plan"])
            settled.append(step.id)
        closed = [event["step"] for event in self.journal.events() if event["event"] in ("done", "satisfied")]
        for step in self.approved or ():
            if step.id not in pending and step.to_dict() not in closed:
                self.journal.note("satisfied", step, plan_name)
        return settled

    def _hand_over(self, step: Step, plan: Plan) -> None:
        """Write down which packages there are, so that those which the transaction brings in are known as ours."""
        before = _installed(self.host)
        for event in self.journal.unfinished(self.capability.name):
            before = event.get("packages_before", before)
        self.journal.note("started", step, digest(plan.to_dict()), policy=plan.policy, packages_before=before)

    def _account_packages(self, before: Mapping[str, str]) -> None:
        now = _installed(self.host)
        ours = self.journal.packages(self.capability.name)
        kept = {name: now[name] for name in ours if name in now}
        kept.update({name: version for name, version in now.items() if name not in before})
        self.journal.set_packages(self.capability.name, kept)

    def _verify(self, put_off: Sequence[Step]) -> None:
        left = {step.id: step for step in self._plan().steps}
        for step in put_off:
            left.pop(step.id, None)
        if left:
            raise _without_effect(next(iter(left.values())))

    def _compare_with_approved(self, plan: Plan) -> None:
        if self.approved is not None:
            _refuse(changed_since(plan, self.approved))


def _refuse(refusals: Sequence[Refusal]) -> None:
    if not refusals:
        return
    first = refusals[0]
    raise GpuOpsError(
        found=first.found,
        wanted=first.wanted,
        remedy=first.remedy,
        refusals=[refusal.to_dict() for refusal in refusals],
    )


def _refuse_unmet(plan: Plan) -> None:
    """A reboot is reported and comes after the steps; without anything else the steps would lead nowhere."""
    for unmet in plan.requirements:
        if unmet.kind != REBOOT:
            raise GpuOpsError(
                found="no %s for %s: %s" % (unmet.kind, unmet.subject, unmet.why),
                wanted="an installed %s before this step of the plan" % unmet.kind,
                remedy="run gpu_driver first; when it did, its module was built for another kernel: reboot into that "
                       "one",
                requirement=unmet.to_dict(),
            )


def _without_effect(step: Step) -> GpuOpsError:
    return GpuOpsError(
        found="step %s was carried out and is still needed" % step.id,
        wanted="a second observation without it",
        remedy="read the step's own log on the host; another program may undo the change",
        failed_step=step.to_dict(),
    )


def _installed(host: Host) -> Dict[str, str]:
    """Installed packages and their versions, from dpkg or rpm; empty where there is neither."""
    if host.which("dpkg-query"):
        done = host.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"])
        rows = (line.split(" ", 2) for line in done.stdout.splitlines())
        return {name: version for status, name, version in rows if status != "not-installed"}
    if host.which("rpm"):
        done = host.run(["rpm", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"])
        return dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {}
