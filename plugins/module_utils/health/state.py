# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The state of a host's health, and where it is kept.

  /var/lib/gpuops/health.json        for root alone, as it may name somebody's processes. It is written when a finding
                                     begins, changes or ends, and every ten minutes, not in every round.
  /run/gpuops/health.json            the same as of the last round, which a full disk does not stop. The one with more
                                     rounds counts.
  /run/gpuops-health/summary.json    for everybody, without names of processes: whoever exports metrics or reports
                                     problems of nodes is not root, and is in a container that sees this directory
                                     alone. /run/gpuops cannot be that: who may look into it learns what a run does.
  /run/gpuops-health/conditions      the same, a line a condition, for a program that runs all the time (problems.py)

A state that cannot be understood is copied beside, under another name, before its successor takes its place, which says
that it is unknown what had been found until then.
"""
from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Collection, Dict, List, Tuple

from ..core import boot_record
from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import DIRECTORY as LASTING
from ..core.lock import DIRECTORY as PASSING
from ..core.times import since_boot
from ..hardware.recovery import LADDER
from . import assess as assessing
from .look import look_around, read_look
from .metrics import metrics_text
from .model import DISK, STATE, Act, Look, State, Unknown
from .policy import HealthPolicy
from .problems import conditions_text
from .summary import summary

KEPT = LASTING + "/health.json"
LATEST = PASSING + "/health.json"
GUARD = PASSING + "/health.lock"
PUBLIC = "/run/gpuops-health"
SUMMARY, CONDITIONS = PUBLIC + "/summary.json", PUBLIC + "/conditions"
METRICS = "gpuops_health.prom"
# A state that was put aside, of which the first ones are kept
_ASIDE, _MOST_ASIDE = KEPT + ".unreadable-", 3
WRITTEN_SECONDS = 600
# Of every round another, and worth no write to a disk
_FLEETING = ("taken", "asked", "at", "rounds", "sequence")
_FLEETING_OF_FINDING = ("last", "quiet")


def look_and_keep(host: Host, policy: HealthPolicy, metrics_directory: str = "") -> State:
    """One round: look, judge, keep, tell. Bounded in time by the policy; nothing is held open afterwards.

    metrics_directory: of node_exporter's textfile collector, '' for none.
    Two rounds at once are one after the other; the one that began first then tells nothing new.
    """
    return keep_look(host, policy, read_look(host, lambda: kept(host), policy), metrics_directory)


def only_look(host: Host, policy: HealthPolicy) -> State:
    """The same round, which leaves nothing behind: what it takes several to find, it does not."""
    look = read_look(host, lambda: kept(host), policy)
    return _judged(kept(host), look, policy)


def keep_look(host: Host, policy: HealthPolicy, look: Look, metrics_directory: str = "") -> State:
    """What a round does once it has looked: judge, keep, tell."""
    return _change(host, policy, lambda state: _judged(state, look, policy), metrics_directory)


def note_remedy(
    host: Host, policy: HealthPolicy, remedy: str, subject: str = "", text: str = "", metrics_directory: str = ""
) -> State:
    """Write down that a remedy has been done, as soon as it has ended: what is seen later was not mended by it.

    remedy: a rung of the ladder. subject: key of what it was done to, '' for the whole host. text: who did it, and why.
    """
    if remedy not in LADDER[1:-1]:
        raise GpuOpsError("health.no_remedy", "'%s'" % remedy, "one of %s" % ", ".join(LADDER[1:-1]),
                          "say which of them was done; what is to be taken out is released by a person")

    def noted(state: State) -> State:
        # Within the guard, so that no other round comes between
        act = Act(remedy, subject, time.time(), host.boot(), text)
        return _judged(state, look_around(host, state, (act,)), policy)

    return _change(host, policy, noted, metrics_directory)


def release(host: Host, policy: HealthPolicy, key: str, who: str, metrics_directory: str = "") -> State:
    """What a person takes back, see assess.release(). Raises GpuOpsError where there is no such thing."""
    def released(state: State) -> State:
        known = {STATE} if STATE in state.unknown else set()
        for finding in state.findings.values():
            known |= {finding.key, finding.subject.key}
        if key not in known:
            raise GpuOpsError("health.nothing_to_release", "no open finding of '%s'" % key,
                              "one of %s" % (", ".join(sorted(known)) or "none: nothing is open"),
                              "take the name from the list of findings")
        return assessing.release(state, key, who, time.time())

    return _change(host, policy, released, metrics_directory)


def give_up(host: Host, policy: HealthPolicy, subjects: Collection[str]) -> State:
    """Nothing mends these parts any more, see assess.give_up()."""
    return _change(host, policy, lambda state: assessing.give_up(state, subjects), "")


def taken_back(host: Host, policy: HealthPolicy, uuids: Collection[str]) -> State:
    """The driver asks for nothing more of these GPUs, see assess.taken_back()."""
    return _change(host, policy, lambda state: assessing.taken_back(state, uuids, time.time()), "")


def kept(host: Host) -> State:
    """The state as it was kept. One that cannot be understood is unknown, and put aside by the next round."""
    return _kept(host).state


def is_kept(host: Host) -> bool:
    """Whether there is anything that forget() removes."""
    return any(map(host.exists, (KEPT, LATEST, PUBLIC)))


def forget(host: Host, metrics_directory: str = "") -> bool:
    """Remove everything that is kept; whether there was anything."""
    forget_metrics(host, metrics_directory)
    paths = [KEPT, LATEST, GUARD, SUMMARY, CONDITIONS]
    paths = [path for path in paths if host.exists(path)]
    paths += ["%s/%s" % (LASTING, name) for name in host.list(LASTING) if _is_aside(name)]
    for path in paths:
        host.remove(path)
    host.remove_empty_dir(PUBLIC)
    return bool(paths)


def tell_boot(host: Host, metrics_directory: str) -> None:
    """What became of the boot, in the metrics of the last look. Nothing is looked at: that may be what hangs."""
    if metrics_directory:
        with contextlib.suppress(GpuOpsError):
            host.make_directory(PASSING, 0o700)
            with host.guard(GUARD):
                _collect(host, metrics_directory, metrics_text(kept(host), boot_record.read(host)))


def forget_metrics(host: Host, directory: str) -> None:
    """What nobody writes any more would tell the last verdict for ever."""
    for ending in ("", ".new") if directory else ():
        host.remove("%s/%s%s" % (directory, METRICS, ending))


def _judged(state: State, look: Look, policy: HealthPolicy) -> State:
    return assessing.assess(state, look, policy, time.time())


def _change(host: Host, policy: HealthPolicy, change: Callable[[State], State], metrics_directory: str) -> State:
    host.make_directory(PASSING, 0o700)
    with host.guard(GUARD):
        found = _kept(host)
        after = change(found.state)
        is_damaged = KEPT in found.unreadable
        if not found.is_unread and (not is_damaged or _copied_aside(host)):
            after = _kept_now(host, found.state, after, is_damaged)
        with contextlib.suppress(GpuOpsError):
            host.write(LATEST, _text(after), 0o600)
        _tell(host, after, policy, metrics_directory)
    return after


@dataclass(frozen=True)
class _Found:
    """state: the one with the most rounds. unreadable: paths of those that cannot be understood. is_unread: whether
    the one on the disk could not be read at all, as it may be another time."""

    state: State
    unreadable: Tuple[str, ...] = ()
    is_unread: bool = False


def _kept(host: Host) -> _Found:
    found: List[State] = []
    unreadable: List[str] = []
    troubles: List[str] = []
    is_unread = False
    for path in (KEPT, LATEST):
        try:
            text = host.read(path)
            if text is not None:
                found.append(State.from_dict(json.loads(text)))
        except GpuOpsError as error:
            is_unread = is_unread or path == KEPT
            troubles.append(error.found)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            unreadable.append(path)
            troubles.append("%s cannot be understood: %s" % (path, error or "it is no state"))
    # One that began while the other could not be read knows less than that
    state = max(found, key=lambda each: (STATE not in each.unknown, each.rounds), default=State())
    if troubles and not found:
        state = State(unknown={STATE: Unknown(time.time(), "; ".join(troubles))})
    return _Found(state, tuple(unreadable), is_unread and not found)


def _copied_aside(host: Host) -> bool:
    """Whether what cannot be understood may be replaced. The first ones are kept: the cause is looked for there."""
    try:
        others = [name for name in host.list(LASTING) if _is_aside(name)]
        if len(others) < _MOST_ASIDE:
            host.write_bytes(_ASIDE + str(time.time_ns()), host.read_bytes(KEPT) or b"", 0o600)
    except GpuOpsError:
        return False
    return True


def _is_aside(name: str) -> bool:
    return ("%s/%s" % (LASTING, name)).startswith(_ASIDE)


def _kept_now(host: Host, before: State, after: State, is_damaged: bool) -> State:
    """The state, kept on the disk where it is to be, as where the one there is damaged. What cannot be written is
    written in the next round, which knows of it by the other file; that a boot would lose it is told."""
    written = replace(after, unknown={what: each for what, each in after.unknown.items() if what != DISK})
    try:
        if is_damaged or DISK in after.unknown or _is_due(host) or _lasting(before) != _lasting(written):
            host.make_directory(LASTING, 0o700)
            host.write(KEPT, _text(written), 0o600)
    except GpuOpsError as error:
        told = after.unknown.get(DISK, Unknown(time.time(), ""))
        return replace(after, unknown={**after.unknown, DISK: replace(
            told, text="findings are lost with the next boot, as %s cannot be written: %s" % (KEPT, error.found))})
    return written


def _text(state: State) -> str:
    return json.dumps(state.to_dict(), sort_keys=True) + "\n"


def _is_due(host: Host) -> bool:
    found = host.stat(KEPT)
    return found is None or not 0 <= time.time() - found.st_mtime < WRITTEN_SECONDS


def _lasting(state: State) -> Any:
    """What of a state is worth a write to a disk."""
    data = {name: value for name, value in state.to_dict().items() if name not in _FLEETING}
    data["findings"] = {key: {name: value for name, value in each.items() if name not in _FLEETING_OF_FINDING}
                        for key, each in data["findings"].items()}
    return data


def _tell(host: Host, state: State, policy: HealthPolicy, metrics_directory: str) -> None:
    """What cannot be told goes stale, which whoever reads it sees."""
    data = summary(state)
    files: Dict[str, str] = {
        SUMMARY: json.dumps(data, sort_keys=True, indent=1) + "\n",
        CONDITIONS: conditions_text(data, state.boot, since_boot(), policy.stale_seconds)}
    with contextlib.suppress(GpuOpsError):
        host.make_directory(PUBLIC, 0o755)
    for path, text in files.items():
        with contextlib.suppress(GpuOpsError):
            host.write(path, text, 0o644)
    if metrics_directory:
        with contextlib.suppress(GpuOpsError):
            _collect(host, metrics_directory, metrics_text(state, boot_record.read(host)))


def _collect(host: Host, directory: str, text: str) -> None:
    """Whatever is called .prom there is read at any moment, hidden or not, and what is half of it is an error: it is
    written under another name first."""
    if host.is_dir(directory):
        path = "%s/%s" % (directory, METRICS)
        host.write(path + ".new", text, 0o644)
        host.rename(path + ".new", path)
