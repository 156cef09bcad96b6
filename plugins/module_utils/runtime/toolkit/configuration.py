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
LDCONFIG: Key = ("nvidia-container-cli", "ldconfig")
LDCONFIG_FROM_CONTAINER: Key = ("features", "allow-ldconfig-from-container")

# Values that packages wrote: replacing them loses nobody's choice
STOCK_RUNTIMES = (["runc", "crun"], ["docker-runc", "runc", "crun"], ["docker-runc", "runc"])


def read_settings(path: str, text: str) -> Dict[Key, Any]:
    """The values in effect of the keys that we manage. Raises GpuOpsError that names the line of a broken file."""
    data = _parse(path, text).unwrap()
    _refuse_ldconfig_of_containers(path, data)
    effective = {}
    for key, default in DEFAULTS.items():
        value = _value(data, key)
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


def _value(data: Any, key: Key) -> Any:
    for part in key:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _refuse_ldconfig_of_containers(path: str, data: Any) -> None:
    """nvidia-ctk accepts such a value, and NVIDIA's runtime then starts no container (assertValid in api/config/v1)."""
    ldconfig = _value(data, LDCONFIG)
    if isinstance(ldconfig, str) and not ldconfig.startswith("@") and not _value(data, LDCONFIG_FROM_CONTAINER):
        raise GpuOpsError(
            found="%s: nvidia-container-cli.ldconfig = '%s'" % (path, ldconfig),
            wanted="a path on the host, which starts with '@'",
            remedy="write '@%s', or remove the line" % ldconfig,
            file=path,
        )


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
