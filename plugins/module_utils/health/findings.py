# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A finding: something that is wrong with a GPU, an NVSwitch or the host, from when it is first seen until it is proved
to have ended. Pure data."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Dict, Mapping, Tuple, TypeVar

from ..hardware.recovery import LADDER
from .catalogue import KINDS

SCHEMA = 1
GPU, SWITCH, HOST = "gpu", "switch", "host"
# Where it comes from
KERNEL_LOG, NVML, COMPUTE, FABRIC, SERVICE = SOURCES = ("kernel_log", "nvml", "compute", "fabric", "service")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Subject:
    """What a finding is about.

    kind:    GPU, SWITCH or HOST.
    uuid:    of a GPU, '' where nobody has told it.
    serial:  of its board, '' where it has none.
    address: on the PCI bus; '' of the host.
    """

    kind: str
    uuid: str = ""
    serial: str = ""
    address: str = ""

    @property
    def key(self) -> str:
        """It outlives another place in the host, and another name of the host, where a UUID is known."""
        return self.kind if self.kind == HOST else "%s %s" % (self.kind, self.uuid or self.address)

    def named(self) -> str:
        """'GPU 0000:3b:00.0 (GPU-9da9...)', for people."""
        if self.kind == HOST:
            return "the host"
        word = "GPU" if self.kind == GPU else "NVSwitch"
        place = self.address or self.uuid
        return "%s %s (%s)" % (word, place, self.uuid) if self.uuid and self.address else "%s %s" % (word, place)


@dataclass(frozen=True)
class Moment:
    """at: seconds since the epoch, by the clock as it was set then. boot: the id of the boot."""

    at: float
    boot: str


@dataclass(frozen=True)
class Finding:
    """What is wrong, open until it is cleared.

    code:       what it is: 'xid 79', 'sxid 20034', 'recovery_action', 'hang' ...
    kind:       warning, pending or sick (catalogue.py).
    remedy:     the rung of the ladder that mends it.
    text:       for people, without anything that only root may read.
    check:      level of a compute check that is asked for, '' for none.
    detail:     the last line about it; it may name somebody's process.
    count:      how often it was seen. times: how often with a pause between, which is what 'after' of a meaning counts.
    quiet:      since when nothing was heard of it while its source could be read, in seconds of the boot's clock.
    undecided:  whether the driver's own word on it outranks kind and remedy, and is not known yet.
    mended:     what was done that is its remedy, since it was last seen; '' for nothing yet.
    proof:      {UUID of a device: the compute check that it had passed by then}, which proves nothing of it.
    cleared_by: what proved its end. cleared_at: seconds since the epoch.
    """

    subject: Subject
    source: str
    code: str
    kind: str
    remedy: str
    text: str
    first: Moment
    last: Moment
    check: str = ""
    detail: str = ""
    count: int = 1
    times: int = 1
    quiet: float = 0.0
    undecided: bool = False
    mended: str = ""
    proof: Mapping[str, str] = field(default_factory=dict)
    cleared_by: str = ""
    cleared_at: float = 0.0

    @property
    def key(self) -> str:
        return key_of(self.subject, self.code)

    @property
    def state(self) -> str:
        return "cleared" if self.cleared_by else "open"

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), schema=SCHEMA, state=self.state)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Raises ValueError, TypeError or KeyError for what is none of this schema."""
        fields = {name: value for name, value in data.items() if name not in ("schema", "state")}
        if data["schema"] != SCHEMA or data["kind"] not in KINDS or data["remedy"] not in LADDER \
                or data["source"] not in SOURCES:
            raise ValueError("a finding of another release")
        return checked(cls(**dict(fields, subject=Subject(**data["subject"]), first=Moment(**data["first"]),
                                  last=Moment(**data["last"]))))


# What a field may be that has this type, where it was read
_KINDS: Dict[str, Tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "Mapping[str, str]": (dict,)}


def checked(value: Read) -> Read:
    """A dataclass, whose plain fields are what they are to be, and so are those of the dataclasses in it. Raises
    TypeError: one leaf that is none would stop every round."""
    for each in dataclass_fields(value):  # type: ignore[arg-type]
        found, kinds = getattr(value, each.name), _KINDS.get(str(each.type))
        if kinds and (not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds)):
            raise TypeError("%s is %r" % (each.name, found))
        if kinds == (dict,) and not all(isinstance(word, str) for item in found.items() for word in item):
            raise TypeError("%s is %r" % (each.name, found))
        if is_dataclass(found):
            checked(found)
    return value


def key_of(subject: Subject, code: str) -> str:
    return "%s: %s" % (subject.key, code)
