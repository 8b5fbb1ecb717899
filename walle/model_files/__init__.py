"""Published model files: a manifest that lists them, the folder that has them, and their download."""

from walle.model_files.download import FetchedModel, fetch
from walle.model_files.folder import ModelFileError, ModelFolder, default_folder
from walle.model_files.manifest import ModelEntry, ModelManifest, ModelManifestError, ModelPackage
from walle.model_files.partial_file import ModelFetchError

__all__ = [
    "FetchedModel",
    "ModelEntry",
    "ModelFetchError",
    "ModelFileError",
    "ModelFolder",
    "ModelManifest",
    "ModelManifestError",
    "ModelPackage",
    "default_folder",
    "fetch",
]
