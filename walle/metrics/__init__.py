"""Table of all metrics, histograms, durations of requests, queue of spans."""
