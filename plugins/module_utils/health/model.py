# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host's health is judged by and what comes of it: a look, and the state that looks add to. Pure data."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from ..hardware.nvml import NvmlReading
from ..hardware.recovery import LADDER
from .catalogue import PENDING, SICK, WARNING
from .findings import Finding, checked
from .kernel_log import Record

SCHEMA = 1
# What a whole host is, the word that weighs most first. Unknown is neither well nor sick.
WELL, UNKNOWN = "well", "unknown"
VERDICTS = (SICK, UNKNOWN, PENDING, WARNING, WELL)
# What may be unknown. Without the first three nothing can be called well.
STATE, LOG, ANSWERS, LOG_GAP, COMPUTED, BUS, DISK = WHATS = (
    "state", "kernel_log", "nvml", "kernel_log_gap", "compute", "pci", "disk")
DECISIVE = (STATE, LOG, ANSWERS)


@dataclass(frozen=True)
class Act:
    """A remedy that has been done.

    remedy:  its rung of the ladder.
    subject: key of what it was done to, '' for the whole host.
    at:      when it had ended, in seconds since the epoch.
    boot:    the boot that was.
    text:    by whom and why, for people.
    """

    remedy: str
    subject: str
    at: float
    boot: str
    text: str = ""


@dataclass(frozen=True)
class Known:
    """A GPU of this host.

    address:    on the PCI bus, '' where another GPU is there now. displaced: whether that one only moved there, as
                where buses have other numbers since this one is gone, and has not replaced it.
    parts:      UUIDs of its MIG devices. divided: whether MIG mode is on.
    links:      its NVLinks that have been up with this load of the driver.
    capability: CUDA's, '' where it has not been told.
    """

    uuid: str
    serial: str = ""
    address: str = ""
    name: str = ""
    divided: bool = False
    parts: Tuple[str, ...] = ()
    links: Tuple[int, ...] = ()
    capability: str = ""
    displaced: bool = False


@dataclass(frozen=True)
class Unknown:
    """What cannot be told. since: seconds since the epoch. proof: as of a finding."""

    since: float
    text: str
    proof: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failing:
    """Looks at something that failed one after the other: how many, and since when, in seconds of the boot's clock."""

    rounds: int
    since: float


@dataclass(frozen=True)
class Released:
    """What a person leaves as it is: a finding of this kind and remedy. who: by whom and why."""

    who: str
    kind: str
    remedy: str


@dataclass(frozen=True)
class Service:
    """A service that GPUs wait for. active: systemd's word for its state. started: which start of it that is."""

    active: str
    started: str


@dataclass(frozen=True)
class Look:
    """What one round has read. None is what could not be read, or what this round did not look at.

    taken:    when it began, in nanoseconds of the monotonic clock of the boot.
    at:       the same in seconds since the epoch.
    boot:     id of the boot, '' where it cannot be told.
    load:     what tells this load of the driver from another, '' without a driver (hardware/loaded.py).
    records:  of the kernel's log, at least all since the one that the state names.
    nvml:     the reading.
    compute:  what devices have proved (validation/compute/record.py).
    bus:      {PCI address of a GPU: whether the host's driver is for it, and lists it}.
    fabric:   whether a service of this host configures the fabric.
    services: those that GPUs of this host wait for, by unit.
    acts:     remedies that were done before this look ended, and after all else that it has read.
    left:     the process that hangs in NVML, and when it started; (0, '') where there is none.
    resets:   (number, UUIDs, for what) of those that this collection has done in this boot, oldest first; read before
              what devices have proved, which a reset takes back.
    machine:  what tells this machine from one that has a copy of its disk, '' where nothing does.
    """

    taken: int
    at: float
    boot: str
    load: str = ""
    records: Optional[Tuple[Record, ...]] = None
    nvml: Optional[NvmlReading] = None
    compute: Optional[Mapping[str, Any]] = None
    bus: Optional[Mapping[str, bool]] = None
    fabric: bool = False
    services: Mapping[str, Service] = field(default_factory=dict)
    acts: Tuple[Act, ...] = ()
    left: Tuple[int, str] = (0, "")
    resets: Tuple[Tuple[int, Tuple[str, ...], str], ...] = ()
    machine: str = ""


@dataclass(frozen=True)
class State:
    """What is known of a host's health.

    boot, load:  of the last look.
    sequence:    the last record of the kernel's log that was judged, -1 for none of this boot.
    taken, at:   of the last look.
    asked:       'taken' of the last look of this boot that asked NVML, 0 without one.
    rounds:      that there have been, which tells the newer one of two states.
    gpus:        by UUID.
    findings:    open ones, by key.
    failing:     {what is looked at: its failures}.
    unknown:     one of WHATS: since when and why.
    suspects:    {key of a GPU: (when, process) of errors of applications}.
    counts:      {key of a GPU or NVSwitch: {'xid 79' or 'sxid 20034': how many were seen}}.
    released:    by key of a finding, of what goes on to be so.
    services:    as in the last look.
    left:        as in the last look.
    history:     findings that were cleared, the latest last.
    acts:        remedies that were done, the latest last.
    reset:       number of the last reset that was taken for one.
    machine:     as in the last look that could tell.
    """

    boot: str = ""
    load: str = ""
    sequence: int = -1
    taken: int = 0
    asked: int = 0
    at: float = 0.0
    rounds: int = 0
    gpus: Mapping[str, Known] = field(default_factory=dict)
    findings: Mapping[str, Finding] = field(default_factory=dict)
    failing: Mapping[str, Failing] = field(default_factory=dict)
    unknown: Mapping[str, Unknown] = field(default_factory=dict)
    suspects: Mapping[str, Tuple[Tuple[float, str], ...]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    released: Mapping[str, Released] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    left: Tuple[int, str] = (0, "")
    history: Tuple[Finding, ...] = ()
    acts: Tuple[Act, ...] = ()
    reset: int = 0
    machine: str = ""

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        kinds = {finding.kind for finding in self.findings.values()}
        if SICK in kinds:
            return SICK
        if not self.rounds or any(what in self.unknown for what in DECISIVE):
            return UNKNOWN
        return next((kind for kind in (PENDING, WARNING) if kind in kinds), WELL)

    @property
    def remedy(self) -> str:
        """The highest rung that an open finding asks for."""
        return max((finding.remedy for finding in self.findings.values()), key=LADDER.index, default="")

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            asdict(self), schema=SCHEMA,
            findings={key: finding.to_dict() for key, finding in self.findings.items()},
            history=[finding.to_dict() for finding in self.history])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """Raises ValueError, TypeError, KeyError or AttributeError for what is none of this schema."""
        if data["schema"] != SCHEMA:
            raise ValueError("schema %s, and not %d" % (data["schema"], SCHEMA))
        plain = {name: data[name] for name in (
            "boot", "load", "sequence", "taken", "asked", "at", "rounds", "reset", "machine")}
        state = cls(
            gpus={uuid: checked(Known(**dict(each, parts=tuple(map(str, each["parts"])),
                                             links=tuple(map(int, each.get("links", ()))))))
                  for uuid, each in data["gpus"].items()},
            findings={key: Finding.from_dict(each) for key, each in data["findings"].items()},
            failing={what: checked(Failing(**each)) for what, each in data["failing"].items()},
            unknown={what: checked(Unknown(**each)) for what, each in data["unknown"].items()},
            suspects={key: tuple((float(at), str(process)) for at, process in each)
                      for key, each in data["suspects"].items()},
            counts={key: {code: int(count) for code, count in each.items()} for key, each in data["counts"].items()},
            released={key: checked(Released(**each)) for key, each in data["released"].items()},
            services={unit: checked(Service(**each)) for unit, each in data["services"].items()},
            left=(int(data["left"][0]), str(data["left"][1])),
            history=tuple(Finding.from_dict(each) for each in data["history"]),
            acts=tuple(checked(Act(**each)) for each in data["acts"]),
            **plain)
        if any(each.key != key for key, each in state.findings.items()) or any(
                each.uuid != uuid for uuid, each in state.gpus.items()):
            raise ValueError("what is of another name than it says")
        return checked(state)
