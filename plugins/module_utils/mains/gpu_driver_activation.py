# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ..core.module import run_writer
from ..driver.capability import Activation
from ..hardware.node import host_facts_and_health


def main() -> None:
    run_writer(Activation(), host_facts_and_health)
