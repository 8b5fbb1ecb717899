"""Tuning of a model by its own data and peers: the loss, the peers that are skipped, convergence, and the gain."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapt.tuning.points import CLASSES, QUICK, Dense, dense, samples
from walle import nn, np
from walle.adapt.dataset import Dataset
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.tuning.distillation import Statistics, Tuner, TuningOptions, model_file
from walle.adapt.tuning.noise import LaplaceNoise
from walle.adapt.tuning.peers import Ensemble
from walle.adapt.tuning.plateau import Plateau
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import load
from walle.errors import ConfigError


def right(model: nn.Module, data: Dataset) -> float:
    return accuracy(Evaluation(model)(*data.inputs), data.labels)


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: one.tobytes() for name, one in model.state_dict().items()}


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.integers(1, 5))
def test_a_plateau_converges_after_patience_values_without_gain(losses: list[float], patience: int) -> None:
    plateau = Plateau(patience, 0.5)
    best, waited = float("inf"), 0
    for loss in losses:
        if loss < best - 0.5:
            best, waited = loss, 0
        else:
            waited += 1
        assert plateau.has_converged(loss) == (waited >= patience)


def test_a_plateau_counts_nan_as_no_gain() -> None:
    plateau = Plateau(2, 0.0)
    assert [plateau.has_converged(one) for one in (float("nan"), 1.0, float("nan"), float("nan"))] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("peers", "skipped"), [(1, 0), (2, 1), (4, 1), (19, 1), (20, 2), (45, 4)])
def test_a_tenth_of_the_peers_is_skipped_and_never_all(peers: int, skipped: int) -> None:
    data = samples(3)
    ensemble = Ensemble([model_file(dense(), data)] * peers, data, CLASSES, 1.0)
    assert len(ensemble) == peers
    assert ensemble.skipped() == skipped


def test_the_teacher_is_the_mean_of_softened_outputs_without_the_skipped_peer() -> None:
    data = samples(5)
    models = [dense(seed, width) for seed, width in ((1, 4), (2, 8), (3, 12))]
    ensemble = Ensemble([model_file(one, data) for one in models], data, CLASSES, 2.0)
    soft = [nn.functional.softmax(Evaluation(one)(*data.inputs) / 2.0, -1) for one in models]
    pairs = [(soft[a] + soft[b]) / 2 for a, b in ((0, 1), (0, 2), (1, 2))]
    places = np.asarray([4, 0])
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(30):
        found = ensemble.mean(places, random)
        near = [at for at, one in enumerate(pairs) if bool(np.all(np.abs(found - one[places]) < 1e-6))]
        assert len(near) == 1
        seen |= set(near)
    assert seen == {0, 1, 2}


def test_the_loss_is_cross_entropy_and_divergence_from_the_teacher() -> None:
    data = samples(16)
    model, peer = dense(1), dense(2)
    expected = float(nn.functional.cross_entropy(model(*data.inputs), data.labels))
    log_own = nn.functional.log_softmax(model(*data.inputs) / 3.0, -1)
    of_peer = nn.functional.softmax(peer(*data.inputs) / 3.0, -1)
    expected += 9.0 * float(np.sum(of_peer * (np.log(of_peer) - log_own))) / 16
    tuner = Tuner(model, data, TuningOptions(batch=16, temperature=3.0, max_epochs=1))
    assert tuner.train_with([model_file(peer, data)]).loss == pytest.approx(expected, rel=1e-4)


def test_peers_that_cannot_be_run_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = samples(8)
    broken = dense(3)
    broken.score.weight.data = np.full((CLASSES, 8), float("inf"), "float32")
    files = [b"no model", model_file(dense(1, outputs=3), data), model_file(broken, data), model_file(dense(2), data)]
    ensemble = Ensemble(files, data, CLASSES, 1.0)
    assert len(ensemble) == 1
    assert ensemble.refused[1:] == [
        "its outputs have shape (8, 3); logits have (8, 4)", "its outputs are not finite",
    ]  # fmt: skip
    assert caplog.text.count("left out") == 3


def written(build: Callable[[GraphBuilder, Value], Value]) -> bytes:
    """Return a model that another device wrote by hand."""
    graph = GraphBuilder("written")
    graph.output("y", build(graph, graph.input("x", (-1, 6))))
    return graph.to_bytes()


def test_a_peer_with_a_sequence_as_its_output_is_left_out() -> None:
    data = samples(8)
    files = [written(lambda graph, x: graph.op("SequenceConstruct", [x])), model_file(dense(), data)]
    ensemble = Ensemble(files, data, CLASSES, 1.0)
    assert (len(ensemble), ensemble.refused) == (1, ["its outputs have shape None; logits have (8, 4)"])


def test_a_peer_that_needs_more_memory_than_there_is_is_left_out() -> None:
    def build(graph: GraphBuilder, x: Value) -> Value:
        rows = graph.constant("rows", np.asarray([1 << 31], "int64"))
        expanded: Value = graph.op("Expand", [graph.op("ReduceSum", [x], keepdims=0), rows])
        return expanded

    data = samples(8)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 30), limits[1]))
    try:
        ensemble = Ensemble([written(build), model_file(dense(), data)], data, CLASSES, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(ensemble) == 1
    assert "cannot allocate 8589934592 bytes" in ensemble.refused[0]


def test_the_runs_of_a_peer_share_its_time() -> None:
    data, peer = samples(40 * 256), model_file(dense(width=512), samples(8))
    session, batch = load(peer), data.inputs[0][:256]
    times_s = []
    for _ in range(9):
        begin_s = time.perf_counter()
        session.run({session.inputs[0].name: batch})
        times_s.append(time.perf_counter() - begin_s)
    assert Ensemble([peer], data, CLASSES, 1.0).refused == []
    (why,) = Ensemble([peer], data, CLASSES, 1.0, runs_s=5 * min(times_s)).refused  # enough for each of the 40 runs
    assert "exceeded its deadline" in why


def test_opening_a_peer_has_a_deadline() -> None:
    """Opening this model takes eight seconds without one."""

    def build(graph: GraphBuilder, x: Value) -> Value:
        items = graph.op("SequenceConstruct", [x])
        for _ in range(10_000):
            items = graph.op("SequenceInsert", [items, x])
        length: Value = graph.op("SequenceLength", [items])
        return length

    data, file = samples(8), written(build)
    begin_s = time.process_time()
    (why,) = Ensemble([file], data, CLASSES, 1.0, runs_s=0.2).refused
    assert "exceeded its deadline" in why
    assert time.process_time() - begin_s < 2


class Counted(Dense):
    """A network that notes the most samples that it was planned for."""

    most = 0

    def forward(self, x: Any) -> Any:
        Counted.most = max(Counted.most, x.shape[0])
        return super().forward(x)


def test_accuracy_is_evaluated_in_batches() -> None:
    data = samples(700)
    Counted.most = 0
    model = Counted()
    done = Tuner(model, data, TuningOptions(batch=16, max_epochs=1)).train()
    assert 16 <= Counted.most <= 256
    assert done.accuracy == right(model, data)


def test_training_converges_before_the_limit_and_repeats_bit_by_bit() -> None:
    data = samples(32)
    options = TuningOptions(batch=16, learning_rate=0.05, patience=5, least_gain=0.01, max_epochs=400)
    made = []
    for _ in range(2):
        model = dense(1)
        done = Tuner(model, data, options).train()
        made.append((weights(model), done))
    assert made[0] == made[1]
    assert 5 < done.epochs < 400
    assert done.accuracy > 0.9


def test_each_pass_over_the_data_is_told() -> None:
    epochs: list[int] = []
    tuner = Tuner(dense(1), samples(20), TuningOptions(max_epochs=3), lambda: epochs.append(tuner.steps))
    assert tuner.train().epochs == 3
    assert epochs == [1, 2, 3]


def test_peers_of_other_shapes_teach_what_few_samples_do_not() -> None:
    test = samples(1000, 50)
    devices = [Tuner(dense(seed, 8 + seed), samples(16, seed), QUICK) for seed in range(5)]
    for one in devices:
        one.train()
    files = [model_file(one.model, one.data) for one in devices]
    gains = []
    for at, one in enumerate(devices):
        state = one.model.state_dict()
        one.train()
        alone = right(one.model, test)
        one.model.load_state_dict(state)
        one.train_with(files[:at] + files[at + 1 :])
        gains.append(right(one.model, test) - alone)
    assert sum(gains) / len(gains) > 0.03


def test_rounds_send_the_model_and_statistics_and_no_sample() -> None:
    data = samples(24)
    peer = model_file(dense(7), data)
    sent: list[tuple[bytes, Statistics]] = []

    def exchange(file: bytes, statistics: Statistics) -> list[bytes]:
        sent.append((file, statistics))
        return [peer]

    tuner = Tuner(dense(1), data, QUICK)
    before = weights(tuner.model)
    tuner.run(exchange, rounds=2)
    assert 1 <= len(sent) <= 2
    assert weights(tuner.model) != before
    for file, statistics in sent:
        assert Ensemble([file], data, CLASSES, 1.0).refused == []
        assert 0 <= statistics.accuracy <= 1
        assert not any(row.tobytes()[:8] in file for row in data.inputs[0])
    with pytest.raises(ConfigError, match="0 rounds"):
        tuner.run(exchange, rounds=0)


def test_with_noise_another_model_is_sent_than_the_device_keeps() -> None:
    data = samples(24)
    data = Dataset((np.clip(data.inputs[0], -4, 4),), data.labels)
    sent: list[bytes] = []

    def exchange(file: bytes, _statistics: Statistics) -> list[bytes]:
        sent.append(file)
        return []

    tuner = Tuner(dense(1), data, QUICK)
    tuner.train()
    quiet = model_file(tuner.model, data)
    kept = weights(tuner.model)
    noisy = tuner.noisy_model(LaplaceNoise(1.0, -4, 4, seed=3))
    assert weights(tuner.model) == kept
    assert model_file(noisy, data) != quiet
    tuner.run(exchange, noise=LaplaceNoise(1.0, -4, 4, seed=3))
    assert sent[0] not in (quiet, model_file(tuner.model, data))


def test_labels_that_are_not_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="give whole numbers"):
        Tuner(dense(), Dataset((np.zeros((2, 6), "float32"),), np.zeros((2, 1), "float32")))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="temperature 0"):
        TuningOptions(temperature=0.0)
