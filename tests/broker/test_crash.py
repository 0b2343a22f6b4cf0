"""What the machine's crash costs: real brokers on a disk that loses every write that was not synced."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fixtures.lab.kinds import step
from fixtures.lab.lab import SMALL_FILES
from fixtures.lab.toolchain import VERSIONS
from fixtures.lab.whole import NAME, WholeBroker
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain

pytestmark = [pytest.mark.broker, pytest.mark.patient]

SHIM = Path(__file__).resolve().parents[2] / "fixtures" / "lab" / "durable.c"
SETTINGS = {
    "async": {},
    "often": {"flushIntervalCommitLog": 100, "flushCommitLogThoroughInterval": 1000},
    # the file written to and the one created ahead take a buffer each; with none left the broker takes no message
    "pool": {"transientStorePoolEnable": True, "transientStorePoolSize": 5},
    "sync": {"flushDiskType": "SYNC_FLUSH"},
}
#: Bytes of the log after which the broker is killed while clients send.
AT_ONCE = 60_000
SAMPLE = {("5.3.3", "async")}
CASES = [pytest.param(version, name, marks=pytest.mark.deep if (version, name) in SAMPLE else ())
         for version in VERSIONS for name in SETTINGS]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that keeps what was synced."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("shim") / "durable.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, SHIM, "-ldl"], check=True)
    return path


@pytest.mark.parametrize(("version", "name"), CASES)
def test_no_acknowledged_message_outside_the_window_is_missing(
    version: str, name: str, shim: Path, tmp_path: Path,
) -> None:
    root, disk = tmp_path / "store", tmp_path / "disk"
    root.mkdir()
    disk.mkdir()
    conf = {**SMALL_FILES, **SETTINGS[name]}
    synced = {"LD_PRELOAD": str(shim), "DURABLE_FROM": str(root), "DURABLE_TO": str(disk)}
    with WholeBroker(version, root, conf, kill=True, environment=synced) as broker:
        broker.act([step("topic", "Orders", 2), step("send", "Orders", 300), step("sleep", 11_000)])
        before = written(root)
        sender = _sending(broker, tmp_path)
        while written(root) < before + AT_ONCE:
            assert sender.poll() is None, "the sender ended"
            time.sleep(0.02)
    # it would go on asking for the broker that is gone
    sender.kill()
    sender.wait()
    stated = [word for key, value in SETTINGS[name].items() for word in ("--set", f"{key}={str(value).lower()}"
              if isinstance(value, bool) else f"{key}={value}")]
    said = mqtool("predict", root, "--broker", version, *stated, "--json").document
    window = said["crash_window"]
    acknowledged = {record.phy_offset: record for record in plain.records(root)}
    kept = {record.phy_offset for record in plain.records(disk)
            if acknowledged.get(record.phy_offset) is not None
            and acknowledged[record.phy_offset].body == record.body}
    missing = [record for at, record in acknowledged.items() if at not in kept]
    assert all(record.phy_offset >= window["start"] for record in missing)
    behind = [record for record in acknowledged.values() if record.phy_offset >= window["start"]]
    assert (window["messages"], window["bytes"]) == (len(behind), sum(record.size for record in behind))
    # what the checkpoint says was flushed is on the disk
    flushed = said["pointers"]["flushed"]["offset"]
    assert flushed is None or all(record.phy_offset >= flushed for record in missing)
    if name == "sync":
        assert not missing and window["messages"] == 0
    elif name == "async":
        assert missing and window["messages"] < len(acknowledged) - 200


def written(root: Path) -> int:
    """Bytes of the log so far."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in (root / "commitlog").iterdir())


def _sending(broker: WholeBroker, folder: Path) -> subprocess.Popen[bytes]:
    """Start a client that sends until it is killed."""
    asked = folder / "request"
    asked.write_text("\n".join((broker.address, broker.broker_address, NAME, step("send", "Orders", 20_000))) + "\n")
    return subprocess.Popen(broker.java("Clients", asked, folder / "report"), cwd=folder, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
