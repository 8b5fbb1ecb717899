"""Weights of a training run into the app's models: `python -m apps.livestream.train.install FOLDER [--only item face]`.

They are stored as float16. It prints how far the model's outputs are from those that the training wrote beside the
weights: PyTorch's, for the voice detector those of walle.nn on the whole sound at once.
"""

import argparse
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

import walle
from apps.livestream.own_models import CONTEXT, FOLDER, WINDOW, OwnModels, weights

NAMES = ("item", "face", "voice")


def install(run: Path, folder: Path = FOLDER, *, names: Collection[str] = NAMES) -> None:
    """Write the weights of `run`, the folder of train.py, to `folder`; those of the models in `names`."""
    for name in names:
        with np.load(run / f"{name}.npz") as pack:
            halves = {key: pack[key].astype(np.float16) for key in pack.files}
        if not all(np.isfinite(value).all() for value in halves.values()):
            raise ValueError(f"{run / name}.npz: a weight is not a finite number in float16")
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **halves)


def differences(run: Path, folder: Path = FOLDER, *, names: Collection[str] = NAMES) -> dict[str, float]:
    """Return the largest difference of a probability to that of the training, by model."""
    models, found = OwnModels(folder), dict[str, float]()
    with tempfile.TemporaryDirectory() as made:
        for name in [name for name in names if name != "voice"]:
            check = np.load(run / "check.npz")
            session = walle.Session(models.write(name, Path(made, f"{name}.walle")))
            outputs = [session.run({"image": (image[None] / 127.5 - 1).astype(np.float32)}) for image in check["image"]]
            scores = np.concatenate([np.asarray(output["scores"]) for output in outputs])
            found[name] = float(np.abs(scores - check[f"{name}/scores"]).max())
        if "voice" not in names:
            return found
        session = walle.Session(models.write("voice", Path(made, "voice.walle")))
        check = np.load(run / "check_voice.npz")
        samples = np.concatenate([np.zeros(CONTEXT, np.float32), check["samples"]])
        expected = check["probability"]
        state = np.zeros((1, 1, weights("voice", folder)["gru.weight_hh_l0"].shape[1]), np.float32)
        found["voice"] = 0.0
        for number, probability in enumerate(expected):
            part = samples[number * WINDOW : (number + 1) * WINDOW + CONTEXT]
            output = session.run({"input": part[None], "state": state})
            state = np.asarray(output["stateN"])
            found["voice"] = max(found["voice"], abs(float(output["output"][0, 0]) - float(probability)))
    return found


def main() -> None:
    """Install the weights of a run."""
    parser = argparse.ArgumentParser(description="Put trained weights where the livestream app has its models.")
    parser.add_argument("run", type=Path, help="the folder that train.py wrote")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="models to install; by default all")
    arguments = parser.parse_args()
    install(arguments.run, names=arguments.only)
    print(differences(arguments.run, names=arguments.only))


if __name__ == "__main__":
    main()
