# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a capability is, and the one way from a policy to a verified change.

    parameters -> policy -> observe -> plan -> refuse or apply -> journal -> verify

Every capability package (driver, runtime, ...) supplies the first four as a Capability; the rest is here, once.
"""
from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, Protocol, Sequence, Set, Tuple, TypeVar

from .approval import Foretold, as_foretold, differences, facts_foretold, foretold_facts
from .errors import GpuOpsError
from .facts import HostFacts
from .host import Host
from .journal import Journal
from .lasting import refusals_of_what_does_not_last
from .lock import package_manager_works, package_managers
from .plan import AFTERWARDS, Disruption, Plan, Step, digest, split_by_disruption
from .refusal import Refusal
from .secrets import without_passwords
from .steps import CONTROLLER_ACTIONS, FILE_ACTIONS, Executor, generic_executors, obstacles
from .waiting import wait_for

# For how long a package manager that an earlier run has left at work is waited for
TRANSACTION_SECONDS = 600.0
# Of an error's details, and of a result: the package manager that goes on, for people
LEFT_AT_WORK = "left_at_work"
_PAUSE = 1.0
# Is told which step begins, that it is this one of so many, from 1, and those that come after it
StepBegins = Callable[[Step, int, int, Sequence[Step]], None]


class Observation(Protocol):
    """What a capability has read of a host; a dataclass, so that two of them compare."""

    def to_dict(self) -> Dict[str, Any]:
        """JSON-able, and without a secret: a plan carries its digest."""


Policy = TypeVar("Policy")
Observed = TypeVar("Observed", bound=Observation)


class Transactions(Protocol):
    """Who keeps the books of what package transactions bring and take."""

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        """What must be known later to tell what this transaction brought; kept with the open step as 'transaction'.

        done: ids of the steps that this process has carried out before it.
        """

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        """Account for what came and went by it; called once the step is known to be over, well or not.

        Called again when the process ended before the journal knew, so a second time must change nothing.
        """

    def failed(self, host: Host, step: Step) -> str:
        """What this host has to say of why the step's transaction failed, for people; '' where it knows nothing."""

    def executor(self, step: Step, alone: bool) -> Optional[Executor]:
        """Who carries a package step out on the host; None where the controller does, by a module of its own.

        alone: there is no controller.
        """


class NoTransactions:
    """Books for a capability without package steps."""

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        return {}

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        return

    def failed(self, host: Host, step: Step) -> str:
        return ""

    def executor(self, step: Step, alone: bool) -> Optional[Executor]:
        return None


def unchanged(observation: Any, policy: Any, facts: HostFacts, plan: Plan) -> HostFacts:
    """The facts_after of a capability that changes none of them."""
    return facts


def unjudged(host: Host, observation: Any, policy: Any, plan: Plan) -> Sequence[Refusal]:
    """The judge of a capability that writes nothing which another program has to understand."""
    return ()


def untold(step: Step, number: int, total: int, after: Sequence[Step]) -> None:
    """The StepBegins of a run that nobody follows."""


def nothing_secret(policy: Any) -> Mapping[str, Executor]:
    """The secret_executors of a capability whose steps carry all that they need."""
    return {}


@dataclass(frozen=True)
class Capability(Generic[Policy, Observed]):
    """One thing that is observed, planned and applied as a whole: a value, made of the functions of its package.

    What always holds: planning again after the plan was carried out plans nothing, and the host's facts then are those
    that facts_after() told.

    name:             its word in plans and in the journal.
    arguments:        its options, as an Ansible argument specification.
    policy_of:        the policy of checked parameters. Raises GpuOpsError when they contradict each other.
    observe:          reads what is there on a host whose facts are these now, and changes nothing.
    plan:             pure: the steps from the observation to the policy on a host with these facts, or refusals.
    executors:        how its own actions are carried out, beside the generic ones.
    facts_after:      pure: the facts once the plan is done; only such that are text, numbers or flags may be others.
    judge:            has the programs that are on the host read scratch copies of what the plan would write, before
                      anybody sees it; what they say against it. Not asked where the plan refuses already.
    secret_executors: executors that need what no step, plan or journal may carry, out of the policy.
    transactions:     who keeps the books of its package steps.
    independent:      its actions whose failure keeps nothing back but what depends on that step.
    assumptions:      options that say how the host will be, not what is wanted of it: no part of the policy's digest.
    """

    name: str
    arguments: Mapping[str, Any]
    policy_of: Callable[[Mapping[str, Any]], Policy]
    observe: Callable[[Host, Journal, Policy, HostFacts], Observed]
    plan: Callable[[Observed, Policy, HostFacts], Plan]
    executors: Mapping[str, Executor] = field(default_factory=dict)
    facts_after: Callable[[Observed, Policy, HostFacts, Plan], HostFacts] = unchanged
    judge: Callable[[Host, Observed, Policy, Plan], Sequence[Refusal]] = unjudged
    secret_executors: Callable[[Policy], Mapping[str, Executor]] = nothing_secret
    transactions: Transactions = NoTransactions()
    assumptions: Tuple[str, ...] = ()
    independent: Tuple[str, ...] = ()


@dataclass
class Outcome:
    """What a run of a capability did.

    applied:      ids of the steps done in this run, in order.
    deferred:     steps that disturb more than was allowed, or come after one that does.
    awaiting:     a step that the controller must carry out before the run goes on, None when the run is over.
    left_at_work: the package manager that outlives the controller's transaction, for people; '' where none does. The
                  next run accounts for it.
    why_failed:   of a transaction that failed, what this host has to say of it, for people; '' where it says nothing.
    """

    plan: Plan
    applied: List[str] = field(default_factory=list)
    deferred: Tuple[Step, ...] = ()
    awaiting: Optional[Step] = None
    left_at_work: str = ""
    why_failed: str = ""


def plan_of(
    capability: Capability[Any, Any],
    parameters: Mapping[str, Any],
    host: Host,
    facts: HostFacts,
    now: Optional[HostFacts] = None,
) -> Tuple[Plan, HostFacts]:
    """(plan, facts once it is done) of a capability on this host; reads, never writes.

    now: the facts as they are, where facts are those that the capabilities before this one will leave.
    """
    policy = capability.policy_of(parameters)
    observation = capability.observe(host, Journal(host), policy, now or facts)
    plan = capability.plan(observation, policy, facts)
    judged = () if plan.refusals else tuple(capability.judge(host, observation, policy, plan))
    if judged:
        plan = Plan(refusals=judged)
    policy_digest = digest(without_passwords(
        {name: value for name, value in parameters.items()
         if name not in capability.assumptions and not capability.arguments[name].get("no_log")}))
    foretold = facts_foretold(now or facts, facts)
    whole = replace(
        plan,
        host=facts.hostname,
        policy=policy_digest,
        policies={capability.name: policy_digest},
        observation=digest([observation.to_dict(), facts.to_dict()]),
        foretold={capability.name: foretold} if foretold else {},
        refusals=plan.refusals + obstacles(host, plan.steps) + refusals_of_what_does_not_last(plan.steps, facts),
        waiting=() if plan.complete else (capability.name,),
    )
    return whole, capability.facts_after(observation, policy, facts, plan)


class Run:
    """One run of a capability's writer on a host.

    approved:             the approved plan, its part of this capability at least; None where none is to be held to.
    resumed:              id of the package step that the controller has carried out since the previous call.
    transaction_failed:   whether it failed; then the run only accounts for it.
    step_begins:          is told each step before it is carried out, here or by the controller.
    carries_out_packages: whether package steps are carried out here, since nobody outside does: none is awaited then.
    """

    def __init__(
        self,
        capability: Capability[Any, Any],
        parameters: Mapping[str, Any],
        host: Host,
        read_facts: Callable[[Host], HostFacts],
        allowed: Disruption = Disruption.reboot,
        approved: Optional[Plan] = None,
        resumed: str = "",
        transaction_failed: bool = False,
        step_begins: StepBegins = untold,
        carries_out_packages: bool = False,
    ) -> None:
        self.capability = capability
        self.parameters = parameters
        self.host = host
        self.journal = Journal(host)
        self.read_facts = read_facts
        self.allowed = allowed
        self.approved = approved
        self.resumed = resumed
        self.transaction_failed = transaction_failed
        self.step_begins = step_begins
        self.carries_out_packages = carries_out_packages
        # Steps that were done before the host was planned anew
        self._done_before = 0
        self.facts = HostFacts()

    def preview(self) -> Outcome:
        """What apply() would do; changes nothing, and refuses where apply() would.

        An approved plan was made for the host as the capabilities before this one leave it, and in check mode they
        leave it as it is. What they were approved to make of the facts is therefore taken as done, and noted.
        """
        foretold = self._foretold()
        plan = self._plan(foretold)
        if self._waits_as_approved():
            return _nothing_of(plan)
        if not as_foretold(self.facts, foretold):
            supposed = ", ".join("%s '%s'" % (name, change["after"]) for name, change in sorted(foretold.items()))
            plan = replace(plan, notes=(*plan.notes, "In check mode this is supposed, as approved: %s." % supposed))
        self._compare(plan)
        _refuse(plan.refusals)
        if self.approved is not None:
            # Without an approved plan nobody knows whether a role before this one would bring it.
            _refuse_unmet(plan)
        done, deferred = split_by_disruption(plan.steps, self.allowed)
        return Outcome(plan, [step.id for step in done], deferred)

    def apply(self) -> Outcome:
        """Carry the plan out, step by step, and verify it. An error tells what was done before it."""
        if self.transaction_failed:
            return self._account_failed()
        applied: List[str] = []
        try:
            if not self.resumed:
                self._await_transaction()
            self._account()
            plan = self._plan()
            if self._waits_as_approved():
                return _nothing_of(plan)
            return self._do(plan, applied)
        except GpuOpsError as error:
            error.details.setdefault("applied", applied)
            error.details.setdefault("changed", bool(applied))
            raise

    def _do(self, plan: Plan, applied: List[str]) -> Outcome:
        """Carry a plan out that is the approved one, or less, and refuses nothing."""
        self._compare(plan)
        _refuse(plan.refusals)
        _refuse_unmet(plan)
        return self._carry_out(plan, applied)

    def _carry_out(self, plan: Plan, applied: List[str], came: Optional[Plan] = None) -> Outcome:
        """came: what is still to be done of a plan whose first steps are, None where none is."""
        plan_name = digest(plan.to_dict())
        closed = _Closed(self.journal, self.capability.name, self.approved)
        self._settle(plan, applied)
        closed.add(applied)
        self._note_satisfied(plan, plan_name, closed)
        to_do, deferred = split_by_disruption((came or plan).steps, self.allowed)
        earlier = len(applied)
        failures: List[Tuple[Step, GpuOpsError]] = []
        for number, step in enumerate(to_do, 1):
            if any(failed.id in step.depends_on for failed, _error in failures):
                continue
            self.step_begins(step, self._done_before + number, self._done_before + len(to_do), to_do[number:])
            try:
                if step.action in CONTROLLER_ACTIONS:
                    executor = self.capability.transactions.executor(step, self.carries_out_packages)
                    self._open(step, plan, plan_name, applied[earlier:])
                    if executor is None:
                        return Outcome(plan, applied, deferred, awaiting=step)
                    self._attempt(self._accounting(executor), step, plan_name)
                else:
                    self._execute(step, plan, plan_name)
            except GpuOpsError as error:
                if step.action not in self.capability.independent:
                    raise
                failures.append((step, error))
                continue
            applied.append(step.id)
            self._done(step, plan_name)
            closed.add([step.id])
            if step.action in CONTROLLER_ACTIONS and self.carries_out_packages:
                return self._after_packages(step, applied)
        if failures:
            raise _of_several(failures)
        needed = self._verify(deferred, plan, again=came is not None) if to_do else None
        if needed is not None:
            return self._carry_out(replace(needed, steps=(*to_do, *needed.steps)), applied, needed)
        return Outcome(plan, applied, deferred)

    def _after_packages(self, step: Step, applied: List[str]) -> Outcome:
        """Scripts of packages do much that is planned. So the host is planned anew, as it is where a controller has
        carried the step out and calls again."""
        self._done_before = len(applied)
        plan = self._plan()
        if any(each.id == step.id for each in plan.steps):
            raise _without_effect(step)
        return self._do(plan, applied)

    def _open(self, step: Step, plan: Plan, plan_name: str, done: Sequence[str]) -> None:
        self.journal.note("started", step, plan_name, policy=plan.policy,
                          transaction=self.capability.transactions.opened(self.host, step, done))

    def _accounting(self, executor: Executor) -> Executor:
        """A package step on the host itself: what came is booked, whatever it ends in, and a failure is told with what
        this host has to say of it.

        A package manager that goes on where the waiting for it has ended is booked by the next run: its step is open
        until it has ended too.
        """
        def transact(host: Host, journal: Journal, step: Step) -> None:
            goes_on = False
            try:
                executor(host, journal, step)
            except BaseException as error:
                # Who interrupts this process does not interrupt what has a session of its own
                goes_on = package_manager_works(host)
                if isinstance(error, GpuOpsError) and goes_on:
                    error.details[LEFT_AT_WORK] = package_managers(host) or "a package manager"
                elif isinstance(error, GpuOpsError):
                    with contextlib.suppress(GpuOpsError):
                        error.add(self.capability.transactions.failed(host, step))
                raise
            finally:
                if not goes_on:
                    self._account()

        return transact

    def _execute(self, step: Step, plan: Plan, plan_name: str) -> None:
        """One step, from 'started' to its effect or to 'failed', whatever its executor ends in."""
        executors = {**generic_executors(), **self.capability.executors,
                     **self.capability.secret_executors(self.capability.policy_of(self.parameters))}
        self.journal.note("started", step, plan_name, policy=plan.policy)
        self._attempt(lambda host, journal, step: executors[step.action](host, journal, step), step, plan_name)

    def _attempt(self, executor: Executor, step: Step, plan_name: str) -> None:
        try:
            executor(self.host, self.journal, step)
        except Exception as cause:
            error = cause if isinstance(cause, GpuOpsError) else _unexpected(step, cause)
            error.details.setdefault("failed_step", step.to_dict())
            if LEFT_AT_WORK in error.details:
                raise
            try:
                self.journal.note("failed", step, plan_name, error=str(error))
            except (GpuOpsError, OSError) as unwritten:
                error.details.setdefault("journal", "the failure could not be written down: %s" % unwritten)
            if error is cause:
                raise
            raise error from cause

    def _done(self, step: Step, plan_name: str, **more: Any) -> None:
        """Write down that a step is done, once its effect is on the disk: a power cut must not leave the word alone."""
        if not step.action.startswith(FILE_ACTIONS):
            self.host.sync()
        self.journal.note("done", step, plan_name, **more)

    def _plan(self, foretold: Optional[Foretold] = None) -> Plan:
        self.facts = self.read_facts(self.host)
        return plan_of(self.capability, self.parameters, self.host, foretold_facts(self.facts, foretold or {}),
                       self.facts)[0]

    def _foretold(self) -> Foretold:
        return {} if self.approved is None else self.approved.foretold.get(self.capability.name, {})

    def _await_transaction(self) -> None:
        """Wait for the package manager that an earlier run has left at work in an open step. Raises GpuOpsError that
        names it when the time is over."""
        if not any(Step.from_dict(event["step"]).action in CONTROLLER_ACTIONS
                   for event in self.journal.unfinished(self.capability.name)):
            return
        _works, ended = wait_for(lambda: package_manager_works(self.host), lambda works: not works,
                                 TRANSACTION_SECONDS, _PAUSE)
        if not ended:
            at_work = package_managers(self.host) or "a package manager"
            raise GpuOpsError(
                "host.transaction_at_work",
                found="a transaction of an earlier run is not known to have ended, and at work is %s; waited %.0f s "
                      "for it" % (at_work, TRANSACTION_SECONDS),
                wanted="an end of it, before anything is planned from what it leaves",
                remedy="let it end, and run again",
                **{LEFT_AT_WORK: at_work})

    def _account(self) -> None:
        """Book what came by transactions that an earlier call left open, before anything is planned from it."""
        for event in self.journal.unfinished(self.capability.name):
            step = Step.from_dict(event["step"])
            if step.action in CONTROLLER_ACTIONS:
                self.host.sync()
                self.capability.transactions.settle(self.host, self.journal, step, event.get("transaction") or {})

    def _account_failed(self) -> Outcome:
        """The transaction failed: what came nevertheless is booked, and the step is over. Nothing is planned.

        Where ansible.builtin was killed, apt goes on without it: the step then is open until that has ended.
        """
        nothing = Plan(host=self.read_facts(self.host).hostname)
        if package_manager_works(self.host):
            return Outcome(nothing, left_at_work=package_managers(self.host) or "a package manager")
        self._account()
        why = ""
        for event in self.journal.unfinished(self.capability.name):
            if event["step"]["id"] == self.resumed:
                step = Step.from_dict(event["step"])
                why = self.capability.transactions.failed(self.host, step)
                self.journal.note("failed", step, event["plan"], error="the package manager failed")
        return Outcome(nothing, why_failed=why)

    def _settle(self, plan: Plan, applied: List[str]) -> None:
        """Close what an earlier process left open; what it has done counts as done by this run.

        An open step that is not needed any more was done, unless another policy has made it needless. Where the plan
        waits for something, that it is missing tells nothing, and it stays open; packages can be seen in any case.
        """
        waits = bool(plan.requirements) or not plan.complete
        pending = {step.id for step in plan.steps}
        for event in self.journal.unfinished(self.capability.name):
            step = Step.from_dict(event["step"])
            if step.id in pending:
                if step.action in CONTROLLER_ACTIONS:
                    self.journal.note("failed", step, event["plan"], error="it ended without its effect")
                if step.id == self.resumed:
                    raise _without_effect(step)
                continue
            if event["policy"] != plan.policy:
                self.journal.note("superseded", step, event["plan"])
                continue
            if waits and step.action not in CONTROLLER_ACTIONS:
                continue
            # How long it took, only its own run would know
            self._done(step, event["plan"], **({} if step.id == self.resumed else {"late": True}))
            applied.append(step.id)

    def _note_satisfied(self, plan: Plan, plan_name: str, closed: _Closed) -> None:
        """Note approved steps whose effect is there without us.

        The policy is the approved one, so a step that is not planned has its effect, provided that nothing else keeps
        it from being planned: facts that a capability before this one was to bring about, a requirement, or what an
        incomplete plan waits for.
        """
        if self.approved is None or plan.requirements or not plan.complete:
            return
        if not as_foretold(self.facts, self._foretold()):
            return
        pending = {step.id for step in plan.steps}
        there = [step for step in self.approved.steps if step.id not in pending and step.id not in closed.ids]
        for step in there:
            self.journal.note("satisfied", step, plan_name)
        closed.add([step.id for step in there])

    def _verify(self, deferred: Sequence[Step], before: Plan, again: bool) -> Optional[Plan]:
        """What is left of the plan before is an error. Others change the host meanwhile, and a kernel that came needs
        its module: the plan with what is needed since, None where nothing is, or where not all could be planned before.

        again: whether there was such a plan already. Then it is an error too, as it is where nobody has approved it.
        """
        plan = self._plan()
        planned = {step.id for step in before.steps}
        left = [step for step in plan.steps if step.id not in {each.id for each in deferred}]
        for step in left:
            if step.id in planned:
                raise _without_effect(step)
        _refuse([replace(refusal, found="after its steps, %s" % refusal.found) for refusal in plan.refusals])
        if not (left and before.complete):
            return None
        # A step of the controller's begins a further call, which would know nothing of those before
        if again or self.approved is not None or (
                self.resumed and any(step.action in CONTROLLER_ACTIONS for step in left)):
            raise _changed_meanwhile(left)
        _refuse_unmet(plan)
        return plan

    def _waits_as_approved(self) -> bool:
        """Whether nothing of this capability could be planned when the plan was approved: what it is has been read by
        nobody, and is left to the next plan."""
        return self.approved is not None and self.capability.name in self.approved.waiting and not (
            self.approved.steps or self.approved.requirements)

    def _compare(self, plan: Plan) -> None:
        if self.approved is not None:
            _refuse(differences(plan, self.approved))


class _Closed:
    """Steps of the approved plan that the journal has as done or satisfied, so that none is noted twice."""

    MEMORY = "approved"

    def __init__(self, journal: Journal, capability: str, approved: Optional[Plan]) -> None:
        self.journal = journal
        self.capability = capability
        self.plan = "" if approved is None else digest(approved.promise())
        memory = journal.recall(self.MEMORY)
        known = memory.get(capability, {})
        self.ids: Set[str] = set(known["closed"]) if self.plan and known.get("plan") == self.plan else set()
        if not self.plan and known:
            journal.remember(self.MEMORY, {name: kept for name, kept in memory.items() if name != capability})

    def add(self, steps: Sequence[str]) -> None:
        if self.plan and not self.ids.issuperset(steps):
            self.ids.update(steps)
            mine = {"plan": self.plan, "closed": sorted(self.ids)}
            self.journal.remember(self.MEMORY, {**self.journal.recall(self.MEMORY), self.capability: mine})


def _nothing_of(plan: Plan) -> Outcome:
    note = "Nothing of this could be planned when the plan was approved; plan the host again."
    return Outcome(replace(plan, steps=(), requirements=(), refusals=(), notes=(note,), complete=False))


def _refuse(refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise GpuOpsError.because(refusals)


def _refuse_unmet(plan: Plan) -> None:
    """Reboot and confirmation are reported and come after the steps; without anything else the steps lead nowhere."""
    for unmet in plan.requirements:
        if unmet.kind not in AFTERWARDS:
            raise GpuOpsError(
                "host.requirement_unmet",
                found="no %s for %s: %s" % (unmet.kind, unmet.subject, unmet.why),
                wanted="an installed %s before this step of the plan" % unmet.kind,
                remedy="run `gpu_driver` first; when it did, its module was built for another kernel: reboot into that "
                       "one",
                requirement=unmet.to_dict(),
            )


def _of_several(failures: Sequence[Tuple[Step, GpuOpsError]]) -> GpuOpsError:
    """One error of steps that failed beside each other; the details are those of the first."""
    refusals = [refusal for _step, error in failures for refusal in error.refusals]
    return GpuOpsError.because(refusals, **dict(failures[0][1].details,
                                                failed_steps=[step.id for step, _error in failures]))


def _without_effect(step: Step) -> GpuOpsError:
    return GpuOpsError(
        "host.step_without_effect",
        found="step %s was carried out and is still needed" % step.id,
        wanted="a second observation without it",
        remedy="read the step's own log on the host; another program may undo the change",
        failed_step=step.to_dict(),
    )


def _changed_meanwhile(needed: Sequence[Step]) -> GpuOpsError:
    return GpuOpsError(
        "host.changed_meanwhile",
        found="others changed the host meanwhile: needed is now, and was not when this run began: %s" % ", ".join(
            "%s (%s)" % (step.id, step.why) if step.why else step.id for step in needed),
        wanted="a host that is as it was when its plan was made",
        remedy="run again; where a plan was approved, make and approve it anew",
    )


def _unexpected(step: Step, cause: Exception) -> GpuOpsError:
    """An error that nobody foresaw, with the place it came from.

    Of its own words only those of the operating system are told: others may quote what they choked on, a credential
    perhaps.
    """
    frames = traceback.extract_tb(cause.__traceback__)
    said = ": %s" % cause if isinstance(cause, OSError) else ""
    return GpuOpsError(
        "host.unexpected_error",
        found="step %s ended in an unexpected %s%s" % (step.id, type(cause).__name__, said),
        wanted="the step done, or a refusal that says why not",
        remedy="report it with `traceback` of this result; a run after that goes on where this one ended",
        traceback=["%s:%s in %s" % (frame.filename, frame.lineno, frame.name) for frame in frames],
    )
