# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection with action plugins of a test's own: playbooks, roles and everything else are the real ones."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Iterable, Mapping

from workspace import REPOSITORY

# gpu_plan as it is, but for what the module finds: that is a stored result in the directory that the variable 'stored'
# names, or the host cannot be reached
STORED_PLAN = '''
import json
import pathlib

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpuops.nvidia.plugins.action import of_gpu_plan


class ActionModule(of_gpu_plan.ActionModule):
    def _rounds(self, arguments, content, task_vars):
        stored = pathlib.Path(task_vars["stored"])
        found = json.loads((stored / (task_vars["inventory_hostname"] + ".json")).read_text())
        if "raised" in found:
            raise AnsibleConnectionFailure(found["raised"])
        if "result" in found:
            return self._in_words_of_reader(found["result"])
        return self._in_words_of_reader(json.loads((stored / found["same_as"]).read_text()))
'''


def kept(place: Path, actions: Mapping[str, str]) -> Path:
    """Where the collection is with these action plugins: below this place, and made once, as what is at the ready for
    its runs has it imported."""
    root = place / hashlib.sha256(json.dumps(actions, sort_keys=True).encode()).hexdigest()[:16]
    if not root.exists():
        collection(root, actions)
    return root


def collection(root: Path, actions: Mapping[str, str]) -> None:
    """Make it below a directory. actions: {name: source} in place of its own, which a source has as 'of_' + name."""
    home = root / "ansible_collections" / "gpuops" / "nvidia"
    there = home / "plugins" / "action"
    there.mkdir(parents=True)
    plugins = REPOSITORY / "plugins"
    _link(home, REPOSITORY, ("meta", "playbooks", "roles", "galaxy.yml"))
    _link(home / "plugins", plugins, [path.name for path in plugins.iterdir() if path.name != "action"])
    _link(there, plugins / "action", [path.name for path in (plugins / "action").glob("*.py")
                                      if path.stem not in actions])
    for name, source in actions.items():
        (there / (name + ".py")).write_text(source)
        if "of_" + name in source:
            (there / ("of_%s.py" % name)).symlink_to(plugins / "action" / (name + ".py"))


def _link(here: Path, there: Path, names: Iterable[str]) -> None:
    for name in names:
        (here / name).symlink_to(there / name)
