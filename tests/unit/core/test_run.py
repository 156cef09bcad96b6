# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way from a wish to a verified change, on a small capability over real files."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Refusal, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step, restore_steps

FILES = ("/etc/one", "/etc/deep/er/two", "/etc/three")


@dataclass(frozen=True)
class Seen:
    texts: Dict[str, Any]
    restorable: Tuple[Step, ...]

    def to_dict(self) -> Dict[str, Any]:
        return {"texts": self.texts, "restorable": [step.to_dict() for step in self.restorable]}


class Files(Capability[Mapping[str, Any], Seen]):
    """Wants one text in three files; 'two' disturbs the runtime."""

    name = "files"
    arguments = {"text": {"type": "str"}, "state": {"type": "str"}}

    def policy(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return parameters

    def observe(self, host: Host, journal: Journal, policy: Mapping[str, Any]) -> Seen:
        return Seen({path: host.read(path) for path in FILES}, tuple(restore_steps(self.name, host, journal)))

    def plan(self, observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        if policy.get("state") == "absent":
            return Plan(steps=observation.restorable)
        if policy["text"] == "impossible":
            return Plan(refusals=(Refusal(self.name, "a wish", "another", "wish again"),))
        return Plan(steps=tuple(
            file_step(self.name, path, before, policy["text"], "It is wanted.",
                      Disruption.runtime_restart if path.endswith("two") else Disruption.none)
            for path, before in sorted(observation.texts.items()) if before != policy["text"]
        ))


class Stubborn(Files):
    """Its steps have no effect."""

    def executors(self) -> Dict[str, Any]:
        return {"file.write": lambda host, journal, step: None}


class Killed(Exception):
    pass


def mortal(survivors: int) -> Files:
    """A capability whose process is killed before the step after so many."""

    class Mortal(Files):
        def executors(self) -> Dict[str, Any]:
            lives = iter(range(survivors))

            def write(host: Host, journal: Journal, step: Step) -> None:
                if next(lives, None) is None:
                    raise Killed
                journal.keep_original(step.capability, step.subject)
                host.write(step.subject, step.change["after"])

            return {"file.write": write}

    return Mortal()


def run(host: Host, capability: Any = None, allowed: Disruption = Disruption.reboot, **options: Any) -> Run:
    more = {name: options.pop(name) for name in ("approved", "resumed") if name in options}
    return Run(capability or Files(), options, host, lambda _: HostFacts(hostname="h"), allowed, **more)


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
    assert all(host.read(path) == "new" for path in FILES)
    assert run(host, text="new").apply().plan.steps == ()


def test_the_journal_holds_exactly_the_plan(host: Host) -> None:
    foretold = run(host, text="new").preview()
    run(host, text="new").apply()
    done = [Step.from_dict(event["step"]) for event in Journal(host).events() if event["event"] == "done"]
    assert tuple(done) == foretold.plan.steps


def test_absent_gives_back_bytes_modes_and_folders(host: Host) -> None:
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


def test_what_disturbs_too_much_is_put_off(host: Host) -> None:
    outcome = run(host, text="new", allowed=Disruption.service_restart).apply()
    assert [step.subject for step in outcome.put_off] == ["/etc/deep/er/two"]
    assert host.read("/etc/deep/er/two") is None


def test_a_step_without_effect_is_an_error(host: Host) -> None:
    with pytest.raises(GpuOpsError, match="still needed"):
        run(host, Stubborn(), text="new").apply()


@pytest.mark.parametrize("survivors", range(4))
def test_killed_between_two_steps_and_run_again(host: Host, survivors: int) -> None:
    before = everything(host)
    try:
        run(host, mortal(survivors), text="new").apply()
    except Killed:
        assert survivors < 3
    run(host, text="new").apply()
    assert all(host.read(path) == "new" for path in FILES)
    assert Journal(host).unfinished("files") == []
    run(host, state="absent").apply()
    assert everything(host) == before


def test_an_approved_plan_is_done_or_the_difference_is_named(host: Host) -> None:
    approved = run(host, text="new").preview().plan.steps
    host.write("/etc/three", "someone else was here")
    with pytest.raises(GpuOpsError, match="/etc/three"):
        run(host, text="new", approved=approved).apply()
    assert host.read("/etc/one") == "before"


def test_an_approved_step_with_its_effect_there_is_satisfied(host: Host) -> None:
    approved = run(host, text="new").preview().plan.steps
    host.write("/etc/three", "new")
    run(host, text="new", approved=approved).apply()
    events = [(event["event"], event["step"]["subject"]) for event in Journal(host).events()]
    assert ("satisfied", "/etc/three") in events
    assert ("done", "/etc/three") not in events


def test_an_open_step_that_another_policy_made_needless_was_not_done(host: Host) -> None:
    with pytest.raises(Killed):
        run(host, mortal(0), text="new").apply()
    first = Journal(host).unfinished("files")[0]["step"]["id"]
    run(host, state="absent").apply()
    assert [event["event"] for event in Journal(host).events() if event["step"]["id"] == first] == [
        "started", "superseded"
    ]


def test_a_failure_tells_what_was_changed_before_it(host: Host) -> None:
    class Failing(Files):
        def executors(self) -> Dict[str, Any]:
            def write(host: Host, journal: Journal, step: Step) -> None:
                if step.subject == "/etc/three":
                    raise GpuOpsError("a full disk", "room", "make room")
                host.write(step.subject, step.change["after"])

            return {"file.write": write}

    with pytest.raises(GpuOpsError) as failure:
        run(host, Failing(), text="new").apply()
    assert failure.value.result()["changed"] is True
    assert len(failure.value.result()["applied"]) == 2


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
