"""A daemon's port and its keys, as processes and signals meet them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from ignisd.kinds import Address
from ignisd.listen import bind, bound_address
from tests.daemon.running import running


def test_a_port_in_use_ends_the_start_with_a_sentence():
    with bind(Address("127.0.0.1", 0)) as taken:
        address = bound_address(taken)
        got = subprocess.run(
            [sys.executable, "-m", "ignisd", "--server-bind", str(address)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert got.returncode == 2
    assert f"ignisd: --server-bind {address} cannot be listened on" in got.stderr
    assert "Traceback" not in got.stderr


def test_keys_are_read_anew_on_sighup_and_names_are_checked(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("key-first\n")
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    flags = ["--server-api-key-file", str(keys), "--compile-cache-dir", cache]
    with running(tmp_path, *flags) as daemon, httpx.Client(base_url=daemon.url) as client:

        def opens(key: str) -> bool:
            answer = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code in (200, 401)
            return answer.status_code == 200

        def reload(text: str) -> None:
            lines = daemon.log.read_text().count("\n")
            keys.write_text(text)
            daemon.process.send_signal(signal.SIGHUP)
            ends_s = time.monotonic() + 20
            while daemon.log.read_text().count("\n") == lines and time.monotonic() < ends_s:
                time.sleep(0.05)

        assert (opens("key-first"), opens("key-second")) == (True, False)
        reload("key-second\nkey-third\n")
        assert (opens("key-first"), opens("key-second"), opens("key-third")) == (False, True, True)
        reload("# nobody\n")
        assert (opens("key-first"), opens("key-second"), opens("nobody")) == (False, True, False)
        log = daemon.log.read_text()
        assert "kept=2" in log
        assert "key-second" not in log
        headers = {"authorization": "Bearer key-second", "host": "evil.example"}
        assert client.get("/v1/models", headers=headers).status_code == 403
        told = client.get("/v1/config", headers={"authorization": "Bearer key-second"}).json()
        assert told["settings"]["server.bind"]["origin"] == "flag"
        assert told["exact"] is True
        assert daemon.stop() == 0
