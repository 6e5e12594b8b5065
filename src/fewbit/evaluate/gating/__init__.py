"""The gate: intervals, margins and the verdict; no measuring."""
