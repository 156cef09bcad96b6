# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the GPUs are set to, what they were set to before us, and what sets them up at a boot."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.loaded import load_of
from ..hardware.nvml import NvmlFailed, NvmlGpu, Session, reading_of
from ..hardware.nvml_settings import REQUESTS
from ..hardware.reset import fabric_runs, read_resettable, unfinished_steps
from ..hardware.reset_plan import Resettable
from ..hardware.resets import resets
from . import boot, notes
from .model import ECC, Change, Gpu
from .policy import Policy

NAME = notes.NAME


@dataclass(frozen=True)
class Observation:
    """What is there. Nothing is asked of GPUs for which nothing is wanted, and to which nothing is to be given back.

    gpus:        those that answer.
    silent:      (GPU, why it does not answer).
    error:       why NVML does not answer, '' when it does.
    driver:      version of the driver that answered.
    former:      {UUID: {setting: our change of it}}.
    elsewhere:   UUIDs of those among them that are another machine's, and have not fallen off here.
    files:       {path: text or None} of our own files for the boot.
    enabled:     whether our unit is.
    restore:     steps that put back the files that we changed (only read when they are to go).
    fabric_runs: whether the fabric manager does, where that decides who is reset together.
    unfinished:  steps that bring back what a reset of a run that was killed has stopped and lost.
    """

    gpus: Tuple[Gpu, ...] = ()
    silent: Tuple[Tuple[str, str], ...] = ()
    error: str = ""
    driver: str = ""
    former: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    elsewhere: Tuple[str, ...] = ()
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    enabled: bool = False
    restore: Tuple[Step, ...] = ()
    fabric_runs: bool = False
    unfinished: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        # Who has a GPU open changes by the minute, without any meaning for the plan beyond what it tells of them
        gpus = tuple(gpu if gpu.reset is None else replace(gpu, reset=replace(gpu.reset, holders=()))
                     for gpu in self.gpus)
        return dict(asdict(replace(self, gpus=gpus, restore=(), unfinished=())),
                    restore=[step.to_dict() for step in self.restore],
                    unfinished=[step.to_dict() for step in self.unfinished])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = journal.recall(NAME)
    absent = policy.state == "absent"
    files = {path: host.read(path) for path in (boot.SCRIPT, boot.UNIT_FILE)}
    seen = Observation(
        unfinished=unfinished_steps(host, journal, NAME), former=notes.former(memory),
        elsewhere=notes.elsewhere(host, memory), files=files,
        enabled=host.exists(boot.WANTS),
        restore=tuple(restore_steps(NAME, host, journal)) if absent else ())
    if not seen.former and (absent or not policy.entries):
        return seen
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    if reading.error:
        return replace(seen, error=reading.error)
    locked = notes.locked(memory, load_of(host), notes.restored(host), resets(host))
    silent = [(gpu.named(), gpu.error) for gpu in reading.gpus if gpu.error]
    told: Dict[str, Dict[str, Any]] = {}
    known: Dict[str, Resettable] = {}
    session = Session(REQUESTS)
    asked = ""

    def ask(name: str, uuid: str, *arguments: Any) -> Any:
        nonlocal asked
        asked = uuid
        return session.ask(name, uuid, *arguments)

    try:
        for gpu in reading.gpus:
            try:
                if not gpu.error:
                    told[gpu.uuid] = ask("get", gpu.uuid)
            except NvmlFailed as failed:
                # What the others have is to be given back all the same
                silent.append((gpu.named(), str(failed)))
        if not session.lost and _asks_for_ecc(seen, policy):
            known = {each.uuid: each for each in read_resettable(host, journal, reading.gpus, told, ask)}
    except NvmlFailed as failed:
        silent += [(gpu.named(), str(failed)) for gpu in reading.gpus if gpu.uuid == asked]
    finally:
        session.close()
    gpus = tuple(_gpu(gpu, facts, told[gpu.uuid], locked.get(gpu.uuid, {}), known.get(gpu.uuid))
                 for gpu in reading.gpus if gpu.uuid in told)
    return replace(seen, gpus=gpus, silent=tuple(silent), driver=reading.driver_version,
                   fabric_runs=any(each.joined for each in known.values()) and fabric_runs(host))


def _asks_for_ecc(seen: Observation, policy: Policy) -> bool:
    return any(ECC in values for values in (*seen.former.values(), *(
        entry.values for entry in policy.entries if policy.state == "present")))


def _gpu(
    gpu: NvmlGpu, facts: HostFacts, told: Mapping[str, Any], locked: Mapping[str, Any], reset: Optional[Resettable]
) -> Gpu:
    device_id = next((each.device_id for each in facts.gpus if each.address == gpu.pci_address), "")
    values = {name: told[name] for name in ("persistence", "power_limit", "compute_mode", ECC)}
    return Gpu(
        gpu.uuid, gpu.name, gpu.pci_address, gpu.index, device_id, told["architecture"], gpu.is_divided,
        {**values, "gpu_clocks": locked.get("gpu_clocks"), "memory_clocks": locked.get("memory_clocks")},
        (told["power_least"], told["power_default"], told["power_most"]),
        (told["fastest_gpu"], told["fastest_memory"]), reset)
