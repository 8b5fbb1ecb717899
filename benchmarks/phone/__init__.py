"""Parts of the figure `phone_day`: the compressed clock, the counters of the machine, and the phone's day itself."""
