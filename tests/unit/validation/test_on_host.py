# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a validation leaves on its host."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation import on_host
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check

ASKED: Dict[str, Any] = {"state": "present", "status_files": False}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """One whose boot has failed, and whose checks pass."""
    found = Host(str(tmp_path))
    evidence = SimpleNamespace(facts=SimpleNamespace(hostname="gpu1", gpus=()), nvml=None, proofs=())
    for name, value in (("Host", lambda: found), ("await_startup", lambda _host: ()), ("kept_proof", lambda _host: {}),
                        ("gather", lambda *_words: evidence), ("devices_of", lambda *_words: []),
                        ("computed", lambda *_words, **_more: evidence), ("run_chain", lambda _evidence: ())):
        monkeypatch.setattr(on_host, name, value)
    boot_record.end(found, boot_record.begin(found), boot_record.FAILED, "GPU 3 is ill")
    return found


def test_a_host_that_has_been_validated_is_not_what_its_boot_has_left(host: Host) -> None:
    on_host.validate_host(ASKED, check_mode=True)
    assert boot_record.read(host)["state"] == "failed"
    on_host.validate_host(ASKED, check_mode=False)
    assert boot_record.read(host)["state"] == "validated"


def test_one_that_fails_again_is(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Check("driver", "failed", "it is not loaded", "load it")
    monkeypatch.setattr(on_host, "run_chain", lambda _evidence: (failed,))
    with pytest.raises(GpuOpsError):
        on_host.validate_host(ASKED, check_mode=False)
    assert boot_record.read(host)["reason"] == "GPU 3 is ill"
