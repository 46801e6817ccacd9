"""Lets a host and its people decide whether a call may run, and what the model reads of its
result.
"""
