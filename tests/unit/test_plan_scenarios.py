# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A plan that is not as the text has it, or that does not keep what every capability owes, is found."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple, Type

import pytest
import world
from plan_scenarios import REWRITE, check, scenarios

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step, restore_step, service_step

FIRST, SECOND, DAEMON = "/etc/first", "/etc/second", "daemon.service"
TEXT = """\
# Two files
host
policy
----
gpu1: 2 steps, disruption none
  1. [none] file.write /etc/first
     It is wanted.
       +ours
  2. [none] file.write /etc/second
     It is wanted.
       +ours

apply
----
gpu1: nothing to do
"""


@dataclass(frozen=True)
class Seen:
    files: Dict[str, Optional[str]]
    originals: Dict[str, Optional[str]]
    runs: bool

    def to_dict(self) -> Dict[str, Any]:
        return dict(vars(self))


def plan(seen: Seen, policy: str, facts: HostFacts) -> Plan:
    if policy == "absent":
        return Plan(steps=tuple(restore_step("two", path, seen.files[path], text)
                                for path, text in seen.originals.items()))
    steps: Tuple[Step, ...] = ()
    for path, text in seen.files.items():
        if text != "ours\n":
            steps += (file_step("two", path, text, "ours\n", "It is wanted.",
                                requires=tuple(step.id for step in steps)),)
    return Plan(steps=steps)


def kind(changed: Callable[[Plan, Seen, str], Plan], **more: Any) -> Type[world.World]:
    """A host whose capability plans as plan() does, but for this."""
    @dataclass
    class World(world.World):
        capability = Capability(
            "two", {"state": {"type": "str", "default": "present"}}, lambda options: str(options["state"]),
            lambda *_words: None, lambda seen, policy, facts: changed(plan(seen, policy, facts), seen, policy),
            **more)

        def observe(self, policy: Any, there: HostFacts) -> Seen:
            return Seen(self.state((FIRST, SECOND)), dict(self.originals), self.unit(DAEMON).active)

    return World


def unchanged(made: Plan, seen: Seen, policy: str) -> Plan:
    return made


def first(made: Plan, **changes: Any) -> Plan:
    """The plan with another first step."""
    return replace(made, steps=tuple(replace(step, **changes) if step.subject == FIRST else step
                                     for step in made.steps))


def two_of_one_name(made: Plan, seen: Seen, policy: str) -> Plan:
    return first(made, subject=SECOND)


def order_without_its_beginning(made: Plan, seen: Seen, policy: str) -> Plan:
    return first(made, depends_on=("two/file.write/%s" % SECOND,))


def another_thing_there(made: Plan, seen: Seen, policy: str) -> Plan:
    return first(made, change={"before": "theirs\n", "after": "ours\n"})


def restless(made: Plan, seen: Seen, policy: str) -> Plan:
    if policy == "absent" or made.steps:
        return made
    return Plan(steps=(file_step("two", FIRST, seen.files[FIRST], "ours\n", "It is wanted."),))


def two_on_a_killed_host(made: Plan, seen: Seen, policy: str) -> Plan:
    """After a cut, what is left is planned in another way."""
    if policy == "absent" or len(made.steps) != 1:
        return made
    return replace(made, steps=(replace(made.steps[0], parameters={"mode": "0600"}),))


def content_with_half(made: Plan, seen: Seen, policy: str) -> Plan:
    return made if policy == "absent" or seen.files[FIRST] is None else Plan()


def refuses_and_plans(made: Plan, seen: Seen, policy: str) -> Plan:
    return replace(made, refusals=(Refusal("two.other", "found", "wanted", "remedy"),))


def keeps_what_a_killed_run_left(made: Plan, seen: Seen, policy: str) -> Plan:
    return Plan() if policy == "absent" and len(seen.originals) == 1 else made


def takes_nothing_back(made: Plan, seen: Seen, policy: str) -> Plan:
    return Plan() if policy == "absent" else made


def stops_a_service_and_says_nothing(made: Plan, seen: Seen, policy: str) -> Plan:
    step = service_step("two", "stop", DAEMON, "It is in the way.", Disruption.none)
    return replace(made, steps=(step, *made.steps)) if seen.runs else made


def run(kind_of_host: Type[world.World], tmp_path: Path, text: str = TEXT) -> str:
    path = tmp_path / "two.txt"
    path.write_text(text)
    return "\n".join(check(scenario, path) for scenario in scenarios(kind_of_host, path))


def test_a_plan_as_it_stands_there(tmp_path: Path) -> None:
    assert run(kind(unchanged), tmp_path) == ""


def test_another_plan_is_told_as_a_difference_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run(kind(unchanged), tmp_path, TEXT.replace("+ours", "+theirs", 1))
    assert "-       +theirs" in told and "+       +ours" in told
    two = TEXT.replace("+ours", "+theirs") + "\n" + TEXT.replace("Two files", "Again").split("gpu1", 1)[0]
    monkeypatch.setenv(REWRITE, "1")
    assert run(kind(unchanged), tmp_path, two) == "\n"
    first, second = (tmp_path / "two.txt").read_text().split("\n# Again")
    assert first == TEXT and second == "\n" + TEXT.split("\n", 1)[1].split("\napply")[0]


@pytest.mark.parametrize("changed, said", [
    (two_of_one_name, "two parts are called two/file.write//etc/second"),
    (order_without_its_beginning, "comes after what is not before it"),
    (another_thing_there, "says that another thing is there"),
    (restless, "after the plan, there is still two/file.write"),
    (two_on_a_killed_host, "killed after 1 steps, what is left was not approved"),
    (content_with_half, "killed after 1 steps, it ends elsewhere"),
    (refuses_and_plans, "a refusal changes something"),
    (takes_nothing_back, "taken back, there is left"),
    (stops_a_service_and_says_nothing, "disturbs more"),
])
def test_what_a_capability_does_not_keep_is_found(changed: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        run(kind(changed), tmp_path, TEXT.replace("host\n", "host\nunit daemon.service active\n", 1))
    assert said in str(caught.value)


@pytest.mark.parametrize("good, said", [
    (0, "after the plan, it is not in effect"), (1, "killed after 1 steps, in the end it is not in effect"),
])
def test_a_plan_that_does_not_lead_to_what_is_wanted_is_found(good: int, said: str, tmp_path: Path) -> None:
    answers = iter([""] * good + ["it is not in effect"])
    host = kind(unchanged)
    host.shortcoming = lambda _world, _policy: next(answers)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=said):
        run(host, tmp_path)


def test_what_several_runs_have_left_is_found(tmp_path: Path) -> None:
    text = TEXT.replace("apply\n", "killed after 1\npolicy state=absent\napply\n")
    assert run(kind(unchanged), tmp_path, text) == ""
    with pytest.raises(AssertionError, match="taken back, it is not as before"):
        run(kind(keeps_what_a_killed_run_left), tmp_path, text)


def test_a_text_of_more_lines_stands_behind_bars(tmp_path: Path) -> None:
    text = TEXT.replace("host\n", "host\nfile /etc/first\n| # theirs\n|\n|  {\\n}\n", 1).replace(
        "       +ours", "       -# theirs\n       -\n       - {\\n}\n       +ours", 1)
    assert run(kind(unchanged), tmp_path, text) == ""


def test_facts_that_are_told_and_do_not_come_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the facts are not those that were told: toolkit"):
        run(kind(unchanged, facts_after=lambda seen, policy, there, made: there.but(toolkit="1")), tmp_path)


def test_a_word_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no such word: hots"):
        run(kind(unchanged), tmp_path, TEXT.replace("host", "hots", 1))
