# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes `ansible_collections.gpuops.nvidia` importable from a checkout that lies anywhere, and what tests share."""
from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings
from workspace import collections_root

sys.path.insert(0, str(collections_root()))
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no defect, and a gate must not find today what it did not find yesterday.
settings.register_profile("gates", deadline=None, derandomize=True, database=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gates")
