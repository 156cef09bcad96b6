# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps against nouveau do to a host in memory: the blacklist, what initramfs images hold, loaded modules."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.observation import (
    FILE,
    NOUVEAU,
    NOVA,
    Initramfs,
    Observation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.policy import Policy


@dataclass
class World(world.World):
    """
    loaded:    {module: how often it is in use}.
    elsewhere: whether files of others keep the modules away.
    tool:      program that makes the initramfs, '' if there is none.
    images:    {kernel: what its initramfs holds}.
    """

    capability = CAPABILITY

    loaded: Dict[str, int] = field(default_factory=dict)
    elsewhere: bool = False
    tool: str = "update-initramfs"
    images: Dict[str, Initramfs] = field(default_factory=dict)

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        return Observation(
            text=self.files.get(FILE), elsewhere=self.elsewhere, original=FILE in self.originals,
            before_us=self.originals.get(FILE),
            loaded={name: self.loaded[name] for name in NOUVEAU + NOVA if name in self.loaded}, tool=self.tool,
            initramfs=tuple(self.images.values()) if self.tool else ())

    @property
    def is_touched(self) -> bool:
        return super().is_touched or any(image.ours for image in self.images.values())

    def of_others(self) -> Dict[str, Any]:
        ours = [name for name, image in self.images.items() if image.ours]
        return {**super().of_others(), "images with our file": ours}

    def boot(self) -> None:
        """What an initramfs holds is loaded before the root file system is there, unless the blacklist is in it too."""
        super().boot()
        image = self.images.get(self.facts.kernel)
        early = image is not None and image.nouveau and not image.ours and not image.theirs
        if not early and (FILE in self.files or self.elsewhere):
            self.loaded = {}
        self._tell()

    def _tell(self) -> None:
        if not self.loaded:
            self.facts = self.facts.but(nouveau_loaded=False)

    # verbs

    def file_write(self, step: Step) -> None:
        super().file_write(step)
        self.images = {name: replace(image, older=True) for name, image in self.images.items()}

    def initramfs_rebuild(self, step: Step) -> None:
        self.images[step.subject] = replace(
            self.images[step.subject], ours=FILE in self.files, theirs=self.elsewhere, older=False)

    def module_unload(self, step: Step) -> None:
        assert self.loaded[step.subject] == 0, "modprobe: %s is in use" % step.subject
        assert step.subject != "nova_core" or "nova_drm" not in self.loaded, "nova_drm uses nova_core"
        del self.loaded[step.subject]
        self._tell()

    # what scenarios say

    def say_loaded(self, name: str, users: str = "0") -> None:
        """A driver of the kernel's own is loaded, and so often in use; for a GPU, where there is no display card."""
        self.loaded[name] = int(users)
        self.facts = self.facts.but(nouveau_loaded=not self.facts.other_gpus)

    def say_blacklist(self, _of: str, _others: str) -> None:
        """'blacklist of others': a file of somebody else has one, since the images were made."""
        self.elsewhere = True
        self.images = {name: replace(image, older=True) for name, image in self.images.items()}

    def say_image(self, kernel: str, *held: str) -> None:
        """What an initramfs holds: 'nouveau', 'theirs' (their blacklist), 'ours'; 'fresh': made after the blacklist."""
        self.images[kernel] = Initramfs(kernel, "/boot/initrd.img-" + kernel, "nouveau" in held, "ours" in held,
                                        "fresh" not in held, "theirs" in held)

    def say_tool(self, name: str = "") -> None:
        self.tool = name
