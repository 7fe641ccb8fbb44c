"""What a discovery starts from: the split of its images, its classes and its method; a new one or a continued one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ctxgcd.discover import model as models
from ctxgcd.discover.checks import Continued, Request
from ctxgcd.discover.classes import NUMBER, Classes, numbered, titled
from ctxgcd.discover.continuation import Start, continued, moved, order_of
from ctxgcd.discover.corrections import State, replayed
from ctxgcd.discover.found import Found
from ctxgcd.discover.split import check_classes, make_split
from ctxgcd.errors import shown
from ctxgcd.names import counted
from ctxgcd.pipeline.identity import content_hash


@dataclass(frozen=True)
class Wanted:
    """A new discovery.

    Attributes:
        split: the split of all images that can be read.
        known: number of classes of the file of labels.
        given: paths of the images of the file of labels.
        notes: sentences on labels without effect.
        origin: parameters that name where a continued training starts.
        source: how K is known, if it is not estimated or given by this call.
        checked: the result of an earlier check on the labels.
        code: modules of the training in addition to those of every training.
    """

    split: pd.DataFrame
    known: int
    given: Collection[str]
    notes: Sequence[str]
    origin: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    checked: dict[str, Any] | None = None
    code: ClassVar[Sequence[str]] = ()

    def method(self, method: Any) -> Any:
        """Return the method that is trained."""
        return method

    def named(self, assigned: pd.Series, classes: int) -> Classes:
        """Return the classes by id: known ones, then new-1, new-2, ... from the largest to the smallest.

        assigned: the class of each unlabelled image.
        """
        labelled = self.split[self.split["role"] == "labelled"].drop_duplicates("class_id").sort_values("class_id")
        return named_by_size(labelled["class_name"].tolist(), assigned, classes)

    def corrections(self, classes: Classes) -> State:
        """Return what the corrections make of the classes."""
        return replayed(classes, [])

    def changed(self, classes: Classes, found: Found, state: State) -> list[str]:
        """Return sentences on what changed since the earlier results."""
        return []


@dataclass(frozen=True)
class WantedAgain(Wanted):
    """A discovery that continues from the results in OUT; `order` are the classes (keys) by id, without added ones."""

    code = ("ctxgcd.discover.continuation",)

    continued: Continued = field(kw_only=True)
    order: Sequence[str] = field(kw_only=True)

    def method(self, method: Any) -> Any:
        results, state = self.continued.results, self.continued.results.state
        keys = results.classes.keys
        rows = [[place for place, old in enumerate(keys) if state.find(old) == key] for key in self.order]
        rows += [[] for _ in range(method.p["K"] - len(self.order))]
        place = {key: number for number, key in enumerate(self.order)}
        before = [place.get(results.shown.get(path, ""), -1) for path in self.split["path"]]
        return continued(method, Start(models.load(results.model), rows, self.known, torch.tensor(before)))

    def named(self, assigned: pd.Series, classes: int) -> Classes:
        state = self.continued.results.state
        sizes = np.bincount(assigned, minlength=classes)[len(self.order) :]
        keys = [*self.order, *numbered(sizes.tolist(), state.names.values(), state.names)]
        names = [state.names.get(key, key) if c < self.known else key for c, key in enumerate(keys)]
        used = [key for key in state.names if NUMBER.fullmatch(key) and key not in keys]
        return Classes(self.known, keys, names, used, state.made)

    def corrections(self, classes: Classes) -> State:
        return replayed(classes, self.continued.results.lines)

    def changed(self, classes: Classes, found: Found, state: State) -> list[str]:
        before = self.continued.results.shown
        own = {path: classes.keys[c] for path, c in zip(found.paths, found.classes.tolist(), strict=True)}
        after = {path: state.label_of(path) or state.find(key) or key for path, key in own.items()}
        return said_of(before, after, self.continued.corrected, state)


def wanted_of(request: Request, paths: Sequence[str]) -> Wanted:
    """Return what a request starts from; paths: the images that can be read. Raises UserError if it is impossible."""
    again = request.continued
    labels = {**again.labels, **again.corrected} if again else request.labels
    order = None
    if again:
        readable = set(paths)
        of_file = {key for path, key in again.labels.items() if path in readable}
        names = again.results.state.names
        alive = [key for key in again.results.state.alive if key not in again.dropped]
        known = sorted(of_file, key=lambda key: names.get(key, key))
        order = order_of(alive, known, {path: key for path, key in again.corrected.items() if path in readable})
    split = make_split(paths, labels, order)
    found = set(split["class_name"]) - {""}
    lost = sorted(set(request.labels.values()) - found) if not again else []
    notes = [f"no labelled image of {', '.join(map(shown, lost))} can be read, so it is not a known class"] * bool(lost)
    check_classes(request.classes, found, int((split["role"] == "unlabelled").sum()))
    if not again or order is None:
        return Wanted(split, len(found), request.labels.keys(), notes)
    facts, state = again.results.record["facts"], again.results.state
    origin = again.asked | {"from_labels": content_hash(dict(request.labels)), "from_corrections": state.digest}
    source = facts["K_source"] if request.classes == len(order) else "given"
    return WantedAgain(
        split, len(known), again.labels.keys(), notes, origin, source, facts["check"], continued=again, order=order
    )


def named_by_size(known: Sequence[str], assigned: pd.Series, classes: int) -> Classes:
    """Return the classes by id: known classes, then new-1, new-2, ... from the largest to the smallest."""
    sizes = np.bincount(assigned, minlength=classes)[len(known) :]
    names = [*known, *numbered(sizes.tolist(), known)]
    return Classes(len(known), names, names)


def said_of(before: Mapping[str, str], after: Mapping[str, str], by_hand: Collection[str], state: State) -> list[str]:
    """Return sentences on the images that moved from class to class, class by class, and on new images."""

    def title(key: str) -> str:
        return titled(state.names.get(key, key), key)

    pairs = moved(before, after, by_hand)
    total = sum(pairs.values())
    lines = [f"{counted(total, 'image')} that you did not correct moved to another class." if total else NOTHING]
    targets: dict[str, Counter[str]] = {}
    for (source, target), images in pairs.items():
        targets.setdefault(source, Counter())[target] = images
    for source, to in sorted(targets.items(), key=lambda pair: (-pair[1].total(), pair[0])):
        parts = (f"{images:,} to {title(target)}" for target, images in to.most_common())
        lines.append(f"From {title(source)}: {', '.join(parts)}.")
    if added := len(after.keys() - before.keys() - set(by_hand)):
        lines.append(f"{counted(added, 'image')} {'is' if added == 1 else 'are'} new in the folder or had a label.")
    return lines


NOTHING = "No image that you did not correct moved to another class."
