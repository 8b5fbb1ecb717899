"""Secure aggregation: a server that follows the protocol learns the sum of the clients' vectors, and none of them.

Source: Bell, Bonawitz, Gascón, Lepoint and Raykova, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead
(CCS 2020), "SecAgg+"; Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS
2017).

Four exchanges of bytes, which `client.SecAggClient` and `server.SecAggServer` make and read; a transport carries them.

====  =========================================  ==========================================================
step  client sends                               server sends
====  =========================================  ==========================================================
1     two public keys, signed by the device      hashes of all keys, and the keys of the client's neighbours
2     shares of two seeds, sealed to neighbours  the shares that neighbours sealed to this client
3     its vector under masks                     clients that delivered, and clients that were lost
4     one share for each neighbour               (the sum is known)
====  =========================================  ==========================================================

What holds. A server that follows the protocol, together with the assumed part of corrupt clients, learns the sum of at
least `minimum` vectors. What does not hold yet: a server that departs from it can learn single vectors. It cannot
invent clients (device keys sign), and it cannot get both seeds of a client by telling neighbours different things
(thresholds in `graph`). But clients do not compare whom it calls lost, as the consistency check of Bonawitz et al.
would: told differently, they open the masks around one client. It can also choose which devices it invites, and search
for a ring that suits it among rosters. A corrupt client can spoil the sum, which only limits on the
updates themselves can mitigate. Two sums over clients that differ in one show its vector to who has both: add noise.
The state of a client is in memory: a client whose process died is a lost client.
"""
