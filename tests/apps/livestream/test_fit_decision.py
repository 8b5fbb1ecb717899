import numpy as np

from apps.livestream.fit_decision import best_threshold, fit, unsure_band


def test_what_tells_the_answers_apart_gets_the_weight() -> None:
    rng = np.random.default_rng(1)
    evidence = rng.random((400, 3))
    answers = evidence[:, 1] > 0.5
    weights, bias = fit(evidence, answers, penalty=0.1)
    assert weights[1] > 5
    assert max(weights[0], weights[2]) < 0.3 * weights[1]
    assert ((evidence @ weights + bias > 0) == answers).mean() > 0.95


def test_no_weight_is_negative() -> None:
    evidence = np.random.default_rng(2).random((100, 1))
    weights, _ = fit(evidence, evidence[:, 0] < 0.5)
    assert weights[0] == 0


def test_the_threshold_is_where_f1_is_best() -> None:
    probabilities = np.asarray([0.05, 0.1, 0.2, 0.3, 0.4])
    answers = np.asarray([False, False, True, False, True], np.bool)
    assert np.isclose(best_threshold(probabilities, answers), 0.15)


def test_the_unsure_band_holds_the_share_nearest_to_the_threshold() -> None:
    probabilities = np.linspace(0.01, 0.99, 99)
    low, high = unsure_band(probabilities, 0.5, share=0.2)
    assert 0.17 < ((probabilities > low) & (probabilities < high)).mean() < 0.23
    assert np.isclose(low + high, 1, atol=0.01)
