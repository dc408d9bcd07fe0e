"""The service unit: what the daemon counts on is in it, and systemd has no complaint."""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ignisd import cli
from ignisd.holder import ROUND_TIMEOUT_MS
from ignisd.machine import disk_folder
from ignisd.notify import Notifier
from ignisd.settings import FLAGS, Settings

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "systemd" / "ignisd.service"
HARDENED = """
    CapabilityBoundingSet LockPersonality NoNewPrivileges PrivateMounts PrivateTmp ProtectClock
    ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules
    ProtectKernelTunables ProtectProc ProtectSystem RemoveIPC RestrictAddressFamilies
    RestrictNamespaces RestrictRealtime RestrictSUIDSGID SystemCallArchitectures SystemCallFilter
    UMask
""".split()


def parse(text: str) -> dict[str, dict[str, list[str]]]:
    """Section, name, values in order; refuses a line that is neither."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            assert line.endswith("]"), line
            section = line[1:-1]
            continue
        name, equals, value = line.partition("=")
        assert section, f"{line} stands before every section"
        assert equals, f"{line} assigns nothing"
        assert name.isalnum(), line
        sections[section][name].append(value)
    return sections


@pytest.fixture
def service() -> dict[str, list[str]]:
    sections = parse(UNIT.read_text())
    assert set(sections) == {"Unit", "Service", "Install"}
    return sections["Service"]


def only(service: dict[str, list[str]], name: str) -> str:
    values = service.get(name, [])
    assert len(values) == 1, f"{name}: wanted one value, had {values}"
    return values[0]


def test_the_manager_is_told_by_the_daemon_itself(service: dict[str, list[str]]):
    assert only(service, "Type") == "notify"
    assert only(service, "ExecStart") == "/opt/ignisd/bin/ignisd"
    assert "python3 -m venv /opt/ignisd" in UNIT.read_text()


def test_the_times_fit_what_the_daemon_does(service: dict[str, list[str]]):
    watchdog_s = float(only(service, "WatchdogSec"))
    environ = {"WATCHDOG_USEC": f"{watchdog_s * 1e6:.0f}"}
    assert Notifier(environ).beat_s * 2 < watchdog_s < ROUND_TIMEOUT_MS / 1000
    stop_s = Settings().server_drain_timeout + Settings().kv_disk_drain_ms / 1000
    assert float(only(service, "TimeoutStopSec")) > stop_s
    assert float(only(service, "TimeoutStartSec")) > Notifier(environ).beat_s


def test_a_refused_start_is_not_tried_again(service: dict[str, list[str]]):
    assert only(service, "Restart") == "on-failure"
    assert only(service, "RestartPreventExitStatus") == str(cli.REFUSED)


def test_it_may_compile_lock_memory_and_reach_a_card_and_little_else(
    service: dict[str, list[str]],
):
    assert not {"MemoryDenyWriteExecute", "PrivateDevices"} & service.keys()
    assert only(service, "LimitMEMLOCK") == "infinity"
    assert only(service, "CacheDirectory") == "ignisd"
    assert set(HARDENED) <= service.keys()


def test_files_of_states_go_where_the_service_may_write(service: dict[str, list[str]]):
    """The manager makes the folder, passes its path on, and lets nobody else look into it."""
    assert only(service, "StateDirectory") == "ignisd"
    assert only(service, "StateDirectoryMode") == "0700"
    assert only(service, "ProtectSystem") == "strict"
    told = {"STATE_DIRECTORY": "/var/lib/ignisd", "CACHE_DIRECTORY": "/var/cache/ignisd"}
    assert disk_folder(None, told) == Path("/var/lib/ignisd/kv_disk")


def test_the_socket_is_that_of_the_default_bind():
    sections = parse((UNIT.parent / "ignisd.socket").read_text())
    assert only(sections["Socket"], "ListenStream") == str(Settings().server_bind)


def test_the_key_file_of_the_comment_is_a_setting():
    variable = re.search(r"^#   Environment=(\w+)=%d/api-keys$", UNIT.read_text(), re.MULTILINE)
    assert variable
    assert variable[1] in {flag.variable for flag in FLAGS}


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing"
)


@needs_systemd
def test_systemd_takes_the_credential_as_the_comment_shows_it(tmp_path: Path):
    text = UNIT.read_text()
    shown = re.search(r"^#   \[Service\]\n((?:#   \S.*\n)+)", text, re.MULTILINE)
    assert shown
    extra = shown[1].replace("#   ", "")
    text = text.replace("[Service]\nType", f"[Service]\n{extra}Type")
    text = text.replace("/opt/ignisd/bin/ignisd\n", f"{sys.executable}\n")
    assert "\nLoadCredential=" in text
    unit = tmp_path / "ignisd.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


@needs_systemd
def test_systemd_has_no_complaint_and_calls_it_hardened():
    """As in the build: the checked program is one that exists here."""
    done = subprocess.run(
        [ROOT / ".ci" / "unit", sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exposure level" in done.stdout
