"""Privacy of updates: clipping, noise, the budget of epsilon, and sums that hide each client's part (§8).

`clipping`, `noise`, `fixed_point` and `secagg.client` run in the device's own process, after the task's VM returned;
`budget` and `secagg.server` run on the server. Nothing here opens a socket, reads a clock or keeps global state.
"""
