# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker as a backend: daemon.json, judged by dockerd, brought into effect by a reload where that is enough."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.journal import Journal
from ....core.plan import digest
from ....core.refusal import Refusal
from ...backend import Backend
from ...memory import MEMORY, recall, served_with
from ...model import RELOAD, RESTART, Answer, Edit, Observation, Service, came_up_with, pending
from ...policy import Policy
from . import configuration
from .configuration import CDI_SINCE, Record, Setting
from .engine import Engine
from .judge import judge

DEFAULT = "default-runtime"
KEYS = ("runtimes", "features", DEFAULT)
# Where the CDI specification of the node's GPUs is written
SPEC_DIRECTORIES = ("/var/run/cdi", "/run/cdi")
# Exit codes of containers that a signal has ended: SIGKILL and SIGTERM
KILLED = (137, 143)


@dataclass(frozen=True)
class DaemonJson:
    """daemon.json, and what decides over a change of it.

    text, data: the file as it is; no text where there is none.
    served:     the file as it was before a change of ours that the daemon has not taken in yet; else as it is.
    changed:    whether we have changed it before, and original: what it was then, None for no file.
    handlers:   names of runtimes that earlier runs of ours wrote.
    default:    the default runtime of the daemon that runs, '' where it does not say.
    at_risk:    running containers that a restart of the daemon would end.
    """

    text: Optional[str]
    data: Mapping[str, Any]
    served: Optional[str]
    changed: bool = False
    original: Optional[str] = None
    handlers: Tuple[str, ...] = ()
    default: str = ""
    at_risk: FrozenSet[str] = frozenset()

    def to_dict(self) -> Dict[str, Any]:
        return {"text": digest(self.text), "served": digest(self.served), "changed": self.changed,
                "original": digest(self.original), "handlers": list(self.handlers), "default": self.default,
                "at_risk": sorted(self.at_risk)}


class Docker(Backend[DaemonJson]):
    """dockerd and /etc/docker/daemon.json."""

    name = "docker"
    title = "Docker"

    def observe(self, host: Host, journal: Journal, policy: Policy, service: Service) -> Observation:
        text = host.read(service.root)
        data = configuration.parse(service.root, text or "")
        kept = [each for each in journal.originals(MEMORY) if each.path == service.root]
        content = kept[0].content if kept else None
        info = _in_effect(host, service)
        return Observation(
            service=service,
            reading=DaemonJson(
                text=text, data=data, served=_served(host, journal, service, text), changed=bool(kept),
                original=None if content is None else content.decode("utf-8", "surrogateescape"),
                handlers=tuple(recall(journal, service.name).get("handlers", ())),
                default=str(info.get("DefaultRuntime", "")), at_risk=_at_risk(host, service, data, info)),
            pending=pending(host, journal, policy.present, service, [service.root], _digest(data)),
            handlers=tuple(sorted(configuration.table(data, "runtimes"))),
            cdi=configuration.injects_cdi(data, service.release) if service.release >= CDI_SINCE else None,
        )

    def edits(self, service: Service, reading: DaemonJson, policy: Policy) -> Tuple[Edit, ...]:
        record = _record(service, reading, policy)
        base = configuration.without_settings(service.root, reading.text, record)
        wanted = _wanted(policy, service, base) if policy.present else []
        _check(service, policy, base, wanted)
        return _edits(service, policy, reading.text, record, wanted)

    def notes(
        self, service: Service, reading: DaemonJson, policy: Policy, edits: Sequence[Edit]
    ) -> Tuple[str, ...]:
        return _notes(service, policy, reading.data, edits)

    def judge(self, host: Host, service: Service, reading: DaemonJson, policy: Policy) -> None:
        for edit in self.edits(service, reading, policy):
            judge(host, service, edit)

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        base = configuration.without_settings(path, text, parameters["taken_back"])
        wanted: List[Setting] = [(tuple(place), value) for place, value in parameters["settings"]]
        return configuration.with_settings(path, base, wanted)[0] if wanted else base

    def apply_verb(self, service: Service, reading: DaemonJson, edits: Sequence[Edit]) -> str:
        return RESTART if _causes(service, reading, edits) else RELOAD

    def against_restart(self, service: Service, reading: DaemonJson, edits: Sequence[Edit]) -> Optional[Refusal]:
        """For a change that takes one, and where a reload was ignored, for any."""
        if not reading.at_risk:
            return None
        causes = _causes(service, reading, edits)
        where = "the Docker that runs" if _keeps_containers(service, reading.data) else service.root
        return Refusal(
            "runtime.docker_ends_containers",
            "%d running containers, and live-restore is off in %s: the restart that %s takes would end them" % (
                len(reading.at_risk), where,
                "a change of '%s'" % "' and '".join(causes) if causes else "a Docker that has ignored a reload"),
            "containers that go on",
            "set \"live-restore\": true and reload Docker, or stop the containers" + (
                ", or set `cdi` to false, which takes a reload alone" if "features" in causes else ""),
            "cdi" if "features" in causes else "")

    def brought(self, parameters: Mapping[str, Any]) -> FrozenSet[str]:
        return frozenset(place[1] for place, _value in parameters["settings"] if place[0] == "runtimes")

    def effective_digest(self, host: Host, service: Service) -> str:
        return _digest(configuration.parse(service.root, host.read(service.root) or ""))

    def answer(self, host: Host, service: Service) -> Answer:
        engine = Engine(host.path(service.socket))
        try:
            return Answer("", frozenset(engine.info().get("Runtimes") or {}), engine.running_containers())
        except GpuOpsError as error:
            return Answer(error.found)

    def lost(self, host: Host, service: Service, containers: Iterable[str]) -> Tuple[str, ...]:
        engine = Engine(host.path(service.socket))
        return tuple(name for name in containers if engine.exit_code(name) in KILLED)


def _wanted(policy: Policy, service: Service, base: Optional[str]) -> List[Setting]:
    default = policy.handler if policy.default_handler else ""
    data = configuration.parse(service.root, base or "")
    return configuration.settings(policy.entries, default, policy.cdi, service.release, data)


def _digest(data: Mapping[str, Any]) -> str:
    return digest([data.get(key) for key in KEYS])


def _record(service: Service, reading: DaemonJson, policy: Policy) -> Record:
    """What of the file is ours, told from the file as it was before our first change."""
    if not reading.changed:
        return []
    data, runtimes = reading.data, configuration.table(reading.data, "runtimes")
    # those of this policy, and those that the last one brought
    names = {**policy.entries, **dict.fromkeys(reading.handlers)}
    ours: List[Setting] = [(("runtimes", name), runtimes[name]) for name in names if name in runtimes]
    if configuration.table(data, "features").get("cdi") is True:
        ours.append((("features", "cdi"), True))
    if data.get(DEFAULT) in names:
        ours.append(((DEFAULT,), data[DEFAULT]))
    return configuration.with_settings(service.root, reading.original, ours)[1]


def _check(service: Service, policy: Policy, base: Optional[str], wanted: List[Setting]) -> None:
    flags = configuration.flag_conflicts(service.arguments, wanted)
    if flags:
        raise GpuOpsError(
            "runtime.docker_flag",
            found="dockerd runs with %s" % " and ".join(flags),
            wanted="these options in %s alone" % service.root,
            remedy="take them out of the unit's command line (`systemctl cat %s`): dockerd refuses an option that is "
                   "both a flag and in the file" % service.unit,
        )
    contradictions = configuration.contradictions(configuration.parse(service.root, base or ""), wanted)
    if policy.adopt:
        contradictions = [each for each in contradictions if not each.startswith("runtime ")]
    if contradictions:
        raise GpuOpsError(
            "runtime.docker_contradiction",
            found="%s: %s" % (service.root, "; ".join(contradictions)),
            wanted="runtime '%s' with path %s" % (policy.handler, policy.handler_binary),
            remedy="take that entry out, choose another `handler`, or set `adopt` to take it over",
            option="adopt",
        )


def _edits(
    service: Service, policy: Policy, text: Optional[str], record: Record, wanted: List[Setting]
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


def _causes(service: Service, reading: DaemonJson, edits: Sequence[Edit]) -> List[str]:
    """What takes a restart, of these edits and of a change of ours that the daemon has not taken in yet.

    A default of ours may have come by a reload since, as that of a run which was killed right after it.
    """
    after = edits[-1].after if edits else reading.text
    causes = configuration.restart_causes(service.root, reading.served, after, service.release)
    stays = reading.default in reading.handlers and DEFAULT not in configuration.parse(service.root, after or "") \
        and not configuration.flag_conflicts(service.arguments, [((DEFAULT,), reading.default)])
    return [*causes, DEFAULT] if stays and DEFAULT not in causes else causes


def _served(host: Host, journal: Journal, service: Service, text: Optional[str]) -> Optional[str]:
    change = (recall(journal, service.name).get("undo") or {}).get(service.root)
    if change is None or came_up_with(host, service, {service.root: change}):
        return text
    return served_with(change)


def _in_effect(host: Host, service: Service) -> Mapping[str, Any]:
    """What the daemon that runs says of itself, nothing where it does not answer."""
    try:
        return Engine(host.path(service.socket)).info() if service.active else {}
    except GpuOpsError:
        return {}


def _at_risk(
    host: Host, service: Service, data: Mapping[str, Any], info: Mapping[str, Any]
) -> FrozenSet[str]:
    """Running containers that a restart ends: the daemon that stops has to keep them, and the one that starts too."""
    if not service.active or _keeps_containers(service, data) and info.get("LiveRestoreEnabled"):
        return frozenset()
    try:
        return Engine(host.path(service.socket)).running_containers()
    except GpuOpsError:
        return frozenset()


def _keeps_containers(service: Service, data: Mapping[str, Any]) -> bool:
    flags = [word for word in service.arguments if word in ("--live-restore", "--live-restore=true")]
    return bool(flags or data.get("live-restore"))


def _notes(
    service: Service, policy: Policy, data: Mapping[str, Any], edits: Sequence[Edit]
) -> Tuple[str, ...]:
    notes = []
    if not policy.present and any("runtimes" not in configuration.parse(edit.path, edit.after or "") for edit in edits):
        notes.append("dockerd forgets the runtime at its next start: it takes back none by a reload of a file that "
                     "names no runtimes.")
    directories = data.get("cdi-spec-dirs")
    if policy.present and policy.cdi and directories is not None and not {*directories} & {*SPEC_DIRECTORIES}:
        notes.append("%s: cdi-spec-dirs does not name %s, where specifications of GPUs are."
                     % (service.root, SPEC_DIRECTORIES[0]))
    return tuple(notes)
