# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver writes into the kernel's log. Pure.

Forms: open-gpu-kernel-modules 595.45.04 (src/nvidia/src/kernel/rc/kernel_rc.c: "NVRM: Xid (%s): %d"; gpu.c: changes of
the recovery action, "NVRM: GPU at PCI:..."; common_nvswitch.h: "SXid (PCI:...): %05d, Fatal"). Records: the Linux
kernel's Documentation/ABI/testing/dev-kmsg.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

# Older drivers leave 'PCI:' and the domain away; a line about a part of a GPU names its instances
_ADDRESS = r"(?P<address>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?" + _ADDRESS +
    r"(?: GPU-I:(?P<gi>\d+)(?: GPU-CI:(?P<ci>\d+))?)?\): (?P<number>\d+)(?:, (?P<text>.*))?")
# Older drivers tell no name
_PROCESS = re.compile(r"pid='?(?P<pid>\d+|<unknown>)'?(?:, name=(?P<name>.*?))?(?:, |$)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d+)")
_ACTION = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x(?P<to>[0-9a-fA-F]+)")
_LINK = re.compile(r"(?P<unit>[A-Z0-9_]+)\s+(?P<severity>Fatal|Nonfatal)\b.*?Link\s+(?P<link>-?\d+)"
                   r".*?\(0x")
# Not all have a word of how bad it is; what the switch knows of an error follows in lines of its own
_SXID = re.compile(r"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:" + _ADDRESS + r"\): (?P<number>\d+), "
                   r"(?!Severity |Data \{)(?:(?P<severity>Fatal|Non-fatal|Correctable)\b(?:, )?)?"
                   r"(?:Link (?P<link>\d+))?")
_UUID = re.compile(r"NVRM: GPU at PCI:" + _ADDRESS + r": (?P<uuid>GPU-[0-9a-fA-F-]{36})")
_FALLEN = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?" + _ADDRESS + r".*fallen off the bus")
FALLEN_OFF = 79
# Who of the driver has written a line
_DRIVERS = ("NVRM", "nvidia-nvswitch")


@dataclass(frozen=True)
class Record:
    """A record of /dev/kmsg. sequence: its number since the boot. at: microseconds since the boot."""

    sequence: int
    at: int
    message: str


@dataclass(frozen=True)
class Event:
    """An error that a GPU or an NVSwitch had.

    address:   of PCI, in the form of sysfs.
    number:    Xid or SXid.
    is_switch: whether it is an SXid.
    sequence:  of its record.
    at:        microseconds since the boot.
    instance:  (GPU instance, compute instance) that it is about, -1 for all.
    process:   name and number of the process that it is about, '' where none is told.
    previous:  the Xid that caused it, 0 where none is told.
    action:    the recovery action that the driver asks for from now on, -1 where the line tells none.
    is_fatal:  what the line says; None where it says nothing.
    link:      of NVLink, -1 where the line is about none.
    text:      the rest of the line.
    """

    address: str
    number: int
    is_switch: bool = False
    sequence: int = 0
    at: int = 0
    instance: Tuple[int, int] = (-1, -1)
    process: str = ""
    previous: int = 0
    action: int = -1
    is_fatal: Optional[bool] = None
    link: int = -1
    text: str = ""


def parse_record(text: str) -> Optional[Record]:
    """'6,1234,5678901,-;message', with lines of properties behind it; None for what is none.

    What a program has written there, and not the kernel, has no message.
    """
    head, separator, rest = text.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 4 or not all(field.isdecimal() for field in fields[:3]):
        return None
    # Above its three bits of priority, a message says who wrote it: 0 is the kernel
    is_kernels = int(fields[0]) >> 3 == 0
    return Record(int(fields[1]), int(fields[2]), rest.split("\n", 1)[0] if is_kernels else "")


def gaps(sequences: Iterable[int], before: int) -> List[Tuple[int, int]]:
    """(first, last) of records that are missing. before: the last one that was read, -1 for none."""
    found = []
    for sequence in sequences:
        if sequence > before + 1:
            found.append((before + 1, sequence - 1))
        before = max(before, sequence)
    return found


def is_of_driver(record: Record) -> bool:
    return any(driver in record.message for driver in _DRIVERS)


def parse_event(record: Record) -> Optional[Event]:
    """The error that a record tells of, None for any other."""
    line = record.message
    match = _XID.search(line)
    if match:
        return _xid(record, match)
    match = _SXID.search(line)
    if match:
        return Event(
            normal(match["address"]), int(match["number"]), True, record.sequence, record.at,
            is_fatal=None if match["severity"] is None else match["severity"] == "Fatal",
            link=int(match["link"] or -1), text=line[match.end():].strip(", "))
    match = _FALLEN.search(line)
    if match:
        # Said without a number, where the GPU is found to be gone before anything else goes wrong
        return Event(normal(match["address"]), FALLEN_OFF, False, record.sequence, record.at, text=line)
    return None


def parse_events(records: Iterable[Record]) -> Iterator[Event]:
    """Each error once: an NVSwitch follows its first line up with more of the same number, which say no more of what
    happened, and that a GPU has fallen off the bus the driver says with its number and without."""
    before: Any = None
    fallen = set()
    for record in records:
        event = parse_event(record)
        if event is None:
            continue
        if event.number == FALLEN_OFF and not event.is_switch:
            if event.address in fallen:
                continue
            fallen.add(event.address)
        key = (event.address, event.number, event.link) if event.is_switch else None
        if key is None or key != before:
            yield event
        before = key


def _xid(record: Record, match: "re.Match[str]") -> Event:
    text = match["text"] or ""
    process, previous, action, link = (each.search(text) for each in (_PROCESS, _PREVIOUS, _ACTION, _LINK))
    known = process is not None and process["pid"].isdigit()
    return Event(
        address=normal(match["address"]),
        number=int(match["number"]),
        sequence=record.sequence,
        at=record.at,
        instance=(int(match["gi"] or -1), int(match["ci"] or -1)),
        process="%s (pid %s)" % ((process["name"] or "a process").strip("'"), process["pid"])
        if known and process else "",
        previous=int(previous.group(1)) if previous else 0,
        action=int(action["to"], 16) if action else -1,
        is_fatal=None if link is None else link["severity"] == "Fatal",
        link=-1 if link is None else int(link["link"]),
        text=text,
    )


def parse_uuids(records: Iterable[Record]) -> Dict[str, str]:
    """{PCI address: UUID}: the only way from one to the other for a GPU that is gone."""
    found = {}
    for record in records:
        match = _UUID.search(record.message)
        if match:
            found[normal(match["address"])] = match["uuid"]
    return found


def normal(address: str) -> str:
    """sysfs form: '0000:3b:00' and '3b:00' are '0000:3b:00.0', as the driver leaves function and domain away."""
    text = address.lower()
    text = text if "." in text else text + ".0"
    parts = text.split(":")
    domain, rest = (parts[0], parts[1:]) if len(parts) == 3 else ("0", parts)
    return "%04x:%s" % (int(domain, 16), ":".join(rest))
