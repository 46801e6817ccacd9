"""The record of every call and the atomic steps that change it, on Redis and in memory."""
