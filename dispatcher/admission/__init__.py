"""Whether a call may be queued: known, valid, repaired, allowed."""
