"""Training values adapted to few images: batch size, neighbours, and a length in steps with its warm-ups."""

from __future__ import annotations

from typing import Any

STEPS = 8  # preferred minimum of steps in an epoch
LEAST_BATCH = 16
# Shares of all epochs in the published schedules of RS+ and UNO+ (methods.rsplus and methods.unoplus of params.yaml).
SHARES = {"first_drop": 0.425, "second_drop": 0.85, "ramp_epochs": 0.75, "warmup_epochs": 0.05}


def fitted(values: dict[str, Any], images: int) -> tuple[dict[str, Any], list[str]]:
    """Return the values adapted to the number of images, and a sentence for each value that was reduced.

    A length in `steps` is replaced by epochs, and by warm-ups in proportion.
    """
    batch = min(values["batch_size"], max(LEAST_BATCH, images // STEPS), images)
    changes = {"batch_size": batch}
    if "neighbour_images" in values:
        around = min(values["neighbour_images"], batch)
        changes |= {"neighbour_images": around, "k": max(2, min(values["k"], around // 2))}
    said = [
        f"{key} is reduced from {values[key]} to {value}, because there are only {images:,} images"
        for key, value in changes.items()
        if value != values[key]
    ]
    made = values | changes
    if steps := made.pop("steps", None):
        made |= length(steps, images, batch, made["epochs"])
        made |= {key: round(share * made["epochs"]) for key, share in SHARES.items()}
    return {key: value for key, value in made.items() if key in values}, said


def length(steps: int, images: int, batch_size: int, least: int = 5) -> dict[str, int]:
    """Return the number of epochs, at least `least`, that makes about so many steps, and warm-ups in proportion."""
    epochs = max(least, round(steps / max(1, images // batch_size)))
    return {"epochs": epochs, "teacher_warmup_epochs": max(1, epochs // 5), "T_warm": epochs // 4}
