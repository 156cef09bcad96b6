# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The steps that every capability needs, and their executors: files, services, commands, restored originals.

Package steps are planned here too. ansible.builtin carries them out from the controller (see
plugins/plugin_utils/capability_action.py); where there is none, or no module for it, the step's package manager does
(packages/manager.py, carry_out), so they have no executor here.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .errors import HostFailed
from .host import Host
from .journal import Journal
from .plan import Disruption, Step
from .refusal import Refusal

Executor = Callable[[Host, Journal, Step], None]

PACKAGES_DOWNLOAD = "packages.download"
PACKAGES_INSTALL = "packages.install"
PACKAGES_REMOVE = "packages.remove"
CONTROLLER_ACTIONS = (PACKAGES_INSTALL, PACKAGES_REMOVE)
# Of whatever installs, removes or configures packages, here and from the controller: it asks nobody anything
PACKAGE_ENVIRONMENT = {"NEEDRESTART_SUSPEND": "1", "DEBIAN_FRONTEND": "noninteractive"}
# Host itself brings these to the disk
FILE_ACTIONS = "file."

MANAGED = "Managed by the Ansible collection gpuops.nvidia: changes made here are lost."


def managed(text: str, comment: str = "#") -> str:
    """A file whose whole content is ours, with the line that says so; comment begins a comment in its format."""
    return "%s %s\n%s" % (comment, MANAGED, text)


def file_step(
    capability: str,
    path: str,
    before: Optional[str],
    after: Optional[str],
    why: str,
    disruption: Disruption = Disruption.none,
    mode: int = 0o644,
    requires: Tuple[str, ...] = (),
) -> Step:
    """Write a file whose whole content is ours, or (after=None) remove it."""
    return Step(
        capability=capability,
        action="file.remove" if after is None else "file.write",
        subject=path,
        why=why,
        disruption=disruption,
        change={"before": before, "after": after},
        parameters={} if after is None else {"mode": "%04o" % mode},
        depends_on=requires,
    )


def restore_step(
    capability: str,
    path: str,
    before: Optional[str],
    after: Optional[str],
    disruption: Disruption = Disruption.none,
) -> Step:
    """Put back what lay at a path before our first change of it; after=None where there was nothing."""
    return Step(
        capability=capability,
        action="file.restore",
        subject=path,
        why="It is as it was before our first change of it.",
        disruption=disruption,
        change={"before": before, "after": after},
    )


def restore_steps(
    capability: str, host: Host, journal: Journal, disruption: Disruption = Disruption.none
) -> List[Step]:
    """Steps that put back every file which a capability changed. Reads the host: for observations."""
    steps = []
    for original in journal.originals(capability):
        before = host.read(original.path)
        after = None if original.content is None else original.content.decode("utf-8", "surrogateescape")
        step = restore_step(capability, original.path, before, after, disruption)
        steps.append(replace(step, why="We never changed it; only our record of it goes.") if original.left else step)
    return steps


def service_step(
    capability: str,
    verb: str,
    unit: str,
    why: str,
    disruption: Disruption,
    before: Optional[str] = None,
    after: Optional[str] = None,
    requires: Tuple[str, ...] = (),
) -> Step:
    """systemctl VERB UNIT; verb is start, stop, restart, reload, enable or disable. None of them reloads systemd."""
    return Step(
        capability=capability,
        action="service.%s" % verb,
        subject=unit,
        why=why,
        disruption=disruption,
        change={"before": before, "after": after},
        depends_on=requires,
    )


def command_step(
    capability: str,
    action: str,
    subject: str,
    argv: Sequence[str],
    why: str,
    disruption: Disruption = Disruption.none,
    change: Optional[Mapping[str, Any]] = None,
    reversible: bool = True,
    requires: Tuple[str, ...] = (),
    timeout: float = 600,
) -> Step:
    """A step that is one command; its executor is run_argv, registered by the capability under the action's name."""
    return Step(
        capability=capability,
        action=action,
        subject=subject,
        why=why,
        disruption=disruption,
        change=change or {"before": None, "after": None},
        parameters={"argv": list(argv), "timeout": timeout},
        reversible=reversible,
        depends_on=requires,
    )


def packages_step(
    capability: str,
    subject: str,
    before: Mapping[str, Optional[str]],
    after: Mapping[str, Optional[str]],
    why: str,
    disruption: Disruption = Disruption.none,
    requires: Tuple[str, ...] = (),
    request: Optional[Mapping[str, Optional[str]]] = None,
    **parameters: Any,
) -> Step:
    """Install or (every version in after is None) remove packages in one transaction of the package manager.

    before, after: {package: version or None} of every package that the transaction unpacks, changes or removes,
    dependencies included: it is what is approved.
    request: {package: version or None} that the package manager is asked for, where it is not all of after.
    parameters: 'manager' ('apt', 'dnf', 'zypper'), 'allow_downgrade', 'update_cache', 'purge' and 'hold' as the
    action plugin understands them; 'all_of_ours' where a removal leaves what others need to them.
    """
    # What a host has already is asked for in vain, and takes nothing away
    removal = bool(after) and all(version is None for version in after.values())
    return Step(
        capability=capability,
        action=PACKAGES_REMOVE if removal else PACKAGES_INSTALL,
        subject=subject,
        why=why,
        disruption=disruption,
        change={"before": dict(before), "after": dict(after)},
        parameters={"request": dict(after if request is None else request), **parameters},
        depends_on=requires,
    )


def obstacles(host: Host, steps: Iterable[Step]) -> Tuple[Refusal, ...]:
    """What stands where a step would write a file and cannot be replaced, such as a unit that is masked."""
    found: List[Refusal] = []
    for step in steps:
        if step.action == "file.write":
            try:
                host.check_replaceable(step.subject)
            except HostFailed as error:
                found.extend(error.refusals)
    return tuple(found)


def write_file(host: Host, journal: Journal, step: Step) -> None:
    journal.keep_original(step.capability, step.subject, step.change["after"])
    host.write(step.subject, step.change["after"], int(step.parameters["mode"], 8))


def remove_file(host: Host, journal: Journal, step: Step) -> None:
    journal.keep_original(step.capability, step.subject, None)
    host.remove(step.subject)


def restore_file(host: Host, journal: Journal, step: Step) -> None:
    journal.restore(step.subject)


def control_service(host: Host, journal: Journal, step: Step) -> None:
    """systemctl(1): 'enable' and 'disable' reload the manager, which takes GPUs from running containers whose device
    rules systemd does not know (NVIDIA/nvidia-container-toolkit, issue 48). The next boot reads the links anyway."""
    verb = step.action.split(".", 1)[1]
    host.systemctl(verb, *(["--no-reload"] if verb in ("enable", "disable") else []), step.subject)


def run_argv(host: Host, journal: Journal, step: Step) -> None:
    host.run(step.parameters["argv"], timeout=step.parameters["timeout"], env=PACKAGE_ENVIRONMENT)


def generic_executors() -> Dict[str, Executor]:
    """Executors of the steps above; run_argv is registered by capabilities, under names of their own."""
    executors: Dict[str, Executor] = {
        "file.write": write_file,
        "file.remove": remove_file,
        "file.restore": restore_file,
    }
    for verb in ("start", "stop", "restart", "reload", "enable", "disable"):
        executors["service.%s" % verb] = control_service
    return executors
