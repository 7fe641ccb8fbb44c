"""The Python API: each command as a function of the same name. Importing it loads neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

# Functions import their dependencies when called, so that a command does not load the libraries of the others.


def diff(
    first: str, second: str, *, benchmark: str | None = None, params: Path | str = "params.yaml"
) -> dict[str, tuple[Any, Any]]:
    """Return every value that differs between two named settings, or between two rows of a benchmark.

    Args:
        first, second: names under `settings` of params.yaml, or rows such as `full-paper+tau=1.0`.
        benchmark: compare the values for this benchmark; required for rows.
        params: the parameter file.

    Returns:
        Key -> (value of first, value of second); None if a row does not read the value.

    Raises:
        UserError: a name does not exist, or one is a row and the other are settings.
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
    """Score predictions of any code against the true classes, with the same metrics as the workflow.

    Args:
        predictions: CSV file or DataFrame with a column path (or file, filename, image) or id, and a column predicted
            (or prediction, pred, class, class_name, label; the first existing one) with any labels.
        truth: CSV file or DataFrame with the same image column, a column class_id, class, true_class, class_name or
            label (the first existing one), and optionally old (0 or 1). If it has a column role, as
            results/splits/NAME.csv, only the images of one set are scored.
        old: the Old classes, which replace the column old: a file with one class per line, or classes.
        set: the scored set if the truth has a column role: `unlabelled` (default) or `test`.
        clusters: the assumed number of clusters; without it the number of empty clusters is unknown.
        join_by: column that identifies images in both tables; default: path if both have it, else id.
        allow_missing: score only the images that have a prediction.

    Returns:
        `scores`, a list of {metric, n, all, old, new} for each of names.METRICS, in percent, None if not defined
        (without Old classes, only All is defined); `set`, `n`, `joined_by`; `clusters`, `clusters_found`,
        `empty_clusters`; `classes`, `old_classes`, `old_share` (percent of images); `histogram`, predicted label ->
        number of images; `notes`, sentences on ignored rows.

    Raises:
        UserError: a table cannot be read or joined, has different rows for one image, or has several class columns
            that differ.
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


def benchmark(
    name: str,
    folder: Path | str,
    *,
    labelled: str = "labelled.txt",
    listing: str = "",
    like: str = "cub50",
    params: Path | str = "params.yaml",
) -> dict[str, Any]:
    """Add a folder of images whose classes are all known to params.yaml: `benchmarks.NAME` and `tables.main_NAME`.

    The training has as many steps as that of another benchmark. With few images, batch size and neighbours are reduced,
    and epochs and warm-ups follow, as in `discover`. Other lines of params.yaml, and its comments, stay as they are.

    Args:
        name: of the benchmark: letters, digits and _.
        folder: one folder of images for each class, or with `listing` any images.
        labelled: text file with one labelled class, or one labelled image, per line, in `folder` or elsewhere.
        listing: CSV with the columns path, class and optionally part (train or test).
        like: the benchmark whose protocol and values of the methods are used.
        params: the parameter file.

    Returns:
        `section`, as added; `table`, the name of the main table; `old`, the number of labelled classes; and `adapted`,
        sentences on values that were reduced.

    Raises:
        UserError: the folder or an argument is invalid, or params.yaml has the name already or cannot be written.
    """
    from ctxgcd.pipeline.own_benchmark import add_benchmark

    return add_benchmark(Path(params), name, Path(folder), labelled, listing, like)


def discover(
    folder: Path | str,
    labels: Path | str | None,
    out: Path | str,
    *,
    classes: int | Literal["auto"] = "auto",
    preset: str = "quick",
    backbone: str | None = None,
    weights: Path | str | None = None,
    size: int | None = None,
    balance: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Find the classes of a folder of images from a few labels; write predictions, a model and a report to `out`.

    Args:
        folder: images at any depth; hidden files are skipped, links are followed.
        labels: CSV with path (relative to `folder`) and class of the labelled images; `folders`: the folders directly
            in `folder` are the classes of their images, except `unlabelled` and `new-1`, `new-2`, ...; None: no image
            has a label, all classes are new, and `classes` is required.
        out: a new folder, or the folder of a discovery. The same interrupted discovery is resumed; the results of
            another one are overwritten when the new results are complete. From results with corrections (`label`), the
            discovery continues: it starts from their model, moved and confirmed images are labels, images that were
            thrown out do not take part, new images of `folder` do, classes keep their numbers, and arguments that are
            not given are those of these results: the labels, the number of classes, and all values of the training.
        classes: number of known and new classes together; `auto` estimates it.
        preset: quick or long; named training values.
        backbone: efficientnet_lite0, dino_vitb16, dinov2_vits14_focus or, with `weights`, any timm model; default: set
            by `preset`.
        weights: file with the backbone's weights.
        size: side of the square views in pixels; default: set by `preset`.
        balance: weight of the entropy term, which favours classes of equal size, 0 or more; lower values fit classes of
            very unequal sizes; default: set by `preset`.
        seed: training seed, 0 to 4294967295.

    Returns:
        `images`, `labelled`, `unreadable` (counts), `by_hand` (how many of the labelled ones were moved or confirmed by
        `label`), `known`, `K`, `K_source` (given or estimated), `tried` (K -> accuracy on the labelled images, None if
        K was given), `found` (number of classes with unlabelled images), `few` (number of new classes with fewer than 3
        images), `threshold` (of `predict`), `check` (the result of the check on the labels: `scores` of this method and
        of clusterings with half of the labelled classes hidden, `images`, `classes`, `hidden`, `hidden_images`, or
        `skipped`, the reason; and `said`, sentences), `notes` (sentences on skipped images), `adapted` (sentences on
        values that were reduced for few images), `corrected` and `changed` (sentences on the corrections, and on images
        that moved from class to class since the results
        from which the discovery continued).

    Raises:
        UserError: an argument is invalid, predictions.csv was edited and not taken in by `label`, or `out` cannot be
            written.
    """
    from ctxgcd.discover.checks import checked_request

    request = checked_request(
        Path(folder),
        None if labels is None else Path(labels),
        Path(out),
        classes=None if classes == "auto" else classes,
        preset=preset,
        backbone=backbone,
        weights=None if weights is None else str(weights),
        size=size,
        balance=balance,
        seed=seed,
    )
    from ctxgcd.discover import discovery  # imports torch, after all checks

    return discovery.discover(request)


def label(out: Path | str, *corrections: Path | str, undo: bool = False) -> dict[str, Any]:
    """Correct the results of a discovery: name, merge, move, confirm or throw out; nothing is trained.

    predictions.csv, report.html and the names that `predict` and `export` give are updated at once. The lines are added
    to corrections.csv in `out`, where a later one wins.

    Args:
        out: the folder of a discovery.
        corrections: `new-5=sunflower` names a class, `new-2,new-7=leopard` also merges new-2 into new-7. Or one file: a
            CSV with the columns action, image, class, target (actions: name, merge, move, confirm, out, undo), an
            edited predictions.csv, or a CSV with path and class of images to move.
        undo: take back the last correction that is not taken back yet, instead.

    Returns:
        The values that `discover` returns, for the corrected results.

    Raises:
        UserError: a correction is impossible, then none is added; or predictions.csv was edited and is not given.
    """
    from ctxgcd.discover.given import checked

    given = checked(Path(out), [str(word) for word in corrections], undo)
    from ctxgcd.discover import label as labelling  # imports torch, after all checks

    return labelling.label(given)


def sort(out: Path | str, folder: Path | str, *, link: bool = False, undo: bool = False) -> dict[str, Any]:
    """Copy the images of a discovery into one folder for each class; no file is overwritten.

    Args:
        out: the folder of a discovery.
        folder: the folder for the folders of the classes, outside the folder of the images. Its file sorted.csv lists
            what was written.
        link: make symbolic links instead of copies.
        undo: delete the files of this list instead, if their size and SHA-256 are those of the list.

    Returns:
        `images`, `classes` (numbers of files and folders written or there), `written` (the number of files that this
        call wrote), `kept` (paths that `undo` kept, because they were changed) and `absent` (images that are not in
        their folder any more).

    Raises:
        UserError: a folder cannot be used, or predictions.csv was edited and not taken in by `label`.
    """
    from ctxgcd.discover import sort as sorting

    return sorting.undone(Path(folder)) if undo else sorting.sort(Path(out), Path(folder), link=link)


def predict(
    model: Path | str, folder: Path | str, *, threshold: float | None = None, false_alarms: float | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Predict the classes of new images with the model of a discovery.

    Args:
        model: the folder OUT/model.
        folder: images at any depth.
        threshold: images with a lower similarity are none of these classes. The similarity is the cosine between the
            features before training of the image and of the most similar training image.
        false_alarms: instead of a threshold, the share of images of the model's classes that may be marked, 0 to 1;
            default: 0.01. The threshold is this quantile of the similarities between training images.

    Returns:
        A row for each readable image (path, class, name, number, confidence, nearest, score, similarity, none_of_these
        as 0 or 1), and {threshold, by, unreadable: path -> reason}. Models of earlier versions have no similarity:
        `by`, the column that is compared with the threshold, is then score.

    Raises:
        UserError: the model or the folder cannot be used.
    """
    from ctxgcd.discover.checks import ask_to_predict

    paths = ask_to_predict(Path(model), Path(folder), threshold, false_alarms)
    from ctxgcd.discover import predict as predicting

    return predicting.predict(Path(model), Path(folder), paths, threshold, false_alarms)


def features(
    folder: Path | str,
    *,
    model: Path | str | None = None,
    backbone: str | None = None,
    weights: Path | str | None = None,
    size: int | None = None,
) -> tuple[NDArray[np.float32], list[str]]:
    """Return the features of the images of a folder, by a pretrained backbone or by the model of a discovery.

    Args:
        folder: images at any depth.
        model: the folder OUT/model of a discovery, whose trained features are returned; None: those of a backbone.
        backbone, weights, size: as in `discover`; default: EfficientNet-lite0 on 224 pixels.

    Returns:
        The features, float32 [n, d], with rows of length 1, so that a dot product is a cosine; and the n paths relative
        to `folder`. Images that cannot be read are skipped, with a note on stdout.

    Raises:
        UserError: an argument is invalid, or the folder, the model or the weights cannot be used.
    """
    from ctxgcd.discover.checks import ask_for_features

    given = None if model is None else Path(model)
    paths, values = ask_for_features(Path(folder), given, backbone, None if weights is None else str(weights), size)
    from ctxgcd.discover import features as computing

    return computing.features(Path(folder), paths, given, values)


def convert(predictions: Path | str, out: Path | str, to: Literal["fiftyone", "xmp"]) -> int:
    """Write predictions in the format of another program; existing files are never overwritten.

    Args:
        predictions: CSV of `discover` or `predict`; images that are none of the classes are left out.
        out: for `fiftyone`, a JSON file in its format FiftyOneImageClassificationDataset; for `xmp`, a folder, usually
            that of the images, which gets a sidecar file PATH.xmp for each image, with its class as a keyword.
        to: the format.

    Returns:
        The number of images.

    Raises:
        UserError: the table cannot be used, `out` cannot be written, or a file exists.
    """
    from ctxgcd.discover.convert import convert as converted

    return converted(Path(predictions), Path(out), to)


def export(model: Path | str, out: Path | str) -> dict[str, Any]:
    """Write the model of a discovery as ONNX, and compare its outputs with those of PyTorch.

    Input `images`: float [n, 3, crop, crop], RGB 0..1; outputs `cosines` and `confidences`: float [n, K], `similarity`:
    float [n]. The metadata of the file contains the class names, the threshold and the resizing.

    Returns:
        `difference`, the largest difference between the outputs, and the metadata.

    Raises:
        UserError: the model cannot be used, `out` cannot be written or is another file, a package of the extra
            `export` is missing, or the outputs differ.
    """
    from ctxgcd.discover.checks import ask_to_export

    ask_to_export(Path(model), Path(out))
    from ctxgcd.discover import export as exporting

    return exporting.export(Path(model), Path(out))
