# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""/etc/nvidia-container-runtime/config.toml: what is in effect, and the same file with other values."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

from ...core import libraries
from ...core.errors import GpuOpsError

Key = Tuple[str, ...]

# What the toolkit uses for a key that the file does not set (api/config/v1 of NVIDIA/nvidia-container-toolkit)
DEFAULTS: Dict[Key, Any] = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): True,
    ("nvidia-container-runtime", "mode"): "auto",
    ("nvidia-container-runtime", "runtimes"): ["runc", "crun"],
}
RUNTIMES: Key = ("nvidia-container-runtime", "runtimes")

# Values that packages wrote: replacing them loses nobody's choice
STOCK_RUNTIMES = (["runc", "crun"], ["docker-runc", "runc", "crun"], ["docker-runc", "runc"])


def read_settings(path: str, text: str) -> Dict[Key, Any]:
    """The values in effect of the keys that we manage. Raises GpuOpsError that names the line of a broken file."""
    data = _parse(path, text).unwrap()
    effective = {}
    for key, default in DEFAULTS.items():
        value: Any = data
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        effective[key] = default if value is None else value
    return effective


def with_settings(path: str, text: Optional[str], settings: Mapping[Key, Any]) -> str:
    """The file with these values; comments, order and everything else stay."""
    document = _parse(path, text or "")
    tomlkit = libraries.require("tomlkit")
    for key, value in settings.items():
        table = document
        for part in key[:-1]:
            if part not in table:
                table[part] = tomlkit.table()
            table = table[part]
        table[key[-1]] = value
    return str(tomlkit.dumps(document))


def _parse(path: str, text: str) -> Any:
    tomlkit = libraries.require("tomlkit")
    try:
        return tomlkit.parse(text)
    except tomlkit.exceptions.TOMLKitError as error:
        raise GpuOpsError(
            found="%s%s: %s" % (path, ":%d" % error.line if hasattr(error, "line") else "", error),
            wanted="valid TOML",
            remedy="correct the file by hand; nothing was changed",
            file=path,
            line=getattr(error, "line", None),
        ) from error
