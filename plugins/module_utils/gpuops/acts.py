# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the command does on its host: the functions behind the modules, with the host's own policy.

Each gives what the module of the same work gives, by the same keys.
"""
from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible.module_utils.common.parameters import remove_values

from ..agent import boot as boot_unit
from ..agent import telling
from ..agent.policy import CORDON, POLICY_FILE, SILENT
from ..agent.policy import NAME as AGENT
from ..core import boot_record, kept
from ..core.applying import apply_held
from ..core.capability import Capability, Run, StepBegins, untold
from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.lock import HostLock
from ..core.plan import REBOOT, readable
from ..core.refusal import Refusal
from ..core.rights import TO_READ, asked_by, require_root
from ..core.secrets import hidden, masked, passwords
from ..hardware.awaited import foreseen
from ..hardware.node import host_facts
from ..hardware.report import read_host
from ..health.errors import read_errors
from ..health.model import State
from ..health.state import look_and_keep, tell_boot
from ..health.state import release as release_finding
from ..health.summary import summary
from ..packages.managers import manager_of
from ..registry import (
    ALLOWED,
    CAPABILITIES,
    NO_POD,
    SOME_PODS,
    options_of,
    options_of_validation,
    plan_host,
    read_facts,
    secrets_of,
)
from ..validation.compute.levels import at_least
from ..validation.on_host import validate_host
from ..validation.status import FAILED
from ..writing import boards_of
from . import host_policy
from .host_policy import health_options

VALIDATION = "validation"
# The same of all runs: where the waiting for a package manager has ended, the next one takes up what that left
RUN = "gpuops on this host"
RETRY_PAUSE_SECONDS = 20.0
# Whose refusals may be none a little later
RETRIED = ("packages", "host")

Options = Mapping[str, Any]


def policy(host: Host, path: str = POLICY_FILE) -> Dict[str, Any]:
    """The options of gpu_plan that this host is to have. Raises GpuOpsError without any."""
    options = host_policy.read(host, path)
    known = {*(capability.name for capability in CAPABILITIES), AGENT, VALIDATION}
    wrong = [name for name, given in options.items() if name not in known or not isinstance(given, dict)]
    if wrong:
        raise GpuOpsError(
            "gpuops.policy_not_understood",
            found="%s: %s" % (path, ", ".join(sorted(wrong))),
            wanted="options, as an object, of each of %s" % ", ".join(sorted(known)),
            remedy="correct the file, or run the role gpuops.nvidia.node_agent, which writes it",
        )
    return options


def shown(told: Any, options: Options, is_failure: bool) -> Any:
    """As a module shows its result: without what is secret of the policy."""
    secrets = [*secrets_of(options), *(passwords(options) if is_failure else ())]
    return remove_values(readable(masked(told, options)), [word for word in secrets if word])


def info(host: Host) -> Dict[str, Any]:
    """As gpu_info."""
    told = read_host(host)
    return {"changed": False, "observation": dict(told, kernel_log=read_errors(host, told["nvml"]["gpus"]))}


def plan(host: Host, options: Options, timeout: int) -> Dict[str, Any]:
    """As gpu_plan."""
    _refuse_what_a_validation_would(options)
    return dict(plan_host(host, {**_of_capabilities(options), "lock_timeout": timeout}), changed=False)


def validate(host: Host, options: Options, compute: str = "") -> Dict[str, Any]:
    """As gpu_validation on the host. compute: another level than the policy's; a slighter one proves nothing."""
    given = options_of_validation(options.get(VALIDATION) or {})
    asked = dict(given, compute=compute or given["compute"])
    return validate_host(asked, check_mode=False, proves=at_least(asked["compute"], given["compute"]))


def health(host: Host, options: Options) -> Dict[str, Any]:
    """One look at the host's health, kept and judged: the summary, and what has ended."""
    require_root(host, TO_READ)
    given = health_options(options)
    return _told(look_and_keep(host, given.policy, given.metrics_directory))


def release(host: Host, options: Options, key: str) -> Dict[str, Any]:
    """A person takes a finding back, or all of one GPU or of the host: see health.state.release()."""
    require_root(host)
    given = health_options(options)
    return dict(_told(release_finding(host, given.policy, key, asked_by(), given.metrics_directory)), changed=True)


def _told(state: State) -> Dict[str, Any]:
    return {"changed": False, **summary(state), "history": [finding.to_dict() for finding in state.history]}


def node(host: Host, options: Options, kubeconfig: str = "", name: str = "") -> Dict[str, Any]:
    """Tell of the host's GPUs on its own Node, as telling.tell() does, where the policy says so.

    kubeconfig: another one than the policy's.
    """
    require_root(host)
    given = health_options(options)
    if given.node_condition == SILENT:
        return {"changed": False}
    return telling.tell(host, kubeconfig or given.kubeconfig, given.policy.stale_seconds,
                        given.node_condition == CORDON, name)


def boot(
    host: Host, path: str, timeout: int, retry_seconds: float, step_begins: StepBegins = untold,
    tell: Callable[[str], None] = lambda _line: None
) -> Dict[str, Any]:
    """What a boot has lost comes back, and the host proves itself: apply() and validate(), told in boot.json and
    in the metrics.

    path:          of the policy.
    retry_seconds: for how long packages that cannot be had are asked for again: a network, a mirror or a clock may be
                   late, and whoever waits for this unit is not started a second time.
    tell:          is told why something is tried again.
    """
    require_root(host)
    before = boot_record.read(host)
    starts = boot_record.begin(host)
    _tell_metrics(host, path)
    options: Options = {}
    try:
        again = _Again(time.monotonic() + retry_seconds, tell)
        options = policy(host, path)
        state, result = _booted(host, options, timeout, again, step_begins)
    except BaseException as error:
        # It may be told to the whole cluster
        reason = shown(str(error) or type(error).__name__, options, True)
        boot_record.end(host, starts, boot_record.FAILED, reason)
        _tell_metrics(host, path)
        if isinstance(error, Exception):
            _tell_of_boot(host, path, tell)
        raise
    if state == boot_record.LATE and before.get("state") == boot_record.FAILED:
        # Nothing has been validated since
        boot_record.end(host, starts, boot_record.FAILED, before["reason"])
    else:
        boot_record.end(host, starts, state, "")
    _tell_metrics(host, path)
    _tell_of_boot(host, path, tell, looks=True)
    return dict(result, state=state)


def _tell_metrics(host: Host, path: str) -> None:
    """Where nobody knows where, or they cannot be written, a boot goes on all the same."""
    with contextlib.suppress(Exception):
        tell_boot(host, health_options(policy(host, path)).metrics_directory)


def _tell_of_boot(host: Host, path: str, tell: Callable[[str], None], looks: bool = False) -> None:
    """Where no kubelet runs nobody else tells the cluster why, if the policy as it is by then has it told.

    looks: whether the host is first looked at, as nobody has since the boot. A host that cannot tell is what it is all
           the same.
    """
    try:
        options = policy(host, path)
    except GpuOpsError:
        return
    try:
        if health_options(options).node_condition == SILENT:
            return
        if looks:
            health(host, options)
        node(host, options)
    except Exception as error:
        told = hidden(error.found) if isinstance(error, GpuOpsError) else type(error).__name__
        tell("the cluster was not told: %s" % told)


class _Again(NamedTuple):
    """until: by the monotonic clock. tell: as of boot()."""

    until: float
    tell: Callable[[str], None]

    def waits(self, error: GpuOpsError) -> bool:
        """Whether there is time for another try, after a pause."""
        if time.monotonic() + RETRY_PAUSE_SECONDS > self.until:
            return False
        self.tell("tried again in %.0f s: %s" % (RETRY_PAUSE_SECONDS, hidden(str(error))))
        time.sleep(RETRY_PAUSE_SECONDS)
        return True


def _booted(
    host: Host, options: Options, timeout: int, again: _Again, step_begins: StepBegins
) -> Tuple[str, Dict[str, Any]]:
    """(state of the record, what was done)."""
    nothing: Dict[str, Any] = {"changed": False, "applied": [], "deferred": [], "checks": []}
    facts = host_facts(host)
    if _has_no_gpus(facts, options):
        return boot_record.NO_GPUS, nothing
    try:
        # A kubelet that is started anew is not to wait for a run that has the lock
        _refuse_pods(host)
        done = _tried(host, options, timeout, again, step_begins)
    except _Late as late:
        if not boot_unit.reports((options.get(AGENT) or {}).get("boot"), late.started):
            return boot_record.LATE, nothing
        checked = _validated_once_joined(host, options, again)
        return boot_record.VALIDATED, {**nothing, "checks": checked["checks"], "changed": checked["changed"]}
    if done["deferred"] or done["reboot_required"]:
        raise _not_all(done)
    checked = validate(host, options)
    return boot_record.VALIDATED, {
        **done, "checks": checked["checks"], "changed": done["changed"] or checked["changed"]}


def _validated_once_joined(host: Host, options: Options, again: _Again) -> Dict[str, Any]:
    """Where nothing is applied, nobody has waited until GPUs have joined their fabric."""
    while True:
        try:
            return validate(host, options)
        except GpuOpsError as error:
            lacking = [check["name"] for check in error.details.get("checks") or () if check["status"] == FAILED]
            if "fabric" not in lacking or not again.waits(error):
                raise


class _Late(Exception):
    """A kubelet has run since the boot. Its pods may be at work, and nothing is to be taken from under them.

    started: those of boot_unit.UNITS that have.
    """

    def __init__(self, started: Collection[str]) -> None:
        super().__init__(*started)
        self.started = started


def _refuse_pods(host: Host) -> None:
    started = [unit for unit in boot_unit.UNITS
               if host.unit(unit).get("ActiveEnterTimestampMonotonic", "0") not in ("", "0")]
    if started:
        raise _Late(started)


def _tried(host: Host, options: Options, timeout: int, again: _Again, step_begins: StepBegins) -> Dict[str, Any]:
    """What is installed is not exchanged: a boot is no upgrade. Pods need not be asked for, as none runs yet."""
    failed: List[GpuOpsError] = []
    while True:
        try:
            return apply(host, _of_boot(host, options), timeout, step_begins=step_begins, pods_stay=True)
        except _Late:
            if not failed:
                raise
            raise failed.pop() from None
        except GpuOpsError as error:
            # What a planner refuses, it refuses again
            if error.code.partition(".")[0] not in RETRIED or not again.waits(error):
                raise
            failed.append(error)


def _has_no_gpus(facts: HostFacts, options: Options) -> bool:
    """An image may boot on machines without one. One that is to have some, or had a driver, is not well without."""
    expected = (options.get(VALIDATION) or {}).get("expected_gpus")
    return not (facts.gpus or expected or facts.driver_installed)


def _of_boot(host: Host, options: Options) -> Dict[str, Any]:
    """Without what is installed, whole: what was cut off in the middle is brought to its end."""
    facts, journal = host_facts(host), Journal(host)
    installed = {**dict.fromkeys(("nouveau", "driver"), facts.driver_installed), "toolkit": facts.toolkit}
    manager = manager_of(facts)
    if manager is not None and manager.interrupted(host):
        return dict(options)
    return {name: given for name, given in options.items() if not installed.get(name) or journal.unfinished(name)}


def _not_all(done: Mapping[str, Any]) -> GpuOpsError:
    left = [*(step["id"] for step in done["deferred"]),
            *(each["id"] for each in done["requirements"] if each["kind"] == REBOOT)]
    return GpuOpsError(
        "gpuops.boot_incomplete",
        found="left of the plan, since it disturbs more than is allowed or needs another boot: %s" % ", ".join(left),
        wanted="a host that is as its policy has it",
        remedy="run `gpuops plan` to read it, then `gpuops apply --allowed-disruption` with what is named there, or "
               "reboot once more",
        applied=done["applied"],
        changed=done["changed"],
    )


def history(host: Host, last: int) -> Dict[str, Any]:
    """The newest events of the journal, oldest first."""
    require_root(host, TO_READ)
    events = Journal(host).events()
    # What a program had said of a repository may have its password
    return {"changed": False, "events": hidden(events[-last:] if last else events)}


def apply(
    host: Host, options: Options, timeout: int, allowed: str = "", approved: Optional[Mapping[str, Any]] = None,
    step_begins: StepBegins = untold, pods_stay: bool = False
) -> Dict[str, Any]:
    """Carry out the host's plan, all of it that may be done, as the writers would one after another.

    allowed:   how much may be disturbed, in place of what the policy says.
    approved:  the plan to be held to.
    pods_stay: whether pods with GPUs are no reason to refuse, as they are of before the boot. Raises _Late where they
               are not.
    """
    require_root(host)
    _refuse_what_a_validation_would(options)
    given = _of_capabilities(options)
    if allowed:
        given = {name: {**each, ALLOWED: allowed} for name, each in given.items()}
    lock = HostLock(host, RUN, "gpuops apply for %s" % asked_by())
    done = _Done()
    with lock.held(timeout) as waited, done.telling():
        if pods_stay:
            # A kubelet that is not held may have come while another run was waited for
            _refuse_pods(host)
        planned = first = _planned(host, given, approved, pods_stay)
        _carry_out(host, given, planned, lock, step_begins, done)
        if planned["waiting"] and approved is None:
            # What could be planned only now that the others have acted; of a plan that somebody has read, nothing more
            planned = _planned(host, given, None, pods_stay)
            _carry_out(host, given, planned, lock, step_begins, done)
    return {
        "changed": bool(done.applied),
        **{name: first[name] for name in ("plan", "text", "digest", "returns_to")},
        "applied": done.applied,
        "deferred": list(done.deferred.values()),
        "requirements": planned["plan"]["requirements"],
        "waiting": planned["waiting"],
        "reboot_required": any(each["kind"] == REBOOT for each in planned["plan"]["requirements"]),
        "waited_for": waited,
    }


def _planned(host: Host, given: Options, approved: Optional[Mapping[str, Any]], pods_stay: bool) -> Dict[str, Any]:
    """What gpu_plan says, under the lock; what it refuses is refused before anything is changed."""
    planned = plan_host(host, {**given, **({} if approved is None else {"approved_plan": approved})}, is_alone=True)
    _refuse(planned, pods_stay)
    return planned


def _carry_out(
    host: Host, given: Options, planned: Mapping[str, Any], lock: HostLock, step_begins: StepBegins, done: _Done
) -> None:
    """Exactly that plan, as `site` has the writers do."""
    for capability in _to_run(planned):
        done.run(_run(host, capability, given[capability.name], planned["plan"], step_begins), lock)


class _Done:
    """What the runs of several capabilities did."""

    def __init__(self) -> None:
        self.applied: List[str] = []
        self.deferred: Dict[str, Dict[str, Any]] = {}

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """An error tells of all that was done before it."""
        try:
            yield
        except GpuOpsError as error:
            error.details["applied"] = [*self.applied, *error.details.get("applied", ())]
            error.details["changed"] = bool(error.details["applied"])
            raise

    def run(self, run: Run, lock: HostLock) -> None:
        outcome = apply_held(run, lock)
        self.applied += outcome.applied
        self.deferred.update({step.id: step.to_dict() for step in outcome.deferred})


def _run(
    host: Host, capability: Capability[Any, Any], given: Options, approved: Mapping[str, Any], step_begins: StepBegins
) -> Run:
    options, allowed = options_of(capability, given)

    def facts(host: Host) -> HostFacts:
        return foreseen(read_facts(host), boards_of(options))

    return Run(capability, options, host, facts, allowed, kept.approved(host, approved, capability.name),
               step_begins=step_begins, carries_out_packages=True)


def _refuse_what_a_validation_would(options: Options) -> None:
    """Before anything is changed: a boot would refuse it after that."""
    options_of_validation(options.get(VALIDATION) or {})


def _of_capabilities(options: Options) -> Dict[str, Dict[str, Any]]:
    return {capability.name: dict(options[capability.name]) for capability in CAPABILITIES
            if options.get(capability.name) is not None}


def _to_run(planned: Mapping[str, Any]) -> Iterator[Capability[Any, Any]]:
    """Those that have something to do, now or once others are done, and those whose steps a killed run left open."""
    parts = [*planned["plan"]["steps"], *planned["plan"]["requirements"]]
    named = {*(part["capability"] for part in parts), *planned["waiting"],
             *(step.partition("/")[0] for step in planned["unfinished"])}
    return (capability for capability in CAPABILITIES if capability.name in named)


def _refuse(planned: Mapping[str, Any], pods_stay: bool) -> None:
    """Before anything is changed. A command on the host takes no pod off it: who has the cluster does."""
    refusals = [Refusal.from_dict(refusal) for refusal in planned["refusals"]]
    pods = {NO_POD: [], SOME_PODS: planned["pods"]}.get(planned["drain"], planned["holders"])
    if pods and not pods_stay and not refusals:
        refusals.append(Refusal(
            "gpuops.pods_in_the_way",
            "%s with GPUs, and a plan that disturbs them (%s)" % (", ".join(map(str, pods)), planned["disruption"]),
            "a node without them",
            "drain it (`kubectl drain`), or run the playbook gpuops.nvidia.site, which does; `gpuops plan` shows the "
            "steps, and --allowed-disruption service_restart does those that disturb no pod"))
    if refusals:
        raise GpuOpsError.because(refusals)
