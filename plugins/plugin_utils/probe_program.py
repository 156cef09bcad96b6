# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection's own code that computes, as arguments for the Python of a container.

It goes with the pod itself: a ConfigMap would be one more object to own, and to take away from killed runs. An argument
may have 128 KiB (execve(2), MAX_ARG_STRLEN).
"""
from __future__ import annotations

import base64
import functools
import json
import zlib
from pathlib import Path
from typing import List

# Each imports only what stands before it; the last one has main()
FILES = (
    "core.waiting",
    "core.children",
    "hardware.cuda",
    "validation.compute.levels",
    "validation.compute.model",
    "validation.compute.kernels",
    "validation.compute.child",
    "validation.compute.parent",
    "validation.compute.carried",
    "validation.compute.in_container",
)
# Modules come to be without a file: a container may have nowhere to write one. An image that cannot even import what
# they need says so itself.
LOADER = """
import json, sys
def load(given):
    import base64, importlib.machinery, importlib.util, types, zlib
    for name, text in json.loads(zlib.decompress(base64.b64decode(given))):
        module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("gpuops." + name, None))
        package, _, last = module.__name__.rpartition(".")
        setattr(sys.modules.setdefault(package, types.ModuleType(package)), last, module)
        sys.modules[module.__name__] = module
        exec(compile(text, name, "exec"), vars(module))
    return module.main
try:
    main = load(sys.argv[1])
except Exception as error:
    print(json.dumps({"unable": "its Python %d.%d does not load the program: %s" % (
        *sys.version_info[:2], str(error)[:200])}))
else:
    main(*sys.argv[2:])
"""


def probe_program(seconds: float) -> List[str]:
    """What `python3 -c` is to be given. seconds: that a pod is waited for.

    A call may take half of them: so a pod whose device hangs ends, and says so, before nobody waits for it any more.
    """
    return [LOADER, _packed(), "%.0f" % max(seconds / 2, 10), "%.0f" % max(seconds, 10)]


@functools.lru_cache(maxsize=None)
def _packed() -> str:
    directory = Path(__file__).resolve().parents[1] / "module_utils"
    texts = [[name, (directory / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8")] for name in FILES]
    return base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()
