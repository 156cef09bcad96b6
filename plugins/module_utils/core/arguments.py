# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options as Ansible checks them, in words for who has written them."""
from __future__ import annotations

from typing import List

from ansible.module_utils.common.arg_spec import ValidationResult
from ansible.module_utils.errors import UnsupportedError


def complaints(result: ValidationResult) -> List[str]:
    """What Ansible has against them. Of an option that is not there it tells the name, and not what is wrong."""
    return ["there is no %s" % error.msg if isinstance(error, UnsupportedError) else str(error.msg)
            for error in result.errors.errors]
