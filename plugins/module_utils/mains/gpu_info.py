# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any

from ..core.host import Host
from ..core.module import run_reader
from ..hardware.report import compact, read_host
from ..health.errors import read_errors


def read(host: Host, parameters: dict[str, Any]) -> dict[str, Any]:
    told = read_host(host)
    observation = dict(told, kernel_log=read_errors(host, told["nvml"]["gpus"]))
    return {"observation": observation, "ansible_facts": {"gpuops": compact(observation)}}


def main() -> None:
    run_reader({}, read)
