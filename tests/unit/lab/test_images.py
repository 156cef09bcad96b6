# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The laboratory has the images that the roles' own defaults name, so that a test that sets none finds them."""
from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import defaults
from gpulab.parts.images import IMAGES, LIBRARY_DIR, LOADER, Rootfs

REFERENCES = [reference for image in IMAGES for reference in image.references()]


def test_the_image_of_the_validations_pod_is_one_of_them() -> None:
    assert defaults("gpu_validation")["gpu_validation_pod_image"] in REFERENCES


def test_python_comes_from_a_root_with_its_libraries_and_without_what_is_compiled(tmp_path: Path) -> None:
    programs, library, system = tmp_path / "usr/bin", tmp_path / "usr/lib/python3.11", tmp_path / LIBRARY_DIR
    for directory in (programs, library / "__pycache__", library / "lib-dynload", system):
        directory.mkdir(parents=True)
    (programs / "python3.11").write_text("python")
    (programs / "python3").symlink_to("python3.11")
    (library / "__pycache__/os.pyc").write_text("")
    (library / "os.py").write_text("")
    (library / "lib-dynload/_ctypes.so").write_text("")
    (library / "sitecustomize.py").symlink_to("/etc/python3.11/sitecustomize.py")
    for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", LOADER, "libexpat.so.1",
                 "libffi.so.8", "libz.so.1"):
        (system / name).write_text(name)
    tree = Rootfs()
    tree.python(tmp_path)
    found = {path for path in tree._files if path.startswith(("usr/bin", "usr/lib/python"))}
    assert found == {"usr/bin/python3", "usr/lib/python3.11/os.py", "usr/lib/python3.11/lib-dynload/_ctypes.so"}
    assert LIBRARY_DIR + "/libffi.so.8" in tree._files
