"""Published numbers of newer methods and of other backbones, for docs/field.md; no table of results reads them."""

from __future__ import annotations

import pandas as pd

from ctxgcd.tables.audit import checked
from ctxgcd.tables.published import HERE, QUANTITIES

BACKBONES = {"dino_vitb16": "DINO, ViT-B/16", "dinov2_vitb14": "DINOv2, ViT-B/14", "clip_vitb16": "CLIP, ViT-B/16"}
ON_TEST_PART = "_inductive"  # ends the key of a method that was scored on the official test part
METHODS = {
    "af_gcd": "AF-GCD",
    "amend": "AMEND",
    "aptgcd": "AptGCD",
    "cipr": "CiPR",
    "cms": "CMS",
    "cms_inductive": "CMS",
    "debgcd": "DebGCD",
    "flipclass": "FlipClass",
    "gcd": "GCD",
    "get": "GET",
    "gpc": "GPC",
    "hyp_gcd": "Hyp-GCD",
    "hyp_selex": "Hyp-SelEx",
    "hyp_simgcd": "Hyp-SimGCD",
    "infosieve": "InfoSieve",
    "legogcd": "LegoGCD",
    "legogcd_eagc": "LegoGCD + EAGC",
    "mos": "MOS",
    "msgcd": "MSGCD",
    "mugcd": "μGCD",
    "partco_flipclass": "FlipClass + PartCo",
    "partco_selex": "SelEx + PartCo",
    "partco_simgcd": "SimGCD + PartCo",
    "pim": "PIM",
    "seal": "SEAL",
    "selex": "SelEx",
    "selex_eagc": "SelEx + EAGC",
    "selex_eagc_rerun": "SelEx + EAGC",
    "simgcd": "SimGCD",
    "simgcd_eagc": "SimGCD + EAGC",
    "simgcd_eagc_rerun": "SimGCD + EAGC",
    "simgcd_rerun": "SimGCD",
    "spectralgcd": "SpectralGCD",
    "sptnet": "SPTNet",
    "sptnet_eagc": "SPTNet + EAGC",
    "textgcd": "TextGCD",
    "trm_gcd": "TRM-GCD",
}


def load_field() -> pd.DataFrame:
    """Return all numbers of published_newer.csv in its order: one line per method, benchmark, backbone and source.

    Columns: method, benchmark, backbone (keys), all, old, new (percent, NaN if the source does not give it), source,
    on_test_part (whether it was scored on the official test part instead of the unlabelled training images), and
    inconsistent (whether All does not match Old and New, as in the audit; never for numbers on the test part, or where
    a value is missing).
    """
    rows = pd.read_csv(HERE / "published_newer.csv").rename(columns=str.lower)
    rows["on_test_part"] = rows["method"].str.endswith(ON_TEST_PART)
    found = checked(rows)
    known = found[[*QUANTITIES]].notna().all(axis=1) & ~rows["on_test_part"]
    return rows.assign(inconsistent=known & ~found["consistent"])
