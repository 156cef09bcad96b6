# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From findings and what has been tried to the remedies that come next. Pure.

What is sick is repaired, and with it what is pending on the same part; other pending parts where that is asked for, or
where the whole host is disturbed anyway. A finding whose remedy has been done waits for a compute check, and for
nothing else. What is done to the whole host mends whatever a lower rung would have: then nothing else is done.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.facts import HostFacts
from ..core.plan import POWER_CYCLE as BY_POWER_CYCLE
from ..core.plan import REBOOT as BY_REBOOT
from ..core.plan import REPLACEMENT, Disruption, Kept, Plan, Requirement, Step
from ..hardware.boards import works_on_without_fabric_manager
from ..hardware.holders import FABRIC_MANAGER_UNIT, POD
from ..hardware.recovery import BOARD_RESET, LADDER, NONE, OUT, POWER_CYCLE, REBOOT, RELOAD, RESET
from ..hardware.recovery import SERVICE as RESTART
from ..hardware.reset_plan import Resettable, beginning_with, together
from ..hardware.reset_plan import refusals as refusals_of_reset
from ..health.catalogue import SICK
from ..health.findings import GPU, HOST, SERVICE, SWITCH, Finding, Subject
from ..health.ledger import ACTION
from .attempts import Attempt, Part, is_at_hand
from .ladder import OF_HOST, is_out, next_rung, number_of
from .observation import Observation
from .policy import ABSENT, IGNORED, NAME, Policy

RESTARTED = "repair.restart"
RESETS = "repair.reset"
BEGIN = "repair.begin"
FORGET = "repair.forget"
RECORD = "attempts"
FINDINGS = "findings"
_BY = {REBOOT: BY_REBOOT, POWER_CYCLE: BY_POWER_CYCLE}
_DONE = {RESTART: "its service restarted", RESET: "reset", BOARD_RESET: "reset with its board",
         RELOAD: "its driver loaded anew", REBOOT: "rebooted", POWER_CYCLE: "switched off and on"}
_IMEX = "nvidia-imex.service"
# Pods leave, as for a reset
_OUT_DISTURBS = Disruption.gpu_reset


@dataclass(frozen=True)
class Case:
    """A part, what is found of it, and what comes next for it.

    rung:   NONE where nothing does: it is pending, and nobody asks for more.
    number: which try of it that is.
    units:  services that it waits for.
    """

    subject: Subject
    findings: Tuple[Finding, ...]
    rung: str
    number: int
    units: Tuple[str, ...] = ()

    @property
    def part(self) -> Part:
        return Part(self.subject.key, self.subject.serial, self.subject.address)

    @property
    def is_sick(self) -> bool:
        return any(each.kind == SICK for each in self.findings)

    def named(self) -> str:
        serial = ", serial number %s" % self.subject.serial if self.subject.serial else ""
        return self.subject.named() + serial

    def why(self) -> str:
        return "%s: %s" % (self.named(), "; ".join("%s (%s)" % (each.text, each.code) for each in self.findings))


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == IGNORED:
        return Plan()
    if policy.state == ABSENT:
        goes = [what for what, is_there in ((RECORD, observation.has_record), (FINDINGS, observation.has_findings))
                if is_there]
        return Plan(steps=tuple(Step(
            NAME, FORGET, what, "Nobody repairs this host any more.",
            change={"before": {what: "kept"}, "after": {what: None}}, reversible=False) for what in goes))
    planned = _planned(observation, policy, facts)
    # A boot ends what a reset has left undone; what cannot come back without one must not keep it away
    boots = any(each.kind in _BY.values() for each in planned.requirements)
    return planned if boots else beginning_with(observation.unfinished, planned)


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    """A layout that is made anew may have other numbers."""
    divided = any(step.action == RESETS and step.parameters["divided"] for step in planned.steps)
    is_worn = any(step.action == BEGIN and step.subject == RELOAD for step in planned.steps)
    return facts.but(mig_changes=facts.mig_changes or divided, driver_is_worn=facts.driver_is_worn or is_worn)


def _planned(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if observation.refusals:
        return Plan(refusals=observation.refusals)
    notes = tuple("Of this host's health it is not known: %s" % text for _what, text in sorted(
        observation.unknown.items()))
    if not observation.looked_in:
        return Plan(notes=(*notes, "Nobody has looked at this host's health yet."))
    if observation.looked_in != observation.boot:
        return Plan(notes=(*notes, "The host has booted since its health was looked at: what that has mended is not "
                                   "known yet."))
    if observation.looked_at and observation.load not in ("", observation.looked_at):
        return Plan(notes=(*notes, "The driver was loaded anew since the host's health was looked at: what that has "
                                   "mended is not known yet."))
    kept = tuple(Kept(each.key, "its remedy is done (%s); a compute check that passes ends it" % each.mended)
                 for each in observation.findings if each.mended)
    kept += tuple(Kept(each.key, "nothing that is done on this host mends it: %s" % each.text)
                  for each in observation.findings if each.remedy == NONE)
    kept += tuple(Kept(each.key, "its service runs elsewhere: %s" % each.text)
                  for each in observation.findings if not each.mended and _is_elsewhere(each, observation))
    cases = _cases(observation, policy, facts)
    lost = [case for case in cases if case.rung == OUT]
    out = tuple(map(_out, lost))
    verdicts = tuple(_verdict(case) for case in lost if not _is_told(case, observation))
    acting = [case for case in cases if case.rung not in (NONE, OUT)]
    of_host = max((case.rung for case in acting if case.rung in OF_HOST), key=LADDER.index, default=NONE)
    if of_host:
        whole = [case for case in cases if case.rung != OUT]
        steps, requirements = _of_host(of_host, whole, observation)
        if of_host == RELOAD:
            notes += ("gpu_driver_activation loads the driver anew.",)
        return Plan(steps=(*steps, *verdicts), requirements=(*requirements, *out), kept=kept, notes=notes)
    kept += tuple(Kept(case.subject.key, "pending, which hurts no work: `pending` has it repaired too")
                  for case in cases if case.rung == NONE)
    restarts = _restarts([case for case in acting if case.rung == RESTART], facts)
    resets = [case for case in acting if case.rung in (RESET, BOARD_RESET)]
    groups = _groups(resets, observation, facts)
    refusals = tuple(refusal for group in groups for refusal in refusals_of_reset(
        group, {}, policy.assume_pods_evicted, observation.gpus, observation.fabric_runs))
    if refusals:
        return Plan(refusals=refusals)
    steps = tuple(_reset(group, resets) for group in groups)
    # Where the fabric stops, all work does
    stops = any(step.disruption > Disruption.service_restart for step in restarts)
    leaving = {} if stops else {step.id: _pods(group) for step, group in zip(steps, groups)}
    return Plan(steps=(*restarts, *steps, *verdicts), requirements=out, kept=kept, notes=notes, leaving=leaving)


# which part gets what


def _cases(observation: Observation, policy: Policy, facts: HostFacts) -> List[Case]:
    """The parts that something has to be done about, the worst first."""
    by_part: Dict[str, List[Finding]] = {}
    for finding in observation.findings:
        if not finding.mended and finding.remedy != NONE and not _is_elsewhere(finding, observation):
            by_part.setdefault(finding.subject.key, []).append(finding)
    since = observation.now - policy.tries_within
    tried = [attempt for attempt in observation.attempts
             if not is_at_hand(attempt, observation.boot, observation.load)]
    found = [_case(key, findings, observation, policy, facts, tried, since) for key, findings in by_part.items()]
    return sorted(found, key=lambda case: (-LADDER.index(case.rung), case.subject.key))


def _case(
    key: str, findings: Sequence[Finding], observation: Observation, policy: Policy, facts: HostFacts,
    tried: Sequence[Attempt], since: float
) -> Case:
    subject = findings[0].subject
    units = tuple(dict.fromkeys(unit for finding in findings for unit in _units(finding, observation)))
    if not (policy.pending or any(each.kind == SICK for each in findings)):
        return Case(subject, tuple(findings), NONE, 0)
    there = _there(subject, units, observation, policy, facts)
    if RESET in there and BOARD_RESET not in there:
        # Its board has no other GPU: a reset of the one is a reset of the other, and counts as that
        same = BOARD_RESET if any(each.remedy == BOARD_RESET for each in findings) else RESET
        there = there - {RESET} | {same}
        tried = [replace(each, rung=same) if each.rung in (RESET, BOARD_RESET) else each for each in tried]
    rung = OUT if is_out(key, tried, min(each.first.at for each in findings)) else max(
        (next_rung(each.remedy, key, tried, there, policy.tries, since) for each in findings), key=LADDER.index)
    return Case(subject, tuple(findings), rung, number_of(rung, key, tried, since), units)


def _units(finding: Finding, observation: Observation) -> Tuple[str, ...]:
    """Services whose restart is a finding's remedy."""
    if finding.remedy != RESTART:
        return ()
    wanted = FABRIC_MANAGER_UNIT
    if finding.source == SERVICE:
        wanted = finding.code
    elif finding.code == ACTION:
        # The one service that a driver asks for
        wanted = _IMEX
    return (wanted,) if wanted in observation.units else ()


def _is_elsewhere(finding: Finding, observation: Observation) -> bool:
    """Whether it waits for a service that is not on this host, which nothing that is done to a GPU starts."""
    return finding.remedy == RESTART and not _units(finding, observation)


def _there(
    subject: Subject, units: Sequence[str], observation: Observation, policy: Policy, facts: HostFacts
) -> FrozenSet[str]:
    """Rungs that there are for a part on this host. To load the driver anew does for a GPU what its reset has done."""
    rungs = {REBOOT, *([RESTART] if units else []), *([POWER_CYCLE] if policy.power_cycle else [])}
    if subject.kind == HOST and facts.driver_loaded and facts.driver_installed and not facts.hung:
        rungs.add(RELOAD)
    gpus = observation.gpus
    if subject.kind == SWITCH and facts.fabric and gpus and all(gpu.supported and not gpu.guest for gpu in gpus):
        # It is reset with all GPUs of its board
        rungs.add(BOARD_RESET)
    gpu = _gpu(subject, observation)
    if gpu is not None and gpu.supported and not gpu.guest:
        rungs.add(RESET)
        if set(_board(gpu, observation, facts)) - set(_alone(gpu, observation)):
            rungs.add(BOARD_RESET)
    return frozenset(rungs)


def _gpu(subject: Subject, observation: Observation) -> Optional[Resettable]:
    return next((gpu for gpu in observation.gpus if subject.kind == GPU and gpu.address == subject.address), None)


def _alone(gpu: Resettable, observation: Observation) -> Tuple[str, ...]:
    """Addresses of what a reset of a GPU takes at least."""
    uuids = together(gpu, observation.fabric_runs)
    return tuple(each.address for each in observation.gpus if each is gpu or (each.uuid and each.uuid in uuids))


def _board(gpu: Resettable, observation: Observation, facts: HostFacts) -> Tuple[str, ...]:
    """Addresses of all GPUs of its NVLink board; a host has one board with NVSwitches."""
    if facts.fabric:
        return tuple(each.address for each in observation.gpus)
    return tuple(each.address for each in observation.gpus if each is gpu or each.uuid in gpu.joined)


# steps


def _restarts(cases: Sequence[Case], facts: HostFacts) -> Tuple[Step, ...]:
    steps = []
    for unit in dict.fromkeys(unit for case in cases for unit in case.units):
        waiting = [case for case in cases if unit in case.units]
        disturbs = Disruption.service_restart
        if unit == _IMEX and not any(finding.source == SERVICE for case in waiting for finding in case.findings):
            # It runs, and jobs over several nodes end with it
            disturbs = Disruption.gpu_reset
        if unit == FABRIC_MANAGER_UNIT and not works_on_without_fabric_manager(gpu.device_id for gpu in facts.gpus):
            disturbs = Disruption.gpu_reset
        steps.append(Step(
            NAME, RESTARTED, unit, _why(waiting), disturbs, change=_change(waiting, RESTART),
            parameters=_parameters(waiting, RESTART)))
    return tuple(steps)


def _groups(
    cases: Sequence[Case], observation: Observation, facts: HostFacts
) -> List[Tuple[Resettable, ...]]:
    """GPUs that are reset by one command each, in the order of the host."""
    groups: List[Set[str]] = []
    for case in cases:
        gpu = _gpu(case.subject, observation)
        if gpu is None:
            # Of an NVSwitch
            chosen = {each.address for each in observation.gpus}
        else:
            chosen = set(_board(gpu, observation, facts) if case.rung == BOARD_RESET else _alone(gpu, observation))
        apart = [group for group in groups if not group & chosen]
        groups = [*apart, chosen.union(*(group for group in groups if group & chosen))]
    found = [tuple(gpu for gpu in observation.gpus if gpu.address in group) for group in groups]
    return sorted(found, key=lambda group: group[0].address)


def _reset(group: Sequence[Resettable], cases: Sequence[Case]) -> Step:
    addresses = [gpu.address for gpu in group]
    sick = [case for case in cases if case.subject.address in addresses or case.subject.kind == SWITCH]
    others = [gpu.named() for gpu in group if gpu.address not in {case.subject.address for case in sick}]
    rung = max((case.rung for case in sick), key=LADDER.index)
    why = _why(sick) + (" With it %s: NVLink joins them." % ", ".join(others) if others else "")
    return Step(
        NAME, RESETS, ", ".join(addresses), why, Disruption.gpu_reset, change=_change(sick, rung),
        parameters={**_parameters(sick, rung), "gpus": [[gpu.uuid, gpu.address] for gpu in group],
                    "divided": any(gpu.instances for gpu in group)})


def _of_host(
    rung: str, cases: Sequence[Case], observation: Observation
) -> Tuple[Tuple[Step, ...], Tuple[Requirement, ...]]:
    """That it is tried is written down before others do it, and that a load is given up, or nobody would replace it."""
    keys = {case.subject.key for case in cases}
    is_known = rung != RELOAD or observation.given_up
    is_written = is_known and any(
        is_at_hand(attempt, observation.boot, observation.load) and attempt.rung == rung
        and keys <= set(attempt.keys) for attempt in observation.attempts)
    sick = [case for case in cases if case.rung != NONE]
    disturbs, why = Disruption.reboot, "What was tried is to be known after it."
    if rung == RELOAD:
        disturbs, why = Disruption.driver_reload, _why(sick)
    step = Step(
        NAME, BEGIN, rung, why, disturbs,
        change={"before": {rung: "not tried"}, "after": {rung: "written down"}}, parameters=_parameters(cases, rung))
    from_outside = () if rung == RELOAD else (Requirement(
        NAME, _BY[rung], ", ".join(case.subject.named() for case in sick), _why(sick), disturbs, _change(sick, rung)),)
    return () if is_written else (step,), from_outside


def _is_told(case: Case, observation: Observation) -> bool:
    """Whether that it is to be taken out is known without the attempts, or by them for good. Who was killed once he had
    written the attempt down has not told it of what is sick."""
    found = min(each.first.at for each in case.findings)
    return any(each.remedy == OUT for each in case.findings) or (
        not case.is_sick and is_out(case.subject.key, observation.attempts, found))


def _verdict(case: Case) -> Step:
    """What was tried in vain is not tried again when the time is over in which tries count."""
    return Step(
        NAME, BEGIN, "%s of %s" % (OUT, case.subject.key), "%s. All that there is was tried in vain." % case.why(),
        _OUT_DISTURBS, change={"before": {case.named(): "to be repaired"}, "after": {case.named(): "to be taken out"}},
        parameters=_parameters([case], OUT))


def _out(case: Case) -> Requirement:
    """Its node waits for a person."""
    return Requirement(
        NAME, REPLACEMENT, case.named(),
        "%s. Nothing that is done here mends it, or it was tried in vain." % case.why(),
        _OUT_DISTURBS, {"before": {case.named(): "in the host"}, "after": {case.named(): "replaced"}})


def _why(cases: Iterable[Case]) -> str:
    return "%s." % "; ".join(case.why() for case in cases)


def _change(cases: Iterable[Case], rung: str) -> Mapping[str, Mapping[str, str]]:
    """A second try is another change than the first one."""
    before, after = {}, {}
    for case in cases:
        name = case.subject.named()
        before[name] = "sick" if case.is_sick else "pending"
        after[name] = "%s (try %d)" % (_DONE[rung], case.number) if case.rung == rung else _DONE[rung]
    return {"before": before, "after": after}


def _parameters(cases: Iterable[Case], rung: str) -> Dict[str, Any]:
    return {"rung": rung, "parts": [[part.key, part.serial, part.address] for part in (
        case.part for case in cases)]}


def _pods(group: Iterable[Resettable]) -> Tuple[str, ...]:
    return tuple(sorted({holder[len(POD):] for gpu in group for holder in gpu.holders if holder.startswith(POD)}))
