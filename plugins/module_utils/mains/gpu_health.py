# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from ..core.host import Host
from ..core.module import finish
from ..health.told import ARGUMENTS, looked


def main() -> None:
    module = AnsibleModule(argument_spec=dict(ARGUMENTS), supports_check_mode=True)
    finish(module, lambda: looked(Host(), module.params, module.check_mode), as_root=True)
