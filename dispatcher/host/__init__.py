"""Functions that the host gives: asked without holding up the event loop."""
