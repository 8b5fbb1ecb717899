"""How good the app's answers are: labels, scores by second, intervals, calibration."""
