"""The settings of the tiers below the device, declared as the others are."""

from dataclasses import dataclass
from pathlib import Path

from ignisd.flags import declare
from ignisd.kinds import Count, Folder, Seconds, Size, Switch

CHAPTER = "Tiers below the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """What is kept in host memory (kv_ram) and in files (kv_disk), and when it comes back up."""

    reuse_kv_host_pool_bytes: int | None = declare(
        Size("auto"),
        "auto",
        "kv_ram: host memory, reserved and locked at start, for what leaves the device, evicted "
        "sequences included; 0 is none, auto is 2G, and on a CPU an eighth of the RAM at most, or "
        "less for a small model",
        chapter=CHAPTER,
        meta="SIZE",
        unit="bytes",
    )
    reuse_kv_ram_floor: int | None = declare(
        Count(1, none="auto"),
        "auto",
        "least gain over the device for which a state is restored from kv_ram; auto is twice what "
        "would break even, as measured at start",
        chapter=CHAPTER,
        meta="N",
        unit="tokens",
    )
    reuse_window_bytes: int | None = declare(
        Size("auto"),
        "auto",
        "most that moves between the tiers in one round, one page at least; auto is 32M, and on a "
        "CPU what is copied in a tenth of a decode step, if that is less",
        chapter=CHAPTER,
        meta="SIZE",
        unit="bytes",
    )
    reuse_retained_interactive_ttl: float = declare(
        Seconds(0),
        300,
        "idle time after which a state that a person left ranks as an agent's, and a prefix as a "
        "checkpoint",
        chapter=CHAPTER,
        meta="SECONDS",
        unit="s",
    )
    kv_disk_bytes: int = declare(
        Size(),
        0,
        "kv_disk: most bytes of files, those of other models included; 0 is off",
        chapter=CHAPTER,
        meta="SIZE",
        unit="bytes",
    )
    kv_disk_path: Path | None = declare(
        Folder("auto"),
        "auto",
        "folder of kv_disk; auto is kv_disk in systemd's state directory of the service, or else "
        "in ignisd in the user's",
        chapter=CHAPTER,
        meta="DIR",
    )
    kv_disk_floor: int | None = declare(
        Count(1, none="auto"),
        "auto",
        "least gain over the tiers above for which a state is read from kv_disk; auto is twice "
        "what would break even, as measured at start",
        chapter=CHAPTER,
        meta="N",
        unit="tokens",
    )
    kv_disk_persist: bool = declare(
        Switch(),
        "on",
        "keep the files between starts, and write out what is retained before ending",
        chapter=CHAPTER,
        meta="on|off",
    )
    kv_disk_drain_ms: int = declare(
        Count(0, 3_600_000),
        5000,
        "time for writing that out",
        chapter=CHAPTER,
        meta="N",
        unit="ms",
    )
