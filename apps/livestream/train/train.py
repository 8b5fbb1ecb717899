"""Training of the app's detectors of items and faces, with PyTorch (`pip install torch`) and NumPy alone:

    python -m apps.livestream.train.train --data PACK --out FOLDER --minutes 5 [--start FOLDER] [--device cuda]

PACK is made by make_data.py. FOLDER gets item.npz and face.npz: weights with batch normalisation folded in, by the
names that own_models.py builds their graphs from; check.npz: inputs, and PyTorch's outputs for them; and metrics.json
on what was held out. With --start it continues from an earlier run's FOLDER. `install.py` puts the weights where the
app has them. PyTorch stays here because these take minutes of a GPU, and walle.nn trains on CPUs; speech.py trains
the voice detector with walle.nn.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apps.livestream.train.detection import evaluate_detectors, train_detectors
from apps.livestream.train.scenes import Scenes


def main() -> None:
    """Train, evaluate and write."""
    parser = argparse.ArgumentParser(description="Train the livestream app's detectors.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--start", type=Path, help="folder of an earlier run to continue")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenes", type=Path, help="only write composed scenes with their boxes here, as .npz")
    arguments = parser.parse_args()
    begin = time.monotonic()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 2
    generator = torch.Generator(device).manual_seed(arguments.seed)
    scenes = Scenes(arguments.data, device, generator)
    if arguments.scenes:
        image, items, faces = (part.cpu().numpy() for part in scenes.batch(arguments.batch))
        np.savez(arguments.scenes, image=image.astype(np.uint8), items=items, faces=faces)
        return
    left = arguments.minutes * 60 - (time.monotonic() - begin)
    print(f"data loaded in {time.monotonic() - begin:.0f} s, on {device}", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    networks = train_detectors(scenes, 0.9 * left, arguments.batch, device, arguments.start)
    for name, network in networks.items():
        np.savez(arguments.out / f"{name}.npz", allow_pickle=False, **network.weights())
        print(name, sum(value.size for value in network.weights().values()), "weights")
    check: dict[str, Any] = {}
    frames, _ = scenes.held_out()
    with torch.no_grad():
        x = frames[:: max(1, len(frames) // 4)][:4].cpu()
        check["image"] = x.numpy().astype(np.uint8)
        for name, network in networks.items():
            logits, distances = network.cpu().float()(torch.as_tensor(check["image"]).float() / 127.5 - 1)
            check[f"{name}/scores"], check[f"{name}/distances"] = logits.sigmoid().numpy(), distances.numpy()
            network.to(device)
    np.savez_compressed(arguments.out / "check.npz", **check)
    metrics = evaluate_detectors(scenes, networks, device)
    (arguments.out / "metrics.json").write_text(json.dumps(metrics, indent=1))
    print(json.dumps(metrics, indent=1))
    print(f"done in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
