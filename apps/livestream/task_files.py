"""Task folders as they are pushed, the sources in tasks/ with their models in resources/, and their shared modules.

    python -m apps.livestream.task_files FOLDER [--models own|public] [--models-dir DIR] [--sizes DIR]

The models are the app's own (own_models.py), or published ones in a folder (`walle model get`), which models.toml
describes and `write_task` converts.
"""

import argparse
import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import walle
from apps.livestream.make_article_map import write_article_map
from apps.livestream.make_embedder import write_embedder
from apps.livestream.make_palm_detector import write_palm_detector
from apps.livestream.own_models import OwnModels, build_detector, weights
from apps.sizes import SIZES, add_variants, sized
from walle.engine_ext.model import GraphBuilder
from walle.errors import ConfigError
from walle.model_files import ModelFolder, ModelManifest, default_folder

APP = Path(__file__).parent
TASKS = APP / "tasks"
MANIFEST_PATH = APP / "models.toml"
MODULES = "common"  # the set of modules that the tasks share, and its folder in tasks/
NAMES = ("item", "face", "voice", "highlight", "palm", "article")
# The published models of a task, by the detectors that its settings may name.
DETECTORS = {
    "item": {"nanodet": "det_nanodet"},
    "face": {"yunet": "face_yunet", "ultraface": "face_ultraface"},
    "voice": {"silero": "voice_silero"},
    "highlight": {"nanodet": "det_nanodet"},
    "palm": {"mediapipe": "palm_mediapipe"},
    "article": {"efficientnet": "article_efficientnet"},
}
# The tasks without which the app still decides, by other settings; both run, or none.
OPTIONAL = ("palm", "article")
# The highlight task's settings where the optional tasks run; fit_decision.py writes them.
SETTINGS_WITH_ARTICLES = APP / "settings_with_articles.json"
COST_WITHOUT = "highlights are found by COCO's classes alone: F1 0.50 instead of 0.85 on labelled files not fitted to"
EMBEDDER = "recognition_mobilenet"
OWN_DETECTOR = "own"
# Callbacks of a program that runs tasks without a device: there is no gallery of the streamer's own.
NO_EXCLUSIVE_FILES: Mapping[str, Callable[..., Any]] = {"exclusive.read": lambda *_: ("", None)}
_OWN_MODELS = {"item": "item", "face": "face", "voice": "voice", "highlight": "item"}

type Models = ModelFolder | OwnModels
_NOT_PUSHED = shutil.ignore_patterns("__pycache__", "*.walle")


class TaskFilesError(ConfigError):
    """A setting or a gallery of a task that does not fit its models. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def manifest() -> ModelManifest:
    """Return the app's manifest of published models."""
    return ModelManifest.read(MANIFEST_PATH)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models that a demo takes, and why, as a line for a person."""

    models: Models
    why: str


def choose_models(asked: str | None, folder: ModelFolder) -> ModelChoice:
    """Return the models that were asked for, "own" or "public"; without a wish the public ones if `folder` has them.

    Raises:
        ModelFileError: a file in the folder has another content than the manifest says.
    """
    if asked == OWN_DETECTOR:
        return ModelChoice(OwnModels(), "the app's own models, as asked for")
    if asked == "public":
        return ModelChoice(folder, f"the public models in {folder.path}, as asked for{_without(folder)}")
    entries = manifest().entries
    lacking = [name for name in public_models() if not folder.has(entries[name])]
    if not lacking:
        why = f"the public models in {folder.path}; --models own uses the app's smaller ones{_without(folder)}"
        return ModelChoice(folder, why)
    why = f"the app's own small models, because public ones are missing in {folder.path} ({', '.join(lacking)})"
    return ModelChoice(OwnModels(), f"{why}; `walle model get` fetches those, which see more")


def public_models() -> list[str]:
    """Return the published models that the tasks need with their settings as they are, without the optional tasks'."""
    names = [next(iter(known.values())) for task, known in DETECTORS.items() if task not in OPTIONAL]
    return sorted({*names, EMBEDDER})


def lacking_models(folder: ModelFolder) -> list[str]:
    """Return the published models of the optional tasks that a folder does not have.

    Raises:
        ModelFileError: a file has another content than the manifest says.
    """
    entries = manifest().entries
    names = [name for task in OPTIONAL for name in DETECTORS[task].values()]
    return [name for name in names if not folder.has(entries[name])]


def tasks_of(models: Models) -> tuple[str, ...]:
    """Return the tasks that run with these models: the optional ones only if all of their models are there."""
    is_whole = isinstance(models, ModelFolder) and not lacking_models(models)
    return NAMES if is_whole else tuple(name for name in NAMES if name not in OPTIONAL)


def _without(folder: ModelFolder) -> str:
    lacking = lacking_models(folder)
    if not lacking:
        return ""
    return f"; without {' and '.join(lacking)} {COST_WITHOUT}: `walle model get` fetches what is absent"


def check_public_models(folder: ModelFolder) -> None:
    """Raise ModelFileError, which names the command that fetches it, where a folder lacks one of `public_models`."""
    entries = manifest().entries
    for name in public_models():
        folder.file(entries[name])


def task_models(name: str, settings: dict[str, Any]) -> dict[str, str]:
    """Return which published model each model file below resources/ is made from."""
    if name not in DETECTORS:
        raise ConfigError(f"unknown task {name!r}; known are: {', '.join(NAMES)}")
    found = {_detector_file(name): DETECTORS[name][settings["detector"]]}
    return found | ({"embedder.walle": EMBEDDER} if name == "item" else {})


def settings_of(name: str, models: Models) -> dict[str, Any]:
    """Return a task's settings as they are pushed with these models, if no others are asked for."""
    settings: dict[str, Any] = json.loads((TASKS / name / "resources" / "settings.json").read_bytes())
    return settings | _settings_with(models, name)


def _settings_with(models: Models, name: str) -> dict[str, Any]:
    """Return the settings that a set of models brings for a task."""
    if isinstance(models, OwnModels):
        return models.settings(name)
    if lacking_models(models):
        return {}
    found: dict[str, Any] = json.loads(SETTINGS_WITH_ARTICLES.read_bytes()).get(name, {})
    return found


def _detector_file(name: str) -> str:
    return {"voice": "vad.walle", "article": "map.walle"}.get(name, "detector.walle")


def _write_model(model: str, source: Path, target: Path, settings: Mapping[str, Any]) -> None:
    """Write a published model as a .walle file."""
    match model:
        case "recognition_mobilenet":
            write_embedder(source, target)
        case "palm_mediapipe":
            write_palm_detector(source, target)
        case "article_efficientnet":
            write_article_map(source, target, side=settings["side"])
        case _:
            walle.convert(source, target)


def write_task(
    name: str,
    target: Path,
    models: Models,
    *,
    settings: Mapping[str, Any] | None = None,
    gallery: Path | None = None,
    sizes: Path | None = None,
) -> Path:
    """Write a task's folder to `target`, which may exist already; return it.

    `settings` replace those of resources/settings.json that they name; the app's own models bring settings too.
    `gallery` is for the item task: a file of make_gallery.py. So is `sizes`, a folder of adapt_detector.py: its smaller
    detectors become variants for devices of performance low and middle.

    Raises:
        ModelFileError: a model is not in the folder, or is another file.
        TaskFilesError: a setting is wrong, or the gallery was made with another model.
    """
    is_own = isinstance(models, OwnModels)
    if is_own and name in OPTIONAL:
        raise TaskFilesError(TASKS / name, "has no model among the app's own; it runs with public ones only")
    if sizes is not None and (name != "item" or not is_own):
        raise TaskFilesError(TASKS / name, "has no sizes: only the app's own item detector is made in three")
    write_sources(name, target)
    resources = target / "resources"
    resources.mkdir(exist_ok=True)
    changed = {**_settings_with(models, name), **(settings or {})}
    chosen = _settings(resources / "settings.json", changed, (OWN_DETECTOR,) if is_own else tuple(DETECTORS[name]))
    if gallery is not None:
        shutil.copyfile(gallery, resources / "gallery.json")
    if name == "item":
        if gallery is None and is_own:
            model, sha256 = embedder_of(models)
            empty = {"model": model, "sha256": sha256, "items": {}}
            (resources / "gallery.json").write_text(json.dumps(empty) + "\n", encoding="utf-8")
        _check_gallery(gallery or resources / "gallery.json", embedder_of(models))
    if isinstance(models, OwnModels):
        models.write(_OWN_MODELS[name], resources / _detector_file(name))
        if name == "item":
            models.write("embedder", resources / "embedder.walle")
        if sizes is not None:
            _write_sizes(sizes, target)
        return target
    for file, model in task_models(name, chosen).items():
        _write_model(model, models.file(manifest().entries[model]), resources / file, chosen)
    return target


def _write_sizes(sizes: Path, task: Path) -> None:
    file = _detector_file("item")
    for size in SIZES:
        if not (sizes / f"item-{size}.npz").is_file():
            raise TaskFilesError(sizes, f"has no item-{size}.npz; apps.livestream.adapt_detector makes it")
        graph = GraphBuilder(f"own_item_{size}")
        build_detector(graph, weights(f"item-{size}", sizes))
        graph.save(task / "resources" / sized(file, size))
    add_variants(task, file)


def embedder_of(models: Models) -> tuple[str, str]:
    """Return name and SHA-256 of the embedder, by which a gallery says what made it."""
    if isinstance(models, OwnModels):
        return "own_item", models.embedder_sha256()
    return EMBEDDER, manifest().entries[EMBEDDER].sha256


def write_sources(name: str, target: Path) -> None:
    """Write a task's folder without its models to `target`, which may exist already."""
    shutil.copytree(TASKS / name, target, dirs_exist_ok=True, ignore=_NOT_PUSHED)


def write_modules(target: Path) -> Path:
    """Write the set of shared modules as it is pushed to `target`, which may exist already; return it."""
    return shutil.copytree(TASKS / MODULES, target, dirs_exist_ok=True, ignore=_NOT_PUSHED)


def add_modules(folder: Path) -> Path:
    """Copy the shared modules into a task's folder, which a program runs without a cloud; return the folder."""
    for path in (TASKS / MODULES).glob("*.py"):
        shutil.copyfile(path, folder / path.name)
    return folder


def _settings(path: Path, changed: Mapping[str, Any], detectors: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(path.read_bytes())
    if unknown := changed.keys() - settings.keys():
        raise TaskFilesError(path, f"unknown setting {', '.join(unknown)}; known are: {', '.join(settings)}")
    settings |= changed
    if settings["detector"] not in detectors:
        raise TaskFilesError(path, f"detector is {settings['detector']!r}, must be one of {', '.join(detectors)}")
    if changed:
        path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return settings


def _check_gallery(path: Path, embedder: tuple[str, str]) -> None:
    name, sha256 = embedder
    try:
        made_with = json.loads(path.read_bytes()).get("sha256")
    except (ValueError, AttributeError) as error:
        raise TaskFilesError(path, f"is not a gallery ({error}); write it with apps.livestream.make_gallery") from error
    if made_with != sha256:
        raise TaskFilesError(path, f"was not made with {name}, SHA-256 {sha256}; make it again: make_gallery")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which the app's programs choose models; `chosen_models` reads them."""
    parser.add_argument("--models", choices=("own", "public"), default="public")
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")


def chosen_models(arguments: argparse.Namespace) -> Models:
    """Return the models that the options name."""
    return choose_models(arguments.models, ModelFolder(arguments.models_dir or default_folder())).models


def main() -> None:
    """Write the folders of the tasks that run with the models, and of their shared modules."""
    parser = argparse.ArgumentParser(description="Write the livestream app's task folders, with their models.")
    parser.add_argument("folder", type=Path)
    add_model_options(parser)
    parser.add_argument("--sizes", type=Path, help="folder of adapt_detector.py; own models only")
    arguments = parser.parse_args()
    models = chosen_models(arguments)
    print(write_modules(arguments.folder / MODULES))  # noqa: T201 -- a command's result
    for name in tasks_of(models):
        sizes = arguments.sizes if name == "item" else None
        print(write_task(name, arguments.folder / name, models, sizes=sizes))  # noqa: T201 -- a command's result


if __name__ == "__main__":
    main()
