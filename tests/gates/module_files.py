# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Ansible wants of a module that changes a host, beside its DOCUMENTATION and its capability.

Action plugin and main function, the option of gpu_plan and the action group follow from the two; none is written.
"""
from __future__ import annotations

from typing import Dict, List

from role_files import MODULES, capability_names, documentation_blocks, sources
from workspace import REPOSITORY

FRAGMENT = "gpuops.nvidia.writer"
GROUPS = "meta/runtime.yml"
BEGIN = "  # Made from the modules' names by tests/gates/documentation.py\n"
END = "  # End of what is made\n"
HEAD = """\
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

"""
ACTION = HEAD + '''\
from ..plugin_utils.capability_action import CapabilityAction


class ActionModule(CapabilityAction):
    """Runs the module of the same name with the libraries that it needs."""
'''
MAIN = HEAD + '''\
from ..%s.capability import CAPABILITY
from ..writing import write


def main() -> None:
    write(CAPABILITY)
'''
OPTION = """\
  %s:
    description: Options of M(gpuops.nvidia.%s). Left out, the capability is not planned.
    type: dict
"""


def writers() -> List[str]:
    """The modules that change a host, as their documentation says."""
    return [path.stem for path in sorted(MODULES.glob("*.py")) if FRAGMENT in documentation_blocks(path)[
        "DOCUMENTATION"].get("extends_documentation_fragment", ())]


def files() -> Dict[str, str]:
    """{path in the repository: text} of what is made for modules that change a host."""
    made = {"plugins/action/%s.py" % module: ACTION for module in writers()}
    made.update({"plugins/module_utils/mains/%s.py" % module: MAIN % sources()[module].capability
                 for module in writers()})
    made[GROUPS] = _between((REPOSITORY / GROUPS).read_text(), "".join(
        ["  host:\n", *("    - %s\n" % module for module in writers())]))
    return made


def planner(text: str) -> str:
    """The module gpu_plan with an option for each capability, in the order in which they are planned."""
    modules = {source.capability: module for module, source in sources().items()}
    return _between(text, "".join(OPTION % (name, modules[name]) for name in capability_names()))


def _between(text: str, made: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + made + END + rest.split(END)[1]
