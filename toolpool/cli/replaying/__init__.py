"""`toolpool replay`: what recorded calls would come to today."""
