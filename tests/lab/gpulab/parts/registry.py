# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All parts of the laboratory: every module beside this one that has a tuple called PARTS."""
from __future__ import annotations

import importlib
import pkgutil
from typing import List

from .. import parts
from ..cache import Part, Workshop


def workshop() -> Workshop:
    found: List[Part] = []
    for info in sorted(pkgutil.iter_modules(parts.__path__), key=lambda each: each.name):
        if info.name != "registry":
            module = importlib.import_module("%s.%s" % (parts.__name__, info.name))
            found.extend(getattr(module, "PARTS", ()))
    return Workshop(found)


# Built only when they are named, or a host is made of them: what slow tests alone need.
ON_DEMAND = ("apt-debian-nvidia", "apt-debian-cloud-init", "root-trixie", "apt-debian-trixie",
             "apt-debian-trixie-nvidia", "node-problem-detector")
