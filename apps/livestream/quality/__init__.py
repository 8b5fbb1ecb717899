"""Quality of the app's answers: labels, scores by second, intervals, calibration."""
