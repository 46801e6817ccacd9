"""`toolpool replay`: what recorded calls would result in today."""
