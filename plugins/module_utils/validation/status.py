# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a check can come to: as their files say, skipped is what was not looked at, unknown what could not be read."""
from __future__ import annotations

PASSED, FAILED, SKIPPED, UNKNOWN = "passed", "failed", "skipped", "unknown"
