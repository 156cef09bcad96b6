# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Arguments that kernels are started with, through the distribution's own tool.

What counts is what GRUB reads: a file of /etc/default/grub.d has no effect before update-grub ran, and none of that on
the running kernel before a boot. What ours have put there is remembered (NOTE of the driver's memory), so that it goes
again, and what others have put there stays. It is noted before the file is there: an update-grub of somebody else may
read that before ours does.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import REBOOT, Disruption, Requirement, Step
from ..core.refusal import Refusal
from ..core.steps import Executor, command_step, file_step, managed, restore_step, run_argv
from ..hardware.boot import GRUB_DIRECTORIES, BootState, started_with
from .policy import Policy
from .tables.boot_tools import GRUB_FILE, UPDATE_GRUB

NAME = "driver"
CONFIGURE, NOTED = "boot.configure", "boot.note"
NOTE = "kernel_arguments"
_ADDS = re.compile(r'^GRUB_CMDLINE_LINUX="\$GRUB_CMDLINE_LINUX (.*)"$', re.MULTILINE)


@dataclass(frozen=True)
class BootArguments:
    """What the boot loader starts kernels with; nothing is read where no policy names any, and none ever did.

    configuration: the file that GRUB reads, '' where there is none.
    configured:    {kernel: arguments that every entry of it has}.
    noted:         what an earlier run has put there.
    tool:          whether update-grub is there.
    """

    configuration: str = ""
    configured: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    noted: Tuple[str, ...] = ()
    tool: bool = False


def read_arguments(host: Host, journal: Journal, policy: Policy) -> BootArguments:
    noted = tuple(journal.recall("driver").get(NOTE, ()))
    is_ours = any(original.path == GRUB_FILE for original in journal.originals("driver"))
    if not (policy.kernel_arguments or noted or is_ours):
        return BootArguments()
    for path in (directory + "/grub.cfg" for directory in GRUB_DIRECTORIES):
        text = host.read(path)
        if text is not None:
            return BootArguments(path, started_with(text), noted, host.which(UPDATE_GRUB[0]) is not None)
    return BootArguments(noted=noted, tool=host.which(UPDATE_GRUB[0]) is not None)


# The rest is pure


def text_of(arguments: Sequence[str]) -> str:
    return managed('GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX %s"\n' % " ".join(arguments))


def arguments_of(text: Optional[str]) -> Tuple[str, ...]:
    """Those that a file of ours adds."""
    return tuple(each for added in _ADDS.findall(text or "") for each in added.split())


def refusals(arguments: BootArguments, policy: Policy, boot: BootState) -> List[Refusal]:
    if not policy.kernel_arguments or (boot.loader == "grub" and arguments.configuration and arguments.tool):
        return []
    return [Refusal(
        "driver.kernel_arguments_without_grub",
        "%s, and %s" % ("boot loader %s" % boot.loader if boot.loader else "no boot loader that can be read",
                        "update-grub" if arguments.tool else "no update-grub"),
        "GRUB with update-grub, which is told of `kernel_arguments` below /etc/default/grub.d",
        "leave `kernel_arguments` empty and set them where this boot loader has them (systemd-boot: "
        "/etc/kernel/cmdline)", option="kernel_arguments")]


def steps(
    arguments: BootArguments, policy: Policy, kernels: Sequence[str], files: Mapping[str, Optional[str]],
    originals: Mapping[str, Optional[str]], requires: Tuple[str, ...] = ()
) -> List[Step]:
    """kernels: those that can be booted."""
    wanted, before = policy.kernel_arguments, files.get(GRUB_FILE)
    if not wanted:
        return removal(arguments, files, originals)
    lacking = [each for each in wanted if not _has_all(arguments, kernels, (each,))]
    found: List[Step] = []
    if before != text_of(wanted) and (lacking or GRUB_FILE in originals):
        found += _note(arguments, wanted, requires)
        found.append(file_step(NAME, GRUB_FILE, before, text_of(wanted), "The boot loader starts kernels with these.",
                               requires=(*requires, *(step.id for step in found))))
    stale = [each for each in arguments.noted if each not in wanted]
    if found or lacking or stale:
        found.append(_configure(arguments, {
            **dict.fromkeys(stale), **dict.fromkeys(wanted, "set")}, tuple(step.id for step in found)))
    return found


def removal(
    arguments: BootArguments, files: Mapping[str, Optional[str]], originals: Mapping[str, Optional[str]]
) -> List[Step]:
    can_go = arguments.tool and bool(arguments.configuration)
    there = arguments_of(files.get(GRUB_FILE)) if GRUB_FILE in originals else ()
    found = _note(arguments, there, ()) if can_go else []
    if GRUB_FILE in originals:
        found.append(restore_step(NAME, GRUB_FILE, files.get(GRUB_FILE), originals[GRUB_FILE]))
    if can_go and (found or arguments.noted):
        found.append(_configure(arguments, dict.fromkeys(sorted({*arguments.noted, *there})),
                                tuple(step.id for step in found)))
    return found


def _note(arguments: BootArguments, names: Sequence[str], requires: Tuple[str, ...]) -> List[Step]:
    """Have these remembered, as far as they are not."""
    lacking = [each for each in names if each not in arguments.noted]
    return [Step(NAME, NOTED, "kernel arguments", "They are known for ours, and go again, whoever tells GRUB of them.",
                 change={"before": dict.fromkeys(lacking), "after": dict.fromkeys(lacking, "set")},
                 depends_on=requires)] if lacking else []


def _configure(
    arguments: BootArguments, after: Mapping[str, Optional[str]], requires: Tuple[str, ...]
) -> Step:
    return command_step(
        NAME, CONFIGURE, arguments.configuration, list(UPDATE_GRUB), "GRUB reads what this writes.",
        change={"before": {name: None if value else "set" for name, value in after.items()}, "after": dict(after)},
        requires=requires, timeout=300)


def _has_all(arguments: BootArguments, kernels: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether all kernels that GRUB would start have these."""
    return bool(arguments.configured) and all(
        set(wanted) <= set(arguments.configured[release]) for release in kernels if release in arguments.configured)


def requirements(policy: Policy, boot: BootState, facts: HostFacts) -> Tuple[Requirement, ...]:
    """The boot that gives them to a kernel; an image is booted elsewhere."""
    running = boot.command_line.split()
    lacking = [each for each in policy.kernel_arguments if each not in running]
    if not lacking or facts.awaits_gpu or not facts.boots_by_systemd:
        return ()
    return (Requirement(
        NAME, REBOOT, "kernel arguments", "The running kernel was started without %s." % " ".join(lacking),
        Disruption.reboot, {"before": dict.fromkeys(lacking), "after": dict.fromkeys(lacking, "set")}),)


def notes(arguments: BootArguments, policy: Policy, boot: BootState) -> List[str]:
    running = boot.command_line.split()
    kept = [each for each in arguments.noted if each not in policy.kernel_arguments and each in running]
    return ["The running kernel keeps %s until the next boot." % " ".join(kept)] if kept else []


# The steps that are no other's


def note(host: Host, journal: Journal, step: Step) -> None:
    wanted = [name for name, value in step.change["after"].items() if value]
    _remember(journal, sorted({*wanted, *journal.recall("driver").get(NOTE, ())}))


def configure(host: Host, journal: Journal, step: Step) -> None:
    """What is on its way into GRUB's file is remembered first, and what has gone once it has."""
    wanted = [name for name, value in step.change["after"].items() if value]
    note(host, journal, step)
    run_argv(host, journal, step)
    _remember(journal, wanted)


def _remember(journal: Journal, noted: Sequence[str]) -> None:
    memory = {name: value for name, value in journal.recall("driver").items() if name != NOTE}
    journal.remember("driver", {**memory, **({NOTE: list(noted)} if noted else {})})


EXECUTORS: Dict[str, Executor] = {NOTED: note, CONFIGURE: configure}
