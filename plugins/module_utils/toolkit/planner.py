# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps from the toolkit that is there to the one that is wanted."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from ..core.facts import HostFacts
from ..core.plan import Disruption, Kept, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, packages_step
from ..hardware.driver_container import is_in_container
from ..packages import torn
from ..packages.apt import credentials
from ..packages.apt.versions import compare
from ..packages.refusals import held_packages, no_bindings, no_space, removes_others, unsolvable
from . import catalogue
from .configuration import ROOT, RUNTIMES, STOCK_RUNTIMES, Key, of_containers, with_settings
from .observation import Observation, matches, sources_text, version_of
from .policy import Policy, vulnerabilities

NAME = "toolkit"
KEEP = "settings.keep"
PUT_BACK = "settings.put_back"


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if not policy.present:
        refusals = tuple(_removal_refusals(observation))
        return Plan(refusals=refusals) if refusals else Plan(steps=tuple(_removal(observation, facts)))
    refusals = tuple(_refusals(observation, policy, facts))
    if refusals:
        return Plan(refusals=refusals)
    steps: List[Step] = []
    kept: List[Kept] = []
    notes: List[str] = []
    if policy.source == "repository":
        steps.extend(_repository_steps(observation, policy))
        if observation.configured_in:
            kept.append(Kept(observation.configured_in, "it names %s already" % observation.url))
        notes.extend("A source of this host that is not ours cannot be read, and was left out: %s" % each
                     for each in observation.unread)
    notes.extend(_notes(observation, policy))
    wanted = wanted_configuration(observation, policy, facts)
    # The package's post-install script completes this file and keeps the values it finds, so it is written first:
    # the toolkit never runs with settings that are not wanted.
    if observation.kept is None:
        steps.extend(_configuration_steps(observation, wanted, _of_containers(observation, policy, facts)))
    if policy.source == "repository":
        steps.extend(_package_steps(observation, policy, wanted, tuple(step.id for step in steps)))
    if observation.kept is not None or observation.superseded or any(step.action == KEEP for step in steps):
        steps.append(_put_back(wanted or "", tuple(step.id for step in steps)))
    if observation.superseded:
        kept.append(Kept(catalogue.CONFIGURATION, "what was edited there after a run that did not end is carried over"))
    return Plan(steps=tuple(steps), kept=tuple(kept), notes=tuple(notes))


def version_after(observation: Observation, policy: Policy) -> Optional[str]:
    """Package version that will be installed, None when the repository has no common one."""
    return version_of(observation.installed, observation.offered, policy.version)


def is_installed(observation: Observation, policy: Policy) -> bool:
    """Whether the programs on the host are those that the policy wants."""
    return policy.source == "preinstalled" or \
        all(matches(version, policy.version) for version in observation.installed.values())


def _notes(observation: Observation, policy: Policy) -> List[str]:
    notes = []
    if observation.unknown:
        notes.append("%s sets %s, which the container toolkit %s does not know and ignores." % (
            catalogue.CONFIGURATION, ", ".join(observation.unknown), catalogue.DEFAULT_VERSION))
    if not _runtimes(observation, policy) and not observation.executable:
        notes.append("%s: none of the runtimes %s is on this host, so NVIDIA's runtime starts no container." % (
            catalogue.CONFIGURATION, ", ".join(observation.settings[RUNTIMES])))
    return notes


def _refusals(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    refusals = _package_refusals(observation, policy, facts)
    if policy.low_level_runtimes and not observation.executable:
        refusals.append(Refusal(
            "toolkit.no_low_level_runtime",
            "`low_level_runtimes`: none of %s is a program on this host" % ", ".join(policy.low_level_runtimes),
            "the runtime that starts the containers",
            "correct the paths, or leave the option out: those that the container runtime uses are taken then",
            option="low_level_runtimes"))
    root = policy.settings.get(ROOT, "")
    if facts.driver_userspace and is_in_container(root):
        refusals.append(Refusal(
            "toolkit.root_of_a_container", "`settings`: %s = '%s', and driver %s on the host" % (
                ".".join(ROOT), root, facts.driver_userspace),
            "containers with the driver that the kernel has loaded", "take it out of `settings`", option="settings"))
    return refusals


def _package_refusals(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    if policy.source == "preinstalled":
        return _preinstalled_refusals(policy, facts)
    if all(matches(version, policy.version) for version in observation.installed.values()):
        return []
    if facts.immutable:
        return [Refusal("toolkit.system_is_an_image", facts.image_found, "container toolkit %s" % policy.version,
                        "build the toolkit into the image by the way its driver comes there, and set `source` to "
                        "`preinstalled`", option="source")]
    if not observation.apt:
        return [Refusal("toolkit.no_apt", "no apt on this host (%s %s)" % (facts.os_id, facts.os_version),
                        "Debian, Ubuntu or another system with apt",
                        "install the toolkit by other means and set `source` to `preinstalled`", option="source")]
    version = version_after(observation, policy)
    if version is None:
        return [_not_offered(observation, policy)]
    newer = {name: have for name, have in observation.installed.items()
             if have is not None and compare(have, version) > 0}
    if newer and not policy.allow_downgrade:
        return [Refusal("toolkit.downgrade", ", ".join("%s %s" % item for item in sorted(newer.items())),
                        "%s, which is older" % version,
                        "set `version` to the installed one or a newer one, or set `allow_downgrade`",
                        option="allow_downgrade")]
    return _transaction_refusals(observation, version)


def _transaction_refusals(observation: Observation, version: str) -> List[Refusal]:
    planned = observation.transaction
    if planned is None:
        return []
    names = planned.held or (tuple(sorted(name for name, have in observation.held.items() if have != version))
                             if planned.problem else ())
    if names:
        return [_held(names, observation, "container toolkit %s in their place" % version)]
    if planned.problem:
        return [unsolvable(planned, observation.unread, "container toolkit %s" % version)]
    lost = [name for name in planned.removes if name not in catalogue.PACKAGES]
    if lost:
        return [removes_others(lost)]
    return _tool_refusals(observation) + no_space(observation.space, planned, {})


def _tool_refusals(observation: Observation) -> List[Refusal]:
    return [] if observation.bindings else [no_bindings()]


def _held(names: Tuple[str, ...], observation: Observation, wanted: str) -> Refusal:
    return held_packages({name: observation.held.get(name, "") for name in names}, wanted)


def _preinstalled_refusals(policy: Policy, facts: HostFacts) -> List[Refusal]:
    if not facts.toolkit:
        return [Refusal("toolkit.not_preinstalled", "no `nvidia-ctk` on this host",
                        "a container toolkit that the system image brings",
                        "install it into the image, or set `source` to `repository`", option="source")]
    known = vulnerabilities(facts.toolkit)
    if known and not policy.allow_vulnerable:
        return [Refusal("toolkit.preinstalled_is_vulnerable", "container toolkit %s, which lets a container out (%s)"
                        % (facts.toolkit, ", ".join(known)),
                        "%s or newer" % catalogue.SAFE_VERSION,
                        "renew the image, or set `allow_vulnerable` to accept the risk",
                        option="allow_vulnerable")]
    return []


def _not_offered(observation: Observation, policy: Policy) -> Refusal:
    offered = observation.offered or {}
    lists = {name: ", ".join(versions[:10]) or "none" for name, versions in offered.items()}
    found = (
        next(iter(lists.values())) if len(set(lists.values())) == 1
        else "; ".join("%s: %s" % item for item in sorted(lists.items()))
    )
    return Refusal("toolkit.version_not_offered", "%s offers these versions: %s" % (observation.url, found),
                   "version %s of %s" % (policy.version, ", ".join(catalogue.PACKAGES)),
                   "set `version` to one of these, or name a repository that has it", option="version")


def _repository_steps(observation: Observation, policy: Policy) -> List[Step]:
    wanted_credentials = None if observation.configured_in else policy.credentials
    steps = credentials.steps(NAME, catalogue.AUTH, observation.url, wanted_credentials, observation.auth)
    if not observation.configured_in:
        if observation.wanted_key and observation.key != observation.wanted_key:
            steps.append(file_step(NAME, catalogue.KEYRING, observation.key, observation.wanted_key,
                                   "apt accepts the toolkit's repository by this key alone."))
        wanted = sources_text(observation.url, policy.repository_key)
        if observation.sources != wanted:
            steps.append(file_step(NAME, catalogue.SOURCES, observation.sources, wanted,
                                   "The toolkit's packages come from this repository.",
                                   requires=tuple(step.id for step in steps)))
    pin = pin_text(version_after(observation, policy) or "")
    if observation.pin != pin:
        steps.append(file_step(NAME, catalogue.PIN, observation.pin, pin,
                               "An upgrade of the system leaves the toolkit at this version."))
    return steps


def pin_text(version: str) -> str:
    """apt_preferences(5): prefer this version of the whole set."""
    return "# Managed by gpuops.nvidia.\nPackage: %s\nPin: version %s\nPin-Priority: 990\n" % (
        " ".join(catalogue.PACKAGES), version
    )


def _of_containers(observation: Observation, policy: Policy, facts: HostFacts) -> Tuple[Key, ...]:
    """What leads to files of the GPU Operator's containers and nobody asks for."""
    return tuple(key for key in of_containers(observation.settings, bool(facts.driver_userspace))
                 if key not in policy.settings)


def _changed_settings(observation: Observation, policy: Policy, facts: HostFacts) -> Dict[Key, Any]:
    wanted: Dict[Key, Any] = {**dict.fromkeys(_of_containers(observation, policy, facts)), **policy.settings}
    runtimes = _runtimes(observation, policy)
    if runtimes:
        wanted[RUNTIMES] = runtimes
    return {key: value for key, value in wanted.items() if observation.settings.get(key) != value}


def wanted_configuration(observation: Observation, policy: Policy, facts: HostFacts) -> Optional[str]:
    """config.toml as it has to be, None when it may stay absent."""
    text = observation.configuration if observation.kept is None else observation.kept
    changed = _changed_settings(observation, policy, facts)
    return with_settings(catalogue.CONFIGURATION, text, changed) if changed else text


def _configuration_steps(observation: Observation, wanted: Optional[str], dropped: Tuple[Key, ...]) -> List[Step]:
    if wanted == observation.configuration:
        return []
    without = ", and the host's own files: %s led to those of the GPU Operator's containers" % ", ".join(
        map(".".join, dropped)) if dropped else ""
    return [file_step(NAME, catalogue.CONFIGURATION, observation.configuration, wanted,
                      "NVIDIA's container runtime is to use these values%s." % without)]


def _keeps(observation: Observation) -> bool:
    """Whether the post-install script could cost somebody a comment: in a file that we made for it there is none."""
    unfinished = any(version is None for version in observation.installed.values())
    return observation.kept is None and observation.configuration is not None and not (
        observation.created and observation.as_made and unfinished)


def _keep(wanted: str, requires: Tuple[str, ...]) -> Step:
    return Step(
        capability=NAME,
        action=KEEP,
        subject=catalogue.CONFIGURATION,
        why="The packages' post-install script writes this file anew, without its comments.",
        change={"before": wanted, "after": wanted},
        depends_on=requires,
    )


def _put_back(wanted: str, requires: Tuple[str, ...]) -> Step:
    return Step(
        capability=NAME,
        action=PUT_BACK,
        subject=catalogue.CONFIGURATION,
        why="The file gets its comments back.",
        change={"before": wanted, "after": wanted},
        depends_on=requires,
    )


def _runtimes(observation: Observation, policy: Policy) -> List[str]:
    """Low-level runtimes to write: those asked for; else those in use, over a stock list or one that we wrote."""
    if policy.low_level_runtimes:
        return list(policy.low_level_runtimes)
    if observation.settings[RUNTIMES] in STOCK_RUNTIMES or observation.runtimes_ours:
        return list(observation.runtimes)
    return []


def _package_steps(
    observation: Observation, policy: Policy, wanted: Optional[str], requires: Tuple[str, ...]
) -> List[Step]:
    version, planned = version_after(observation, policy), observation.transaction
    if planned is None:
        return []
    before, after = planned.change
    steps = [_keep(wanted, requires)] if wanted is not None and _keeps(observation) else []
    steps.append(packages_step(
        NAME, "container toolkit %s" % version, before, after,
        "The packages of the toolkit need each other in one exact version. Their scripts reload systemd.",
        requires=requires + tuple(step.id for step in steps), manager="apt", request=dict(planned.request),
        update_cache=True, allow_downgrade=planned.allow_downgrade))
    return steps


def _removal_refusals(observation: Observation) -> List[Refusal]:
    if not observation.removable:
        return []
    held = tuple(sorted(name for name in observation.removable if name in observation.held))
    return ([_held(held, observation, "packages that may be removed")] if held else []) + _tool_refusals(observation) \
        + torn.refusals(observation.unfinished.torn)


def _removal(observation: Observation, facts: HostFacts) -> List[Step]:
    steps: List[Step] = []
    if observation.removable:
        # What was stopped may be the driver's: apt removes nothing before it is finished
        steps += torn.steps_before_removal(
            NAME, observation.unfinished, Disruption.driver_reload if facts.driver_loaded else Disruption.none,
            observation.removable)
        steps.append(packages_step(NAME, "container toolkit", observation.removable,
                                   dict.fromkeys(observation.removable), "They came in with the toolkit.",
                                   manager="apt", request=dict(observation.removable), purge=True, all_of_ours=True,
                                   requires=tuple(step.id for step in steps),
                                   **torn.removal_parameters(observation.unfinished.broken, observation.unfinished.ours,
                                                             observation.removable)))
    waiting = observation.configuration if observation.superseded else observation.kept
    restore = list(observation.restore)
    if waiting is not None:
        steps.append(_put_back(waiting, tuple(step.id for step in steps)))
        restore = [replace(step, change={**step.change, "before": waiting})
                   if step.subject == catalogue.CONFIGURATION else step for step in restore]
    if observation.auth.shown is not None:
        steps.append(credentials.removal(NAME, catalogue.AUTH, observation.auth))
    return steps + restore


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    """The host's toolkit once the plan is done."""
    if planned.refusals or policy.source == "preinstalled" and policy.present:
        return facts
    if not policy.present:
        return facts.but(toolkit="") if "nvidia-container-toolkit-base" in observation.removable else facts
    version = version_after(observation, policy)
    return facts.but(toolkit=version.rsplit("-", 1)[0]) if version else facts
