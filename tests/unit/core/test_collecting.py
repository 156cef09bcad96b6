# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The search for garbage is put off, and always taken up again by whoever put it off."""
from __future__ import annotations

import gc

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.collecting import without_collection


def test_it_is_put_off_and_taken_up_again() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), without_collection():
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_had_it_off_already_finds_it_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
