# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans tested as text: what a host is and what is wanted of it, a line of dashes, the plan as people read it.

    # The loaded driver makes an exchange disruptive
    host a100
    policy version=580.178.04
    apply
    loaded
    policy version=595.91.07
    ----
    gpu1: 4 steps, disruption driver_reload
    ...

A scenario begins with its title and may have several such parts; what one leaves, the next one finds. The files lie in
tests/unit/<capability>/plans/, those of a host with all of them in tests/unit/host/plans; conftest.py makes each
scenario a test. GPUOPS_REWRITE_PLANS=1 writes the plans that are made now into the files: read the difference before it
is committed.

    host [GPU...] [FACT=VALUE...]      another host
    facts FACT=VALUE...                somebody changes it
    foretold FACT=VALUE...             a capability before this one will have done so
    file PATH [TEXT]                   somebody writes a file, or without a text removes it; a text of more lines
                                       stands below, each line behind a bar
    unit NAME [enabled] [active] [died]     one that is there, unless it is 'missing'
    policy [OPTION=VALUE...]           options of the module; the others have their defaults
    apply                              all that the plan says is done
    killed after NUMBER                so many of its steps are done
    boot
    show PATH                          texts of this file are shown whole
    brief                              reasons and changes of steps are left out
    tell NAME...                       parameters of steps are shown too; 'depends_on': what a step comes after

Further words are those of the capability (say_*() of its World). Of every plan is checked what a capability owes.
"""
from __future__ import annotations

import difflib
import json
import os
import shlex
from collections import deque
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Type

import gpu_hosts
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from world import Unit, World

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import NEVER_READ, Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    AFTERWARDS,
    CONFIRMATION,
    Disruption,
    Plan,
    Step,
    render,
)

REWRITE = "GPUOPS_REWRITE_PLANS"
DASHES = "----"
BAR = "|"
# Words that change nothing of others
OURS = ("policy", "apply", "killed", "show", "brief", "tell")
# Texts of more lines are told by their length alone, unless they are to be shown
SHORT = 3


class Scenario:
    """text: its part of the file, from the title on."""

    def __init__(self, kind: Type[World], text: str) -> None:
        self.kind = kind
        self.text = text
        self.title = text.split("\n", 1)[0].lstrip("# ")
        self.world = kind()
        self.policy: Any = None
        self.absent: Any = None
        self.foretold: Dict[str, Any] = {}
        self.shown: List[str] = []
        self.told: Tuple[str, ...] = ()
        self.is_brief = False
        # what others had before the first plan of ours, as long as nobody else has changed anything since
        self.before: Optional[Dict[str, Any]] = None

    def run(self) -> str:
        """Its text with the plans that are made now."""
        lines: List[str] = []
        rest = deque(self.text.splitlines())
        while rest:
            line = rest.popleft()
            lines.append(line)
            if line == DASHES:
                lines += self._planned()
                while rest:
                    if not rest.popleft():
                        lines.append("")
                        break
            elif line and not line.startswith("#"):
                word, *words = shlex.split(line)
                below = []
                while rest and rest[0].startswith(BAR):
                    below.append(rest.popleft())
                lines += below
                words += ["".join(each[len(BAR) + 1:] + "\n" for each in below)] if below else []
                named: Optional[Callable[..., None]] = getattr(self, "_" + word, None) or getattr(
                    self.world, "say_" + word, None)
                assert named, "%s: no such word: %s" % (self.title, word)
                if word not in OURS:
                    self.before = None
                named(*words)
        return "\n".join(lines) + "\n"

    def _planned(self) -> List[str]:
        self._owed()
        plan = replace(self._plan(), host=self.world.facts.hostname)
        lines = render(replace(plan, steps=tuple(self._shortened(step) for step in plan.steps))).splitlines()
        return [line.rstrip() or "       ." for line in lines if line.strip() or not self.is_brief]

    def _owed(self) -> None:
        where = "%s: " % self.title
        owed(self.world, self.policy, self.foretold, where)
        if self.absent is not None:
            undone(self.world, self.policy, self.absent, where)

    def _plan(self) -> Plan:
        return self.world.plan(self.policy, self.foretold)

    def _shortened(self, step: Step) -> Step:
        parameters = {**step.parameters, "depends_on": list(step.depends_on)} if step.depends_on else step.parameters
        told = ["%s: %s" % (name, json.dumps(parameters[name])) for name in self.told if name in parameters]
        step = replace(step, why="\n     ".join([*([] if self.is_brief else [step.why]), *told]))
        if self.is_brief:
            return replace(step, change={"before": None, "after": None})
        before, after = (step.change.get(side) for side in ("before", "after"))
        if step.subject in self.shown or None not in (before, after):
            return step
        change = {side: "(%d lines)" % text.count("\n") if isinstance(text, str) and text.count("\n") > SHORT else text
                  for side, text in (("before", before), ("after", after))}
        return replace(step, change=change)

    # words

    def _host(self, *words: str) -> None:
        gpus = [getattr(gpu_hosts, word.upper()) for word in words if "=" not in word]
        self.world = self.kind(gpu_hosts.facts(*gpus, **as_facts(words)))
        self.foretold = {}

    def _facts(self, *words: str) -> None:
        self.world.facts = self.world.facts.but(**as_facts(words))

    def _foretold(self, *words: str) -> None:
        self.foretold = as_facts(words)

    def _file(self, path: str, *text: str) -> None:
        if text:
            told = " ".join(text)
            self.world.files[path] = told if "\n" in told else told.replace("\\n", "\n")
        else:
            del self.world.files[path]

    def _unit(self, name: str, *states: str) -> None:
        self.world.units[name] = Unit(known="missing" not in states, **{
            state: True for state in states if state != "missing"})

    def _policy(self, *words: str) -> None:
        given = {**self.kind.options, **{name: json.loads(text) if text.startswith("[{") else text
                                         for name, text in (word.split("=", 1) for word in words)}}
        checked = ArgumentSpecValidator(dict(self.kind.capability.arguments)).validate(given)
        assert not checked.error_messages, checked.error_messages
        options = {name: checked.validated_parameters.get(name) for name in self.kind.capability.arguments}
        self.policy = self.kind.capability.policy_of(options)
        absent = dict.fromkeys((name for name in options if name == "state" or name.endswith(".state")), "absent")
        self.absent = None if any(options[name] == "absent" for name in absent) else \
            self.kind.capability.policy_of({**options, **absent})

    def _apply(self) -> None:
        self._owed()
        if self.foretold:
            self.world.come_true(self.foretold)
            self.foretold = {}
        self._remember()
        self.world.suppose(self.policy)
        self.world.apply(self._plan())
        if self.absent is None and self.before is not None:
            assert self.world.of_others() == self.before, "%s: taken back, it is not as before" % self.title

    def _killed(self, _after: str, number: str) -> None:
        plan = self._plan()
        assert int(number) < len(plan.steps), "%s: the plan has %d steps" % (self.title, len(plan.steps))
        self._remember()
        self.world.suppose(self.policy)
        self.world.apply(replace(plan, steps=plan.steps[:int(number)]))

    def _remember(self) -> None:
        if not self.world.is_touched:
            self.before = self.world.of_others()

    def _boot(self) -> None:
        self.world.boot()

    def _show(self, path: str) -> None:
        self.shown.append(path)

    def _tell(self, *names: str) -> None:
        self.told = names

    def _brief(self) -> None:
        self.is_brief = True


def as_facts(words: Tuple[str, ...]) -> Dict[str, Any]:
    """Facts by their names; 'yes' is true, a list has commas, and another GPU is told as address/device/role."""
    kinds = {each.name: type(each.default) for each in fields(HostFacts)}
    found: Dict[str, Any] = {}
    for name, value in (word.split("=", 1) for word in words if "=" in word):
        listed = tuple(part for part in value.split(",") if part)
        if name == "other_gpus":
            found[name] = tuple(Gpu(*part.split("/")) for part in listed)
        elif kinds[name] is tuple:
            found[name] = listed
        else:
            found[name] = value == "yes" if kinds[name] is bool else kinds[name](value)
    return found


def owed(world: World, policy: Any, foretold: Mapping[str, Any], where: str) -> None:
    """What a capability owes of every plan (core/capability.py, Capability), whatever the host and the policy are."""
    facts = world.facts.but(**foretold)
    plan, told = world.plan(policy, foretold), where + "after the plan, "
    assert plan == world.plan(policy, foretold), where + "another plan of the same host"
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan, where + "JSON loses a part of the plan"
    json.dumps(world.observe(policy, world.facts).to_dict())
    earlier: List[str] = []
    for part in (*plan.steps, *plan.requirements):
        assert part.id not in earlier, where + "two parts are called " + part.id
        before = set(getattr(part, "depends_on", ()))
        assert before <= set(earlier), where + part.id + " comes after what is not before it"
        earlier.append(part.id)
    unanswered = world.plan(policy, {**foretold, "driver_reloads": True})
    if not (unanswered.complete or unanswered.refusals):
        leave = [Disruption.runtime_restart for step in plan.steps
                 if step.id in plan.leaving and step.disruption < Disruption.gpu_reset]
        come = {*leave, *(part.disruption for part in (*plan.steps, *plan.requirements))}
        assert {each for each in come if each > Disruption.service_restart} <= set(unanswered.may_come), (
            where + "more comes of it than may, once its driver answers")
    observation = world.observe(policy, world.facts)
    later = world.capability.facts_after(observation, policy, facts, plan)
    if plan.refusals:
        assert not plan.steps and later == facts, where + "a refusal changes something"
        assert all(refusal.found and refusal.wanted and refusal.remedy for refusal in plan.refusals), where
        return
    if any(requirement.kind not in AFTERWARDS for requirement in plan.requirements):
        assert not plan.steps and later == facts, where + "steps that lead nowhere"
        return
    begun = world.copy()
    if foretold:
        begun.come_true(foretold)
        assert not differences(begun.plan(policy), plan), where + "another plan once what was foretold is there"
    begun.suppose(policy)
    needed, done = begun.plan(policy), carried_out(begun, policy)
    again = done.plan(policy)
    assert not again.steps, told + "there is still " + ", ".join(step.id for step in again.steps)
    lacks = done.shortcoming(policy)
    assert not lacks, told + lacks
    before, after = read(done.facts), read(booted(done, plan).facts)
    assert read(later) in (before, after), told + "the facts are not those that were told: " + ", ".join(
        "%s %r" % item for item in set(read(later).items()) ^ set(after.items()))
    assert not booted(done, plan).plan(policy).steps, told + "a boot leaves something to do"
    for number in range(1, len(needed.steps)):
        killed = begun.copy()
        killed.apply(replace(needed, steps=needed.steps[:number]))
        left = differences(killed.plan(policy), plan)
        assert not left, "%skilled after %d steps, what is left was not approved: %s" % (where, number, left[0].found)
        killed = carried_out(killed, policy)
        lacks = killed.shortcoming(policy)
        assert not lacks, "%skilled after %d steps, in the end %s" % (where, number, lacks)
        assert killed == done, "%skilled after %d steps, it ends elsewhere: %s" % (where, number, "; ".join(
            "%s is %r, not %r" % (name, value, vars(done)[name]) for name, value in vars(killed).items()
            if value != vars(done)[name]))


def undone(world: World, policy: Any, absent: Any, where: str) -> None:
    """What a host had before our first plan for it is there again once ours is taken back."""
    if world.is_touched or world.plan(policy).refusals:
        return
    begun = world.copy()
    begun.suppose(policy)
    after = booted(carried_out(begun, policy), begun.plan(policy))
    after.suppose(absent)
    taken_back, before = carried_out(after, absent).of_others(), begun.of_others()
    assert taken_back == before, "%staken back, there is left %s" % (where, ["%s: %r, not %r" % (
        name, value, before[name]) for name, value in taken_back.items() if value != before[name]])


def carried_out(world: World, policy: Any) -> World:
    done: World = world.copy()
    done.apply(done.plan(policy))
    return done


def booted(world: World, plan: Plan) -> World:
    """The host after the reboot that its plan ends with, if it does, and with what is confirmed at its console."""
    kinds = [requirement.kind for requirement in plan.requirements]
    if not kinds:
        return world
    other: World = world.copy()
    if CONFIRMATION in kinds:
        other.confirm()
    other.boot()
    return other


def read(facts: HostFacts) -> Dict[str, Any]:
    """Facts as a host can be read for them."""
    return {name: tuple(sorted(value)) if name == "control_nodes" else str(value)
            for name, value in facts.to_dict().items() if name not in NEVER_READ}


# the files


def scenarios(kind: Type[World], path: Path) -> Iterator[Scenario]:
    """The scenarios of a file, which begins with one."""
    texts: List[List[str]] = []
    blank = True
    for line in path.read_text().splitlines():
        if line.startswith("# ") and blank:
            texts.append([])
        texts[-1].append(line)
        blank = not line
    for lines in texts:
        yield Scenario(kind, "\n".join(lines) + "\n")


def check(scenario: Scenario, path: Path) -> str:
    """'' when the plans are those of the file, else how they differ."""
    now = scenario.run()
    if now == scenario.text:
        return ""
    if os.environ.get(REWRITE):
        path.write_text(path.read_text().replace(scenario.text, now))
        return ""
    return "\n".join(difflib.unified_diff(
        scenario.text.splitlines(), now.splitlines(), "%s, as it stands there" % path.name, "as it is planned now",
        lineterm=""))
