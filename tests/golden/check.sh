#!/bin/sh
# Regenerates the golden vectors and compares them byte for byte; 77 (skipped) where python3 has no numpy.
if ! /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
  echo "SKIPPED: /usr/bin/python3 with numpy is not installed"
  exit 77
fi
exec /usr/bin/python3 -B "$(dirname "$0")/make_golden.py" --check
