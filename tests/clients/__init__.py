"""Programs that only dispatch, in environments with other packages than ours."""
