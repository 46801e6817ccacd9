"""The record of every call, and the steps that may change it. In Redis and in memory."""
