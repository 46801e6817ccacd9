"""JSON Schema: compiling schemas, validating arguments and explaining errors."""
