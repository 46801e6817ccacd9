"""Tools of other frameworks as tools of the pool.

A module is imported when one of its tools is declared; nothing here imports a framework before.
"""
