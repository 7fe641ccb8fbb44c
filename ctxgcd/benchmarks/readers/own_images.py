"""A user's own images: class folders or a CSV that lists them, and a file with the labelled classes or images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.class_lists import ClassList
from ctxgcd.benchmarks.readers.class_folders import SUFFIXES, class_names
from ctxgcd.benchmarks.readers.class_folders import is_image as is_official_image
from ctxgcd.benchmarks.readers.decoding import HEIF, INSTALL_HEIF, MissingData, as_seen, missing, reads_heif
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, fault_of
from ctxgcd.errors import UserError, nearest, shown
from ctxgcd.names import PARTS, counted
from ctxgcd.utils.user_tables import (
    CLASS,
    PATH,
    in_one_form,
    listed,
    note_unicode_forms,
    read_list,
    read_table,
    spelled,
)

# Other image formats that are not supported; a note lists such files.
PICTURES = (*HEIF, ".avif", ".jxl", ".gif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf")


@dataclass(frozen=True, kw_only=True)
class OwnImages(Reader):
    """Class ids follow the sorted class names.

    listing   CSV with the columns path, class and optionally part (train or test), relative to the folder; empty: one
              folder of images for each class. If the folder contains only train/ and test/, these are the two parts.
    labelled  text file with one class or one image per line, or a CSV with a column class or path
    """

    listing: str = ""
    labelled: str = ""

    def manifest(self, folder: Path) -> pd.DataFrame:
        if not folder.is_dir():
            raise missing(folder)
        _refuse_own_outputs(folder)
        rows = self._rows(folder)
        one, _ = in_one_form({name for _, name, _ in rows})
        names = sorted(set(one.values()))
        if not rows:
            if self.listing:
                raise UserError(f"{self.list_files(folder)[0]} lists no images; write one line per image")
            raise UserError(
                f"{folder} contains no folder with images; add one folder of images per class, or set listing to a CSV"
            )
        rows.sort(key=lambda row: PARTS.index(row[2]))  # stable: each part keeps its order
        ids = {name: class_id for class_id, name in enumerate(names)}
        paths, of, parts = zip(*rows, strict=True)
        classes = [one[name] for name in of]
        return as_manifest(paths, [ids[name] for name in classes], classes, parts)

    def images(self, folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
        return as_seen(folder, paths)

    def list_files(self, folder: Path) -> list[Path]:
        files = [name for name in (self.listing, self.labelled) if name]
        return [folder / os.path.expandvars(os.path.expanduser(name)) for name in files]

    def stamped(self, folder: Path) -> list[Path]:
        return self.list_files(folder) + [folder / path for path in self.manifest(folder)["path"]]

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        _, notes = in_one_form(sorted({name for _, name, _ in self._rows(folder)}))
        notes += note_unicode_forms(manifest["path"])
        if self.listing:
            return notes
        known, lists = set(manifest["path"]), self.list_files(folder)
        left_out = [shown(path) for path in _files(folder) if path not in known and folder / path not in lists]
        if left_out:
            notes.append(f"{counted(len(left_out), 'file')} skipped, not an image of a class, first {left_out[0]}")
        return [*notes, *filter(None, [not_read(folder)])]

    def divide(self, folder: Path, manifest: pd.DataFrame, name: str) -> tuple[ClassList, frozenset[str] | None]:
        """Return Old and New classes, and the paths of D^l if the labelled file lists images.

        The Old classes are the classes that the file lists, or the classes of the images that it lists.
        """
        file = self.list_files(folder)[-1]
        lines = _read_labelled(file)
        classes = manifest.drop_duplicates("class_id").set_index("class_name")["class_id"].sort_index()
        train = manifest.loc[manifest["part"] == "train"]
        of_image = dict(zip(train["path"], train["class_id"], strict=True))
        images = None
        if len(names := spelled(lines, classes.index, "the classes")) == len(lines):
            old = {int(classes[name]) for name in names.values()}
        elif len(paths := spelled(lines, of_image, f"the images of {folder}")) == len(lines):
            old, images = {of_image[path] for path in paths.values()}, frozenset(paths.values())
        else:
            found, valid = (names, classes.index) if names else (paths, of_image)
            stray = next(line for line in lines if line not in found)
            if left_out_of(folder, [stray]):
                raise UserError(
                    f"{file} lists {stray!r}, which is hidden or has an unsupported format; save it as JPEG, or delete "
                    "the line"
                )
            raise UserError(
                f"{file} lists {stray!r}, which is neither a class nor the path of a training image"
                f"{nearest(stray, valid)}; write either one class or one image per line"
            )
        if len(old) == len(classes):
            raise UserError(
                f"{file} labels all {len(classes)} classes; remove at least one class, which is then to be discovered"
            )
        if unseen := sorted(set(manifest["class_id"]) - set(train["class_id"])):
            name_of = manifest.loc[manifest["class_id"] == unseen[0], "class_name"].iloc[0]
            raise UserError(f"{folder}: class {name_of!r} has images only in the test part; add training images of it")
        new = [int(raw) for raw in classes if raw not in old]
        return ClassList(name, f"{file.name} of the folder", len(classes), tuple(sorted(old)), tuple(new)), images

    def _rows(self, folder: Path) -> list[tuple[str, str, str]]:
        """Return (path, class, part) of every image, with paths spelled as on disk and classes as in the listing."""
        if not self.listing:
            return list(_found(folder))
        rows = self._listed(folder)
        # Search the disk only for paths whose listed spelling does not exist.
        away = [path for path, _, _ in rows if not path.isascii() and not os.path.exists(folder / path)]
        own: Mapping[str, str] = spelled(away, _files(folder), str(folder)) if away else {}
        return [(own.get(path, path), name, part) for path, name, part in rows]

    def _listed(self, folder: Path) -> list[tuple[str, str, str]]:
        file = self.list_files(folder)[0]
        table = read_table(_present(file), "path,class")
        cells = table.rows
        paths, names = (cells[table.column(*spellings)] for spellings in (PATH, CLASS))
        table.require_same_classes(str(names.name), *CLASS)
        parts = cells["part"] if table.has("part") else pd.Series("train", index=cells.index)
        rows = []
        for row, path, name, part in zip(cells.index, paths, names, parts, strict=True):
            pure = PurePosixPath(path)
            if not path or pure.is_absolute() or ".." in pure.parts:
                raise UserError(f"{file} line {row}: the path is {path!r}, but expected a path in {folder}; change it")
            if not name:
                raise UserError(f"{file} line {row}: {path} has no class; add a class or delete the line")
            if part not in PARTS:
                raise UserError(f"{file} line {row}: the part is {part!r}, but expected train or test; change it")
            rows.append((pure.as_posix(), name, part))  # a/./b.jpg is a/b.jpg
        return rows


def _found(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (path, class, part) of every image below class folders, in the order of sorted names."""
    names = class_names(folder)
    split = "train" in names and set(names) <= set(PARTS)
    for part in names if split else ["train"]:
        base = folder / part if split else folder
        for name in class_names(base):
            for path in _files(base / name):
                if is_image(path):
                    yield f"{part}/{name}/{path}" if split else f"{name}/{path}", name, part


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative path of every file below a folder, sorted, without hidden files; links are followed.

    Raises UserError for files that cannot be read, because skipping images silently would change the dataset.
    """
    been: set[tuple[int, int]] = set()
    try:
        for parent, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
            own = os.stat(parent)
            if (own.st_dev, own.st_ino) in been:  # a link to a parent folder
                folders.clear()
                continue
            been.add((own.st_dev, own.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                if not name.startswith("."):
                    yield (Path(parent) / name).relative_to(folder).as_posix()
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from error


def is_image(name: str) -> bool:
    """Return whether a file is an image that can be read, by its name; hidden files such as `._x.jpg` are not."""
    file = PurePosixPath(name)
    return is_official_image(name) or (file.suffix.lower() in HEIF and not file.name.startswith(".") and reads_heif())


def images_below(folder: Path) -> list[str]:
    """Return the paths of all images below a folder, in the order of `_files`, without those that are `misnamed`.

    Raises UserError if there are none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that contains the images")
    found = [path for path in _files(folder) if is_image(path) and not fault_of(path)]
    if not found:
        invalid = listed(misnamed(folder))
        others = "; ".join(filter(None, [not_read(folder), invalid and f"rename {invalid}, in UTF-8, to include them"]))
        raise UserError(
            f"{folder} contains no images; expected files that end in {', '.join(SUFFIXES)}{others and f' ({others})'}"
        )
    return found


def misnamed(folder: Path) -> dict[str, str]:
    """Return the images below a folder whose names cannot be stored in a CSV, with printable names and the reasons."""
    return {
        shown(path): f"{fault}; rename it" for path in _files(folder) if is_image(path) and (fault := fault_of(path))
    }


def left_out_of(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return those of `paths` that are files below the folder but hidden or of an unsupported format."""
    files = spelled(paths, _files(folder), str(folder)) if paths else {}
    there = [path for path in paths if path in files or os.path.isfile(folder / path)]
    hidden = [path for path in there if any(part.startswith(".") for part in PurePosixPath(path).parts)]
    return [path for path in there if not path.startswith(("/", "../")) and (path in hidden or not is_image(path))]


def not_read(folder: Path) -> str:
    """Return a sentence with the number of images of unsupported formats; empty if there are none."""
    kinds = Counter(PurePosixPath(path).suffix.lower() for path in _files(folder) if not is_image(path))
    counts = [(kind, f"{kinds[kind]:,} {kind}") for kind in sorted(kinds.keys() & {*PICTURES})]
    ways = {
        "save them as JPEG to include them": [text for kind, text in counts if kind not in HEIF],
        f"{INSTALL_HEIF} to include them, or save them as JPEG": [text for kind, text in counts if kind in HEIF],
    }
    return "; ".join(f"unsupported files: {', '.join(found)}; {way}" for way, found in ways.items() if found)


def _raise(error: OSError) -> None:
    raise error


def _refuse_own_outputs(folder: Path) -> None:
    """Raise UserError for a folder that contains, or is inside, the workflow's outputs, which change with every run."""
    for name in ("results", "work"):
        made, place = Path(name).resolve(), folder.resolve()
        if place.is_relative_to(made) or made.is_relative_to(place):
            raise UserError(f"the images' folder {folder} overlaps with {made}; move the images to another folder")


def _read_labelled(file: Path) -> Sequence[str]:
    """Return the unique lines of the labelled file."""
    names = read_list(_present(file), ("path", "class"), (*PATH, *CLASS))
    lines = list(dict.fromkeys(name.removeprefix("./").rstrip("/") for name in names))
    if not lines:
        raise UserError(f"{file} lists no labelled class or image; write one class or one image per line")
    return lines


def _present(file: Path) -> Path:
    if not file.is_file():
        raise MissingData(f"{file} is missing, but set in params.yaml; create it or set another file")
    return file


FOLDER = OwnImages(
    files=(),
    test_files=(),
    how_to_get="your own images: set `path` in params.yaml to their folder",
    drawn_order=False,
)
