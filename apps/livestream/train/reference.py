"""PyTorch's outputs with the app's stored weights: `python -m apps.livestream.train.reference TARGET.npz`.

The inputs are made by seed, so the file has outputs only; tests compare the engine's with them. Needs PyTorch.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from apps.livestream.train.networks import FACE_WIDTHS, ITEM_WIDTHS, Detector, Voice
from apps.livestream.train.reference_inputs import EVERY, image, samples

MODELS = Path(__file__).parents[1] / "models"


def _stored(name: str) -> dict[str, NDArray[np.float32]]:
    with np.load(MODELS / f"{name}.npz") as pack:
        return {key: pack[key].astype(np.float32) for key in pack.files}


def outputs() -> dict[str, NDArray[np.float32]]:
    """Return the outputs by model and name."""
    found: dict[str, NDArray[np.float32]] = {}
    for name, network in (("item", Detector(ITEM_WIDTHS, 6)), ("face", Detector(FACE_WIDTHS, 1))):
        x = torch.as_tensor(image())
        network.train()
        network.start_from(_stored(name), x)
        network.eval()
        with torch.no_grad():
            logits, distances = network(x)
        found[f"{name}/scores"] = logits.sigmoid()[0, ::EVERY].numpy()
        found[f"{name}/distances"] = distances[0, ::EVERY].numpy()
    voice = Voice()
    voice.load_state_dict({key: torch.as_tensor(value) for key, value in _stored("voice").items()})
    with torch.no_grad():
        logits, state = voice(torch.as_tensor(samples())[None])
    found["voice/probability"], found["voice/state"] = logits.sigmoid()[0].numpy(), state[0, 0].numpy()
    return found


def main() -> None:
    """Write the outputs."""
    parser = argparse.ArgumentParser(description="Write PyTorch's outputs with the stored weights.")
    parser.add_argument("target", type=Path)
    np.savez_compressed(parser.parse_args().target, allow_pickle=False, **outputs())


if __name__ == "__main__":
    main()
