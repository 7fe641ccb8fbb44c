"""Comparing tables with committed ones."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.tables.verify import compare, read_means, verdict


def means(*values: float) -> pd.DataFrame:
    row = {"benchmark": "fashion", "set": "unlabelled", "metric": "v2", "K": 10, "n": 3, "old_mean": math.nan}
    return pd.DataFrame([row | {"method": f"row{i}", "all_mean": v, "new_mean": v / 2} for i, v in enumerate(values)])


def test_verify_counts_equal_and_different_means() -> None:
    reference = means(60.0, 70.0)
    for value, equal, largest, good in ((70.0, 4, "0.00", True), (71.5, 2, "1.50", True), (67.9, 2, "2.10", False)):
        text, found = verdict({"main": compare(means(60.0, value), reference, "main")})
        assert found == good
        assert f"main: {equal} of 4 means equal, max. difference {largest} points" in text
        assert ("NOT all within 2 points" in text) == (not good)
        assert ("(row1, unlabelled v2, all_mean)" in text) == (value != 70.0)


def test_verify_refuses_other_rows() -> None:
    with pytest.raises(
        UserError,
        match=r"in one of the two tables: row1 on fashion \(unlabelled v2, all_mean, K = 10, n = 3\); row1 on",
    ):
        compare(means(60.0), means(60.0, 70.0), "main")


@pytest.mark.parametrize("text", ["", "method\n", "a\x00b\n", "word", "head alone", "no means", "a folder"])
def test_verify_refuses_other_files(tmp_path: Path, text: str) -> None:
    file, good = tmp_path / "main.csv", means(60.0).to_csv(index=False)
    file.write_text(good)
    assert compare(read_means(file), read_means(file), "main").difference.tolist() == [0, 0]
    file.unlink()
    if text == "a folder":
        file.mkdir()
    else:
        other = {"word": good.replace("60.0", "sixty"), "head alone": good.splitlines()[0] + "\n"}
        other["no means"] = means(math.nan).to_csv(index=False)
        file.write_text(other.get(text, text))
    with pytest.raises(UserError, match=r"main\.csv (is damaged; make it again|cannot be read)"):
        read_means(file)
