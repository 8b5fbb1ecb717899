"""A model cut between device and cloud: cuts and their costs, the two files, and the choice at each moment.

Source: Kang et al., Neurosurgeon: Collaborative Intelligence Between the Cloud and Mobile Edge (ASPLOS 2017).
"""
