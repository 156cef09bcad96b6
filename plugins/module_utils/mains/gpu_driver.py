# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ..core.module import run_writer
from ..driver.capability import Driver
from ..hardware.node import host_facts
from ..packages.provenance import Provenance


def main() -> None:
    run_writer(Driver(), host_facts, Provenance())
