"""Emulated mobile links on one machine: real packets between two TUN devices, or a TCP proxy without the right to that.

`tun` is the truth: each IP packet of the kernel's own TCP is delayed, queued and dropped, and TCP recovers from it.
`proxy` needs no right: it forwards a byte stream, and models a lost packet as a delay of all bytes behind it.
"""
