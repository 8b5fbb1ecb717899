"""Task folders as they are pushed: the sources in tasks/, common modules, and their models in resources/.

    python -m apps.livestream.task_files FOLDER [--models-dir DIR]

The repository has no model. `write_task` takes them from a folder of published ones (`walle model get`), which
models.toml describes, and converts them.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import walle
from apps.livestream.make_embedder import write_embedder
from walle.errors import ConfigError
from walle.model_files import ModelEntry, ModelFolder, ModelManifest, default_folder

APP = Path(__file__).parent
TASKS = APP / "tasks"
MANIFEST_PATH = APP / "models.toml"
COMMON = TASKS / "common"
# The tasks, and the modules of tasks/common that are laid beside their own.
MODULES = {
    "item": ("boxes", "frame", "labels", "nanodet", "settings"),
    "face": ("boxes", "frame", "settings"),
    "voice": (),
    "highlight": ("boxes", "frame", "labels", "nanodet", "settings"),
}
NAMES = tuple(MODULES)
FACE_MODELS = {"yunet": "face_yunet", "ultraface": "face_ultraface"}
_NOT_PUSHED = shutil.ignore_patterns("__pycache__", "*.walle")


class TaskFilesError(ConfigError):
    """A setting or a gallery of a task that does not fit its models. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def manifest() -> ModelManifest:
    """Return the app's manifest of published models."""
    return ModelManifest.read(MANIFEST_PATH)


def task_models(name: str, settings: dict[str, Any]) -> dict[str, str]:
    """Return which published model each model file below resources/ is made from."""
    match name:
        case "item":
            return {"detector.walle": "det_nanodet", "embedder.walle": "recognition_mobilenet"}
        case "face":
            return {"detector.walle": FACE_MODELS[settings["detector"]]}
        case "voice":
            return {"vad.walle": "voice_silero"}
        case "highlight":
            return {"detector.walle": "det_nanodet"}
        case _:
            raise ConfigError(f"unknown task {name!r}; known are: {', '.join(NAMES)}")


def write_task(
    name: str,
    target: Path,
    models: ModelFolder,
    *,
    settings: Mapping[str, Any] | None = None,
    gallery: Path | None = None,
) -> Path:
    """Write a task's folder to `target`, which may exist already; return it.

    `settings` replace those of resources/settings.json that they name. `gallery` is for the item task: a file of
    make_gallery.py.

    Raises:
        ModelFileError: a model is not in the folder, or is another file.
        TaskFilesError: a setting is wrong, or the gallery was made with another model.
    """
    write_sources(name, target)
    resources = target / "resources"
    resources.mkdir(exist_ok=True)
    chosen = _settings(resources / "settings.json", settings or {})
    if gallery is not None:
        shutil.copyfile(gallery, resources / "gallery.json")
    entries = manifest()
    if name == "item":
        _check_gallery(gallery or resources / "gallery.json", entries.entries["recognition_mobilenet"])
    for file, model in task_models(name, chosen).items():
        found = models.file(entries.entries[model])
        (write_embedder if found.suffix == ".tflite" else walle.convert)(found, resources / file)
    return target


def write_sources(name: str, target: Path) -> None:
    """Write a task's folder without its models to `target`, which may exist already."""
    shutil.copytree(TASKS / name, target, dirs_exist_ok=True, ignore=_NOT_PUSHED)
    for module in MODULES[name]:
        shutil.copyfile(COMMON / f"{module}.py", target / f"{module}.py")


def _settings(path: Path, changed: Mapping[str, Any]) -> dict[str, Any]:
    if not path.exists():
        if changed:
            raise TaskFilesError(path, "the task has no settings")
        return {}
    settings: dict[str, Any] = json.loads(path.read_bytes())
    if unknown := changed.keys() - settings.keys():
        raise TaskFilesError(path, f"unknown setting {', '.join(unknown)}; known are: {', '.join(settings)}")
    settings |= changed
    if settings.get("detector", "yunet") not in FACE_MODELS:
        raise TaskFilesError(path, f"detector is {settings['detector']!r}, must be one of {', '.join(FACE_MODELS)}")
    if changed:
        path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return settings


def _check_gallery(path: Path, embedder: ModelEntry) -> None:
    try:
        made_with = json.loads(path.read_bytes()).get("sha256")
    except (ValueError, AttributeError) as error:
        raise TaskFilesError(path, f"is not a gallery ({error}); write it with apps.livestream.make_gallery") from error
    if made_with != embedder.sha256:
        raise TaskFilesError(
            path, f"was not made with {embedder.name}, SHA-256 {embedder.sha256}; make it again: make_gallery"
        )


def main() -> None:
    """Write the folders of all tasks."""
    parser = argparse.ArgumentParser(description="Write the livestream app's task folders, with their models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models-dir", type=Path, help="folder of published models, of `walle model get`")
    arguments = parser.parse_args()
    for name in NAMES:
        print(write_task(name, arguments.folder / name, ModelFolder(arguments.models_dir or default_folder())))  # noqa: T201 -- a command's result


if __name__ == "__main__":
    main()
