# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of MIG do to GPUs in memory: modes, instances, and what a boot makes of them."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mig_boards
import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import POD
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import ComputeInstance, GpuInstance, Mig
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig import boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.former import Former, former_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Board
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.placement import Placed, placed_now
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.policy import Policy

DRIVER = "580.178.04"
FILES = (boot.SCRIPT, boot.UNIT_FILE)


@dataclass
class World(world.World):
    """
    boards:   the GPUs, as NVML tells of them.
    silent:   (GPU, why it does not answer).
    error:    why NVML does not answer.
    nodeless: capability files of instances without a device node.
    modprobe: whether nvidia-modprobe is installed.
    made:     how many MIG devices there have ever been: none gets the UUID of another.
    """

    capability = CAPABILITY

    boards: List[Board] = field(default_factory=list)
    silent: Tuple[Tuple[str, str], ...] = ()
    error: str = ""
    nodeless: Tuple[str, ...] = ()
    modprobe: bool = True
    made: int = 0
    fabric: str = ""
    stopped: List[str] = field(default_factory=list)
    rival: str = ""
    former: Dict[str, Former] = field(default_factory=dict)

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        if not policy.managed:
            return Observation()
        restore = () if policy.state != "absent" else tuple(
            restore_step("mig", path, self.files.get(path), text) for path, text in self.originals.items())
        own = Observation(former=dict(self.former), files=self.state(FILES),
                          enabled=self.unit(boot.UNIT).enabled, restore=restore)
        if self.error or not there.driver_loaded:
            return replace(own, error=self.error or "no driver is loaded")
        return replace(own, boards=tuple(self.boards), silent=self.silent, driver=there.driver_loaded,
                       nodeless=self.nodeless, modprobe=self.modprobe, stopped=tuple(self.stopped), rival=self.rival,
                       fabric=self.fabric if any(board.resets for board in self.boards) else "")

    def suppose(self, policy: Policy) -> None:
        """Pods that will have been evicted are gone with their programs; a removal waits for all others too."""
        if policy.assume_pods_evicted or policy.state == "absent":
            for number, board in enumerate(self.boards):
                self.boards[number] = replace(board, holders=_left(board.holders, policy), mig=board.mig and replace(
                    board.mig, instances=tuple(replace(instance, compute=tuple(
                        replace(each, holders=_left(each.holders, policy)) for each in instance.compute))
                        for instance in board.mig.instances)))

    def boot(self) -> None:
        """No instance outlives it, and MIG mode only on Ampere; our unit makes them again."""
        super().boot()
        self.stopped = []
        script = self.files.get(boot.SCRIPT, "") if self.unit(boot.UNIT).enabled else ""
        layouts = {words[1]: words[2:] for words in map(str.split, script.splitlines()) if words[:1] == ["restore"]}
        for number, board in enumerate(self.boards):
            mig = board.mig
            if mig is None:
                continue
            keeps = mig.pending and board.resets
            mig = replace(mig, current=keeps, pending=keeps, instances=(), devices=())
            if board.uuid in layouts:
                mig = replace(mig, current=True, pending=True)
                self.boards[number] = replace(board, mig=mig, holders=())
                self._divide(number, [self._restored(mig, word) for word in layouts[board.uuid]])
            else:
                self.boards[number] = replace(board, mig=mig, holders=())

    @staticmethod
    def _restored(mig: Mig, word: str) -> List[Any]:
        place, _slash, compute = word.partition("/")
        profile = mig.profile(int(place.split(":")[0]))
        assert profile is not None
        slices = [int(each) + 1 for each in compute.split(",")] if compute else [profile.slices]
        return [profile.id, int(place.split(":")[1]), profile.size, slices]

    def _numbered(self, uuid: str) -> int:
        return next(number for number, board in enumerate(self.boards) if board.uuid == uuid)

    def _divide(self, number: int, wanted: Sequence[Sequence[Any]]) -> None:
        board = self.boards[number]
        assert board.mig is not None and board.mig.current, "no instance without MIG mode"
        there = {(each.profile, each.start): each for each in board.mig.instances}
        instances = []
        for profile, start, size, compute in wanted:
            old = there.get((profile, start))
            if old is not None and sorted(each.slices for each in old.compute) == sorted(compute):
                instances.append(old)
                continue
            made = []
            for at, slices in enumerate(compute):
                self.made += 1
                made.append(ComputeInstance(at, at, slices, "MIG-%d" % self.made))
            instances.append(GpuInstance(100 + start, profile, start, size, tuple(made)))
        self.boards[number] = replace(board, mig=replace(board.mig, instances=tuple(instances), devices=tuple(
            compute.uuid for instance in instances for compute in instance.compute)))

    # verbs

    def service_stop(self, step: Step) -> Optional[Disruption]:
        self.stopped.append(step.subject)
        return super().service_stop(step)

    def service_start(self, step: Step) -> None:
        super().service_start(step)
        self.stopped = [unit for unit in self.stopped if unit != step.subject]

    def mig_mode(self, step: Step) -> Optional[Disruption]:
        number = self._numbered(step.parameters["uuid"])
        board, enabled = self.boards[number], step.parameters["enabled"]
        assert board.mig is not None and not board.holders and not board.mig.instances
        assert step.change["before"] == {"MIG mode": "on" if board.mig.current else "off"}
        self._note(board.uuid, board.mig, enabled, placed_now(board.mig))
        pends = board.resets and not board.resettable
        self.boards[number] = replace(board, mig=replace(
            board.mig, current=board.mig.current if pends else enabled, pending=enabled))
        return Disruption.gpu_reset if board.resets else None

    def mig_divide(self, step: Step) -> None:
        number = self._numbered(step.parameters["uuid"])
        mig = self.boards[number].mig
        assert mig is not None
        before = [[each.profile, each.start, each.size, list(each.compute)] for each in placed_now(mig)]
        assert step.parameters["before"] == before, "%s says that other instances are there" % step.id
        kept = {(profile, start) for profile, start, _size, _compute in step.parameters["after"]}
        assert not any(each.in_use for instance in mig.instances for each in instance.compute
                       if (instance.profile, instance.start) not in kept), "%s destroys what is in use" % step.id
        self._note(step.parameters["uuid"], mig, True, [
            Placed(profile, start, size, tuple(compute))
            for profile, start, size, compute in step.parameters["after"]])
        self._divide(number, step.parameters["after"])

    def _note(self, uuid: str, mig: Mig, enabled: bool, placed: Sequence[Placed]) -> None:
        if uuid not in self.former and not former_of(mig).is_all(enabled, placed):
            self.former[uuid] = former_of(mig)

    def mig_forget(self, step: Step) -> None:
        del self.former[step.parameters["uuid"]]

    def mig_nodes(self, step: Step) -> None:
        self.nodeless = ()

    # words

    def say_gpus(self, table: str, number: str = "1") -> None:
        """So many GPUs of a board, whose driver is loaded."""
        self.boards = [replace(board, mig=board.mig and replace(board.mig, current=False, pending=False),
                               resets=table.startswith("a"))
                       for board in mig_boards.boards(table, int(number))]
        self.facts = self.facts.but(driver_installed=DRIVER, driver_userspace=DRIVER, driver_loaded=DRIVER)

    def say_divided(self, index: str, *instances: str) -> None:
        """MIG mode is on, with these instances: 'PROFILE:START'."""
        number = int(index)
        mig = self.boards[number].mig
        assert mig is not None
        self.boards[number] = replace(self.boards[number], mig=replace(mig, current=True, pending=True, instances=()))
        by_name = {profile.name: profile for profile in mig.profiles}
        wanted = [(by_name[name], int(start)) for name, _colon, start in (word.partition(":") for word in instances)]
        self._divide(number, [[profile.id, start, profile.size, [profile.slices]] for profile, start in wanted])

    def say_boot_undone(self, index: str) -> None:
        """A boot has undone the layout, and what restores it has failed."""
        number = int(index)
        mig = self.boards[number].mig
        assert mig is not None
        self.boards[number] = replace(self.boards[number], mig=replace(
            mig, current=False, pending=False, instances=(), devices=()))

    def say_gone(self, index: str) -> None:
        """Off the bus: the GPUs behind it have moved up."""
        left = [board for board in self.boards if board.index != int(index)]
        self.boards = [replace(board, index=number) for number, board in enumerate(left)]

    def say_exchanged(self, index: str, uuid: str) -> None:
        """Another GPU lies in its place."""
        number = int(index)
        self.say_boot_undone(index)
        self.boards[number] = replace(self.boards[number], uuid=uuid)

    def say_error(self, error: str) -> None:
        self.error = error

    def say_held(self, index: str, start: str, *holders: str) -> None:
        """Somebody has the instance that begins there."""
        board = self.boards[int(index)]
        assert board.mig is not None
        self.boards[int(index)] = replace(board, mig=replace(board.mig, instances=tuple(
            replace(instance, compute=tuple(replace(each, holders=holders) for each in instance.compute))
            if instance.start == int(start) else instance for instance in board.mig.instances)))

    def say_used(self, index: str, *holders: str) -> None:
        """Somebody has the whole GPU."""
        self.boards[int(index)] = replace(self.boards[int(index)], holders=holders)

    def say_pending(self, index: str, mode: str) -> None:
        board = self.boards[int(index)]
        assert board.mig is not None
        self.boards[int(index)] = replace(board, mig=replace(board.mig, pending=mode == "on"))

    def say_unresettable(self) -> None:
        """As in a virtual machine without function-level reset."""
        self.boards = [replace(board, resettable=False) for board in self.boards]

    def say_untold(self) -> None:
        """A driver that tells no profiles before MIG mode is on."""
        self.boards = [replace(board, mig=board.mig and replace(board.mig, profiles=())) for board in self.boards]

    def say_silent(self, *words: str) -> None:
        self.silent = ((words[0], words[1]),)

    def say_nodeless(self, *files: str) -> None:
        self.nodeless = files

    def say_rival(self, path: str) -> None:
        """mig-parted's own unit is enabled."""
        self.rival = path

    def say_watched(self, index: str, *units: str) -> None:
        """Services that run and have the GPU open."""
        self.boards[int(index)] = replace(self.boards[int(index)], watchers=units)
        self.units.update({unit: world.Unit(known=True, enabled=True, active=True) for unit in units})

    def say_fabric_manager(self, state: str) -> None:
        """An NVSwitch board, whose fabric manager's service systemd calls so."""
        self.fabric = state

    def say_without_modprobe(self) -> None:
        self.modprobe = False


def _left(holders: Sequence[str], policy: Policy) -> Tuple[str, ...]:
    return tuple(holder for holder in holders if policy.state != "absent" and not holder.startswith(POD))
