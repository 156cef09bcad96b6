# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way from a policy to a verified change, on a small capability over real files."""
from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import capability as engine
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run, plan_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    Disruption,
    Plan,
    Requirement,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import (
    Executor,
    file_step,
    packages_step,
    restore_steps,
    write_file,
)

PATHS = ("/etc/one", "/etc/deep/er/two", "/etc/three")


@dataclass(frozen=True)
class Seen:
    texts: Dict[str, Any]
    restorable: Tuple[Step, ...]

    def to_dict(self) -> Dict[str, Any]:
        return {"texts": self.texts, "restorable": [step.to_dict() for step in self.restorable]}


def observe(host: Host, journal: Journal, policy: Mapping[str, Any], facts: HostFacts) -> Seen:
    return Seen({path: host.read(path) for path in PATHS}, tuple(restore_steps("files", host, journal)))


def plan(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
    if policy.get("state") == "absent":
        return Plan(steps=observation.restorable)
    if policy["text"] == "impossible":
        return Plan(refusals=(Refusal("files.wish", "a wish", "another", "wish again"),))
    return Plan(steps=tuple(
        file_step("files", path, before, policy["text"], "It is wanted.",
                  Disruption.runtime_restart if path.endswith("two") else Disruption.none)
        for path, before in sorted(observation.texts.items()) if before != policy["text"]
    ))


# Wants one text in three files; 'two' disturbs the runtime.
FILES = Capability("files", {"text": {"type": "str"}, "state": {"type": "str"}}, dict, observe, plan)


def planned_by(planner: Callable[[Seen, Mapping[str, Any], HostFacts], Plan]) -> Any:
    return replace(FILES, plan=planner)


def writing_by(executor: Callable[[Host, Journal, Step], None]) -> Any:
    return replace(FILES, executors={"file.write": executor})


STUBBORN = writing_by(lambda host, journal, step: None)


class Killed(BaseException):
    """No exception handler sees a killed process."""


def mortal(survivors: int) -> Any:
    """A capability whose process is killed before the step after so many."""

    lives = iter(range(survivors))

    def write(host: Host, journal: Journal, step: Step) -> None:
        if next(lives, None) is None:
            raise Killed
        journal.keep_original(step.capability, step.subject)
        host.write(step.subject, step.change["after"])

    return writing_by(write)


def run(host: Host, capability: Any = None, allowed: Disruption = Disruption.reboot, **options: Any) -> Run:
    more = {name: options.pop(name) for name in ("approved", "resumed", "transaction_failed", "carries_out_packages")
            if name in options}
    facts = options.pop("facts", HostFacts(hostname="h"))
    return Run(capability or FILES, options, host, lambda _: facts, allowed, **more)


def events(host: Host) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in (host.read("/var/lib/gpuops/journal.jsonl") or "").splitlines()]


def told(host: Host, event: str) -> List[str]:
    """Subjects of the steps with this event."""
    return [each["step"]["subject"] for each in events(host) if each["event"] == event]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(str(tmp_path))
    host.write("/etc/one", "before", mode=0o640)
    return host


def everything(host: Host) -> Dict[str, Any]:
    root = Path(host.root)
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for path in root.rglob("*") if path.is_file() and "gpuops" not in path.parts
    }


def test_apply_does_what_preview_said_and_then_nothing(host: Host) -> None:
    foretold = run(host, text="new").preview()
    assert everything(host).keys() == {"etc/one"}
    outcome = run(host, text="new").apply()
    assert outcome.applied == foretold.applied == [step.id for step in foretold.plan.steps]
    assert all(host.read(path) == "new" for path in PATHS)
    assert run(host, text="new").apply().plan.steps == ()


def test_the_journal_holds_exactly_the_plan(host: Host) -> None:
    foretold = run(host, text="new").preview()
    run(host, text="new").apply()
    done = [Step.from_dict(event["step"]) for event in events(host) if event["event"] == "done"]
    assert tuple(done) == foretold.plan.steps


def test_absent_gives_back_bytes_modes_and_directories(host: Host) -> None:
    before = everything(host)
    run(host, text="new").apply()
    run(host, text="newer").apply()
    run(host, state="absent").apply()
    assert everything(host) == before
    assert not host.exists("/etc/deep")
    assert run(host, state="absent").apply().plan.steps == ()


def test_a_refusal_comes_before_the_first_write(host: Host) -> None:
    before = everything(host)
    with pytest.raises(GpuOpsError, match="Found: a wish. Wanted: another. Do: wish again."):
        run(host, text="impossible").apply()
    assert everything(host) == before


@pytest.mark.parametrize("act", ["preview", "apply"])
def test_what_cannot_be_replaced_is_refused_before_the_first_write(host: Host, act: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    null = Path(host.path("/null"))
    os.mknod(null, 0o20666, os.makedev(1, 3))
    os.symlink(null, host.path("/etc/three"))
    before = everything(host)
    with pytest.raises(GpuOpsError, match="/etc/three leads to the device .*unmask"):
        getattr(run(host, text="new"), act)()
    assert everything(host) == before and not Journal(host).events()
    assert null.is_char_device()


def test_what_disturbs_too_much_is_put_off(host: Host) -> None:
    outcome = run(host, text="new", allowed=Disruption.service_restart).apply()
    assert [step.subject for step in outcome.deferred] == ["/etc/deep/er/two"]
    assert host.read("/etc/deep/er/two") is None


def test_a_step_without_effect_is_an_error(host: Host) -> None:
    with pytest.raises(GpuOpsError, match="still needed"):
        run(host, STUBBORN, text="new").apply()


def kernel_comes(host: Host, *names: str) -> Any:
    """A capability that makes a file beside each kernel; while it makes one, the next of these kernels is installed."""
    coming = iter(names)

    def lacking(host: Host, journal: Journal, policy: Mapping[str, Any], facts: HostFacts) -> Seen:
        return Seen({path: None for path in host.glob("/kernels/*") if not host.exists("/modules" + path)}, ())

    def build(host: Host, journal: Journal, step: Step) -> None:
        host.write("/modules" + step.subject, "")
        for name in itertools.islice(coming, 1):
            host.write("/kernels/" + name, "")

    def build_all(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return Plan(steps=tuple(Step("files", "file.write", path, "It has no module.") for path in observation.texts))

    host.write("/kernels/first", "")
    return replace(FILES, observe=lacking, plan=build_all, executors={"file.write": build})


def test_a_kernel_that_comes_while_the_host_is_changed_is_served_by_the_same_run(host: Host) -> None:
    outcome = run(host, kernel_comes(host, "second"), text="new").apply()
    assert outcome.applied == ["files/file.write//kernels/first", "files/file.write//kernels/second"]
    assert [step.id for step in outcome.plan.steps] == outcome.applied
    assert told(host, "done") == ["/kernels/first", "/kernels/second"]


def test_one_that_nobody_has_approved_is_told(host: Host) -> None:
    capability = kernel_comes(host, "second")
    approved = run(host, capability, text="new").preview().plan
    with pytest.raises(GpuOpsError, match="/kernels/second.*run again; where a plan was approved") as failure:
        run(host, capability, text="new", approved=approved).apply()
    assert (failure.value.code, failure.value.result()["applied"]) == (
        "host.changed_meanwhile", ["files/file.write//kernels/first"])
    assert told(host, "started") == ["/kernels/first"]


def test_a_host_that_others_change_for_ever_is_told(host: Host) -> None:
    with pytest.raises(GpuOpsError, match="/kernels/third") as failure:
        run(host, kernel_comes(host, "second", "third", "fourth"), text="new").apply()
    assert failure.value.code == "host.changed_meanwhile" and told(host, "failed") == []
    assert len(failure.value.result()["applied"]) == 2


def test_what_comes_and_disturbs_too_much_is_put_off_as_any_other(host: Host) -> None:
    capability = kernel_comes(host, "second")

    def disturbs(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return Plan(steps=tuple(
            replace(step, disruption=Disruption.reboot) if step.subject.endswith("second") else step
            for step in capability.plan(observation, policy, facts).steps))

    outcome = run(host, replace(capability, plan=disturbs), allowed=Disruption.none, text="new").apply()
    assert [step.subject for step in outcome.deferred] == ["/kernels/second"]
    assert outcome.applied == ["files/file.write//kernels/first"]


@pytest.mark.parametrize("resumed", ("", "files/packages.install/driver"))
def test_packages_for_what_came_are_waited_for_once(host: Host, resumed: str) -> None:
    """The call after them knows nothing of those before: two that undo each other would take turns for ever."""
    capability = kernel_comes(host, "second")

    def with_headers(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return Plan(steps=tuple(
            packages_step("files", "headers", {"headers": None}, {"headers": "1"}, "It has none.")
            if step.subject.endswith("second") else step for step in capability.plan(observation, policy, facts).steps))

    begun = run(host, replace(capability, plan=with_headers), text="new", resumed=resumed)
    if resumed:
        with pytest.raises(GpuOpsError, match="packages.install/headers") as failure:
            begun.apply()
        assert failure.value.code == "host.changed_meanwhile"
    else:
        outcome = begun.apply()
        assert outcome.awaiting is not None and outcome.awaiting.subject == "headers"
        assert [step.subject for step in outcome.plan.steps] == ["/kernels/first", "headers"]


def test_a_host_that_is_refused_after_the_steps_is_no_success(host: Host) -> None:
    """A driver that hangs once it is loaded leaves a plan without steps too."""
    def sick(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        made = plan(observation, policy, facts)
        return made if made.steps else Plan(refusals=(Refusal("files.hung", "GPU 3 hangs", "one that answers", "x"),))

    with pytest.raises(GpuOpsError, match="after its steps, GPU 3 hangs") as failure:
        run(host, planned_by(sick), text="new").apply()
    assert failure.value.result()["changed"] is True and len(failure.value.result()["applied"]) == 3


def test_what_the_host_s_own_programs_say_against_a_plan_refuses_it_before_it_is_shown(host: Host) -> None:
    asked: List[Plan] = []

    def judge(host: Host, observation: Seen, policy: Mapping[str, Any], made: Plan) -> List[Refusal]:
        asked.append(made)
        return [Refusal("files.unread", "a text that nobody reads", "another", "wish again")] if made.steps else []

    judged = replace(FILES, judge=judge)
    shown, _facts = plan_of(judged, {"text": "new"}, host, HostFacts(hostname="h"))
    assert (shown.steps, [refusal.found for refusal in shown.refusals]) == ((), ["a text that nobody reads"])
    for act in (run(host, judged, text="new").preview, run(host, judged, text="new").apply):
        with pytest.raises(GpuOpsError, match="a text that nobody reads"):
            act()
    assert everything(host).keys() == {"etc/one"} and events(host) == []
    asked.clear()
    plan_of(judged, {"text": "impossible"}, host, HostFacts(hostname="h"))
    assert asked == [], "what is refused already needs no judge"


@pytest.mark.parametrize("survivors", range(4))
def test_killed_between_two_steps_and_run_again(host: Host, survivors: int) -> None:
    before = everything(host)
    try:
        run(host, mortal(survivors), text="new").apply()
    except Killed:
        assert survivors < 3
    run(host, text="new").apply()
    assert all(host.read(path) == "new" for path in PATHS)
    assert Journal(host).unfinished("files") == []
    run(host, state="absent").apply()
    assert everything(host) == before


def test_an_approved_plan_is_done_or_the_difference_is_named(host: Host) -> None:
    approved = run(host, text="new").preview().plan
    host.write("/etc/three", "someone else was here")
    with pytest.raises(GpuOpsError, match="/etc/three"):
        run(host, text="new", approved=approved).apply()
    assert host.read("/etc/one") == "before"


def test_an_approved_step_with_its_effect_there_is_satisfied(host: Host) -> None:
    approved = run(host, text="new").preview().plan
    host.write("/etc/three", "new")
    for _ in range(2):
        run(host, text="new", approved=approved).apply()
    assert told(host, "satisfied") == ["/etc/three"]
    assert told(host, "done") == ["/etc/deep/er/two", "/etc/one"]


def test_a_run_that_is_held_to_nothing_forgets_what_was_approved(host: Host) -> None:
    approved = run(host, text="new").preview().plan
    run(host, text="new", approved=approved).apply()
    assert Journal(host).recall("approved")
    run(host, text="new").apply()
    assert Journal(host).recall("approved") == {}


def test_another_policy_is_refused_even_if_it_needs_less(host: Host) -> None:
    approved = run(host, text="new").preview().plan
    for other in ("before", "newer"):
        for act in (run(host, text=other, approved=approved).apply, run(host, text=other, approved=approved).preview):
            with pytest.raises(GpuOpsError, match="the options of files are others"):
                act()
    assert events(host) == [] and everything(host).keys() == {"etc/one"}


def test_another_host_is_refused(host: Host) -> None:
    approved = replace(run(host, text="new").preview().plan, host="elsewhere")
    for act in (run(host, text="new", approved=approved).apply, run(host, text="new", approved=approved).preview):
        with pytest.raises(GpuOpsError, match="host 'elsewhere'"):
            act()


def test_an_approved_empty_plan_is_held_to(host: Host) -> None:
    for path in PATHS:
        host.write(path, "new")
    approved = run(host, text="new").preview().plan
    assert approved.steps == ()
    run(host, text="new", approved=approved).apply()
    host.write("/etc/one", "drifted")
    for act in (run(host, text="new", approved=approved).apply, run(host, text="new", approved=approved).preview):
        with pytest.raises(GpuOpsError, match="the approved plan has no such step"):
            act()
    assert host.read("/etc/one") == "drifted"


def when_there_is_a_driver(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
    if not facts.driver_loaded:
        return Plan(notes=("It waits for a driver.",))
    return plan(observation, dict(policy, text=facts.driver_loaded), facts)


# Does nothing before there is a driver, and names its version.
DEPENDENT = planned_by(when_there_is_a_driver)
BARE, LOADED = HostFacts(hostname="h"), HostFacts(hostname="h", driver_loaded="595")


def foretold(host: Host) -> Plan:
    """The plan for a bare host whose driver another capability of the same plan loads."""
    return plan_of(DEPENDENT, {"text": "x"}, host, LOADED, BARE)[0]


def test_check_mode_supposes_what_was_approved_before_this_capability(host: Host) -> None:
    approved = foretold(host)
    outcome = run(host, DEPENDENT, text="x", approved=approved, facts=BARE).preview()
    assert outcome.plan.steps == approved.steps
    assert outcome.plan.notes == ("In check mode this is supposed, as approved: driver_loaded '595'.",)
    assert run(host, DEPENDENT, text="x", approved=approved, facts=LOADED).preview().plan.notes == ()


def test_check_mode_refuses_where_the_run_would(host: Host) -> None:
    approved = foretold(host)
    host.write("/etc/three", "someone else was here")
    for act, facts in (("preview", BARE), ("preview", LOADED), ("apply", LOADED)):
        with pytest.raises(GpuOpsError, match="in its change"):
            getattr(run(host, DEPENDENT, text="x", approved=approved, facts=facts), act)()
    another = HostFacts(hostname="h", driver_loaded="580")
    for act in ("preview", "apply"):
        with pytest.raises(GpuOpsError, match="in its change"):
            getattr(run(host, DEPENDENT, text="x", approved=approved, facts=another), act)()


def test_a_step_that_still_waits_for_another_capability_is_not_satisfied(host: Host) -> None:
    approved = foretold(host)
    run(host, DEPENDENT, text="x", approved=approved, facts=BARE).apply()
    assert events(host) == []
    run(host, DEPENDENT, text="x", approved=approved, facts=LOADED).apply()
    assert (sorted(told(host, "done")), told(host, "satisfied")) == (sorted(PATHS), [])


def test_what_a_plan_leaves_out_because_it_waits_is_not_satisfied(host: Host) -> None:
    waiting = planned_by(lambda observation, policy, facts: Plan(notes=("It waits for a device.",), complete=False))
    approved = run(host, text="new").preview().plan
    run(host, waiting, text="new", approved=approved).apply()
    assert events(host) == []
    with pytest.raises(Killed):
        run(host, mortal(0), text="new").apply()
    left_open = Journal(host).unfinished("files")
    run(host, waiting, text="new").apply()
    assert Journal(host).unfinished("files") == left_open, "it was not done either"


def ending(kind: str) -> Any:
    """A capability whose plan ends with a requirement of this kind."""
    def required(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return replace(plan(observation, policy, facts),
                       requirements=(Requirement("files", kind, "it", "It is so.", Disruption.reboot),))

    return planned_by(required)


def test_a_reboot_comes_after_the_steps_and_is_reported(host: Host) -> None:
    outcome = run(host, ending("reboot"), allowed=Disruption.runtime_restart, text="new").apply()
    assert (len(outcome.applied), outcome.deferred, outcome.plan.reboot_required) == (3, (), True)
    again = run(host, ending("reboot"), text="new").apply()
    assert (again.applied, again.plan.reboot_required) == ([], True)


def test_without_what_must_come_first_nothing_is_begun(host: Host) -> None:
    assert len(run(host, ending("driver"), text="new").preview().plan.steps) == 3
    approved = run(host, ending("driver"), text="new").preview().plan
    for act in (run(host, ending("driver"), text="new").apply,
                run(host, ending("driver"), text="new", approved=approved).apply,
                run(host, ending("driver"), text="new", approved=approved).preview):
        with pytest.raises(GpuOpsError, match="no driver for it.*run `gpu_driver` first"):
            act()
    assert everything(host).keys() == {"etc/one"} and events(host) == []


def test_an_open_step_that_another_policy_made_needless_was_not_done(host: Host) -> None:
    with pytest.raises(Killed):
        run(host, mortal(0), text="new").apply()
    first = Journal(host).unfinished("files")[0]["step"]["id"]
    run(host, state="absent").apply()
    assert [event["event"] for event in events(host) if event["step"]["id"] == first] == [
        "started", "superseded"
    ]


def test_a_failure_tells_what_was_changed_before_it(host: Host) -> None:
    with pytest.raises(GpuOpsError) as failure:
        run(host, failing_with(lambda: GpuOpsError("host.any", "a full disk", "room", "make room")), text="new").apply()
    assert failure.value.result()["changed"] is True
    assert len(failure.value.result()["applied"]) == 2


def test_what_was_changed_and_cannot_be_written_down_is_told_as_changed(host: Host) -> None:
    def write(host: Host, journal: Journal, step: Step) -> None:
        host.write(step.subject, step.change["after"])
        host.remove("/var/lib/gpuops/journal.jsonl")
        host.make_directory("/var/lib/gpuops/journal.jsonl", 0o700)

    with pytest.raises(GpuOpsError, match="journal.jsonl cannot be written") as failure:
        run(host, writing_by(write), text="new").apply()
    (done,) = failure.value.result()["applied"]
    assert host.read(done.partition("file.write/")[2]) == "new"
    assert failure.value.result()["changed"] is True


def failing_with(error: Callable[[], Exception]) -> Any:
    def write(host: Host, journal: Journal, step: Step) -> None:
        if step.subject == "/etc/three":
            raise error()
        host.write(step.subject, step.change["after"])

    return writing_by(write)


@pytest.mark.parametrize("error, said", [
    (lambda: OSError(28, "No space left on device", "/etc/x"), r"unexpected OSError: .*No space left on device"),
    (lambda: ValueError("the password is hunter2"), r"unexpected ValueError"),
    (lambda: KeyError("mode"), r"unexpected KeyError"),
])
def test_an_error_that_nobody_foresaw_is_written_down_and_told_with_what_was_done(
    host: Host, error: Callable[[], Exception], said: str
) -> None:
    with pytest.raises(GpuOpsError, match="step files/file.write//etc/three ended in an " + said) as failure:
        run(host, failing_with(error), text="new").apply()
    result = failure.value.result()
    assert result["changed"] is True and len(result["applied"]) == 2
    assert result["failed_step"]["subject"] == "/etc/three"
    assert any(__file__ in line for line in result["traceback"])
    assert "hunter2" not in json.dumps(result)
    assert told(host, "failed") == ["/etc/three"] and Journal(host).unfinished("files") == []


def test_an_action_without_executor_is_a_failure_as_any_other(host: Host) -> None:
    lacking = planned_by(lambda observation, policy, facts: Plan(steps=(Step("files", "nobody.knows", "x", ""),)))
    with pytest.raises(GpuOpsError, match="unexpected KeyError"):
        run(host, lacking, text="new").apply()
    assert told(host, "failed") == ["x"]


def one_package(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
    """One package, which is there when its file is."""
    if observation.texts["/etc/three"] is not None:
        return Plan()
    return Plan(steps=(packages_step("files", "a package", {"pkg": None}, {"pkg": "1"}, "It is wanted.",
                                     request={"pkg": "1"}),))


def install(host: Host, journal: Journal, step: Step) -> None:
    """The package manager's own way."""
    (event,) = journal.unfinished("files")
    assert event["transaction"] == {"simulated": ["pkg"]}
    host.write("/etc/three", "came")


class Books:
    """Books of transactions, in the journal's own memory."""

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        return {"simulated": sorted(step.change["after"])}

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        journal.remember("books", {"came": opened["simulated"] if host.exists("/etc/three") else []})

    def failed(self, host: Host, step: Step) -> str:
        return "no room for %s" % step.subject

    def executor(self, step: Step, alone: bool) -> Optional[Executor]:
        return install if alone else None


@dataclass
class OnHost(Books):
    """Those of a manager that no module of ansible.builtin is for."""

    carry_out: Executor

    def executor(self, step: Step, alone: bool) -> Optional[Executor]:
        return self.carry_out


def packaged(host: Host, **more: Any) -> Run:
    return run(host, replace(FILES, plan=one_package, transactions=Books()), text="new", **more)


def test_a_transaction_is_open_until_its_module_is_called_again(host: Host) -> None:
    step = packaged(host).apply().awaiting
    assert step is not None and step.parameters["request"] == {"pkg": "1"}
    (event,) = Journal(host).unfinished("files")
    assert event["transaction"] == {"simulated": ["pkg"]}
    host.write("/etc/three", "came")
    outcome = packaged(host, resumed=step.id).apply()
    assert (outcome.applied, outcome.awaiting) == ([step.id], None)
    assert Journal(host).recall("books") == {"came": ["pkg"]}
    assert Journal(host).unfinished("files") == []


def test_a_failed_transaction_is_accounted_for_at_once(host: Host) -> None:
    step = packaged(host).apply().awaiting
    assert step is not None
    host.write("/etc/three", "came before it failed")
    outcome = packaged(host, resumed=step.id, transaction_failed=True).apply()
    assert (outcome.applied, outcome.awaiting, outcome.why_failed) == ([], None, "no room for a package")
    assert Journal(host).recall("books") == {"came": ["pkg"]}
    assert told(host, "failed") == ["a package"] and Journal(host).unfinished("files") == []


def test_a_transaction_without_effect_is_over_and_an_error(host: Host) -> None:
    step = packaged(host).apply().awaiting
    assert step is not None
    with pytest.raises(GpuOpsError, match="still needed"):
        packaged(host, resumed=step.id).apply()
    assert Journal(host).recall("books") == {"came": []} and told(host, "failed") == ["a package"]


def test_a_manager_without_a_module_of_ansible_has_its_steps_carried_out_on_the_host(host: Host) -> None:
    capability = replace(FILES, plan=one_package, transactions=OnHost(install))
    outcome = run(host, capability, text="new").apply()
    assert (len(outcome.applied), outcome.awaiting) == (1, None)
    assert Journal(host).recall("books") == {"came": ["pkg"]} and Journal(host).unfinished("files") == []


def test_where_no_controller_is_every_manager_carries_its_steps_out_on_the_host(host: Host) -> None:
    outcome = packaged(host, carries_out_packages=True).apply()
    assert (len(outcome.applied), outcome.awaiting) == (1, None)
    assert Journal(host).recall("books") == {"came": ["pkg"]} and Journal(host).unfinished("files") == []


def test_what_scripts_of_packages_have_done_is_not_done_again(host: Host) -> None:
    """As the build of a module for a kernel. A controller calls again after its transaction, and the host is planned
    anew; so it is without one."""
    def plan(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        first = one_package(observation, policy, facts).steps
        wanted = {"/etc/one": "script\n", "/etc/deep/er/two": "ours\n"}
        files = tuple(file_step("files", path, observation.texts[path], text, "It is wanted.")
                      for path, text in wanted.items() if observation.texts[path] != text)
        return Plan(steps=(*first, *files))

    def carry_out(host: Host, journal: Journal, step: Step) -> None:
        host.write("/etc/three", "new")
        host.write("/etc/one", "script\n")

    told_of: List[Tuple[str, int, int]] = []
    capability = replace(FILES, plan=plan, transactions=OnHost(carry_out))
    approved = run(host, capability, text="new").preview().plan
    again = run(host, capability, text="new", approved=approved, carries_out_packages=True)
    again.step_begins = lambda step, number, total, _after: told_of.append((step.subject, number, total))
    assert len(again.apply().applied) == 2
    assert told(host, "satisfied") == ["/etc/one"] and "/etc/one" not in told(host, "done")
    assert told_of == [("a package", 1, 3), ("/etc/deep/er/two", 2, 2)]


def test_an_approved_plan_is_the_same_with_a_controller_and_without(host: Host) -> None:
    approved = packaged(host).preview().plan
    assert packaged(host, carries_out_packages=True).preview().plan == approved
    assert packaged(host, carries_out_packages=True, approved=approved).apply().applied == [approved.steps[0].id]


def test_what_came_by_a_transaction_that_failed_on_the_host_is_accounted_for(host: Host) -> None:
    def fail(host: Host, journal: Journal, step: Step) -> None:
        host.write("/etc/three", "came before it failed")
        raise GpuOpsError("packages.failed", found="a failure", wanted="none", remedy="try again")

    capability = replace(FILES, plan=one_package, transactions=OnHost(fail))
    with pytest.raises(GpuOpsError, match="a failure; no room for a package"):
        run(host, capability, text="new").apply()
    assert Journal(host).recall("books") == {"came": ["pkg"]}
    assert told(host, "failed") == ["a package"] and Journal(host).unfinished("files") == []


def test_a_manager_that_goes_on_without_us_is_booked_by_the_run_that_finds_it_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work = "/run/zypp.pid"

    def outlast(host: Host, journal: Journal, step: Step) -> None:
        host.write(at_work, "%d\n" % os.getpid())
        raise GpuOpsError("packages.long", found="it takes long", wanted="an end", remedy="wait")

    capability = replace(FILES, plan=one_package, transactions=OnHost(outlast))
    lock = HostLock(host, "one", "gpu_driver for ada@a")
    with pytest.raises(GpuOpsError, match="it takes long") as told_of:
        apply_alone(run(host, capability, text="new"), lock, 0)
    assert "(process %d, " % os.getpid() in told_of.value.details["left_at_work"]
    (event,) = Journal(host).unfinished("files")
    assert (told(host, "failed"), Journal(host).recall("books")) == ([], {})
    with pytest.raises(GpuOpsError, match="another run"), HostLock(host, "two", "eve").held(0):
        raise AssertionError("the lock was given away")
    monkeypatch.setattr(engine, "TRANSACTION_SECONDS", 0.1)
    with pytest.raises(GpuOpsError) as refused:
        apply_alone(run(host, capability, text="new"), HostLock(host, "one", "ada"), 0)
    assert refused.value.code == "host.transaction_at_work" and Journal(host).unfinished("files") == [event]
    # It ends, and has done its work
    host.write("/etc/three", "came")
    host.remove(at_work)
    outcome, _waited = apply_alone(run(host, capability, text="new"), HostLock(host, "one", "ada"), 0)
    assert outcome.applied == [event["step"]["id"]]
    assert Journal(host).recall("books") == {"came": ["pkg"]} and Journal(host).unfinished("files") == []


def test_what_a_killed_controller_left_open_is_accounted_for_and_done_anew(host: Host) -> None:
    first = packaged(host).apply().awaiting
    assert packaged(host).apply().awaiting == first
    assert [event["event"] for event in events(host)] == ["started", "failed", "started"]
    host.write("/etc/three", "came")
    assert packaged(host).apply().applied == [first.id if first else ""]
    assert Journal(host).recall("books") == {"came": ["pkg"]}


def test_a_refusal_after_the_transaction_does_not_lose_what_came(host: Host) -> None:
    approved = packaged(host).preview().plan
    step = packaged(host, approved=approved).apply().awaiting
    assert step is not None
    host.write("/etc/three", "came")
    with pytest.raises(GpuOpsError, match="host 'elsewhere'"):
        packaged(host, approved=replace(approved, host="elsewhere"), resumed=step.id).apply()
    assert Journal(host).recall("books") == {"came": ["pkg"]}


def test_a_cut_off_journal_line_is_left_out(host: Host) -> None:
    run(host, text="new").apply()
    count = len(Journal(host).events())
    with open(host.path("/var/lib/gpuops/journal.jsonl"), "a") as journal:
        journal.write('{"event": "done", "st')
    assert len(Journal(host).events()) == count


def test_the_record_is_for_root_alone(host: Host) -> None:
    run(host, text="new").apply()
    (content,) = host.list("/var/lib/gpuops/originals")
    for name in ("journal.jsonl", "state.json", "originals/" + content):
        assert host.mode("/var/lib/gpuops/" + name) == 0o600
    for name in ("", "/originals"):
        assert host.mode("/var/lib/gpuops" + name) == 0o700
    assert Journal(host).originals("files")[1].content == b"before"


@pytest.mark.parametrize("again", [True, False])
def test_what_somebody_writes_where_a_killed_run_was_about_to_write_is_his(host: Host, again: bool) -> None:
    """Killed between the record of the file and its change; then he makes a file of that name."""
    step = next(step for step in run(host, text="new").preview().plan.steps if step.subject == "/etc/three")
    journal = Journal(host)
    journal.note("started", step, "p", policy="p")
    journal.keep_original(step.capability, step.subject, step.change["after"])
    host.write("/etc/three", "his\n", 0o640)
    assert {each.path: each.content for each in journal.originals(step.capability)}["/etc/three"] == b"his\n"
    if again:
        run(host, text="new").apply()
        assert host.read("/etc/three") == "new"
        run(host, text="newer").apply()
    away = next(step for step in run(host, state="absent").preview().plan.steps if step.subject == "/etc/three")
    assert away.change["after"] == "his\n"
    run(host, state="absent").apply()
    assert (host.read("/etc/three"), host.mode("/etc/three")) == ("his\n", 0o640)


def test_what_a_killed_run_has_written_is_ours(host: Host) -> None:
    step = next(step for step in run(host, text="new").preview().plan.steps if step.subject == "/etc/three")
    journal = Journal(host)
    journal.note("started", step, "p", policy="p")
    write_file(host, journal, step)
    newer = next(step for step in run(host, text="newer").preview().plan.steps if step.subject == "/etc/three")
    journal.note("started", newer, "p", policy="p")
    write_file(host, journal, newer)
    run(host, state="absent").apply()
    assert host.read("/etc/three") is None
