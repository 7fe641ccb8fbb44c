"""The commands as functions of the same names; importing this loads neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

# What a function needs is imported inside it: a command must not wait for the libraries of the others.


def diff(
    first: str, second: str, *, benchmark: str | None = None, params: Path | str = "params.yaml"
) -> dict[str, tuple[Any, Any]]:
    """Return every value that differs between two named settings, or between two rows of a benchmark.

    Args:
        first, second: names under `settings` of params.yaml, or rows such as `full-paper+tau=1.0`.
        benchmark: take the values that hold for it; needed for rows.
        params: file of the parameters.

    Returns:
        Key -> (value of first, value of second), None where a row does not read the value.

    Raises:
        UserError: a name does not exist, or the two are not of one kind.
    """
    from ctxgcd.config import read
    from ctxgcd.pipeline.diff import differences

    return differences(read(Path(params)), first, second, benchmark)


def evaluate(
    predictions: Path | str | pd.DataFrame,
    truth: Path | str | pd.DataFrame,
    *,
    old: str | Path | Sequence[str] | None = None,
    set: Literal["unlabelled", "test"] | None = None,
    clusters: int | None = None,
    join_by: Literal["path", "id"] | None = None,
    allow_missing: bool = False,
) -> dict[str, Any]:
    """Score predictions of any code against the true classes, as the workflow scores its own.

    Args:
        predictions: CSV file or DataFrame with a column path (or file, filename, image) or id, and predicted (or
            prediction, pred, class, class_name, label; the first that is there): any labels.
        truth: the same with class_id, class, true_class, class_name or label (the first that is there), and maybe old
            (0 or 1). Of a table with a column role, as results/splits/NAME.csv, the images of one set alone are scored.
        old: the Old classes, where they are not to be taken from the column: a file of one class a line, or classes.
        set: with a column role: `unlabelled` (default) or `test`.
        clusters: the K that was assumed; without it the number of empty clusters is not known.
        join_by: column that names an image in both; default: path where both have it, else id.
        allow_missing: score the images that have a prediction, where others have none.

    Returns:
        `scores`, a list of {metric, n, all, old, new} for each of names.METRICS, in percent, None where not defined
        (all but All without Old classes); `set`, `n`, `joined_by`; `clusters`, `clusters_found`, `empty_clusters`;
        `classes`, `old_classes`, `old_share` (percent of images); `histogram`, predicted label -> images; `notes`,
        sentences on what was left out.

    Raises:
        UserError: a table cannot be read or joined, says two things of one image, or has columns of classes that name
            different ones.
    """
    from ctxgcd.evaluation.other_codes import score_given
    from ctxgcd.utils.user_tables import as_table

    return score_given(
        as_table(predictions, "the predictions", "path,predicted"),
        as_table(truth, "the truth", "path,class"),
        old=[str(old)] if isinstance(old, str | Path) else old,
        role=set,
        clusters=clusters,
        key=join_by,
        allow_missing=allow_missing,
    )


def discover(
    folder: Path | str,
    labels: Path | str,
    out: Path | str,
    *,
    classes: int | Literal["auto"] = "auto",
    settings: str = "quick",
    backbone: str | None = None,
    weights: Path | str | None = None,
    size: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Find the classes of a folder's images, a few of which are labelled; write them to `out` with a report.

    Args:
        folder: images at any depth; hidden files are left out, links are followed.
        labels: CSV with path (relative to `folder`) and class of the labelled images.
        out: a new folder, or one of a discovery: the same one resumes where it was interrupted; the results of another
            one are replaced when the new ones are complete.
        classes: known and new ones together; `auto` estimates them.
        settings: quick or long.
        backbone: efficientnet_lite0, dino_vitb16 or, with `weights`, any timm model; default: that of the settings.
        weights: file of the backbone's weights.
        size: pixels of the square views; default: that of the settings.
        seed: of the training, 0 to 4294967295.

    Returns:
        `images`, `labelled`, `unreadable` (counts), `known`, `K`, `K_source` (given or estimated), `tried` (K ->
        accuracy on the labelled images, None where K was given), `found` (classes that have unlabelled images),
        `threshold` (predict's), `notes` and `adapted` (sentences on what was left out, and on values that so few images
        changed).

    Raises:
        UserError: what was given cannot be used, or `out` cannot be written.
    """
    from ctxgcd.discover.checks import ask

    asked = ask(
        Path(folder),
        Path(labels),
        Path(out),
        classes=None if classes == "auto" else classes,
        preset=settings,
        backbone=backbone,
        weights=None if weights is None else str(weights),
        size=size,
        seed=seed,
    )
    from ctxgcd.discover import discovery  # torch, once it is known that this can be done

    return discovery.discover(asked)


def predict(
    model: Path | str, folder: Path | str, *, threshold: float | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Give each image of a folder a class of a discovery.

    Args:
        model: the folder OUT/model.
        folder: images at any depth.
        threshold: an image whose score is lower is none of these classes; default: the model's, the score that 1% of
            the unlabelled images of its training stayed below.

    Returns:
        A row for each image that can be read (path, class, name, confidence, nearest, score, none_of_these as 0 or 1),
        and {threshold, unreadable: path -> reason}.

    Raises:
        UserError: the model or the folder cannot be used.
    """
    from ctxgcd.discover.checks import ask_to_predict

    paths = ask_to_predict(Path(model), Path(folder), threshold)
    from ctxgcd.discover import predict as predicting

    return predicting.predict(Path(model), Path(folder), paths, threshold)


def export(model: Path | str, out: Path | str) -> dict[str, Any]:
    """Write the model of a discovery as ONNX, and compare its outputs with torch's.

    Input `images`: float [n, 3, crop, crop], RGB 0..1; outputs `cosines` and `confidences`: float [n, K]. What else an
    application needs (class names, threshold, resizing) is in the file's metadata.

    Returns:
        `difference`, the largest one between the outputs of both, and the metadata.

    Raises:
        UserError: the model cannot be used, `out` cannot be written or holds another file, a package of the extra
            `export` is missing, or the outputs differ.
    """
    from ctxgcd.discover.checks import ask_to_export

    ask_to_export(Path(model), Path(out))
    from ctxgcd.discover import export as exporting

    return exporting.export(Path(model), Path(out))
