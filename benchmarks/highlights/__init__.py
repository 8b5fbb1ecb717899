"""Parts of the livestream app's figures: networks, clips without end, the cloud-only baseline, scenarios and plots."""
