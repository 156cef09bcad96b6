# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule, env_fallback

from ..cluster.client import auth_argument_spec
from ..core.module import finish
from ..validation.arguments import ARGUMENTS
from ..validation.on_host import validate_host


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(ARGUMENTS, **auth_argument_spec(env_fallback)),
        supports_check_mode=True,
    )
    finish(module, lambda: validate_host(module.params, module.check_mode), as_root=True)
