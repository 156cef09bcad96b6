# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker as a kind of runtime: daemon.json, judged by dockerd, brought into effect by a reload where that is enough."""
from __future__ import annotations

import json
import os
from typing import AbstractSet, Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import digest
from ..model import MEMORY, RELOAD, RESTART, Answer, Edit, Kind, Problem, RuntimeObservation, Service, pending
from ..policy import RuntimePolicy
from . import configuration
from .configuration import CDI_SINCE, Record, Setting
from .engine import Engine

# dockerd --validate came with 23.0
VALIDATE_SINCE = (23, 0)
KEYS = ("runtimes", "features", "default-runtime")
# Where the CDI specification of the node's GPUs is written
SPEC_FOLDERS = ("/var/run/cdi", "/run/cdi")
# Exit codes of containers that a signal has ended: SIGKILL and SIGTERM
KILLED = (137, 143)


class Docker(Kind):
    """dockerd and /etc/docker/daemon.json."""

    name = "docker"
    title = "Docker"

    def observe(self, host: Host, journal: Journal, policy: RuntimePolicy, service: Service) -> RuntimeObservation:
        text = host.read(service.root)
        try:
            data = configuration.parse(service.root, text or "")
            record = _record(journal, service, policy, data)
            base = configuration.without_settings(service.root, text, record)
            wanted = _wanted(policy, service, base) if policy.present else []
            problem = _obstacle(service, policy, base, wanted)
            if problem:
                return RuntimeObservation(service, problem)
            edits = _edits(service, policy, text, record, wanted)
            for edit in edits:
                _judge(host, service, edit)
            if service.active and not _keeps_containers(service, data):
                problem = _ended_by_a_restart(service, _causes(service, edits), self.answer(host, service).containers)
            if problem:
                return RuntimeObservation(service, problem)
        except GpuOpsError as error:
            return RuntimeObservation(service, Problem.of(error))
        return RuntimeObservation(
            service=service,
            problem=None,
            edits=edits,
            pending=pending(host, journal, service, [service.root], self.effective_digest(host, service)),
            handlers=tuple(sorted(data.get("runtimes", {}))),
            cdi=configuration.injects_cdi(data, service.release) if service.release >= CDI_SINCE else None,
            notes=_notes(service, policy, data, edits),
        )

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        base = configuration.without_settings(path, text, parameters["taken_back"])
        wanted: List[Setting] = [(tuple(place), value) for place, value in parameters["settings"]]
        return configuration.with_settings(path, base, wanted)[0] if wanted else base

    def apply_verb(self, service: Service, edits: Sequence[Edit]) -> str:
        return RESTART if _causes(service, edits) else RELOAD

    def effective_digest(self, host: Host, service: Service) -> str:
        data = configuration.parse(service.root, host.read(service.root) or "")
        return digest([data.get(key) for key in KEYS])

    def answer(self, host: Host, service: Service) -> Answer:
        engine = Engine(host.path(service.socket))
        try:
            return Answer("", frozenset(engine.info().get("Runtimes") or {}), engine.running_containers())
        except GpuOpsError as error:
            return Answer(error.found)

    def lost(self, host: Host, service: Service, containers: Iterable[str]) -> Tuple[str, ...]:
        engine = Engine(host.path(service.socket))
        return tuple(name for name in containers if engine.exit_code(name) in KILLED)


def _wanted(policy: RuntimePolicy, service: Service, base: Optional[str]) -> List[Setting]:
    default = policy.handler if policy.default_handler else ""
    data = configuration.parse(service.root, base or "")
    return configuration.settings(policy.entries, default, policy.cdi, service.release, data)


def _record(journal: Journal, service: Service, policy: RuntimePolicy, data: Mapping[str, Any]) -> Record:
    """What of the file is ours, told from the file as it was before our first change."""
    kept = [each for each in journal.originals(MEMORY) if each.path == service.root]
    if not kept:
        return []
    content = kept[0].content
    original = None if content is None else content.decode("utf-8", "surrogateescape")
    runtimes = data.get("runtimes", {})
    # those of this policy, and those that the last one brought
    names = {**policy.entries, **dict.fromkeys(journal.recall(MEMORY).get("handlers", ()))}
    ours: List[Setting] = [(("runtimes", name), runtimes[name]) for name in names if name in runtimes]
    if data.get("features", {}).get("cdi") is True:
        ours.append((("features", "cdi"), True))
    if data.get("default-runtime") in names:
        ours.append((("default-runtime",), data["default-runtime"]))
    return configuration.with_settings(service.root, original, ours)[1]


def _obstacle(
    service: Service, policy: RuntimePolicy, base: Optional[str], wanted: List[Setting]
) -> Optional[Problem]:
    flags = configuration.flag_conflicts(service.arguments, wanted)
    if flags:
        return Problem(
            "dockerd runs with %s" % " and ".join(flags), "these options in %s alone" % service.root,
            "take them out of the unit's command line (systemctl cat %s): dockerd refuses an option that is both a "
            "flag and in the file" % service.unit)
    told = configuration.contradictions(configuration.parse(service.root, base or ""), wanted)
    if policy.adopt:
        told = [each for each in told if not each.startswith("runtime ")]
    if not told:
        return None
    return Problem("%s: %s" % (service.root, "; ".join(told)), "runtime '%s' with path %s"
                   % (policy.handler, policy.handler_binary),
                   "take that entry out, choose another handler, or set adopt to take it over")


def _edits(
    service: Service, policy: RuntimePolicy, text: Optional[str], record: Record, wanted: List[Setting]
) -> Tuple[Edit, ...]:
    parameters = {"taken_back": record, "settings": [[list(place), value] for place, value in wanted]}
    after = Docker().edited(service.root, text, parameters)
    same = after is not None and text is not None and (
        configuration.parse(service.root, after) == configuration.parse(service.root, text))
    if after == text or same and policy.present:
        return ()
    return (Edit(service.root, text, after, _shown(service, text), _shown(service, after), parameters),)


def _shown(service: Service, text: Optional[str]) -> Optional[str]:
    """The part that our change is about; the rest may hold credentials of a proxy."""
    if text is None:
        return None
    data = configuration.parse(service.root, text)
    return json.dumps({key: data[key] for key in KEYS if key in data}, indent=4) + "\n"


def _judge(host: Host, service: Service, edit: Edit) -> None:
    """dockerd itself reads a copy of the new file, with its own flags: what both say contradicts."""
    told = _complaint(host, service, edit.after)
    if not told:
        return
    before = _complaint(host, service, edit.before)
    raise GpuOpsError(
        found="dockerd refuses %s %s: %s" % (edit.path, "as it is" if before else "with our change", before or told),
        wanted="a configuration that dockerd reads",
        remedy="correct the file by hand until 'dockerd --validate --config-file %s' succeeds; nothing was changed"
               % edit.path,
        file=edit.path,
    )


def _complaint(host: Host, service: Service, text: Optional[str]) -> str:
    """What dockerd says against a file, '' if nothing."""
    if service.release < VALIDATE_SINCE or text is None:
        return ""
    with host.scratch() as scratch:
        copy = os.path.join(scratch, "daemon.json")
        with open(copy, "w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
            handle.write(text)
        flags = configuration.without_flag(service.arguments[1:], "--config-file")
        done = host.run([service.binary, *flags, "--validate", "--config-file", copy], check=False)
    return (done.stderr or done.stdout).strip().replace(copy, service.root) if done.rc else ""


def _causes(service: Service, edits: Sequence[Edit]) -> List[str]:
    """What of these edits takes a restart."""
    return [cause for edit in edits
            for cause in configuration.restart_causes(edit.path, edit.before, edit.after, service.release)]


def _keeps_containers(service: Service, data: Mapping[str, Any]) -> bool:
    flags = [word for word in service.arguments if word in ("--live-restore", "--live-restore=true")]
    return bool(flags or data.get("live-restore"))


def _ended_by_a_restart(service: Service, causes: Sequence[str], containers: AbstractSet[str]) -> Optional[Problem]:
    if not causes or not containers:
        return None
    return Problem(
        "%d running containers, and live-restore is off in %s: the restart that a change of '%s' takes would end them"
        % (len(containers), service.root, "' and '".join(causes)), "containers that go on",
        "set \"live-restore\": true and reload Docker, or stop the containers" + (
            ", or set cdi to false, which takes a reload alone" if "features" in causes else ""))


def _notes(
    service: Service, policy: RuntimePolicy, data: Mapping[str, Any], edits: Sequence[Edit]
) -> Tuple[str, ...]:
    notes = []
    if not policy.present and any("runtimes" not in configuration.parse(edit.path, edit.after or "") for edit in edits):
        notes.append("dockerd forgets the runtime at its next start: it takes back none by a reload of a file that "
                     "names no runtimes.")
    folders = data.get("cdi-spec-dirs")
    if policy.present and policy.cdi and folders is not None and not {*folders} & {*SPEC_FOLDERS}:
        notes.append("%s: cdi-spec-dirs does not name %s, where specifications of GPUs are."
                     % (service.root, SPEC_FOLDERS[0]))
    return tuple(notes)
