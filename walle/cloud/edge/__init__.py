"""Push gateway and edge gateway: answers from a followed table, reverse proxy, queue of reports."""
