"""The fingerprint of a benchmark's data, from the data on disk or else from the record of its split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.fingerprint import fingerprint, stamp
from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.errors import UserError
from ctxgcd.pipeline.paths import FINGERPRINTS, split_file
from ctxgcd.utils.files import read_or_empty, write_text

ABSENT = "absent"


def data_fingerprint(benchmark: str, section: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data on disk or, if the data cannot be read, the one recorded with the split.

    Never raises for invalid data: the data check reports it when a job needs the data. The result is cached in
    work/fingerprints by the sizes and times of the files, because every call needs it.
    """
    reader, folder = reader_of(section), place_of(section)
    try:
        now = stamp(reader, folder)
        name = json.dumps([str(folder.absolute()), *(section.get(key) for key in ("reader", "listing", "labelled"))])
        kept = FINGERPRINTS / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
        known = read_or_empty(kept)
        if known.get("stamp") == now and isinstance(known.get("fingerprint"), str):
            return str(known["fingerprint"])
        found = fingerprint(reader, folder)
    except (OSError, ValueError, UserError):
        return recorded(benchmark)
    with suppress(UserError):  # the cache only saves time
        write_text(kept, json.dumps({"stamp": now, "fingerprint": found}))
    return found


def recorded(benchmark: str) -> str:
    """Return the fingerprint of the data that the recorded split was made from, or `absent`."""
    found = read_or_empty(Path(split_file(benchmark, "source.json"))).get("fingerprint")
    return found if isinstance(found, str) else ABSENT
