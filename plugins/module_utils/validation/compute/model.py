# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is computed on, and what came of it. Pure data."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple


@dataclass(frozen=True)
class Device:
    """A GPU that is not divided, or a MIG device.

    uuid:     NVML's.
    name:     'GPU 3 (0000:9d:00.0)', '1g.10gb 5/0 of GPU 3 (0000:9d:00.0)'.
    whole:    whether it is a GPU.
    in_use:   who has it, by name: programs and pods; () where nobody does.
    gpu:      UUID of the GPU that it is, or is a part of.
    unknown:  why it cannot be told what is to be computed on, '' where it can.
    switched: whether its host has NVSwitches, so that each pair of GPUs has all links.
    virtual:  whether it is a share of a GPU that this host does not have for itself.
    """

    uuid: str
    name: str
    whole: bool = True
    in_use: Tuple[str, ...] = ()
    gpu: str = ""
    unknown: str = ""
    switched: bool = False
    virtual: bool = False


@dataclass(frozen=True)
class Wrong:
    """A result that is not what was to be computed, though no call failed.

    what:            the program, or 'copy', 'memory', 'peer'.
    where:           a multiprocessor's number, a byte of memory or of a copy, the other GPU.
    expected, found: what should be there, and what is, in hexadecimal digits; '' where it is about none.
    count:           how many there were of it.
    """

    what: str
    where: str
    expected: str = ""
    found: str = ""
    count: int = 1


@dataclass(frozen=True)
class Proof:
    """What came of computing on a device.

    board:           the name that the driver gives it.
    multiprocessors: those that it has; seen: those that computed.
    wrong:           what was computed wrongly.
    rates:           GB/s, by what limits.too_slow() calls them.
    call:            the call that failed or did not come back, '' where all did.
    code, error:     of a call that failed: CUresult and its name; code 0 where there is none.
    log:             what the driver's compiler says.
    hung:            seconds that the call had not answered, 0 where it did.
    died:            whether the process ended in that call.
    left:            the process that cannot be ended, as it sleeps in the driver; 0 where there is none.
    unstarted:       why no process could be started.
    earlier:         what failed before and has not passed since, '' where nothing has.
    exclusive:       whether its compute mode lets others keep us out.
    written:         bytes of memory that were written and read as a whole.
    unwritten:       bytes that were free and were not.
    seconds:         that it took, with the start of the driver's context; started: that alone.
    """

    device: Device
    board: str = ""
    multiprocessors: int = 0
    seen: int = 0
    wrong: Tuple[Wrong, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    call: str = ""
    code: int = 0
    error: str = ""
    log: str = ""
    hung: float = 0.0
    died: bool = False
    left: int = 0
    unstarted: str = ""
    earlier: str = ""
    exclusive: bool = False
    written: int = 0
    unwritten: int = 0
    seconds: float = 0.0
    started: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether everything was done that was to be done."""
        return not (self.device.in_use or self.device.unknown or self.call or self.unstarted)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "uuid": self.device.uuid, "name": self.device.name, "board": self.board, "in_use": list(self.device.in_use),
            "multiprocessors": self.multiprocessors, "multiprocessors_seen": self.seen,
            "wrong": [vars(each) for each in self.wrong], "rates": dict(self.rates), "call": self.call,
            "code": self.code, "error": self.error, "log": self.log, "hung": self.hung, "seconds": self.seconds,
            "started": self.started,
        }
