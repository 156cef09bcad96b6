# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each error number of the driver means for a node. Data, as NVIDIA's catalog was on 2025-10-29. Pure.

Sources: NVIDIA "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), the numbers of
open-gpu-kernel-modules (nverror.h) where the catalog has none, NVIDIA Fabric Manager User Guide, appendix D (SXids),
NVIDIA "GPU memory error management" (containment and RMA policy).

It is of Ampere and later: of an earlier GPU its numbers are told, and what they ask for is not known. What the driver
itself asks for (hardware/recovery.py, Xid 154) is a finding beside those of this table, and takes their place where
by_action says so. Elsewhere a driver that asks for nothing ends nothing: that does not show that a GPU computes.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from ..hardware.recovery import BOARD_RESET, LADDER, NONE, OUT, REBOOT, RESET
from ..validation.compute.levels import LONG
from .kernel_log import Event

# Of the catalog, and of our reading of it
VERSION = "2025-10-29.4"
# What a number comes to. An event is an application's, and takes no node out; a suspicion is one that comes again on
# the same GPU from other work, and asks for a long compute check; a warning is told. Pending waits for the next drain,
# as running work is not hurt. Sick takes the GPU out of service until its remedy has been done.
EVENT, SUSPICION, WARNING, PENDING, SICK = KINDS = ("event", "suspicion", "warning", "pending", "sick")
# CUDA's capability
AMPERE = 8
# Those that something has to be done about
MENDED = (PENDING, SICK)


@dataclass(frozen=True)
class Meaning:
    """What a number means.

    text:        for people.
    kind:        one of KINDS.
    remedy:      what mends it, a rung of the ladder; NONE where nothing has to be mended.
    after:       how many times it has to come before that counts; it is a warning until then.
    by_severity: whether the line itself says if it is fatal: one that is not is a warning.
    by_action:   whether the driver's recovery action decides, where the driver tells one.
    check:       level of a compute check that a warning asks for, '' for none.
    """

    text: str
    kind: str
    remedy: str = NONE
    after: int = 1
    by_severity: bool = False
    by_action: bool = False
    check: str = ""


def _rows(numbers: Iterable[int], meaning: Meaning) -> Dict[int, Meaning]:
    return dict.fromkeys(numbers, meaning)


_STOPPED = Meaning("time-out of an engine or of the GPU's processor", SICK, RESET)
_IDENTITY = Meaning("error of the board's memory for its identity", SICK, OUT, after=2)
XIDS: Dict[int, Meaning] = {
    13: Meaning("graphics engine exception", SUSPICION),
    31: Meaning("memory access fault of an application", SUSPICION),
    **_rows((8, 11, 25, 32, 68, 69, 80), Meaning("error of an application", EVENT)),
    **_rows((*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)),
            Meaning("exception of an engine, of an application", EVENT)),
    # Engines that encode, decode and compress pictures, and that compare them; boards have them in different numbers
    **_rows((47, 60, 65, 73, *range(82, 85), 86, 88, 89, *range(96, 106), 139, 142),
            Meaning("error of an engine for video or pictures, of an application", EVENT)),
    **_rows((37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 137, 141, 152, 153),
            Meaning("a channel that was stopped, or a test", EVENT)),
    45: Meaning("work that was removed, for the reason of another error", EVENT),
    46: Meaning("the GPU stopped to answer", SICK, RESET),
    48: Meaning("uncorrectable memory error", SICK, RESET, by_action=True),
    54: Meaning("power cable", SICK, OUT),
    61: Meaning("internal microcontroller error", SICK, OUT, after=2),
    62: Meaning("internal microcontroller halt", SICK, RESET),
    63: Meaning("a row of memory is remapped at the next reset", PENDING, RESET),
    64: Meaning("a row of memory could not be remapped", SICK, OUT),
    74: Meaning("NVLink error", SICK, BOARD_RESET),
    **_rows((78, 159, *range(162, 166)), Meaning("software: vGPU, unified memory, power smoothing", WARNING)),
    79: Meaning("the GPU has fallen off the bus", SICK, REBOOT),
    **_rows((92, 121, 157), Meaning("many corrected errors", WARNING)),
    94: Meaning("contained memory error: one application was hurt", PENDING, RESET, by_action=True),
    95: Meaning("uncontained memory error", SICK, RESET, by_action=True),
    **_rows((110, 119, 120, 136, 140, 143, 155, 158), _STOPPED),
    109: replace(_STOPPED, by_action=True),
    **_rows(range(122, 126), _IDENTITY),
    **_rows(range(144, 151), Meaning("NVLink 5 error", SICK, RESET, by_severity=True, by_action=True)),
    151: Meaning("rotation of confidential keys failed", SICK, REBOOT),
    154: Meaning("the driver asks for another recovery action", WARNING),
    **_rows((156, 160, 161), Meaning("a resource or a memory channel is retired at the next reset", PENDING, RESET)),
    # They say where the memory is of which 48 tells
    171: Meaning("uncorrectable error of device memory, beside Xid 48", WARNING),
    172: Meaning("uncorrectable error of a cache, beside Xid 48", WARNING),
    **_rows((*range(167, 170), *range(173, 177)), Meaning("not in NVIDIA's catalog", WARNING)),
}
UNKNOWN = Meaning("not known to this collection", WARNING)

# Always fatal to the fabric (Fabric Manager User Guide, appendix D): the host restarts. For others that a line calls
# fatal, all GPUs and NVSwitches of the board are reset
FATAL_SXIDS: FrozenSet[int] = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
HARMLESS_SXIDS: FrozenSet[int] = frozenset({20001, 20009, 20012, 22013})
# Not fatal there, and yet all GPUs and NVSwitches are to be reset
_BOARD_SXIDS = frozenset({19084})
# Not fatal there, and GPUs hang that want to go over the link: whether they do, a compute check tells
_STALLED_SXIDS = frozenset({11004, 12028})
# A switch that is too hot and shuts down, and one whose processor has stopped (common_nvswitch.h); no word is with them
_SWITCHES_GONE = frozenset({10006, 26006})

# {('xid' or 'sxid', number): what its meaning is to be}, checked
Overrides = Mapping[Tuple[str, int], Mapping[str, Any]]


def xid(number: int) -> Meaning:
    return XIDS.get(number, UNKNOWN)


def sxid(number: int, is_fatal: bool) -> Meaning:
    """Of an NVSwitch. is_fatal: what the line itself says, which counts where the guide leaves it to the port."""
    if number in FATAL_SXIDS:
        return Meaning("fatal error of an NVSwitch", SICK, REBOOT)
    if number in _SWITCHES_GONE:
        return Meaning("an NVSwitch has shut down or stopped", SICK, REBOOT)
    if number in _STALLED_SXIDS:
        return Meaning("traffic of an NVLink may be stalled", WARNING, check=LONG)
    if number in _BOARD_SXIDS or (is_fatal and number not in HARMLESS_SXIDS):
        return Meaning("error of an NVSwitch that a reset of its board mends", SICK, BOARD_RESET)
    return Meaning("error of an NVSwitch", WARNING)


def meaning_of(event: Event, overrides: Overrides, capability: str = "") -> Meaning:
    """What an event means here, with what its own line says of it. capability: CUDA's, of the GPU that has it, '' where
    that is not known."""
    meaning = sxid(event.number, bool(event.is_fatal)) if event.is_switch else xid(event.number)
    changes = overrides.get((_series(event.is_switch), event.number), {})
    if not (changes or event.is_switch) and meaning.kind in MENDED and is_earlier(capability):
        return replace(meaning, kind=WARNING, remedy=NONE, after=1, check=LONG)
    if changes:
        # Who says what it is to be has decided it; what the driver asks for is a finding of its own
        is_decided = "kind" in changes or "remedy" in changes
        meaning = replace(meaning, **changes, by_action=meaning.by_action and not is_decided)
    if meaning.by_severity and event.is_fatal is False and meaning.kind in MENDED:
        return replace(meaning, kind=WARNING, remedy=NONE)
    return meaning


def is_earlier(capability: str) -> bool:
    """Whether a GPU is of before Ampere."""
    return capability.partition(".")[0].isdecimal() and int(capability.partition(".")[0]) < AMPERE


def _series(is_switch: bool) -> str:
    return "sxid" if is_switch else "xid"


_REMEDY = "correct it; `docs/health.md` has the form, and what each number means without it"


def overrides_of(given: Any) -> Overrides:
    """What a policy says of numbers otherwise: {'xid': {63: {'kind', 'remedy', 'after'}}, 'sxid': ...}, each of the
    three optional. Raises GpuOpsError with every slip."""
    refusals: List[Refusal] = []
    found: Dict[Tuple[str, int], Mapping[str, Any]] = {}
    for series, rows in _items(given, "all of them", refusals):
        if series not in ("xid", "sxid"):
            refusals.append(_malformed("'%s'" % series, "'xid' or 'sxid'"))
            continue
        for number, row in _items(rows, "'%s'" % series, refusals):
            where = "%s %s" % (series, number)
            if not str(number).isdecimal() or int(number) not in range(1, 1 << 31):
                refusals.append(_malformed("'%s'" % where, "a positive number"))
                continue
            changes = dict(_items(row, where, refusals))
            if changes.get("kind", SICK) not in MENDED:
                changes.setdefault("remedy", NONE)
            complaint = _complaint(series, int(number), changes)
            if complaint is not None:
                refusals.append(complaint)
            found[series, int(number)] = changes
    if refusals:
        raise GpuOpsError.because(refusals)
    return found


def _items(given: Any, where: str, refusals: List[Refusal]) -> Iterable[Tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return given.items()
    refusals.append(_malformed("%s: %r" % (where, given), "a dictionary"))
    return ()


def _complaint(series: str, number: int, changes: Mapping[str, Any]) -> Any:
    where = "%s %d" % (series, number)
    unknown = sorted(map(str, set(changes) - {"kind", "remedy", "after"}))
    if unknown:
        return _malformed("%s: '%s'" % (where, unknown[0]), "kind, remedy or after")
    before = xid(number) if series == "xid" else sxid(number, True)
    kind, remedy = changes.get("kind", before.kind), changes.get("remedy", before.remedy)
    if kind not in KINDS:
        return _malformed("%s: kind '%s'" % (where, kind), "one of %s" % ", ".join(KINDS))
    if remedy not in LADDER:
        return _malformed("%s: remedy '%s'" % (where, remedy), "one of %s, or an empty text" % ", ".join(LADDER[1:]))
    after = changes.get("after", 1)
    if not isinstance(after, int) or isinstance(after, bool) or after < 1:
        return _malformed("%s: after %r" % (where, after), "a whole number of at least 1")
    if kind in MENDED and before.kind in (EVENT, SUSPICION):
        return Refusal("health.override_of_an_application", "%s is to be %s: %s" % (where, kind, before.text),
                       "an application's error, which takes no node out",
                       "leave its kind an event or a suspicion; `warning` has it told")
    if (kind in MENDED) != (remedy != NONE):
        return Refusal("health.override_without_end", "%s is %s, with %s" % (
            where, kind, "the remedy %s" % remedy if remedy else "no remedy"),
            "a remedy for what is pending or sick, and none for what only is told",
            "give kind and remedy together: what has no remedy could never end")
    return None


def _malformed(found: str, wanted: str) -> Refusal:
    return Refusal("health.override_not_understood", "in the overrides of errors: %s" % found, wanted, _REMEDY)
