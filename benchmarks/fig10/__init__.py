"""The parts of Fig. 10: networks, the engines that run them, worker processes, plan quality, and the report."""
