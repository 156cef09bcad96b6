# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host has for node-problem-detector, wherever that runs: a plugin, and a configuration a condition. Pure.

The detector reads only what its command line names, so no directory of its own waits for these files. They have one
that holds nothing else: a pod that mounts it sees neither the policy beside it, which may hold credentials, nor a
state.
"""
from __future__ import annotations

import json
from typing import Dict, List, Mapping, Optional, Tuple

from ..core.plan import Step
from ..core.steps import file_step
from ..health.problems import PLUGIN, configurations, plugin_text
from ..health.state import CONDITIONS
from .policy import NAME

DIRECTORY = "/etc/gpuops/node-problem-detector"
_MODES = {PLUGIN: 0o755}


def _texts() -> Dict[str, str]:
    """In the order in which they are written: no configuration names a plugin that is not there. Files go in the order
    of their names, so the one that has made the directory is the last of them."""
    written = {"%s/%s.json" % (DIRECTORY, name): json.dumps(each, indent=2) + "\n"
               for name, each in configurations().items()}
    return {PLUGIN: plugin_text(CONDITIONS), **{path: written[path] for path in sorted(written, reverse=True)}}


# In the order in which they go
FILES: Tuple[str, ...] = tuple(sorted(_texts()))


def files(is_wanted: bool) -> Dict[str, str]:
    """{path: text} of what there is to be; what there is else of ours is put back as it was."""
    return _texts() if is_wanted else {}


def steps(is_wanted: bool, there: Mapping[str, Optional[str]]) -> List[Step]:
    """there: {path: text}, None for a file that is not there."""
    return [file_step(NAME, path, there.get(path), text, "node-problem-detector tells of this host's GPUs by it.",
                      mode=_MODES.get(path, 0o644))
            for path, text in files(is_wanted).items() if there.get(path) != text]
