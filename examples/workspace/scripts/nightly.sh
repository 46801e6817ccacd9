#!/bin/sh
# Exports orders, customers and stock. Safe to run twice.
set -eu
cd "$(dirname "$0")/.."
python -m orderdesk.export --to data --retention-days 30
echo "export done" >> logs/nightly.log
