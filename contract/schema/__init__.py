"""JSON Schema: what is taken as one, whether arguments fit, and why they do not."""
