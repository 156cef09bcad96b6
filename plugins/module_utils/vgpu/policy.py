# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the license of a vGPU guest."""
from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping

from ..core import assignments
from ..core.errors import GpuOpsError
from .catalogue import FEATURE, FEATURES

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "token": {"type": "str", "default": "", "no_log": True},
    "feature_type": {"type": "int", "choices": sorted(FEATURES)},
    "config": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 120},
}

_TOKEN = re.compile(r"^[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+){2}$")
_KEY = re.compile(r"^[A-Z][A-Za-z0-9]*$")


@dataclass(frozen=True)
class Policy:
    """What is wanted of the license of virtual GPUs.

    state:    present, or absent, which takes back what we changed.
    token:    text of the client configuration token, '' where it is not ours to bring.
    settings: {key: value} of gridd.conf that are to be so.
    timeout:  seconds that the license may take.
    """

    state: str = "present"
    token: str = field(default="", repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    timeout: int = 120


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    token = str(parameters["token"] or "").strip()
    if token and not _TOKEN.match(token):
        raise GpuOpsError(
            "vgpu.token_malformed",
            found="a `token` of %d letters that is no client configuration token" % len(token),
            wanted="the text of the file that the license server gave out: three parts of letters and digits, with "
                   "dots between them",
            remedy="set `token` to the content of client_configuration_token_*.tok, by the `file` lookup or from a "
                   "vault",
            option="token",
        )
    try:
        config = assignments.wanted_of(parameters["config"] or {})
        wrong = [key for key in config if not _KEY.match(key) or key == FEATURE]
        if wrong:
            raise ValueError(", ".join(wrong))
    except ValueError as error:
        raise GpuOpsError(
            "vgpu.config_malformed",
            found="`config` has %s" % error,
            wanted="keys as gridd.conf has them, with a text of one line or a number; %s is `feature_type`" % FEATURE,
            remedy="correct `config`",
            option="config",
        ) from error
    feature = parameters["feature_type"]
    return Policy(
        state=parameters["state"],
        token=token,
        settings=config if feature is None else {FEATURE: str(feature), **config},
        timeout=parameters["timeout"],
    )


def named(token: str) -> str:
    """What stands for a token in plans: enough to tell it from another one."""
    return "sha256 " + hashlib.sha256(token.strip().encode()).hexdigest()[:16]
