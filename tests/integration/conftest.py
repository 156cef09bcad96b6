# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes `ansible_collections.gpuops.nvidia` importable from a checkout that lies anywhere."""
from __future__ import annotations

import sys

from workspace import collections_root

sys.path.insert(0, str(collections_root()))
